"""Compiled launches: ``wasi_cuda_launch``, ``wasi_cuda_launch_async`` and ``wasi_cuda_graph_launch``.

A launch is given to the driver only when nothing is left that the Python twin would refuse, and the guest is answered
last. If the driver itself refuses, nothing ran: the twin tries once more, and knows what to say.
"""

from __future__ import annotations

from numba import uint64

from tensorwasm.guest.native.arguments import copy_argv, parse
from tensorwasm.guest.native.checks import (
    as_u32,
    call_finish,
    call_twin,
    compiled,
    find_context,
    find_graph,
    find_kernel,
    find_memory,
    find_pad,
    find_stream,
    has_time,
    is_armed,
    preset,
    read_i32,
    read_i64,
)
from tensorwasm.guest.native.intrinsics import call_i32, load_u64, store_u64
from tensorwasm.guest.native.layout import (
    DRIVER,
    ENV,
    FAILED,
    GRAPH,
    HEAD,
    MAX_AXIS_BLOCKS,
    MAX_AXIS_THREADS,
    MAX_SHARED_BYTES,
    MAX_THREADS,
    NOTHING,
    ONE,
    PAD,
    SCRATCH,
    STREAM,
    SUCCESS,
    WORD,
    ZERO,
)
from tensorwasm.guest.native.staging import stage, unstage
from tensorwasm.guest.native.work import add_to, count_started, drain, has_room

GRID_AT = uint64(1)
BLOCK_AT = uint64(4)
SHARED_AT = uint64(7)
ARGS_AT = uint64(8)
ARGS_LEN_AT = uint64(9)
STREAM_AT = uint64(10)


@compiled
def may_start(env: int, pad: int, pieces: int) -> bool:
    """Return whether so much work may be given to the device now."""
    return is_armed(pad) and load_u64(pad + PAD.placed) != ZERO and has_room(pad, pieces) and has_time(env, pad)


@compiled
def fits_axis(cells: int, head: int, axis: int) -> bool:
    """Return whether the launch's blocks and threads along an axis suit ABI, device and kernel."""
    blocks, threads = read_i32(cells, GRID_AT + axis), read_i32(cells, BLOCK_AT + axis)
    if blocks == ZERO or blocks > MAX_AXIS_BLOCKS or blocks > load_u64(head + HEAD.max_grid + axis * WORD):
        return False
    if threads == ZERO or threads > MAX_AXIS_THREADS or threads > load_u64(head + HEAD.max_block + axis * WORD):
        return False
    required = load_u64(head + HEAD.required + axis * WORD)
    return required == ZERO or required == threads


@compiled
def fits(cells: int, head: int) -> bool:
    """Return whether the launch's geometry suits ABI, device and kernel."""
    axis = ZERO
    threads = ONE
    while axis <= uint64(2):
        if not fits_axis(cells, head, axis):
            return False
        threads *= read_i32(cells, BLOCK_AT + axis)
        axis += ONE
    shared = read_i32(cells, SHARED_AT)
    if threads > MAX_THREADS or threads > load_u64(head + HEAD.max_threads):
        return False
    return shared <= MAX_SHARED_BYTES and shared <= load_u64(head + HEAD.max_shared_bytes)


@compiled
def call_driver(pad: int, row: int, head: int, cells: int) -> int:
    """Give the launch, whose values are in the scratch, to the driver. Return its answer."""
    return call_i32(
        load_u64(load_u64(pad + PAD.driver) + DRIVER.launch_kernel),
        (
            load_u64(head + HEAD.function),
            as_u32(read_i32(cells, GRID_AT)),
            as_u32(read_i32(cells, GRID_AT + ONE)),
            as_u32(read_i32(cells, GRID_AT + uint64(2))),
            as_u32(read_i32(cells, BLOCK_AT)),
            as_u32(read_i32(cells, BLOCK_AT + ONE)),
            as_u32(read_i32(cells, BLOCK_AT + uint64(2))),
            as_u32(read_i32(cells, SHARED_AT)),
            load_u64(row + STREAM.stream),
            load_u64(pad + PAD.scratch) + SCRATCH.pointers,
            ZERO,
        ),
    )


@compiled
def prepare(pad: int, head: int, cells: int, base: int, size_bytes: int, staging: bool) -> bool:
    """Check geometry and arguments. Return whether the scratch holds what the kernel takes.

    Args:
        pad: the pad.
        head: of the kernel.
        cells: the guest's parameters.
        base: address of the guest's memory.
        size_bytes: of it.
        staging: windows may go through the slot.
    """
    if base == ZERO or head == ZERO or load_u64(head + HEAD.passable) != ONE or not fits(cells, head):
        return False
    scratch, length = load_u64(pad + PAD.scratch), read_i32(cells, ARGS_LEN_AT)
    if not copy_argv(scratch, base, size_bytes, read_i32(cells, ARGS_AT), length):
        return False
    windows = parse(pad, scratch, head, length, base, size_bytes)
    if windows == ZERO:
        return True
    return windows != NOTHING and staging and stage(pad, scratch, windows, base)


@compiled
def start(env: int, context: int, pad: int, kernel_id: int, cells: int, row: int, staging: bool) -> int:
    """Check everything and launch. Return the address of the guest's memory, 0 if nothing was launched."""
    if row == ZERO or not may_start(env, pad, ONE):
        return ZERO
    base, size_bytes = find_memory(env, context, pad)
    head = find_kernel(pad, kernel_id)
    if not prepare(pad, head, cells, base, size_bytes, staging):
        return ZERO
    if call_driver(pad, row, head, cells) != SUCCESS:
        store_u64(pad + PAD.staged, ZERO)
        return ZERO
    count_started(pad, row, ONE)
    add_to(pad + PAD.launched, ONE)
    return base


def launch(env: int, caller: int, cells: int, count: int) -> int:
    """Launch, wait a little, and hand a longer wait to Python."""
    kernel_id = preset(cells, FAILED)
    context = find_context(env, caller)
    pad = find_pad(env, context)
    row = find_stream(pad, ZERO)
    base = start(env, context, pad, kernel_id, cells, row, True)
    if base == ZERO:
        return call_twin(env, caller, cells, count, kernel_id)
    if not drain(env, pad, row, load_u64(env + ENV.spin_ns)):
        return call_finish(env, caller, cells, count)
    unstage(pad, base)
    store_u64(cells, ZERO)
    return ZERO


def launch_async(env: int, caller: int, cells: int, count: int) -> int:
    """Launch on any stream, with windows where they are."""
    kernel_id = preset(cells, FAILED)
    context = find_context(env, caller)
    pad = find_pad(env, context)
    row = find_stream(pad, read_i64(cells, STREAM_AT))
    if start(env, context, pad, kernel_id, cells, row, False) == ZERO:
        return call_twin(env, caller, cells, count, kernel_id)
    store_u64(cells, ZERO)
    return ZERO


@compiled
def replay(env: int, pad: int, graph: int, row: int) -> bool:
    """Give a graph to a stream. Return whether the driver took it."""
    if graph == ZERO or row == ZERO:
        return False
    steps = max(load_u64(graph + GRAPH.steps), ONE)
    if not may_start(env, pad, steps):
        return False
    function = load_u64(load_u64(pad + PAD.driver) + DRIVER.graph_launch)
    if (
        function == ZERO
        or call_i32(function, (load_u64(graph + GRAPH.graph), load_u64(row + STREAM.stream))) != SUCCESS
    ):
        return False
    count_started(pad, row, steps)
    add_to(pad + PAD.launched, load_u64(graph + GRAPH.launches))
    add_to(pad + PAD.replayed, ONE)
    return True


def graph_launch(env: int, caller: int, cells: int, count: int) -> int:
    """Replay a graph on any stream."""
    handle = preset(cells, FAILED)
    pad = find_pad(env, find_context(env, caller))
    if not replay(env, pad, find_graph(pad, handle), find_stream(pad, read_i64(cells, ONE))):
        return call_twin(env, caller, cells, count, handle)
    store_u64(cells, ZERO)
    return ZERO
