"""Compiled entries of asynchronous host functions, and the notification that a wait has ended.

On the guest's fiber, `suspend` records the call in the session layout, tries the compiled host function, and sets the
continuation `ready`: wasmtime suspends the fiber until that returns true. The reactor writes the answer, sets ``done``
and polls again. A device calls `complete` on its own thread when the guest's work has ended.

Source: wasmtime.h, ``wasmtime_func_async_callback_t``, ``wasmtime_async_continuation_t``.
"""

from __future__ import annotations

from typing import Any, Final

from numba import types, uint8, uint32, uint64

from tensorwasm.guest.native.checks import compiled, find_context, find_session
from tensorwasm.guest.native.intrinsics import (
    call_u8,
    call_u64,
    compare_exchange_u64,
    exchange_u64,
    load_u8,
    load_u32,
    load_u64,
    store_u8,
    store_u64,
)
from tensorwasm.guest.native.layout import (
    CELL,
    COMPLETIONS,
    ENV,
    EXTERN_MEMORY,
    EXTERN_PAYLOAD,
    ONE,
    SESSION,
    SUSPENSION,
    VALUE,
    VALUE_PAYLOAD,
    WAIT,
    WAIT_PARAMS,
    WANTS,
    WORD,
    ZERO,
)

NAME_BYTES: Final = uint64(len("memory"))


@compiled
def note_memory(env: int, caller: int, context: int, wait: int) -> None:
    """Record where the guest's exported memory is and its size, zeros if there is none."""
    item, environment = wait + WAIT.item, load_u64(env + SUSPENSION.environment)
    store_u64(wait + WAIT.memory_at, ZERO)
    store_u64(wait + WAIT.memory_bytes, ZERO)
    name = load_u64(env + SUSPENSION.memory_name)
    found = call_u8(load_u64(env + SUSPENSION.caller_export_get), (caller, name, NAME_BYTES, item))
    if found & uint8(1) != uint8(0) and load_u8(item) == EXTERN_MEMORY:
        memory = item + EXTERN_PAYLOAD
        store_u64(wait + WAIT.memory_at, call_u64(load_u64(environment + ENV.memory_data), (context, memory)))
        store_u64(wait + WAIT.memory_bytes, call_u64(load_u64(environment + ENV.memory_data_size), (context, memory)))


@compiled
def note_params(wait: int, args: int, count: int) -> None:
    """Copy parameters into cells; 32-bit ones without their undefined upper half."""
    for index in range(min(count, WAIT_PARAMS)):
        value = args + VALUE * index
        cell = wait + WAIT.cells + CELL * index
        if load_u8(value) & uint8(1) == uint8(0):  # i32 and f32 are 0 and 2
            store_u64(cell, uint64(load_u32(value + VALUE_PAYLOAD)))
        else:
            store_u64(cell, load_u64(value + VALUE_PAYLOAD))


@compiled
def try_fast(env: int, caller: int, wait: int, count: int, results: int, trap_at: int) -> None:
    """Call the compiled host function: it completes the call, or records that it wants Python."""
    cells = wait + WAIT.cells
    trap = call_u64(load_u64(env + SUSPENSION.fast), (load_u64(env + SUSPENSION.environment), caller, cells, count))
    if load_u64(wait + WAIT.kind) == ZERO:
        store_u64(results + VALUE_PAYLOAD, load_u64(cells))
        store_u64(trap_at, trap)
        store_u64(wait + WAIT.done, ONE)


def suspend(
    env: int, caller: int, args: int, count: int, results: int, result_count: int, trap_at: int, continuation: int
) -> None:
    """Begin an asynchronous host function. ``env`` is a `Suspension`; the continuation's is the session's `Wait`."""
    environment = load_u64(env + SUSPENSION.environment)
    context = find_context(environment, caller)
    wait = find_session(environment, context) + SESSION.wait
    store_u64(wait + WAIT.done, ZERO)
    store_u64(wait + WAIT.kind, ZERO)
    store_u64(wait + WAIT.function, load_u64(env + SUSPENSION.function))
    store_u64(wait + WAIT.results_at, results)
    store_u64(wait + WAIT.trap_at, trap_at)
    note_params(wait, args, count)
    if result_count != ZERO:
        store_u8(results, uint8(load_u64(env + SUSPENSION.result)))
        store_u64(results + VALUE_PAYLOAD, ZERO)
    store_u64(continuation, load_u64(env + SUSPENSION.ready))
    store_u64(continuation + WORD, wait)
    if load_u64(env + SUSPENSION.fast) != ZERO:
        try_fast(env, caller, wait, count, results, trap_at)
    else:
        store_u64(wait + WAIT.kind, WANTS.CALL)
    if load_u64(wait + WAIT.kind) != ZERO:
        note_memory(env, caller, context, wait)


def ready(wait: int) -> int:
    """Return whether the answer has been written."""
    return uint8(load_u64(wait + WAIT.done) != ZERO)


@compiled
def note(env: int, caller: int, kind: int) -> int:
    """Record what the guest wants, and return no trap."""
    store_u64(find_session(env, find_context(env, caller)) + SESSION.wait + WAIT.kind, kind)
    return ZERO


def note_call(env: int, caller: int, cells: int, count: int) -> int:
    """Record that a host function wants its fallback."""
    return note(env, caller, WANTS.CALL)


def note_finish(env: int, caller: int, cells: int, count: int) -> int:
    """Record that a host function has started work to wait for."""
    return note(env, caller, WANTS.FINISH)


def complete(wait: int) -> None:
    """Push a wait onto its reactor's list; wake the reactor if the list was empty, so that one wake serves many."""
    completions = load_u64(wait + WAIT.queue)
    head = completions + COMPLETIONS.head
    seen = load_u64(head)
    store_u64(wait + WAIT.next, seen)
    found = compare_exchange_u64(head, seen, wait)
    while found != seen:
        seen = found
        store_u64(wait + WAIT.next, seen)
        found = compare_exchange_u64(head, seen, wait)
    if seen == ZERO:
        descriptor = uint32(load_u64(completions + COMPLETIONS.descriptor))
        call_u64(load_u64(completions + COMPLETIONS.write), (descriptor, completions + COMPLETIONS.one, WORD))


def take(completions: int) -> int:
    """Empty a reactor's list. Return the `Wait` that was pushed last, which links to the one before."""
    return exchange_u64(completions + COMPLETIONS.head, ZERO)


HOST_SIGNATURE: Final = ((uint64,) * 4, uint64)
SIGNATURES: Final[dict[str, tuple[Any, tuple[Any, Any]]]] = {
    "suspend": (suspend, ((uint64,) * 8, types.void)),
    "ready": (ready, ((uint64,), uint8)),
    "note_call": (note_call, HOST_SIGNATURE),
    "note_finish": (note_finish, HOST_SIGNATURE),
    "complete": (complete, ((uint64,), types.void)),
    "take": (take, ((uint64,), uint64)),
}
