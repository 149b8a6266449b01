"""Conversion between records and rows, and statements that the queries of several tables share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import ColumnElement, Connection, Row, Select, Table, select, tuple_
from sqlalchemy.dialects import postgresql, sqlite

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")
R = TypeVar("R", bound="DataclassInstance")

_INSERTS = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}


def encode(record: DataclassInstance, **columns: object) -> dict[str, Any]:
    """Return the columns of a record, named as its fields; ``columns`` replaces those that are stored differently."""
    values = {each.name: getattr(record, each.name) for each in fields(record)}
    if "tenant" in values:
        values["tenant"] = str(values["tenant"])
    return values | columns


def decode(kind: type[R], row: Row[Any], **values: object) -> R:
    """Return the record of a row; ``values`` gives the fields that are stored differently."""
    columns = row._mapping  # noqa: SLF001 - SQLAlchemy's documented name
    found = {each.name: columns[each.name] for each in fields(kind) if each.name not in values}
    if "tenant" in found:
        found["tenant"] = int(found["tenant"])
    return kind(**found, **values)


def find(connection: Connection, query: Select[Any], make: Callable[[Row[Any]], T]) -> T | None:
    """Return what ``make`` makes of the first row of a query; None without a row."""
    row = connection.execute(query).first()
    return None if row is None else make(row)


def page(
    table: Table, tenant: int, after: tuple[int, str] | None, limit: int, columns: Iterable[ColumnElement[Any]] = ()
) -> Select[Any]:
    """Return the query for a tenant's rows, oldest first, of all columns unless ``columns`` names some.

    ``after`` is creation time and id of the last row seen, which may be gone since; None for the first page.
    """
    place = tuple_(table.c.created_unix_ms, table.c.id)
    query = select(*columns or table.c).where(table.c.tenant == str(tenant)).order_by(*place).limit(limit)
    return query if after is None else query.where(place > tuple_(*after))


def insert_into(connection: Connection, table: Table) -> Any:
    """Return the dialect's insert statement, with ``on_conflict_do_nothing`` and ``on_conflict_do_update``."""
    return _INSERTS[connection.dialect.name](table)
