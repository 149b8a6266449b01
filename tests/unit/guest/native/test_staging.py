"""Windows that go through the staging slot: what a kernel sees there, and what comes back."""

from __future__ import annotations

import ctypes
import struct

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fakes.argv import encode_argv
from fakes.pads import NOT_READY, kernel_of
from strategies import launches as gen
from tensorwasm.gpu.device.arguments import HostWindow
from tensorwasm.gpu.staging import Placement
from tensorwasm.guest.imports.argv import NumberArg, WindowArg
from tensorwasm.values import KernelParam, KernelSignature

KERNEL = 65
SLOT_BYTES = 64 << 10
ARGV_AT = 8192
WINDOW = KernelParam("p", 8, 8, pointer=True)
GEOMETRY = (1, 1, 1, 1, 1, 1, 0)


@pytest.fixture(scope="session")
def slot():
    """Return a slot, on a page of its own."""
    room = ctypes.create_string_buffer(SLOT_BYTES + 4096)
    at = (ctypes.addressof(room) + 4095) & ~4095
    yield at
    del room


def open_slot(bench, at: int, size_bytes: int = SLOT_BYTES) -> None:
    bench.layout.stage_at, bench.layout.stage_bytes = at, size_bytes
    bench.layout.stage_view = at


def launch(bench, windows, *, name="wasi_cuda_launch") -> int:
    bench.hand.put_kernel(KERNEL, KernelSignature("k", (WINDOW,) * len(windows)), kernel_of())
    argv = encode_argv(windows)
    bench.instance.memory.write(ARGV_AT, argv)
    return bench.call(name, KERNEL, *GEOMETRY, ARGV_AT, len(argv), *([0] if name.endswith("async") else []))


def addresses(values) -> list[int]:
    return [int.from_bytes(value, "little") for value in values]


def kernel_over(windows, before: bytearray, seen: list):
    """Return a kernel that looks at each window, then adds one to each byte of each window, one after the other."""

    def kernel(values):
        at = addresses(values)
        seen.append(at)
        for window, address in zip(windows, at, strict=True):
            expected = bytes(before[window.offset : window.offset + window.length_bytes])
            assert ctypes.string_at(address, window.length_bytes) == expected
        for window, address in zip(windows, at, strict=True):
            data = bytes((byte + 1) & 255 for byte in ctypes.string_at(address, window.length_bytes))
            ctypes.memmove(address, data, len(data))
            part = slice(window.offset, window.offset + window.length_bytes)
            before[part] = bytes((byte + 1) & 255 for byte in before[part])

    return kernel


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None)
@given(windows=gen.small_windows, seed=st.binary(min_size=64, max_size=64))
@example(windows=[WindowArg(0, 256), WindowArg(256, 256)], seed=bytes(range(64)))  # touching
@example(windows=[WindowArg(10, 5), WindowArg(10, 5), WindowArg(12, 1)], seed=bytes(range(64)))
@example(windows=[WindowArg(300, 1), WindowArg(100, 300)], seed=bytes(range(64)))
@pytest.mark.rule("4-staging")
def test_a_kernel_sees_the_guests_memory_and_what_it_writes_comes_back(make_bench, slot, windows, seed):
    bench = make_bench(16)
    open_slot(bench, slot)
    before = bytearray(seed * 64)
    bench.instance.memory.write(0, bytes(before))
    seen: list[list[int]] = []
    bench.driver.kernel = kernel_over(windows, before, seen)

    assert launch(bench, windows) == 0

    assert bench.went_native()
    assert bench.instance.memory.read(0, len(before)) == bytes(before)
    assert (bench.layout.staged, bench.layout.pending, bench.layout.launched) == (0, 0, 1)
    (at,) = seen
    lengths = [window.length_bytes for window in windows]
    assert all(slot <= place and place + length <= slot + SLOT_BYTES for place, length in zip(at, lengths, strict=True))
    assert max(place + length for place, length in zip(at, lengths, strict=True)) - slot == bench.layout.stage_used
    for window, place in zip(windows, at, strict=True):
        assert place % 256 == window.offset % 256
    for one, there in zip(windows, at, strict=True):
        for other, elsewhere in zip(windows, at, strict=True):
            if max(one.offset, other.offset) <= min(one.offset + one.length_bytes, other.offset + other.length_bytes):
                assert elsewhere - there == other.offset - one.offset  # they alias, or are side by side


def test_a_slot_that_is_too_small_is_left_to_python(bench, slot):
    windows = [WindowArg(0, 256), WindowArg(1024, 1)]
    for size_bytes, answer in ((256, -99), (257, 0)):
        open_slot(bench, slot, size_bytes)
        assert launch(bench, windows) == answer
    assert len(bench.driver.calls) == 1


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(program=st.lists(gen.small_windows, min_size=1, max_size=5), left=st.integers(0, 24 << 10))
@example(program=[[WindowArg(0, 256)]], left=255)
@example(program=[[WindowArg(0, 256)], [WindowArg(255, 1)]], left=511)
@example(program=[[WindowArg(0, 256)], [WindowArg(255, 1)]], left=512)
def test_staged_bytes_are_counted_as_in_python(make_bench, slot, program, left):
    bench = make_bench(16)
    open_slot(bench, slot)
    bench.layout.stage_left = left
    for windows in program:
        bench.calls.fallbacks.clear()
        used = Placement([HostWindow(window.offset, window.length_bytes) for window in windows], 0).used_bytes
        before = bench.layout.stage_used
        assert launch(bench, windows) == (0 if used <= left else -99)
        assert bench.went_native() == (used <= left)
        assert bench.layout.stage_used == max(before, used if used <= left else 0)
        left -= used if used <= left else 0
        assert (bench.layout.stage_left, bench.layout.staged) == (left, 0)


BLOCKED = {
    "no slot": lambda bench: setattr(bench.layout, "stage_at", 0),
    "nothing left to stage": lambda bench: setattr(bench.layout, "stage_left", 15),
    "work in flight": lambda bench: setattr(bench.layout, "pending", 1),
    "another staged launch": lambda bench: setattr(bench.layout, "staged", 1),
    "a slot that is not aligned as the memory is": lambda bench: setattr(
        bench.layout, "stage_at", bench.layout.stage_at + 8
    ),
}


@pytest.mark.parametrize("blocked", BLOCKED)
def test_windows_that_cannot_be_staged_are_left_to_python(bench, slot, blocked):
    open_slot(bench, slot)
    BLOCKED[blocked](bench)
    assert launch(bench, [WindowArg(0, 16)]) == -99
    assert bench.driver.calls == []


def test_an_empty_window_is_left_to_python(bench, slot):
    open_slot(bench, slot)
    assert launch(bench, [WindowArg(0, 16), WindowArg(32, 0)]) == -99


def test_an_asynchronous_launch_is_never_staged(bench, slot):
    open_slot(bench, slot)
    assert launch(bench, [WindowArg(0, 16)], name="wasi_cuda_launch_async") == -99
    assert bench.driver.calls == []


def test_one_window_out_of_reach_stages_them_all(bench, slot):
    open_slot(bench, slot)
    bench.reach(4096)
    bench.driver.kernel = lambda values: seen.extend(addresses(values))
    seen: list[int] = []
    assert launch(bench, [WindowArg(0, 16), WindowArg(4096, 16)]) == 0
    assert all(slot <= at < slot + SLOT_BYTES for at in seen)


def test_windows_in_reach_stay_in_place(bench, slot):
    open_slot(bench, slot)
    bench.reach(4096)
    seen: list[int] = []
    bench.driver.kernel = lambda values: seen.extend(addresses(values))
    assert launch(bench, [WindowArg(16, 16), WindowArg(4000, 96)]) == 0
    assert seen == [bench.memory.address + 16, bench.memory.address + 4000]
    assert bench.layout.stage_used == 0


def test_a_staged_launch_that_takes_long_leaves_its_windows_for_python_to_copy(bench, slot):
    open_slot(bench, slot)
    bench.driver.results["stream_query"] = NOT_READY
    assert launch(bench, [WindowArg(512, 16), WindowArg(10, 4)]) == -98
    layout = bench.layout
    assert (layout.staged, layout.pending) == (2, 1)
    rows = [(row.offset, row.length_bytes, row.place) for row in layout.windows[:2]]
    assert rows == [(10, 4, 10), (512, 16, 256)]


def test_a_refused_staged_launch_leaves_nothing_behind(bench, slot):
    open_slot(bench, slot)
    bench.instance.memory.write(0, b"guest")
    bench.driver.results["launch_kernel"] = 1
    assert launch(bench, [WindowArg(0, 5)]) == -99
    assert (bench.layout.staged, bench.layout.pending) == (0, 0)
    assert bench.instance.memory.read(0, 5) == b"guest"


def test_as_many_windows_as_there_can_be(bench, slot):
    open_slot(bench, slot)
    windows = [WindowArg(index * 512 % 7919, 8) for index in range(128)]
    before = bytearray(8192)
    bench.instance.memory.write(0, bytes(before))
    bench.driver.kernel = kernel_over(windows, before, [])
    assert launch(bench, windows) == 0
    assert bench.instance.memory.read(0, len(before)) == bytes(before)


def test_numbers_among_windows_keep_their_places(bench, slot):
    open_slot(bench, slot)
    params = (KernelParam("n", 4, 4), WINDOW, KernelParam("m", 8, 8), WINDOW)
    bench.hand.put_kernel(KERNEL, KernelSignature("k", params), kernel_of())
    argv = encode_argv([
        NumberArg("i32", struct.pack("<i", -1)), WindowArg(700, 8),
        NumberArg("u64", struct.pack("<Q", 1 << 63)), WindowArg(3, 8),
    ])  # fmt: skip
    bench.instance.memory.write(ARGV_AT, argv)
    assert bench.call("wasi_cuda_launch", KERNEL, *GEOMETRY, ARGV_AT, len(argv)) == 0
    values = bench.driver.calls[0].values
    assert (values[0], values[2]) == (b"\xff" * 4, struct.pack("<Q", 1 << 63))
    assert addresses((values[1], values[3])) == [slot + 256 + 700 % 256, slot + 3]
