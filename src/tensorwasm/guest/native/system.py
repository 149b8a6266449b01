"""Compiled functions beside `wasi:cuda`: ``yield``, ``deadline-remaining-ms``, and ``fd_write`` of WASI.

Their fallbacks are in `guest.imports.call` and `guest.sandbox.wasi_stdio`. ``fd_write`` is that of sandboxes without
folders. It puts what a guest writes to a captured stream into the `OutputRow` of its session layout, as long as that
has room. The descriptor's state, the limit of output and every error are Python's.
"""

from __future__ import annotations

from typing import Final

from numba import uint32, uint64

from tensorwasm.guest.native.arguments import copy_argv
from tensorwasm.guest.native.checks import answer, begin, call_fallback, compiled, find_memory, now_ns, read_i32
from tensorwasm.guest.native.intrinsics import copy_bytes, load_u32, load_u64, store_u32, store_u64
from tensorwasm.guest.native.layout import (
    HALF,
    LOW,
    MILLISECOND_NS,
    NO_DEADLINE_NS,
    NOTHING,
    ONE,
    OUTPUT,
    SCRATCH,
    SESSION,
    UNBOUNDED_MS,
    VERDICT,
    WORD,
    YIELD_NEAR_NS,
    ZERO,
)

STDOUT: Final = uint64(1)
STDERR: Final = uint64(2)
IO_ERROR: Final = uint64(29)
"""Source: WASI preview 1, ``errno``."""


@compiled
def remaining_ns(env: int, session: int) -> int:
    """Return how much time the call has left; all bits without a deadline."""
    deadline_ns = load_u64(session + SESSION.deadline_ns)
    if deadline_ns == NO_DEADLINE_NS:
        return NO_DEADLINE_NS
    now = now_ns(env, session)
    return deadline_ns - now if now < deadline_ns else ZERO


def yield_(env: int, caller: int, cells: int, count: int) -> int:
    """Answer a `YieldVerdict`."""
    first, _, session = begin(env, caller, cells, VERDICT.STOP)
    if load_u64(session + SESSION.scratch) == ZERO:
        return call_fallback(env, caller, cells, count, first)
    left = remaining_ns(env, session)
    if left == ZERO:
        return answer(cells, VERDICT.STOP)
    return answer(cells, VERDICT.DEADLINE_NEAR if left < YIELD_NEAR_NS else VERDICT.CONTINUE)


def deadline_remaining_ms(env: int, caller: int, cells: int, count: int) -> int:
    """Answer whole milliseconds left."""
    first, _, session = begin(env, caller, cells, ZERO)
    if load_u64(session + SESSION.scratch) == ZERO:
        return call_fallback(env, caller, cells, count, first)
    left = remaining_ns(env, session)
    if left == NO_DEADLINE_NS:
        return answer(cells, UNBOUNDED_MS)
    return answer(cells, min(left // MILLISECOND_NS, UNBOUNDED_MS - ONE))


@compiled
def gather(row: int, scratch: int, count: int, base: int, size_bytes: int) -> int:
    """Copy pieces behind what a row holds. Return how many bytes they are, all bits if Python has to do it."""
    place, left = load_u64(row + OUTPUT.address) + load_u64(row + OUTPUT.held_bytes), load_u64(row + OUTPUT.left_bytes)
    taken = ZERO
    for index in range(count):
        piece = scratch + SCRATCH.argv + index * WORD
        offset, length = uint64(load_u32(piece)), uint64(load_u32(piece + HALF))
        if offset + length > size_bytes or length > left - taken:
            return NOTHING
        copy_bytes(place + taken, base + offset, length)
        taken += length
    return taken


@compiled
def write(session: int, base: int, size_bytes: int, descriptor: int, pieces: int, count: int, stored: int) -> bool:
    """Write pieces of memory to a stream. Return False, without any effect, if Python has to do it."""
    scratch = load_u64(session + SESSION.scratch)
    if (descriptor != STDOUT and descriptor != STDERR) or scratch == ZERO or stored + HALF > size_bytes:
        return False
    row = session + SESSION.output + (descriptor - STDOUT) * OUTPUT.size
    # A kernel may be writing to the table, so only a copy of it is read.
    if load_u64(row + OUTPUT.left_bytes) == ZERO or not copy_argv(scratch, base, size_bytes, pieces, count * WORD):
        return False
    taken = gather(row, scratch, count, base, size_bytes)
    if taken == NOTHING or taken == ZERO:
        return False
    store_u64(row + OUTPUT.held_bytes, load_u64(row + OUTPUT.held_bytes) + taken)
    store_u64(row + OUTPUT.left_bytes, load_u64(row + OUTPUT.left_bytes) - taken)
    store_u32(base + stored, uint32(taken))
    return True


def fd_write(env: int, caller: int, cells: int, count: int) -> int:
    """Write pieces of memory to standard output or error."""
    first, context, session = begin(env, caller, cells, IO_ERROR)
    base, size_bytes = find_memory(env, context, session)
    pieces, amount, stored = read_i32(cells, ONE), read_i32(cells, uint64(2)), read_i32(cells, uint64(3))
    if not write(session, base, size_bytes, first & LOW, pieces, amount, stored):
        return call_fallback(env, caller, cells, count, first)
    return answer(cells, ZERO)
