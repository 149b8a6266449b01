"""What the client commands meet on the other side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensorwasm.errors.base import HostError


class ServerUnreachable(HostError):
    """The server does not answer, or breaks off."""

    kind = "server_unreachable"


class Refused(HostError):
    """A server refused, or failed.

    Attributes:
        kind: the server's own.
        status: of HTTP; 0 where it was told within an answer that had begun well.
        left: what else the answer says of a guest that failed: ``stdout``, ``stderr``, ``backtrace``.
    """

    kind = "refused"

    def __init__(
        self, message: str, kind: str = "refused", status: int = 0, left: Mapping[str, Any] | None = None
    ) -> None:
        """Remember what kind of refusal it is; an instance has the server's kind."""
        super().__init__(message)
        # The class has a word for those that have none of their own.
        self.kind = kind  # type: ignore[misc]
        self.status = status
        self.left = left or {}


class EndpointMissing(HostError):
    """The server has no such route: it is another release, or something else."""

    kind = "endpoint_missing"
    exit_code = 3
