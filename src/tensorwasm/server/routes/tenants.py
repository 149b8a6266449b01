"""Tenants: what is said of them, and that one is served no more, by those who may administer them."""

from __future__ import annotations

from typing import Any, Final

from tensorwasm.errors import (
    CapacityExhausted,
    Conflict,
    DatabaseUnavailable,
    InvalidName,
    InvalidRequest,
    Unauthorized,
)
from tensorwasm.server.routes.functions import LIMIT
from tensorwasm.server.routing import Call, Param, Reply, Route
from tensorwasm.server.wire import tenants as wire
from tensorwasm.tenancy.capability import AdminCapability
from tensorwasm.tenancy.principal import MAX_TENANT

_AFTER: Final = {
    "anyOf": [{"type": "integer", "minimum": 0, "maximum": MAX_TENANT}, {"type": "string", "maxLength": 0}]
}
_PAGE: Final = 100
_STORED: Final = (DatabaseUnavailable, CapacityExhausted)


async def create(call: Call) -> Reply:
    """Say something of a tenant for the first time."""
    body: wire.CreateTenant = call.body
    call.audit["tenant_id"] = str(body.tenant)
    record = await call.service.tenants.create(capability_of(call), body.tenant, body.to_change())
    return Reply(wire.TenantBody.of(record))


async def list_tenants(call: Call) -> Reply:
    """Return some of the tenants that the one that asks reaches."""
    limit, text = page_limit(call), call.query.get("after")
    after = _number(text, "after", MAX_TENANT) if text else None
    found = await call.service.tenants.list(capability_of(call), after, limit)
    following = str(found[-1].tenant) if len(found) == limit else None
    return Reply(wire.TenantPage([wire.TenantBody.of(each) for each in found], following))


async def get(call: Call) -> Reply:
    """Return a tenant."""
    return Reply(wire.TenantBody.of(await call.service.tenants.get(capability_of(call), _tenant_of(call))))


async def update(call: Call) -> Reply:
    """Change what is said of a tenant."""
    tenant = _tenant_of(call)
    record = await call.service.tenants.update(capability_of(call), tenant, call.body.to_change())
    return Reply(wire.TenantBody.of(record))


async def disable(call: Call) -> Reply:
    """Serve nothing of a tenant any more."""
    tenant = _tenant_of(call)
    await call.service.tenants.disable(capability_of(call), tenant)
    return Reply()


def capability_of(call: Call) -> AdminCapability:
    """Return the capability of who asks.

    Raises:
        Unauthorized: nobody is known to ask.
        ScopeDenied: it may not administer.
        TenantScopeDenied: all tenants that it may act for are disabled.
    """
    if call.principal is None:
        raise Unauthorized("nobody is known to ask")
    return call.service.tenants.admit(call.principal)


def page_limit(call: Call) -> int:
    """Return how many records a page may have; the service knows how many that are.

    Raises:
        InvalidRequest: the query says no number.
    """
    text = call.query.get("limit")
    return _PAGE if text is None else _number(text, "limit", MAX_TENANT)


def _tenant_of(call: Call) -> int:
    tenant = _number(call.params["tenant"], "tenant", MAX_TENANT)
    call.audit["tenant_id"] = str(tenant)
    return tenant


def _number(text: str, name: str, most: int) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > len(str(most)) or int(text) > most:
        raise InvalidRequest(f"{name} is a number")
    return int(text)


def _route(method: str, path: str, handle: Any, summary: str, *errors: Any, **more: Any) -> Route:
    return Route(
        method, path, handle, summary, "tenants", "admin", kind="admin", tenant=False,
        errors=(InvalidRequest, *errors, *_STORED), etag=method == "GET", **more,
    )  # fmt: skip


ROUTES: Final[tuple[Route, ...]] = (
    _route(
        "GET", "/tenants", list_tenants, "List tenants.", response=wire.TenantPage,
        query={"after": Param("`next` of the page before.", _AFTER), "limit": LIMIT},
    ),
    _route(
        "POST", "/tenants", create, "Say something of a tenant for the first time.", InvalidName, Conflict,
        request=wire.CreateTenant, response=wire.TenantBody, status=201, action="create_tenant",
    ),
    _route("GET", "/tenants/{tenant}", get, "See a tenant.", response=wire.TenantBody),
    _route(
        "PATCH", "/tenants/{tenant}", update, "Change a tenant's name, weight, quotas or whether it is served.",
        InvalidName, request=wire.UpdateTenant, response=wire.TenantBody, action="update_tenant",
    ),
    _route("DELETE", "/tenants/{tenant}", disable, "Disable a tenant.", status=204, action="update_tenant"),
)  # fmt: skip
