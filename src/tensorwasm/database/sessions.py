"""Sessions: the records; their state is in the artifact store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import msgspec
from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    and_,
    bindparam,
    case,
    delete,
    func,
    insert,
    select,
    true,
    update,
)

from tensorwasm.database.rows import decode, encode, page
from tensorwasm.database.schema import SESSIONS

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
        owner: UUID of the server that has it, where several share the database; see `tensorwasm.database.servers`.
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
    options = msgspec.json.encode(record.options).decode()
    connection.execute(insert(SESSIONS).values(encode(record, options=options)))


def write_session(connection: Connection, record: SessionRecord) -> bool:
    """Write the changing columns of a session; return False if it is gone, or another server has taken it."""
    values = {name: getattr(record, name) for name in _CHANGING}
    return connection.execute(_WRITE[record.owner is None], _identity(record) | values).rowcount > 0


def find_session(connection: Connection, session_id: str) -> SessionRecord | None:
    """Return a session of any tenant; None if there is none."""
    found = connection.execute(_FIND, {"session": session_id}).first()
    return None if found is None else session_of(found)


def session_of(row: Row[Any]) -> SessionRecord:
    """Return the record of a whole row."""
    return decode(SessionRecord, row, options=msgspec.json.decode(row.options, type=SessionOptions))


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
    table = SESSIONS
    connection.execute(update(table).where(which, table.c.status == "volatile").values(status="lost"))
    connection.execute(
        update(table)
        .where(which, table.c.status == "live")
        .values(
            status=case((table.c.save.is_(None), "fresh"), else_="saved"),
            calls=table.c.saved_calls,
            rewinds=table.c.rewinds + 1,
        )
    )
    connection.execute(update(table).where(which, table.c.owner.is_not(None)).values(owner=None))


def rewind_all_sessions(connection: Connection) -> None:
    """Rewind every session, when the only server of the database starts."""
    rewind_sessions(connection, true())


def list_saves(connection: Connection, session_ids: tuple[str, ...]) -> frozenset[tuple[str, str]]:
    """Return session and save of those of some sessions that exist and are saved."""
    query = select(SESSIONS.c.id, SESSIONS.c.save).where(SESSIONS.c.id.in_(session_ids), SESSIONS.c.save.is_not(None))
    return frozenset((session_id, save) for session_id, save in connection.execute(query))


def _identity(record: SessionRecord) -> dict[str, object]:
    """Return the parameters of `_unchanged`."""
    identity = {"session": record.id, "term": record.epoch}
    return identity if record.owner is None else {**identity, "server": record.owner}
