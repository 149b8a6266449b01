"""Graphs of `wasi:cuda/host@0.3.0`, through real Wasm, on every device."""

from __future__ import annotations

import itertools
import struct
from contextlib import contextmanager

import pytest

from conformance.puppet import ARGV_AT, PAGES, Puppet, strings
from conformance.work import NOBODYS, WORD, WORD_AT, Work, chain, u32
from fakes.argv import encode_argv
from strategies.kernels import NOTHING, VECTOR_ADD
from tensorwasm.gpu.device.arguments import BufferOffset
from tensorwasm.guest.imports.abi import CUDA_MODULE_0_3
from tensorwasm.guest.imports.argv import WindowArg

ENOUGH_S = 0.15


@pytest.fixture
def puppet(device, compiled, guarded):
    with Puppet(device, compiled=compiled, guarded=guarded) as puppet:
        yield puppet


@pytest.fixture
def work(puppet):
    work = Work(puppet)
    assert work.affine_kernel > 0
    assert work.nap_kernel > 0
    return work


@pytest.fixture
def stream(puppet):
    return puppet.stream_create()


@contextmanager
def recorded(puppet, stream):
    """Record what the body gives the stream; the list that it is given holds the graph afterwards.

    Kernels are loaded before: nothing can be loaded while a stream records.
    """
    graph = []
    assert puppet.graph_begin(stream) == 0, puppet.error()
    yield graph
    graph.append(puppet.graph_end(stream))
    assert graph[0] > 0, puppet.error()


def test_a_hundred_launches_are_recorded_once_and_replayed(puppet, work, stream):
    steps = [(3, k) for k in range(100)]
    work.word = 1
    with recorded(puppet, stream) as graph:
        for step in steps:
            assert work.affine(*step, stream) == 0
    assert puppet.sync() == 0
    assert work.word == 1, "recording runs nothing"
    for _ in range(3):
        assert puppet.graph_launch(*graph, stream) == 0
    assert puppet.stream_sync(stream) == 0
    assert work.word == chain(3 * steps, 1)
    assert puppet.session.statistics().kernels_launched >= 300


def test_a_replay_sees_memory_as_it_is_then(puppet, work, stream):
    with recorded(puppet, stream) as graph:
        assert work.affine(2, 1, stream) == 0
    for value in (5, 50, 500):
        work.word = value
        assert puppet.graph_launch(*graph, stream) == 0
        assert puppet.stream_sync(stream) == 0
        assert work.word == 2 * value + 1


def test_copies_are_recorded_too(puppet, work, stream):
    handle = work.buffer(bytes(16))
    with recorded(puppet, stream) as graph:
        assert puppet.memcpy_h2d_async(handle, 4, WORD_AT, 4, stream) == 0
        assert work.affine(3, 1, stream, BufferOffset(handle, 4)) == 0
        assert puppet.memcpy_d2h_async(WORD_AT + 8, handle, 4, 4, stream) == 0
        assert puppet.memcpy_h2d_async(handle, 0, WORD_AT, 0, stream) == 0
    assert work.contents(handle, 16) == bytes(16)
    for value in (7, 70):
        work.word = value
        assert puppet.graph_launch(*graph, stream) == 0
        assert puppet.stream_sync(stream) == 0
        assert puppet.get(WORD_AT + 8, 4) == struct.pack("<I", 3 * value + 1)


def test_vectors_are_added_by_a_graph(puppet, stream):
    kernel, n = puppet.load(VECTOR_ADD, b"vector_add"), 300
    a, b, c = (WORD_AT + k * 4096 for k in range(3))
    argv = encode_argv([WindowArg(a, 4 * n), WindowArg(b, 4 * n), WindowArg(c, 4 * n), u32(n)])
    with recorded(puppet, stream) as graph:
        assert puppet.begin(kernel, argv, stream, (2, 1, 1), (256, 1, 1)) == 0
    puppet.put(a, struct.pack(f"<{n}f", *range(n)))
    puppet.put(b, struct.pack(f"<{n}f", *range(n)))
    assert puppet.graph_launch(*graph, stream) == 0
    assert puppet.stream_sync(stream) == 0
    assert struct.unpack(f"<{n}f", puppet.get(c, 4 * n)) == tuple(float(2 * k) for k in range(n))


def test_a_graph_runs_in_any_stream_behind_its_work(puppet, work, stream):
    other = puppet.stream_create()
    with recorded(puppet, stream) as graph:
        assert work.affine(2, 0, stream) == 0
    for where in (0, other, stream):
        work.word = 1
        assert work.nap(ENOUGH_S / 3, where) == 0
        assert work.affine(1, 4, where) == 0
        assert puppet.graph_launch(*graph, where) == 0
        assert work.affine(1, 1, where) == 0
        assert puppet.stream_sync(where) == 0
        assert work.word == 11


def test_the_instances_own_stream_can_record(puppet, work):
    with recorded(puppet, 0) as graph:
        assert work.affine(1, 3) == 0
    work.word = 0
    assert puppet.graph_launch(*graph, 0) == 0
    assert puppet.sync() == 0
    assert work.word == 3


def test_a_graph_of_nothing(puppet, stream):
    with recorded(puppet, stream) as graph:
        pass
    assert puppet.graph_launch(*graph, stream) == 0
    assert puppet.stream_sync(stream) == 0
    assert puppet.graph_destroy(*graph) == 0


def test_memory_grows_between_recording_and_replay(puppet, work, stream):
    with recorded(puppet, stream) as graph:
        assert work.affine(2, 1, stream) == 0
    assert puppet.grow(3) == PAGES
    far = WindowArg((PAGES + 2) << 16, 4)
    work.word = 4
    assert work.affine(1, 6, 0, far) == 0
    assert puppet.graph_launch(*graph, stream) == 0, puppet.error()
    assert puppet.grow(1) == PAGES + 3
    assert puppet.graph_launch(*graph, stream) == 0, puppet.error()
    assert puppet.sync() == 0
    assert work.word == 19
    assert puppet.get(far.offset, 4) == struct.pack("<I", 6)


def test_memory_that_grows_while_a_stream_records_is_not_reached_yet(puppet, work, stream):
    far = WindowArg(PAGES << 16, 4)
    with recorded(puppet, stream) as graph:
        assert work.affine(2, 1, stream) == 0
        assert puppet.grow(1) == PAGES
        assert work.affine(1, 1, stream, far) == -9
        assert work.affine(3, 1, stream) == 0
    work.word = 1
    assert puppet.graph_launch(*graph, stream) == 0, puppet.error()
    assert puppet.stream_sync(stream) == 0
    assert work.word == 10
    with recorded(puppet, stream) as graph:
        assert work.affine(1, 8, stream, far) == 0
    assert puppet.graph_launch(*graph, stream) == 0, puppet.error()
    assert puppet.stream_sync(stream) == 0
    assert puppet.get(far.offset, 4) == struct.pack("<I", 8)


# ------------------------------------------------------------------------------------------------- while recording


def test_a_refused_operation_leaves_the_recording_unchanged(puppet, work, stream):
    handle, event = work.buffer(bytes(4)), puppet.event_create()
    with recorded(puppet, stream) as done:
        assert work.affine(0, 1, stream) == 0
    other = puppet.stream_create()
    argv = encode_argv([WORD, u32(1), u32(1)])
    puppet.put(ARGV_AT, argv)
    refused = [
        ("load_ptx", (0, 0, 0, 0)),
        ("unload", (work.nap_kernel,)),
        ("launch", (work.affine_kernel, 1, 1, 1, 1, 1, 1, 0, ARGV_AT, len(argv))),
        ("launch_async", (work.affine_kernel, 1, 1, 1, 1, 1, 1, 0, ARGV_AT, len(argv), other)),
        ("sync", ()),
        ("alloc", (4, 0)),
        ("free", (handle, 0)),
        ("memcpy_h2d", (handle, 0, WORD_AT, 4)),
        ("memcpy_d2h", (WORD_AT, handle, 0, 4)),
        ("memcpy_h2d_async", (handle, 0, WORD_AT, 4, other)),
        ("memcpy_d2h_async", (WORD_AT, handle, 0, 4, other)),
        ("stream_create", ()),
        ("stream_destroy", (stream,)),
        ("stream_destroy", (other,)),
        ("stream_sync", (stream,)),
        ("stream_sync", (other,)),
        ("stream_query", (stream,)),
        ("event_create", ()),
        ("event_destroy", (event,)),
        ("event_record", (event, stream)),
        ("stream_wait_event", (stream, event)),
        ("event_sync", (event,)),
        ("event_query", (event,)),
        ("graph_begin", (stream,)),
        ("graph_begin", (other,)),
        ("graph_end", (other,)),
        ("graph_launch", (*done, stream)),
        ("graph_destroy", tuple(done)),
    ]
    allowed = {"last_error_len", "last_error_copy", "device_attribute", "device_name"}
    assert {name for name, _ in refused} | allowed == set(strings(CUDA_MODULE_0_3))
    with recorded(puppet, stream) as graph:
        assert work.affine(3, 1, stream) == 0
        for name, params in refused:
            assert getattr(puppet, name)(*params) == -9, name
            assert puppet.error()
            puppet.put(ARGV_AT, argv)
        assert puppet.device_attribute(10) == 32
        assert work.affine(5, 2, stream) == 0
    work.word = 1
    assert puppet.graph_launch(*graph, stream) == 0
    assert puppet.sync() == 0
    assert work.word == chain([(3, 1), (5, 2)], 1)
    assert puppet.free(handle, 0) == 0
    assert puppet.unload(work.nap_kernel) == 0


@pytest.mark.rule("5-recorded")
def test_a_refused_launch_is_not_recorded_and_ends_nothing(puppet, work, stream):
    with recorded(puppet, stream) as graph:
        assert work.affine(2, 1, stream) == 0
        assert work.affine(1, 1, stream, WindowArg(WORD_AT + 1, 4)) == -5
        assert work.affine(1, 1, stream, WindowArg(PAGES << 16, 4)) == -2
        assert work.affine(1, 1, stream, BufferOffset(77, 0)) == -11
        assert puppet.begin(1, b"", stream) == -3
        assert puppet.begin(work.affine_kernel, b"", stream, (0, 1, 1)) == -8
        assert puppet.memcpy_h2d_async(77, 0, 0, 4, stream) == -11
        assert work.affine(2, 1, stream) == 0
    work.word = 1
    assert puppet.graph_launch(*graph, stream) == 0
    assert puppet.sync() == 0
    assert work.word == 7


def test_ending_what_was_not_begun(puppet, work, stream):
    assert puppet.graph_end(stream) == -9
    assert puppet.graph_end(0) == -9
    with recorded(puppet, stream):
        assert work.affine(1, 1, stream) == 0
        assert puppet.graph_end(0) == -9
        assert puppet.graph_end(1 << 40) == -11
    assert puppet.graph_end(stream) == -9


def test_an_instance_may_end_while_its_streams_record(device, compiled, guarded):
    for where, steps in itertools.product((0, 1), (0, 2)):
        with Puppet(device, compiled=compiled, guarded=guarded) as puppet:
            work = Work(puppet)
            stream = puppet.stream_create() if where else 0
            assert work.affine_kernel > 0
            assert puppet.graph_begin(stream) == 0
            for _ in range(steps):
                assert work.affine(1, 1, stream) == 0


# ---------------------------------------------------------------------------------------------- graphs that are gone


@pytest.mark.parametrize("bad", [0, *NOBODYS])
def test_graphs_that_do_not_exist(puppet, bad):
    assert puppet.graph_launch(bad, 0) == -11
    assert puppet.graph_destroy(bad) == -11
    assert puppet.error()


def test_a_graph_is_launched_into_a_stream_that_exists(puppet, work, stream):
    with recorded(puppet, stream) as graph:
        assert work.affine(1, 1, stream) == 0
    for bad in NOBODYS:
        assert puppet.graph_launch(*graph, bad) == -11
    assert puppet.stream_destroy(stream) == 0
    assert puppet.graph_launch(*graph, stream) == -11
    assert puppet.graph_launch(*graph, 0) == 0
    assert puppet.sync() == 0


@pytest.mark.rule("3-kernel")
def test_a_graph_is_destroyed_once_its_replays_have_ended(puppet, work, stream):
    with recorded(puppet, stream) as graph:
        assert work.nap(ENOUGH_S, stream) == 0
        assert work.affine(0, 21, stream) == 0
    assert puppet.graph_launch(*graph, stream) == 0
    assert puppet.graph_destroy(*graph) == 0
    assert work.word == 21
    assert puppet.graph_destroy(*graph) == -11
    assert puppet.graph_launch(*graph, stream) == -11


@pytest.mark.rule("5-recorded")
def test_a_graph_cannot_be_launched_when_its_kernel_is_gone(puppet, work, stream):
    with recorded(puppet, stream) as graph:
        assert work.affine(0, 1, stream) == 0
    assert puppet.graph_launch(*graph, stream) == 0
    assert puppet.unload(work.affine_kernel) == 0
    work.word = 7
    assert puppet.graph_launch(*graph, stream) == -11
    assert puppet.sync() == 0
    assert work.word == 7
    assert puppet.graph_destroy(*graph) == 0


@pytest.mark.rule("5-recorded")
def test_a_graph_cannot_be_launched_when_its_buffer_is_gone(puppet, work, stream):
    keep, gone, copied = (work.buffer(bytes(4)) for _ in range(3))
    with recorded(puppet, stream) as by_kernel:
        assert work.affine(1, 1, stream, BufferOffset(keep, 0)) == 0
        assert work.affine(1, 1, stream, BufferOffset(gone, 0)) == 0
    with recorded(puppet, stream) as by_copy:
        assert puppet.memcpy_h2d_async(copied, 0, WORD_AT, 4, stream) == 0
    assert puppet.free(gone, 0) == 0
    assert puppet.free(copied, 0) == 0
    assert puppet.alloc(4, 0) > 0  # may well lie where the freed one was
    assert puppet.graph_launch(*by_kernel, stream) == -11
    assert puppet.graph_launch(*by_copy, stream) == -11
    assert puppet.sync() == 0
    assert work.contents(keep, 4) == bytes(4)


def test_more_graphs_than_the_limit_are_refused(puppet, work, stream):
    graphs = []
    for _ in range(32):
        with recorded(puppet, stream) as graph:
            assert work.affine(1, 1, stream) == 0
        graphs += graph
    assert len(set(graphs)) == 32
    assert puppet.graph_begin(stream) == -6
    assert puppet.graph_end(stream) == -9
    assert puppet.graph_destroy(graphs[5]) == 0
    with recorded(puppet, stream) as graph:
        assert work.affine(1, 1, stream) == 0
    assert graph[0] not in graphs


def test_a_graph_holds_4096_launches_and_no_more(puppet, stream):
    kernel = puppet.load(NOTHING, b"nothing")
    with recorded(puppet, stream) as graph:
        for _ in range(4096):
            assert puppet.begin(kernel, b"", stream) == 0
        assert puppet.begin(kernel, b"", stream) == -6
        assert puppet.begin(kernel, b"", stream) == -6
    assert puppet.graph_destroy(*graph) == 0
    assert puppet.begin(kernel, b"", stream) == 0
    assert puppet.stream_sync(stream) == 0
