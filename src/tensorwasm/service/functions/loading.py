"""Loaded functions: compiled once, kept while they are used; tenants who load many wait for one another, not others."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple, TypeVar

from tensorwasm.errors import InternalError
from tensorwasm.guest.engine.yielding import begin_yielding
from tensorwasm.runtime.api.function import Function
from tensorwasm.runtime.api.runtime import Runtime
from tensorwasm.runtime.deploy.lru_cache import LruCache
from tensorwasm.runtime.deploy.stop_hook import StopHook
from tensorwasm.runtime.invoke.grants import Grants
from tensorwasm.tenancy.fairness import FairGate
from tensorwasm.values import Limits

KEPT_FUNCTIONS: Final = 1024
KEPT_BYTES: Final = 1024 << 20

Gone = Callable[[], Awaitable[object]]
"""Returns when a caller has left."""

_T = TypeVar("_T")

NOTHING: Final = Grants()


class LoadedFunction(NamedTuple):
    """A function that can be called.

    Attributes:
        function: the compiled module.
        module: the binary, always the same object for the same function: who sends it on may know it by that.
    """

    function: Function
    module: bytes


class LoadKey(NamedTuple):
    """What makes two functions the same: never across tenants.

    Attributes:
        tenant: whose.
        module: BLAKE3 of the binary.
        limits: of its sandboxes.
        name: of the function.
        env: environment of its warm sandboxes.
        warm: how many there are.
        cuda: whether it runs in worker processes, so that nothing is prepared here.
    """

    tenant: int
    module: bytes
    limits: Limits
    name: str
    env: tuple[tuple[str, str], ...] = ()
    warm: int = 0
    cuda: bool = False


class _Loading:
    """A function on its way, for all who wait for it.

    Attributes:
        task: its outcome.
        work: stops what blocks.
        begun: whether it has a thread.
        wanted: callers that wait.
    """

    __slots__ = ("begun", "task", "wanted", "work")

    task: asyncio.Task[LoadedFunction]

    def __init__(self) -> None:
        self.work = StopHook()
        self.begun = False
        self.wanted = 0

    def end(self) -> None:
        """Stop it: nobody waits for it any more."""
        if self.begun:
            self.work.stop()
        else:
            self.task.cancel()


class Loader:
    """Loads functions on threads of its own, each once however many ask at a time. For one event loop.

    A tenant alone never has all of the threads: whoever loads one function waits for none of another's thousand.

    Args:
        runtime: outlives it.
        weight: returns a tenant's share where tenants wait for one another.
        threads: most functions that are compiled or loaded at a time.
        items: most functions kept.
        size_bytes: most bytes of module kept.
    """

    def __init__(
        self,
        runtime: Runtime,
        weight: Callable[[int], int],
        threads: int | None = None,
        items: int = KEPT_FUNCTIONS,
        size_bytes: int = KEPT_BYTES,
    ) -> None:
        """Start nothing yet."""
        threads = threads or (os.cpu_count() or 1) + 1
        self._runtime = runtime
        self._weight = weight
        self._gate = FairGate(threads, yields=True)
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="tensorwasm-load", initializer=begin_yielding)
        self._shelf: LruCache[LoadedFunction] = LruCache(items, size_bytes)
        self._loading: dict[LoadKey, _Loading] = {}
        self.loads = 0

    def __len__(self) -> int:
        """Return how many functions are kept."""
        return len(self._shelf)

    async def load(self, key: LoadKey, fetch: Callable[[], bytes]) -> LoadedFunction:
        """Return a function, loaded now if it is not kept. When all who wait have left, loading it ends.

        Args:
            key: which.
            fetch: returns the binary; called on another thread.

        Raises:
            RateLimited: too many of the tenant's functions wait to be loaded.
            TensorWasmError: what `fetch` and `Runtime.load` raise.
        """
        found = self._shelf.get(key)
        if found is not None:
            return found
        loading = self._loading.get(key)
        if loading is None:
            loading = self._loading[key] = _Loading()
            loading.task = asyncio.create_task(self._load(key, fetch, loading))
        loading.wanted += 1
        try:
            # Who leaves must not take the function from others who wait for it.
            return await asyncio.shield(loading.task)
        finally:
            loading.wanted -= 1
            if not loading.wanted and self._loading.get(key) is loading:
                del self._loading[key]
                loading.end()

    async def _load(self, key: LoadKey, fetch: Callable[[], bytes], loading: _Loading) -> LoadedFunction:
        try:
            loop = asyncio.get_running_loop()
            async with self._gate.turn(key.tenant, self._weight(key.tenant)):
                loading.begun = True
                loaded = await loop.run_in_executor(self._threads, self._make, key, fetch, loading.work)
            if self._loading.get(key) is loading:
                self._shelf.put(key, loaded, len(loaded.module))
            self.loads += 1
            return loaded
        finally:
            if self._loading.get(key) is loading:
                del self._loading[key]

    def _make(self, key: LoadKey, fetch: Callable[[], bytes], work: StopHook) -> LoadedFunction:
        """Load a function, and all that its first invocation would otherwise wait for. Blocks."""
        module, tenant = fetch(), str(key.tenant)
        function = self._runtime.load(module, key.name, key.limits, tenant, work=work)
        if not key.cuda:
            function.dispatch.prepare(NOTHING, None)
            function.dispatch.prepare_pure()
            if function.module_hash != key.module:
                raise InternalError("a module is not the one that its version names")
            if key.warm:
                function.warm(key.warm, tenant=tenant, env=dict(key.env))
        return LoadedFunction(function, module)

    async def close(self) -> None:
        """Wait for what is being loaded, and release the threads."""
        await asyncio.gather(*(loading.task for loading in self._loading.values()), return_exceptions=True)
        self._threads.shutdown()


async def while_wanted(working: Coroutine[Any, Any, _T], gone: Gone | None) -> _T:
    """Wait for something, and end it when its caller has left.

    Raises:
        CancelledError: the caller has left.
    """
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
