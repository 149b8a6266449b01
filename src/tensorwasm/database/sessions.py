"""Sessions, and the servers that share a database and have them; the state of a session is in the artifact store.

A server has a lease, which it renews by the database's clock. Another server that finds a lease expired deletes that
server's row and rewinds its sessions to their last saves, in one transaction. From then on writes of the old server to
these sessions have no effect, because a session's row is written only where owner and epoch are still the writer's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import msgspec
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Row,
    and_,
    bindparam,
    case,
    delete,
    func,
    insert,
    or_,
    select,
    text,
    true,
    update,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from tensorwasm.database.schema import SERVERS, SESSIONS, decode, encode, page
from tensorwasm.errors import InvalidArgs, SessionElsewhere

Status: TypeAlias = Literal["fresh", "saved", "live", "volatile", "lost"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """What a session is opened with: input of ``read-input``, WASI arguments, None for the function's name, and env."""

    input: bytes = b""
    argv: tuple[str, ...] | None = None
    env: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRecord:
    """A session.

    Attributes:
        status: ``fresh`` before its first call; ``saved`` when its whole state is saved; ``live`` when it was called
            since; ``volatile`` when it was called and cannot be saved; ``lost`` when a volatile one ended with its
            process, or a saved one could not be restored.
        calls: calls that its guest has served, without those that a crash undid.
        saved_calls: those of them whose effects are saved.
        rewinds: how often a crash has set it back to its last save.
        owner: UUID of the server that has it, where several share the database.
        epoch: how often a server has taken it.
    """

    id: str
    tenant: int
    function_id: str
    version: int
    status: Status
    options: SessionOptions
    save: str | None
    calls: int
    saved_calls: int
    rewinds: int
    created_unix_ms: int
    used_unix_ms: int
    owner: str | None = None
    epoch: int = 0

    @property
    def cursor(self) -> tuple[int, str]:
        """The position after which `list_sessions` continues."""
        return self.created_unix_ms, self.id


def _unchanged(*, owned: bool) -> ColumnElement[bool]:
    """Return the condition that a session's owner and epoch are still those of the record that is written."""
    owner = SESSIONS.c.owner == bindparam("server") if owned else SESSIONS.c.owner.is_(None)
    return and_(SESSIONS.c.id == bindparam("session"), owner, SESSIONS.c.epoch == bindparam("term"))


_decode_options = msgspec.json.Decoder(SessionOptions).decode
_CHANGING: Final = ("status", "save", "calls", "saved_calls", "rewinds", "used_unix_ms")
_FIND: Final = select(SESSIONS).where(SESSIONS.c.id == bindparam("session"))
_WRITE: Final = tuple(
    update(SESSIONS).where(_unchanged(owned=owned)).values({name: bindparam(name) for name in _CHANGING})
    for owned in (True, False)
)
_DELETE: Final = tuple(delete(SESSIONS).where(_unchanged(owned=owned)) for owned in (True, False))
"""Built once, since building them holds the GIL for longer than the database takes; the second of each has no owner."""


def insert_session(connection: Connection, record: SessionRecord) -> None:
    """Add a session."""
    connection.execute(insert(SESSIONS).values(encode(record, options=msgspec.json.encode(record.options).decode())))


def write_session(connection: Connection, record: SessionRecord) -> bool:
    """Write the changing columns of a session; return False if it is gone, or another server has taken it."""
    values = {name: getattr(record, name) for name in _CHANGING}
    return connection.execute(_WRITE[record.owner is None], _identity(record) | values).rowcount > 0


def find_session(connection: Connection, session_id: str) -> SessionRecord | None:
    """Return a session of any tenant; None if there is none."""
    row = connection.execute(_FIND, {"session": session_id}).first()
    return None if row is None else session_of(row)


def session_of(row: Row[Any]) -> SessionRecord:
    """Return the record of a whole row."""
    return decode(SessionRecord, row, options=_decode_options(row.options))


def count_sessions(connection: Connection, tenant: int, most: int) -> int:
    """Return how many sessions a tenant has, counting no further than ``most``."""
    found = select(SESSIONS.c.id).where(SESSIONS.c.tenant == str(tenant)).limit(most)
    return connection.execute(select(func.count()).select_from(found.subquery())).scalar_one()


def list_sessions(
    connection: Connection, tenant: int, after: tuple[int, str] | None, limit: int
) -> tuple[SessionRecord, ...]:
    """Return a tenant's sessions without their options, oldest first; arguments as for `page`."""
    listed = [column for column in SESSIONS.c if column.name != "options"]
    rows = connection.execute(page(SESSIONS, tenant, after, limit, listed))
    return tuple(decode(SessionRecord, row, options=SessionOptions()) for row in rows)


def delete_session(connection: Connection, record: SessionRecord) -> bool:
    """Delete a session; return False if it is gone, or another server has taken it."""
    return connection.execute(_DELETE[record.owner is None], _identity(record)).rowcount > 0


def rewind_sessions(connection: Connection, which: ColumnElement[bool]) -> None:
    """Set sessions back to their last saves, and clear their owner: the process that had them is gone."""
    those, columns = update(SESSIONS).where(which), SESSIONS.c
    connection.execute(those.where(columns.status == "volatile").values(status="lost"))
    status = case((columns.save.is_(None), "fresh"), else_="saved")
    rewound = {"status": status, "calls": columns.saved_calls, "rewinds": columns.rewinds + 1}
    connection.execute(those.where(columns.status == "live").values(rewound))
    connection.execute(those.where(columns.owner.is_not(None)).values(owner=None))


def rewind_all_sessions(connection: Connection) -> None:
    """Rewind every session, when the only server of the database starts."""
    rewind_sessions(connection, true())


def list_saves(connection: Connection, session_ids: tuple[str, ...]) -> frozenset[tuple[str, str]]:
    """Return session and save of those of some sessions that exist and are saved."""
    query = select(SESSIONS.c.id, SESSIONS.c.save).where(SESSIONS.c.id.in_(session_ids), SESSIONS.c.save.is_not(None))
    return frozenset((session_id, save) for session_id, save in connection.execute(query))


def _identity(record: SessionRecord) -> dict[str, object]:
    """Return the parameters of `_unchanged`."""
    return {"session": record.id, "term": record.epoch, **({} if record.owner is None else {"server": record.owner})}


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
    """Add a server with a lease; InvalidArgs if a live server could not read what this one saves."""
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
    """Give a session to a server, in its last saved state; None if there is none.

    SessionElsewhere if another live server has it.
    """
    owner = connection.execute(select(SESSIONS.c.owner).where(SESSIONS.c.id == session_id)).scalar_one_or_none()
    if owner not in {None, server_id}:
        connection.execute(delete(SERVERS).where(SERVERS.c.id == owner, _expired()))
        if (name := server_name(connection, owner)) is not None:
            raise SessionElsewhere(name)
        rewind_sessions(connection, SESSIONS.c.owner == owner)
    free = (SESSIONS.c.id == session_id) & or_(SESSIONS.c.owner.is_(None), SESSIONS.c.owner == server_id)
    rewind_sessions(connection, free)  # the last owner may not have recorded its end
    taken = update(SESSIONS).where(free).values(owner=server_id, epoch=SESSIONS.c.epoch + 1)
    row = connection.execute(taken.returning(SESSIONS)).first()
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
