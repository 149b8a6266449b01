"""Transactions on functions, with the rules that hold between their rows.

Each raises `NotFound` if the tenant has no such function, version or alias. Whatever is raised, nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final

from tensorwasm.database import Connection
from tensorwasm.database import functions as queries
from tensorwasm.database.functions import AliasRecord, FunctionRecord, VersionRecord
from tensorwasm.errors import Conflict, NotFound
from tensorwasm.service.functions.checks import Reference, is_id
from tensorwasm.tenancy.principal import require_owned

MAX_VERSIONS: Final = 10_000
MAX_ALIASES: Final = 256

Note = Callable[[Connection, str], None]
"""Given the function's ID, writes more in the transaction that makes a function or version; may raise to undo it."""


def get(connection: Connection, tenant: int, function: str) -> FunctionRecord:
    """Return a tenant's function by its ID, or the newest by its name."""
    if is_id(function):
        return require_owned(queries.find_function(connection, function), tenant, "function")
    return require_owned(queries.find_named(connection, tenant, function), tenant, "function")


def resolve(
    connection: Connection, tenant: int, references: tuple[Reference, ...]
) -> tuple[FunctionRecord, VersionRecord]:
    """Return the version of the first reference whose function exists."""
    *others, last = references
    for reference in others:
        with suppress(NotFound):
            return _resolve(connection, get(connection, tenant, reference.function), reference)
    return _resolve(connection, get(connection, tenant, last.function), last)


def _resolve(
    connection: Connection, record: FunctionRecord, reference: Reference
) -> tuple[FunctionRecord, VersionRecord]:
    number = record.current if reference.number is None else reference.number
    if reference.alias:
        alias = queries.find_alias(connection, record.id, reference.alias)
        if alias is None:
            raise NotFound("there is no such alias of this function")
        number = alias.number
    return record, _require_version(connection, record.id, number)


def insert(
    connection: Connection,
    record: FunctionRecord,
    version: VersionRecord,
    note: Note | None = None,
    *,
    unique: bool = False,
) -> bool:
    """Add a function with its first version, and call `note`; return whether it was added.

    With `unique` it is not added if the tenant has a function of its name. Raise Conflict if its ID is used by any
    tenant.
    """
    if unique:
        queries.lock_name(connection, record.tenant, record.name)
        if queries.find_named(connection, record.tenant, record.name) is not None:
            return False
    if queries.find_function(connection, record.id) is not None:
        raise Conflict("there is a function of that ID")
    queries.insert_function(connection, record, version)
    if note is not None:
        note(connection, record.id)
    return True


def update(
    connection: Connection,
    tenant: int,
    function_id: str,
    made: VersionRecord | None,
    name: str | None,
    now_ms: int,
    derived: int | None = None,
    note: Note | None = None,
) -> FunctionRecord | None:
    """Add a version, which gets its number here, or rename the function, or both; return the changed function.

    If ``derived`` is given and no longer its current version, nothing is changed and None returned. Raise Conflict if
    it has the most versions that are allowed.
    """
    before = _lock(connection, tenant, function_id)
    current = before.current
    if derived is not None and derived != current:
        return None
    if made is not None:
        current = queries.newest_number(connection, function_id) + 1
        if current > MAX_VERSIONS:
            raise Conflict(f"a function has at most {MAX_VERSIONS} versions")
        queries.insert_version(connection, replace(made, number=current))
    after = replace(before, name=before.name if name is None else name, current=current, updated_unix_ms=now_ms)
    queries.set_current(connection, after)
    if note is not None:
        note(connection, function_id)
    return after


def promote(connection: Connection, tenant: int, function_id: str, number: int, now_ms: int) -> FunctionRecord:
    """Make a version the current one."""
    before = _lock(connection, tenant, function_id)
    _require_version(connection, function_id, number)
    after = replace(before, current=number, updated_unix_ms=now_ms)
    queries.set_current(connection, after)
    return after


def delete(connection: Connection, tenant: int, function_id: str) -> None:
    """Delete a function with its versions and aliases."""
    _lock(connection, tenant, function_id)
    queries.delete_function(connection, function_id)


def list_versions(
    connection: Connection, tenant: int, function: str, after: int, limit: int
) -> tuple[VersionRecord, ...]:
    """Return a function's versions with numbers above `after`, in order."""
    return queries.list_versions(connection, get(connection, tenant, function).id, after, limit)


def list_aliases(connection: Connection, tenant: int, function: str) -> tuple[AliasRecord, ...]:
    """Return a function's aliases, by name."""
    return queries.list_aliases(connection, get(connection, tenant, function).id)


def set_alias(connection: Connection, tenant: int, record: AliasRecord) -> AliasRecord:
    """Make an alias refer to a version; raise Conflict if the function has the most aliases that are allowed."""
    _lock(connection, tenant, record.function_id)
    _require_version(connection, record.function_id, record.number)
    existing = {each.alias for each in queries.list_aliases(connection, record.function_id)}
    if len(existing | {record.alias}) > MAX_ALIASES:
        raise Conflict(f"a function has at most {MAX_ALIASES} aliases")
    queries.put_alias(connection, record)
    return record


def delete_alias(connection: Connection, tenant: int, function_id: str, alias: str) -> None:
    """Delete an alias."""
    _lock(connection, tenant, function_id)
    if not queries.delete_alias(connection, function_id, alias):
        raise NotFound("there is no such alias of this function")


def _lock(connection: Connection, tenant: int, function_id: str) -> FunctionRecord:
    """Return a tenant's function, locked until the transaction ends."""
    return require_owned(queries.lock_function(connection, function_id), tenant, "function")


def _require_version(connection: Connection, function_id: str, number: int) -> VersionRecord:
    found = queries.find_version(connection, function_id, number)
    if found is None:
        raise NotFound("there is no such version of this function")
    return found
