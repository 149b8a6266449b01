"""Sessions: what is known of each besides its state, which is in the artifact store."""

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
    tuple_,
    update,
)

from tensorwasm.database.schema import SESSIONS

Status: TypeAlias = Literal["fresh", "saved", "live", "volatile", "lost"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """What a session is given when it is opened, and again when it is made anew before its first call.

    Attributes:
        input: what its calls read with ``read-input``, unless one brings its own.
        argv: arguments that its guest finds through WASI; None for the function's name.
        env: environment besides the function's own.
    """

    input: bytes = b""
    argv: tuple[str, ...] | None = None
    env: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRecord:
    """A session.

    Attributes:
        id: UUID.
        tenant: whose it is.
        function_id: what it runs.
        version: of the function, which stays.
        status: ``fresh`` before its first call; ``saved`` when all that it is has been saved; ``live`` when it was
            called since; ``volatile`` when it was called and cannot be saved; ``lost`` when such a one ended with its
            process, or could not be brought back.
        options: what it was opened with.
        save: UUID of the save that it goes on from, None before the first.
        calls: calls that its guest has served; what a crash took back is not among them.
        saved_calls: of them, those whose effects are saved.
        rewinds: times that a crash has taken it back to its last save.
        created_unix_ms: when it was opened.
        used_unix_ms: when it was last called, as far as that is recorded.
        owner: UUID of the server that has it, where several share the database; see `tensorwasm.database.servers`.
        epoch: how often it was taken by a server.
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
        """What `list_sessions` goes on after."""
        return self.created_unix_ms, self.id


def _held(*, owner: bool) -> ColumnElement[bool]:
    """Return the condition that a session is still whose it was when its record was read: a server's, or nobody's."""
    own = SESSIONS.c.owner == bindparam("server") if owner else SESSIONS.c.owner.is_(None)
    return and_(SESSIONS.c.id == bindparam("session"), own, SESSIONS.c.epoch == bindparam("term"))


_CHANGING: Final = ("status", "save", "calls", "saved_calls", "rewinds", "used_unix_ms")
_FIND: Final = select(SESSIONS).where(SESSIONS.c.id == bindparam("session"))
_WRITE: Final = tuple(
    update(SESSIONS).where(_held(owner=owner)).values({name: bindparam(name) for name in _CHANGING})
    for owner in (True, False)
)
_DELETE: Final = tuple(delete(SESSIONS).where(_held(owner=owner)) for owner in (True, False))
"""Made once, for making them takes Python's lock for longer than the database takes; the second of two has no owner."""

_LISTED: Final = tuple(column for column in SESSIONS.c if column.name != "options")


def insert_session(connection: Connection, record: SessionRecord) -> None:
    """Add a session."""
    connection.execute(
        insert(SESSIONS).values(
            id=record.id,
            tenant=str(record.tenant),
            function_id=record.function_id,
            version=record.version,
            options=msgspec.json.encode(record.options).decode(),
            created_unix_ms=record.created_unix_ms,
            owner=record.owner,
            epoch=record.epoch,
            **_changing(record),
        )
    )


def write_session(connection: Connection, record: SessionRecord) -> bool:
    """Write what changes of a session; return False where it is gone, or was taken by another server."""
    whose, values = _whose(record), _changing(record)
    return connection.execute(_WRITE[record.owner is None], whose | values).rowcount > 0


def find_session(connection: Connection, session_id: str) -> SessionRecord | None:
    """Return a session, whoever's it is; None if there is none."""
    found = connection.execute(_FIND, {"session": session_id}).first()
    return None if found is None else session_of(found)


def session_of(row: Row[Any]) -> SessionRecord:
    """Return what a whole row says."""
    return _session(row, msgspec.json.decode(row.options, type=SessionOptions))


def count_sessions(connection: Connection, tenant: int, most: int) -> int:
    """Return how many sessions a tenant has, and no more than ``most``: counting ends there."""
    found = select(SESSIONS.c.id).where(SESSIONS.c.tenant == str(tenant)).limit(most)
    return connection.execute(select(func.count()).select_from(found.subquery())).scalar_one()


def list_sessions(
    connection: Connection, tenant: int, after: tuple[int, str] | None, limit: int
) -> tuple[SessionRecord, ...]:
    """Return a tenant's sessions, oldest first, without what they were opened with.

    Args:
        connection: to the database.
        tenant: whose.
        after: time and ID of the last one that was seen; None begins.
        limit: most of them.
    """
    place = tuple_(SESSIONS.c.created_unix_ms, SESSIONS.c.id)
    query = select(*_LISTED).where(SESSIONS.c.tenant == str(tenant)).order_by(*place).limit(limit)
    if after is not None:
        query = query.where(place > tuple_(*after))
    return tuple(_session(row, SessionOptions()) for row in connection.execute(query))


def delete_session(connection: Connection, record: SessionRecord) -> bool:
    """Take a session away; return False where it is gone, or was taken by another server."""
    return connection.execute(_DELETE[record.owner is None], _whose(record)).rowcount > 0


def rewind_sessions(connection: Connection, which: ColumnElement[bool]) -> None:
    """Take sessions back to what is saved of them, and from their owner: the process that held them is gone."""
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
    """Do as `rewind_sessions` does with every session: one server has the database, and it has just begun."""
    rewind_sessions(connection, true())


def which_saves(connection: Connection, session_ids: tuple[str, ...]) -> frozenset[tuple[str, str]]:
    """Return session and save of each of some sessions that is there and was saved."""
    query = select(SESSIONS.c.id, SESSIONS.c.save).where(SESSIONS.c.id.in_(session_ids), SESSIONS.c.save.is_not(None))
    return frozenset((session_id, save) for session_id, save in connection.execute(query))


def _whose(record: SessionRecord) -> dict[str, object]:
    """Return what the conditions of `_held` compare with."""
    whose = {"session": record.id, "term": record.epoch}
    return whose if record.owner is None else {**whose, "server": record.owner}


def _changing(record: SessionRecord) -> dict[str, object]:
    return {name: getattr(record, name) for name in _CHANGING}


def _session(row: Row[Any], options: SessionOptions) -> SessionRecord:
    return SessionRecord(
        id=row.id,
        tenant=int(row.tenant),
        function_id=row.function_id,
        version=row.version,
        status=row.status,
        options=options,
        save=row.save,
        calls=row.calls,
        saved_calls=row.saved_calls,
        rewinds=row.rewinds,
        created_unix_ms=row.created_unix_ms,
        used_unix_ms=row.used_unix_ms,
        owner=row.owner,
        epoch=row.epoch,
    )
