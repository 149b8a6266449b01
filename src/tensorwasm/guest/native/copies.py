"""Compiled copies and waits: ``wasi_cuda_memcpy_h2d``, ``_memcpy_d2h``, ``_sync`` and ``_stream_sync``."""

from __future__ import annotations

from numba import uint64

from tensorwasm.guest.native.checks import (
    call_finish,
    call_twin,
    compiled,
    find_buffer,
    find_context,
    find_memory,
    find_pad,
    find_stream,
    has_time,
    is_armed,
    is_reached,
    preset,
    read_i32,
)
from tensorwasm.guest.native.intrinsics import call_i32, load_u64, store_u64
from tensorwasm.guest.native.layout import (
    BUFFER,
    DRIVER,
    ENV,
    FAILED,
    LOW,
    ONE,
    PAD,
    STREAM,
    SUCCESS,
    ZERO,
)
from tensorwasm.guest.native.work import add_to, count_started, drain, drain_all, has_room


@compiled
def find_ends(env: int, context: int, pad: int, handle: int, offset: int, length: int) -> tuple[int, int]:
    """Return the addresses in the guest's memory and on the device that a copy connects; both 0 if it is not for here.

    Copies are whole when they answer, so the guest's own stream must be the only one with work: others could write to
    either end meanwhile.
    """
    row, buffer = find_stream(pad, ZERO), find_buffer(pad, handle)
    if not is_armed(pad) or not has_time(env, pad) or row == ZERO or buffer == ZERO or length == ZERO:
        return ZERO, ZERO
    base, size_bytes = find_memory(env, context, pad)
    if offset + length > size_bytes or length > load_u64(buffer + BUFFER.size_bytes):
        return ZERO, ZERO
    if not is_reached(pad, base + offset, length) or load_u64(pad + PAD.pending) != load_u64(row + STREAM.pending):
        return ZERO, ZERO
    if not has_room(pad, ONE):
        return ZERO, ZERO
    return base + offset, load_u64(buffer + BUFFER.address)


@compiled
def start_copy(pad: int, function: int, target: int, source: int, length: int) -> bool:
    """Give a copy to the guest's own stream. Return whether the driver took it."""
    row = find_stream(pad, ZERO)
    if function == ZERO or call_i32(function, (target, source, length, load_u64(row + STREAM.stream))) != SUCCESS:
        return False
    count_started(pad, row, ONE)
    add_to(pad + PAD.copied_bytes, length)
    return True


@compiled
def answer_copy(env: int, caller: int, cells: int, count: int, first: int, started: bool) -> int:
    """Wait for a copy that was started, or have Python make it; return its trap."""
    if not started:
        return call_twin(env, caller, cells, count, first)
    pad = find_pad(env, find_context(env, caller))
    if not drain(env, pad, find_stream(pad, ZERO), load_u64(env + ENV.spin_ns)):
        return call_finish(env, caller, cells, count)
    store_u64(cells, ZERO)
    return ZERO


def memcpy_h2d(env: int, caller: int, cells: int, count: int) -> int:
    """Copy guest memory to the start of a device buffer; the buffer comes first."""
    first = preset(cells, FAILED)
    context = find_context(env, caller)
    pad = find_pad(env, context)
    handle = read_i32(cells, ONE) << uint64(32) | (first & LOW)
    offset, length = read_i32(cells, uint64(2)), read_i32(cells, uint64(3))
    here, there = find_ends(env, context, pad, handle, offset, length)
    started = False
    if here != ZERO:
        function = load_u64(load_u64(pad + PAD.driver) + DRIVER.memcpy_htod_async)
        started = start_copy(pad, function, there, here, length)
    return answer_copy(env, caller, cells, count, first, started)


def memcpy_d2h(env: int, caller: int, cells: int, count: int) -> int:
    """Copy the start of a device buffer to guest memory; guest memory comes first."""
    first = preset(cells, FAILED)
    context = find_context(env, caller)
    pad = find_pad(env, context)
    handle = read_i32(cells, uint64(2)) << uint64(32) | read_i32(cells, ONE)
    offset, length = first & LOW, read_i32(cells, uint64(3))
    here, there = find_ends(env, context, pad, handle, offset, length)
    started = False
    if here != ZERO:
        function = load_u64(load_u64(pad + PAD.driver) + DRIVER.memcpy_dtoh_async)
        started = start_copy(pad, function, here, there, length)
    return answer_copy(env, caller, cells, count, first, started)


def sync(env: int, caller: int, cells: int, count: int) -> int:
    """Wait for everything, a little; Python does the rest."""
    first = preset(cells, FAILED)
    pad = find_pad(env, find_context(env, caller))
    if not is_armed(pad) or not drain_all(env, pad, load_u64(env + ENV.spin_ns)):
        return call_twin(env, caller, cells, count, first)
    store_u64(cells, ZERO)
    return ZERO


def stream_sync(env: int, caller: int, cells: int, count: int) -> int:
    """Wait for one stream, a little; Python does the rest."""
    first = preset(cells, FAILED)
    pad = find_pad(env, find_context(env, caller))
    row = find_stream(pad, first)
    if row == ZERO or not is_armed(pad):
        return call_twin(env, caller, cells, count, first)
    if load_u64(row + STREAM.pending) != ZERO and not drain(env, pad, row, load_u64(env + ENV.spin_ns)):
        return call_twin(env, caller, cells, count, first)
    store_u64(cells, ZERO)
    return ZERO
