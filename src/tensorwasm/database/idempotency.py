"""Idempotency keys: what an earlier request with the same key created."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from sqlalchemy import ColumnElement, Connection, Select, delete, func, select, tuple_

from tensorwasm.database.schema import IDEMPOTENCY, decode, encode, find, insert_into

_KEY: Final = (IDEMPOTENCY.c.tenant, IDEMPOTENCY.c.operation, IDEMPOTENCY.c.key)


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """One use of a key: the request's digest has 32 bytes; ``subject`` is the id of what the request created."""

    tenant: int
    operation: str
    key: str = field(repr=False)
    request_digest: bytes = field(repr=False)
    subject: str
    created_unix_ms: int


def get_key(connection: Connection, tenant: int, operation: str, key: str) -> KeyRecord | None:
    """Return the use of a key; None if it was not used."""
    query = select(IDEMPOTENCY).where(*_same(tenant, operation, key))
    return find(connection, query, lambda row: decode(KeyRecord, row))


def put_key(connection: Connection, record: KeyRecord) -> bool:
    """Record the use of a key, and return True; return False if it is in use already.

    On PostgreSQL this waits for the end of another transaction that is recording the same key.
    """
    statement = insert_into(connection, IDEMPOTENCY).values(encode(record)).on_conflict_do_nothing()
    # The number of rows is no help: drivers disagree on it where nothing was inserted.
    return connection.execute(statement.returning(IDEMPOTENCY.c.key)).first() is not None


def drop_key(connection: Connection, record: KeyRecord) -> None:
    """Delete one use of a key, unless the key was used again since."""
    same = _same(record.tenant, record.operation, record.key)
    connection.execute(delete(IDEMPOTENCY).where(*same, IDEMPOTENCY.c.created_unix_ms == record.created_unix_ms))


def remove_keys(connection: Connection, before_unix_ms: int, limit: int) -> int:
    """Delete at most ``limit`` keys used before a time, oldest first, and return how many."""
    return _remove_oldest(connection, select(*_KEY).where(IDEMPOTENCY.c.created_unix_ms < before_unix_ms), limit)


def trim_keys(connection: Connection, most: int, limit: int) -> int:
    """Delete the oldest keys of tenants that have more than ``most``, ``limit`` at most, and return how many."""
    count = func.count()
    over = select(IDEMPOTENCY.c.tenant, count).group_by(IDEMPOTENCY.c.tenant).having(count > most)
    removed = 0
    for tenant, there in connection.execute(over).all():
        old = select(*_KEY).where(IDEMPOTENCY.c.tenant == tenant)
        removed += _remove_oldest(connection, old, min(there - most, limit - removed))
    return removed


def _remove_oldest(connection: Connection, keys: Select[tuple[str, str, str]], limit: int) -> int:
    old = keys.order_by(IDEMPOTENCY.c.created_unix_ms).limit(limit)
    return connection.execute(delete(IDEMPOTENCY).where(tuple_(*_KEY).in_(old))).rowcount


def _same(tenant: int, operation: str, key: str) -> tuple[ColumnElement[bool], ...]:
    return tuple(column == value for column, value in zip(_KEY, (str(tenant), operation, key), strict=True))
