"""Work on streams: counting what was started, waiting for it, and counting it off."""

from __future__ import annotations

from typing import Final

from numba import uint64

from tensorwasm.guest.native.checks import compiled, now_ns
from tensorwasm.guest.native.intrinsics import call_i32, load_u64, store_u64
from tensorwasm.guest.native.layout import DRIVER, ENV, NOT_READY, ONE, PAD, STREAM, STREAM_ROWS, SUCCESS, ZERO

EAGER_NS: Final = uint64(50_000)
"""How long a wait keeps the processor to itself: most small kernels end sooner."""


@compiled
def add_to(at: int, number: int) -> None:
    """Add to a number in memory."""
    store_u64(at, load_u64(at) + number)


@compiled
def has_room(pad: int, pieces: int) -> bool:
    """Return whether so much more may be pending, so that the driver takes it at once."""
    return load_u64(pad + PAD.pending) + pieces <= load_u64(pad + PAD.most_pending)


@compiled
def count_started(pad: int, row: int, pieces: int) -> None:
    """Count what a stream was given."""
    add_to(row + STREAM.pending, pieces)
    add_to(pad + PAD.pending, pieces)


@compiled
def count_drained(pad: int, row: int) -> None:
    """Count off everything a stream had.

    The pad counts at least what its rows do, and more for a stream that has lost its row: that part stays.
    """
    pending = load_u64(row + STREAM.pending)
    store_u64(row + STREAM.pending, ZERO)
    total = load_u64(pad + PAD.pending)
    if total >= pending:
        store_u64(pad + PAD.pending, total - pending)


@compiled
def query(pad: int, row: int) -> int:
    """Return what the driver says of a stream."""
    function = load_u64(load_u64(pad + PAD.driver) + DRIVER.stream_query)
    return call_i32(function, (load_u64(row + STREAM.stream),))


@compiled
def drain(env: int, pad: int, row: int, limit_ns: int) -> bool:
    """Wait for a stream, spinning, for a while. Return whether it has drained; a failure is no drain.

    After a moment every thread that wants the processor gets it first: who spins takes nothing from who works.
    """
    if limit_ns == ZERO:
        return False
    result = query(pad, row)
    if result == NOT_READY:
        started, waited_ns = now_ns(env, pad), ZERO
        while result == NOT_READY and waited_ns < limit_ns:
            if waited_ns > EAGER_NS:
                call_i32(load_u64(env + ENV.sched_yield), ())
            result = query(pad, row)
            waited_ns = now_ns(env, pad) - started
    if result != SUCCESS:
        return False
    count_drained(pad, row)
    return True


@compiled
def drain_all(env: int, pad: int, limit_ns: int) -> bool:
    """Wait for every stream of the pad, in turn. Return whether nothing is pending any more, on any stream.

    While a stream records, only the session knows what waiting for all of them means.
    """
    index = ZERO
    while index < STREAM_ROWS:
        row = pad + PAD.streams + index * STREAM.size
        if load_u64(row + STREAM.stream) != ZERO:
            if load_u64(row + STREAM.recording) != ZERO:
                return False
            if load_u64(row + STREAM.pending) != ZERO and not drain(env, pad, row, limit_ns):
                return False
        index += ONE
    return load_u64(pad + PAD.pending) == ZERO
