"""Staged launches in compiled code: small windows go through a slot that host and device reach under one address.

Windows that overlap or touch become one, so that a kernel finds in the slot what it would find in the guest's memory.
Only one staged launch is in flight at a time, and nothing else: what other work writes could not be copied in time.
"""

from __future__ import annotations

from numba import uint64

from tensorwasm.guest.native.arguments import WANTED_ROW
from tensorwasm.guest.native.checks import compiled
from tensorwasm.guest.native.intrinsics import copy_bytes, load_u64, store_u64
from tensorwasm.guest.native.layout import BLOCK_BYTES, BLOCK_MASK, ONE, PAD, SCRATCH, WINDOW, WORD, ZERO


@compiled
def sort_windows(rows: int, count: int) -> None:
    """Sort the windows that were asked for by their first byte."""
    done = ONE
    while done < count:
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
        done += ONE


@compiled
def may_stage(pad: int, base: int) -> bool:
    """Return whether there is a slot, free, with nothing in flight that could write to the windows meanwhile."""
    slot = load_u64(pad + PAD.stage_at)
    if slot == ZERO or load_u64(pad + PAD.pending) != ZERO or load_u64(pad + PAD.staged) != ZERO:
        return False
    return slot & BLOCK_MASK == base & BLOCK_MASK


@compiled
def place_windows(pad: int, scratch: int, count: int) -> int:
    """Merge sorted windows into the pad, give each a place in the slot, and point the values there.

    Returns:
        How many there are now, 0 if the slot is too small, or it is no longer for compiled code to go on staging.
    """
    slot, room = load_u64(pad + PAD.stage_at), load_u64(pad + PAD.stage_bytes)
    merged, used, first, last, place, index = ZERO, ZERO, ZERO, ZERO, ZERO, ZERO
    row = pad + PAD.windows
    while index < count:
        wanted = scratch + SCRATCH.windows + index * WANTED_ROW
        start, end = load_u64(wanted), load_u64(wanted + WORD)
        if merged == ZERO or start > last:
            row = pad + PAD.windows + merged * WINDOW.size
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
        index += ONE
    left = load_u64(pad + PAD.stage_left)
    if used > left:
        return ZERO
    store_u64(pad + PAD.stage_left, left - used)
    if used > load_u64(pad + PAD.stage_used):
        store_u64(pad + PAD.stage_used, used)
    return merged


@compiled
def stage(pad: int, scratch: int, count: int, base: int) -> bool:
    """Copy the windows that were asked for into the slot. Return whether that could be done; the pad then has them."""
    if not may_stage(pad, base):
        return False
    sort_windows(scratch + SCRATCH.windows, count)
    merged = place_windows(pad, scratch, count)
    slot, index = load_u64(pad + PAD.stage_at), ZERO
    while index < merged:
        row = pad + PAD.windows + index * WINDOW.size
        source = base + load_u64(row + WINDOW.offset)
        copy_bytes(slot + load_u64(row + WINDOW.place), source, load_u64(row + WINDOW.length_bytes))
        index += ONE
    store_u64(pad + PAD.staged, merged)
    return merged != ZERO


@compiled
def unstage(pad: int, base: int) -> None:
    """Copy what a staged launch, which has ended, left in the slot back to the guest."""
    slot, index, merged = load_u64(pad + PAD.stage_at), ZERO, load_u64(pad + PAD.staged)
    while index < merged:
        row = pad + PAD.windows + index * WINDOW.size
        target = base + load_u64(row + WINDOW.offset)
        copy_bytes(target, slot + load_u64(row + WINDOW.place), load_u64(row + WINDOW.length_bytes))
        index += ONE
    store_u64(pad + PAD.staged, ZERO)


assert BLOCK_BYTES - uint64(1) == BLOCK_MASK  # noqa: S101 - what placing rests on
