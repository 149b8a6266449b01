"""Lookups of compiled code. Nothing here refuses a guest: what is missing or unusual is left to Python."""

from __future__ import annotations

from typing import Any, Final

from numba import njit, uint32, uint64

from tensorwasm.guest.native.intrinsics import call_i32, call_u64, load_u32, load_u64, store_u64
from tensorwasm.guest.native.layout import (
    BUFFER,
    BUFFER_MASK,
    CELL,
    CLOCK,
    DEADLINE_NEAR_NS,
    DRIVER,
    ENV,
    GRAPH,
    GRAPH_MASK,
    KERNEL,
    KERNEL_MASK,
    NO_DEADLINE_NS,
    ONE,
    SCRATCH,
    SECOND_NS,
    SESSION,
    STREAM,
    STREAM_MASK,
    SUCCESS,
    WORD,
    ZERO,
)

compiled: Final[Any] = njit(error_model="numpy", forceinline=True)
"""Inline into other compiled functions; division by zero does not raise. A host function becomes one body, in which the
compiler sees that nothing raises."""


@compiled
def find_context(env: int, caller: int) -> int:
    """Return the address of the calling store's context."""
    return call_u64(load_u64(env + ENV.caller_context), (caller,))


@compiled
def find_session(env: int, context: int) -> int:
    """Return the address of the calling sandbox's session layout."""
    return call_u64(load_u64(env + ENV.context_get_data), (context,))


@compiled
def begin(env: int, caller: int, cells: int, failure: int) -> tuple[int, int, int]:
    """Preset the answer. Return the first parameter, which was there, the store's context and the session's address."""
    first = load_u64(cells)
    store_u64(cells, failure)
    context = find_context(env, caller)
    return first, context, find_session(env, context)


@compiled
def answer(cells: int, value: int) -> int:
    """Answer the guest; return no trap."""
    store_u64(cells, value)
    return ZERO


@compiled
def call_fallback(env: int, caller: int, cells: int, count: int, first: int) -> int:
    """Run the whole host function in Python, with the parameter that `begin` returned; return its trap."""
    store_u64(cells, first)
    return call_u64(load_u64(env + ENV.fallback), (env, caller, cells, count))


@compiled
def call_finish(env: int, caller: int, cells: int, count: int) -> int:
    """Wait in Python for what was started, and write the answer; return its trap."""
    return call_u64(load_u64(env + ENV.finish), (env, caller, cells, count))


@compiled
def read_i32(cells: int, index: int) -> int:
    """Return a Wasm i32 parameter as unsigned."""
    return uint64(load_u32(cells + CELL * index))


@compiled
def read_i64(cells: int, index: int) -> int:
    """Return a Wasm i64 parameter as unsigned."""
    return load_u64(cells + CELL * index)


@compiled
def now_ns(env: int, session: int) -> int:
    """Return the monotonic time; overwrites the scratch values."""
    return clock_ns(env, load_u64(session + SESSION.scratch) + SCRATCH.values)


@compiled
def clock_ns(env: int, at: int) -> int:
    """Return the monotonic time; overwrites two words at an address."""
    call_i32(load_u64(env + ENV.clock_gettime), (CLOCK, at))
    return load_u64(at) * SECOND_NS + load_u64(at + WORD)


@compiled
def has_time(env: int, session: int) -> bool:
    """Return whether the deadline is not near."""
    deadline_ns = load_u64(session + SESSION.deadline_ns)
    if deadline_ns == NO_DEADLINE_NS:
        return True
    now = now_ns(env, session)
    return now < deadline_ns and deadline_ns - now > DEADLINE_NEAR_NS


@compiled
def is_current(session: int) -> bool:
    """Return whether the device's context is current on this thread; overwrites the scratch values."""
    driver = load_u64(session + SESSION.driver)
    function = load_u64(driver + DRIVER.context_current)
    if function == ZERO:  # a device without contexts
        return True
    at = load_u64(session + SESSION.scratch) + SCRATCH.values
    return call_i32(function, (at,)) == SUCCESS and load_u64(at) == load_u64(driver + DRIVER.context)


@compiled
def has_stopped(session: int) -> bool:
    """Return whether a guarded kernel of the session has stopped before its end, which Python reports."""
    status = load_u64(session + SESSION.status_at)
    return status != ZERO and load_u32(status) != uint32(0)


@compiled
def is_armed(session: int) -> bool:
    """Return whether compiled code may act for this session, on this thread."""
    if (
        load_u64(session + SESSION.armed) != ONE
        or load_u64(session + SESSION.driver) == ZERO
        or load_u64(session + SESSION.scratch) == ZERO
        or has_stopped(session)
    ):
        return False
    return is_current(session)


@compiled
def find_stream(session: int, number: int) -> int:
    """Return the address of the row of a stream that takes work now, or 0."""
    row = session + SESSION.streams + (number & STREAM_MASK) * STREAM.size
    if load_u64(row + STREAM.number) != number or load_u64(row + STREAM.stream) == ZERO:
        return ZERO
    # Python handles a recording stream: the session must know what the graph will reach.
    return row if load_u64(row + STREAM.recording) == ZERO else ZERO


@compiled
def find_kernel(session: int, kernel_id: int) -> int:
    """Return the address of a kernel's head, or 0."""
    row = session + SESSION.kernels + (kernel_id & KERNEL_MASK) * KERNEL.size
    return load_u64(row + KERNEL.head) if kernel_id != ZERO and load_u64(row + KERNEL.id) == kernel_id else ZERO


@compiled
def find_data(session: int, kernel_id: int) -> int:
    """Return the address of the session's copy of the variables of a kernel that is in its row; 0 without any."""
    return load_u64(session + SESSION.kernels + (kernel_id & KERNEL_MASK) * KERNEL.size + KERNEL.data)


@compiled
def find_buffer(session: int, handle: int) -> int:
    """Return the address of a buffer's row, or 0."""
    row = session + SESSION.buffers + (handle & BUFFER_MASK) * BUFFER.size
    return row if handle != ZERO and load_u64(row + BUFFER.handle) == handle else ZERO


@compiled
def find_graph(session: int, handle: int) -> int:
    """Return the address of the row of a graph that may be replayed, or 0."""
    row = session + SESSION.graphs + (handle & GRAPH_MASK) * GRAPH.size
    return row if handle != ZERO and load_u64(row + GRAPH.handle) == handle else ZERO


@compiled
def find_memory(env: int, context: int, session: int) -> tuple[int, int]:
    """Return address and current size of the guest's memory; both 0 while it is not known."""
    memory = session + SESSION.memory
    if load_u64(memory) == ZERO:
        return ZERO, ZERO
    address = call_u64(load_u64(env + ENV.memory_data), (context, memory))
    return address, call_u64(load_u64(env + ENV.memory_data_size), (context, memory))


@compiled
def is_reached(session: int, address: int, length: int) -> bool:
    """Return whether the device reaches a non-empty range of the guest's memory in place."""
    # A range inside the guest's memory cannot wrap around.
    start = load_u64(session + SESSION.reach_at)
    return address >= start and address + length <= start + load_u64(session + SESSION.reach_bytes)


@compiled
def as_u32(number: int) -> int:
    """Return a number that fits as C's unsigned int."""
    return uint32(number)


@compiled
def add_to(at: int, number: int) -> None:
    """Add to a number in memory."""
    store_u64(at, load_u64(at) + number)
