"""How the server is, for those who run it: probes, metrics, and what its routes are."""

from __future__ import annotations

import asyncio
import hmac
from functools import cache
from typing import Final

import msgspec

from tensorwasm.errors import DatabaseUnavailable, NotReady, StorageFull, TensorWasmError, Unauthorized
from tensorwasm.server.routing import Call, Handler, Reply, Route
from tensorwasm.telemetry.metrics import CONTENT_TYPE
from tensorwasm.tenancy.exposure import is_loopback

_FORWARDED: Final = ("x-forwarded-for", "forwarded", "x-real-ip")


class Health(msgspec.Struct):
    """The server is there.

    Attributes:
        status: `ok`.
    """

    status: str = "ok"


_OK: Final = Reply(msgspec.json.encode(Health()))


def show_health(_: Call) -> Reply:
    """Say that the server is there."""
    return _OK


async def show_readiness(call: Call) -> Reply:
    """Say that the server takes requests, and can serve them."""
    await call.service.readiness.require()
    return _OK


async def show_metrics(call: Call) -> Reply:
    """Return the metrics, to who has their token; without one, to this machine."""
    _require_reader(call)
    text = await asyncio.to_thread(call.service.metrics.render)
    return Reply(text, content_type=CONTENT_TYPE)


def show_document(_: Call) -> Reply:
    """Return what the routes are, for programs."""
    return Reply(_document())


def show_page(_: Call) -> Reply:
    """Return what the routes are, for people."""
    return _page()


def _require_reader(call: Call) -> None:
    token = call.service.settings.metrics_token
    if token:
        given = call.headers.get("authorization") or ""
        if not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
            raise Unauthorized("no credentials that are known, in time and not revoked")
    elif not is_loopback(call.client) or any(name in call.headers for name in _FORWARDED):
        raise Unauthorized("without a token the metrics are for this machine alone")


@cache
def _document() -> bytes:
    from tensorwasm.server.openapi import describe  # noqa: PLC0415 - the routes are made of this file
    from tensorwasm.server.routes import ALL  # noqa: PLC0415 - the same

    return msgspec.json.encode(describe(ALL))


@cache
def _page() -> Reply:
    from tensorwasm.server.page import POLICY, render  # noqa: PLC0415 - for the few who ask

    headers = (("content-security-policy", POLICY), ("x-content-type-options", "nosniff"))
    return Reply(render(msgspec.json.decode(_document())), headers=headers, content_type="text/html; charset=utf-8")


def _route(
    path: str, handle: Handler, summary: str, response: object, *errors: type[TensorWasmError], etag: bool = False
) -> Route:
    return Route(
        "GET", path, handle, summary, "server", None, kind="probes", response=response, errors=errors, tenant=False,
        etag=etag,
    )  # fmt: skip


_UNREADY: Final = (DatabaseUnavailable, NotReady, StorageFull)

ROUTES: Final[tuple[Route, ...]] = (
    _route("/healthz", show_health, "Whether the server is there.", Health),
    _route("/livez", show_health, "Whether the server is there.", Health),
    _route(
        "/readyz",
        show_readiness,
        "Whether the server takes requests.",
        Health,
        DatabaseUnavailable,
        NotReady,
        StorageFull,
    ),
    _route("/metrics", show_metrics, "Metrics, in Prometheus' text format.", bytes, Unauthorized),
    _route("/openapi.json", show_document, "What the routes are, as OpenAPI 3.1.", bytes, etag=True),
    _route("/docs", show_page, "What the routes are, for people.", bytes, etag=True),
)
