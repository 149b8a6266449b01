"""A driver module without a GPU: the entry points that gpu/cuda calls, with memory, contexts and chosen failures."""

from __future__ import annotations

import mmap
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from itertools import count
from typing import Any

from fakes import driver_memory, driver_work
from fakes.driver_base import (
    ATTRIBUTES,
    CONTEXT_IS_DESTROYED,
    ENTRY_POINTS,
    INVALID_CONTEXT,
    INVALID_HANDLE,
    INVALID_VALUE,
    SUCCESS,
    WITHOUT_CONTEXT,
    Flags,
    Handle,
    Names,
    Structure,
)

__all__ = ["ENTRY_POINTS", "FakeDriver", "Handle", "driver_memory", "driver_work"]

_OWN_FAILURE = {"cuModuleLoadDataEx"}
"""Entry points that fail by themselves, because a failure of theirs does something."""

_BLOCKING = {"cuEventSynchronize", "cuLaunchHostFunc"}
"""Entry points that others may be called beside."""


class FakeDriver:
    """Behaves like ``cuda.bindings.driver``: every call returns a tuple that begins with a result code.

    Attributes:
        fail: result code by entry point; it stays until it is taken out.
        missing: entry points this driver lacks.
        calls: how often each entry point was called.
        memory: live device memory by address.
        pool_of: the pool of device memory that came from one, by address.
        managed: live managed memory by address: its size, and real memory of this process.
        reserved: live reserved ranges by address, likewise.
        mapped: bytes mapped in them by address.
        shows: the pieces of memory that are mapped, likewise.
        cleared: address and size of what was cleared in mapped device memory.
        users: kinds of locations that may access a mapping, by address.
        registered: live host registrations by address.
        handles: live streams, events, modules, pools, graphs, pieces of memory and green contexts.
        hints: advice and prefetches: what was asked, which, and of which location.
        jit_log: what the compiler writes when it refuses a module.
        kept: bytes that pools keep until they are trimmed.
        unseen: streams in which memory was freed and which were not waited for since: pools still count it as used.
        host_bytes: host memory that there is.
        on_launch: called with the address of the arguments' pointers.
        on_block: called when a wait begins that only the end of the work ends.
        on_return: called before such a wait returns, when the work has ended.
        shift: what host memory's address on the device is off by.
    """

    CUdevice_attribute = Names()
    CUfunction_attribute = Names()
    CUjit_option = Names()
    CUmemAllocationType = Names()
    CUmemAllocationHandleType = Names()
    CUmemLocationType = Names()
    CUmemPool_attribute = Names()
    CUmemAccess_flags = Names()
    CUmemAllocationGranularity_flags = Names()
    CUmem_advise = Names()
    CUstreamCaptureMode = Names()
    CUdevResourceType = Names()
    CUstream_flags = Flags()
    CUevent_flags = Flags()
    CUmemAttach_flags = Flags()
    CUgreenCtxCreate_flags = Flags()
    CUmemLocation = CUmemPoolProps = CUmemAllocationProp = CUmemAccessDesc = Structure
    CU_MEMHOSTREGISTER_PORTABLE = 1
    CU_MEMHOSTREGISTER_DEVICEMAP = 2
    cuuint64_t = int

    def __init__(
        self, *, cuda: int = 13000, devices: int = 1, capacity_bytes: int = 1 << 30, bindings: int = 13
    ) -> None:
        self.cuda, self.devices, self.capacity, self.bindings = cuda, devices, capacity_bytes, bindings
        self.fail: dict[str, int] = {}
        self.missing: set[str] = set()
        self.calls: Counter[str] = Counter()
        self.memory: dict[int, bytearray] = {}
        self.pool_of: dict[int, Handle] = {}
        self.managed: dict[int, tuple[int, mmap.mmap]] = {}
        self.reserved: dict[int, tuple[int, mmap.mmap]] = {}
        self.mapped: dict[int, int] = {}
        self.shows: dict[int, Handle] = {}
        self.cleared: list[tuple[int, int]] = []
        self.users: dict[int, set[str]] = {}
        self.registered: dict[int, int] = {}
        self.handles: set[Handle] = set()
        self.hints: list[tuple[str, str, Any]] = []
        self.launches: list[tuple[str, tuple[int, ...]]] = []
        self.natives: dict[str, Any] = {}
        self.attributes = dict(ATTRIBUTES)
        self.jit_log = b""
        self.kept = 0
        self.unseen: set[Handle] = set()
        self.host_bytes = 1 << 40
        self.shift = 0
        self.on_launch: Callable[[int], object] = lambda params: None
        self.on_block: Callable[[], object] = lambda: None
        self.on_return: Callable[[], object] = lambda: None
        self.images: list[bytes] = []
        self.primary = Handle("context", 0)
        self._at: tuple[str, int, int] = ("", 0, 0)
        self._numbers = count(1)
        self._address = 0x7F00_0000_0000
        self._stacks = threading.local()
        self._ended = threading.Event()
        self._ended.set()
        self._lock = threading.Lock()

    # ----------------------------------------------------------------------------------- controls for tests

    def begin(self) -> None:
        """From now on the work of streams that were given kernels does not end by itself."""
        self._ended.clear()

    def finish(self) -> None:
        """End all work."""
        self._ended.set()

    def reset(self) -> None:
        """What another library's device reset does: the context and all in it are gone; its handle stays."""
        self.primary.alive = False
        for books in (self.memory, self.pool_of, self.managed, self.mapped, self.shows, self.reserved, self.registered):
            books.clear()
        self.handles.clear()

    def stack(self) -> list[Handle]:
        """The contexts current on this thread, the top last."""
        if not hasattr(self._stacks, "contexts"):
            self._stacks.contexts = []
        return self._stacks.contexts

    def leftovers(self) -> list[object]:
        """Everything the driver still holds for this process."""
        return [*self.memory, *self.managed, *self.reserved, *self.mapped, *self.registered, *self.handles]

    @contextmanager
    def failing(self, function: str, code: int):
        """Let an entry point fail for the length of a ``with``."""
        self.fail[function] = code
        try:
            yield
        finally:
            del self.fail[function]

    def fail_once(self, function: str, nth: int, code: int) -> None:
        """Let the nth call from now of an entry point fail, and no other."""
        self._at = function, self.calls[function] + nth, code

    def failed(self) -> bool:
        """Whether the call that `fail_once` spoke of has been made."""
        function, turn, _ = self._at
        return self.calls[function] >= turn

    # --------------------------------------------------------------------------------- for entry points

    def number(self) -> int:
        return next(self._numbers)

    def make(self, kind: str) -> Handle:
        handle = Handle(kind, self.number())
        self.handles.add(handle)
        return handle

    def drop(self, handle: Handle) -> tuple[int]:
        if handle not in self.handles:
            return (INVALID_HANDLE,)
        self.handles.discard(handle)
        return (SUCCESS,)

    def place(self, size: int) -> int:
        """Return the address of new device memory, dirty."""
        address = self._address
        self._address += (size + 511) // 512 * 512
        self.memory[address] = bytearray(bytes([driver_memory.DIRT]) * size)
        return address

    def give(self, stream: Handle, node: Callable[[], object], *, work: bool = False) -> tuple[int]:
        """Run a piece of work, or record it."""
        if stream.nodes is not None:
            stream.nodes.append(node)
        else:
            node()
            stream.worked = stream.worked or work
        return (SUCCESS,)

    def hint(self, address: int, what: str, which: str, location: Any, *, modern: bool) -> tuple[int]:
        if not any(start <= address < start + size for start, (size, _) in self.managed.items()):
            return (INVALID_VALUE,)
        assert isinstance(location, Structure if modern else int)
        named = location.type.removeprefix("CU_MEM_LOCATION_TYPE_") if modern else location
        self.hints.append((what, which.removeprefix("CU_MEM_ADVISE_"), named))
        return (SUCCESS,)

    def busy(self, stream: Handle) -> bool:
        return stream.worked and not self._ended.is_set()

    def wait(self) -> None:
        self._ended.wait()

    def failure(self, name: str) -> int:
        """Return the code that the call which was just counted is to fail with, 0 for none."""
        if (name, self.calls[name]) == self._at[:2]:
            return self._at[2]
        return self.fail.get(name, 0)

    def __getattr__(self, name: str) -> Any:
        if name in self.missing:
            raise RuntimeError(f'Function "{name}" not found')
        if name not in ENTRY_POINTS or (name.endswith("_v2") and self.bindings > 12):
            raise AttributeError(name)

        def call(*args: Any) -> tuple[Any, ...]:
            self.calls[name] += 1
            if name not in _OWN_FAILURE and (code := self.failure(name)):
                return (code,)
            if name not in WITHOUT_CONTEXT and (not self.stack() or not self.stack()[-1].alive):
                return (CONTEXT_IS_DESTROYED if self.stack() else INVALID_CONTEXT,)
            with nullcontext() if name in _BLOCKING else self._lock:
                return ENTRY_POINTS[name](self, *args)

        return call
