"""Hourly usage of tenants, totals for gauges, and references into the artifact store for backups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from sqlalchemy import Column, Connection, func, select

from tensorwasm.database.schema import FUNCTIONS, JOBS, META, SESSIONS, SNAPSHOTS, USAGE, VERSIONS, encode, insert_into

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
    connection.execute(statement.on_conflict_do_update(index_elements=["tenant", "hour_unix_ms"], set_=added), rows)


def add_report(
    connection: Connection, reporter: str, mark: str, reported: Mapping[int, Mapping[int, UsageAmounts]]
) -> bool:
    """Add the amounts of a report, by hour and tenant, unless it has the mark of the reporter's last one.

    Returns whether they were added: a reporter that has got no answer repeats its report.
    """
    key = f"usage report {reporter}"
    before = connection.execute(select(META.c.value).where(META.c.key == key)).scalar_one_or_none()
    if before == mark:
        return False
    for hour_unix_ms, used in sorted(reported.items()):
        add_usage(connection, hour_unix_ms, used)
    statement = insert_into(connection, META).values(key=key, value=mark)
    connection.execute(statement.on_conflict_do_update(index_elements=["key"], set_={"value": mark}))
    return True


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


@dataclass(frozen=True, slots=True)
class RecordCounts:
    """Numbers of records of all tenants: functions, and jobs and sessions by status."""

    functions: int = 0
    jobs: Mapping[str, int] = field(default_factory=dict)
    sessions: Mapping[str, int] = field(default_factory=dict)


def count_records(connection: Connection) -> RecordCounts:
    """Return the current numbers."""
    functions = connection.execute(select(func.count()).select_from(FUNCTIONS)).scalar_one()
    return RecordCounts(functions, _count_by(connection, JOBS.c.status), _count_by(connection, SESSIONS.c.status))


def _count_by(connection: Connection, status: Column[str]) -> dict[str, int]:
    return {row[0]: row[1] for row in connection.execute(select(status, func.count()).group_by(status))}


@dataclass(frozen=True, slots=True)
class Inventory:
    """What the artifact store must contain."""

    modules: tuple[tuple[str, str, int, bytes], ...]  # tenant, function, version, hash
    saves: tuple[tuple[str, str, str], ...]  # tenant, session, save
    snapshots: tuple[tuple[str, str], ...]  # tenant, snapshot


def take_inventory(connection: Connection) -> Inventory:
    """Return all references into the artifact store."""
    of = FUNCTIONS.join(VERSIONS, VERSIONS.c.function_id == FUNCTIONS.c.id)
    modules = select(FUNCTIONS.c.tenant, FUNCTIONS.c.id, VERSIONS.c.number, VERSIONS.c.module).select_from(of)
    saves = select(SESSIONS.c.tenant, SESSIONS.c.id, SESSIONS.c.save).where(SESSIONS.c.save.is_not(None))
    return Inventory(
        tuple((row[0], row[1], row[2], bytes(row[3])) for row in connection.execute(modules)),
        tuple((row[0], row[1], row[2]) for row in connection.execute(saves)),
        tuple((row[0], row[1]) for row in connection.execute(select(SNAPSHOTS.c.tenant, SNAPSHOTS.c.id))),
    )
