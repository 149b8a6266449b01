"""`Functions`: the functions that tenants have deployed, their immutable versions, and aliases of versions.

A deploy is atomic: the module is compiled before it is stored, stored and named before the row is written, and the row
is one transaction. `Functions.tidy` removes what a deploy that failed in between has left.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Concatenate, Final, Literal, ParamSpec, TypeVar, cast

from tensorwasm.artifacts.hashing import blake3
from tensorwasm.database import Connection
from tensorwasm.database import functions as queries
from tensorwasm.database.engine.executor import DatabaseExecutor
from tensorwasm.database.functions import AliasRecord, FunctionOptions, FunctionRecord, VersionRecord
from tensorwasm.errors import CompileTimeout, Conflict, NotFound
from tensorwasm.service.functions import records
from tensorwasm.service.functions.checks import (
    DEFAULT_OPTIONS,
    Ceilings,
    Reference,
    checked_alias,
    checked_name,
    is_id,
    parse_reference,
)
from tensorwasm.service.functions.loading import (
    Gone,
    LoadedFunction,
    Loader,
    LoadKey,
    ResolutionCache,
    Resolved,
    cancel_when_gone,
)
from tensorwasm.service.functions.modules import Modules
from tensorwasm.service.functions.records import Note
from tensorwasm.service.idempotency import Repeated
from tensorwasm.service.pages import checked_limit, parse_cursor
from tensorwasm.tenancy.quotas import unix_ms
from tensorwasm.values import NEVER, Deadline

TRIES: Final = 16
"""Most attempts of an update that conflicts with concurrent ones."""

IfExists = Literal["new_function", "new_version", "refuse"]
"""What a deploy does if the tenant has a function of the name: make another, add a version, or raise `Conflict`."""

P = ParamSpec("P")
T = TypeVar("T")


class Functions:
    """Functions of all tenants. For one event loop, which it never blocks.

    Functions are given by ID or name; of several of one name the newest is meant. Every method raises NotFound if the
    tenant has no such function, version or alias. Resolved references are cached until this process changes the
    function; changes by other processes of the same database are seen after `ttl_s` at the latest.

    Args:
        database: where functions are.
        modules: where their modules are.
        loader: compiles and loads them.
        ceilings: the operator's limits.
        ttl_s: how long a resolved reference is cached; None for as long as this process does not change it.
        now_unix_ms: the clock.

    Attributes:
        find: returns what a tenant's reference is cached to lead to; None if `resolve` must look it up.
        tell: is awaited with what `forget` takes before a change is acknowledged; None for nothing.
    """

    def __init__(
        self,
        database: DatabaseExecutor,
        modules: Modules,
        loader: Loader,
        ceilings: Ceilings,
        *,
        ttl_s: float | None = None,
        now_unix_ms: Callable[[], int] = unix_ms,
    ) -> None:
        self.modules = modules
        self.loader = loader
        self._database = database
        self._ceilings = ceilings
        self._ttl_s = ttl_s
        self._now_unix_ms = now_unix_ms
        self._cache = ResolutionCache()
        self.find = self._cache.find
        self.tell: Callable[[Sequence[str], Sequence[tuple[int, str]]], Awaitable[None]] | None = None

    # ---------------------------------------------------------------- deploying

    async def deploy(
        self,
        tenant: int,
        name: str,
        module: bytes | str,
        options: FunctionOptions | None = None,
        *,
        function_id: str | None = None,
        if_exists: IfExists = "new_function",
        note: Note | None = None,
        gone: Gone | None = None,
    ) -> FunctionRecord:
        """Make a function with its version 1, or a new version of an existing function.

        Args:
            tenant: its owner.
            name: need not be unique.
            module: a Wasm module, an OCI image layout with one, or ``blake3:HEX`` of a module that the tenant has.
            options: None takes the defaults, or for a new version those of the current one.
            function_id: an unused UUID; None makes one.
            if_exists: what to do if the tenant has a function of that name.
            note: writes more in the same transaction; if it raises, nothing is made.
            gone: returns when the caller has left, which cancels the compilation.

        Raises:
            InvalidName: the name is invalid.
            InvalidArgs: an option is out of range.
            InvalidWasm: the module is invalid.
            Conflict: a function of that ID exists, or of that name where that is refused.
            QuotaExceeded: the module exceeds the tenant's quota.
            TensorWasmError: other errors of `note`, `Modules.read`, `Runtime.load`, `Store.put` and the database.
        """
        insert = partial(self._insert, tenant, checked_name(name), module, options, function_id, note, gone)
        if if_exists == "new_function":
            return cast("FunctionRecord", await insert(unique=False))
        for _ in range(TRIES):
            existing = await self._database.read(queries.find_named, tenant, name)
            if existing is None:
                made = await insert(unique=True)
                if made is not None:
                    return made
            elif if_exists == "refuse":
                raise Conflict("there is a function of that name")
            else:
                try:
                    return await self.update(tenant, existing.id, module=module, options=options, note=note, gone=gone)
                except NotFound:
                    if await self._database.read(queries.find_function, existing.id) is not None:
                        raise  # it is the module that was not found
        raise Conflict("the function is being deployed concurrently: try again")

    async def _insert(
        self,
        tenant: int,
        name: str,
        module: bytes | str,
        options: FunctionOptions | None,
        function_id: str | None,
        note: Note | None,
        gone: Gone | None,
        *,
        unique: bool,
    ) -> FunctionRecord | None:
        """Make a function; return None if its name must be unique and is not."""
        function_id, options, now = function_id or str(uuid.uuid4()), options or DEFAULT_OPTIONS, self._now_unix_ms()
        digest, size_bytes = await self._admit(tenant, function_id, name, module, options, gone)
        record = FunctionRecord(function_id, tenant, name, 1, now, now)
        version = VersionRecord(function_id, 1, digest, size_bytes, options, now)
        try:
            added = await self._change((), [(tenant, name)], records.insert, record, version, note, unique=unique)
        except Repeated:
            await self.modules.run(self.modules.release, tenant, function_id)
            raise
        if not added:
            await self.modules.run(self.modules.release, tenant, function_id)
            return None
        return record

    async def update(
        self,
        tenant: int,
        function: str,
        *,
        module: bytes | str | None = None,
        options: FunctionOptions | None = None,
        name: str | None = None,
        note: Note | None = None,
        gone: Gone | None = None,
    ) -> FunctionRecord:
        """Add a version, which becomes the current one, or rename the function, or both. Takes what `deploy` takes.

        What is None is taken from the version right before: of two concurrent updates, one of the module and one of the
        options, neither is lost.

        Raises:
            Conflict: it has the most versions that are allowed, or concurrent changes do not end.
            TensorWasmError: other errors of `deploy`.
        """
        for _ in range(TRIES):
            before = await self.get(tenant, function)
            wanted = checked_name(before.name if name is None else name)
            made, derived = None, None
            if module is not None or options is not None:
                made = await self._derive(tenant, before, wanted, module, options, gone)
                derived = before.current if module is None or options is None else None
            now = self._now_unix_ms()
            changed = await self._change(
                [before.id], [(tenant, wanted)], records.update, tenant, before.id, made, name, now, derived, note
            )
            if changed is not None:
                return changed
        raise Conflict("the function is being changed concurrently: try again")

    async def _derive(
        self,
        tenant: int,
        before: FunctionRecord,
        name: str,
        module: bytes | str | None,
        options: FunctionOptions | None,
        gone: Gone | None,
    ) -> VersionRecord:
        """Admit a version that takes what is None from the current one; it has no number yet."""
        current = await self.version(tenant, before.id, before.current)
        options = current.options if options is None else options
        if module is None:
            module = await self.modules.run(self.modules.fetch, tenant, current.module)
        digest, size_bytes = await self._admit(tenant, before.id, name, module, options, gone)
        return VersionRecord(before.id, 0, digest, size_bytes, options, self._now_unix_ms())

    async def promote(self, tenant: int, function: str, number: int) -> FunctionRecord:
        """Make a version the current one."""
        function_id = await self._identify(tenant, function)
        return await self._change([function_id], (), records.promote, tenant, function_id, number, self._now_unix_ms())

    async def delete(self, tenant: int, function: str) -> None:
        """Delete a function with its versions and aliases; running calls continue."""
        function_id = await self._identify(tenant, function)
        await self._change([function_id], (), records.delete, tenant, function_id)
        await self.modules.run(self.modules.release, tenant, function_id)

    # ---------------------------------------------------------------- reading

    async def get(self, tenant: int, function: str) -> FunctionRecord:
        """Return a function."""
        return await self._database.read(records.get, tenant, function)

    async def list(self, tenant: int, after: str | None = None, limit: int = 100) -> tuple[FunctionRecord, ...]:
        """Return a tenant's functions, oldest first, after a `FunctionRecord.cursor`; InvalidRequest as in `pages`."""
        return await self._database.read(queries.list_functions, tenant, parse_cursor(after), checked_limit(limit))

    async def newest(self, tenant: int, limit: int) -> tuple[tuple[FunctionRecord, FunctionOptions], ...]:
        """Return a tenant's functions with the options of their current versions, newest first."""
        return await self._database.read(queries.list_current, tenant, limit)

    async def version(self, tenant: int, function: str, number: int) -> VersionRecord:
        """Return a version."""
        return (await self._database.read(records.resolve, tenant, (Reference(function, number, ""),)))[1]

    async def versions(self, tenant: int, function: str, after: int = 0, limit: int = 100) -> tuple[VersionRecord, ...]:
        """Return a function's versions with numbers above `after`, in order; InvalidRequest as in `checked_limit`."""
        return await self._database.read(records.list_versions, tenant, function, after, checked_limit(limit))

    async def aliases(self, tenant: int, function: str) -> tuple[AliasRecord, ...]:
        """Return a function's aliases, by name."""
        return await self._database.read(records.list_aliases, tenant, function)

    async def set_alias(self, tenant: int, function: str, alias: str, number: int) -> AliasRecord:
        """Make an alias refer to a version; raise InvalidName, or Conflict if the function has too many aliases."""
        function_id = await self._identify(tenant, function)
        record = AliasRecord(function_id, checked_alias(alias), number, self._now_unix_ms())
        return await self._change([function_id], (), records.set_alias, tenant, record)

    async def delete_alias(self, tenant: int, function: str, alias: str) -> None:
        """Delete an alias."""
        function_id = await self._identify(tenant, function)
        await self._change([function_id], (), records.delete_alias, tenant, function_id, alias)

    # ---------------------------------------------------------------- calling

    async def resolve(self, tenant: int, reference: str, deadline: Deadline = NEVER) -> Resolved:
        """Return the loaded version of ``FUNCTION``, ``FUNCTION@VERSION`` or ``FUNCTION@ALIAS``.

        It is cached even if the deadline passes meanwhile.

        Raises:
            CompileTimeout: the deadline passed while the function was compiled or loaded.
            TensorWasmError: other errors of the store and `Runtime.load`.
        """
        found = self.find(tenant, reference)
        if found is not None:
            return found
        changes, late = self._cache.changes, deadline.expired()
        record, version = await self._database.read(records.resolve, tenant, parse_reference(reference))
        options, in_worker = version.options, version.options.in_worker
        loaded = await self._load(tenant, record.name, version)
        resolved = Resolved(
            reference=reference,
            record=record,
            version=version,
            function=loaded.function,
            module=loaded.module,
            limits=loaded.function.host.limits,
            tenant=str(record.tenant),
            cuda="cuda" in options.grants,
            on_device=options.on_device,
            in_worker=in_worker,
            may_begin_here=not in_worker and not options.warm,
            default_ns=int((options.timeout_s or self._ceilings.limits.wall_s) * 1e9),
            until_ns=float("inf") if self._ttl_s is None else time.monotonic_ns() + self._ttl_s * 1e9,
        )
        self._cache.put(resolved, changes)
        if not late and deadline.expired():
            raise CompileTimeout("the deadline passed while the module was being compiled or loaded: try again")
        return resolved

    # ---------------------------------------------------------------- maintenance and helpers

    async def tidy(self) -> tuple[int, int]:
        """Remove what failed deploys left, and unused modules; return how many names were removed, and were missing."""
        stale = missing = 0
        for text in await self.modules.run(self.modules.tenants):
            if not text.isdecimal():
                continue
            now_ns = self._now_unix_ms() * 1_000_000
            wanted = await self._database.read(queries.list_modules, int(text))
            found = await self.modules.run(self.modules.tidy, int(text), wanted, now_ns)
            stale, missing = stale + found[0], missing + found[1]
        await self.modules.run(self.modules.collect)
        return stale, missing

    async def _admit(
        self, tenant: int, function_id: str, name: str, source: bytes | str, options: FunctionOptions, gone: Gone | None
    ) -> tuple[bytes, int]:
        """Compile a module and store it; return its hash and length."""
        self._ceilings.check(options)
        module = await self.modules.read(tenant, source, self._ceilings.limits.module_bytes)
        digest = await self.modules.run(blake3, module)
        await cancel_when_gone(self.loader.load(self._key(tenant, name, digest, options), lambda: module), gone)
        return await self.modules.run(self.modules.keep, tenant, function_id, module), len(module)

    async def _load(self, tenant: int, name: str, version: VersionRecord) -> LoadedFunction:
        key = self._key(tenant, name, version.module, version.options)
        return await self.loader.load(key, partial(self.modules.fetch, tenant, version.module))

    def _key(self, tenant: int, name: str, digest: bytes, options: FunctionOptions) -> LoadKey:
        limits = self._ceilings.limits_of(options)
        env = options.env if options.warm else ()
        return LoadKey(tenant, digest, limits, name, env, options.warm, options.in_worker, options.on_device)

    async def _identify(self, tenant: int, function: str) -> str:
        """Return the ID of a function that is given by ID or name."""
        return function if is_id(function) else (await self.get(tenant, function)).id

    async def _change(
        self,
        functions: Sequence[str],
        names: Sequence[tuple[int, str]],
        write: Callable[Concatenate[Connection, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Write to the database, and then forget what may have changed, as `forget`, even if the caller has left."""

        async def change() -> T:
            try:
                return await self._database.write(write, *args, **kwargs)
            finally:
                self.forget(functions, names)
                if self.tell is not None:
                    await self.tell(functions, names)

        task = asyncio.ensure_future(change())
        task.add_done_callback(_retrieve)
        return await asyncio.shield(task)

    def forget(self, functions: Sequence[str], names: Sequence[tuple[int, str]]) -> None:
        """Forget the resolved references to functions by their IDs, and those with the names of tenants' functions."""
        for function_id in functions:
            self._cache.forget(function_id)
        for tenant, name in names:
            self._cache.forget_name(tenant, name)

    def forget_all(self) -> None:
        """Forget all resolved references."""
        self._cache.clear()


def _retrieve(done: asyncio.Future[Any]) -> None:
    """Mark a result as retrieved: the caller may have left."""
    if not done.cancelled():
        done.exception()
