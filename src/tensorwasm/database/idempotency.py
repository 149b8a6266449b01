"""Idempotency keys: what a request that was made before had made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from sqlalchemy import delete, func, select, tuple_

from tensorwasm.database.schema import IDEMPOTENCY
from tensorwasm.database.upsert import insert_into

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Connection

_KEY: Final = (IDEMPOTENCY.c.tenant, IDEMPOTENCY.c.operation, IDEMPOTENCY.c.key)


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """One use of a key.

    Attributes:
        tenant: whose it is.
        operation: what it was used for.
        key: the client's.
        request_digest: of what was asked, 32 bytes.
        subject: id of what was made.
        created_unix_ms: when.
    """

    tenant: int
    operation: str
    key: str = field(repr=False)
    request_digest: bytes = field(repr=False)
    subject: str
    created_unix_ms: int


def get_key(connection: Connection, tenant: int, operation: str, key: str) -> KeyRecord | None:
    """Return what a key was used for; None if it was not."""
    row = connection.execute(select(IDEMPOTENCY).where(*_same(tenant, operation, key))).one_or_none()
    return None if row is None else KeyRecord(int(row[0]), *row[1:])


def put_key(connection: Connection, record: KeyRecord) -> bool:
    """Write that a key was used, and return whether that was so; False where it is in use already.

    On PostgreSQL this waits for whoever is using it at the moment, until that transaction ends.
    """
    values = {
        "tenant": str(record.tenant),
        "operation": record.operation,
        "key": record.key,
        "request_digest": record.request_digest,
        "subject": record.subject,
        "created_unix_ms": record.created_unix_ms,
    }
    statement = insert_into(connection, IDEMPOTENCY).values(values).on_conflict_do_nothing()
    # Not the number of rows: drivers do not agree on it where nothing was inserted.
    return connection.execute(statement.returning(IDEMPOTENCY.c.key)).first() is not None


def drop_key(connection: Connection, record: KeyRecord) -> None:
    """Forget one use of a key, unless it was used anew."""
    same = _same(record.tenant, record.operation, record.key)
    connection.execute(delete(IDEMPOTENCY).where(*same, IDEMPOTENCY.c.created_unix_ms == record.created_unix_ms))


def remove_keys(connection: Connection, before_unix_ms: int, limit: int) -> int:
    """Forget keys that were used before a time, ``limit`` at most, and return how many."""
    old = (
        select(*_KEY)
        .where(IDEMPOTENCY.c.created_unix_ms < before_unix_ms)
        .order_by(IDEMPOTENCY.c.created_unix_ms)
        .limit(limit)
    )
    return connection.execute(delete(IDEMPOTENCY).where(tuple_(*_KEY).in_(old))).rowcount


def trim_keys(connection: Connection, most: int, limit: int) -> int:
    """Forget the oldest keys of tenants that have more than ``most``, ``limit`` at most, and return how many."""
    count = func.count()
    over = select(IDEMPOTENCY.c.tenant, count).group_by(IDEMPOTENCY.c.tenant).having(count > most)
    removed = 0
    for tenant, there in connection.execute(over).all():
        old = (
            select(*_KEY)
            .where(IDEMPOTENCY.c.tenant == tenant)
            .order_by(IDEMPOTENCY.c.created_unix_ms)
            .limit(min(there - most, limit - removed))
        )
        removed += connection.execute(delete(IDEMPOTENCY).where(tuple_(*_KEY).in_(old))).rowcount
    return removed


def _same(tenant: int, operation: str, key: str) -> tuple[ColumnElement[bool], ...]:
    return tuple(column == value for column, value in zip(_KEY, (str(tenant), operation, key), strict=True))
