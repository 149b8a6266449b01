"""What compiled host functions look up before they act: the pad, its rows, the clock, the current context.

Nothing here decides against a guest: whatever is not found, or not as it should be, goes to the Python twin.
"""

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
    PAD,
    SCRATCH,
    SECOND_NS,
    STREAM,
    STREAM_MASK,
    SUCCESS,
    WORD,
    ZERO,
)

compiled: Final[Any] = njit(error_model="numpy", forceinline=True)
"""Compile into other compiled functions; a division by zero does not raise. What is left of a host function then is one
body, in which the compiler can see that it raises nothing."""


@compiled
def find_context(env: int, caller: int) -> int:
    """Return the address of the calling store's context."""
    return call_u64(load_u64(env + ENV.caller_context), (caller,))


@compiled
def find_pad(env: int, context: int) -> int:
    """Return the address of the calling sandbox's pad."""
    return call_u64(load_u64(env + ENV.context_get_data), (context,))


@compiled
def preset(cells: int, answer: int) -> int:
    """Put a failure where the answer will be, until it is known to be none. Return the parameter that was there."""
    first = load_u64(cells)
    store_u64(cells, answer)
    return first


@compiled
def call_twin(env: int, caller: int, cells: int, count: int, first: int) -> int:
    """Have Python do all of it, with the parameter that `preset` took; return its trap."""
    store_u64(cells, first)
    return call_u64(load_u64(env + ENV.twin), (env, caller, cells, count))


@compiled
def call_finish(env: int, caller: int, cells: int, count: int) -> int:
    """Have Python wait for what was started, and answer; return its trap."""
    return call_u64(load_u64(env + ENV.finish), (env, caller, cells, count))


@compiled
def read_i32(cells: int, index: int) -> int:
    """Return a Wasm i32 parameter as the unsigned number that its bits are."""
    return uint64(load_u32(cells + CELL * index))


@compiled
def read_i64(cells: int, index: int) -> int:
    """Return a Wasm i64 parameter as the unsigned number that its bits are."""
    return load_u64(cells + CELL * index)


@compiled
def now_ns(env: int, pad: int) -> int:
    """Return the monotonic time; uses the scratch values."""
    at = load_u64(pad + PAD.scratch) + SCRATCH.values
    call_i32(load_u64(env + ENV.clock_gettime), (CLOCK, at))
    return load_u64(at) * SECOND_NS + load_u64(at + WORD)


@compiled
def has_time(env: int, pad: int) -> bool:
    """Return whether the deadline is not near."""
    deadline_ns = load_u64(pad + PAD.deadline_ns)
    if deadline_ns == NO_DEADLINE_NS:
        return True
    now = now_ns(env, pad)
    return now < deadline_ns and deadline_ns - now > DEADLINE_NEAR_NS


@compiled
def is_current(pad: int) -> bool:
    """Return whether the device's context is the calling thread's; uses the scratch values."""
    driver = load_u64(pad + PAD.driver)
    function = load_u64(driver + DRIVER.context_current)
    if function == ZERO:  # a device without contexts
        return True
    at = load_u64(pad + PAD.scratch) + SCRATCH.values
    return call_i32(function, (at,)) == SUCCESS and load_u64(at) == load_u64(driver + DRIVER.context)


@compiled
def is_armed(pad: int) -> bool:
    """Return whether compiled code may act for this session, on this thread."""
    if load_u64(pad + PAD.armed) != ONE or load_u64(pad + PAD.driver) == ZERO or load_u64(pad + PAD.scratch) == ZERO:
        return False
    return is_current(pad)


@compiled
def find_stream(pad: int, number: int) -> int:
    """Return the address of the row of a stream that takes work now, or 0."""
    row = pad + PAD.streams + (number & STREAM_MASK) * STREAM.size
    if load_u64(row + STREAM.number) != number or load_u64(row + STREAM.stream) == ZERO:
        return ZERO
    # What is being recorded is the session's business, for it must know what the graph will reach.
    return row if load_u64(row + STREAM.recording) == ZERO else ZERO


@compiled
def find_kernel(pad: int, kernel_id: int) -> int:
    """Return the address of a kernel's head, or 0."""
    row = pad + PAD.kernels + (kernel_id & KERNEL_MASK) * KERNEL.size
    return load_u64(row + KERNEL.head) if kernel_id != ZERO and load_u64(row + KERNEL.id) == kernel_id else ZERO


@compiled
def find_buffer(pad: int, handle: int) -> int:
    """Return the address of a buffer's row, or 0."""
    row = pad + PAD.buffers + (handle & BUFFER_MASK) * BUFFER.size
    return row if handle != ZERO and load_u64(row + BUFFER.handle) == handle else ZERO


@compiled
def find_graph(pad: int, handle: int) -> int:
    """Return the address of the row of a graph that may be replayed, or 0."""
    row = pad + PAD.graphs + (handle & GRAPH_MASK) * GRAPH.size
    return row if handle != ZERO and load_u64(row + GRAPH.handle) == handle else ZERO


@compiled
def find_memory(env: int, context: int, pad: int) -> tuple[int, int]:
    """Return address and size of the guest's memory as it is now; both 0 while it is not known."""
    memory = pad + PAD.memory
    if load_u64(memory) == ZERO:
        return ZERO, ZERO
    address = call_u64(load_u64(env + ENV.memory_data), (context, memory))
    return address, call_u64(load_u64(env + ENV.memory_data_size), (context, memory))


@compiled
def is_reached(pad: int, address: int, length: int) -> bool:
    """Return whether a range of the guest's memory, at least a byte long, is reached by the device in place.

    A range that is inside the guest's memory cannot wrap around.
    """
    start = load_u64(pad + PAD.reach_at)
    return address >= start and address + length <= start + load_u64(pad + PAD.reach_bytes)


@compiled
def as_u32(number: int) -> int:
    """Return a number that fits as the unsigned int of C."""
    return uint32(number)
