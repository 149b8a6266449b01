"""Work on streams, and compiled ``wasi_cuda_memcpy_h2d``, ``_memcpy_d2h``, ``_sync`` and ``_stream_sync``."""

from __future__ import annotations

from typing import Final

from numba import uint64

from tensorwasm.guest.native.checks import (
    add_to,
    answer,
    begin,
    call_fallback,
    call_finish,
    compiled,
    find_buffer,
    find_memory,
    find_stream,
    has_stopped,
    has_time,
    is_armed,
    is_reached,
    now_ns,
    read_i32,
)
from tensorwasm.guest.native.intrinsics import call_i32, load_u64, store_u64
from tensorwasm.guest.native.layout import (
    BUFFER,
    DRIVER,
    ENV,
    FAILED,
    LOW,
    NOT_READY,
    ONE,
    PIECE_BYTES,
    SESSION,
    STREAM,
    STREAM_ROWS,
    SUCCESS,
    ZERO,
)

EAGER_NS: Final = uint64(50_000)
"""How long a wait does not yield the processor: most small kernels end sooner."""


@compiled
def has_room(session: int, pieces: int) -> bool:
    """Return whether so much more may be pending that the driver takes it at once."""
    return load_u64(session + SESSION.pending) + pieces <= load_u64(session + SESSION.most_pending)


@compiled
def copy_pieces(session: int, length: int) -> int:
    """Return how many pieces of work a copy is."""
    return ONE if load_u64(session + SESSION.window_at) == ZERO else ONE + length // PIECE_BYTES


@compiled
def count_started(session: int, row: int, pieces: int) -> None:
    """Add to the work pending on a stream."""
    add_to(row + STREAM.pending, pieces)
    add_to(session + SESSION.pending, pieces)


@compiled
def count_drained(session: int, row: int) -> None:
    """Subtract a stream's work. The session's total may include more, of a stream that has lost its row."""
    pending = load_u64(row + STREAM.pending)
    store_u64(row + STREAM.pending, ZERO)
    total = load_u64(session + SESSION.pending)
    if total >= pending:
        store_u64(session + SESSION.pending, total - pending)


@compiled
def query(session: int, row: int) -> int:
    """Return the driver's result of querying a stream."""
    function = load_u64(load_u64(session + SESSION.driver) + DRIVER.stream_query)
    return call_i32(function, (load_u64(row + STREAM.stream),))


@compiled
def drain(env: int, session: int, row: int, limit_ns: int) -> bool:
    """Spin for a limited time, yielding the processor after `EAGER_NS`; return whether the stream has drained.

    A failure counts as not drained.
    """
    if limit_ns == ZERO:
        return False
    started = now_ns(env, session)
    result = query(session, row)  # the emulator runs the work here
    waited_ns = now_ns(env, session) - started
    while result == NOT_READY and waited_ns < limit_ns:
        if waited_ns > EAGER_NS:
            call_i32(load_u64(env + ENV.sched_yield), ())
        result = query(session, row)
        waited_ns = now_ns(env, session) - started
    add_to(session + SESSION.waited_ns, waited_ns)
    if result != SUCCESS or has_stopped(session):
        return False
    count_drained(session, row)
    return True


@compiled
def drain_all(env: int, session: int, limit_ns: int) -> bool:
    """Wait for every stream in turn; return whether nothing is pending. Python decides while a stream records."""
    for index in range(STREAM_ROWS):
        row = session + SESSION.streams + index * STREAM.size
        if load_u64(row + STREAM.stream) != ZERO:
            if load_u64(row + STREAM.recording) != ZERO:
                return False
            if load_u64(row + STREAM.pending) != ZERO and not drain(env, session, row, limit_ns):
                return False
    return load_u64(session + SESSION.pending) == ZERO


@compiled
def find_ends(env: int, context: int, session: int, handle: int, offset: int, length: int) -> tuple[int, int]:
    """Return a copy's address in the guest's memory and on the device; both 0 to leave it to Python.

    Only the guest's own stream may have work: other work could write to either end meanwhile.
    """
    row, buffer = find_stream(session, ZERO), find_buffer(session, handle)
    if not is_armed(session) or not has_time(env, session) or row == ZERO or buffer == ZERO or length == ZERO:
        return ZERO, ZERO
    base, size_bytes = find_memory(env, context, session)
    if offset + length > size_bytes or length > load_u64(buffer + BUFFER.size_bytes):
        return ZERO, ZERO
    if not is_reached(session, base + offset, length) or load_u64(session + SESSION.pending) != load_u64(
        row + STREAM.pending
    ):
        return ZERO, ZERO
    if not has_room(session, copy_pieces(session, length)):
        return ZERO, ZERO
    return base + offset, load_u64(buffer + BUFFER.address)


@compiled
def copy(
    env: int,
    caller: int,
    cells: int,
    count: int,
    first: int,
    context: int,
    session: int,
    handle: int,
    offset: int,
    to_device: bool,
) -> int:
    """Copy on the guest's own stream and wait, or leave that to Python; return the trap."""
    length = read_i32(cells, uint64(3))
    here, there = find_ends(env, context, session, handle, offset, length)
    if here == ZERO:
        return call_fallback(env, caller, cells, count, first)
    at = DRIVER.memcpy_htod_async if to_device else DRIVER.memcpy_dtoh_async
    function, row = load_u64(load_u64(session + SESSION.driver) + at), find_stream(session, ZERO)
    target, source = (there, here) if to_device else (here, there)
    if function == ZERO or call_i32(function, (target, source, length, load_u64(row + STREAM.stream))) != SUCCESS:
        return call_fallback(env, caller, cells, count, first)
    count_started(session, row, copy_pieces(session, length))
    add_to(session + SESSION.copied_bytes, length)
    if not drain(env, session, row, load_u64(env + ENV.spin_ns)):
        return call_finish(env, caller, cells, count)
    return answer(cells, ZERO)


def memcpy_h2d(env: int, caller: int, cells: int, count: int) -> int:
    """Copy guest memory to the start of a device buffer, which is the first parameter."""
    first, context, session = begin(env, caller, cells, FAILED)
    handle, offset = read_i32(cells, ONE) << uint64(32) | (first & LOW), read_i32(cells, uint64(2))
    return copy(env, caller, cells, count, first, context, session, handle, offset, True)


def memcpy_d2h(env: int, caller: int, cells: int, count: int) -> int:
    """Copy the start of a device buffer to guest memory, which is the first parameter."""
    first, context, session = begin(env, caller, cells, FAILED)
    handle, offset = read_i32(cells, uint64(2)) << uint64(32) | read_i32(cells, ONE), first & LOW
    return copy(env, caller, cells, count, first, context, session, handle, offset, False)


def sync(env: int, caller: int, cells: int, count: int) -> int:
    """Wait for all streams for at most `Environment.spin_ns`; Python waits longer."""
    first, _, session = begin(env, caller, cells, FAILED)
    if not is_armed(session) or not drain_all(env, session, load_u64(env + ENV.spin_ns)):
        return call_fallback(env, caller, cells, count, first)
    return answer(cells, ZERO)


def stream_sync(env: int, caller: int, cells: int, count: int) -> int:
    """Wait for one stream for at most `Environment.spin_ns`; Python waits longer."""
    first, _, session = begin(env, caller, cells, FAILED)
    row = find_stream(session, first)
    if row == ZERO or not is_armed(session):
        return call_fallback(env, caller, cells, count, first)
    if load_u64(row + STREAM.pending) != ZERO and not drain(env, session, row, load_u64(env + ENV.spin_ns)):
        return call_fallback(env, caller, cells, count, first)
    return answer(cells, ZERO)
