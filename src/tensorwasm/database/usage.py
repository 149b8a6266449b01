"""Hourly usage of tenants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from sqlalchemy import Connection, select

from tensorwasm.database.rows import encode, insert_into
from tensorwasm.database.schema import USAGE

HOUR_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class UsageAmounts:
    """Amounts used in a time: ``cpu_us`` by guests, ``gpu_us`` by their kernels; bytes are those of HTTP bodies."""

    requests: int = 0
    errors: int = 0
    cpu_us: int = 0
    gpu_us: int = 0
    launches: int = 0
    bytes_in: int = 0
    bytes_out: int = 0


AMOUNTS: Final = tuple(each.name for each in fields(UsageAmounts))
_COLUMNS: Final = tuple(USAGE.c[name] for name in AMOUNTS)


def add_usage(connection: Connection, hour_unix_ms: int, used: Mapping[int, UsageAmounts]) -> None:
    """Add amounts to tenants' usage of an hour."""
    if not used:
        return
    # The same order everywhere, so that two processes that add at the same time cannot deadlock.
    rows = [encode(each, tenant=str(tenant), hour_unix_ms=hour_unix_ms) for tenant, each in sorted(used.items())]
    statement = insert_into(connection, USAGE)
    added: dict[str, Any] = {column.name: column + statement.excluded[column.name] for column in _COLUMNS}
    connection.execute(
        statement.on_conflict_do_update(index_elements=["tenant", "hour_unix_ms"], set_=added),
        rows,
    )


def list_device_usage(connection: Connection, since_unix_ms: int) -> list[tuple[int, int, int, int]]:
    """Return hour, tenant, microseconds of GPU time and launches since a time, by hour, where there were any."""
    query = (
        select(USAGE.c.hour_unix_ms, USAGE.c.tenant, USAGE.c.gpu_us, USAGE.c.launches)
        .where(USAGE.c.hour_unix_ms >= since_unix_ms, (USAGE.c.gpu_us > 0) | (USAGE.c.launches > 0))
        .order_by(USAGE.c.hour_unix_ms)
    )
    return [(hour, int(tenant), gpu_us, launches) for hour, tenant, gpu_us, launches in connection.execute(query)]


def list_usage(
    connection: Connection, tenant: int, since_unix_ms: int, until_unix_ms: int
) -> list[tuple[int, UsageAmounts]]:
    """Return a tenant's usage in each hour that begins in ``[since, until)``, in order, without unused hours."""
    hour = USAGE.c.hour_unix_ms
    chosen = (USAGE.c.tenant == str(tenant), hour >= since_unix_ms, hour < until_unix_ms)
    query = select(hour, *_COLUMNS).where(*chosen).order_by(hour)
    return [(row[0], UsageAmounts(*row[1:])) for row in connection.execute(query)]
