"""What goes over streams and WebSockets in JSON."""

from __future__ import annotations

from typing import Literal

import msgspec

from tensorwasm.server.wire.functions import Invoke


class SocketMessage(Invoke, kw_only=True):
    """A text message of a client: a call, or the end of the one that runs.

    Attributes:
        cancel: ends it; everything else is ignored then.
    """

    cancel: bool = False


class StreamOutcome(msgspec.Struct):
    """How a stream ended.

    Attributes:
        request_id: its `X-Request-Id`.
        function: what was called.
        status: `running`, `done` or `error`.
        reason: stable name of the failure, empty without one.
        message: for people.
    """

    request_id: str
    function: str
    status: Literal["running", "done", "error"]
    reason: str
    message: str
