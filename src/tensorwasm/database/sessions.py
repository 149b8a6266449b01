"""Sessions: what is known of each besides its state, which is in the artifact store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import msgspec
from sqlalchemy import Connection, Row, case, delete, func, insert, select, tuple_, update

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

    @property
    def cursor(self) -> tuple[int, str]:
        """What `list_sessions` goes on after."""
        return self.created_unix_ms, self.id


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
            **_changing(record),
        )
    )


def write_session(connection: Connection, record: SessionRecord) -> bool:
    """Write what changes of a session; return whether it is there."""
    done = connection.execute(update(SESSIONS).where(SESSIONS.c.id == record.id).values(**_changing(record)))
    return done.rowcount > 0


def find_session(connection: Connection, session_id: str) -> SessionRecord | None:
    """Return a session, whoever's it is; None if there is none."""
    found = connection.execute(select(SESSIONS).where(SESSIONS.c.id == session_id)).first()
    return None if found is None else _session(found, msgspec.json.decode(found.options, type=SessionOptions))


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


def delete_session(connection: Connection, session_id: str) -> bool:
    """Take a session away; return whether it was there."""
    return connection.execute(delete(SESSIONS).where(SESSIONS.c.id == session_id)).rowcount > 0


def rewind_sessions(connection: Connection) -> None:
    """Take every session back to what is saved of it: the process that held them is gone."""
    table = SESSIONS
    connection.execute(update(table).where(table.c.status == "volatile").values(status="lost"))
    connection.execute(
        update(table)
        .where(table.c.status == "live")
        .values(
            status=case((table.c.save.is_(None), "fresh"), else_="saved"),
            calls=table.c.saved_calls,
            rewinds=table.c.rewinds + 1,
        )
    )


def which_saves(connection: Connection, session_ids: tuple[str, ...]) -> frozenset[tuple[str, str]]:
    """Return session and save of each of some sessions that is there and was saved."""
    query = select(SESSIONS.c.id, SESSIONS.c.save).where(SESSIONS.c.id.in_(session_ids), SESSIONS.c.save.is_not(None))
    return frozenset((session_id, save) for session_id, save in connection.execute(query))


def _changing(record: SessionRecord) -> dict[str, object]:
    return {
        "status": record.status,
        "save": record.save,
        "calls": record.calls,
        "saved_calls": record.saved_calls,
        "rewinds": record.rewinds,
        "used_unix_ms": record.used_unix_ms,
    }


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
    )
