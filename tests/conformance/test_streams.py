"""Streams and asynchronous work of `wasi:cuda/host@0.3.0`, through real Wasm, on every device."""

from __future__ import annotations

import struct
import time

import pytest

from conformance.puppet import ARGV_AT, PAGES, Puppet, strings
from conformance.work import NOBODYS, WORD, WORD_AT, Work, chain, u32, u64
from fakes.argv import encode_argv
from strategies.kernels import ASTRAY, VECTOR_ADD
from tensorwasm.gpu.device.arguments import BufferOffset
from tensorwasm.gpu.opening import open_device
from tensorwasm.guest.imports.abi import CUDA_MODULE_0_3
from tensorwasm.guest.imports.argv import WindowArg

END = PAGES << 16
STEPS = [(3, 1), (5, 2), (7, 3), (1, 100), (11, 4)]
ENOUGH_S = 0.15


@pytest.fixture
def puppet(device, compiled, guarded):
    with Puppet(device, compiled=compiled, guarded=guarded) as puppet:
        yield puppet


@pytest.fixture
def work(puppet):
    return Work(puppet)


@pytest.fixture
def emulated(compiled):
    """A puppet whose device may be spoilt."""
    device, _ = open_device("emulator")
    with Puppet(device, compiled=compiled) as puppet:
        yield Work(puppet)
    device.close()


# ------------------------------------------------------------------------------------------------------ streams


def test_streams_have_numbers_of_their_own_and_lose_them_for_good(puppet):
    numbers = [puppet.stream_create() for _ in range(16)]
    assert all(number > 0 for number in numbers)
    assert len(set(numbers)) == 16
    assert puppet.stream_create() == -6
    assert "16" in puppet.error()
    assert puppet.stream_destroy(numbers[3]) == 0
    assert puppet.stream_destroy(numbers[3]) == -11
    again = puppet.stream_create()
    assert again > 0
    assert again not in numbers
    assert puppet.stream_create() == -6


def test_the_instances_own_stream_is_there_and_cannot_be_destroyed(puppet, work):
    assert puppet.stream_query(0) == 0
    assert puppet.stream_sync(0) == 0
    assert puppet.stream_destroy(0) == -9
    assert work.affine(1, 5) == 0
    assert puppet.stream_sync(0) == 0
    assert work.word == 5


@pytest.mark.parametrize("bad", NOBODYS)
def test_streams_that_do_not_exist(puppet, work, bad):
    event, buffer = puppet.event_create(), work.buffer(bytes(8))
    assert puppet.stream_destroy(bad) == -11
    assert puppet.stream_sync(bad) == -11
    assert puppet.stream_query(bad) == -11
    assert puppet.event_record(event, bad) == -11
    assert puppet.stream_wait_event(bad, event) == -11
    assert work.affine(1, 1, bad) == -11
    assert puppet.memcpy_h2d_async(buffer, 0, WORD_AT, 4, bad) == -11
    assert puppet.memcpy_d2h_async(WORD_AT, buffer, 0, 4, bad) == -11
    assert puppet.graph_begin(bad) == -11
    assert puppet.graph_end(bad) == -11
    assert puppet.error()
    assert work.affine(1, 1) == 0
    assert puppet.sync() == 0


def test_a_destroyed_stream_is_like_one_that_never_was(puppet, work):
    stream = puppet.stream_create()
    assert puppet.stream_destroy(stream) == 0
    assert puppet.stream_sync(stream) == -11
    assert puppet.stream_query(stream) == -11
    assert work.affine(1, 1, stream) == -11


def test_work_in_one_stream_runs_in_order(puppet, work):
    stream = puppet.stream_create()
    work.word = 1
    for factor, term in STEPS:
        assert work.affine(factor, term, stream) == 0
    assert puppet.stream_sync(stream) == 0
    assert work.word == chain(STEPS, 1)


def test_a_stream_says_whether_its_work_has_ended(puppet, work):
    busy, idle = puppet.stream_create(), puppet.stream_create()
    assert work.nap(ENOUGH_S, busy) == 0
    assert puppet.stream_query(busy) == 1
    assert puppet.stream_query(idle) == 0
    assert puppet.stream_sync(busy) == 0
    assert puppet.stream_query(busy) == 0


def test_starting_does_not_wait_and_synchronizing_does(puppet, work):
    stream = puppet.stream_create()
    work.warm_up(stream)
    work.word = 0
    assert work.nap(ENOUGH_S, stream) == 0
    start = time.monotonic()
    assert work.affine(1, 9, stream) == 0
    assert work.word == 0
    assert puppet.stream_sync(stream) == 0
    assert time.monotonic() - start > ENOUGH_S / 2
    assert work.word == 9


@pytest.mark.rule("3-stream")
def test_destroying_a_stream_waits_for_what_it_was_given(puppet, work):
    stream = puppet.stream_create()
    assert work.nap(ENOUGH_S, stream) == 0
    assert work.affine(0, 77, stream) == 0
    assert puppet.stream_destroy(stream) == 0
    assert work.word == 77


def test_sync_waits_for_all_streams(puppet, work):
    handles = [work.buffer(bytes(4)) for _ in range(3)]
    streams = [0, puppet.stream_create(), puppet.stream_create()]
    for stream, handle in zip(streams, handles, strict=True):
        assert work.nap(ENOUGH_S / 3, stream) == 0
        assert work.affine(0, 40 + handle, stream, BufferOffset(handle, 0)) == 0
    assert puppet.sync() == 0
    assert [puppet.stream_query(stream) for stream in streams] == [0, 0, 0]
    assert [work.contents(handle, 4) for handle in handles] == [struct.pack("<I", 40 + handle) for handle in handles]


def test_a_waiting_launch_runs_behind_what_its_stream_was_given(puppet, work):
    work.word = 2
    assert work.affine(10, 1) == 0
    assert puppet.start(work.affine_kernel, encode_argv([WORD, u32(10), u32(5)]), block=(1, 1, 1)) == 0
    assert work.word == 215


def test_work_left_behind_is_ended_with_its_instance(device, compiled, guarded):
    with Puppet(device, compiled=compiled, guarded=guarded) as puppet:
        work = Work(puppet)
        for _ in range(3):
            assert work.nap(ENOUGH_S / 3, puppet.stream_create()) == 0
        assert work.affine(1, 1) == 0
    with Puppet(device, compiled=compiled, guarded=guarded) as puppet:
        work = Work(puppet)
        assert work.affine(0, 3) == 0
        assert puppet.sync() == 0
        assert work.word == 3


def test_handles_of_another_guest_are_unknown(device, puppet, work, compiled, guarded):
    with Puppet(device, compiled=compiled, guarded=guarded) as victim:
        theirs = Work(victim)
        assert theirs.affine_kernel > 0
        # Counted up, so that none of them is a number of the other guest's own by accident.
        streams = [victim.stream_create() for _ in range(3)]
        events = [victim.event_create() for _ in range(3)]
        assert victim.graph_begin(streams[0]) == 0
        assert theirs.affine(1, 1, streams[0]) == 0
        graph = victim.graph_end(streams[0])
        assert graph > 0
        for name, params in {
            "stream_sync": (streams[2],),
            "stream_query": (streams[2],),
            "stream_destroy": (streams[2],),
            "event_sync": (events[2],),
            "event_query": (events[2],),
            "event_destroy": (events[2],),
            "event_record": (events[2], 0),
            "stream_wait_event": (0, events[2]),
            "graph_launch": (graph, 0),
            "graph_destroy": (graph,),
        }.items():
            assert getattr(puppet, name)(*params) == -11, name
        assert puppet.unload(theirs.affine_kernel) == -3
        assert puppet.begin(theirs.affine_kernel, encode_argv([WORD, u32(1), u32(1)])) == -3
        assert victim.graph_launch(graph, 0) == 0
        assert victim.sync() == 0
        assert theirs.word == 1


# ------------------------------------------------------------------------------------------- asynchronous launches


@pytest.mark.parametrize(
    ("grid", "block", "shared"),
    [
        ((0, 1, 1), (1, 1, 1), 0),
        ((-1, 1, 1), (1, 1, 1), 0),
        ((1, 1, 1), (1025, 1, 1), 0),
        ((1, 1, 1), (32, 33, 1), 0),
        ((1, 1, 1), (1, 1, 1), (228 << 10) + 1),
        ((1, 1, 1), (1, 1, 1), -1),
    ],
)
def test_a_geometry_that_cannot_be_is_refused(puppet, work, grid, block, shared):
    argv = encode_argv([WORD, u32(1), u32(1)])
    assert puppet.begin(work.affine_kernel, argv, 0, grid, block, shared) == -8


GOOD = encode_argv([WORD, u32(1), u32(1)])


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (GOOD[:-1], -9),
        (b"\x09" + GOOD[1:], -9),
        (b"", -9),
        (encode_argv([WORD, u32(1)]), -9),
        (encode_argv([u32(1)] * 129), -10),
        (bytes(4097), -10),
        (encode_argv([WindowArg(END, 4), u32(1), u32(1)]), -2),
        (encode_argv([WindowArg(0, 0xFFFFFFFF), u32(1), u32(1)]), -2),
        (encode_argv([BufferOffset(99, 0), u32(1), u32(1)]), -11),
        (encode_argv([u64(0), u32(1), u32(1)]), -5),
        (encode_argv([u64(0xDEAD_BEEF_0000), u32(1), u32(1)]), -5),
        (encode_argv([WindowArg(WORD_AT + 1, 4), u32(1), u32(1)]), -5),
    ],
)
def test_damaged_arguments_are_refused_with_their_code(puppet, work, argv, code):
    assert puppet.begin(work.affine_kernel, argv) == code
    assert puppet.error()
    work.word = 1
    assert work.affine(1, 1) == 0
    assert puppet.sync() == 0
    assert work.word == 2


def test_checks_of_an_asynchronous_launch_come_in_order(puppet, work):
    bad_grid, bad_stream = (0, 1, 1), 1 << 40
    launch = puppet.launch_async
    assert launch(-1, *bad_grid, 1, 1, 1, 0, END - 1, 2, bad_stream) == -2
    assert launch(-1, *bad_grid, 1, 1, 1, 0, 0, 0, bad_stream) == -3
    assert launch(1, *bad_grid, 1, 1, 1, 0, 0, 0, bad_stream) == -8
    assert launch(1, 1, 1, 1, 1, 1, 1, 0, 0, 0, bad_stream) == -11
    puppet.put(ARGV_AT, b"\x09")
    assert launch(1, 1, 1, 1, 1, 1, 1, 0, ARGV_AT, 1, 0) == -9
    assert launch(1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0) == -3


def test_records_may_be_overwritten_while_the_launch_waits_for_its_turn(puppet, work):
    stream = puppet.stream_create()
    work.word = 4
    assert work.nap(ENOUGH_S, stream) == 0
    assert work.affine(2, 1, stream) == 0
    puppet.put(ARGV_AT, b"\xff" * 64)
    assert puppet.stream_sync(stream) == 0
    assert work.word == 9


def test_memory_may_grow_between_a_launch_and_its_end(puppet, work):
    stream = puppet.stream_create()
    work.word = 4
    assert work.nap(ENOUGH_S, stream) == 0
    assert work.affine(2, 1, stream) == 0
    assert puppet.grow(4) == PAGES
    puppet.put((PAGES + 3) << 16, struct.pack("<I", 50))
    far = WindowArg((PAGES + 3) << 16, 4)
    assert work.affine(1, 1, stream, far) == 0, puppet.error()
    assert puppet.stream_sync(stream) == 0
    assert work.word == 9
    assert puppet.get(far.offset, 4) == struct.pack("<I", 51)


def test_vectors_are_added_asynchronously(puppet):
    kernel, stream, n = puppet.load(VECTOR_ADD, b"vector_add"), puppet.stream_create(), 1000
    a, b, c = (WORD_AT + k * 8192 for k in range(3))
    puppet.put(a, struct.pack(f"<{n}f", *range(n)))
    puppet.put(b, struct.pack(f"<{n}f", *range(n, 2 * n)))
    argv = encode_argv([WindowArg(a, 4 * n), WindowArg(b, 4 * n), WindowArg(c, 4 * n), u32(n)])
    assert puppet.begin(kernel, argv, stream, (4, 1, 1), (256, 1, 1)) == 0, puppet.error()
    assert puppet.stream_sync(stream) == 0
    assert struct.unpack(f"<{n}f", puppet.get(c, 4 * n)) == tuple(float(n + 2 * k) for k in range(n))


def test_memory_that_is_only_staged_has_no_windows_for_what_does_not_wait(device, compiled, guarded):
    with Puppet(device, compiled=compiled, guarded=guarded, memory="staged") as puppet:
        work, stream = Work(puppet), puppet.stream_create()
        assert work.affine(1, 1, stream) == -5
        handle = work.buffer(struct.pack("<I", 20))
        assert work.affine(2, 2, stream, BufferOffset(handle, 0)) == 0
        assert puppet.memcpy_d2h_async(WORD_AT, handle, 0, 4, stream) == 0
        assert puppet.stream_sync(stream) == 0
        assert work.word == 42
        assert puppet.start(work.affine_kernel, encode_argv([WORD, u32(2), u32(1)]), block=(1, 1, 1)) == 0
        assert work.word == 85
        assert puppet.session.statistics().pinned_bytes == 0


# ----------------------------------------------------------------------------------------------------- copies


@pytest.mark.hardware("H5")
def test_copies_reach_any_place_of_a_buffer(puppet, work):
    stream, handle = puppet.stream_create(), work.buffer(bytes(range(64)))
    puppet.put(WORD_AT, b"ABCDEFGH")
    assert puppet.memcpy_h2d_async(handle, 8, WORD_AT, 8, stream) == 0
    assert puppet.memcpy_h2d_async(handle, 61, WORD_AT + 1, 3, stream) == 0
    assert puppet.memcpy_d2h_async(WORD_AT + 100, handle, 4, 16, stream) == 0
    assert puppet.stream_sync(stream) == 0
    expected = bytes(range(8)) + b"ABCDEFGH" + bytes(range(16, 61)) + b"BCD"
    assert puppet.get(WORD_AT + 100, 16) == expected[4:20]
    assert work.contents(handle, 64) == expected


def test_copies_and_kernels_of_one_stream_take_turns(puppet, work):
    stream, handle = puppet.stream_create(), work.buffer(bytes(8))
    at = BufferOffset(handle, 4)
    work.word = 6
    assert work.nap(ENOUGH_S, stream) == 0
    assert puppet.memcpy_h2d_async(handle, 4, WORD_AT, 4, stream) == 0
    assert work.affine(7, 1, stream, at) == 0
    assert puppet.memcpy_d2h_async(WORD_AT + 8, handle, 4, 4, stream) == 0
    assert work.affine(7, 1, stream, at) == 0
    assert puppet.stream_sync(stream) == 0
    assert struct.unpack("<I", puppet.get(WORD_AT + 8, 4)) == (43,)
    assert work.contents(handle, 8) == struct.pack("<II", 0, 302)


COPIES = [
    # offset in the buffer of 64 bytes, place in guest memory, length, code
    (0, WORD_AT, 64, 0),
    (63, WORD_AT, 1, 0),
    (64, WORD_AT, 0, 0),
    (0, WORD_AT, 0, 0),
    (0, END, 0, 0),
    (0, END - 64, 64, 0),
    (64, WORD_AT, 1, -9),
    (65, WORD_AT, 0, -9),
    (1, WORD_AT, 64, -9),
    (-1, WORD_AT, 1, -9),
    (-1, WORD_AT, 2, -9),
    (-64, WORD_AT, 64, -9),
    (2**63 - 1, WORD_AT, 1, -9),
    (-(2**63), WORD_AT, 0, -9),
    (1 << 32, WORD_AT, 4, -9),
    (0, END - 63, 64, -2),
    (0, END + 1, 0, -2),
    (0, -1, 1, -2),
    (0, -1, 0, -2),
    (0, 0, -1, -2),
    (-1, -1, -1, -2),
]


@pytest.mark.parametrize(("offset", "at", "length", "code"), COPIES)
def test_bounds_of_copies(puppet, work, offset, at, length, code):
    handle = work.buffer(bytes(64))
    assert puppet.memcpy_h2d_async(handle, offset, at, length, 0) == code
    assert puppet.memcpy_d2h_async(at, handle, offset, length, 0) == code
    assert puppet.sync() == 0


def test_checks_of_copies_come_in_order(puppet, work):
    handle, bad = work.buffer(bytes(64)), 1 << 40
    for (offset, at, length), buffer, stream, code in [
        ((65, END, 1), bad, bad, -2),
        ((65, 0, 1), handle, bad, -11),
        ((65, 0, 1), bad, 0, -11),
        ((65, 0, 1), handle, 0, -9),
        ((0, 0, 1), handle, 0, 0),
    ]:
        assert puppet.memcpy_h2d_async(buffer, offset, at, length, stream) == code
        assert puppet.memcpy_d2h_async(at, buffer, offset, length, stream) == code
    assert puppet.sync() == 0


def test_copies_from_and_to_buffers_that_are_gone(puppet, work):
    handle = work.buffer(bytes(64))
    assert puppet.free(handle, 0) == 0
    for gone in (handle, *NOBODYS):
        assert puppet.memcpy_h2d_async(gone, 0, WORD_AT, 1, 0) == -11
        assert puppet.memcpy_d2h_async(WORD_AT, gone, 0, 1, 0) == -11


@pytest.mark.rule("3-buffer")
def test_freeing_waits_for_the_work_that_could_reach_the_buffer(puppet, work):
    stream, handle = puppet.stream_create(), work.buffer(bytes(4))
    assert work.nap(ENOUGH_S, stream) == 0
    assert work.affine(1, 8, stream, BufferOffset(handle, 0)) == 0
    assert puppet.memcpy_d2h_async(WORD_AT, handle, 0, 4, stream) == 0
    assert puppet.free(handle, 0) == 0
    assert work.word == 8


def test_a_waiting_copy_comes_behind_all_streams(puppet, work):
    stream, handle = puppet.stream_create(), work.buffer(bytes(4))
    assert work.nap(ENOUGH_S, stream) == 0
    assert work.affine(1, 8, stream, BufferOffset(handle, 0)) == 0
    assert work.contents(handle, 4) == struct.pack("<I", 8)


# ---------------------------------------------------------------------------------------------------- unloading


def test_an_unloaded_kernel_cannot_be_launched_and_is_unloaded_once(puppet, work):
    kernel = work.affine_kernel
    assert work.affine(1, 1) == 0
    assert puppet.unload(kernel) == 0
    assert work.affine(1, 1) == -3
    assert puppet.start(kernel, GOOD) == -3
    assert puppet.unload(kernel) == -3
    assert puppet.error()
    assert puppet.session.statistics().kernels == 0


@pytest.mark.parametrize("bad", [*NOBODYS, 0, 1])
def test_kernels_that_do_not_exist(puppet, bad):
    assert puppet.unload(bad) == -3


@pytest.mark.rule("3-kernel")
def test_unloading_waits_for_the_kernel(puppet, work):
    stream = puppet.stream_create()
    work.word = 1
    assert work.affine(1, 1, stream) == 0
    assert work.nap(ENOUGH_S, stream) == 0
    assert puppet.unload(work.nap_kernel) == 0
    assert puppet.stream_query(stream) == 0
    assert work.word == 2


def test_unloading_makes_room_for_another_kernel(puppet):
    kernels = [puppet.load(VECTOR_ADD, b"vector_add") for _ in range(256)]
    assert puppet.load(VECTOR_ADD, b"vector_add") == -6
    assert puppet.unload(kernels[100]) == 0
    again = puppet.load(VECTOR_ADD, b"vector_add")
    assert again > 0
    assert again not in kernels


# ------------------------------------------------------------------------------------------------------- faults


@pytest.mark.parametrize("name", ["stream_sync", "stream_destroy", "sync", "event_sync"])
def test_every_function_that_waits_reports_a_fault_and_the_session_is_lost(emulated, name):
    puppet = emulated.puppet
    stream, event = puppet.stream_create(), puppet.event_create()
    assert emulated.stray(stream) == 0
    puppet.event_record(event, stream)
    params = {"sync": (), "event_sync": (event,)}.get(name, (stream,))
    assert getattr(puppet, name)(*params) == -5
    assert puppet.error()
    for other, function in strings(CUDA_MODULE_0_3).items():
        if "last_error" not in other:
            assert getattr(puppet, other)(*(1 for _ in function.params)) == -7, other


def test_every_function_that_queries_reports_a_fault(emulated):
    puppet, stream = emulated.puppet, emulated.puppet.stream_create()
    assert emulated.stray(stream) == 0
    ends = time.monotonic() + 20
    while (answer := puppet.stream_query(stream)) == 1 and time.monotonic() < ends:
        pass
    assert answer == -5
    assert puppet.sync() == -7


def test_free_reports_a_fault(emulated):
    puppet, handle = emulated.puppet, emulated.buffer(bytes(4))
    kernel = puppet.load(ASTRAY, b"astray")
    assert puppet.begin(kernel, encode_argv([BufferOffset(handle, 0)])) == 0
    assert puppet.free(handle, 0) == -5


# ------------------------------------------------------------------------------------------------------- device


def test_the_device_says_what_it_is(device, puppet):
    info = device.info
    assert [puppet.device_attribute(number) for number in range(1, 12)] == [
        info.kind == "cuda",
        *info.compute_capability,
        *info.ptx_version,
        info.multiprocessors,
        info.memory_bytes,
        info.max_shared_bytes,
        1024,
        32,
        info.concurrent_managed_access,
    ]
    for unknown in (0, 12, -1, 2**31 - 1, -(2**31)):
        assert puppet.device_attribute(unknown) == -9


def test_the_device_has_a_name(device, puppet):
    name = device.info.name.encode()
    assert puppet.device_name(WORD_AT, 256) == len(name)
    assert puppet.get(WORD_AT, len(name) + 1) == name + b"\0"
    assert puppet.device_name(0, 3) == 3
    assert puppet.device_name(0, 0) == 0
    assert puppet.device_name(END - 1, 2) == -2
    assert puppet.device_name(-1, 1) == -2


def test_without_the_grant_everything_answers_not_available(device):
    with Puppet(device, granted=False) as puppet:
        for name, function in strings(CUDA_MODULE_0_3).items():
            assert getattr(puppet, name)(*(1 for _ in function.params)) == -1, name
