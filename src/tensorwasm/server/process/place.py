"""`Place`: which of the processes that serve together one is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

HTTP: Final = "http"
CONTROL: Final = "control"
"""Names of the private sockets: of requests that fronts relay, and of the links between them and the primary."""

BROKER: Final = "broker"
"""Name of the socket at which the processes get connections to GPU workers."""


@dataclass(frozen=True, slots=True)
class Place:
    """Which of the processes that serve together this one is.

    Attributes:
        role: primary, front, or the broker of their GPU workers.
        row: its row of the shared table; the primary's is 0.
        table: descriptor of the shared table, inherited.
        rows: rows that the table has.
        folder: of the private sockets `http` and `control`.
        fronts: processes of the fronts that there are when a primary begins.
        http: descriptor of the socket that listens there, inherited by the primary; -1 for a front.
        control: likewise.
    """

    role: Literal["primary", "front", "broker"]
    row: int
    table: int
    rows: int
    folder: str
    http: int = -1
    control: int = -1
    fronts: tuple[int, ...] = ()

    @property
    def broker(self) -> str:
        """The path of the broker's socket."""
        return f"{self.folder}/{BROKER}"
