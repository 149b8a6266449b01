"""`Exchange`: one request on its way, from where it arrived to its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tensorwasm.server.connection.request import WireRequest
    from tensorwasm.server.http.bodies import BodyMemory
    from tensorwasm.server.http.head import HeadPlan
    from tensorwasm.server.http.routing import Route
    from tensorwasm.service.admission.admission import Admitted
    from tensorwasm.telemetry.timeline import RequestTimeline
    from tensorwasm.tenancy.principal import Principal

WEBSOCKET: Final = "WS"
"""What stands for a method where a WebSocket is asked for."""


class Exchange:
    """One request on its way.

    Attributes:
        wire: the request on its connection, which takes the answer.
        headers: of its head, with `get`, `get_all` and ``in``; names are in lower case.
        body: what came of the body; None while it is still to be read.
        held: memory of a body that was not read ahead, or came compressed; given back once the request is answered.
        began_ns: when it arrived, as `time.perf_counter_ns` counts.
        method: of HTTP, or ``WS``.
        path: with percent signs decoded.
        plan: what follows from its head.
        client, certificate: the peer, as `WireRequest.peer` says.
        request_id: the client's own name for it, else a UUID.
        trace_id: 32 hex digits, or empty.
        route: which it is; None until that is known, and where there is none.
        principal: who asks, once that is known.
        tenant: for whom, once that is known.
        admitted: the admission of one that need not be admitted again.
        audit: fields of its record that its handler sets; None before there is a handler.
        limits: headers that say how often it may be asked, once that is known.
        left: whether the client has left.
        error: how it failed; None while it has not.
        timeline: where its time goes; None for one that is not timed.
    """

    __slots__ = (
        "admitted",
        "audit",
        "began_ns",
        "body",
        "certificate",
        "client",
        "error",
        "headers",
        "held",
        "left",
        "limits",
        "method",
        "path",
        "plan",
        "principal",
        "request_id",
        "route",
        "tenant",
        "timeline",
        "trace_id",
        "wire",
    )

    def __init__(self, wire: WireRequest, began_ns: int) -> None:
        """Begin with a request, whose body has come if it is short."""
        self.wire = wire
        head = wire.head
        self.headers = head.fields
        self.body = wire.whole() if not wire.long or wire.broken is not None else None
        self.held: BodyMemory | None = None
        self.began_ns = began_ns
        self.method: str = WEBSOCKET if head.websocket else head.method
        self.path: str = head.path
        self.plan: HeadPlan = head.plan
        self.client, self.certificate = wire.peer
        self.request_id = ""
        self.trace_id = ""
        self.route: Route | None = None
        self.principal: Principal | None = None
        self.tenant: int | None = None
        self.admitted: Admitted | None = None
        self.audit: dict[str, str] | None = None
        self.limits: tuple[tuple[str, str], ...] = ()
        self.left = False
        self.error = wire.broken
        self.timeline: RequestTimeline | None = None

    def forget(self) -> None:
        """Hold on to nothing that leads back here: the server keeps a connection for as long as the last of it is held.

        An error has the frames that it came through.
        """
        if self.plan is not None and self.plan.error is not None:
            self.plan.error = self.wire.head.plan = None
        self.error = None

    async def gone(self) -> None:
        """Return when the client has left."""
        await self.wire.gone()
        self.left = True


class DisconnectWatcher:
    """Ends a task when its client leaves.

    Args:
        wire: the request.
        task: is cancelled.

    Attributes:
        left: whether it was.
    """

    __slots__ = ("_task", "_wire", "left")

    def __init__(self, wire: WireRequest, task: asyncio.Task[Any]) -> None:
        """Begin to watch."""
        self.left = False
        self._wire, self._task = wire, task
        wire.on_leaving(self._tell)

    def close(self) -> None:
        """Watch no longer."""
        self._wire.stay(self._tell)

    def _tell(self) -> None:
        if not self._task.done():
            self.left = True
            self._task.cancel()


class _Aside:
    """Awaited where what follows must be in a task; `begin` makes it."""

    def __await__(self) -> Generator[None, None, None]:
        yield


BECOME_TASK: Final = _Aside()
