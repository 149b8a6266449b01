"""A sandbox from its store to its end in one call of compiled code: what a fresh sandbox costs beside its guest.

`tensorwasm.guest.sandbox.oneshot` prepares the order and does whatever does not go as planned; see there for the rules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from numba import uint8, uint64

from tensorwasm.guest.native.call_descriptor import CallStatus
from tensorwasm.guest.native.checks import compiled, is_current
from tensorwasm.guest.native.compiled import compile_function, open_cache
from tensorwasm.guest.native.fallback import let_go
from tensorwasm.guest.native.intrinsics import (
    call_i32,
    call_u8,
    call_u64,
    call_void,
    copy_bytes,
    fill_bytes,
    load_u8,
    load_u64,
    store_u64,
)
from tensorwasm.guest.native.layout import (
    CALLS,
    DRIVER,
    EXTERN_MEMORY,
    EXTERN_PAYLOAD,
    INTERPRETER,
    ONE,
    ORDER,
    PAD,
    SCRATCH,
    SUCCESS,
    WRITE,
    ZERO,
)

DONE: Final = uint64(CallStatus.DONE)
UNBOUND: Final = uint64(CallStatus.UNBOUND)
INSTANTIATING: Final = uint64(CallStatus.INSTANTIATING)
FINDING: Final = uint64(CallStatus.FINDING)
CALLING: Final = uint64(CallStatus.CALLING)
HELD: Final = uint64(CallStatus.HELD)
MEMORY_BYTES: Final = uint64(24)
ALREADY: Final = uint64(0)
PUSHED: Final = uint64(1)
REFUSED: Final = uint64(2)


@compiled
def function(order: int, offset: int) -> int:
    """Return the address of one of wasmtime's functions."""
    return load_u64(load_u64(order + ORDER.calls) + offset)


@compiled
def bind(pad: int) -> int:
    """Make the device's context current, if the sandbox has a device. Return whether it was, is now, or cannot be."""
    driver = load_u64(pad + PAD.driver)
    if driver == ZERO:
        return ALREADY
    at, identify = load_u64(pad + PAD.scratch) + SCRATCH.values, load_u64(driver + DRIVER.context_id)
    context = load_u64(driver + DRIVER.context)
    # A context that was reset under us has another number, or none.
    if identify != ZERO and (
        call_i32(identify, (context, at)) != SUCCESS or load_u64(at) != load_u64(driver + DRIVER.context_number)
    ):
        return REFUSED
    if is_current(pad):
        return ALREADY
    push = load_u64(driver + DRIVER.context_push)
    if push == ZERO or call_i32(push, (context,)) != SUCCESS:
        return REFUSED
    return PUSHED


@compiled
def unbind(pad: int) -> None:
    """Make current again what was."""
    pop = load_u64(load_u64(pad + PAD.driver) + DRIVER.context_pop)
    call_i32(pop, (load_u64(pad + PAD.scratch) + SCRATCH.values,))


@compiled
def open_store(order: int, pad: int) -> int:
    """Make the store, with its limits. Return its context."""
    store = call_u64(function(order, CALLS.store_new), (load_u64(order + ORDER.engine), pad, ZERO))
    context = call_u64(function(order, CALLS.store_context), (store,))
    store_u64(order + ORDER.store, store)
    store_u64(order + ORDER.context, context)
    call_void(
        function(order, CALLS.store_limiter),
        (
            store,
            load_u64(order + ORDER.memory_bytes),
            load_u64(order + ORDER.table_elements),
            ONE,
            load_u64(order + ORDER.tables),
            ONE,
        ),
    )
    return context


@compiled
def failed(order: int, error: int) -> bool:
    """Note an error; return whether there is one, or a trap."""
    store_u64(order + ORDER.error, error)
    return error != ZERO or load_u64(order + ORDER.trap) != ZERO


@compiled
def find_export(order: int, context: int, name: int, name_bytes: int) -> bool:
    """Return whether the instance has an export; it is the order's item then."""
    get = function(order, CALLS.instance_export_get)
    found = call_u8(get, (context, order + ORDER.instance, name, name_bytes, order + ORDER.item))
    return found & uint8(1) != uint8(0)


@compiled
def note_memory(order: int, context: int, pad: int) -> None:
    """Tell the host functions which memory is the guest's."""
    store_u64(pad + PAD.memory, ZERO)
    name = load_u64(order + ORDER.memory)
    if name == ZERO or not find_export(order, context, name, load_u64(order + ORDER.memory_name_bytes)):
        return
    if load_u8(order + ORDER.item) == EXTERN_MEMORY:
        copy_bytes(pad + PAD.memory, order + ORDER.item + EXTERN_PAYLOAD, MEMORY_BYTES)


@compiled
def put_globals(order: int, context: int) -> bool:
    """Set the globals that are to be set. Return whether that could be done."""
    write = load_u64(order + ORDER.writes)
    end = write + load_u64(order + ORDER.write_count) * WRITE.size
    put = function(order, CALLS.global_set)
    while write != end:
        if not find_export(order, context, load_u64(write + WRITE.name), load_u64(write + WRITE.name_bytes)):
            return False
        error = call_u64(put, (context, order + ORDER.item + EXTERN_PAYLOAD, write + WRITE.value))
        if error != ZERO:
            store_u64(order + ORDER.error, error)
            return False
        write += WRITE.size
    return True


@compiled
def call_export(order: int, name: int, name_bytes: int, cell_count: int) -> int:
    """Call an export with the order's cells. Return how far that got."""
    context = load_u64(order + ORDER.context)
    if not find_export(order, context, name, name_bytes):
        return FINDING
    call, callee = function(order, CALLS.func_call_unchecked), order + ORDER.item + EXTERN_PAYLOAD
    error = call_u64(call, (context, callee, load_u64(order + ORDER.cells), cell_count, order + ORDER.trap))
    return CALLING if failed(order, error) else DONE


@compiled
def run(order: int, pad: int) -> int:
    """Make the sandbox and call it. Return how far that got."""
    context = open_store(order, pad)
    on_epoch = load_u64(order + ORDER.on_epoch)
    call_void(
        function(order, CALLS.store_epoch_deadline_callback), (load_u64(order + ORDER.store), on_epoch, order, ZERO)
    )
    instance, trap = order + ORDER.instance, order + ORDER.trap
    store_u64(trap, ZERO)
    make = function(order, CALLS.instance_pre_instantiate)
    if failed(order, call_u64(make, (load_u64(order + ORDER.prepared), context, instance, trap))):
        return INSTANTIATING
    note_memory(order, context, pad)
    if not put_globals(order, context):
        return FINDING
    call_void(function(order, CALLS.context_set_epoch_deadline), (context, load_u64(order + ORDER.ticks)))
    stop, initialiser = DONE, load_u64(order + ORDER.initialiser)
    if initialiser != ZERO:
        stop = call_export(order, initialiser, load_u64(order + ORDER.initialiser_bytes), ZERO)
    if stop == DONE:
        name, name_bytes = load_u64(order + ORDER.export), load_u64(order + ORDER.export_bytes)
        stop = call_export(order, name, name_bytes, load_u64(order + ORDER.cell_count))
    if stop != DONE:
        return stop
    # Whatever the device could still write to is not unmapped here.
    if load_u64(pad + PAD.pending) != ZERO or load_u64(pad + PAD.reach_bytes) != ZERO:
        return HELD
    return DONE


@compiled
def clean(order: int, pad: int) -> None:
    """End the sandbox, and leave nothing of it in the slot."""
    call_void(function(order, CALLS.store_delete), (load_u64(order + ORDER.store),))
    store_u64(order + ORDER.store, ZERO)
    store_u64(order + ORDER.context, ZERO)
    store_u64(pad + PAD.memory, ZERO)
    used = load_u64(pad + PAD.stage_used)
    if used != ZERO:
        fill_bytes(load_u64(pad + PAD.stage_at), uint8(0), used)
        store_u64(pad + PAD.stage_used, ZERO)


@compiled
def go(order: int) -> int:
    """Do what an order says."""
    pad = load_u64(order + ORDER.pad)
    bound = bind(pad)
    if bound == REFUSED:
        return UNBOUND
    store_u64(pad + PAD.visited, ONE)
    stop = run(order, pad)
    if stop == DONE:
        clean(order, pad)
    store_u64(pad + PAD.visited, ZERO)
    if bound == PUSHED:
        unbind(pad)
    return stop


def visit(order: int) -> int:
    """Run a `CallDescriptor`; return a `CallStatus`. Called with the GIL; a Python error may be set on return."""
    if load_u64(order + ORDER.keeps) == ZERO:
        let_go(order)
    stop = go(order)
    thread = load_u64(order + ORDER.thread)
    if thread != ZERO:
        store_u64(order + ORDER.thread, ZERO)
        call_void(load_u64(load_u64(order + ORDER.interpreter) + INTERPRETER.restore), (thread,))
    return stop


_SIGNATURE: Final[tuple[Any, Any]] = ((uint64,), uint64)


def make_visit() -> int:
    """Compile what is here, or take it from the cache; return its address."""
    code: Callable[..., Any] = visit
    address: int = compile_function(code, open_cache(), _SIGNATURE).address
    return address
