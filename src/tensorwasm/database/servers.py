"""Which servers live, and which of them has a session: one lease for a server, one number for each time it is taken.

A server renews its lease by the database's clock. Another server that finds a lease run out takes the row of its server
away and that one's sessions back to their last saves, in one transaction. From then on what that server writes about
them is dropped, because a session's row is written only where owner and epoch are still the writer's
(`tensorwasm.database.sessions`).
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from sqlalchemy import ColumnElement, Connection, delete, insert, or_, select, text, update

from tensorwasm.database.clock import unix_ms
from tensorwasm.database.schema import SERVERS, SESSIONS
from tensorwasm.database.sessions import SessionRecord, rewind_sessions, session_of
from tensorwasm.errors import InvalidArgs, SessionElsewhere


@dataclass(frozen=True, slots=True)
class ServerRecord:
    """A server that has sessions of the database.

    Attributes:
        id: UUID of the process.
        name: where clients reach it, or what its operator calls it.
        snapshot_key: tells the key that it signs snapshots with from others.
        artifacts: tells the place of its artifacts from others.
    """

    id: str
    name: str
    snapshot_key: str = ""
    artifacts: str = ""


def join_servers(connection: Connection, server: ServerRecord, lease_ms: int) -> None:
    """Add a server, which may have sessions for so long before it must renew that.

    Raises:
        InvalidArgs: one that lives could not read what this one saves.
    """
    if connection.dialect.name == "postgresql":  # of two that differ and join at once, one is to see the other
        connection.execute(text("LOCK TABLE servers IN SHARE ROW EXCLUSIVE MODE"))
    living = connection.execute(select(SERVERS).where(SERVERS.c.lease_unix_ms > unix_ms())).all()
    for each in living:
        if each.snapshot_key != server.snapshot_key:
            raise InvalidArgs(
                f"the server {each.name} of this database signs snapshots with another key: give both the same "
                "TENSOR_WASM_API_SNAPSHOT_HMAC_KEY, or a copy of keys/ in the data folder"
            )
        if each.artifacts != server.artifacts:
            raise InvalidArgs(
                f"the server {each.name} of this database keeps artifacts elsewhere: give both the same "
                "TENSOR_WASM_ARTIFACTS, an object store or a folder that both have mounted"
            )
    values = {each.name: getattr(server, each.name) for each in fields(server)}
    connection.execute(insert(SERVERS).values(**values, lease_unix_ms=unix_ms() + lease_ms))


def renew_server(connection: Connection, server_id: str, lease_ms: int) -> bool:
    """Renew a server's lease; return False where the server was taken for dead, and so has no session any more."""
    renewed = update(SERVERS).where(SERVERS.c.id == server_id).values(lease_unix_ms=unix_ms() + lease_ms)
    return connection.execute(renewed).rowcount > 0


def remove_server(connection: Connection, server_id: str) -> None:
    """Take a server away that is known to have ended, and its sessions back to their last saves."""
    connection.execute(delete(SERVERS).where(SERVERS.c.id == server_id))
    rewind_sessions(connection, SESSIONS.c.owner == server_id)


def remove_dead_servers(connection: Connection) -> int:
    """Do as `remove_server` does with every server whose lease has run out, and return how many there were."""
    dead = connection.execute(delete(SERVERS).where(_run_out()).returning(SERVERS.c.id)).scalars().all()
    if dead:
        rewind_sessions(connection, SESSIONS.c.owner.in_(dead))
    return len(dead)


def take_session(connection: Connection, session_id: str, server_id: str) -> SessionRecord | None:
    """Make a session a server's own, as it was saved last; None if there is no such session.

    Raises:
        SessionElsewhere: another server has it, and lives.
    """
    owner = connection.execute(select(SESSIONS.c.owner).where(SESSIONS.c.id == session_id)).scalar_one_or_none()
    if owner not in {None, server_id}:
        connection.execute(delete(SERVERS).where(SERVERS.c.id == owner, _run_out()))
        if (name := server_name(connection, owner)) is not None:
            raise SessionElsewhere(name)
        rewind_sessions(connection, SESSIONS.c.owner == owner)
    free = or_(SESSIONS.c.owner.is_(None), SESSIONS.c.owner == server_id)
    rewind_sessions(connection, (SESSIONS.c.id == session_id) & free)  # where the one before could not say its end
    taken = update(SESSIONS).where(SESSIONS.c.id == session_id, free)
    row = connection.execute(taken.values(owner=server_id, epoch=SESSIONS.c.epoch + 1).returning(SESSIONS)).first()
    if row is None and (found := session_holder(connection, session_id)) is not None:
        raise SessionElsewhere(found)
    return None if row is None else session_of(row)


def release_session(connection: Connection, record: SessionRecord) -> None:
    """Let others have a session, unless it is another's already."""
    mine = (SESSIONS.c.id == record.id, SESSIONS.c.owner == record.owner, SESSIONS.c.epoch == record.epoch)
    connection.execute(update(SESSIONS).where(*mine).values(owner=None))


def session_holder(connection: Connection, session_id: str) -> str | None:
    """Return the name of the server that has a session, empty if none has; None if there is no such session."""
    row = connection.execute(select(SESSIONS.c.owner).where(SESSIONS.c.id == session_id)).first()
    return None if row is None else (server_name(connection, row.owner) or "")


def server_name(connection: Connection, server_id: str | None) -> str | None:
    """Return a server's name; None if there is no such server."""
    return connection.execute(select(SERVERS.c.name).where(SERVERS.c.id == server_id)).scalar_one_or_none()


def _run_out() -> ColumnElement[bool]:
    return SERVERS.c.lease_unix_ms <= unix_ms()
