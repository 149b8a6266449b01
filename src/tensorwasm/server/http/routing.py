"""Routes: what they accept and return, and which one a method and a path select.

The OpenAPI document is generated from the same rows.

A path is matched segment by segment after percent-decoding: a name matches itself, braces match one segment. A segment
that is empty, ``.`` or ``..``, longer than 256 characters, not printable or not UTF-8 matches nothing, so a handler
always receives one plain name.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Protocol

import msgspec

from tensorwasm.errors import MethodNotAllowed, NotFound, TensorWasmError
from tensorwasm.runtime.invoke.invocation import Invocation
from tensorwasm.service.admission.admission import Admitted, RouteClass
from tensorwasm.service.call_service import CallService
from tensorwasm.service.invocations.device_call import DeviceCall
from tensorwasm.service.opening import Service
from tensorwasm.tenancy.audit import RecordFrame
from tensorwasm.tenancy.principal import Principal
from tensorwasm.values import Deadline

MAX_PATH: Final = 2048
"""Longest path, in characters."""

MAX_SEGMENT: Final = 256
"""Longest segment that braces match, in characters."""

KNOWN: Final = 4096
"""Paths whose match is cached, up to about 2 MiB: most requests go to few functions."""


@dataclass(slots=True)
class HttpRequest:
    """One request as a handler receives it: authenticated, admitted and decoded.

    Attributes:
        principal: the authenticated caller; None on open routes.
        tenant: the tenant acted for; the principal covers it.
        params: values of the path's braces.
        query: decoded; of repeated names the last value.
        headers: of its head, by names in lower case.
        body: decoded as `Route.request`; None without a body.
        request_id: the client's name for this request, else a UUID.
        trace_id: 32 hex digits of the W3C trace context, or empty.
        client: the peer's address, without the port.
        gone: returns once the client has disconnected; for handlers that wait long.
        admitted: the admitted call; None on open routes, whose handlers act for no tenant.
        again: admits another call of the same client, for each message of a WebSocket; None for other requests.
        audit: fields that the handler adds to the audit record, such as ``function_id``.
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
    admitted: Admitted
    again: Callable[[], Awaitable[Admitted]] | None = None
    audit: dict[str, str] = field(default_factory=dict)


class Reply(msgspec.Struct, frozen=True):
    """A reply in one piece. A struct: each request makes one, at a tenth of the cost of a frozen dataclass.

    Attributes:
        body: encoded bytes, or a msgspec struct or plain value to encode as JSON; None for no body.
        status: None takes the route's.
        headers: in addition to the common ones.
        content_type: of an encoded body.
    """

    body: object = None
    status: int | None = None
    headers: tuple[tuple[str, str], ...] = ()
    content_type: str = "application/json"


SendChunk = Callable[[bytes], Awaitable[bool]]
"""Sends bytes, waits while the client is slow, and returns False once it has disconnected; never raises.

The reply's head goes with the first chunk, which may be empty."""


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """How a streamed body ends.

    Attributes:
        trailers: fields after the body over HTTP/1.1; dropped over HTTP/1.0.
        whole: False aborts the transfer, so that the client does not take the body for complete.
    """

    trailers: tuple[tuple[str, str], ...] = ()
    whole: bool = True


@dataclass(frozen=True, slots=True)
class StreamedReply:
    """A reply whose body is sent in chunks by `tensorwasm.server.streaming.transfer.send_streamed`.

    Attributes:
        send: is given a function that sends bytes, and returns how the body ends once all is sent, or soon after the
            client has disconnected. It sends errors that the client should see instead of raising them.
        exact: the ending matters to the client, which needs HTTP/1.1.
        length: of the body in bytes, if known; the connection then stays open.
    """

    send: Callable[[SendChunk], Awaitable[StreamEnd]]
    content_type: str
    headers: tuple[tuple[str, str], ...] = ()
    exact: bool = False
    length: int | None = None


Answer = Reply | StreamedReply
DetachedBegun = Reply | Coroutine[Any, Any, Answer] | DeviceCall


class PreparedCall(Protocol):
    """A call as its path and its body describe it, for any number of requests: nothing of it depends on when it is.

    Attributes:
        audit: fields of its audit record.
        frame: of the records of the client that made it last.
    """

    audit: dict[str, str]
    frame: RecordFrame | None

    def begin(self, service: CallService, admitted: Admitted) -> Reply | Coroutine[Any, Any, Answer]:
        """Begin the call; the reply, or a coroutine of it, as `Route.handle` returns them."""

    def begin_detached(self, service: CallService, admitted: Admitted) -> DetachedBegun:
        """Begin the call, as one that needs no task if it runs in another process; `reply` has the answer to that."""

    def reply(self, call: DeviceCall, outcome: Invocation) -> Reply | Coroutine[Any, Any, Answer]:
        """Return the reply to a call that needed no task, or a coroutine of it. Raises the guest's failure."""


@dataclass(frozen=True, slots=True)
class QueryParam:
    """One name of a query: its description, and JSON Schema of exactly the values that the handler accepts."""

    meaning: str
    schema: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one path.

    Attributes:
        method: ``GET``, ``POST``, ``PUT``, ``PATCH`` or ``DELETE``; ``WS`` for a WebSocket.
        path: with braces for variable segments, such as ``/functions/{id}``.
        handle: returns the `Reply` to an `HttpRequest`, or a coroutine of it or of a `StreamedReply`. A reply at once
            costs the event loop no task and no turn. That of a WebSocket also receives an open
            `tensorwasm.server.streaming.websocket.WebSocket`, and returns when it is done with it.
        prepare: returns what `PreparedCall` says of a path's parameters and a body, None if only `handle` can serve it.
        group: tag in the OpenAPI document.
        scope: the scope that a token needs; None for an open route.
        kind: whose concurrency limit it counts against.
        everywhere: every process of a server can answer it; others are relayed to the primary.
        guest: it runs guests, which have turns of their own instead of places of the class.
        request: type of the JSON body (a msgspec struct); None without a body, ``bytes`` for an undecoded one.
        optional_body: an empty body means the defaults of `request`.
        uploads: content types of non-JSON bodies: `HttpRequest.body` is then None, and `HttpRequest.raw` the body.
        response: type of the JSON reply; None for none, ``bytes`` for non-JSON.
        errors: classes that it can raise besides those of every route.
        action: name in the audit log; None writes no record.
        tenant: it acts for one tenant, which the principal must cover; False for routes about the installation.
        openai: errors have OpenAI's own shape.
        etag: replies have an entity tag and are revalidated with it.
    """

    method: str
    path: str
    handle: Callable[..., Any]
    summary: str
    group: str
    scope: str | None
    kind: RouteClass = "reads"
    everywhere: bool = False
    guest: bool = False
    request: Any = None
    optional_body: bool = False
    uploads: tuple[str, ...] = ()
    response: Any = None
    status: int = 200
    errors: tuple[type[TensorWasmError], ...] = ()
    action: str | None = None
    tenant: bool = True
    query: Mapping[str, QueryParam] = field(default_factory=dict)
    openai: bool = False
    etag: bool = False
    prepare: Callable[[Mapping[str, str], Any], PreparedCall | None] | None = None


class UnknownRoute(NotFound):
    """No route has this path; a header of the reply distinguishes it from other errors `not_found`."""


class WrongMethod(MethodNotAllowed):
    """The path accepts other methods, listed in `allowed`."""

    def __init__(self, allowed: tuple[str, ...]) -> None:
        super().__init__("this path accepts other methods")
        self.allowed = allowed


@dataclass(slots=True)
class _Node:
    """A node of the path tree: the segments that may follow, and the methods that end here."""

    names: dict[str, _Node] = field(default_factory=dict)
    variable: tuple[str, _Node] | None = None
    methods: dict[str, Route] = field(default_factory=dict)


class RouteTable:
    """All routes, indexed by path segments. Duplicates and two names for braces at one position raise `ValueError`."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._root = _Node()
        self._known: dict[tuple[str, str], tuple[Route, Mapping[str, str]]] = {}
        self.routes = tuple(routes)
        for route in self.routes:
            self._add(route)

    def match(self, method: str, path: str) -> tuple[Route, Mapping[str, str]]:
        """Return the route and the values of its braces. ``HEAD`` matches ``GET``; a WebSocket's method is ``WS``.

        Raises:
            UnknownRoute: no route has this path, which is percent-decoded.
            WrongMethod: the path has other methods.
        """
        known = self._known
        found = known.get((method, path))
        if found is None:
            node, params = self._find(path)
            route = node.methods.get(method) or (node.methods.get("GET") if method == "HEAD" else None)
            if route is None:
                raise WrongMethod(_allow(node.methods))
            if len(known) >= KNOWN:
                known.clear()
            found = known[method, path] = route, MappingProxyType(params)
        return found

    def allowed(self, path: str) -> tuple[str, ...]:
        """Return the methods that a path accepts; raise `UnknownRoute` as `match` does."""
        return _allow(self._find(path)[0].methods)

    def _add(self, route: Route) -> None:
        node = self._root
        for segment in route.path.split("/")[1:]:
            if segment.startswith("{"):
                name = segment[1:-1]
                if node.variable is None:
                    node.variable = (name, _Node())
                if node.variable[0] != name:
                    raise ValueError(f"{route.path}: {{{name}}} is {{{node.variable[0]}}} in another route")
                node = node.variable[1]
            else:
                node = node.names.setdefault(segment, _Node())
        if route.method in node.methods:
            raise ValueError(f"{route.method} {route.path} is defined twice")
        node.methods[route.method] = route

    def _find(self, path: str) -> tuple[_Node, dict[str, str]]:
        node, params = self._root, dict[str, str]()
        if len(path) > MAX_PATH or not path.startswith("/"):
            raise UnknownRoute("there is no such route")
        for segment in path.split("/")[1:]:
            following = node.names.get(segment)
            if following is None:
                if node.variable is None or not is_name(segment):
                    raise UnknownRoute("there is no such route")
                name, following = node.variable
                params[name] = segment
            node = following
        if not node.methods:
            raise UnknownRoute("there is no such route")
        return node, params


def is_name(segment: str) -> bool:
    """Return whether braces match a segment."""
    return (
        0 < len(segment) <= MAX_SEGMENT
        and segment.isprintable()
        and "\ufffd" not in segment
        and segment not in {".", ".."}
    )


def _allow(methods: Iterable[str]) -> tuple[str, ...]:
    """Return the methods for the header Allow: HEAD with GET, OPTIONS always, a WebSocket as GET."""
    names = {"GET" if method == "WS" else method for method in methods}
    return tuple(sorted(names | {"OPTIONS"} | ({"HEAD"} if "GET" in set(methods) else set())))
