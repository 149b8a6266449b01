"""A sandbox on a fiber, from its store to where its guest is suspended first, or to its end, in one call.

`tensorwasm.guest.sandbox.oneshot_fiber` prepares the order and does whatever comes after that; see there for the
rules. Nothing here touches the interpreter: whether the GIL is kept is its caller's business.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from numba import uint8, uint64

from tensorwasm.guest.native.call_descriptor import CallStatus
from tensorwasm.guest.native.checks import compiled
from tensorwasm.guest.native.compiled import compile_function, open_cache
from tensorwasm.guest.native.intrinsics import call_u8, call_u64, call_void, load_u64, store_u64
from tensorwasm.guest.native.layout import CALLS, EXTERN_PAYLOAD, ONE, ORDER, ZERO
from tensorwasm.guest.native.oneshot import clean, find_export, function, note_memory, open_store

DONE: Final = uint64(CallStatus.DONE)
INSTANTIATING: Final = uint64(CallStatus.INSTANTIATING)
FINDING: Final = uint64(CallStatus.FINDING)
CALLING: Final = uint64(CallStatus.CALLING)
SUSPENDED: Final = uint64(CallStatus.SUSPENDED)


@compiled
def advance(order: int, future: int) -> bool:
    """Run a future until it is suspended or done; note it, or free it. Return whether it is done."""
    store_u64(order + ORDER.future, future)
    if call_u8(function(order, CALLS.call_future_poll), (future,)) & uint8(1) == uint8(0):
        return False
    store_u64(order + ORDER.future, ZERO)
    call_void(function(order, CALLS.call_future_delete), (future,))
    return True


@compiled
def fell(order: int) -> bool:
    """Return whether there is an error or a trap."""
    return load_u64(order + ORDER.error) != ZERO or load_u64(order + ORDER.trap) != ZERO


@compiled
def set_out(order: int, pad: int) -> int:
    """Make the sandbox and call it, for a slice. Return how far that got."""
    context = open_store(order, pad)
    instance, trap, error = order + ORDER.instance, order + ORDER.trap, order + ORDER.error
    store_u64(trap, ZERO)
    store_u64(error, ZERO)
    call_void(function(order, CALLS.context_set_epoch_deadline), (context, ONE))
    call_void(function(order, CALLS.context_epoch_deadline_async_yield_and_update), (context, ONE))
    make = function(order, CALLS.instance_pre_instantiate_async)
    made = advance(order, call_u64(make, (load_u64(order + ORDER.prepared), context, instance, trap, error)))
    if not made or fell(order):
        return INSTANTIATING
    note_memory(order, context, pad)
    if not find_export(order, context, load_u64(order + ORDER.export), load_u64(order + ORDER.export_bytes)):
        return FINDING
    call, callee = function(order, CALLS.func_call_async), order + ORDER.item + EXTERN_PAYLOAD
    params, param_count = load_u64(order + ORDER.cells), load_u64(order + ORDER.cell_count)
    results, result_count = load_u64(order + ORDER.results), load_u64(order + ORDER.result_count)
    future = call_u64(call, (context, callee, params, param_count, results, result_count, trap, error))
    if not advance(order, future):
        return SUSPENDED
    return CALLING if fell(order) else DONE


def voyage(order: int) -> int:
    """Do what an `Order` says, on a fiber; return a `CallStatus`. For sandboxes without a device."""
    pad = load_u64(order + ORDER.pad)
    stop = set_out(order, pad)
    if stop == DONE:
        clean(order, pad)
    return stop


_SIGNATURE: Final[tuple[Any, Any]] = ((uint64,), uint64)


def make_voyage() -> int:
    """Compile what is here, or take it from the cache; return its address."""
    code: Callable[..., Any] = voyage
    address: int = compile_function(code, open_cache(), _SIGNATURE).address
    return address
