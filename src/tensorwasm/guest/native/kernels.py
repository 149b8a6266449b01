"""Compiled ``wasi_cuda_load_ptx``, ``_launch``, ``_launch_async`` and ``_graph_launch``.

A text that the session offers, byte for byte, becomes the kernel that it was before. The guest waits in this call and
nothing is in flight, so what was compared is what is loaded. The session learns of it when Python next runs.

A launch reaches the driver only when the fallback would not refuse it, and the guest is answered last. If the driver
refuses, nothing ran: the fallback tries again and knows the error.
"""

from __future__ import annotations

from numba import uint64

from tensorwasm.guest.native.arguments import copy_argv, parse, stage, unstage
from tensorwasm.guest.native.checks import (
    add_to,
    answer,
    as_u32,
    begin,
    call_fallback,
    call_finish,
    clock_ns,
    compiled,
    find_data,
    find_graph,
    find_kernel,
    find_memory,
    find_stream,
    has_time,
    is_armed,
    read_i32,
    read_i64,
)
from tensorwasm.guest.native.intrinsics import call_i32, load_u64, store_u64
from tensorwasm.guest.native.layout import (
    DRIVER,
    ENV,
    FAILED,
    FAILED_LONG,
    GRAPH,
    HEAD,
    KERNEL,
    KERNEL_MASK,
    LOAD_ROWS,
    LOW,
    MAX_AXIS_BLOCKS,
    MAX_AXIS_THREADS,
    MAX_SHARED_BYTES,
    MAX_THREADS,
    NO_DEADLINE_NS,
    NOTHING,
    OFFER,
    OFFER_ROWS,
    ONE,
    SCRATCH,
    SESSION,
    SHARED_REGISTERS,
    SHARES,
    STREAM,
    SUCCESS,
    UNLOOKED_NS,
    WORD,
    ZERO,
)
from tensorwasm.guest.native.streams import count_started, drain, has_room

GRID_AT = uint64(1)
BLOCK_AT = uint64(4)
SHARED_AT = uint64(7)
LANE_MASK = uint64(31)
SHARED_MASK = uint64(15)
ARGS_AT = uint64(8)
ARGS_LEN_AT = uint64(9)
STREAM_AT = uint64(10)


@compiled
def may_load(env: int, session: int) -> bool:
    """Return whether a kernel may be loaded here: within the limits, nothing in flight, nothing recording."""
    if load_u64(session + SESSION.budget) == ZERO or load_u64(session + SESSION.next_kernel) == ZERO:
        return False
    if (
        load_u64(session + SESSION.pending) != ZERO
        or load_u64(session + SESSION.loads) >= LOAD_ROWS
        or not is_armed(session)
    ):
        return False
    return find_stream(session, ZERO) != ZERO and has_time(env, session)


@compiled
def is_same(env: int, address: int, kept: int, size_bytes: int) -> bool:
    """Return whether two byte strings are equal."""
    return size_bytes == ZERO or call_i32(load_u64(env + ENV.compare), (address, kept, size_bytes)) == SUCCESS


@compiled
def find_offer(env: int, session: int, text: int, text_bytes: int, entry: int, entry_bytes: int) -> int:
    """Return the index of the offer of a text and an entry name, `OFFER_ROWS` if there is none."""
    for index in range(OFFER_ROWS):
        row = session + SESSION.offers + index * OFFER.size
        if (
            load_u64(row + OFFER.head) != ZERO
            and load_u64(row + OFFER.text_bytes) == text_bytes
            and load_u64(row + OFFER.entry_bytes) == entry_bytes
            and is_same(env, entry, load_u64(row + OFFER.entry), entry_bytes)
            and is_same(env, text, load_u64(row + OFFER.text), text_bytes)
        ):
            return index
    return OFFER_ROWS


@compiled
def enter_kernel(session: int, index: int) -> int:
    """Enter an offered kernel in the session's table and counters. Return its id."""
    offer = session + SESSION.offers + index * OFFER.size
    kernel_id, loads = load_u64(session + SESSION.next_kernel), load_u64(session + SESSION.loads)
    row = session + SESSION.kernels + (kernel_id & KERNEL_MASK) * KERNEL.size
    store_u64(row + KERNEL.id, kernel_id)
    store_u64(row + KERNEL.head, load_u64(offer + OFFER.head))
    store_u64(row + KERNEL.data, ZERO)
    store_u64(session + SESSION.loaded + loads * WORD, index)
    store_u64(session + SESSION.loads, loads + ONE)
    store_u64(session + SESSION.next_kernel, kernel_id + ONE)
    store_u64(session + SESSION.budget, load_u64(session + SESSION.budget) - ONE)
    add_to(session + SESSION.loaded_bytes, load_u64(offer + OFFER.text_bytes))
    return kernel_id


@compiled
def find_asked(env: int, context: int, session: int, first: int, cells: int) -> int:
    """Return the index of the offer that the guest asks for, `OFFER_ROWS` if there is none."""
    if not may_load(env, session):
        return OFFER_ROWS
    base, size_bytes = find_memory(env, context, session)
    text, entry = first & LOW, read_i32(cells, ONE + ONE)
    text_bytes, entry_bytes = read_i32(cells, ONE), read_i32(cells, ONE + ONE + ONE)
    if base == ZERO or text + text_bytes > size_bytes or entry + entry_bytes > size_bytes:
        return OFFER_ROWS
    return find_offer(env, session, base + text, text_bytes, base + entry, entry_bytes)


def load_ptx(env: int, caller: int, cells: int, count: int) -> int:
    """Load a kernel that the session offers."""
    first, context, session = begin(env, caller, cells, FAILED_LONG)
    index = find_asked(env, context, session, first, cells)
    if index == OFFER_ROWS:
        return call_fallback(env, caller, cells, count, first)
    return answer(cells, enter_kernel(session, index))


@compiled
def may_start(env: int, session: int, pieces: int) -> bool:
    """Return whether so much work may be given to the device now."""
    return (
        is_armed(session)
        and load_u64(session + SESSION.placed) != ZERO
        and has_room(session, pieces)
        and has_time(env, session)
    )


@compiled
def fits_axis(cells: int, head: int, axis: int) -> bool:
    """Return whether blocks and threads along an axis suit ABI, device and kernel."""
    blocks, threads = read_i32(cells, GRID_AT + axis), read_i32(cells, BLOCK_AT + axis)
    if blocks == ZERO or blocks > MAX_AXIS_BLOCKS or blocks > load_u64(head + HEAD.max_grid + axis * WORD):
        return False
    if threads == ZERO or threads > MAX_AXIS_THREADS or threads > load_u64(head + HEAD.max_block + axis * WORD):
        return False
    required = load_u64(head + HEAD.required + axis * WORD)
    return required == ZERO or required == threads


@compiled
def is_whole(cells: int, head: int, threads: int) -> bool:
    """Return whether blocks are whole warps, as far as a guarded kernel needs that."""
    along_x = read_i32(cells, BLOCK_AT)
    if load_u64(head + HEAD.whole_rows) != ZERO and along_x & LANE_MASK != ZERO and along_x != threads:
        return False
    return load_u64(head + HEAD.whole_warps) == ZERO or threads & LANE_MASK == ZERO


@compiled
def total_shared(head: int, asked: int) -> int:
    """Return the dynamic shared memory of a launch that asks for some."""
    if load_u64(head + HEAD.dynamic) == ZERO:
        return asked
    program = (load_u64(head + HEAD.program_bytes) + asked + SHARED_MASK) & ~SHARED_MASK
    return max(program + load_u64(head + HEAD.reserve_bytes), load_u64(head + HEAD.least_bytes))


@compiled
def fits(cells: int, head: int) -> bool:
    """Return whether the launch's geometry suits ABI, device and kernel."""
    threads = ONE
    for axis in range(uint64(3)):
        if not fits_axis(cells, head, axis):
            return False
        threads *= read_i32(cells, BLOCK_AT + axis)
    shared = read_i32(cells, SHARED_AT)
    if threads > MAX_THREADS or threads > load_u64(head + HEAD.max_threads) or not is_whole(cells, head, threads):
        return False
    return shared <= MAX_SHARED_BYTES and total_shared(head, shared) <= load_u64(head + HEAD.max_shared_bytes)


@compiled
def put_launch_parameter(env: int, session: int, head: int, data: int, asked: int) -> None:
    """Write the last parameter of a guarded kernel into the scratch."""
    scratch, deadline_ns = load_u64(session + SESSION.scratch), load_u64(session + SESSION.deadline_ns)
    place, offset_ns = scratch + SCRATCH.launch, load_u64(session + SESSION.timer_offset)
    look_ns = clock_ns(env, place) + UNLOOKED_NS + offset_ns
    if deadline_ns != NO_DEADLINE_NS:
        deadline_ns += offset_ns
        look_ns = min(look_ns, deadline_ns)
    high = load_u64(session + SESSION.window_at) >> uint64(32)
    store_u64(place, high | (data & LOW) << uint64(32))
    store_u64(place + WORD, deadline_ns)
    store_u64(place + uint64(2) * WORD, load_u64(session + SESSION.flag_at))
    store_u64(place + uint64(3) * WORD, load_u64(session + SESSION.status_at))
    store_u64(place + uint64(4) * WORD, look_ns)
    store_u64(place + uint64(5) * WORD, total_shared(head, asked))
    store_u64(place + uint64(6) * WORD, asked)
    store_u64(place + uint64(7) * WORD, load_u64(session + SESSION.window_mask))
    store_u64(scratch + SCRATCH.pointers + load_u64(head + HEAD.param_count) * WORD, place)


@compiled
def call_driver(session: int, row: int, head: int, cells: int) -> int:
    """Launch with the values in the scratch. Return the driver's result."""
    return call_i32(
        load_u64(load_u64(session + SESSION.driver) + DRIVER.launch_kernel),
        (
            load_u64(head + HEAD.function),
            as_u32(read_i32(cells, GRID_AT)),
            as_u32(read_i32(cells, GRID_AT + ONE)),
            as_u32(read_i32(cells, GRID_AT + uint64(2))),
            as_u32(read_i32(cells, BLOCK_AT)),
            as_u32(read_i32(cells, BLOCK_AT + ONE)),
            as_u32(read_i32(cells, BLOCK_AT + uint64(2))),
            as_u32(total_shared(head, read_i32(cells, SHARED_AT))),
            load_u64(row + STREAM.stream),
            load_u64(session + SESSION.scratch) + SCRATCH.pointers,
            ZERO,
        ),
    )


@compiled
def prepare(session: int, head: int, cells: int, base: int, size_bytes: int, staging: bool) -> bool:
    """Check geometry and arguments. Return whether the scratch, or with ``staging`` the slot, holds the values."""
    if base == ZERO or load_u64(head + HEAD.passable) != ONE or not fits(cells, head):
        return False
    scratch, length = load_u64(session + SESSION.scratch), read_i32(cells, ARGS_LEN_AT)
    if not copy_argv(scratch, base, size_bytes, read_i32(cells, ARGS_AT), length):
        return False
    windows = parse(session, scratch, head, length, base, size_bytes)
    if windows == ZERO:
        return True
    return windows != NOTHING and staging and stage(session, scratch, windows, base)


MOST_BLOCKS = uint64(1 << 48)
"""More than may be launched; so many shares of them are a number of 64 bits."""


@compiled
def pieces_of(cells: int, head: int) -> int:
    """Return how many pieces of work a launch is; see `tensorwasm.gpu.native.layout.KernelImage.pieces`."""
    piece_shares = load_u64(head + HEAD.piece_shares)
    if piece_shares == ZERO:
        return ONE
    blocks, threads = ONE, ONE
    for axis in range(uint64(3)):
        blocks *= read_i32(cells, GRID_AT + axis)
        threads *= read_i32(cells, BLOCK_AT + axis)
    threads = (threads + LANE_MASK) & ~LANE_MASK
    of_registers = divided_up(threads * load_u64(head + HEAD.thread_registers) * SHARES, SHARED_REGISTERS)
    static_bytes = load_u64(head + HEAD.static_bytes)
    shared_bytes = static_bytes + total_shared(head, read_i32(cells, SHARED_AT))
    of_shared = divided_up(shared_bytes * SHARES, static_bytes + load_u64(head + HEAD.max_shared_bytes))
    return ONE + min(blocks, MOST_BLOCKS) * min(max(of_registers, of_shared), SHARES) // piece_shares


@compiled
def divided_up(value: int, by: int) -> int:
    """Return a quotient, rounded up."""
    return (value + by - ONE) // by


@compiled
def start(env: int, context: int, session: int, kernel_id: int, cells: int, row: int, staging: bool) -> int:
    """Check everything and launch. Return the address of the guest's memory, 0 if nothing was launched."""
    head = find_kernel(session, kernel_id)
    if row == ZERO or head == ZERO:
        return ZERO
    pieces = pieces_of(cells, head)
    if not may_start(env, session, pieces):
        return ZERO
    base, size_bytes = find_memory(env, context, session)
    if not prepare(session, head, cells, base, size_bytes, staging):
        return ZERO
    if load_u64(head + HEAD.guarded) != ZERO:
        put_launch_parameter(env, session, head, find_data(session, kernel_id), read_i32(cells, SHARED_AT))
    if call_driver(session, row, head, cells) != SUCCESS:
        store_u64(session + SESSION.staged, ZERO)
        return ZERO
    count_started(session, row, pieces)
    add_to(session + SESSION.launched, ONE)
    return base


def launch(env: int, caller: int, cells: int, count: int) -> int:
    """Launch and wait at most `Environment.spin_ns`; Python waits longer."""
    kernel_id, context, session = begin(env, caller, cells, FAILED)
    row = find_stream(session, ZERO)
    base = start(env, context, session, kernel_id, cells, row, True)
    if base == ZERO:
        return call_fallback(env, caller, cells, count, kernel_id)
    if not drain(env, session, row, load_u64(env + ENV.spin_ns)):
        return call_finish(env, caller, cells, count)
    unstage(session, base)
    return answer(cells, ZERO)


def launch_async(env: int, caller: int, cells: int, count: int) -> int:
    """Launch on any stream, with windows in place."""
    kernel_id, context, session = begin(env, caller, cells, FAILED)
    row = find_stream(session, read_i64(cells, STREAM_AT))
    if start(env, context, session, kernel_id, cells, row, False) == ZERO:
        return call_fallback(env, caller, cells, count, kernel_id)
    return answer(cells, ZERO)


@compiled
def replay(env: int, session: int, graph: int, row: int) -> bool:
    """Launch a graph on a stream. Return whether the driver took it."""
    if graph == ZERO or row == ZERO:
        return False
    pieces = max(load_u64(graph + GRAPH.pieces), ONE)
    if not may_start(env, session, pieces):
        return False
    function = load_u64(load_u64(session + SESSION.driver) + DRIVER.graph_launch)
    if (
        function == ZERO
        or call_i32(function, (load_u64(graph + GRAPH.graph), load_u64(row + STREAM.stream))) != SUCCESS
    ):
        return False
    count_started(session, row, pieces)
    add_to(session + SESSION.launched, load_u64(graph + GRAPH.launches))
    add_to(session + SESSION.replayed, ONE)
    return True


def graph_launch(env: int, caller: int, cells: int, count: int) -> int:
    """Replay a graph on any stream."""
    handle, _, session = begin(env, caller, cells, FAILED)
    if not replay(env, session, find_graph(session, handle), find_stream(session, read_i64(cells, ONE))):
        return call_fallback(env, caller, cells, count, handle)
    return answer(cells, ZERO)
