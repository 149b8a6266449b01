"""Errors of the client commands about a server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensorwasm.errors.base import HostError


class ServerUnreachable(HostError, kind="server_unreachable"):
    """The server does not answer, or breaks the connection."""


class Refused(HostError, kind="refused"):
    """The server refused the request, or failed.

    Attributes:
        kind: the server's error kind.
        status: of HTTP; 0 for an error within a response that had begun with success.
        left: of a failed guest: ``stdout``, ``stderr``, ``backtrace``.
    """

    def __init__(
        self, message: str, kind: str = "refused", status: int = 0, left: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        # The class attribute is for servers that report no kind.
        self.kind = kind  # type: ignore[misc]
        self.status = status
        self.left = left or {}


class EndpointMissing(HostError, kind="endpoint_missing", exit_code=3):
    """The server has no such route: it is another release, or not this service."""
