"""What the host knows of one sandbox while its guest runs.

Trampolines and callbacks are made once per linker, not per sandbox; they find the sandbox they serve by the number that
its store carries. Errors therefore stay with the sandbox they belong to, whatever other threads do.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from tensorwasm.errors import GuestTrap, InternalError, InvalidPointer, InvokeTimeout, TensorWasmError
from tensorwasm.gpu.native.layout import NO_DEADLINE_NS, SessionLayout
from tensorwasm.guest.engine import capi, traps
from tensorwasm.guest.engine.engine import Engine
from tensorwasm.guest.engine.source_lines import SourceLines
from tensorwasm.guest.memory.linear_memory import GuestMemory
from tensorwasm.guest.native.session_layouts import scratch_address
from tensorwasm.values import Deadline

if TYPE_CHECKING:
    from tensorwasm.guest.sandbox.output import WasiState

_caller_export_get: Final = capi.bind("wasmtime_caller_export_get")
_instance_export_get: Final = capi.bind("wasmtime_instance_export_get")
_extern_delete: Final = capi.bind("wasmtime_extern_delete")
_error_new: Final = capi.bind("wasmtime_error_new")

_MEMORY: Final = b"memory"
_NO_SERVICES: Final[Mapping[str, object]] = MappingProxyType({})
_LONGEST_WAIT_S: Final = threading.TIMEOUT_MAX


class GuestState:
    """One sandbox. It is the `HostCall` that host functions get.

    Attributes:
        token: the number its store carries, never 0: the address of its pad, which no other sandbox has while this one
            lives; without a pad a number that is never used again.
        pad: what compiled host functions know of it, or None.
        engine: where it runs.
        deadline_ns: when the current call must have ended, on the monotonic clock; None for never.
        started_ns: ``time.monotonic_ns()`` at its start.
        keeps: it holds the GIL, but for a moment at each tick of the engine's clock.
        lines: finds source lines of its traps, None without debug information.
        error: what a host function, an output sink or a signal handler raised during the current call.
        caller: the C caller during a host call, else 0.
        context: the store's context, 0 once closed.
        instance: the ``wasmtime_instance_t`` once instantiated.
        interruptible: the body of a host function runs, so a signal handler may raise.
        wasi: output streams and clock, None without WASI.
    """

    __slots__ = (
        "_cancelled",
        "_memory",
        "_services",
        "_wake",
        "caller",
        "context",
        "deadline_ns",
        "engine",
        "error",
        "instance",
        "interruptible",
        "keeps",
        "lines",
        "pad",
        "started_ns",
        "token",
        "wasi",
    )

    def __init__(
        self,
        engine: Engine,
        services: Mapping[str, object],
        pad: SessionLayout | None = None,
        lines: SourceLines | None = None,
    ) -> None:
        self.lines = lines
        self.pad = pad
        self.token = next(_tokens) if pad is None else ctypes.addressof(pad)
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
        self._services = services
        self._memory: GuestMemory | None = None
        self._cancelled = False
        self._wake = threading.Lock()
        self._wake.acquire()  # held until cancelled: sleeping is waiting for it

    @property
    def memory(self) -> GuestMemory:
        """The guest's exported memory.

        Raises:
            InvalidPointer: it exports no memory named ``memory``, or is closed.
        """
        if self._memory is None:
            memory = self._find_memory()
            self._memory = GuestMemory(self.context, memory)
            if self.pad is not None:
                ctypes.memmove(self.pad.memory, memory, len(memory))
        return self._memory

    @property
    def deadline(self) -> Deadline:
        """When the current call must have ended."""
        return Deadline(self.deadline_ns)

    def begin(self, services: Mapping[str, object]) -> None:
        """Serve another sandbox, of the same pad; `end` comes between two."""
        self._services = services

    def end(self) -> None:
        """Forget a sandbox that has gone, and what it was given."""
        self._services = _NO_SERVICES
        self.context = 0
        self.error = None
        if self._memory is not None:
            self._memory.close()
            self._memory = None

    def arm(self, started_ns: int, deadline_ns: int | None) -> None:
        """Begin a call, on the thread that will run the guest.

        Args:
            started_ns: now, on the monotonic clock.
            deadline_ns: when the call must have ended; None for never.
        """
        self.started_ns = started_ns
        self.deadline_ns = deadline_ns
        self.error = None
        if self.pad is not None:
            self.pad.deadline_ns = _clamped(deadline_ns)
            self.pad.scratch = scratch_address()

    def service(self, name: str) -> object | None:
        """Return what the caller attached under that name, or None."""
        return self._services.get(name)

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._cancelled

    def cancel(self) -> None:
        """End the running call, a sleeping one included, and refuse all later ones. Any thread may do this."""
        if not self._cancelled:
            self._cancelled = True
            self._wake.release()
        self.engine.wake_guests()

    def resume(self) -> None:
        """Take calls again after `cancel`. Only between two calls: one in progress might not hear that it was ended."""
        if self._cancelled:
            self._wake.acquire()
            self._cancelled = False

    def sleep(self, seconds: float) -> None:
        """Wait, for a guest that asked to.

        Raises:
            InvokeTimeout: the deadline came first.
            GuestTrap: the sandbox was cancelled.
        """
        wait = min(seconds, self.deadline.remaining_s(), _LONGEST_WAIT_S)
        if self._wake.acquire(timeout=max(0.0, wait)):
            self._wake.release()
        self.check()

    def check(self) -> None:
        """Find out whether the guest may go on.

        Raises:
            InvokeTimeout: the deadline passed.
            GuestTrap: the sandbox was cancelled.
            BaseException: what an output sink or a signal handler raised meanwhile.
        """
        if self.error is not None:
            raise self.error
        if self._cancelled:
            raise GuestTrap(f"{traps.CANCELLED}: the sandbox was cancelled", traps.CANCELLED)
        now_ns = time.monotonic_ns()
        if self.deadline_ns is not None and now_ns >= self.deadline_ns:
            elapsed_s = (now_ns - self.started_ns) / 1e9
            raise InvokeTimeout(f"the deadline passed before the guest finished: stopped after {elapsed_s:.3f} s")

    def close(self) -> None:
        """Forget everything, because the store goes away."""
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
            found = _caller_export_get(self.caller, _MEMORY, len(_MEMORY), item)
        elif self.context and self.instance is not None:
            found = _instance_export_get(self.context, self.instance, _MEMORY, len(_MEMORY), item)
        if not found:
            raise InvalidPointer("the guest exports no memory named 'memory'")
        kind, start = item.raw[0], capi.EXTERN_PAYLOAD_OFFSET
        memory = item.raw[start : start + capi.SIZES["wasmtime_memory_t"]]
        _extern_delete(item)
        if kind != capi.EXTERN_MEMORY:
            raise InvalidPointer("the guest's export 'memory' is not a memory")
        return memory


def _clamped(deadline_ns: int | None) -> int:
    """Return a deadline as a pad has it: one before the clock began has passed, one past its end is the end."""
    if deadline_ns is None:
        return NO_DEADLINE_NS
    return deadline_ns if 0 <= deadline_ns < NO_DEADLINE_NS else min(max(deadline_ns, 0), NO_DEADLINE_NS - 1)


_tokens: Final = itertools.count(1)
STATES: Final[dict[int, GuestState]] = {}
"""Sandboxes that live, by the number in their store."""


def as_raised(error: BaseException, where: str) -> BaseException:
    """Return what the caller of a guest sees for an exception from host code.

    Our own errors and requests to stop the program pass through; anything else is a bug in the host function.
    """
    if isinstance(error, TensorWasmError) or not isinstance(error, Exception):
        return error
    wrapped = InternalError(f"{where} failed: {type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped


def on_epoch(_context: int, token: int, delta: int, kind: int) -> int | None:
    """Let a guest go on, or stop it. wasmtime calls this when the ticks it granted have run out."""
    try:
        state = STATES[token]
        state.check()
        ctypes.c_uint64.from_address(delta).value = 1 if state.keeps else state.engine.ticks(state.deadline_ns)
        ctypes.c_uint8.from_address(kind).value = capi.EPOCH_CONTINUE
    except BaseException as error:  # noqa: BLE001 - nothing may escape into C; it is raised when the call returns
        guest = STATES.get(token)  # looked up anew: an interrupt may have come before there was a name for it
        if guest is not None:
            guest.error = error
        stop: int = _error_new(b"stopped")
        return stop
    return None


ON_EPOCH: Final = capi.EPOCH_CALLBACK(on_epoch)
ON_EPOCH_AT: Final = ctypes.cast(ON_EPOCH, ctypes.c_void_p).value or 0
"""Address of the epoch callback of every store; its data is the sandbox's token."""
