"""Functions, their versions, and the aliases that lead to versions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from sqlalchemy import Connection, Row, delete, func, insert, select, tuple_, update

from tensorwasm.database.schema import ALIASES, FUNCTIONS, VERSIONS
from tensorwasm.values import MemoryKind


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionOptions:
    """How a version of a function is run.

    Attributes:
        grants: what its guests may use; ``cuda`` is all there is here.
        memory_mib: most linear memory in MiB; None for as much as the operator allows.
        timeout_s: longest that an invocation may take; None for the operator's usual time.
        memory_kind: how kernels reach linear memory; None for the operator's choice.
        warm: sandboxes kept ready.
        env: environment that its guests find through WASI, besides what an invocation brings.
        model: whether clients of OpenAI's API may use it as a model.
    """

    grants: tuple[str, ...] = ()
    memory_mib: int | None = None
    timeout_s: float | None = None
    memory_kind: MemoryKind | None = None
    warm: int = 0
    env: tuple[tuple[str, str], ...] = ()
    model: bool = False


@dataclass(frozen=True, slots=True)
class FunctionRecord:
    """A function.

    Attributes:
        id: UUID.
        tenant: whose it is.
        name: for people, and the model's name on the OpenAI routes; several functions may have the same.
        current: number of the version that is called unless another is named.
        created_unix_ms: when it was deployed.
        updated_unix_ms: when it got its current version or name.
    """

    id: str
    tenant: int
    name: str
    current: int
    created_unix_ms: int
    updated_unix_ms: int

    @property
    def cursor(self) -> str:
        """What `list_functions` goes on after."""
        return f"{self.created_unix_ms}.{self.id}"


@dataclass(frozen=True, slots=True)
class VersionRecord:
    """A version of a function; it never changes.

    Attributes:
        function_id: UUID.
        number: from 1 on.
        module: BLAKE3 of its module, 32 bytes.
        module_bytes: the module's length.
        options: how it is run.
        created_unix_ms: when it was made.
    """

    function_id: str
    number: int
    module: bytes
    module_bytes: int
    options: FunctionOptions
    created_unix_ms: int


@dataclass(frozen=True, slots=True)
class AliasRecord:
    """A name that leads to a version.

    Attributes:
        function_id: UUID.
        alias: the name.
        number: the version's.
        updated_unix_ms: since when.
    """

    function_id: str
    alias: str
    number: int
    updated_unix_ms: int


def insert_function(connection: Connection, record: FunctionRecord, version: VersionRecord) -> None:
    """Add a function with its first version."""
    connection.execute(
        insert(FUNCTIONS).values(
            id=record.id,
            tenant=str(record.tenant),
            name=record.name,
            current=record.current,
            created_unix_ms=record.created_unix_ms,
            updated_unix_ms=record.updated_unix_ms,
        )
    )
    insert_version(connection, version)


def insert_version(connection: Connection, version: VersionRecord) -> None:
    """Add a version of a function that is there."""
    connection.execute(
        insert(VERSIONS).values(
            function_id=version.function_id,
            number=version.number,
            module=version.module,
            module_bytes=version.module_bytes,
            options=msgspec.json.encode(version.options).decode(),
            created_unix_ms=version.created_unix_ms,
        )
    )


def lock_function(connection: Connection, function_id: str) -> FunctionRecord | None:
    """Return a function that nobody else changes until the transaction ends, None if there is none."""
    found = connection.execute(select(FUNCTIONS).where(FUNCTIONS.c.id == function_id).with_for_update()).first()
    return None if found is None else _function(found)


def find_function(connection: Connection, function_id: str) -> FunctionRecord | None:
    """Return a function, whoever's it is; None if there is none."""
    found = connection.execute(select(FUNCTIONS).where(FUNCTIONS.c.id == function_id)).first()
    return None if found is None else _function(found)


def lock_name(connection: Connection, tenant: int, name: str) -> None:
    """Keep other transactions that lock the same name of a tenant waiting until this one ends.

    SQLite has one writer at a time in any case. Source: PostgreSQL, "Advisory Locks".
    """
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(f"{tenant} {name}", 0))))


def find_named(connection: Connection, tenant: int, name: str) -> FunctionRecord | None:
    """Return the newest of a tenant's functions of that name, None if there is none."""
    query = (
        select(FUNCTIONS)
        .where(FUNCTIONS.c.tenant == str(tenant), FUNCTIONS.c.name == name)
        .order_by(FUNCTIONS.c.created_unix_ms.desc(), FUNCTIONS.c.id.desc())
        .limit(1)
    )
    found = connection.execute(query).first()
    return None if found is None else _function(found)


def list_functions(
    connection: Connection, tenant: int, after: tuple[int, str] | None, limit: int
) -> tuple[FunctionRecord, ...]:
    """Return a tenant's functions, oldest first.

    Args:
        connection: to the database.
        tenant: whose.
        after: time and ID of the last one that was seen, there any more or not; None begins.
        limit: most of them.
    """
    place = tuple_(FUNCTIONS.c.created_unix_ms, FUNCTIONS.c.id)
    query = select(FUNCTIONS).where(FUNCTIONS.c.tenant == str(tenant)).order_by(*place).limit(limit)
    if after is not None:
        query = query.where(place > tuple_(*after))
    return tuple(_function(row) for row in connection.execute(query))


def list_current(connection: Connection, tenant: int, limit: int) -> tuple[tuple[FunctionRecord, FunctionOptions], ...]:
    """Return the newest of a tenant's functions, newest first, each with its current version's options."""
    current = (VERSIONS.c.function_id == FUNCTIONS.c.id) & (VERSIONS.c.number == FUNCTIONS.c.current)
    query = (
        select(FUNCTIONS, VERSIONS.c.options)
        .join(VERSIONS, current)
        .where(FUNCTIONS.c.tenant == str(tenant))
        .order_by(FUNCTIONS.c.created_unix_ms.desc(), FUNCTIONS.c.id.desc())
        .limit(limit)
    )
    return tuple((_function(row), _options(row)) for row in connection.execute(query))


def set_current(connection: Connection, record: FunctionRecord) -> None:
    """Write a function's name and current version, and when they were changed."""
    connection.execute(
        update(FUNCTIONS)
        .where(FUNCTIONS.c.id == record.id)
        .values(name=record.name, current=record.current, updated_unix_ms=record.updated_unix_ms)
    )


def delete_function(connection: Connection, function_id: str) -> bool:
    """Take a function away with its versions and aliases; return whether it was there."""
    for table in (ALIASES, VERSIONS):
        connection.execute(delete(table).where(table.c.function_id == function_id))
    return connection.execute(delete(FUNCTIONS).where(FUNCTIONS.c.id == function_id)).rowcount > 0


def find_version(connection: Connection, function_id: str, number: int) -> VersionRecord | None:
    """Return a version, None if there is none."""
    query = select(VERSIONS).where(VERSIONS.c.function_id == function_id, VERSIONS.c.number == number)
    found = connection.execute(query).first()
    return None if found is None else _version(found)


def newest_number(connection: Connection, function_id: str) -> int:
    """Return the highest number of a function's versions, 0 without any."""
    query = select(func.max(VERSIONS.c.number)).where(VERSIONS.c.function_id == function_id)
    return int(connection.execute(query).scalar_one() or 0)


def list_versions(connection: Connection, function_id: str, after: int, limit: int) -> tuple[VersionRecord, ...]:
    """Return a function's versions with higher numbers than one, in order."""
    query = (
        select(VERSIONS)
        .where(VERSIONS.c.function_id == function_id, VERSIONS.c.number > after)
        .order_by(VERSIONS.c.number)
        .limit(limit)
    )
    return tuple(_version(row) for row in connection.execute(query))


def list_modules(connection: Connection, tenant: int) -> frozenset[tuple[str, bytes]]:
    """Return function and module of every version that a tenant has."""
    query = (
        select(VERSIONS.c.function_id, VERSIONS.c.module)
        .join(FUNCTIONS, FUNCTIONS.c.id == VERSIONS.c.function_id)
        .where(FUNCTIONS.c.tenant == str(tenant))
    )
    return frozenset((function_id, bytes(module)) for function_id, module in connection.execute(query))


def put_alias(connection: Connection, record: AliasRecord) -> None:
    """Let an alias lead to a version, wherever it led before. The function is locked."""
    where = (ALIASES.c.function_id == record.function_id, ALIASES.c.alias == record.alias)
    values = {"number": record.number, "updated_unix_ms": record.updated_unix_ms}
    if connection.execute(update(ALIASES).where(*where).values(values)).rowcount == 0:
        names = {"function_id": record.function_id, "alias": record.alias}
        connection.execute(insert(ALIASES).values(names | values))


def find_alias(connection: Connection, function_id: str, alias: str) -> AliasRecord | None:
    """Return an alias, None if there is none."""
    query = select(ALIASES).where(ALIASES.c.function_id == function_id, ALIASES.c.alias == alias)
    found = connection.execute(query).first()
    return None if found is None else AliasRecord(*found)


def list_aliases(connection: Connection, function_id: str) -> tuple[AliasRecord, ...]:
    """Return a function's aliases, by name."""
    query = select(ALIASES).where(ALIASES.c.function_id == function_id).order_by(ALIASES.c.alias)
    return tuple(AliasRecord(*row) for row in connection.execute(query))


def delete_alias(connection: Connection, function_id: str, alias: str) -> bool:
    """Take an alias away; return whether it was there."""
    where = (ALIASES.c.function_id == function_id, ALIASES.c.alias == alias)
    return connection.execute(delete(ALIASES).where(*where)).rowcount > 0


def _function(row: Row[Any]) -> FunctionRecord:
    return FunctionRecord(row.id, int(row.tenant), row.name, row.current, row.created_unix_ms, row.updated_unix_ms)


def _options(row: Row[Any]) -> FunctionOptions:
    return msgspec.json.decode(row.options, type=FunctionOptions)


def _version(row: Row[Any]) -> VersionRecord:
    return VersionRecord(
        row.function_id, row.number, bytes(row.module), row.module_bytes, _options(row), row.created_unix_ms
    )
