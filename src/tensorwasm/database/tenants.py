"""Tenants of whom something was said; of all others the service's own rules hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, Row, func, insert, select, update

from tensorwasm.database.revisions import take_revision
from tensorwasm.database.schema import TENANTS

_SOME: Final = 500
"""Values of one IN clause; SQLite takes 32,766 at most, and old ones 999."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantRecord:
    """A tenant.

    Attributes:
        tenant: its number.
        name: for people.
        weight: its share where tenants wait for one another.
        quotas: caps by name; what is not named is the service's own.
        disabled: whether nothing of it is served.
        created_unix_ms: when it was first spoken of.
        revision: of its last change.
    """

    tenant: int
    name: str = ""
    weight: int = 1
    quotas: Mapping[str, int] = field(default_factory=dict)
    disabled: bool = False
    created_unix_ms: int = 0
    revision: int = 0


def add_tenant(connection: Connection, record: TenantRecord) -> TenantRecord:
    """Write a tenant of whom nothing was said before, and return it with its revision."""
    record = replace(record, revision=take_revision(connection))
    connection.execute(insert(TENANTS).values(_encode(record)))
    return record


def change_tenant(connection: Connection, record: TenantRecord) -> TenantRecord:
    """Write all of a tenant that is there, and return it with its revision."""
    record = replace(record, revision=take_revision(connection))
    row = TENANTS.c.tenant == str(record.tenant)
    connection.execute(update(TENANTS).where(row).values(_encode(record)))
    return record


def find_tenant(connection: Connection, tenant: int, *, lock: bool = False) -> TenantRecord | None:
    """Return a tenant, None if nothing was said of it; locked, nobody else changes it before the transaction ends."""
    query = select(TENANTS).where(TENANTS.c.tenant == str(tenant))
    row = connection.execute(query.with_for_update() if lock else query).one_or_none()
    return None if row is None else _decode(row)


def list_tenants(
    connection: Connection, after: int | None, limit: int, among: Iterable[int] | None = None
) -> list[TenantRecord]:
    """Return tenants in the order of their numbers.

    Args:
        connection: to read from.
        after: a number; greater ones are returned. None begins with the first.
        limit: most that are returned.
        among: the only ones to return; None for any.
    """
    # A number in decimal sorts as its length and then its digits do.
    order = (func.length(TENANTS.c.tenant), TENANTS.c.tenant)
    query = select(TENANTS).order_by(*order).limit(limit)
    if after is not None:
        shorter, same = order[0] > len(str(after)), order[0] == len(str(after))
        query = query.where(shorter | (same & (order[1] > str(after))))
    if among is None:
        return [_decode(row) for row in connection.execute(query)]
    wanted = [str(tenant) for tenant in sorted(among) if after is None or tenant > after]
    found: list[TenantRecord] = []
    for start in range(0, len(wanted), _SOME):
        some = query.where(TENANTS.c.tenant.in_(wanted[start : start + _SOME]))
        found += [_decode(row) for row in connection.execute(some)]
        if len(found) >= limit:
            break
    return found[:limit]


def changed_tenants(connection: Connection, since: int) -> list[TenantRecord]:
    """Return tenants that changed after a revision; with 0, all."""
    return [_decode(row) for row in connection.execute(select(TENANTS).where(TENANTS.c.revision > since))]


def _encode(record: TenantRecord) -> dict[str, Any]:
    values = {name: getattr(record, name) for name in TENANTS.c.keys()}  # noqa: SIM118 - a collection of columns, no dict
    return values | {"tenant": str(record.tenant), "quotas": msgspec.json.encode(record.quotas).decode()}


def _decode(row: Row[Any]) -> TenantRecord:
    values = dict(row._mapping)  # noqa: SLF001 - SQLAlchemy's documented name
    return TenantRecord(**values | {"tenant": int(values["tenant"]), "quotas": msgspec.json.decode(values["quotas"])})
