"""Tenants and tokens, and the revision by which other processes find what changed of them.

A token is stored as its digest, never as its secret. Ended tokens stay for a while, so that every process sees the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Row,
    Text,
    cast,
    delete,
    func,
    insert,
    or_,
    select,
    tuple_,
    update,
)
from sqlalchemy.exc import IntegrityError

from tensorwasm.database.schema import META, TENANTS, TOKENS, decode, encode, find

ALL_TENANTS: Final = "*"
REVISION_KEY: Final = "identity_revision"

_IN_VALUES: Final = 500
"""Values of one IN clause; SQLite takes at most 32,766, and old releases 999."""


def read_revision(connection: Connection) -> int:
    """Return the last revision that was taken; 0 if none was."""
    found = connection.execute(select(META.c.value).where(META.c.key == REVISION_KEY)).scalar()
    return 0 if found is None else int(found)


def take_revision(connection: Connection) -> int:
    """Return the next revision, for the rows that this transaction changes.

    The row is locked until the commit. So a process that sees a revision sees all changes under smaller ones, and two
    transactions that begin with this call run one after the other.
    """
    take = update(META).where(META.c.key == REVISION_KEY).values(value=cast(cast(META.c.value, BigInteger) + 1, Text))
    if not connection.execute(take).rowcount:
        try:
            with connection.begin_nested():
                connection.execute(insert(META).values(key=REVISION_KEY, value="1"))
        except IntegrityError:  # another transaction has just taken the first revision
            connection.execute(take)
    return read_revision(connection)


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantRecord:
    """A tenant with rules of its own; the service's rules hold for all others.

    Attributes:
        weight: its share where tenants wait for one another.
        quotas: caps by name; the service's own holds for a missing one.
        disabled: whether its requests are refused.
    """

    tenant: int
    name: str = ""
    weight: int = 1
    quotas: Mapping[str, int] = field(default_factory=dict)
    disabled: bool = False
    created_unix_ms: int = 0
    revision: int = 0


def add_tenant(connection: Connection, record: TenantRecord) -> TenantRecord:
    """Insert a tenant, and return it with its revision."""
    record = replace(record, revision=take_revision(connection))
    connection.execute(insert(TENANTS).values(_encode_tenant(record)))
    return record


def change_tenant(connection: Connection, record: TenantRecord) -> TenantRecord:
    """Overwrite an existing tenant, and return it with its revision."""
    record = replace(record, revision=take_revision(connection))
    connection.execute(update(TENANTS).where(TENANTS.c.tenant == str(record.tenant)).values(_encode_tenant(record)))
    return record


def find_tenant(connection: Connection, tenant: int, *, lock: bool = False) -> TenantRecord | None:
    """Return a tenant, None if it has no record; with ``lock``, locked against changes until the transaction ends."""
    query = select(TENANTS).where(TENANTS.c.tenant == str(tenant))
    return find(connection, query.with_for_update() if lock else query, _tenant)


def list_tenants(
    connection: Connection, after: int | None, limit: int, among: Iterable[int] | None = None
) -> list[TenantRecord]:
    """Return at most ``limit`` tenants with numbers above ``after``, in order; only those ``among``, if given."""
    # A number in decimal sorts as its length and then its digits do.
    order = (func.length(TENANTS.c.tenant), TENANTS.c.tenant)
    query = select(TENANTS).order_by(*order).limit(limit)
    if after is not None:
        shorter, same = order[0] > len(str(after)), order[0] == len(str(after))
        query = query.where(shorter | (same & (order[1] > str(after))))
    if among is None:
        return [_tenant(row) for row in connection.execute(query)]
    wanted = [str(tenant) for tenant in sorted(among) if after is None or tenant > after]
    found: list[TenantRecord] = []
    for start in range(0, len(wanted), _IN_VALUES):
        some = query.where(TENANTS.c.tenant.in_(wanted[start : start + _IN_VALUES]))
        found += [_tenant(row) for row in connection.execute(some)]
        if len(found) >= limit:
            break
    return found[:limit]


def changed_tenants(connection: Connection, since: int) -> list[TenantRecord]:
    """Return the tenants that changed after a revision; all after 0."""
    return [_tenant(row) for row in connection.execute(select(TENANTS).where(TENANTS.c.revision > since))]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRecord:
    """A token, without its secret.

    Attributes:
        digest: of the whole token, 32 bytes.
        tenants: those that it may act for; None for all.
        expires_unix_ms: when it ends; None for never.
        replaces: UUID of the token that it was made from.
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
        """Return whether it is neither revoked nor expired."""
        return self.revoked_unix_ms is None and (self.expires_unix_ms is None or now_unix_ms < self.expires_unix_ms)


def add_token(connection: Connection, record: TokenRecord) -> TokenRecord:
    """Insert a token, and return it with its revision."""
    record = replace(record, revision=take_revision(connection))
    tenants = ALL_TENANTS if record.tenants is None else sorted(record.tenants)
    row = encode(record, tenants=_json(tenants), scopes=_json(sorted(record.scopes)))
    connection.execute(insert(TOKENS).values(row))
    return record


def find_token(connection: Connection, token_id: str, *, lock: bool = False) -> TokenRecord | None:
    """Return a token, live or not; with ``lock``, locked against changes until the transaction ends."""
    query = select(TOKENS).where(TOKENS.c.id == token_id)
    return find(connection, query.with_for_update() if lock else query, _token)


def has_live_token(connection: Connection, now_unix_ms: int) -> bool:
    """Return whether any token is live."""
    return connection.execute(select(TOKENS.c.id).where(_live(now_unix_ms)).limit(1)).first() is not None


def is_replaced(connection: Connection, token_id: str) -> bool:
    """Return whether another token was made from this one."""
    return connection.execute(select(TOKENS.c.id).where(TOKENS.c.replaces == token_id).limit(1)).first() is not None


def end_token(
    connection: Connection, record: TokenRecord, *, expires_unix_ms: int | None, revoked_unix_ms: int | None
) -> TokenRecord:
    """Write when a token expires or was revoked, and return it with its revision."""
    revision = take_revision(connection)
    changed = {"expires_unix_ms": expires_unix_ms, "revoked_unix_ms": revoked_unix_ms, "revision": revision}
    connection.execute(update(TOKENS).where(TOKENS.c.id == record.id).values(changed))
    return replace(record, expires_unix_ms=expires_unix_ms, revoked_unix_ms=revoked_unix_ms, revision=revision)


def list_tokens(
    connection: Connection, after: str | None, limit: int, shown: Callable[[TokenRecord], bool]
) -> list[TokenRecord]:
    """Return at most ``limit`` tokens, live or not, that ``shown`` selects, in the order of their creation.

    ``after`` is the UUID of the token after which to begin; for an unknown one nothing is returned.
    """
    order = (TOKENS.c.created_unix_ms, TOKENS.c.id)
    query = select(TOKENS).order_by(*order)
    if after is not None:
        place = connection.execute(select(*order).where(TOKENS.c.id == after)).one_or_none()
        if place is None:
            return []
        query = query.where(tuple_(*order) > tuple_(*place))
    found: list[TokenRecord] = []
    for record in _stream_tokens(connection, query):
        if len(found) == limit:
            break
        if shown(record):
            found.append(record)
    return found


def changed_tokens(connection: Connection, since: int, now_unix_ms: int) -> list[TokenRecord]:
    """Return the tokens that changed after a revision; all live ones after 0."""
    chosen = TOKENS.c.revision > since
    if since == 0:
        chosen &= _live(now_unix_ms)
    return list(_stream_tokens(connection, select(TOKENS).where(chosen)))


def erase_dead_tokens(connection: Connection, before_unix_ms: int) -> int:
    """Delete the tokens that ended before a time, and return how many."""
    ended = or_(TOKENS.c.revoked_unix_ms < before_unix_ms, TOKENS.c.expires_unix_ms < before_unix_ms)
    return connection.execute(delete(TOKENS).where(ended)).rowcount


def _live(now_unix_ms: int) -> ColumnElement[bool]:
    unexpired = or_(TOKENS.c.expires_unix_ms.is_(None), TOKENS.c.expires_unix_ms > now_unix_ms)
    return TOKENS.c.revoked_unix_ms.is_(None) & unexpired


def _stream_tokens(connection: Connection, query: Any) -> Iterator[TokenRecord]:
    with connection.execute(query, execution_options={"yield_per": 256}) as rows:
        yield from map(_token, rows)


def _token(row: Row[Any]) -> TokenRecord:
    tenants, scopes = msgspec.json.decode(row.tenants), frozenset(msgspec.json.decode(row.scopes))
    return decode(TokenRecord, row, tenants=None if tenants == ALL_TENANTS else frozenset(tenants), scopes=scopes)


def _encode_tenant(record: TenantRecord) -> dict[str, Any]:
    return encode(record, quotas=_json(record.quotas))


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _tenant(row: Row[Any]) -> TenantRecord:
    return decode(TenantRecord, row, quotas=msgspec.json.decode(row.quotas))
