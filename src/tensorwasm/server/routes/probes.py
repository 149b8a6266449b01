"""Routes for operators: probes, metrics, and the documentation of all routes."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Final

import msgspec

from tensorwasm.errors import DatabaseUnavailable, NotReady, StorageFull, Unauthorized
from tensorwasm.server.http.routing import HttpRequest, Reply, Route
from tensorwasm.server.process.address import is_loopback
from tensorwasm.telemetry.metrics import CONTENT_TYPE, NO_SAMPLES

_FORWARDED: Final = ("x-forwarded-for", "forwarded", "x-real-ip")


class Health(msgspec.Struct):
    """The server is running."""

    status: str = "ok"


_OK: Final = Reply(msgspec.json.encode(Health()))


def show_health(_: HttpRequest) -> Reply:
    """Report that the server is running."""
    return _OK


async def show_readiness(request: HttpRequest) -> Reply:
    """Report that the server accepts requests and can serve them."""
    await request.service.readiness.require()
    return _OK


async def show_metrics(request: HttpRequest) -> Reply:
    """Return the metrics to holders of their token; without a token, to this machine."""
    token = request.service.settings.metrics_token
    if token:
        given = request.headers.get("authorization") or ""
        if not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
            raise Unauthorized("the credentials are unknown, expired or revoked")
    elif not is_loopback(request.client) or any(name in request.headers for name in _FORWARDED):
        raise Unauthorized("without a token the metrics are for this machine alone")
    fronts = request.service.fronts
    others = NO_SAMPLES if fronts is None else await fronts.metrics()
    return Reply(await asyncio.to_thread(request.service.metrics.render, others), content_type=CONTENT_TYPE)


_route = partial(Route, group="server", scope=None, kind="probes", tenant=False, everywhere=True)

ROUTES: Final[tuple[Route, ...]] = (
    _route("GET", "/healthz", show_health, "Whether the server is running.", response=Health),
    _route("GET", "/livez", show_health, "Whether the server is running.", response=Health),
    _route(
        "GET", "/readyz", show_readiness, "Whether the server accepts requests.", response=Health,
        errors=(DatabaseUnavailable, NotReady, StorageFull),
    ),
    _route(
        "GET", "/metrics", show_metrics, "Metrics in Prometheus' text format.", response=bytes, errors=(Unauthorized,),
        everywhere=False,
    ),
)  # fmt: skip


def documentation_routes(routes: Callable[[], Sequence[Route]]) -> tuple[Route, ...]:
    """Return the routes that document all `routes`, themselves included, as of the first request."""

    @cache
    def document() -> bytes:
        from tensorwasm.server.openapi import describe  # noqa: PLC0415 - needed on request only

        return msgspec.json.encode(describe(routes()))

    @cache
    def page() -> Reply:
        from tensorwasm.server.openapi import POLICY, render  # noqa: PLC0415 - the same

        headers = (("content-security-policy", POLICY), ("x-content-type-options", "nosniff"))
        return Reply(render(msgspec.json.decode(document())), headers=headers, content_type="text/html; charset=utf-8")

    def show_document(_: HttpRequest) -> Reply:
        return Reply(document())

    def show_page(_: HttpRequest) -> Reply:
        return page()

    return (
        _route(
            "GET", "/openapi.json", show_document, "The routes as OpenAPI 3.1.", response=bytes, etag=True
        ),
        _route("GET", "/docs", show_page, "The routes as a page for people.", response=bytes, etag=True),
    )  # fmt: skip
