"""A request's head: its names and trace, fields that may occur once, where it comes from, and who sends it for whom.

Source: RFC 9112, 3.2 "Request Target": an HTTP/1.1 request has one Host; RFC 9110, 5.3 "Field Order", 7.2 "Host"; RFC
9562, 5.4 "UUID Version 4"; W3C Trace Context, 3.2 "traceparent Header"; Fetch standard, "CORS protocol"; Envoy,
"x-forwarded-client-cert". Rate limit headers: draft-ietf-httpapi-ratelimit-headers-10: a quota is `q` requests in `w`
seconds; `r` of them are left, and all are back after `t` seconds.
"""

from __future__ import annotations

import ipaddress
import math
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import parse_qsl

from tensorwasm.errors import HostDenied, InvalidArgs, InvalidRequest, MissingTenant, OriginDenied, TensorWasmError
from tensorwasm.server.connection.request import RequestHead
from tensorwasm.server.connection.tls import MAX_SUBJECT
from tensorwasm.server.exchange import BECOME_TASK, WEBSOCKET, Exchange
from tensorwasm.server.http.routing import PreparedCall, Route, RouteTable
from tensorwasm.server.http.schemas import Timed
from tensorwasm.server.streaming.websocket import authorization
from tensorwasm.server.timing import TIMING, note_admission
from tensorwasm.service.admission.admission import Admission, Admitted
from tensorwasm.settings.service import ServiceSettings
from tensorwasm.tenancy.buckets import LimitState
from tensorwasm.tenancy.principal import MAX_TENANT, Principal
from tensorwasm.values import NEVER, Deadline

ONCE: Final = frozenset(
    {
        "host",
        "authorization",
        "content-type",
        "content-encoding",
        "idempotency-key",
        "origin",
        "x-tensorwasm-deadline-ms",
        "x-tensorwasm-snapshot-hmac-key",
        "x-tensorwasm-snapshot-require-signature",
        "x-tensorwasm-as-instance",
    }
)
"""Fields that are refused when repeated: a proxy in front of the server may have acted on the other value. The tenant's
header is one more, which `admit` refuses with an error kind of its own."""

_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:=@+~-]{0,127}", re.ASCII)
_TRACEPARENT: Final = re.compile(
    r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?", re.ASCII
)
_HOST: Final = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=%-]*|\[[0-9A-Fa-f:.]+\])(?::[0-9]*)?", re.ASCII)
_METHODS: Final = "GET, HEAD, POST, PUT, PATCH, DELETE"
_EXPOSED: Final = (
    "X-Request-Id, X-Trace-Id, Retry-After, RateLimit, RateLimit-Policy, ETag, X-TensorWasm-Route, X-TensorWasm-Server"
)
_FIELD_NAMES: Final = re.compile(r"[-!#$%&'*+.^_`|~0-9A-Za-z, ]{1,2048}", re.ASCII)
_ELEMENT: Final = re.compile(r'(?:[^,"]|"(?:[^"\\]|\\.)*")+')
_SUBJECT: Final = re.compile(r'(?:^|;)Subject="((?:[^"\\]|\\.)*)"')


MOST_KEPT: Final = 8
MAX_KEPT_BYTES: Final = 1 << 10
"""Prepared calls that are kept for one head, and how long the body of each may be."""


@dataclass(slots=True)
class HeadPlan:
    """What follows from a request's head alone, made once for all requests that share one.

    Attributes:
        error: what is wrong with it; None for nothing.
        route: that it asks for; None if there is none, and for OPTIONS.
        params: of the route's path.
        query: decoded; of repeated names the last value.
        request_id: the client's name for it; empty if it has none.
        trace_id: 32 hex digits, or empty.
        authorization: the credentials, as they came.
        tenants: values of the tenant's header, of which there may be one.
        content_type: of the body.
        content_encoding: of the body.
        deadline_ms: as the header says; None without one.
        credential: what `Authenticator.find` knows the credentials by; empty until they were looked at.
        principal: whose they were when `admitted` was made.
        admitted: the last admission, which stands for as long as the principal and the tenant's rules do.
        plain: whether replies have no headers but the usual ones, and audit records nothing of the head.
        calls: prepared calls by their bodies; None if the head says more than a prepared call takes account of.
    """

    error: TensorWasmError | None
    route: Route | None
    params: Mapping[str, str]
    query: Mapping[str, str]
    request_id: str
    trace_id: str
    authorization: str | None
    tenants: Sequence[str]
    content_type: str | None
    content_encoding: str | None
    deadline_ms: str | None
    credential: bytes = b""
    principal: Principal | None = None
    admitted: Admitted | None = None
    plain: bool = False
    calls: dict[bytes, PreparedCall] | None = None

    def keep(self, body: bytes, call: PreparedCall) -> None:
        """Keep a prepared call for requests with the same body."""
        if self.calls is not None and len(body) <= MAX_KEPT_BYTES:
            if len(self.calls) >= MOST_KEPT:
                self.calls.clear()
            self.calls[body] = call


_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


def plan_head(head: RequestHead, table: RouteTable, origins: Origins) -> HeadPlan:
    """Return what follows from a head, errors of `find_route` among it."""
    fields, query = head.fields, head.query
    error, route, params, shown = None, None, _NOTHING, None
    try:
        route, params = find_route(head, table, origins)
        shown = authorization(fields) if head.websocket else fields.get("authorization")
    except TensorWasmError as refused:
        error = refused
    deadline_ms, coding = fields.get("x-tensorwasm-deadline-ms"), fields.get("content-encoding")
    plain = route is not None and "origin" not in fields and not origins.origins and not origins.proxies
    simple = plain and deadline_ms is None and coding is None
    timed = TIMING in fields
    return HeadPlan(
        error,
        route,
        params,
        MappingProxyType(dict(parse_qsl(query, keep_blank_values=True))) if query else _NOTHING,
        own_request_id(fields.get("x-request-id")),
        trace_id(fields.get("traceparent")),
        shown,
        fields.get_all("x-tensorwasm-tenant"),
        fields.get("content-type"),
        coding,
        deadline_ms,
        plain=plain and not timed and head.method != "HEAD" and route is not None and not route.openai,
        calls={} if simple and route is not None and route.prepare is not None else None,
    )


def find_route(head: RequestHead, table: RouteTable, origins: Origins) -> tuple[Route | None, Mapping[str, str]]:
    """Return the route that a head asks for, none for OPTIONS, and the parameters of its path.

    Raises:
        InvalidRequest: HTTP/1.1 has no Host, Host is none, or a field of `ONCE` is repeated.
        HostDenied: the host is not served.
        UnknownRoute, WrongMethod: as `RouteTable.match`.
    """
    if head.version == "1.1" and "host" not in head.fields:
        raise InvalidRequest("an HTTP/1.1 request needs the header Host")
    if not _HOST.fullmatch(head.fields.get("host", "")):
        raise InvalidRequest("the header Host is no host")
    name = head.fields.repeated(ONCE)
    if name is not None:
        raise InvalidRequest(f"the header {name} is repeated")
    if origins.hosts:
        origins.check_host(head.host)
    if head.method == "OPTIONS":
        return None, _NOTHING
    return table.match(WEBSOCKET if head.websocket else head.method, head.path)


def request_ids() -> Callable[[], str]:
    """Return a generator function of UUIDs: 74 random bits fixed per generator, and a counter.

    They are unique but not secret. A request has no time for the system's random bytes, nor to format twelve digits.
    """
    start = secrets.token_hex(10)
    prefix = f"{start[:8]}-{start[8:12]}-4{start[12:15]}-{secrets.choice('89ab')}{start[15:18]}-"
    lasts = [f"{last:03x}" for last in range(1 << 12)]

    def generate() -> Iterator[str]:
        for high in count(secrets.randbits(28)):
            first = f"{prefix}{high & 0xFFFFFFFFF:09x}"
            for last in lasts:
                yield first + last

    return generate().__next__


def own_request_id(given: str | None) -> str:
    """Return the client's name for its request; empty if there is none, or it does not suit paths and logs."""
    return given if given is not None and _REQUEST_ID.fullmatch(given) else ""


def trace_id(traceparent: str | None) -> str:
    """Return the 32 hex digits of a header's trace; empty without one, or if the header is malformed."""
    found = _TRACEPARENT.fullmatch(traceparent) if traceparent is not None else None
    if found is None or (found[1] == "00" and found[3]):
        return ""
    return found[2]


@dataclass(frozen=True, slots=True)
class Origins:
    """The settings on where requests may come from.

    Hosts are in lower case, none means any; `origins` are those that browsers may call from; X-Forwarded-Client-Cert is
    trusted from the networks `proxies`.
    """

    hosts: frozenset[str] = frozenset()
    origins: frozenset[str] = frozenset()
    proxies: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...] = ()

    @classmethod
    def from_settings(cls, settings: ServiceSettings) -> Origins:
        """Parse the settings; raise `InvalidArgs` for an invalid network."""
        try:
            proxies = tuple(ipaddress.ip_network(each, strict=False) for each in _split(settings.trusted_proxies))
        except ValueError as error:
            raise InvalidArgs(f"TENSOR_WASM_API_TRUSTED_XFCC_PROXIES: {error}") from None
        hosts = frozenset(each.lower() for each in _split(settings.trusted_hosts))
        return cls(hosts, frozenset(_split(settings.cors_origins)), proxies)

    def check_host(self, host: str | None) -> None:
        """Raise `HostDenied` unless Host is served, with or without its port."""
        given = (host or "").lower()
        name = given if given.endswith("]") else given.rsplit(":", 1)[0]
        if self.hosts and given not in self.hosts and name not in self.hosts:
            raise HostDenied("this host is not served here")

    def check_page(self, origin: str | None) -> None:
        """Raise `OriginDenied` for a page of another origin, where browsers send no preflight."""
        if origin is not None and origin not in self.origins:
            raise OriginDenied("this is not open to pages of this origin")

    def cors(self, origin: str | None) -> tuple[tuple[str, str], ...]:
        """Return the headers that let a page of an origin read a reply or preflight; none if it may not.

        Where any origin is allowed, every reply also needs ``Vary: Origin``.
        """
        if origin is None or origin not in self.origins:
            return ()
        return (("access-control-allow-origin", origin), ("access-control-expose-headers", _EXPOSED))

    def preflight(self, origin: str | None, wanted: str | None) -> tuple[tuple[str, str], ...]:
        """Return a preflight's headers besides those of `cors`; none if the origin is not allowed.

        `wanted` is ``Access-Control-Request-Headers``; an allowed page may send any.
        """
        if origin is None or origin not in self.origins:
            return ()
        fields = (("access-control-allow-headers", wanted),) if wanted and _FIELD_NAMES.fullmatch(wanted) else ()
        return (("access-control-allow-methods", _METHODS), *fields, ("access-control-max-age", "600"))

    def certificate(self, client: str, headers: Any) -> str | None:
        """Return the subject of the client's certificate that a trusted proxy forwarded: the last, which it added."""
        if not self.proxies:
            return None
        try:
            address = ipaddress.ip_address(client)
        except ValueError:
            return None
        if not any(address in network for network in self.proxies):
            return None
        elements = [each for field in headers.get_all("x-forwarded-client-cert") for each in _ELEMENT.findall(field)]
        found = _SUBJECT.search(elements[-1].strip()) if elements else None
        return found[1][:MAX_SUBJECT] if found else None


def _split(text: str) -> list[str]:
    return [each for part in text.split(",") if (each := part.strip())]


def deadline_of(text: str | None, decoded: object, most_s: float) -> Deadline:
    """Return the deadline that the header or a decoded body sets, `most_s` seconds from now at most."""
    body = NEVER
    if isinstance(decoded, Timed) and decoded.from_arrival:
        body = decoded.deadline(most_s)
    if text is None:
        return body
    if not (text.isascii() and text.isdigit()) or not 0 < len(text) <= 15 or int(text) == 0:
        raise InvalidRequest("X-TensorWasm-Deadline-Ms is a number of milliseconds, 1 at least")
    return Deadline.after(min(int(text) / 1000, most_s)).earlier(body)


_DIGITS: Final = len(str(MAX_TENANT))


async def admit(exchange: Exchange, route: Route, admission: Admission, *, tenant_required: bool) -> Admitted:
    """Admit a request, or one more message on its WebSocket; set the exchange's principal, tenant and limits.

    Raises:
        InvalidRequest: it has more than one token.
        Unauthorized: the token is missing or unknown.
        MissingTenant: the tenant's header is not a number, is repeated, or is required and missing.
        DatabaseUnavailable: the token cannot be looked up now.
        TensorWasmError: what `Admission.admit` raises.
    """
    plan, authenticator = exchange.plan, admission.authenticator
    if not plan.credential:
        plan.credential = authenticator.identify(plan.authorization)
    principal = authenticator.find(plan.credential)
    if principal is None:
        await BECOME_TASK
        principal = await authenticator.authenticate_slowly(plan.authorization)
    exchange.principal = principal
    admitted = plan.admitted
    if admitted is None or plan.principal is not principal or not admission.stands(admitted):
        tenant = exchange.tenant = _tenant_of(plan.tenants, principal, tenant_required and route.tenant, route)
        admitted = admission.admit(principal, tenant, route.scope or "", acts=route.tenant or bool(plan.tenants))
        plan.principal, plan.admitted = principal, admitted
    exchange.tenant = admitted.tenant
    standings, refusal = admission.count(principal, admitted)
    exchange.limits = limit_fields(standings)
    if refusal is not None:
        raise refusal
    if exchange.timeline is not None:
        note_admission(exchange, exchange.timeline, route)
    return admitted


def _tenant_of(named: Sequence[str], principal: Principal, required: bool, route: Route) -> int:  # noqa: FBT001
    """Return the tenant that a request acts for; raise MissingTenant if that is not clear."""
    if len(named) > 1:
        raise MissingTenant("the header X-TensorWasm-Tenant is repeated")
    if named:
        return parse_tenant(named[0])
    if required:
        raise MissingTenant("the header X-TensorWasm-Tenant is missing")
    return _usual_tenant(principal.tenants, acts=route.tenant)


@lru_cache(4096)
def parse_tenant(text: str) -> int:
    """Return the tenant that a header names; raise MissingTenant unless it is a number from 0 to 2**64 - 1."""
    if len(text) <= _DIGITS and text.isascii() and text.isdigit() and (tenant := int(text)) <= MAX_TENANT:
        return tenant
    raise MissingTenant("the header X-TensorWasm-Tenant is a number from 0 to 2**64 - 1")


def _usual_tenant(covered: frozenset[int] | None, *, acts: bool) -> int:
    """Return the tenant of a request that names none: the only one of its token, else 0.

    A request that does not act for a tenant is only charged to one, any that the token covers.
    """
    if covered and (len(covered) == 1 or not acts):
        return min(covered)
    return 0


def limit_fields(standings: Sequence[LimitState]) -> tuple[tuple[str, str], ...]:
    """Return the rate limit headers of a reply; none without limits."""
    if len(standings) == 1:
        ((name, qps, burst, left),) = standings
        return (("ratelimit-policy", _policy(name, qps, burst)), ("ratelimit", _left(name, qps, burst, left)))
    if not standings:
        return ()
    policies = [_policy(name, qps, burst) for name, qps, burst, _ in standings]
    return (("ratelimit-policy", ", ".join(policies)), ("ratelimit", ", ".join([_left(*each) for each in standings])))


def limit_lines(standings: Sequence[LimitState]) -> str:
    """Return the same headers as they are sent."""
    if len(standings) != 1:
        return "".join([f"{name}: {value}\r\n" for name, value in limit_fields(standings)])
    ((name, qps, burst, left),) = standings
    return f"ratelimit-policy: {_policy(name, qps, burst)}\r\nratelimit: {_left(name, qps, burst, left)}\r\n"


def _left(name: str, qps: float, burst: float, left: float) -> str:
    if qps <= 0:
        return f'"{name}";r={int(left)}'
    return f'"{name}";r={int(left)};t={int(-((left - burst) // qps))}'


@lru_cache(1024)
def _policy(name: str, qps: float, burst: float) -> str:
    text = f'"{name}";q={int(burst)}'
    return text if qps <= 0 else f"{text};w={max(1, math.ceil(burst / qps))}"
