"""Tokens: made, seen, rotated and revoked, by those who may administer them."""

from __future__ import annotations

from typing import Any, Final

from tensorwasm.errors import (
    CapacityExhausted,
    Conflict,
    DatabaseUnavailable,
    InvalidName,
    InvalidRequest,
    NotFound,
)
from tensorwasm.server.routes.functions import LIMIT
from tensorwasm.server.routes.tenants import capability_of, page_limit
from tensorwasm.server.routing import Call, Param, Reply, Route
from tensorwasm.server.wire import tokens as wire
from tensorwasm.service.identity.tokens import NewToken
from tensorwasm.tenancy.principal import USER_SCOPES

_STORED: Final = (DatabaseUnavailable, CapacityExhausted)


async def create(call: Call) -> Reply:
    """Make a token that may do no more than the one that asks."""
    body: wire.CreateToken = call.body
    tenants = None if body.tenants == "*" else body.tenants
    scopes = USER_SCOPES if body.scopes is None else body.scopes
    capability = capability_of(call)
    return _shown(call, await call.service.tokens.create(capability, body.name, tenants, scopes, body.expires_unix_ms))


async def list_tokens(call: Call) -> Reply:
    """Return some of the tokens that the one that asks reaches."""
    limit = page_limit(call)
    found = await call.service.tokens.list(capability_of(call), call.query.get("after") or None, limit)
    following = found[-1].id if len(found) == limit else None
    return Reply(wire.TokenPage([wire.TokenBody.of(each) for each in found], following))


async def get(call: Call) -> Reply:
    """Return a token, without itself."""
    return Reply(wire.TokenBody.of(await call.service.tokens.get(capability_of(call), call.params["id"])))


async def rotate(call: Call) -> Reply:
    """Make a token in the place of another."""
    body: wire.RotateToken = call.body
    call.audit["replaces"] = call.params["id"]
    tokens, capability = call.service.tokens, capability_of(call)
    return _shown(call, await tokens.rotate(capability, call.params["id"], body.overlap_s, body.expires_unix_ms))


async def revoke(call: Call) -> Reply:
    """End a token."""
    call.audit["token_id"] = call.params["id"]
    await call.service.tokens.revoke(capability_of(call), call.params["id"])
    return Reply()


def _shown(call: Call, new: NewToken) -> Reply:
    call.audit["token_id"] = new.record.id
    return Reply(wire.MadeToken.made(new), headers=(("cache-control", "no-store"),))


def _route(method: str, path: str, handle: Any, summary: str, *errors: Any, **more: Any) -> Route:
    return Route(
        method,
        path,
        handle,
        summary,
        "tokens",
        "admin",
        kind="admin",
        tenant=False,
        errors=errors + _STORED,
        etag=method == "GET",
        **more,
    )


ROUTES: Final[tuple[Route, ...]] = (
    _route(
        "GET", "/tokens", list_tokens, "List tokens.", InvalidRequest, response=wire.TokenPage,
        query={"after": Param("`next` of the page before.", {"type": "string"}), "limit": LIMIT},
    ),
    _route(
        "POST", "/tokens", create, "Make a token, which is shown once.", InvalidName, InvalidRequest,
        request=wire.CreateToken, response=wire.MadeToken, status=201, action="create_token",
    ),
    _route("GET", "/tokens/{id}", get, "See a token.", NotFound, response=wire.TokenBody),
    _route(
        "POST", "/tokens/{id}/rotate", rotate, "Replace a token by one that is shown once.", NotFound, Conflict,
        InvalidRequest, request=wire.RotateToken, optional_body=True, response=wire.MadeToken, status=201,
        action="rotate_token",
    ),
    _route("DELETE", "/tokens/{id}", revoke, "Revoke a token.", NotFound, status=204, action="revoke_token"),
)  # fmt: skip
