"""`Exchange`: one request on its way, from where it arrived to its answer."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Generator
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tensorwasm.errors import TensorWasmError
    from tensorwasm.server.http.bodies import BodyMemory
    from tensorwasm.server.http.routing import HttpRequest, Route
    from tensorwasm.tenancy.principal import Principal

WEBSOCKET: Final = "WS"
"""What stands for a method where a WebSocket is asked for."""

CONTEXT: Final = contextvars.copy_context()
"""What callbacks run in that belong to no task."""


class Exchange:
    """One request on its way.

    Attributes:
        scope: RSGI's.
        proto: RSGI's, which takes the answer.
        headers: RSGI's.
        body: what came of the body; None while it is still to be read.
        held: memory of a body that was not read ahead, or came compressed; given back once the request is answered.
        began_ns: when it arrived, as `time.perf_counter_ns` counts.
        method: of HTTP, or ``WS``.
        path: with percent signs decoded.
        client: the peer's address, without a port.
        request_id: the client's own name for it, else a UUID.
        trace_id: 32 hex digits, or empty.
        route: which it is; None until that is known, and where there is none.
        principal: who asks, once that is known.
        tenant: for whom, once that is known.
        call: what the handler was given.
        limits: headers that say how often it may be asked, once that is known.
        left: whether the client has left.
        error: how it failed; None while it has not.
    """

    __slots__ = (
        "_chunks",
        "began_ns",
        "body",
        "call",
        "client",
        "error",
        "headers",
        "held",
        "left",
        "limits",
        "method",
        "path",
        "principal",
        "proto",
        "request_id",
        "route",
        "scope",
        "tenant",
        "trace_id",
    )

    def __init__(self, scope: Any, proto: Any, headers: Any, body: bytes | None, began_ns: int) -> None:
        self.scope = scope
        self.proto = proto
        self.headers = headers
        self.body = body
        self.held: BodyMemory | None = None
        self.began_ns = began_ns
        self.method: str = scope.method if scope.proto == "http" else WEBSOCKET
        self.path: str = scope.path
        self.client: str = scope.client.rpartition(":")[0]
        self.request_id = ""
        self.trace_id = ""
        self.route: Route | None = None
        self.principal: Principal | None = None
        self.tenant: int | None = None
        self.call: HttpRequest | None = None
        self.limits: tuple[tuple[str, str], ...] = ()
        self.left = False
        self.error: TensorWasmError | None = None
        self._chunks: AsyncIterator[bytes] | None = None

    def chunks(self) -> AsyncIterator[bytes]:
        """Return what is still to come of the body, in pieces; the same iterator every time."""
        if self._chunks is None:
            self._chunks = aiter(self.proto)
        return self._chunks

    def forget(self) -> None:
        """Hold on to nothing that leads back here: the server keeps a connection for as long as the last of it is held.

        An error has the frames that it came through.
        """
        self.call = self.error = None

    async def gone(self) -> None:
        """Return when the client has left."""
        await self.proto.client_disconnect()
        self.left = True


class DisconnectWatcher:
    """Ends a task when its client leaves.

    Args:
        proto: RSGI's.
        task: is cancelled.

    Attributes:
        left: whether it was.
    """

    __slots__ = ("_leaving", "_task", "left")

    def __init__(self, proto: Any, task: asyncio.Task[Any]) -> None:
        """Begin to watch."""
        self.left = False
        self._task: asyncio.Task[Any] | None = task
        leaving = proto.client_disconnect()
        # Of a client that is known to have left, the server gives something that takes no callbacks.
        self._leaving = leaving if hasattr(leaving, "add_done_callback") else None
        if self._leaving is None:
            self._tell(leaving)
        else:
            self._leaving.add_done_callback(self._tell, context=CONTEXT)

    def close(self) -> None:
        """Watch no longer."""
        self._task = None
        if self._leaving is not None:
            self._leaving.cancel()  # which is told like any other end
            self._leaving = None  # it keeps its callback, and no collector sees into it

    def _tell(self, _: object) -> None:
        if self._task is not None and not self._task.done():
            self.left = True
            self._task.cancel()


class _Aside:
    """Awaited where what follows must be in a task; `begin` makes it."""

    def __await__(self) -> Generator[None, None, None]:
        yield


BECOME_TASK: Final = _Aside()
