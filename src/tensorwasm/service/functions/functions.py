"""`Functions`: what tenants have deployed. A function has versions, which never change, and aliases that lead to them.

Nothing is half done: a module is compiled before it is stored, stored and named before the row is written, and the row
is one transaction. What is left of a deploy that failed in between, `Functions.tidy` takes away.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from functools import partial
from typing import Concatenate, Final, Literal, ParamSpec, TypeVar, cast

from tensorwasm.artifacts.hashing import blake3
from tensorwasm.database import Connection
from tensorwasm.database import functions as queries
from tensorwasm.database.engine.executor import DatabaseExecutor
from tensorwasm.database.functions import AliasRecord, FunctionOptions, FunctionRecord, VersionRecord
from tensorwasm.errors import CompileTimeout, Conflict, NotFound
from tensorwasm.service.functions import records
from tensorwasm.service.functions.loading import Gone, LoadedFunction, Loader, LoadKey, while_wanted
from tensorwasm.service.functions.modules import Modules
from tensorwasm.service.functions.names import Reference, checked_alias, checked_name, is_id, parse_reference
from tensorwasm.service.functions.options import USUAL, Ceilings
from tensorwasm.service.functions.resolution import ResolutionCache, Resolved
from tensorwasm.service.idempotency import Repeated
from tensorwasm.service.pages import checked_limit, parse_cursor
from tensorwasm.values import NEVER, Deadline

TRIES: Final = 16
"""How often an update is made anew that others came before."""

IfExists = Literal["new_function", "new_version", "refuse"]
"""What a deploy does where the tenant has a function of the name: make one more, give it a version, or `Conflict`."""

Note = Callable[[Connection, str], None]
"""Writes what belongs to a deploy, given the function's ID, in the transaction that makes function or version."""

P = ParamSpec("P")
T = TypeVar("T")


class Functions:
    """Functions of all tenants. For one event loop; nothing here holds it.

    What a reference leads to is remembered, and forgotten when this process changes the function. Changes that other
    processes make to the same database are seen after `ttl_s` at the latest.

    Args:
        desk: of the database.
        modules: where modules are kept.
        loader: loads them.
        ceilings: what the operator allows.
        ttl_s: how long a reference is remembered; None for as long as this process does not change it.
        now_unix_ms: the clock.
    """

    def __init__(
        self,
        desk: DatabaseExecutor,
        modules: Modules,
        loader: Loader,
        ceilings: Ceilings,
        *,
        ttl_s: float | None = None,
        now_unix_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """Remember nothing yet."""
        self.modules = modules
        self._desk = desk
        self._loader = loader
        self._ceilings = ceilings
        self._ttl_s = ttl_s
        self._now_unix_ms = now_unix_ms
        self._memory = ResolutionCache()

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
        """Make a function with its version 1, or a version of one that there is.

        Args:
            tenant: whose it is.
            name: for people, and to be called by.
            module: a module, an OCI image layout with one, or ``blake3:HEX`` for a module that the tenant has already.
            options: how it is run; None is as usual, and for a new version as the current one is.
            function_id: a UUID that was never used, None for one that is made now.
            if_exists: what is done where the tenant has a function of that name.
            note: writes more in the transaction that makes it; whatever it raises, nothing is made.
            gone: returns when the caller has left: what is not compiled by then is not deployed.

        Raises:
            InvalidName: it cannot be called that.
            InvalidArgs: an option is out of range.
            InvalidWasm: not a valid module.
            Conflict: there is a function of that ID, or of that name where that is to be refused.
            QuotaExceeded: the tenant has no room for the module.
            Repeated: a note found that this deploy was made before.
            TensorWasmError: what else `Modules.read`, `Runtime.load`, `Store.put` and the database raise.
        """
        checked_name(name)
        if if_exists == "new_function":
            made = await self._insert(tenant, name, module, options or USUAL, function_id, note, gone)
            return cast("FunctionRecord", made)
        for _ in range(TRIES):
            there = await self._desk.read(queries.find_named, tenant, name)
            if there is None:
                made = await self._insert(tenant, name, module, options or USUAL, function_id, note, gone, unique=True)
                if made is not None:
                    return made
            elif if_exists == "refuse":
                raise Conflict("there is a function of that name")
            else:
                try:
                    return await self.update(tenant, there.id, module=module, options=options, note=note, gone=gone)
                except NotFound:
                    if await self._desk.read(queries.find_function, there.id) is not None:
                        raise  # the module is what is not there
        raise Conflict("others deploy the same function all the time")

    async def _insert(
        self,
        tenant: int,
        name: str,
        module: bytes | str,
        options: FunctionOptions,
        function_id: str | None,
        note: Note | None,
        gone: Gone | None,
        *,
        unique: bool = False,
    ) -> FunctionRecord | None:
        """Make a function; None if it was to be the only one of its name, and is not."""
        identity, now = function_id or str(uuid.uuid4()), self._now_unix_ms()
        digest, size_bytes = await self._admit(tenant, identity, name, module, options, gone)
        record = FunctionRecord(identity, tenant, name, 1, now, now)
        version = VersionRecord(identity, 1, digest, size_bytes, options, now)
        added = False
        try:
            added = await self._desk.write(_insert, record, version, note, unique=unique)
        except Repeated:
            await self.modules.run(self.modules.release, tenant, identity)
            raise
        if not added:
            await self.modules.run(self.modules.release, tenant, identity)
            return None
        self._memory.forget_name(tenant, name)
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
        """Give a function a new version, which is its current one from now on, or another name, or both.

        What is kept of the current version is that of the version right before: of two updates that race, one of the
        module and one of the options, neither is lost.

        Args:
            tenant: whose it is.
            function: its ID or name.
            module: as in `deploy`; None keeps the current version's.
            options: None keeps the current version's.
            name: None keeps it.
            note: as in `deploy`.
            gone: likewise.

        Raises:
            NotFound: there is no such function, or it is another tenant's.
            Conflict: it has as many versions as there can be, or others change it all the time.
            TensorWasmError: what else `deploy` raises.
        """
        for _ in range(TRIES):
            before = await self.get(tenant, function)
            wanted = checked_name(before.name if name is None else name)
            made, derived = None, None
            if module is not None or options is not None:
                made = await self._derive(tenant, before, wanted, module, options, gone)
                derived = before.current if module is None or options is None else None
            now = self._now_unix_ms()
            changed = await self._change(before.id, _update, tenant, before.id, made, name, now, derived, note)
            if changed is not None:
                if changed.name != before.name:
                    self._memory.forget_name(tenant, changed.name)
                return changed
        raise Conflict("others change the function all the time")

    async def _derive(
        self,
        tenant: int,
        before: FunctionRecord,
        name: str,
        module: bytes | str | None,
        options: FunctionOptions | None,
        gone: Gone | None,
    ) -> VersionRecord:
        """Admit a version with what is given, and the rest as in the current one; it has no number yet."""
        current = await self.version(tenant, before.id, before.current)
        options = current.options if options is None else options
        if module is None:
            module = await self.modules.run(self.modules.fetch, tenant, current.module)
        digest, size_bytes = await self._admit(tenant, before.id, name, module, options, gone)
        return VersionRecord(before.id, 0, digest, size_bytes, options, self._now_unix_ms())

    async def promote(self, tenant: int, function: str, number: int) -> FunctionRecord:
        """Make a version the current one, such as an earlier one.

        Raises:
            NotFound: there is no such function, or no such version, or it is another tenant's.
        """
        function_id = await self._identify(tenant, function)
        return await self._change(function_id, records.promote, tenant, function_id, number, self._now_unix_ms())

    async def delete(self, tenant: int, function: str) -> None:
        """Take a function away, with versions and aliases; what runs goes on to its end.

        Raises:
            NotFound: there is no such function, or it is another tenant's.
        """
        function_id = await self._identify(tenant, function)
        await self._change(function_id, records.delete, tenant, function_id)
        await self.modules.run(self.modules.release, tenant, function_id)

    # ---------------------------------------------------------------- seeing

    async def get(self, tenant: int, function: str) -> FunctionRecord:
        """Return the function of that ID, or the tenant's newest of that name.

        Raises:
            NotFound: there is none, or it is another tenant's.
        """
        return await self._desk.read(records.get, tenant, function)

    async def list(self, tenant: int, after: str | None = None, limit: int = 100) -> tuple[FunctionRecord, ...]:
        """Return a tenant's functions, oldest first.

        Args:
            tenant: whose.
            after: `FunctionRecord.cursor` of the last one seen.
            limit: most of them, 1 to 1000.

        Raises:
            InvalidRequest: it is no cursor, or the limit is out of range.
        """
        return await self._desk.read(queries.list_functions, tenant, parse_cursor(after), checked_limit(limit))

    async def newest(self, tenant: int, limit: int) -> tuple[tuple[FunctionRecord, FunctionOptions], ...]:
        """Return a tenant's functions with the options of their current versions, newest first."""
        return await self._desk.read(queries.list_current, tenant, limit)

    async def version(self, tenant: int, function: str, number: int) -> VersionRecord:
        """Return a version.

        Raises:
            NotFound: there is no such function, or no such version, or it is another tenant's.
        """
        return (await self._desk.read(records.lead, tenant, (Reference(function, number, ""),)))[1]

    async def versions(self, tenant: int, function: str, after: int = 0, limit: int = 100) -> tuple[VersionRecord, ...]:
        """Return a function's versions with higher numbers than `after`, in order.

        Raises:
            NotFound: there is no such function, or it is another tenant's.
            InvalidRequest: the limit is not 1 to 1000.
        """
        return await self._desk.read(records.list_versions, tenant, function, after, checked_limit(limit))

    async def aliases(self, tenant: int, function: str) -> tuple[AliasRecord, ...]:
        """Return a function's aliases, by name.

        Raises:
            NotFound: there is no such function, or it is another tenant's.
        """
        return await self._desk.read(records.list_aliases, tenant, function)

    async def set_alias(self, tenant: int, function: str, alias: str, number: int) -> AliasRecord:
        """Let an alias lead to a version, wherever it led before.

        Raises:
            InvalidName: it cannot be called that.
            NotFound: there is no such function, or no such version, or it is another tenant's.
            Conflict: the function has as many aliases as there can be.
        """
        function_id = await self._identify(tenant, function)
        record = AliasRecord(function_id, checked_alias(alias), number, self._now_unix_ms())
        return await self._change(function_id, records.set_alias, tenant, record)

    async def delete_alias(self, tenant: int, function: str, alias: str) -> None:
        """Take an alias away.

        Raises:
            NotFound: there is no such function, or no such alias, or it is another tenant's.
        """
        function_id = await self._identify(tenant, function)
        await self._change(function_id, records.delete_alias, tenant, function_id, alias)

    # ---------------------------------------------------------------- calling

    def find(self, tenant: int, reference: str) -> Resolved | None:
        """Return what a reference is remembered to lead to, None if `resolve` has to find out."""
        return self._memory.find(tenant, reference)

    async def resolve(self, tenant: int, reference: str, deadline: Deadline = NEVER) -> Resolved:
        """Return what ``FUNCTION``, ``FUNCTION@VERSION`` or ``FUNCTION@ALIAS`` leads to, loaded.

        FUNCTION is an ID or a name; of several functions of one name the newest is meant.

        Args:
            tenant: who asks.
            reference: as above.
            deadline: of the call that it is loaded for. What is loaded is kept for later calls all the same.

        Raises:
            NotFound: there is no such function, version or alias, or it is another tenant's.
            CompileTimeout: the deadline passed meanwhile: none of that was the guest's time.
            TensorWasmError: what the store and `Runtime.load` raise.
        """
        found = self.find(tenant, reference)
        if found is not None:
            return found
        changes, late = self._memory.changes, deadline.expired()
        record, version = await self._desk.read(records.lead, tenant, parse_reference(reference))
        loaded = await self._load(tenant, record.name, version)
        resolved = self._describe(reference, record, version, loaded)
        self._memory.put(resolved, changes)
        if not late and deadline.expired():
            raise CompileTimeout("the deadline passed while the module was being compiled or loaded: try again")
        return resolved

    def _describe(
        self, reference: str, record: FunctionRecord, version: VersionRecord, loaded: LoadedFunction
    ) -> Resolved:
        options, limits = version.options, loaded.function.host.limits
        cuda = "cuda" in options.grants
        return Resolved(
            reference=reference,
            record=record,
            version=version,
            function=loaded.function,
            module=loaded.module,
            limits=limits,
            tenant=str(record.tenant),
            cuda=cuda,
            inline=not cuda and not options.warm,
            usual_ns=int((options.timeout_s or self._ceilings.usual_s) * 1e9),
            until_ns=float("inf") if self._ttl_s is None else time.monotonic_ns() + self._ttl_s * 1e9,
        )

    # ---------------------------------------------------------------- the rest

    async def tidy(self) -> tuple[int, int]:
        """Take away what deploys left that failed, and modules that nothing refers to.

        Returns:
            How many names of modules went, and how many were missing.

        Raises:
            TensorWasmError: what the database and the store raise.
        """
        stale = missing = 0
        for text in await self.modules.run(self.modules.tenants):
            if not text.isdecimal():
                continue
            now_ns = self._now_unix_ms() * 1_000_000
            wanted = await self._desk.read(queries.list_modules, int(text))
            found = await self.modules.run(self.modules.tidy, int(text), wanted, now_ns)
            stale, missing = stale + found[0], missing + found[1]
        await self.modules.run(self.modules.collect)
        return stale, missing

    async def _admit(
        self,
        tenant: int,
        function_id: str,
        name: str,
        source: bytes | str,
        options: FunctionOptions,
        gone: Gone | None,
    ) -> tuple[bytes, int]:
        """Compile a module and store it; return its hash and length."""
        self._ceilings.check(options)
        module = await self.modules.read(tenant, source, self._ceilings.limits.module_bytes)
        digest = await self.modules.run(blake3, module)
        await while_wanted(self._loader.load(self._key(tenant, name, digest, options), lambda: module), gone)
        kept = await self.modules.run(self.modules.keep, tenant, function_id, module)
        return kept, len(module)

    async def _load(self, tenant: int, name: str, version: VersionRecord) -> LoadedFunction:
        key = self._key(tenant, name, version.module, version.options)
        return await self._loader.load(key, partial(self.modules.fetch, tenant, version.module))

    def _key(self, tenant: int, name: str, digest: bytes, options: FunctionOptions) -> LoadKey:
        limits = self._ceilings.limits_of(options)
        env = options.env if options.warm else ()
        return LoadKey(tenant, digest, limits, name, env, options.warm, "cuda" in options.grants)

    async def _identify(self, tenant: int, function: str) -> str:
        """Return the ID of a function that is named by its ID or name."""
        return function if is_id(function) else (await self.get(tenant, function)).id

    async def _change(
        self, function_id: str, write: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Write, and forget what led to a function once that is done, even if its caller has left meanwhile."""

        def forget(done: asyncio.Future[T]) -> None:
            self._memory.forget(function_id)
            if not done.cancelled():
                done.exception()  # of which its caller, if there still is one, hears too

        task = asyncio.ensure_future(self._desk.write(write, *args, **kwargs))
        task.add_done_callback(forget)
        return await asyncio.shield(task)


def _insert(
    connection: Connection, record: FunctionRecord, version: VersionRecord, note: Note | None, *, unique: bool
) -> bool:
    added = records.insert(connection, record, version, unique=unique)
    if added and note is not None:
        note(connection, record.id)
    return added


def _update(
    connection: Connection,
    tenant: int,
    function_id: str,
    made: VersionRecord | None,
    name: str | None,
    now_ms: int,
    derived: int | None,
    note: Note | None,
) -> FunctionRecord | None:
    changed = records.update(connection, tenant, function_id, made, name, now_ms, derived)
    if changed is not None and note is not None:
        note(connection, function_id)
    return changed
