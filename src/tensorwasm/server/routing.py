"""What a route is: where it is, who may use it, what it takes and gives. OpenAPI is made from the same rows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from tensorwasm.errors import InternalError, TensorWasmError

if TYPE_CHECKING:
    from tensorwasm.service.admission.admission import Admitted, RouteClass
    from tensorwasm.service.service import Service
    from tensorwasm.tenancy.principal import Principal
    from tensorwasm.values import Deadline


@dataclass(slots=True)
class Call:
    """One request, as a handler sees it: already authenticated, admitted and decoded.

    Attributes:
        service: what is served.
        principal: who asks; None on open routes.
        tenant: for whom; the principal may act for it.
        params: what the path's braces stood for.
        query: the query, decoded; of repeated names the last.
        headers: RSGI's, case-insensitive ``get``.
        body: what `Route.request` decoded to; None without.
        raw: the body's bytes.
        request_id: the client's own name for this request, else a UUID.
        trace_id: 32 hex digits of the W3C trace context, or empty.
        deadline: when the answer must be there.
        client: the peer's address, without a port.
        gone: returns when the client has left; for handlers that wait long.
        admission: what holds for the tenant; None on open routes. Handlers of others take `admitted`.
        again: admits one more call of the same client, as if it were a request; None unless it is a WebSocket, on which
            there may be many.
    """

    service: Service
    principal: Principal | None
    tenant: int
    params: Mapping[str, str]
    query: Mapping[str, str]
    headers: Any
    body: Any
    raw: bytes = field(repr=False)
    request_id: str
    trace_id: str
    deadline: Deadline
    client: str
    gone: Callable[[], Awaitable[None]]
    admission: Admitted | None = None
    again: Callable[[], Awaitable[Admitted]] | None = None
    audit: dict[str, str] = field(default_factory=dict)
    """What a handler adds to the audit record, such as ``function_id``."""

    @property
    def admitted(self) -> Admitted:
        """What holds for the tenant.

        Raises:
            InternalError: the route is open: nobody was admitted.
        """
        if self.admission is None:
            raise InternalError("a route that is open to everybody acts for a tenant")
        return self.admission


class Reply(msgspec.Struct, frozen=True):
    """An answer in one piece. A struct, because each request has one, and it costs a tenth of a frozen dataclass.

    Attributes:
        body: encoded already, or a msgspec struct or plain value to encode as JSON; None for no body.
        status: of HTTP; None takes the route's.
        headers: besides those that every answer has.
        content_type: of a body that is encoded already.
    """

    body: object = None
    status: int | None = None
    headers: tuple[tuple[str, str], ...] = ()
    content_type: str = "application/json"


Send = Callable[[bytes], Awaitable[bool]]
"""Sends bytes, waits while the client is slow, and returns False once it has left; it never raises.

The answer's head goes with the first of them, which may be none."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a body in pieces ends.

    Attributes:
        trailers: fields after the body; HTTP/1.1 has them, elsewhere they are left out.
        whole: False cuts the transfer off, so that nobody takes what came for all there is.
    """

    trailers: tuple[tuple[str, str], ...] = ()
    whole: bool = True


@dataclass(frozen=True, slots=True)
class Streamed:
    """An answer in pieces; `tensorwasm.server.streaming.answering.answer` sends it.

    Attributes:
        send: is given a function that sends bytes, and returns how the body ends once all is sent. It ends soon after
            the client has left. It never raises what the client could be told: that it sends.
        content_type: of the body.
        headers: besides those that every answer has.
        exact: the ending matters to the client, which needs HTTP/1.1.
        length: of the body, where it is known; the connection stays open then.
    """

    send: Callable[[Send], Awaitable[Ending]]
    content_type: str
    headers: tuple[tuple[str, str], ...] = ()
    exact: bool = False
    length: int | None = None


Handler = Callable[[Call], Reply | Awaitable[Reply | Streamed]]
"""Makes the answer, at once or awaited. One that answers at once costs the event loop no task and no turn."""


@dataclass(frozen=True, slots=True)
class Param:
    """What one name of a query stands for.

    Attributes:
        meaning: for people.
        schema: JSON Schema of what its handler takes, no more and no less.
    """

    meaning: str
    schema: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one path.

    Attributes:
        method: ``GET``, ``POST``, ``PUT``, ``PATCH`` or ``DELETE``; ``WS`` for a WebSocket.
        path: with braces for what varies, such as ``/functions/{id}``.
        handle: a `Handler`: makes the answer of a `Call`. That of a WebSocket is given the `Call` and an open
            `tensorwasm.server.streaming.websocket.Socket`, and returns when it is done with it.
        summary: one sentence for the OpenAPI document.
        group: which noun it belongs to.
        scope: that a token needs; None for a route that is open to everybody.
        kind: whose limit of concurrency it counts under.
        guest: it runs guests, which have turns of their own instead of places of the class.
        request: type of the JSON body (a msgspec struct); None without a body, ``bytes`` for one taken as it is.
        optional_body: an empty body is the request's default.
        uploads: content types whose bodies are not JSON: `Call.body` is None then, and `Call.raw` the body.
        response: type of the JSON answer; None for none, ``bytes`` for what is not JSON.
        status: of success.
        errors: classes that it can raise besides those of every route.
        action: name in the audit log; None writes nothing.
        tenant: it acts for one tenant, whom the principal must cover; False for routes about the installation.
        query: names of what the query may have, with what each is.
        openai: errors have OpenAI's own shape.
        etag: its answers have an entity tag, and a client that has one already is told so.
    """

    method: str
    path: str
    handle: Callable[..., Any]
    summary: str
    group: str
    scope: str | None
    kind: RouteClass = "reads"
    guest: bool = False
    request: Any = None
    optional_body: bool = False
    uploads: tuple[str, ...] = ()
    response: Any = None
    status: int = 200
    errors: tuple[type[TensorWasmError], ...] = ()
    action: str | None = None
    tenant: bool = True
    query: Mapping[str, Param] = field(default_factory=dict)
    openai: bool = False
    etag: bool = False
