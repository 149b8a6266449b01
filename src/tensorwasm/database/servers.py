"""Leases of the servers that share a database, and which of them has a session.

A server renews its lease by the database's clock. Another server that finds a lease expired deletes that server's row
and rewinds its sessions to their last saves, in one transaction. From then on writes of the old server to these
sessions have no effect, because a session's row is written only where owner and epoch are still the writer's
(`tensorwasm.database.sessions`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Connection, delete, insert, or_, select, text, update
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from tensorwasm.database.rows import encode
from tensorwasm.database.schema import SERVERS, SESSIONS
from tensorwasm.database.sessions import SessionRecord, rewind_sessions, session_of
from tensorwasm.errors import InvalidArgs, SessionElsewhere


class unix_ms(FunctionElement[int]):  # noqa: N801 - SQL functions are written so
    """The database's own clock now, in ms since 1970: one for all servers, and not frozen within a transaction."""

    type = BigInteger()
    inherit_cache = True
    name = "unix_ms"


@compiles(unix_ms)
def _sqlite_clock(_element: unix_ms, _compiler: Any, **_more: Any) -> str:
    return "unix_ms()"  # a function in Python that each connection to SQLite registers: the clock of this machine


@compiles(unix_ms, "postgresql")
def _postgresql_clock(_element: unix_ms, _compiler: Any, **_more: Any) -> str:
    return "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)"


@dataclass(frozen=True, slots=True)
class ServerRecord:
    """A server process: its UUID, its address or name for clients, and what identifies its key and artifact store."""

    id: str
    name: str
    snapshot_key: str = ""
    artifacts: str = ""


def join_servers(connection: Connection, server: ServerRecord, lease_ms: int) -> None:
    """Add a server with a lease.

    Raises:
        InvalidArgs: a live server could not read what this one saves.
    """
    if connection.dialect.name == "postgresql":  # of two that differ and join at once, one must see the other
        connection.execute(text("LOCK TABLE servers IN SHARE ROW EXCLUSIVE MODE"))
    for each in connection.execute(select(SERVERS).where(SERVERS.c.lease_unix_ms > unix_ms())).all():
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
    connection.execute(insert(SERVERS).values(encode(server, lease_unix_ms=unix_ms() + lease_ms)))


def renew_server(connection: Connection, server_id: str, lease_ms: int) -> bool:
    """Renew a server's lease; return False if the server was declared dead, and so has lost its sessions."""
    renewed = update(SERVERS).where(SERVERS.c.id == server_id).values(lease_unix_ms=unix_ms() + lease_ms)
    return connection.execute(renewed).rowcount > 0


def remove_server(connection: Connection, server_id: str) -> None:
    """Remove a server that has ended, and rewind its sessions."""
    connection.execute(delete(SERVERS).where(SERVERS.c.id == server_id))
    rewind_sessions(connection, SESSIONS.c.owner == server_id)


def remove_dead_servers(connection: Connection) -> int:
    """Remove each server whose lease has expired, rewind its sessions, and return how many there were."""
    dead = connection.execute(delete(SERVERS).where(_expired()).returning(SERVERS.c.id)).scalars().all()
    if dead:
        rewind_sessions(connection, SESSIONS.c.owner.in_(dead))
    return len(dead)


def take_session(connection: Connection, session_id: str, server_id: str) -> SessionRecord | None:
    """Give a session to a server, in its last saved state; None if there is no such session.

    Raises:
        SessionElsewhere: another live server has it.
    """
    owner = connection.execute(select(SESSIONS.c.owner).where(SESSIONS.c.id == session_id)).scalar_one_or_none()
    if owner not in {None, server_id}:
        connection.execute(delete(SERVERS).where(SERVERS.c.id == owner, _expired()))
        if (name := server_name(connection, owner)) is not None:
            raise SessionElsewhere(name)
        rewind_sessions(connection, SESSIONS.c.owner == owner)
    free = or_(SESSIONS.c.owner.is_(None), SESSIONS.c.owner == server_id)
    rewind_sessions(connection, (SESSIONS.c.id == session_id) & free)  # the last owner may not have recorded its end
    taken = update(SESSIONS).where(SESSIONS.c.id == session_id, free)
    row = connection.execute(taken.values(owner=server_id, epoch=SESSIONS.c.epoch + 1).returning(SESSIONS)).first()
    if row is None and (found := session_holder(connection, session_id)) is not None:
        raise SessionElsewhere(found)
    return None if row is None else session_of(row)


def release_session(connection: Connection, record: SessionRecord) -> None:
    """Clear a session's owner, unless another server has taken it since."""
    mine = (SESSIONS.c.id == record.id, SESSIONS.c.owner == record.owner, SESSIONS.c.epoch == record.epoch)
    connection.execute(update(SESSIONS).where(*mine).values(owner=None))


def session_holder(connection: Connection, session_id: str) -> str | None:
    """Return the name of the server that has a session, empty if none has; None if there is no such session."""
    row = connection.execute(select(SESSIONS.c.owner).where(SESSIONS.c.id == session_id)).first()
    return None if row is None else (server_name(connection, row.owner) or "")


def server_name(connection: Connection, server_id: str | None) -> str | None:
    """Return a server's name; None if there is no such server."""
    return connection.execute(select(SERVERS.c.name).where(SERVERS.c.id == server_id)).scalar_one_or_none()


def _expired() -> ColumnElement[bool]:
    return SERVERS.c.lease_unix_ms <= unix_ms()
