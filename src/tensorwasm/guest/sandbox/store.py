"""What every sandbox does with its store, whether it is called on a thread or runs as a fiber."""

from __future__ import annotations

import ctypes
import math
from typing import Final

from tensorwasm.errors import CapacityExhausted, GuestExit, GuestTrap
from tensorwasm.guest.engine import capi, traps
from tensorwasm.guest.engine.engine import MAX_TABLE_ELEMENTS, MAX_TABLES
from tensorwasm.guest.engine.module import CompiledModule
from tensorwasm.guest.sandbox.state import STATES, GuestState
from tensorwasm.values import MIB, Deadline, Limits

START_CEILING_S: Final = 30.0
"""Longest that a start function may run."""

QUICK_NS: Final = 1_000_000
"""A guest that ran longer may have touched so much memory that freeing it takes long."""

_QUICK_BYTES: Final = MIB
_REFUSALS: Final = (  # wasmtime's words; slots are counted and mappings reserved before, so this is a second line
    ("maximum concurrent", "the pool is full; try again later"),
    ("os error 12", "the system has no memory, or this process no mappings left (vm.max_map_count); try again later"),
)

_store_new: Final = capi.bind("wasmtime_store_new")
_store_context: Final = capi.bind("wasmtime_store_context")
_store_delete: Final = capi.bind("wasmtime_store_delete")
_store_delete_slowly: Final = capi.bind_releasing("wasmtime_store_delete")
_store_limiter: Final = capi.bind("wasmtime_store_limiter")


def open_store(state: GuestState, limits: Limits) -> int:
    """Return the address of a new store for a sandbox, which is known by its token from now on."""
    store: int = _store_new(state.engine.address, state.token, None)
    state.context = _store_context(store)
    table_elements = min(limits.table_elements, MAX_TABLE_ELEMENTS)
    _store_limiter(store, limits.memory_bytes, table_elements, 1, MAX_TABLES, 1)
    STATES[state.token] = state
    return store


def close_store(store: int, spent_ns: int) -> None:
    """Free a store and all that is in it.

    Args:
        store: from `open_store`.
        spent_ns: how long its guest ran.
    """
    (_store_delete if spent_ns < QUICK_NS else _store_delete_slowly)(store)


def is_quick(module: CompiledModule) -> bool:
    """Return whether instantiating runs nothing of the guest and copies little, so that it may keep the GIL."""
    small = module.size_bytes < _QUICK_BYTES or module.engine.config.images  # there memory is mapped, not copied
    return small and not module.preamble.has_start


def take_outcome(state: GuestState, trap: ctypes.c_size_t, error: int | None) -> bool:
    """Raise what went wrong in a call; return whether the guest left through ``proc_exit(0)``.

    Args:
        state: the sandbox; what host code raised is taken from it.
        trap: where wasmtime put the trap; it is freed.
        error: wasmtime's error, or None; it is freed.

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
            traps.delete_trap(address)
        if isinstance(raised, GuestExit) and raised.code == 0:
            return True
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
        _refuse(text)
    return False


def _refuse(text: str) -> None:
    for words, meaning in _REFUSALS:
        if words in text:
            raise CapacityExhausted(meaning)
    raise GuestTrap(f"{traps.OTHER}: {text}", traps.OTHER)


def earlier(deadline: Deadline | None, now_ns: int, ceiling_s: float) -> int | None:
    """Return the monotonic time at which a call must have ended, None for never."""
    asked_ns = deadline.at_ns if deadline is not None else None
    if math.isinf(ceiling_s * 1e9):
        return asked_ns
    ceiling_ns = now_ns + int(ceiling_s * 1e9)
    return ceiling_ns if asked_ns is None or asked_ns > ceiling_ns else asked_ns
