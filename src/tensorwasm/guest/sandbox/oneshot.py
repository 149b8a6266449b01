"""A sandbox that is made, called and unmade at a stroke, for modules that run nothing before they are called.

It is what `tensorwasm.guest.sandbox.instance.Instance` is for one call, and keeps every check of it: the slot of the
pool, the thread's stack, the clock, the limits. Compiled code does it (`tensorwasm.guest.native.oneshot`), or where
there is none
`tensorwasm.guest.sandbox.oneshot_python`. What cannot be ended well there is left as it is, and ended here.

A visit serves one sandbox after the other: what makes it expensive, its pad and what goes with that, stays.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tensorwasm.errors import DeviceLost, GuestTrap, InternalError, InvokeTimeout
from tensorwasm.gpu.native.layout import SessionLayout
from tensorwasm.guest.engine import capi, codec, memory_creator, traps
from tensorwasm.guest.engine.engine import MAX_TABLE_ELEMENTS, MAX_TABLES
from tensorwasm.guest.engine.module import check_declared
from tensorwasm.guest.memory.images import Image
from tensorwasm.guest.native.call_descriptor import CALLS, CallDescriptor, CallStatus, Write
from tensorwasm.guest.native.interpreter import INTERPRETER
from tensorwasm.guest.native.loading import load_passage, load_visit
from tensorwasm.guest.native.session_layouts import recycle_pad
from tensorwasm.guest.sandbox import stack
from tensorwasm.guest.sandbox.interrupts import shielded
from tensorwasm.guest.sandbox.linker import Prepared
from tensorwasm.guest.sandbox.oneshot_python import make_go
from tensorwasm.guest.sandbox.state import ON_EPOCH_AT, STATES, GuestState, on_epoch
from tensorwasm.guest.sandbox.store import QUICK_NS, close_store, earlier, is_quick, take_outcome
from tensorwasm.values import Deadline, Limits

_MEMORY: Final = ctypes.create_string_buffer(b"memory")

_abandoned: Final[dict[int, Prepared]] = {}
"""Stores whose memory something outside may still reach: kept, slot and all, because no moment would be safe."""


def is_one_shot(prepared: Prepared) -> bool:
    """Return whether a module's sandboxes can be visits: with compiled host functions only by compiled code."""
    plain = not prepared.needs_wasi and prepared.waiting is None and is_quick(prepared.module)
    able = not prepared.needs_pad or load_visit() is not None
    return plain and able and not prepared.module.engine.config.host_memory


@dataclass(frozen=True, slots=True)
class SavedStart:
    """What each sandbox of a visit begins with instead of what its module says.

    Attributes:
        image: of its memory, None without one.
        globals: that are set before the call: exported name, type and bits.
        owner: tenant whose sandboxes they are.
    """

    image: Image | None
    globals: tuple[tuple[str, str, int], ...]
    owner: str


class OneShotSandbox:
    """One place for sandboxes of one module, in which one export is called. For one thread at a time.

    After an error it is to be closed, and its session before it.
    """

    __slots__ = (
        "_address",
        "_brief",
        "_cells",
        "_compiled",
        "_engine",
        "_go",
        "_guarded",
        "_image",
        "_initialiser",
        "_limits",
        "_may_keep",
        "_name",
        "_order",
        "_owner",
        "_plan",
        "_prepared",
        "_state",
        "_stuck",
        "_writes",
    )

    def __init__(
        self,
        prepared: Prepared,
        export: str,
        limits: Limits,
        pad: SessionLayout,
        rebirth: SavedStart | None = None,
        *,
        brief: bool = False,
        initialiser: str | None = None,
    ) -> None:
        """Prepare the order.

        Args:
            prepared: the module, for which `is_one_shot`.
            export: the function to call.
            limits: what each sandbox may use.
            pad: zeros, or a session's; the visit's until `close`.
            brief: whether everything that a guest can do before it looks at the clock again is short, so that it may
                keep the GIL until its first tick.
            rebirth: for the blank form of a module (`tensorwasm.guest.saved.instrumented`), on an engine with images.
            initialiser: an exported function without parameters and results, called before the other; None without.

        Raises:
            MissingExport: no exported function of that name.
            InvalidArgs: its signature has types that cannot cross the border.
            ModuleMemoryTooLarge: the module declares more than the limits.
            InternalError: it needs compiled code, and there is none.
        """
        go, module = load_visit(), prepared.module
        passage = load_passage() if go is not None else None
        if go is None and prepared.needs_pad:
            raise InternalError("a visit with compiled host functions needs compiled code")
        check_declared(module.preamble, limits)
        self._plan = plan = module.plan(export)
        self._prepared = prepared
        self._limits = limits
        self._engine = module.engine
        self._cells = ctypes.create_string_buffer(max(plan.cell_count, 1) * 16)
        self._state = GuestState(module.engine, {}, pad, module.lines)
        self._stuck = False
        self._may_keep = brief and not pad.driver  # what guests wait for on a device takes long
        self._brief = self._may_keep and go is not None  # else nobody knows yet how long the guests here are
        self._compiled = go is not None
        self._guarded = prepared.guarded and self._compiled and rebirth is None  # Python maps the memory of an image
        self._image = rebirth.image if rebirth is not None else None
        self._owner = rebirth.owner if rebirth is not None else ""
        self._writes = _make_writes(rebirth.globals if rebirth is not None else ())
        self._name = ctypes.create_string_buffer(export.encode())
        self._initialiser = ctypes.create_string_buffer(initialiser.encode()) if initialiser is not None else None
        self._order = self._make_order(passage.on_epoch if passage is not None else ON_EPOCH_AT)
        self._address = ctypes.addressof(self._order)
        self._go: Callable[[int], int] = go or make_go(self._order, self._address)
        STATES[self._state.token] = self._state

    def call(
        self,
        args: Sequence[object],
        services: Mapping[str, object],
        deadline: Deadline | None,
        drain: Callable[[], bool] | None,
    ) -> Sequence[codec.Number]:
        """Make a sandbox, call it, and unmake it.

        Args:
            args: as `tensorwasm.guest.engine.codec` takes them.
            services: what host functions find with `HostCall.service`.
            deadline: when the call must have ended; never later than ``limits.wall_s`` from now.
            drain: as for `tensorwasm.guest.sandbox.instance.Instance`; not called if the guest ended well and the
                device reaches nothing of its memory.

        Raises:
            InvalidArgs: the arguments do not fit.
            CapacityExhausted: the pool is full, or this thread's stack is too small.
            TickerNotRunning: deadlines could not be kept.
            GuestTrap: the guest trapped, or copying the module's data did.
            InvokeTimeout: the deadline passed.
            DeviceLost: the device's context is not what it was.
            TensorWasmError: what a host function raised.
        """
        plan, state, order, engine, image = self._plan, self._state, self._order, self._engine, self._image
        if args or plan.params:
            plan.write(self._cells, 0, args)
        engine.reserve_slot()
        started_ns = time.monotonic_ns()
        try:
            (stack.require_native if self._guarded else stack.require)(engine.config.stack_bytes)
            end_ns = earlier(deadline, started_ns, self._limits.wall_s)
            if end_ns is not None and started_ns >= end_ns:
                raise InvokeTimeout("the deadline passed before the sandbox was made")
            state.begin(services)
            state.arm(started_ns, end_ns)
            order.keeps = brief = self._brief
            order.ticks = 1 if brief else engine.ticks(end_ns, started_ns)
            state.keeps = brief and not self._compiled
            if image is not None:
                memory_creator.supply(
                    lambda _size, _capacity: image.map(self._owner), self._limits.memory_bytes, image.size_bytes
                )
            stop = self._go(self._address) if self._guarded else shielded(state, self._go, self._address)
            if stop or state.error is not None:
                self._judge(stop)
        finally:
            if image is not None:
                memory_creator.supply(None)
            if order.store:
                self._leave(drain, time.monotonic_ns() - started_ns)
            if not self._compiled:
                self._brief = self._may_keep and time.monotonic_ns() - started_ns < QUICK_NS
            interrupted = state.error
            state.end()
            if not self._stuck:
                engine.release_slot()
            if interrupted is not None:  # what a signal's handler raised while the sandbox was unmade
                raise interrupted
        return plan.read(self._cells, 0)

    def close(self) -> None:
        """Give the pad back. The session that had it is closed. Idempotent."""
        state = STATES.pop(self._state.token, None) if not self._stuck else None
        if state is not None and state.pad is not None:
            recycle_pad(state.pad)

    def _judge(self, stop: int) -> None:
        """Raise what went wrong, if anything did."""
        order = self._order
        trap, error = ctypes.c_size_t(order.trap), order.error
        order.trap = order.error = 0
        self._state.context = order.context
        if stop == CallStatus.UNBOUND:
            raise DeviceLost("the context that this process had on the GPU is gone")
        try:
            take_outcome(self._state, trap, error)
        except GuestTrap:
            refusal = memory_creator.refusal() if self._image is not None else None
            if refusal is not None:
                raise refusal from None
            raise
        if stop == CallStatus.FINDING:
            raise InternalError("an export of the module vanished")

    def _leave(self, drain: Callable[[], bool] | None, spent_ns: int) -> None:
        """End a sandbox that compiled code has left, unless something outside may still reach its memory."""
        order = self._order
        store, order.store, order.context = order.store, 0, 0
        if order.trap:  # what Python raised has overtaken it
            traps.delete_trap(order.trap)
        if order.error:
            capi.take_error(order.error)
        order.trap = order.error = 0
        if drain is not None:
            _abandoned[store], self._stuck = self._prepared, True  # until the drain has said otherwise, should it raise
            if not drain():
                return
            del _abandoned[store]
            self._stuck = False
        shielded(self._state, close_store, store, spent_ns)

    def _make_order(self, on_epoch_at: int) -> CallDescriptor:
        """Return what compiled code is told, of what is this visit's own and stays where it is."""
        prepared, limits, initialiser = self._prepared, self._limits, self._initialiser
        return CallDescriptor(
            calls=ctypes.addressof(CALLS),
            engine=self._engine.address,
            pad=self._state.token,
            on_epoch=on_epoch_at,
            on_epoch_object=id(on_epoch),
            interpreter=ctypes.addressof(INTERPRETER),
            memory_bytes=limits.memory_bytes,
            table_elements=min(limits.table_elements, MAX_TABLE_ELEMENTS),
            tables=MAX_TABLES,
            prepared=prepared.address,
            export=ctypes.addressof(self._name),
            export_bytes=len(self._name) - 1,
            initialiser=ctypes.addressof(initialiser) if initialiser is not None else 0,
            initialiser_bytes=len(initialiser) - 1 if initialiser is not None else 0,
            memory=ctypes.addressof(_MEMORY) if prepared.needs_pad else 0,
            memory_name_bytes=len(_MEMORY) - 1,
            cells=ctypes.addressof(self._cells),
            cell_count=self._plan.cell_count,
            writes=ctypes.addressof(self._writes[0]),
            write_count=len(self._writes[0]),
        )


def _make_writes(globals: tuple[tuple[str, str, int], ...]) -> tuple[Any, list[Any]]:  # noqa: A002 - what they are
    """Return the globals to set as C structures, and what those refer to."""
    names = [ctypes.create_string_buffer(name.encode()) for name, _, _ in globals]
    writes = (Write * len(globals))()
    for write, name, (_, kind, bits) in zip(writes, names, globals, strict=True):
        write.name, write.name_bytes = ctypes.addressof(name), len(name) - 1
        place = ctypes.addressof(write) + Write.value.offset
        ctypes.memmove(place, bytes((capi.GLOBAL_KINDS[kind],)), 1)
        ctypes.memmove(place + capi.VALUE_PAYLOAD_OFFSET, bits.to_bytes(16, "little"), 16)
    return writes, names
