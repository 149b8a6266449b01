"""How many of what there is, of all tenants together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlalchemy import Column, Connection, func, select

from tensorwasm.database.schema import FUNCTIONS, JOBS, SESSIONS


@dataclass(frozen=True, slots=True)
class Census:
    """How many of what there is.

    Attributes:
        functions: deployed.
        jobs: kept, by status.
        sessions: by status.
    """

    functions: int = 0
    jobs: Mapping[str, int] = field(default_factory=dict)
    sessions: Mapping[str, int] = field(default_factory=dict)


def take_census(connection: Connection) -> Census:
    """Return how many of what there is now."""
    functions = connection.execute(select(func.count()).select_from(FUNCTIONS)).scalar_one()
    return Census(functions, _by(connection, JOBS.c.status), _by(connection, SESSIONS.c.status))


def _by(connection: Connection, status: Column[str]) -> dict[str, int]:
    rows = connection.execute(select(status, func.count()).group_by(status))
    return {name: count for name, count in rows}  # noqa: C416 - rows are no pairs to a type checker
