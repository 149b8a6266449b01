"""Insert or update, in the words of either database: both say ON CONFLICT, SQLAlchemy has it for each apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy.dialects import postgresql, sqlite

if TYPE_CHECKING:
    from sqlalchemy import Connection, Table


def insert_into(connection: Connection, table: Table) -> Any:
    """Return an insert statement with ``on_conflict_do_nothing`` and ``on_conflict_do_update``."""
    return _INSERTS[connection.dialect.name](table)


_INSERTS = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}
