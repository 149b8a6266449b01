"""Tenants: their JSON, the routes that administer them, and the report of what a tenant used."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from tensorwasm import settings
from tensorwasm.database.identity import TenantRecord
from tensorwasm.errors import Conflict, InvalidName, InvalidRequest, StoreUnavailable, Unauthorized
from tensorwasm.server.http.decoding import AFTER, LIMIT, UNAVAILABLE, page_limit, parse_number, query_number
from tensorwasm.server.http.routing import HttpRequest, QueryParam, Reply, Route
from tensorwasm.server.http.schemas import Millis, RecordBody
from tensorwasm.service.identity.identity import TenantChange
from tensorwasm.tenancy.principal import MAX_TENANT, AdminCapability
from tensorwasm.tenancy.quotas import CAPS, MAX_LIMIT
from tensorwasm.values import MAX_WEIGHT, MIB

DAY_MS: Final = 86_400_000
_MAX_MS: Final = 10**15 - 1
_NAMES: Final = ", ".join(f"`{name}` ({meaning})" for name, meaning in CAPS.items())

TenantNumber = Annotated[int, Meta(extra_json_schema={"minimum": 0, "maximum": MAX_TENANT})]


class UpdateTenant(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Changes of a tenant; absent fields stay unchanged.

    Attributes:
        weight: its share of contended capacity, 1 to 1000.
        disabled: whether its requests are refused.
    """

    name: Annotated[str, Meta(extra_json_schema={"pattern": r"^[^\x00-\x1f\x7f-\x9f]{0,256}$"})] | None = None
    weight: Annotated[int, Meta(extra_json_schema={"minimum": 1, "maximum": MAX_WEIGHT})] | None = None
    quotas: (
        Annotated[
            dict[str, Annotated[int, Meta(extra_json_schema={"minimum": 0, "maximum": MAX_LIMIT})] | None],
            Meta(
                description=f"Caps by name, null to remove one: {_NAMES}.",
                extra_json_schema={"propertyNames": {"enum": list(CAPS)}},
            ),
        ]
        | None
    ) = None
    disabled: bool | None = None

    def to_change(self) -> TenantChange:
        """Return the service's change."""
        return TenantChange(self.name, self.weight, self.quotas, self.disabled)


class CreateTenant(UpdateTenant, kw_only=True):
    """A tenant without a record so far, by its number from 0 to 2**64 - 1."""

    tenant: TenantNumber


class TenantBody(RecordBody, kw_only=True):
    """A tenant, with its own caps.

    Attributes:
        weight: its share of contended capacity.
        disabled: whether its requests are refused.
        created_unix_ms: when its record was created; null for a tenant without one, under the default rules.
    """

    tenant: int
    name: str
    weight: int
    quotas: dict[str, int]
    disabled: bool
    created_unix_ms: Millis | None

    @classmethod
    def of(cls, record: TenantRecord) -> TenantBody:
        """Return the JSON of a tenant."""
        return cls.copy(record, quotas=dict(record.quotas), created_unix_ms=record.created_unix_ms or None)


class TenantPage(msgspec.Struct):
    """Some tenants, by number. `next` is the `after` of the following page, null on the last."""

    tenants: list[TenantBody]
    next: str | None


class AmountsBody(RecordBody):
    """Amounts used.

    Attributes:
        requests: calls of functions that ended; errors: those that failed.
        cpu_us: microseconds that guests ran; gpu_us: those of guests that launched kernels.
        bytes_in: given to guests; bytes_out: returned by them.
    """

    requests: int
    errors: int
    cpu_us: int
    gpu_us: int
    launches: int
    bytes_in: int
    bytes_out: int


class HourBody(msgspec.Struct):
    """Usage of the hour that began at `hour_unix_ms`."""

    hour_unix_ms: Millis
    used: AmountsBody


class QuotaBody(msgspec.Struct):
    """A quota: what is held now, or was used within an hour, on this server; and its limit, null without one."""

    used: int
    limit: int | None


class UsageBody(msgspec.Struct):
    """Usage of a tenant, in total and by the hours with usage, and the state of its quotas now, by name.

    Attributes:
        since_unix_ms: beginning of the first hour; until_unix_ms: end of the last one.
    """

    tenant_id: int
    since_unix_ms: Millis
    until_unix_ms: Millis
    hours: list[HourBody]
    total: AmountsBody
    quotas: dict[str, QuotaBody]


async def create(request: HttpRequest) -> Reply:
    """Create the record of a tenant."""
    body: CreateTenant = request.body
    request.audit["tenant_id"] = str(body.tenant)
    record = await request.service.tenants.create(capability_of(request), body.tenant, body.to_change())
    return Reply(TenantBody.of(record))


async def list_tenants(request: HttpRequest) -> Reply:
    """Return some of the tenants that the caller administers."""
    limit, text = page_limit(request), request.query.get("after")
    after = parse_number("after", text, MAX_TENANT) if text else None
    found = await request.service.tenants.list(capability_of(request), after, limit)
    following = str(found[-1].tenant) if len(found) == limit else None
    return Reply(TenantPage([TenantBody.of(each) for each in found], following))


async def get(request: HttpRequest) -> Reply:
    """Return a tenant."""
    return Reply(TenantBody.of(await request.service.tenants.get(capability_of(request), _tenant_of(request))))


async def update(request: HttpRequest) -> Reply:
    """Change a tenant."""
    tenant = _tenant_of(request)
    record = await request.service.tenants.update(capability_of(request), tenant, request.body.to_change())
    return Reply(TenantBody.of(record))


async def disable(request: HttpRequest) -> Reply:
    """Refuse all further requests of a tenant."""
    tenant = _tenant_of(request)
    await request.service.tenants.disable(capability_of(request), tenant)
    return Reply()


def capability_of(request: HttpRequest) -> AdminCapability:
    """Return the caller's capability to administer.

    Raises:
        ScopeDenied: it may not administer.
        TenantScopeDenied: all its tenants are disabled.
    """
    if request.principal is None:
        raise Unauthorized("the caller is not authenticated")
    return request.service.tenants.admit(request.principal)


def _tenant_of(request: HttpRequest) -> int:
    tenant = parse_number("tenant", request.params["tenant"], MAX_TENANT)
    request.audit["tenant_id"] = str(tenant)
    return tenant


async def report(request: HttpRequest) -> Reply:
    """Return what the tenant used, by the hour, and the state of its quotas."""
    service, tenant = request.service, request.tenant
    until = query_number(request, "until_unix_ms", service.clock.unix_ms(), _MAX_MS)
    since = query_number(request, "since_unix_ms", max(0, until - DAY_MS), _MAX_MS)
    found = await service.usage.report(tenant, since, until)
    limits = service.identities.policy(tenant).quotas
    kept = await asyncio.to_thread(service.store.usage, str(tenant))
    used = service.quotas.usage(tenant) | {"artifact_bytes": kept.artifact_bytes}
    kept_mib = settings.current().artifacts_quota_mib
    usual = {"memory_bytes": service.quotas.memory_limit(tenant, limits), "artifact_bytes": kept_mib * MIB}
    quotas = {name: QuotaBody(amount, limits.get(name, usual.get(name))) for name, amount in used.items()}
    hours = [HourBody(hour, AmountsBody.copy(amounts)) for hour, amounts in found.hours]
    total = AmountsBody.copy(found.total)
    return Reply(UsageBody(found.tenant, found.since_unix_ms, found.until_unix_ms, hours, total, quotas))


_ERRORS: Final = (InvalidRequest, *UNAVAILABLE)
_MILLIS: Final = {"type": "integer", "minimum": 0, "maximum": _MAX_MS}
_route = partial(
    Route, group="tenants", scope="admin", kind="admin", tenant=False, response=TenantBody, errors=_ERRORS
)  # fmt: skip

ROUTES: Final[tuple[Route, ...]] = (
    _route(
        "GET", "/tenants", list_tenants, "List tenants.", response=TenantPage, etag=True,
        query={
            "after": QueryParam(
                AFTER,
                {
                    "anyOf": [
                        {"type": "integer", "minimum": 0, "maximum": MAX_TENANT}, {"type": "string", "maxLength": 0}
                    ]
                },
            ),
            "limit": LIMIT,
        },
    ),
    _route(
        "POST", "/tenants", create, "Create the record of a tenant.", request=CreateTenant, status=201,
        action="create_tenant", errors=(InvalidRequest, InvalidName, Conflict, *UNAVAILABLE),
    ),
    _route("GET", "/tenants/{tenant}", get, "Show a tenant.", etag=True),
    _route(
        "PATCH", "/tenants/{tenant}", update, "Change a tenant's name, weight or quotas, enable or disable it.",
        request=UpdateTenant, action="update_tenant", errors=(InvalidRequest, InvalidName, *UNAVAILABLE),
    ),
    _route(
        "DELETE", "/tenants/{tenant}", disable, "Disable a tenant.", response=None, status=204, action="update_tenant"
    ),
)  # fmt: skip

USAGE_ROUTES: Final = (
    Route(
        "GET", "/usage", report, "Show what the tenant used, by the hour.", "usage", "usage:read", response=UsageBody,
        errors=(*_ERRORS, StoreUnavailable),
        query={
            "since_unix_ms": QueryParam(
                "Hours that begin at or after this time; default: a day before the end.", _MILLIS
            ),
            "until_unix_ms": QueryParam("Hours that begin before this time; default: now.", _MILLIS),
        },
    ),
)  # fmt: skip
