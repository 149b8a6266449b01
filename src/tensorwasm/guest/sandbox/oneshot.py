"""Sandboxes that are made, called and deleted in one step, for modules that run nothing before they are called.

A `OneShotSandbox` replaces `tensorwasm.guest.sandbox.instance.Instance` for one call and keeps all its checks: the
pool's slot, the thread's stack, the deadline, the limits. The steps are compiled (`tensorwasm.guest.native.oneshot`);
without Numba, Python takes the same steps, one C call each. What cannot be deleted there is deleted here.

One object serves one sandbox after another: the session layout, which is expensive, is kept.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tensorwasm.errors import DeviceLost, GuestExit, GuestTrap, InternalError, InvokeTimeout
from tensorwasm.gpu.native.layout import OUTPUT_ROOM_BYTES, OUTPUT_ROWS, OutputRow, SessionLayout
from tensorwasm.guest.engine import capi, codec, memory_creator
from tensorwasm.guest.engine.capi import KEEPING
from tensorwasm.guest.engine.engine import MAX_TABLE_ELEMENTS, MAX_TABLES
from tensorwasm.guest.engine.module import check_declared
from tensorwasm.guest.memory.images import Image
from tensorwasm.guest.native.loading import load_callbacks, load_oneshot
from tensorwasm.guest.native.session_layouts import return_layout
from tensorwasm.guest.native.structures import INTERPRETER, WASMTIME, CallDescriptor, CallStatus, GlobalWrite
from tensorwasm.guest.sandbox import stack, wasi
from tensorwasm.guest.sandbox.interrupts import shielded
from tensorwasm.guest.sandbox.linker import LinkedModule
from tensorwasm.guest.sandbox.oneshot_python import make_executor
from tensorwasm.guest.sandbox.state import (
    ON_EPOCH_AT,
    QUICK_NS,
    STATES,
    GuestState,
    close_store,
    on_epoch,
    take_outcome,
)
from tensorwasm.guest.sandbox.wasi import WasiConfig
from tensorwasm.guest.sandbox.wasi_io import WasiState
from tensorwasm.values import Limits

_MEMORY: Final = ctypes.create_string_buffer(b"memory")
_VALUE: Final = GlobalWrite.value.offset

_abandoned: Final[dict[int, LinkedModule]] = {}
"""Stores whose memory a device may still reach: kept with their slots, because they can never be deleted safely."""


@dataclass(frozen=True, slots=True)
class SavedStart:
    """The saved state in which each sandbox starts, instead of the one that its module declares.

    It has the memory's image, exported name, type and bits of each global to set, and the tenant that owns the
    sandboxes.
    """

    image: Image | None
    globals: tuple[tuple[str, str, int], ...]
    owner: str


class NotCleared(Exception):
    """The device has not yet cleared the session's window. Nothing was done; never leaves this package's callers."""


class OneShotSandbox:
    """Runs one export of one module, each call in a new sandbox. For one thread at a time.

    `run` is given a ``drain``, which it does not call if the guest ended well and no device reaches its memory. Beside
    what an `Instance` does it raises CapacityExhausted if the pool is full or the thread's stack too small, DeviceLost
    if the device's context was replaced, and `NotCleared` while the session's window is not clear. A guest that leaves
    while it is called only sets ``exit_code``. After an error, close first its session and then this.
    """

    __slots__ = (
        "_address",
        "_brief",
        "_cells",
        "_compiled",
        "_engine",
        "_execute",
        "_guarded",
        "_image",
        "_limits",
        "_linked",
        "_may_keep",
        "_order",
        "_output",
        "_owner",
        "_plain",
        "_plan",
        "_referenced",
        "_rows",
        "_stack_bytes",
        "_state",
        "_stuck",
        "exit_code",
    )  # fmt: skip

    def __init__(
        self,
        linked: LinkedModule,
        export: str,
        limits: Limits,
        layout: SessionLayout,
        saved: SavedStart | None = None,
        *,
        brief: bool = False,
        initialiser: str | None = None,
    ) -> None:
        """Prepare the call descriptor of a module for which `LinkedModule.is_one_shot` is true.

        The layout, zeros or a session's, is owned until `close`. ``brief`` says that a guest runs only shortly between
        two clock checks: it may keep the GIL until its first tick. ``saved`` is for a module's blank form
        (`tensorwasm.guest.saved.instrumented`), on an engine with images. The initialiser is an exported function
        without parameters and results to call first.

        Raises:
            MissingExport: no exported function of that name.
            InvalidArgs: its signature has types that the host cannot pass.
            ModuleMemoryTooLarge: the module declares more than the limits.
            InternalError: it needs compiled code, and there is none.
        """
        execute, module = load_oneshot(), linked.module
        if execute is None and linked.needs_layout:
            raise InternalError("a one-shot sandbox with compiled host functions needs compiled code")
        check_declared(module.preamble, limits)
        self._plan = module.plan(export)
        self._linked, self._limits, self._engine = linked, limits, module.engine
        self._cells = ctypes.create_string_buffer(max(self._plan.cell_count, 1) * 16)
        self._state = GuestState(module.engine, {}, layout, module.lines)
        self._stuck, self.exit_code = False, 0
        self._output = ctypes.create_string_buffer(OUTPUT_ROWS * OUTPUT_ROOM_BYTES if linked.stdio else 0)
        self._rows: tuple[OutputRow, ...] = tuple(layout.output) if linked.stdio else ()
        for index, row in enumerate(self._rows):
            row.address = ctypes.addressof(self._output) + index * OUTPUT_ROOM_BYTES
        self._may_keep = brief and not layout.driver  # waiting for a device takes long
        self._compiled = execute is not None
        self._brief = self._may_keep and self._compiled  # without compiled code only once a guest was seen to be short
        self._guarded = linked.guarded and self._compiled and saved is None  # Python maps the memory of an image
        self._image, self._owner = (saved.image, saved.owner) if saved is not None else (None, "")
        # Nothing of a call but its arguments differs from the last one.
        self._plain = self._brief and self._guarded and not linked.needs_layout
        self._stack_bytes = self._engine.config.stack_bytes
        self._order = self._describe(export, initialiser, saved)
        self._address = ctypes.addressof(self._order)
        self._execute: Callable[[int], int] = execute or make_executor(self._order, self._address)
        STATES[self._state.token] = self._state

    def run(
        self,
        args: Sequence[object],
        services: Mapping[str, object],
        now_ns: int,
        end_ns: int | None,
        drain: Callable[[], bool] | None,
    ) -> tuple[codec.Number, ...]:
        """Make a sandbox, call it as `tensorwasm.guest.sandbox.instance.Instance.call` does, and delete it.

        It ends by a time of the monotonic clock, None for never, whatever the limit of time is.
        """
        plan, state, engine = self._plan, self._state, self._engine
        if args or plan.params:
            plan.write(self._cells, 0, args)
        self.exit_code = 0
        engine.reserve_slot()
        try:
            thread = stack.THREAD
            if not self._guarded or thread.fiber or thread.bytes < self._stack_bytes:
                (stack.require_native if self._guarded else stack.require)(self._stack_bytes)
            if end_ns is not None and now_ns >= end_ns:
                raise InvokeTimeout("the deadline passed before the sandbox was made")
            if self._plain:
                state.started_ns, state.deadline_ns = now_ns, end_ns
            else:
                self._prepare(services, now_ns, end_ns)
            status = self._execute(self._address) if self._guarded else shielded(state, self._execute, self._address)
            if (status or state.error is not None) and self._raise_failure(status):
                return ()
        finally:
            if self._order.store or state.error is not None or self._image is not None or not self._compiled:
                self._clean(drain, now_ns)
            else:
                if not self._plain:
                    state.end()
                engine.release_slot()
        return plan.read(self._cells, 0)

    def _prepare(self, services: Mapping[str, object], now_ns: int, end_ns: int | None) -> None:
        """Tell host functions and the descriptor when the call must have ended, and the memory what it begins with."""
        descriptor, state = self._order, self._state
        state.services = services
        state.arm(now_ns, end_ns)
        descriptor.keeps = brief = self._brief
        descriptor.ticks = 1 if brief else self._engine.ticks(end_ns, now_ns)
        state.keeps = brief and not self._compiled
        if self._image is not None:
            self._supply(self._image)

    def _clean(self, drain: Callable[[], bool] | None, began_ns: int) -> None:
        """Undo what compiled code has not undone at a call's end, and forget the call."""
        state = self._state
        try:
            if self._image is not None:
                memory_creator.supply(None)
            if self._order.store:
                self._delete(drain, time.monotonic_ns() - began_ns)
            if not self._compiled:
                self._brief = self._may_keep and time.monotonic_ns() - began_ns < QUICK_NS
        finally:
            interrupted = state.error
            state.end()
            if not self._stuck:
                self._engine.release_slot()
        if interrupted is not None:  # a signal's handler raised it while the sandbox was deleted
            raise interrupted

    def cancel(self) -> None:
        """End the running call, or else the next one, from any thread: it raises `GuestTrap` named ``cancelled``."""
        self._state.cancel()

    def close(self) -> None:
        """Recycle the session layout; its session must be closed. Idempotent."""
        self.give_wasi(None)
        state = STATES.pop(self._state.token, None) if not self._stuck else None
        if state is not None and state.layout is not None:
            return_layout(state.layout)

    @property
    def wasi(self) -> WasiState | None:
        """The host's side of the last call's WASI context; None without."""
        return self._state.wasi

    def give_wasi(self, config: WasiConfig | None) -> None:
        """Give the next call of a module with WASI its context, without directories; one that no store got is freed.

        Raises what `wasi.prepare` raises.
        """
        descriptor, state = self._order, self._state
        if descriptor.wasi:
            KEEPING.wasi_config_delete(descriptor.wasi)
            descriptor.wasi = 0
        state.wasi = None  # its rows may be another sandbox's soon
        if config is not None:
            output_bytes = self._limits.output_bytes
            state.wasi, descriptor.wasi = wasi.prepare(state.token, config, output_bytes, self._rows)

    def _supply(self, image: Image) -> None:
        """Have the next memory of this thread made of the image."""
        most_bytes = self._limits.memory_bytes
        memory_creator.supply(lambda _size, _capacity: image.map(self._owner), most_bytes, image.size_bytes)

    def _raise_failure(self, status: int) -> bool:
        """Raise what went wrong in a call; return whether the guest left by itself, in `exit_code` with what."""
        if status == CallStatus.UNBOUND:
            raise DeviceLost("the context that this process had on the GPU is gone")
        if status == CallStatus.UNCLEARED:
            raise NotCleared
        try:
            raise_outcome(self._order, self._state)
        except GuestExit as left:
            if status == CallStatus.INITIALISING:
                raise
            self.exit_code = left.code
        except GuestTrap:
            refusal = memory_creator.refusal() if self._image is not None else None
            if refusal is not None:
                raise refusal from None
            raise
        if status == CallStatus.FINDING:
            raise InternalError("an export of the module is missing")
        return status in {CallStatus.CALLING, CallStatus.INITIALISING}

    def _delete(self, drain: Callable[[], bool] | None, spent_ns: int) -> None:
        """Delete a sandbox that compiled code has left, unless a device may still reach its memory."""
        descriptor = self._order
        store, descriptor.store, descriptor.context = descriptor.store, 0, 0
        free_outcome(descriptor)
        if drain is not None:
            _abandoned[store], self._stuck = self._linked, True  # stays so if the drain raises
            if not drain():
                return
            del _abandoned[store]
            self._stuck = False
        shielded(self._state, close_store, store, spent_ns)

    def _describe(self, export: str, initialiser: str | None, saved: SavedStart | None) -> CallDescriptor:
        linked, callbacks = self._linked, load_callbacks() if self._compiled else None
        first = ctypes.create_string_buffer(initialiser.encode()) if initialiser is not None else None
        descriptor, name = describe_call(linked, export, self._state, self._limits)
        writes, names = _make_writes(saved.globals if saved is not None else ())
        self._referenced = name, first, writes, names  # the descriptor holds their addresses
        descriptor.on_epoch = callbacks.on_epoch if callbacks is not None else ON_EPOCH_AT
        descriptor.on_epoch_object = id(on_epoch)
        descriptor.interpreter = ctypes.addressof(INTERPRETER)
        if first is not None:
            descriptor.initialiser, descriptor.initialiser_bytes = ctypes.addressof(first), len(first) - 1
        descriptor.memory = ctypes.addressof(_MEMORY) if linked.needs_layout else 0
        descriptor.keeps, descriptor.ticks = self._brief, 1
        descriptor.cells, descriptor.cell_count = ctypes.addressof(self._cells), self._plan.cell_count
        descriptor.writes, descriptor.write_count = ctypes.addressof(writes), len(writes)
        return descriptor


def describe_call(
    linked: LinkedModule, export: str, state: GuestState, limits: Limits
) -> tuple[CallDescriptor, ctypes.Array[ctypes.c_char]]:
    """Return what all call descriptors of one-shot sandboxes have in common, and the name that it refers to."""
    name = ctypes.create_string_buffer(export.encode())
    descriptor = CallDescriptor(
        calls=ctypes.addressof(WASMTIME),
        engine=state.engine.address,
        layout=state.token,
        memory_bytes=limits.memory_bytes,
        table_elements=min(limits.table_elements, MAX_TABLE_ELEMENTS),
        tables=MAX_TABLES,
        prepared=linked.address,
        export=ctypes.addressof(name),
        export_bytes=len(name) - 1,
        memory=ctypes.addressof(_MEMORY) if "memory" in linked.module.exports else 0,
        memory_name_bytes=len(_MEMORY) - 1,
    )
    return descriptor, name


def raise_outcome(descriptor: CallDescriptor, state: GuestState) -> None:
    """Raise the trap or the error of a call, if there is one, and free it."""
    trap, error = ctypes.c_size_t(descriptor.trap), descriptor.error
    descriptor.trap = descriptor.error = 0
    state.context = descriptor.context
    take_outcome(state, trap, error)


def free_outcome(descriptor: CallDescriptor) -> None:
    """Free a trap and an error that were not raised, because something else was."""
    if descriptor.trap:
        KEEPING.wasm_trap_delete(descriptor.trap)
    if descriptor.error:
        capi.take_error(descriptor.error)
    descriptor.trap = descriptor.error = 0


def _make_writes(globals: tuple[tuple[str, str, int], ...]) -> tuple[Any, list[Any]]:  # noqa: A002 - what they are
    """Return the globals to set as C structures, and the names that those refer to."""
    names = [ctypes.create_string_buffer(name.encode()) for name, _, _ in globals]
    writes = (GlobalWrite * len(globals))()
    for write, name, (_, kind, bits) in zip(writes, names, globals, strict=True):
        write.name, write.name_bytes = ctypes.addressof(name), len(name) - 1
        value_at = ctypes.addressof(write) + _VALUE
        ctypes.memmove(value_at, bytes((capi.GLOBAL_KINDS[kind],)), 1)
        ctypes.memmove(value_at + capi.VALUE_PAYLOAD_OFFSET, bits.to_bytes(16, "little"), 16)
    return writes, names
