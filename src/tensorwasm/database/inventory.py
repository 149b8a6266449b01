"""Totals of the database for gauges, and its references into the artifact store for backups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlalchemy import Column, Connection, func, select

from tensorwasm.database.schema import FUNCTIONS, JOBS, SESSIONS, SNAPSHOTS, VERSIONS


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
    rows = connection.execute(select(status, func.count()).group_by(status))
    return {name: count for name, count in rows}  # noqa: C416 - rows are no pairs to a type checker


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
    snapshots = select(SNAPSHOTS.c.tenant, SNAPSHOTS.c.id)
    return Inventory(
        tuple((row[0], row[1], row[2], bytes(row[3])) for row in connection.execute(modules)),
        tuple((row[0], row[1], row[2]) for row in connection.execute(saves)),
        tuple((row[0], row[1]) for row in connection.execute(snapshots)),
    )
