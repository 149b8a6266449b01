"""Kernel arguments in compiled code: from the guest's records to a launch's values, and the staging of windows.

The fallbacks are `tensorwasm.guest.imports.argv` and `tensorwasm.gpu.device.arguments`. A kernel may be writing to the
records, so they are copied first, and only the copy is read. Overlapping or touching windows become one in the staging
slot, so that a kernel finds there what it would find in the guest's memory. A staged launch is alone in flight: what
other work writes could not be copied in time.
"""

from __future__ import annotations

from numba import uint64

from tensorwasm.guest.native.checks import compiled, find_buffer, is_reached
from tensorwasm.guest.native.intrinsics import copy_bytes, load_u8, load_u32, load_u64, store_u64
from tensorwasm.guest.native.layout import (
    BLOCK_BYTES,
    BLOCK_MASK,
    BUFFER,
    HALF,
    HEAD,
    MAX_ARGV_BYTES,
    NOTHING,
    ONE,
    PARAM,
    SCRATCH,
    SESSION,
    TAG_BUFFER,
    TAG_PTR,
    TAGS,
    TAGS_OF_4,
    TAGS_OF_8,
    TAGS_OF_16,
    WINDOW,
    WORD,
    ZERO,
)

WANTED_ROW = uint64(4 * 8)
"""Bytes of a requested window: first byte, end, index of its parameter, one unused word."""


@compiled
def copy_argv(scratch: int, address: int, size_bytes: int, offset: int, length: int) -> bool:
    """Copy the records. Return whether they are inside the guest's memory, and not too many."""
    if length > MAX_ARGV_BYTES or offset + length > size_bytes:
        return False
    copy_bytes(scratch + SCRATCH.argv, address + offset, length)
    return True


@compiled
def value_bytes(tag: int) -> int:
    """Return how many bytes follow a tag, 0 for an unknown tag."""
    if tag >= TAGS:
        return ZERO
    fours, eights, sixteens = (TAGS_OF_4 >> tag) & ONE, (TAGS_OF_8 >> tag) & ONE, (TAGS_OF_16 >> tag) & ONE
    return (fours + eights * uint64(2) + sixteens * uint64(4)) * HALF


@compiled
def is_aligned(param: int, address: int) -> bool:
    """Return whether an address suits a parameter."""
    return load_u64(param + PARAM.pointer) == ZERO or address & (load_u64(param + PARAM.align_bytes) - ONE) == ZERO


@compiled
def resolve_buffer(session: int, handle: int, offset: int) -> int:
    """Return the address of an offset in a device buffer, or 0."""
    row = find_buffer(session, handle)
    if row == ZERO or offset >= load_u64(row + BUFFER.size_bytes):
        return ZERO
    return load_u64(row + BUFFER.address) + offset


@compiled
def resolve_window(scratch: int, count: int, index: int, address: int, size_bytes: int) -> int:
    """Put a window of the guest's memory into row ``count``. Return its offset, all bits if Python has to do it."""
    offset, length = uint64(load_u32(address)), uint64(load_u32(address + HALF))
    if length == ZERO or offset + length > size_bytes:
        return NOTHING
    row = scratch + SCRATCH.windows + count * WANTED_ROW
    store_u64(row, offset)
    store_u64(row + WORD, offset + length)
    store_u64(row + WORD + WORD, index)
    return offset


@compiled
def resolve_pointer(
    session: int, scratch: int, tag: int, windows: int, index: int, at: int, base: int, size_bytes: int
) -> tuple[int, bool]:
    """Return a pointer record's address on the device, 0 if Python has to do it, and whether it is reached in place."""
    if tag == TAG_BUFFER:
        return resolve_buffer(session, load_u64(at), load_u64(at + WORD)), True
    offset = resolve_window(scratch, windows, index, at, size_bytes)
    if offset == NOTHING:
        return ZERO, False
    if not is_reached(session, base + offset, uint64(load_u32(at + HALF))):
        return base + offset, False
    return base + offset + load_u64(session + SESSION.reach_displacement), True


@compiled
def parse(session: int, scratch: int, head: int, length: int, base: int, size_bytes: int) -> int:
    """Turn the records in scratch into values, pointers to them, and windows.

    Return 0 when every value is ready, the number of windows if one is not reached in place, all bits for Python to do
    it.
    """
    at, end = scratch + SCRATCH.argv, scratch + SCRATCH.argv + length
    params = load_u64(head + HEAD.param_count)
    windows, apart, index = ZERO, False, ZERO
    while at < end:
        tag = uint64(load_u8(at))
        size = value_bytes(tag)
        if index >= params or size == ZERO or end - at <= size:
            return NOTHING
        at += ONE
        param = head + HEAD.size + index * PARAM.size
        takes = load_u64(param + PARAM.size_bytes)
        if tag == TAG_PTR or tag == TAG_BUFFER:
            value, reached = resolve_pointer(session, scratch, tag, windows, index, at, base, size_bytes)
            if value == ZERO or takes != WORD or not is_aligned(param, value):
                return NOTHING
            apart = apart or not reached
            windows += uint64(tag == TAG_PTR)
        else:
            if takes != size or load_u64(param + PARAM.pointer) != ZERO:
                return NOTHING
            value = load_u64(at) if size == WORD else uint64(load_u32(at))
        place = scratch + SCRATCH.values + index * WORD
        store_u64(place, value)
        store_u64(scratch + SCRATCH.pointers + index * WORD, place)
        at += size
        index += ONE
    if index != params:
        return NOTHING
    return windows if apart else ZERO


@compiled
def sort_windows(rows: int, count: int) -> None:
    """Sort the requested windows by their first byte."""
    for done in range(ONE, count):
        source = rows + done * WANTED_ROW
        start, end, index = load_u64(source), load_u64(source + WORD), load_u64(source + WORD + WORD)
        at = source
        while at > rows and load_u64(at - WANTED_ROW) > start:
            store_u64(at, load_u64(at - WANTED_ROW))
            store_u64(at + WORD, load_u64(at - WANTED_ROW + WORD))
            store_u64(at + WORD + WORD, load_u64(at - WANTED_ROW + WORD + WORD))
            at -= WANTED_ROW
        store_u64(at, start)
        store_u64(at + WORD, end)
        store_u64(at + WORD + WORD, index)


@compiled
def may_stage(session: int, base: int) -> bool:
    """Return whether there is a free slot, and nothing in flight that could write to the windows."""
    slot = load_u64(session + SESSION.stage_at)
    if slot == ZERO or load_u64(session + SESSION.pending) != ZERO or load_u64(session + SESSION.staged) != ZERO:
        return False
    return slot & BLOCK_MASK == base & BLOCK_MASK


@compiled
def place_windows(session: int, scratch: int, count: int) -> int:
    """Merge sorted windows, place them in the slot, and point the values there. Return how many, 0 if it is full."""
    slot, room = load_u64(session + SESSION.stage_at), load_u64(session + SESSION.stage_bytes)
    merged, used, first, last, place = ZERO, ZERO, ZERO, ZERO, ZERO
    row = session + SESSION.windows
    for index in range(count):
        wanted = scratch + SCRATCH.windows + index * WANTED_ROW
        start, end = load_u64(wanted), load_u64(wanted + WORD)
        if merged == ZERO or start > last:
            row = session + SESSION.windows + merged * WINDOW.size
            merged += ONE
            first, last = start, end
            place = ((used + BLOCK_MASK) & ~BLOCK_MASK) + (start & BLOCK_MASK)
            store_u64(row + WINDOW.offset, start)
            store_u64(row + WINDOW.place, place)
        elif end > last:
            last = end
        used = place + (last - first)
        if used > room:
            return ZERO
        store_u64(row + WINDOW.length_bytes, last - first)
        value = scratch + SCRATCH.values + load_u64(wanted + WORD + WORD) * WORD
        store_u64(value, slot + place + (start - first))
    left = load_u64(session + SESSION.stage_left)
    if used > left:
        return ZERO
    store_u64(session + SESSION.stage_left, left - used)
    if used > load_u64(session + SESSION.stage_used):
        store_u64(session + SESSION.stage_used, used)
    return merged


@compiled
def stage(session: int, scratch: int, count: int, base: int) -> bool:
    """Copy the requested windows into the slot. Return whether that was possible."""
    if not may_stage(session, base):
        return False
    sort_windows(scratch + SCRATCH.windows, count)
    merged = place_windows(session, scratch, count)
    slot = load_u64(session + SESSION.stage_view)
    for index in range(merged):
        row = session + SESSION.windows + index * WINDOW.size
        source = base + load_u64(row + WINDOW.offset)
        copy_bytes(slot + load_u64(row + WINDOW.place), source, load_u64(row + WINDOW.length_bytes))
    store_u64(session + SESSION.staged, merged)
    return merged != ZERO


@compiled
def unstage(session: int, base: int) -> None:
    """Copy the slot of a staged launch that has ended back to the guest."""
    slot = load_u64(session + SESSION.stage_view)
    for index in range(load_u64(session + SESSION.staged)):
        row = session + SESSION.windows + index * WINDOW.size
        target = base + load_u64(row + WINDOW.offset)
        copy_bytes(target, slot + load_u64(row + WINDOW.place), load_u64(row + WINDOW.length_bytes))
    store_u64(session + SESSION.staged, ZERO)


assert BLOCK_BYTES - uint64(1) == BLOCK_MASK  # noqa: S101 - placing relies on it
