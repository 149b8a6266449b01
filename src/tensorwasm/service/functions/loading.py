"""`Loader` compiles and loads functions once, tenants in fair shares; `ResolutionCache` maps references to them.

Resolving a cached reference takes one look-up, on the path of every request.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar

from tensorwasm.database.functions import FunctionOptions, FunctionRecord, VersionRecord
from tensorwasm.errors import InternalError
from tensorwasm.guest.engine.compile_capacity import processors, slot_count
from tensorwasm.runtime.api.function import Function
from tensorwasm.runtime.api.runtime import Runtime
from tensorwasm.runtime.deploy.deployer import StopHook
from tensorwasm.runtime.deploy.lru_cache import LruCache
from tensorwasm.runtime.invoke.dispatch import NO_GRANTS
from tensorwasm.tenancy.fairness import FairGate
from tensorwasm.tenancy.quotas import TenantPolicy
from tensorwasm.values import Limits
from tensorwasm.yielding import begin_yielding

KEPT_FUNCTIONS: Final = 1024
KEPT_BYTES: Final = 1024 << 20
KEPT_REFERENCES: Final = 8192

Gone = Callable[[], Awaitable[object]]
"""Returns when the caller has left."""

Prepare = Callable[[str, bytes, int | None], object]
"""Told the tenant, the module and the cap on device memory of what was loaded that needs a device. May not wait."""

_T = TypeVar("_T")


class LoadedFunction(NamedTuple):
    """A compiled function and its binary, the same object for the same function, by which workers recognize it."""

    function: Function
    module: bytes


class LoadKey(NamedTuple):
    """Key of a loaded function, which tenants never share.

    Attributes:
        module: BLAKE3 of the binary.
        env: environment of its warm sandboxes.
        warm: their number.
        in_worker: it runs in worker processes, so nothing is prepared here.
        on_device: it may use a device there.
    """

    tenant: int
    module: bytes
    limits: Limits
    name: str
    env: tuple[tuple[str, str], ...] = ()
    warm: int = 0
    in_worker: bool = False
    on_device: bool = False


class _Loading:
    """A function that is being loaded, whether on a thread already, and the number of callers that wait for it."""

    __slots__ = ("begun", "stop_hook", "task", "waiting")

    task: asyncio.Task[LoadedFunction]

    def __init__(self) -> None:
        self.stop_hook = StopHook()
        self.begun = False
        self.waiting = 0

    def cancel(self) -> None:
        if self.begun:
            self.stop_hook.stop()
        else:
            self.task.cancel()


class Loader:
    """Loads functions on threads of its own; concurrent callers share one load. For one event loop.

    A single tenant never has all of the threads, so another tenant's load does not wait for its thousands.

    Args:
        runtime: outlives it.
        policy: returns a tenant's policy, which has its share of the threads.
        prepare: gets ready what the first call of a function with a device needs; None for nothing.
        threads: None takes twice as many as modules are compiled at a time: the others load what is.
        items: most functions cached.
        size_bytes: most bytes of modules cached.
    """

    def __init__(
        self,
        runtime: Runtime,
        policy: Callable[[int], TenantPolicy],
        prepare: Prepare | None = None,
        threads: int | None = None,
        items: int = KEPT_FUNCTIONS,
        size_bytes: int = KEPT_BYTES,
    ) -> None:
        threads = threads or 2 * slot_count(processors())
        runtime.deployer.weigh = lambda tenant: policy(int(tenant)).weight if tenant.isdecimal() else 1.0
        self._runtime = runtime
        self._policy = policy
        self._prepare = prepare
        self._gate = FairGate(threads, yields=True)
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="tensorwasm-load", initializer=begin_yielding)
        self._cache: LruCache[LoadedFunction] = LruCache(items, size_bytes)
        self._loading: dict[LoadKey, _Loading] = {}
        self.loads = 0

    def __len__(self) -> int:
        """Return the number of cached functions."""
        return len(self._cache)

    async def load(self, key: LoadKey, fetch: Callable[[], bytes]) -> LoadedFunction:
        """Return a function, loaded if it is not cached. Loading is stopped when all waiting callers have left.

        `fetch` returns the binary, and is called on another thread. Raise RateLimited if too many functions of the
        tenant wait to be loaded, and what `fetch` and `Runtime.load` raise.
        """
        found = self._cache.get(key)
        if found is not None:
            return found
        loading = self._loading.get(key)
        if loading is None:
            loading = self._loading[key] = _Loading()
            loading.task = asyncio.create_task(self._load(key, fetch, loading))
        loading.waiting += 1
        try:
            return await asyncio.shield(loading.task)  # a cancelled caller must not cancel it for others
        finally:
            loading.waiting -= 1
            if not loading.waiting and self._loading.get(key) is loading:
                del self._loading[key]
                loading.cancel()

    async def _load(self, key: LoadKey, fetch: Callable[[], bytes], loading: _Loading) -> LoadedFunction:
        try:
            async with self._gate.turn(key.tenant, self._policy(key.tenant).weight):
                loading.begun = True
                loaded = await asyncio.get_running_loop().run_in_executor(
                    self._threads, self._make, key, fetch, loading.stop_hook
                )
            if self._loading.get(key) is loading:
                self._cache.put(key, loaded, len(loaded.module))
            self.loads += 1
            if key.on_device and self._prepare is not None:
                self._prepare(str(key.tenant), loaded.module, self._policy(key.tenant).quotas.get("gpu_bytes"))
            return loaded
        finally:
            if self._loading.get(key) is loading:
                del self._loading[key]

    def _make(self, key: LoadKey, fetch: Callable[[], bytes], stop_hook: StopHook) -> LoadedFunction:
        """Load a function, and prepare what its first invocation needs. Blocks."""
        module, tenant = fetch(), str(key.tenant)
        function = self._runtime.load(module, key.name, key.limits, tenant, work=stop_hook)
        if not key.in_worker:
            function.dispatch.prepare(NO_GRANTS, None)
            function.dispatch.prepare_pure()
            if function.module_hash != key.module:
                raise InternalError("a module is not the one that its version names")
            if key.warm:
                function.warm(key.warm, tenant=tenant, env=dict(key.env))
        return LoadedFunction(function, module)

    async def close(self) -> None:
        """Wait for running loads, and end the threads."""
        await asyncio.gather(*(loading.task for loading in self._loading.values()), return_exceptions=True)
        self._threads.shutdown()


@dataclass(frozen=True, slots=True)
class Resolved:
    """A version of a function, ready to be called.

    Attributes:
        module: the binary, the same object as long as the function is loaded.
        tenant: its owner, as the runtime names tenants.
        cuda: its guests are granted the device.
        on_device: its guests may use the device.
        in_worker: its guests run in worker processes.
        may_begin_here: its guests may start in this process, in fresh sandboxes.
        default_ns: timeout of an invocation without a deadline.
        until_ns: when it must be looked up again, on the monotonic clock.
    """

    reference: str
    record: FunctionRecord
    version: VersionRecord
    function: Function
    module: bytes = field(repr=False)
    limits: Limits
    tenant: str
    cuda: bool
    on_device: bool
    in_worker: bool
    may_begin_here: bool
    default_ns: int
    until_ns: float

    @property
    def options(self) -> FunctionOptions:
        """The version's options."""
        return self.version.options


class ResolutionCache:
    """A bounded cache of resolved references, found by one look-up; `changes` counts removals. Not thread-safe."""

    def __init__(self) -> None:
        self._cached: LruCache[Resolved] = LruCache(KEPT_REFERENCES, KEPT_BYTES)
        self._keys: dict[str, set[tuple[int, str]]] = {}
        self.changes = 0

    def find(self, tenant: int, reference: str) -> Resolved | None:
        """Return what a tenant's reference leads to, None if it must be looked up."""
        key, entries = (tenant, reference), self._cached.entries  # not `LruCache.get`: each request comes here
        entry = entries.get(key)
        if entry is None:
            return None
        entries.move_to_end(key)
        return entry[0] if time.monotonic_ns() < entry[0].until_ns else None

    def put(self, resolved: Resolved, changes: int) -> None:
        """Cache a reference, unless `changes` differs from now: then it may lead to another version."""
        if changes != self.changes:
            return
        key = resolved.record.tenant, resolved.reference
        self._cached.drop(key)
        self._keys.setdefault(resolved.record.id, set()).add(key)
        for gone in self._cached.put(key, resolved, len(resolved.module)):
            keys = self._keys[gone.record.id]
            keys.discard((gone.record.tenant, gone.reference))
            if not keys:
                del self._keys[gone.record.id]

    def clear(self) -> None:
        """Remove all references."""
        self.changes += 1
        self._keys.clear()
        self._cached = LruCache(KEPT_REFERENCES, KEPT_BYTES)

    def forget(self, function_id: str) -> None:
        """Remove all references to a function."""
        self.changes += 1
        for key in self._keys.pop(function_id, ()):
            self._cached.drop(key)

    def forget_name(self, tenant: int, name: str) -> None:
        """Remove all references with a tenant's function name, because another function may be its newest now."""
        self.changes += 1
        stale = [
            key
            for keys in self._keys.values()
            for key in keys
            if key[0] == tenant and (key[1] == name or key[1].startswith(f"{name}@"))
        ]
        for key in stale:
            self._cached.drop(key)


async def cancel_when_gone(working: Coroutine[Any, Any, _T], gone: Gone | None) -> _T:
    """Return a coroutine's result; cancel it and raise CancelledError when its caller has left."""
    if gone is None:
        return await working
    task, leaving = asyncio.ensure_future(working), asyncio.ensure_future(gone())
    try:
        await asyncio.wait({task, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise asyncio.CancelledError
    finally:
        task.cancel()
        leaving.cancel()
