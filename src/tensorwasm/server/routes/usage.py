"""Usage: what a tenant used, and what is left of its quotas."""

from __future__ import annotations

import asyncio
from typing import Final

from tensorwasm import settings
from tensorwasm.errors import CapacityExhausted, DatabaseUnavailable, InvalidRequest, StoreUnavailable
from tensorwasm.server.routing import Call, Param, Reply, Route
from tensorwasm.server.wire.usage import QuotaBody, UsageBody
from tensorwasm.values import MIB

DAY_MS: Final = 86_400_000
_MAX_DIGITS: Final = 15
_MILLIS: Final = {"type": "integer", "minimum": 0, "maximum": 10**_MAX_DIGITS - 1}


async def report(call: Call) -> Reply:
    """Return what the tenant used."""
    service, tenant = call.service, call.tenant
    until = _time(call, "until_unix_ms", service.clock.unix_ms())
    since = _time(call, "since_unix_ms", max(0, until - DAY_MS))
    found = await service.usage.report(tenant, since, until)
    limits = service.directory.policy(tenant).quotas
    kept = await asyncio.to_thread(service.store.usage, str(tenant))
    used = service.quotas.usage(tenant) | {"artifact_bytes": kept.artifact_bytes}
    kept_mib = settings.current().artifacts_quota_mib
    usual = {"memory_bytes": service.quotas.memory_limit(tenant, limits), "artifact_bytes": kept_mib * MIB}
    quotas = {name: QuotaBody(amount, limits.get(name, usual.get(name))) for name, amount in used.items()}
    return Reply(UsageBody.of(found, quotas))


def _time(call: Call, name: str, usual: int) -> int:
    text = call.query.get(name)
    if text is None:
        return usual
    if not (text.isascii() and text.isdigit()) or len(text) > _MAX_DIGITS:
        raise InvalidRequest(f"{name} is a number of milliseconds since 1970")
    return int(text)


ROUTES: Final[tuple[Route, ...]] = (
    Route(
        "GET", "/usage", report, "See what the tenant used, by the hour.", "usage", "usage:read", response=UsageBody,
        errors=(InvalidRequest, DatabaseUnavailable, StoreUnavailable, CapacityExhausted),
        query={
            "since_unix_ms": Param(
                "Hours that begin at or after this time's; a day before the end unless said otherwise.", _MILLIS
            ),
            "until_unix_ms": Param("Hours that begin before this time; now unless said otherwise.", _MILLIS),
        },
    ),
)  # fmt: skip
