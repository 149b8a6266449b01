"""Compiled ``wasi_cuda_load_ptx``: a text that the session offers, byte for byte, is the kernel that it was before.

The guest is suspended in this call, and with nothing in flight no kernel writes to its memory either: what was compared
is what is loaded. The session learns of it when Python is next asked for anything; until then the pad has the books.
"""

from __future__ import annotations

from tensorwasm.guest.native.checks import (
    call_twin,
    compiled,
    find_context,
    find_memory,
    find_pad,
    find_stream,
    has_time,
    is_armed,
    preset,
    read_i32,
)
from tensorwasm.guest.native.intrinsics import call_i32, load_u64, store_u64
from tensorwasm.guest.native.layout import (
    ENV,
    FAILED_LONG,
    KERNEL,
    KERNEL_MASK,
    LOAD_ROWS,
    LOW,
    OFFER,
    OFFER_ROWS,
    ONE,
    PAD,
    SUCCESS,
    WORD,
    ZERO,
)
from tensorwasm.guest.native.work import add_to


@compiled
def may_load(env: int, pad: int) -> bool:
    """Return whether a kernel may be loaded here: within the limits, with nothing in flight, and nothing recording."""
    if load_u64(pad + PAD.budget) == ZERO or load_u64(pad + PAD.next_kernel) == ZERO:
        return False
    if load_u64(pad + PAD.pending) != ZERO or load_u64(pad + PAD.loads) >= LOAD_ROWS or not is_armed(pad):
        return False
    return find_stream(pad, ZERO) != ZERO and has_time(env, pad)


@compiled
def is_same(env: int, address: int, kept: int, size_bytes: int) -> bool:
    """Return whether bytes are the same."""
    return size_bytes == ZERO or call_i32(load_u64(env + ENV.compare), (address, kept, size_bytes)) == SUCCESS


@compiled
def find_offer(env: int, pad: int, text: int, text_bytes: int, entry: int, entry_bytes: int) -> int:
    """Return the index of the offer of a text and an entry, both addresses, `OFFER_ROWS` if there is none."""
    index = ZERO
    while index < OFFER_ROWS:
        row = pad + PAD.offers + index * OFFER.size
        if (
            load_u64(row + OFFER.head) != ZERO
            and load_u64(row + OFFER.text_bytes) == text_bytes
            and load_u64(row + OFFER.entry_bytes) == entry_bytes
            and is_same(env, entry, load_u64(row + OFFER.entry), entry_bytes)
            and is_same(env, text, load_u64(row + OFFER.text), text_bytes)
        ):
            return index
        index += ONE
    return OFFER_ROWS


@compiled
def enter(pad: int, index: int) -> int:
    """Enter an offered kernel in the pad's table and books. Return its id."""
    offer = pad + PAD.offers + index * OFFER.size
    kernel_id, loads = load_u64(pad + PAD.next_kernel), load_u64(pad + PAD.loads)
    row = pad + PAD.kernels + (kernel_id & KERNEL_MASK) * KERNEL.size
    store_u64(row + KERNEL.id, kernel_id)
    store_u64(row + KERNEL.head, load_u64(offer + OFFER.head))
    store_u64(pad + PAD.loaded + loads * WORD, index)
    store_u64(pad + PAD.loads, loads + ONE)
    store_u64(pad + PAD.next_kernel, kernel_id + ONE)
    store_u64(pad + PAD.budget, load_u64(pad + PAD.budget) - ONE)
    add_to(pad + PAD.loaded_bytes, load_u64(offer + OFFER.text_bytes))
    return kernel_id


@compiled
def find(env: int, context: int, pad: int, first: int, cells: int) -> int:
    """Return the index of the offer that the guest asks for, `OFFER_ROWS` if there is none."""
    if not may_load(env, pad):
        return OFFER_ROWS
    base, size_bytes = find_memory(env, context, pad)
    text, entry = first & LOW, read_i32(cells, ONE + ONE)
    text_bytes, entry_bytes = read_i32(cells, ONE), read_i32(cells, ONE + ONE + ONE)
    if base == ZERO or text + text_bytes > size_bytes or entry + entry_bytes > size_bytes:
        return OFFER_ROWS
    return find_offer(env, pad, base + text, text_bytes, base + entry, entry_bytes)


def load_ptx(env: int, caller: int, cells: int, count: int) -> int:
    """Load a kernel that the session offers."""
    first = preset(cells, FAILED_LONG)
    context = find_context(env, caller)
    pad = find_pad(env, context)
    index = find(env, context, pad, first, cells)
    if index == OFFER_ROWS:
        return call_twin(env, caller, cells, count, first)
    store_u64(cells, enter(pad, index))
    return ZERO
