"""Kernel arguments in compiled code: from the guest's records to the values that a launch takes.

`tensorwasm.guest.imports.argv` and `tensorwasm.gpu.device.arguments` are the twins, and say why. The records are
copied before the first of them is read, because a kernel may be writing to them; nothing after the copy looks at the
guest's memory.
"""

from __future__ import annotations

from numba import uint64

from tensorwasm.guest.native.checks import compiled, find_buffer, is_reached
from tensorwasm.guest.native.intrinsics import copy_bytes, load_u8, load_u32, load_u64, store_u64
from tensorwasm.guest.native.layout import (
    BUFFER,
    HALF,
    HEAD,
    MAX_ARGV_BYTES,
    NOTHING,
    ONE,
    PARAM,
    SCRATCH,
    TAG_BUFFER,
    TAG_PTR,
    TAGS,
    TAGS_OF_4,
    TAGS_OF_8,
    TAGS_OF_16,
    WORD,
    ZERO,
)

WANTED_ROW = uint64(4 * 8)
"""A window as it was asked for: first byte, end, index of its parameter; 4 words, of which one is free."""


@compiled
def copy_argv(scratch: int, address: int, size_bytes: int, offset: int, length: int) -> bool:
    """Copy the records. Return whether they are inside the guest's memory, and not too many."""
    if length > MAX_ARGV_BYTES or offset + length > size_bytes:
        return False
    copy_bytes(scratch + SCRATCH.argv, address + offset, length)
    return True


@compiled
def value_bytes(tag: int) -> int:
    """Return how many bytes follow a tag, 0 for what is no tag."""
    if tag >= TAGS:
        return ZERO
    fours, eights, sixteens = (TAGS_OF_4 >> tag) & ONE, (TAGS_OF_8 >> tag) & ONE, (TAGS_OF_16 >> tag) & ONE
    return (fours + eights * uint64(2) + sixteens * uint64(4)) * HALF


@compiled
def is_aligned(param: int, address: int) -> bool:
    """Return whether an address suits a parameter."""
    return load_u64(param + PARAM.pointer) == ZERO or address & (load_u64(param + PARAM.align_bytes) - ONE) == ZERO


@compiled
def resolve_buffer(pad: int, handle: int, offset: int) -> int:
    """Return the address of a place inside a device buffer, or 0."""
    row = find_buffer(pad, handle)
    if row == ZERO or offset >= load_u64(row + BUFFER.size_bytes):
        return ZERO
    return load_u64(row + BUFFER.address) + offset


@compiled
def resolve_window(pad: int, scratch: int, count: int, index: int, address: int, size_bytes: int) -> int:
    """Note a window of the guest's memory. Return the address of its first byte, or 0 if it cannot be passed here.

    Args:
        pad: the pad.
        scratch: gets the window as its row ``count``.
        count: windows noted so far.
        index: of the parameter.
        address: of the record's offset and length, in scratch.
        size_bytes: of the guest's memory.
    """
    offset, length = uint64(load_u32(address)), uint64(load_u32(address + HALF))
    if length == ZERO or offset + length > size_bytes:
        return NOTHING
    row = scratch + SCRATCH.windows + count * WANTED_ROW
    store_u64(row, offset)
    store_u64(row + WORD, offset + length)
    store_u64(row + WORD + WORD, index)
    return offset


@compiled
def parse(pad: int, scratch: int, head: int, length: int, base: int, size_bytes: int) -> int:
    """Turn copied records into values.

    Args:
        pad: for buffers, and for what the device reaches.
        scratch: holds the records; gets the values, pointers to them, and the windows.
        head: of the kernel.
        length: bytes of the records.
        base: address of the guest's memory.
        size_bytes: of it.

    Returns:
        0 when every value is as the kernel takes it; the number of windows if one of them is not reached in place; all
        bits when it cannot be done here.
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
        value = ZERO
        if tag == TAG_PTR or tag == TAG_BUFFER:
            if tag == TAG_PTR:
                offset = resolve_window(pad, scratch, windows, index, at, size_bytes)
                if offset == NOTHING:
                    return NOTHING
                value = base + offset
                if not is_reached(pad, value, uint64(load_u32(at + HALF))):
                    apart = True
                windows += ONE
            else:
                value = resolve_buffer(pad, load_u64(at), load_u64(at + WORD))
            if value == ZERO or takes != WORD or not is_aligned(param, value):
                return NOTHING
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
