"""Tokens: digests, never secrets. What ended stays for a while, so that every process sees its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec
from sqlalchemy import ColumnElement, Connection, Row, delete, insert, or_, select, tuple_, update

from tensorwasm.database.revisions import take_revision
from tensorwasm.database.schema import TOKENS

ALL_TENANTS: Final = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRecord:
    """A token, without its secret.

    Attributes:
        id: UUID.
        digest: of the whole token, 32 bytes.
        name: for people.
        tenants: whom it may act for; None for all.
        scopes: what it may do.
        created_unix_ms: when it was made.
        expires_unix_ms: when it ends; None for never.
        revoked_unix_ms: when it was revoked; None if it was not.
        replaces: UUID of the token that it was made from.
        revision: of its last change.
    """

    id: str
    digest: bytes = field(repr=False)
    name: str
    tenants: frozenset[int] | None
    scopes: frozenset[str]
    created_unix_ms: int
    expires_unix_ms: int | None = None
    revoked_unix_ms: int | None = None
    replaces: str | None = None
    revision: int = 0

    def live(self, now_unix_ms: int) -> bool:
        """Return whether it is neither revoked nor past its end."""
        return self.revoked_unix_ms is None and (self.expires_unix_ms is None or now_unix_ms < self.expires_unix_ms)


def add_token(connection: Connection, record: TokenRecord) -> TokenRecord:
    """Write a new token, and return it with its revision."""
    record = replace(record, revision=take_revision(connection))
    connection.execute(insert(TOKENS).values(_encode(record)))
    return record


def find_token(connection: Connection, token_id: str, *, lock: bool = False) -> TokenRecord | None:
    """Return a token, live or not; locked, nobody else changes it before the transaction ends."""
    query = select(TOKENS).where(TOKENS.c.id == token_id)
    row = connection.execute(query.with_for_update() if lock else query).one_or_none()
    return None if row is None else _decode(row)


def has_live_token(connection: Connection, now_unix_ms: int) -> bool:
    """Return whether any token is live."""
    return connection.execute(select(TOKENS.c.id).where(_live(now_unix_ms)).limit(1)).first() is not None


def is_replaced(connection: Connection, token_id: str) -> bool:
    """Return whether a token was made from this one."""
    return connection.execute(select(TOKENS.c.id).where(TOKENS.c.replaces == token_id).limit(1)).first() is not None


def end_token(
    connection: Connection, record: TokenRecord, *, expires_unix_ms: int | None, revoked_unix_ms: int | None
) -> TokenRecord:
    """Write when a token ends or was revoked, and return it with its revision."""
    record = replace(
        record,
        expires_unix_ms=expires_unix_ms,
        revoked_unix_ms=revoked_unix_ms,
        revision=take_revision(connection),
    )
    changed = {name: getattr(record, name) for name in ("expires_unix_ms", "revoked_unix_ms", "revision")}
    connection.execute(update(TOKENS).where(TOKENS.c.id == record.id).values(changed))
    return record


def list_tokens(
    connection: Connection, after: str | None, limit: int, shown: Callable[[TokenRecord], bool]
) -> list[TokenRecord]:
    """Return tokens that a function lets through, live or not, in the order in which they were made.

    Args:
        connection: to read from.
        after: UUID of a token; those made after it are returned. None begins with the first; one that is not there
            gives none.
        limit: most that are returned.
        shown: says whether one is to be returned.
    """
    order = (TOKENS.c.created_unix_ms, TOKENS.c.id)
    query = select(TOKENS).order_by(*order)
    if after is not None:
        place = connection.execute(select(*order).where(TOKENS.c.id == after)).one_or_none()
        if place is None:
            return []
        query = query.where(tuple_(*order) > tuple_(*place))
    found: list[TokenRecord] = []
    for record in _stream(connection, query):
        if len(found) == limit:
            break
        if shown(record):
            found.append(record)
    return found


def changed_tokens(connection: Connection, since: int, now_unix_ms: int) -> list[TokenRecord]:
    """Return tokens that changed after a revision; with 0, all that are live."""
    chosen = TOKENS.c.revision > since
    if since == 0:
        chosen &= _live(now_unix_ms)
    return list(_stream(connection, select(TOKENS).where(chosen)))


def erase_dead_tokens(connection: Connection, before_unix_ms: int) -> int:
    """Erase tokens that were dead by then, and return how many."""
    ended = or_(TOKENS.c.revoked_unix_ms < before_unix_ms, TOKENS.c.expires_unix_ms < before_unix_ms)
    return connection.execute(delete(TOKENS).where(ended)).rowcount


def _live(now_unix_ms: int) -> ColumnElement[bool]:
    unexpired = or_(TOKENS.c.expires_unix_ms.is_(None), TOKENS.c.expires_unix_ms > now_unix_ms)
    return TOKENS.c.revoked_unix_ms.is_(None) & unexpired


def _stream(connection: Connection, query: Any) -> Iterator[TokenRecord]:
    with connection.execute(query, execution_options={"yield_per": 256}) as rows:
        yield from map(_decode, rows)


def _encode(record: TokenRecord) -> dict[str, Any]:
    values = {name: getattr(record, name) for name in TOKENS.c.keys()}  # noqa: SIM118 - a collection of columns, no dict
    tenants = ALL_TENANTS if record.tenants is None else sorted(record.tenants)
    values["tenants"] = msgspec.json.encode(tenants).decode()
    values["scopes"] = msgspec.json.encode(sorted(record.scopes)).decode()
    return values


def _decode(row: Row[Any]) -> TokenRecord:
    values = dict(row._mapping)  # noqa: SLF001 - SQLAlchemy's documented name
    tenants = msgspec.json.decode(values["tenants"])
    values["tenants"] = None if tenants == ALL_TENANTS else frozenset(tenants)
    values["scopes"] = frozenset(msgspec.json.decode(values["scopes"]))
    return TokenRecord(**values)
