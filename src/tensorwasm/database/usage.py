"""What tenants used, by the hour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import select

from tensorwasm.database.schema import USAGE
from tensorwasm.database.upsert import insert_into

if TYPE_CHECKING:
    from sqlalchemy import Connection

HOUR_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class Amounts:
    """What was used.

    Attributes:
        requests: that were answered.
        errors: those of them that failed.
        cpu_us: microseconds that guests ran.
        gpu_us: microseconds that their kernels ran.
        launches: of kernels.
        bytes_in: of requests' bodies.
        bytes_out: of answers' bodies.
    """

    requests: int = 0
    errors: int = 0
    cpu_us: int = 0
    gpu_us: int = 0
    launches: int = 0
    bytes_in: int = 0
    bytes_out: int = 0


AMOUNTS: Final = tuple(each.name for each in fields(Amounts))
_COLUMNS: Final = tuple(USAGE.c[name] for name in AMOUNTS)


def add_usage(connection: Connection, hour_unix_ms: int, used: Mapping[int, Amounts]) -> None:
    """Add to what tenants used in an hour."""
    if not used:
        return
    rows = [
        {"tenant": str(tenant), "hour_unix_ms": hour_unix_ms, **{name: getattr(each, name) for name in AMOUNTS}}
        # In one order everywhere, so that two processes that add at once do not wait for each other in a circle.
        for tenant, each in sorted(used.items())
    ]
    statement = insert_into(connection, USAGE)
    added: dict[str, Any] = {column.name: column + statement.excluded[column.name] for column in _COLUMNS}
    connection.execute(
        statement.on_conflict_do_update(index_elements=["tenant", "hour_unix_ms"], set_=added),
        rows,
    )


def list_device_usage(connection: Connection, since_unix_ms: int) -> list[tuple[int, int, int, int]]:
    """Return hour, tenant, microseconds of GPU time and launches, since a time, by the hour; where there were any."""
    query = (
        select(USAGE.c.hour_unix_ms, USAGE.c.tenant, USAGE.c.gpu_us, USAGE.c.launches)
        .where(USAGE.c.hour_unix_ms >= since_unix_ms, (USAGE.c.gpu_us > 0) | (USAGE.c.launches > 0))
        .order_by(USAGE.c.hour_unix_ms)
    )
    return [(hour, int(tenant), gpu_us, launches) for hour, tenant, gpu_us, launches in connection.execute(query)]


def list_usage(
    connection: Connection, tenant: int, since_unix_ms: int, until_unix_ms: int
) -> list[tuple[int, Amounts]]:
    """Return what a tenant used in each hour that begins within a time, in order; hours without any are left out."""
    query = (
        select(USAGE.c.hour_unix_ms, *_COLUMNS)
        .where(
            USAGE.c.tenant == str(tenant),
            USAGE.c.hour_unix_ms >= since_unix_ms,
            USAGE.c.hour_unix_ms < until_unix_ms,
        )
        .order_by(USAGE.c.hour_unix_ms)
    )
    return [(row[0], Amounts(*row[1:])) for row in connection.execute(query)]
