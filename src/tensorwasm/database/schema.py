"""All tables, and the conversion between their rows and records.

A tenant is its number as decimal text, since 2**64 - 1 fits no integer of SQLite; times are Unix ms. Columns of JSON
are text that the module of the table encodes and decodes; they are never searched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Connection,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Row,
    Select,
    String,
    Table,
    Text,
    select,
    tuple_,
)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

METADATA: Final = MetaData()

TENANTS: Final = Table(
    "tenants",
    METADATA,
    Column("tenant", String(20), primary_key=True),
    Column("name", Text, nullable=False, default=""),
    Column("weight", Integer, nullable=False, default=1),
    Column("quotas", Text, nullable=False, default="{}"),
    Column("disabled", Boolean, nullable=False, default=False),
    Column("created_unix_ms", BigInteger, nullable=False),
    Column("revision", BigInteger, nullable=False, index=True),
)

TOKENS: Final = Table(
    "tokens",
    METADATA,
    Column("id", String(36), primary_key=True),
    Column("digest", LargeBinary(32), nullable=False, unique=True),
    Column("name", Text, nullable=False, default=""),
    Column("tenants", Text, nullable=False),
    Column("scopes", Text, nullable=False),
    Column("created_unix_ms", BigInteger, nullable=False),
    Column("expires_unix_ms", BigInteger),
    Column("revoked_unix_ms", BigInteger),
    Column("replaces", String(36)),
    Column("revision", BigInteger, nullable=False, index=True),
)

FUNCTIONS: Final = Table(
    "functions",
    METADATA,
    Column("id", String(36), primary_key=True),
    Column("tenant", String(20), nullable=False),
    Column("name", Text, nullable=False),
    Column("current", Integer, nullable=False),
    Column("created_unix_ms", BigInteger, nullable=False),
    Column("updated_unix_ms", BigInteger, nullable=False),
    Index("functions_by_tenant", "tenant", "created_unix_ms", "id"),
)

VERSIONS: Final = Table(
    "versions",
    METADATA,
    Column("function_id", String(36), ForeignKey("functions.id", ondelete="CASCADE"), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("module", LargeBinary(32), nullable=False),
    Column("module_bytes", BigInteger, nullable=False),
    Column("options", Text, nullable=False, default="{}"),
    Column("created_unix_ms", BigInteger, nullable=False),
)

ALIASES: Final = Table(
    "aliases",
    METADATA,
    Column("function_id", String(36), ForeignKey("functions.id", ondelete="CASCADE"), primary_key=True),
    Column("alias", String(64), primary_key=True),
    Column("number", Integer, nullable=False),
    Column("updated_unix_ms", BigInteger, nullable=False),
)

JOBS: Final = Table(
    "jobs",
    METADATA,
    Column("id", String(36), primary_key=True),
    Column("tenant", String(20), nullable=False),
    Column("function_id", String(36), nullable=False),
    Column("version", Integer, nullable=False),
    Column("request", LargeBinary, nullable=False),
    Column("status", String(16), nullable=False),
    Column("attempts", Integer, nullable=False, default=0),
    Column("max_attempts", Integer, nullable=False),
    Column("due_unix_ms", BigInteger, nullable=False),
    Column("lease_owner", String(36)),
    Column("lease_unix_ms", BigInteger),
    Column("result", LargeBinary),
    Column("result_bytes", Integer, nullable=False, default=0),
    Column("error", Text),
    Column("cancelled", Boolean, nullable=False, default=False),
    Column("created_unix_ms", BigInteger, nullable=False),
    Column("ended_unix_ms", BigInteger),
    Column("expires_unix_ms", BigInteger),
    Column("trace_id", String(32), nullable=False, default=""),
    Index("jobs_due", "status", "due_unix_ms"),
    Index("jobs_in_turn", "status", "tenant", "due_unix_ms"),
    Index("jobs_by_tenant", "tenant", "created_unix_ms", "id"),
    Index("jobs_expired", "expires_unix_ms"),
    Index("jobs_ended", "tenant", "ended_unix_ms", "result_bytes"),  # the index alone answers how many and how much
)

IDEMPOTENCY: Final = Table(
    "idempotency",
    METADATA,
    Column("tenant", String(20), primary_key=True),
    Column("operation", String(32), primary_key=True),
    Column("key", String(255), primary_key=True),
    Column("request_digest", LargeBinary(32), nullable=False),
    Column("subject", String(36), nullable=False),
    Column("created_unix_ms", BigInteger, nullable=False),
    Index("idempotency_by_age", "created_unix_ms"),
    Index("idempotency_of_tenant", "tenant", "created_unix_ms"),
)

SESSIONS: Final = Table(
    "sessions",
    METADATA,
    Column("id", String(36), primary_key=True),
    Column("tenant", String(20), nullable=False),
    Column("function_id", String(36), nullable=False),
    Column("version", Integer, nullable=False),
    Column("status", String(16), nullable=False),
    Column("options", Text, nullable=False, default="{}"),
    Column("save", String(36)),
    Column("calls", BigInteger, nullable=False, default=0),
    Column("saved_calls", BigInteger, nullable=False, default=0),
    Column("rewinds", Integer, nullable=False, default=0),
    Column("created_unix_ms", BigInteger, nullable=False),
    Column("used_unix_ms", BigInteger, nullable=False),
    Column("owner", String(36)),
    Column("epoch", BigInteger, nullable=False, server_default="0"),
    Index("sessions_by_tenant", "tenant", "created_unix_ms", "id"),
    Index("sessions_by_owner", "owner"),
)

SERVERS: Final = Table(
    "servers",
    METADATA,
    Column("id", String(36), primary_key=True),
    Column("name", Text, nullable=False),
    Column("snapshot_key", String(16), nullable=False),
    Column("artifacts", String(32), nullable=False),
    Column("lease_unix_ms", BigInteger, nullable=False),
)

SNAPSHOTS: Final = Table(
    "snapshots",
    METADATA,
    Column("id", String(36), primary_key=True),
    Column("tenant", String(20), nullable=False),
    Column("function_id", String(36), nullable=False),
    Column("version", Integer, nullable=False),
    Column("session_id", String(36)),
    Column("content_hash", LargeBinary(32), nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("created_unix_ms", BigInteger, nullable=False),
    Index("snapshots_by_tenant", "tenant", "created_unix_ms", "id"),
)

KERNELS: Final = Table(
    "kernels",
    METADATA,
    Column("name", String(255), primary_key=True),
    Column("version", String(255), primary_key=True),
    Column("sm_version", Integer, nullable=False),
    Column("digest", LargeBinary(32), nullable=False),
    Column("signature", LargeBinary(32), nullable=False),
    Column("publisher", Text, nullable=False),
    Column("published_unix_ms", BigInteger, nullable=False),
    Column("ptx", Text, nullable=False),
)

USAGE: Final = Table(
    "usage",
    METADATA,
    Column("tenant", String(20), primary_key=True),
    Column("hour_unix_ms", BigInteger, primary_key=True),
    Column("requests", BigInteger, nullable=False, default=0),
    Column("errors", BigInteger, nullable=False, default=0),
    Column("cpu_us", BigInteger, nullable=False, default=0),
    Column("gpu_us", BigInteger, nullable=False, default=0),
    Column("launches", BigInteger, nullable=False, default=0),
    Column("bytes_in", BigInteger, nullable=False, default=0),
    Column("bytes_out", BigInteger, nullable=False, default=0),
)

META: Final = Table(
    "meta",
    METADATA,
    Column("key", String(64), primary_key=True),
    Column("value", Text, nullable=False),
)
"""The schema version, and other values of the installation."""


T = TypeVar("T")
R = TypeVar("R", bound="DataclassInstance")


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
    return import_module(f"sqlalchemy.dialects.{connection.dialect.name}").insert(table)  # PostgreSQL's takes 30 ms
