"""What is read and written of functions in one transaction, with the rules that hold between the rows.

Every function here looks at the function first, and raises `NotFound` if there is none and `TenantScopeDenied` if it is
another tenant's. Nothing is written then, nor after anything else is raised.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tensorwasm.database import functions as queries
from tensorwasm.database.connection import Connection
from tensorwasm.database.functions import AliasRecord, FunctionRecord, VersionRecord
from tensorwasm.errors import Conflict, NotFound
from tensorwasm.service.names import Reference
from tensorwasm.tenancy.principal import require_owner

MAX_VERSIONS: Final = 10_000
MAX_ALIASES: Final = 256


def get(connection: Connection, tenant: int, function_id: str) -> FunctionRecord:
    """Return a tenant's function."""
    return _checked(queries.find_function(connection, function_id), tenant)


def lead(connection: Connection, tenant: int, reference: Reference) -> tuple[FunctionRecord, VersionRecord]:
    """Return what a reference leads to.

    Raises:
        NotFound: there is no such version or alias either.
    """
    record, number = get(connection, tenant, reference.function_id), reference.number
    if reference.alias:
        alias = queries.find_alias(connection, record.id, reference.alias)
        if alias is None:
            raise NotFound("there is no such alias of this function")
        number = alias.number
    return record, _require_version(connection, record.id, record.current if number is None else number)


def insert(connection: Connection, record: FunctionRecord, version: VersionRecord) -> None:
    """Add a function with its first version.

    Raises:
        Conflict: there is one of that ID, whoever's it is.
    """
    if queries.find_function(connection, record.id) is not None:
        raise Conflict("there is a function of that ID")
    queries.insert_function(connection, record, version)


def update(
    connection: Connection,
    tenant: int,
    function_id: str,
    made: VersionRecord | None,
    name: str | None,
    now_ms: int,
    derived: int | None = None,
) -> FunctionRecord | None:
    """Give a function a new version, whose number is found here, or another name, or both.

    Returns:
        The function as it is now; None if nothing was changed, for ``derived`` is not its current version any more.

    Raises:
        Conflict: it has as many versions as there can be.
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
    return after


def promote(connection: Connection, tenant: int, function_id: str, number: int, now_ms: int) -> FunctionRecord:
    """Make a version the current one.

    Raises:
        NotFound: there is no such version either.
    """
    before = _lock(connection, tenant, function_id)
    _require_version(connection, function_id, number)
    after = replace(before, current=number, updated_unix_ms=now_ms)
    queries.set_current(connection, after)
    return after


def delete(connection: Connection, tenant: int, function_id: str) -> None:
    """Take a function away, with versions and aliases."""
    _lock(connection, tenant, function_id)
    queries.delete_function(connection, function_id)


def list_versions(
    connection: Connection, tenant: int, function_id: str, after: int, limit: int
) -> tuple[VersionRecord, ...]:
    """Return a function's versions with higher numbers than one, in order."""
    return queries.list_versions(connection, get(connection, tenant, function_id).id, after, limit)


def list_aliases(connection: Connection, tenant: int, function_id: str) -> tuple[AliasRecord, ...]:
    """Return a function's aliases, by name."""
    return queries.list_aliases(connection, get(connection, tenant, function_id).id)


def set_alias(connection: Connection, tenant: int, record: AliasRecord) -> AliasRecord:
    """Let an alias lead to a version.

    Raises:
        NotFound: there is no such version either.
        Conflict: the function has as many aliases as there can be.
    """
    _lock(connection, tenant, record.function_id)
    _require_version(connection, record.function_id, record.number)
    there = {each.alias for each in queries.list_aliases(connection, record.function_id)}
    if len(there | {record.alias}) > MAX_ALIASES:
        raise Conflict(f"a function has at most {MAX_ALIASES} aliases")
    queries.put_alias(connection, record)
    return record


def delete_alias(connection: Connection, tenant: int, function_id: str, alias: str) -> None:
    """Take an alias away.

    Raises:
        NotFound: there is no such alias either.
    """
    _lock(connection, tenant, function_id)
    if not queries.delete_alias(connection, function_id, alias):
        raise NotFound("there is no such alias of this function")


def _lock(connection: Connection, tenant: int, function_id: str) -> FunctionRecord:
    """Return a tenant's function, which nobody else changes until the transaction ends."""
    return _checked(queries.lock_function(connection, function_id), tenant)


def _checked(found: FunctionRecord | None, tenant: int) -> FunctionRecord:
    if found is None:
        raise NotFound("there is no such function")
    require_owner(found.tenant, tenant)
    return found


def _require_version(connection: Connection, function_id: str, number: int) -> VersionRecord:
    found = queries.find_version(connection, function_id, number)
    if found is None:
        raise NotFound("there is no such version of this function")
    return found
