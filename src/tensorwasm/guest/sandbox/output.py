"""Output of a guest: captured up to a limit, handed to a sink, or inherited from the process."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tensorwasm.guest.sandbox.mounts import Mounts

Sink = Callable[[bytes], object]


class Inherit(enum.Enum):
    """The type of `INHERIT`."""

    INHERIT = enum.auto()


INHERIT: Final = Inherit.INHERIT
"""A stream of the process's own instead of a value or a sink: read as the guest asks, written without a copy."""


class GuestOutput:
    """Where one of a guest's output streams goes.

    At most ``limit_bytes`` are taken. The write that goes over is cut there, and it and every later one fails in the
    guest.

    Attributes:
        truncated: the guest wrote more than was taken.
    """

    __slots__ = ("_captured", "_left_bytes", "_sink", "truncated")

    def __init__(self, limit_bytes: int, sink: Sink | Inherit | None = None) -> None:
        self._sink = None if sink is INHERIT else sink
        self._captured = bytearray()
        self._left_bytes = limit_bytes
        self.truncated = False

    @property
    def captured(self) -> bytes:
        """Everything taken so far; empty with a sink."""
        return bytes(self._captured)

    def renew(self, limit_bytes: int) -> None:
        """Begin anew, for another call of the same guest, with nothing captured.

        Args:
            limit_bytes: most that is taken from now on.
        """
        self._captured = bytearray()
        self._left_bytes = limit_bytes
        self.truncated = False

    def take(self, chunk: bytes) -> bool:
        """Take a chunk, or as much of it as the limit allows.

        Returns:
            Whether all of it was taken.
        """
        kept = chunk[: self._left_bytes]
        self._left_bytes -= len(kept)
        if self._sink is None:
            self._captured += kept
        elif kept:
            self._sink(kept)
        if len(kept) < len(chunk):
            self.truncated = True
        return len(kept) == len(chunk)


@dataclass(frozen=True, slots=True)
class WasiState:
    """The WASI side of one sandbox.

    Attributes:
        stdout: standard output.
        stderr: standard error.
        clock_origin_ns: ``time.monotonic_ns()`` when the guest's monotonic clock was at 0.
        mounts: what it sees of the file system, None for nothing.
    """

    stdout: GuestOutput
    stderr: GuestOutput
    clock_origin_ns: int
    mounts: Mounts | None = None

    def close(self) -> None:
        """Release what was made for the guest."""
        if self.mounts is not None:
            self.mounts.close()
