"""The state of one sandbox on the host, and its store.

Trampolines and callbacks are made once per linker, not per sandbox; they find the calling sandbox by the number in its
store. Errors therefore stay with their sandbox, whatever other threads do.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import threading
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from tensorwasm.errors import (
    CapacityExhausted,
    GuestExit,
    GuestTrap,
    InternalError,
    InvalidPointer,
    InvokeTimeout,
    TensorWasmError,
)
from tensorwasm.gpu.native.layout import NO_DEADLINE_NS, SessionLayout
from tensorwasm.guest.engine import capi, traps
from tensorwasm.guest.engine.capi import KEEPING, RELEASING
from tensorwasm.guest.engine.engine import MAX_TABLE_ELEMENTS, MAX_TABLES, Engine
from tensorwasm.guest.engine.traps import SourceLines
from tensorwasm.guest.memory.linear_memory import GuestMemory
from tensorwasm.guest.native.session_layouts import SCRATCH
from tensorwasm.guest.sandbox.wasi_io import WasiState
from tensorwasm.values import Deadline, Limits

_MEMORY: Final = b"memory"
_NO_SERVICES: Final[Mapping[str, object]] = MappingProxyType({})
_LONGEST_WAIT_S: Final = threading.TIMEOUT_MAX
START_CEILING_S: Final = 30.0
"""Longest that a start function may run."""

QUICK_NS: Final = 1_000_000
"""A guest that ran longer may have touched so much memory that freeing it takes long."""

_REFUSALS: Final = (  # wasmtime's words; slots are counted and mappings reserved before, so this is a second line
    ("maximum concurrent", "the pool is full; try again later"),
    ("os error 12", "the system has no memory, or this process no mappings left (vm.max_map_count); try again later"),
)


class GuestState:
    """One sandbox: the `HostCall` that host functions get.

    Attributes:
        token: the number in its store, never 0: the address of its session layout, which no other live sandbox has;
            without a layout a number that is never reused.
        deadline_ns: when the current call must have ended, on the monotonic clock; None for never.
        started_ns: ``time.monotonic_ns()`` at its start.
        keeps: it holds the GIL, except for a moment at each tick of the engine's clock.
        error: what a host function, an output sink or a signal handler raised during the current call.
        caller: the C caller during a host call, else 0.
        context: the store's context, 0 once closed.
        instance: the ``wasmtime_instance_t`` once instantiated.
        interruptible: the body of a host function runs, so a signal handler may raise.
        services: what the caller attached, by name; `end` comes between those of two sandboxes of the same layout.
    """

    __slots__ = (
        "_cancelled",
        "_memory",
        "_wake",
        "caller",
        "context",
        "deadline_ns",
        "engine",
        "error",
        "instance",
        "interruptible",
        "keeps",
        "layout",
        "lines",
        "services",
        "started_ns",
        "token",
        "wasi",
    )

    def __init__(
        self,
        engine: Engine,
        services: Mapping[str, object],
        layout: SessionLayout | None = None,
        lines: SourceLines | None = None,
    ) -> None:
        self.lines = lines
        self.layout = layout
        self.token = next(_tokens) if layout is None else ctypes.addressof(layout)
        self.engine = engine
        self.deadline_ns: int | None = None
        self.started_ns = 0
        self.keeps = False
        self.error: BaseException | None = None
        self.caller = 0
        self.interruptible = False
        self.context = 0
        self.instance: ctypes.Array[ctypes.c_char] | None = None
        self.wasi: WasiState | None = None
        self.services = services
        self._memory: GuestMemory | None = None
        self._cancelled = False
        self._wake = threading.Lock()
        self._wake.acquire()  # held until cancelled: sleeping is waiting for it

    @property
    def memory(self) -> GuestMemory:
        """The guest's exported memory; `InvalidPointer` if it exports no memory named ``memory``, or is closed."""
        if self._memory is None:
            memory = self._find_memory()
            self._memory = GuestMemory(self.context, memory)
            if self.layout is not None:
                ctypes.memmove(self.layout.memory, memory, len(memory))
        return self._memory

    @property
    def deadline(self) -> Deadline:
        """When the current call must have ended."""
        return Deadline(self.deadline_ns)

    def end(self) -> None:
        """Forget a deleted sandbox and its services."""
        self.services = _NO_SERVICES
        self.context = 0
        self.error = None
        if self._memory is not None:
            self._memory.close()
            self._memory = None

    def arm(self, started_ns: int, deadline_ns: int | None) -> None:
        """Begin a call, on the thread that will run the guest. Times are on the monotonic clock; None is never."""
        self.started_ns = started_ns
        self.deadline_ns = deadline_ns
        self.error = None
        if self.layout is not None:
            # Before the clock began has passed, and past its end is the end.
            at_ns = NO_DEADLINE_NS if deadline_ns is None else min(max(deadline_ns, 0), NO_DEADLINE_NS - 1)
            self.layout.deadline_ns = at_ns
            self.layout.scratch = SCRATCH.address

    def service(self, name: str) -> object | None:
        """Return what the caller attached under that name, or None."""
        return self.services.get(name)

    def cancel(self) -> None:
        """End the running call, even a sleeping one, and refuse later ones. Thread-safe."""
        if not self._cancelled:
            self._cancelled = True
            self._wake.release()
        self.engine.wake_guests()

    def check_cancelled(self) -> None:
        """Raise `GuestTrap` if the sandbox was cancelled."""
        if self._cancelled:
            raise GuestTrap(f"{traps.CANCELLED}: the sandbox was cancelled", traps.CANCELLED)

    def resume(self) -> None:
        """Allow calls again after `cancel`. Only between two calls: one in progress might miss its cancellation."""
        if self._cancelled:
            self._wake.acquire()
            self._cancelled = False

    def sleep(self, seconds: float) -> None:
        """Wait for the guest; raises what `check` raises."""
        wait = min(seconds, self.deadline.remaining_s(), _LONGEST_WAIT_S)
        if self._wake.acquire(timeout=max(0.0, wait)):
            self._wake.release()
        self.check()

    def check(self) -> None:
        """Raise if the guest must not go on.

        Raises:
            InvokeTimeout: the deadline passed.
            GuestTrap: the sandbox was cancelled.
            BaseException: what an output sink or a signal handler raised meanwhile.
        """
        if self.error is not None:
            raise self.error
        self.check_cancelled()
        now_ns = time.monotonic_ns()
        if self.deadline_ns is not None and now_ns >= self.deadline_ns:
            elapsed_s = (now_ns - self.started_ns) / 1e9
            raise InvokeTimeout(f"the deadline passed before the guest finished: stopped after {elapsed_s:.3f} s")

    def close(self) -> None:
        """Release everything, because the store is deleted."""
        STATES.pop(self.token, None)
        self.context = 0
        if self.wasi is not None:
            self.wasi.close()
        if self._memory is not None:
            self._memory.close()

    def _find_memory(self) -> bytes:
        item = ctypes.create_string_buffer(capi.SIZES["wasmtime_extern_t"])
        found = False
        if self.caller:
            found = KEEPING.wasmtime_caller_export_get(self.caller, _MEMORY, len(_MEMORY), item)
        elif self.context and self.instance is not None:
            found = KEEPING.wasmtime_instance_export_get(self.context, self.instance, _MEMORY, len(_MEMORY), item)
        if not found:
            raise InvalidPointer("the guest exports no memory named 'memory'")
        kind, start = item.raw[0], capi.EXTERN_PAYLOAD_OFFSET
        memory = item.raw[start : start + capi.SIZES["wasmtime_memory_t"]]
        KEEPING.wasmtime_extern_delete(item)
        if kind != capi.EXTERN_MEMORY:
            raise InvalidPointer("the guest's export 'memory' is not a memory")
        return memory


_tokens: Final = itertools.count(1)
STATES: Final[dict[int, GuestState]] = {}
"""Sandboxes that live, by the number in their store."""


def as_raised(error: BaseException, where: str) -> BaseException:
    """Return what a guest's caller sees for an exception from host code.

    Our own errors and requests to stop the program stay; anything else is a bug in the host function.
    """
    if isinstance(error, TensorWasmError) or not isinstance(error, Exception):
        return error
    wrapped = InternalError(f"{where} failed: {type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped


def on_epoch(_context: int, token: int, delta: int, kind: int) -> int | None:
    """Let a guest go on, or stop it. wasmtime calls this when the granted ticks are used up."""
    try:
        state = STATES[token]
        state.check()
        ctypes.c_uint64.from_address(delta).value = 1 if state.keeps else state.engine.ticks(state.deadline_ns)
        ctypes.c_uint8.from_address(kind).value = capi.EPOCH_CONTINUE
    except BaseException as error:  # noqa: BLE001 - nothing may escape into C; it is raised when the call returns
        guest = STATES.get(token)  # looked up anew: an interrupt may have come before there was a name for it
        if guest is not None:
            guest.error = error
        stop: int = KEEPING.wasmtime_error_new(b"stopped")
        return stop
    return None


ON_EPOCH: Final = capi.EPOCH_CALLBACK(on_epoch)
ON_EPOCH_AT: Final = ctypes.cast(ON_EPOCH, ctypes.c_void_p).value or 0
"""Address of the epoch callback of every store; its data is the sandbox's token."""


def open_store(state: GuestState, limits: Limits) -> int:
    """Return the address of a sandbox's new store, and register the sandbox under its token."""
    store: int = KEEPING.wasmtime_store_new(state.engine.address, state.token, None)
    state.context = KEEPING.wasmtime_store_context(store)
    table_elements = min(limits.table_elements, MAX_TABLE_ELEMENTS)
    KEEPING.wasmtime_store_limiter(store, limits.memory_bytes, table_elements, 1, MAX_TABLES, 1)
    STATES[state.token] = state
    return store


def close_store(store: int, spent_ns: int) -> None:
    """Free a store from `open_store`, whose guest ran that long."""
    (KEEPING.wasmtime_store_delete if spent_ns < QUICK_NS else RELEASING.wasmtime_store_delete)(store)


def take_outcome(state: GuestState, trap: ctypes.c_size_t, error: int | None) -> bool:
    """Raise what went wrong in a call; return whether the guest ended with ``proc_exit(0)``.

    It takes ``state.error``, and frees the trap and wasmtime's error.

    Raises:
        CapacityExhausted: the pool is full, or the system has no memory for the sandbox.
        GuestTrap: the guest trapped.
        BaseException: what host code raised.
    """
    address, raised = trap.value, state.error
    trap.value, state.error = 0, None
    if raised is not None:
        if error:
            capi.take_error(error)
        if address:
            KEEPING.wasm_trap_delete(address)
        if isinstance(raised, GuestExit) and raised.code == 0:
            return True
        if isinstance(raised, InvokeTimeout):
            state.check_cancelled()  # which stops the guest's kernels as a deadline does
        raise raised
    if address:
        trapped = traps.take_trap(address, state.context)
        if trapped.backtrace and state.lines is not None:
            trapped.find_lines = state.lines.add_to
        raise trapped
    if error:
        text = traps.explain(error)
        if traps.drop_exception(state.context):  # on a fiber it is no trap
            raise GuestTrap(f"{traps.UNCAUGHT}: {traps.THROWN}", traps.UNCAUGHT)
        for words, meaning in _REFUSALS:
            if words in text:
                raise CapacityExhausted(meaning)
        raise GuestTrap(f"{traps.OTHER}: {text}", traps.OTHER)
    return False


def earlier(deadline: Deadline | None, now_ns: int, ceiling_s: float) -> int | None:
    """Return the monotonic time at which a call must have ended, None for never."""
    asked_ns = deadline.at_ns if deadline is not None else None
    if math.isinf(ceiling_s * 1e9):
        return asked_ns
    ceiling_ns = now_ns + int(ceiling_s * 1e9)
    return ceiling_ns if asked_ns is None or asked_ns > ceiling_ns else asked_ns
