"""What a database leads to that is kept elsewhere: for those who want to know whether a copy of it is whole."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, select

from tensorwasm.database.schema import FUNCTIONS, SESSIONS, SNAPSHOTS, VERSIONS


@dataclass(frozen=True, slots=True)
class Inventory:
    """What must be in the artifact store.

    Attributes:
        modules: tenant, function's ID, version, and hash of its module.
        saves: tenant, session's ID and its save.
        snapshots: tenant and ID of each.
    """

    modules: tuple[tuple[str, str, int, bytes], ...]
    saves: tuple[tuple[str, str, str], ...]
    snapshots: tuple[tuple[str, str], ...]


def take_inventory(connection: Connection) -> Inventory:
    """Return all that a database leads to."""
    of = FUNCTIONS.join(VERSIONS, VERSIONS.c.function_id == FUNCTIONS.c.id)
    modules = select(FUNCTIONS.c.tenant, FUNCTIONS.c.id, VERSIONS.c.number, VERSIONS.c.module).select_from(of)
    saves = select(SESSIONS.c.tenant, SESSIONS.c.id, SESSIONS.c.save).where(SESSIONS.c.save.is_not(None))
    snapshots = select(SNAPSHOTS.c.tenant, SNAPSHOTS.c.id)
    return Inventory(
        tuple((row[0], row[1], row[2], bytes(row[3])) for row in connection.execute(modules)),
        tuple((row[0], row[1], row[2]) for row in connection.execute(saves)),
        tuple((row[0], row[1]) for row in connection.execute(snapshots)),
    )
