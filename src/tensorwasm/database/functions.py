"""Functions, their versions, and aliases of versions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import msgspec
from sqlalchemy import ColumnElement, Connection, Row, delete, func, insert, select, update

from tensorwasm.database.schema import ALIASES, FUNCTIONS, VERSIONS, decode, encode, find, page
from tensorwasm.values import MemoryKind, OffloadMath, OffloadMode


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionOptions:
    """How a version of a function is run.

    Attributes:
        grants: capabilities of its guests; ``cuda`` is the only one.
        memory_mib: most linear memory in MiB; None for the operator's limit.
        timeout_s: longest invocation; None for the operator's default.
        memory_kind: how kernels reach linear memory; None for the operator's choice.
        env: WASI environment variables, besides those of an invocation.
        offload: where its loops run that can run in parallel.
        offload_math: whether these add up and multiply floats in WebAssembly's order.
        model: whether clients of OpenAI's API may use it as a model.
    """

    grants: tuple[str, ...] = ()
    memory_mib: int | None = None
    timeout_s: float | None = None
    memory_kind: MemoryKind | None = None
    warm: int = 0
    env: tuple[tuple[str, str], ...] = ()
    model: bool = False
    offload: OffloadMode = "off"
    offload_math: OffloadMath = "exact"

    @property
    def on_device(self) -> bool:
        """Whether calls may use a device."""
        return "cuda" in self.grants or self.offload in {"auto", "gpu"}

    @property
    def in_worker(self) -> bool:
        """Whether calls run in worker processes: they may use a device, or keep all cores busy."""
        return self.on_device or self.offload != "off"


@dataclass(frozen=True, slots=True)
class FunctionRecord:
    """A function with its default version; its name, which need not be unique, is the name on the OpenAI routes too."""

    id: str
    tenant: int
    name: str
    current: int
    created_unix_ms: int
    updated_unix_ms: int

    @property
    def cursor(self) -> str:
        """The position after which `list_functions` continues."""
        return f"{self.created_unix_ms}.{self.id}"


@dataclass(frozen=True, slots=True)
class VersionRecord:
    """An immutable version of a function, numbered from 1; ``module`` is the BLAKE3 of its module, 32 bytes."""

    function_id: str
    number: int
    module: bytes
    module_bytes: int
    options: FunctionOptions
    created_unix_ms: int


@dataclass(frozen=True, slots=True)
class AliasRecord:
    """A name for the version ``number`` of a function."""

    function_id: str
    alias: str
    number: int
    updated_unix_ms: int


_NEWEST_FIRST: Final = (FUNCTIONS.c.created_unix_ms.desc(), FUNCTIONS.c.id.desc())
_decode_options = msgspec.json.Decoder(FunctionOptions).decode
_function: Final = partial(decode, FunctionRecord)
_alias: Final = partial(decode, AliasRecord)


def insert_function(connection: Connection, record: FunctionRecord, version: VersionRecord) -> None:
    """Add a function with its first version."""
    connection.execute(insert(FUNCTIONS).values(encode(record)))
    insert_version(connection, version)


def insert_version(connection: Connection, version: VersionRecord) -> None:
    """Add a version of an existing function."""
    connection.execute(insert(VERSIONS).values(encode(version, options=msgspec.json.encode(version.options).decode())))


def lock_function(connection: Connection, function_id: str) -> FunctionRecord | None:
    """Return a function, None if there is none, and lock it against changes until the transaction ends."""
    return find(connection, select(FUNCTIONS).where(FUNCTIONS.c.id == function_id).with_for_update(), _function)


def find_function(connection: Connection, function_id: str) -> FunctionRecord | None:
    """Return a function of any tenant; None if there is none."""
    return find(connection, select(FUNCTIONS).where(FUNCTIONS.c.id == function_id), _function)


def lock_name(connection: Connection, tenant: int, name: str) -> None:
    """Make other transactions that lock the same name of the tenant wait for the end of this one.

    SQLite has one writer at a time in any case. Source: PostgreSQL, "Advisory Locks".
    """
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(f"{tenant} {name}", 0))))


def find_named(connection: Connection, tenant: int, name: str) -> FunctionRecord | None:
    """Return the newest of a tenant's functions of that name; None if there is none."""
    named = select(FUNCTIONS).where(FUNCTIONS.c.tenant == str(tenant), FUNCTIONS.c.name == name)
    return find(connection, named.order_by(*_NEWEST_FIRST).limit(1), _function)


def list_functions(
    connection: Connection, tenant: int, after: tuple[int, str] | None, limit: int
) -> tuple[FunctionRecord, ...]:
    """Return a tenant's functions, oldest first; arguments as for `tensorwasm.database.schema.page`."""
    return tuple(map(_function, connection.execute(page(FUNCTIONS, tenant, after, limit))))


def list_current(connection: Connection, tenant: int, limit: int) -> tuple[tuple[FunctionRecord, FunctionOptions], ...]:
    """Return the newest of a tenant's functions, newest first, with the options of their current versions."""
    query = (
        select(FUNCTIONS, VERSIONS.c.options)
        .join(VERSIONS, (VERSIONS.c.function_id == FUNCTIONS.c.id) & (VERSIONS.c.number == FUNCTIONS.c.current))
        .where(FUNCTIONS.c.tenant == str(tenant))
        .order_by(*_NEWEST_FIRST)
        .limit(limit)
    )
    return tuple((_function(row), _options(row)) for row in connection.execute(query))


def set_current(connection: Connection, record: FunctionRecord) -> None:
    """Write a function's name, current version and time of change."""
    changed = {"name": record.name, "current": record.current, "updated_unix_ms": record.updated_unix_ms}
    connection.execute(update(FUNCTIONS).where(FUNCTIONS.c.id == record.id).values(changed))


def delete_function(connection: Connection, function_id: str) -> bool:
    """Delete a function with its versions and aliases, and return whether it existed."""
    for table in (ALIASES, VERSIONS):
        connection.execute(delete(table).where(table.c.function_id == function_id))
    return connection.execute(delete(FUNCTIONS).where(FUNCTIONS.c.id == function_id)).rowcount > 0


def find_version(connection: Connection, function_id: str, number: int) -> VersionRecord | None:
    """Return a version; None if there is none."""
    query = select(VERSIONS).where(VERSIONS.c.function_id == function_id, VERSIONS.c.number == number)
    return find(connection, query, _version)


def newest_number(connection: Connection, function_id: str) -> int:
    """Return the highest version number of a function; 0 without versions."""
    query = select(func.max(VERSIONS.c.number)).where(VERSIONS.c.function_id == function_id)
    return int(connection.execute(query).scalar_one() or 0)


def list_versions(connection: Connection, function_id: str, after: int, limit: int) -> tuple[VersionRecord, ...]:
    """Return a function's versions with numbers above ``after``, in order."""
    query = select(VERSIONS).where(VERSIONS.c.function_id == function_id, VERSIONS.c.number > after)
    return tuple(map(_version, connection.execute(query.order_by(VERSIONS.c.number).limit(limit))))


def list_modules(connection: Connection, tenant: int) -> frozenset[tuple[str, bytes]]:
    """Return function and module of each version of a tenant."""
    query = (
        select(VERSIONS.c.function_id, VERSIONS.c.module)
        .join(FUNCTIONS, FUNCTIONS.c.id == VERSIONS.c.function_id)
        .where(FUNCTIONS.c.tenant == str(tenant))
    )
    return frozenset((function_id, bytes(module)) for function_id, module in connection.execute(query))


def put_alias(connection: Connection, record: AliasRecord) -> None:
    """Write an alias, new or changed. The caller has locked the function."""
    row, where = encode(record), _is_alias(record.function_id, record.alias)
    if connection.execute(update(ALIASES).where(*where).values(row)).rowcount == 0:
        connection.execute(insert(ALIASES).values(row))


def find_alias(connection: Connection, function_id: str, alias: str) -> AliasRecord | None:
    """Return an alias; None if there is none."""
    return find(connection, select(ALIASES).where(*_is_alias(function_id, alias)), _alias)


def list_aliases(connection: Connection, function_id: str) -> tuple[AliasRecord, ...]:
    """Return a function's aliases, by name."""
    query = select(ALIASES).where(ALIASES.c.function_id == function_id).order_by(ALIASES.c.alias)
    return tuple(map(_alias, connection.execute(query)))


def delete_alias(connection: Connection, function_id: str, alias: str) -> bool:
    """Delete an alias, and return whether it existed."""
    return connection.execute(delete(ALIASES).where(*_is_alias(function_id, alias))).rowcount > 0


def _is_alias(function_id: str, alias: str) -> tuple[ColumnElement[bool], ...]:
    return ALIASES.c.function_id == function_id, ALIASES.c.alias == alias


def _options(row: Row[Any]) -> FunctionOptions:
    return _decode_options(row.options)


def _version(row: Row[Any]) -> VersionRecord:
    return decode(VersionRecord, row, options=_options(row))
