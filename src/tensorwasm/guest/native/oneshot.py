"""A sandbox from its store to its end in one compiled call, on the caller's stack or on a fiber.

`tensorwasm.guest.sandbox.oneshot` and `oneshot_fiber` prepare the `CallDescriptor` and handle outcomes but success.
On a fiber the call returns when the guest is first suspended or ends, and never touches the interpreter.
"""

from __future__ import annotations

from typing import Final

from numba import uint8, uint64

from tensorwasm.guest.native.callbacks import release_gil
from tensorwasm.guest.native.checks import compiled, is_current
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
    CALL,
    CLEAR,
    CLEAR_ROWS,
    CLEARING_REFUSED,
    DRIVER,
    EXTERN_MEMORY,
    EXTERN_PAYLOAD,
    INTERPRETER,
    NOT_READY,
    ONE,
    SCRATCH,
    SESSION,
    STATUS,
    STREAM,
    SUCCESS,
    WASMTIME,
    WRITE,
    ZERO,
)

MEMORY_BYTES: Final = uint64(24)
MOST_LOOKS: Final = uint64(4096)
"""At whether a window has been cleared, of about a microsecond each, before Python waits for it."""
BOUND: Final = uint64(0)
PUSHED: Final = uint64(1)
REFUSED: Final = uint64(2)


@compiled
def function(call: int, offset: int) -> int:
    """Return the address of a wasmtime function."""
    return load_u64(load_u64(call + CALL.calls) + offset)


@compiled
def bind(session: int) -> int:
    """Make the device's context current. Return whether nothing was to be done, it was pushed, or that failed."""
    driver = load_u64(session + SESSION.driver)
    if driver == ZERO:
        return BOUND
    at, identify = load_u64(session + SESSION.scratch) + SCRATCH.values, load_u64(driver + DRIVER.context_id)
    context = load_u64(driver + DRIVER.context)
    # A context that was reset has another number, or none.
    if identify != ZERO and (
        call_i32(identify, (context, at)) != SUCCESS or load_u64(at) != load_u64(driver + DRIVER.context_number)
    ):
        return REFUSED
    if is_current(session):
        return BOUND
    push = load_u64(driver + DRIVER.context_push)
    if push == ZERO or call_i32(push, (context,)) != SUCCESS:
        return REFUSED
    return PUSHED


@compiled
def unbind(session: int) -> None:
    """Restore the previous context."""
    pop = load_u64(load_u64(session + SESSION.driver) + DRIVER.context_pop)
    call_i32(pop, (load_u64(session + SESSION.scratch) + SCRATCH.values,))


@compiled
def open_store(call: int, session: int) -> int:
    """Make the store with its limits. Return its context."""
    store = call_u64(function(call, WASMTIME.store_new), (load_u64(call + CALL.engine), session, ZERO))
    context = call_u64(function(call, WASMTIME.store_context), (store,))
    store_u64(call + CALL.store, store)
    store_u64(call + CALL.context, context)
    call_void(
        function(call, WASMTIME.store_limiter),
        (
            store,
            load_u64(call + CALL.memory_bytes),
            load_u64(call + CALL.table_elements),
            ONE,
            load_u64(call + CALL.tables),
            ONE,
        ),
    )
    return context


@compiled
def has_failed(call: int) -> bool:
    """Return whether there is an error or a trap."""
    return load_u64(call + CALL.error) != ZERO or load_u64(call + CALL.trap) != ZERO


@compiled
def note_error(call: int, error: int) -> bool:
    """Record an error. Return whether there is one, or a trap."""
    store_u64(call + CALL.error, error)
    return has_failed(call)


@compiled
def give_wasi(call: int, context: int) -> bool:
    """Give the store its WASI context, if there is one. Return whether wasmtime took it."""
    config = load_u64(call + CALL.wasi)
    if config == ZERO:
        return True
    store_u64(call + CALL.wasi, ZERO)
    return not note_error(call, call_u64(function(call, WASMTIME.context_set_wasi), (context, config)))


@compiled
def find_export(call: int, context: int, name: int, name_bytes: int) -> bool:
    """Return whether the instance has an export; it is put into ``item``."""
    get = function(call, WASMTIME.instance_export_get)
    found = call_u8(get, (context, call + CALL.instance, name, name_bytes, call + CALL.item))
    return found & uint8(1) != uint8(0)


@compiled
def note_memory(call: int, context: int, session: int) -> None:
    """Record the guest's exported memory for the host functions."""
    store_u64(session + SESSION.memory, ZERO)
    name = load_u64(call + CALL.memory)
    if name == ZERO or not find_export(call, context, name, load_u64(call + CALL.memory_name_bytes)):
        return
    if load_u8(call + CALL.item) == EXTERN_MEMORY:
        copy_bytes(session + SESSION.memory, call + CALL.item + EXTERN_PAYLOAD, MEMORY_BYTES)


@compiled
def put_globals(call: int, context: int) -> bool:
    """Set the globals of ``writes``. Return whether that succeeded."""
    write = load_u64(call + CALL.writes)
    end = write + load_u64(call + CALL.write_count) * WRITE.size
    put = function(call, WASMTIME.global_set)
    while write != end:
        if not find_export(call, context, load_u64(write + WRITE.name), load_u64(write + WRITE.name_bytes)):
            return False
        error = call_u64(put, (context, call + CALL.item + EXTERN_PAYLOAD, write + WRITE.value))
        if error != ZERO:
            store_u64(call + CALL.error, error)
            return False
        write += WRITE.size
    return True


@compiled
def call_export(call: int, name: int, name_bytes: int, cell_count: int) -> int:
    """Call an export with ``cells``. Return how far that got."""
    context = load_u64(call + CALL.context)
    if not find_export(call, context, name, name_bytes):
        return STATUS.FINDING
    invoke, callee = function(call, WASMTIME.func_call_unchecked), call + CALL.item + EXTERN_PAYLOAD
    error = call_u64(invoke, (context, callee, load_u64(call + CALL.cells), cell_count, call + CALL.trap))
    return STATUS.CALLING if note_error(call, error) else STATUS.DONE


@compiled
def make(call: int, session: int) -> int:
    """Make the sandbox. Return how far that got."""
    context = open_store(call, session)
    on_epoch = load_u64(call + CALL.on_epoch)
    call_void(
        function(call, WASMTIME.store_epoch_deadline_callback), (load_u64(call + CALL.store), on_epoch, call, ZERO)
    )
    instance, trap = call + CALL.instance, call + CALL.trap
    store_u64(trap, ZERO)
    if not give_wasi(call, context):
        return STATUS.INSTANTIATING
    instantiate = function(call, WASMTIME.instance_pre_instantiate)
    if note_error(call, call_u64(instantiate, (load_u64(call + CALL.prepared), context, instance, trap))):
        return STATUS.INSTANTIATING
    note_memory(call, context, session)
    if not put_globals(call, context):
        return STATUS.FINDING
    call_void(function(call, WASMTIME.context_set_epoch_deadline), (context, load_u64(call + CALL.ticks)))
    return STATUS.DONE


@compiled
def make_and_call(call: int, session: int) -> int:
    """Make the sandbox and call it. Return how far that got."""
    status, initialiser = make(call, session), load_u64(call + CALL.initialiser)
    if status == STATUS.DONE and initialiser != ZERO:
        status = call_export(call, initialiser, load_u64(call + CALL.initialiser_bytes), ZERO)
        if status == STATUS.CALLING:
            return STATUS.INITIALISING
    if status == STATUS.DONE:
        name, name_bytes = load_u64(call + CALL.export), load_u64(call + CALL.export_bytes)
        status = call_export(call, name, name_bytes, load_u64(call + CALL.cell_count))
    if status != STATUS.DONE:
        return status
    # Memory that the device could still write to is not unmapped here.
    if load_u64(session + SESSION.pending) != ZERO or load_u64(session + SESSION.reach_bytes) != ZERO:
        return STATUS.HELD
    return STATUS.DONE


@compiled
def own_stream(session: int) -> int:
    """Return the driver's handle of stream 0."""
    return load_u64(session + SESSION.streams + STREAM.stream)


@compiled
def is_cleared(session: int) -> bool:
    """Return whether the device has cleared what the guest before has left, after a short wait."""
    if load_u64(session + SESSION.clearing) == ZERO:
        return True
    query, stream = load_u64(load_u64(session + SESSION.driver) + DRIVER.stream_query), own_stream(session)
    left, code = MOST_LOOKS, NOT_READY
    while left != ZERO and code == NOT_READY:
        code = call_i32(query, (stream,))
        left -= ONE
    if code != SUCCESS:
        return False
    store_u64(session + SESSION.clearing, ZERO)
    return True


@compiled
def start_clearing(session: int) -> bool:
    """Tell the device to clear the session's window for the next guest. Return whether it takes that."""
    memset = load_u64(load_u64(session + SESSION.driver) + DRIVER.memset_d8_async)
    row, end = session + SESSION.clear, session + SESSION.clear + CLEAR_ROWS * CLEAR.size
    if memset == ZERO or load_u64(row + CLEAR.size_bytes) == ZERO:
        return False
    store_u64(session + SESSION.clearing, ONE)
    while row != end and load_u64(row + CLEAR.size_bytes) != ZERO:
        given = (load_u64(row + CLEAR.address), ZERO, load_u64(row + CLEAR.size_bytes), own_stream(session))
        if call_i32(memset, given) != SUCCESS:
            store_u64(session + SESSION.clearing, CLEARING_REFUSED)
            return False
        row += CLEAR.size
    return True


@compiled
def clean(call: int, session: int, launched: int) -> None:
    """Delete the store, and clear what is left for the next guest: all of the window, or the slot alone."""
    call_void(function(call, WASMTIME.store_delete), (load_u64(call + CALL.store),))
    store_u64(call + CALL.store, ZERO)
    store_u64(call + CALL.context, ZERO)
    store_u64(session + SESSION.memory, ZERO)
    used = load_u64(session + SESSION.stage_used)
    reached = load_u64(session + SESSION.window_at) != ZERO and load_u64(session + SESSION.launched) != launched
    if reached and start_clearing(session):
        store_u64(session + SESSION.stage_used, ZERO)
    elif used != ZERO and not reached:
        fill_bytes(load_u64(session + SESSION.stage_view), uint8(0), used)
        store_u64(session + SESSION.stage_used, ZERO)


@compiled
def run_cleared(call: int, session: int) -> int:
    """Run a call in a session whose window is clear. Return how far that got."""
    launched = load_u64(session + SESSION.launched)
    store_u64(session + SESSION.visited, ONE)
    status = make_and_call(call, session)
    if status == STATUS.DONE:
        clean(call, session, launched)
    store_u64(session + SESSION.visited, ZERO)
    return status


@compiled
def run_bound(call: int) -> int:
    """Run a call with the device's context current. Return how far that got."""
    session = load_u64(call + CALL.layout)
    bound = bind(session)
    if bound == REFUSED:
        return STATUS.UNBOUND
    status = run_cleared(call, session) if is_cleared(session) else STATUS.UNCLEARED
    if bound == PUSHED:
        unbind(session)
    return status


def run_oneshot(call: int) -> int:
    """Run a `CallDescriptor`; return a `CallStatus`. Called with the GIL; a Python error may be set on return."""
    if load_u64(call + CALL.keeps) == ZERO:
        release_gil(call)
    status = run_bound(call)
    thread = load_u64(call + CALL.thread)
    if thread != ZERO:
        store_u64(call + CALL.thread, ZERO)
        call_void(load_u64(load_u64(call + CALL.interpreter) + INTERPRETER.restore), (thread,))
    return status


# --------------------------------------------------------------------------------------------------- on a fiber


@compiled
def advance(call: int, future: int) -> bool:
    """Poll a future; keep it, or free it if it is done. Return whether it is done."""
    store_u64(call + CALL.future, future)
    if call_u8(function(call, WASMTIME.call_future_poll), (future,)) & uint8(1) == uint8(0):
        return False
    store_u64(call + CALL.future, ZERO)
    call_void(function(call, WASMTIME.call_future_delete), (future,))
    return True


@compiled
def make_and_start(call: int, session: int) -> int:
    """Make the sandbox and run it for a slice. Return how far that got."""
    context = open_store(call, session)
    instance, trap, error = call + CALL.instance, call + CALL.trap, call + CALL.error
    store_u64(trap, ZERO)
    store_u64(error, ZERO)
    call_void(function(call, WASMTIME.context_set_epoch_deadline), (context, ONE))
    call_void(function(call, WASMTIME.context_epoch_deadline_async_yield_and_update), (context, ONE))
    make = function(call, WASMTIME.instance_pre_instantiate_async)
    made = advance(call, call_u64(make, (load_u64(call + CALL.prepared), context, instance, trap, error)))
    if not made or has_failed(call):
        return STATUS.INSTANTIATING
    note_memory(call, context, session)
    if not find_export(call, context, load_u64(call + CALL.export), load_u64(call + CALL.export_bytes)):
        return STATUS.FINDING
    invoke, callee = function(call, WASMTIME.func_call_async), call + CALL.item + EXTERN_PAYLOAD
    params, param_count = load_u64(call + CALL.cells), load_u64(call + CALL.cell_count)
    results, result_count = load_u64(call + CALL.results), load_u64(call + CALL.result_count)
    future = call_u64(invoke, (context, callee, params, param_count, results, result_count, trap, error))
    if not advance(call, future):
        return STATUS.SUSPENDED
    return STATUS.CALLING if has_failed(call) else STATUS.DONE


def run_oneshot_fiber(call: int) -> int:
    """Start a `CallDescriptor` on a fiber; return a `CallStatus`. For sandboxes without a device."""
    session = load_u64(call + CALL.layout)
    status = make_and_start(call, session)
    if status == STATUS.DONE:
        clean(call, session, load_u64(session + SESSION.launched))
    return status
