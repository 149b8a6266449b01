"""Launches on managed memory: large windows are moved ahead of them, in their stream, and never in a recording."""

import ctypes
import mmap
import struct
from dataclasses import replace

import pytest

from fakes.device import INFO, FakeDevice, Step
from strategies.kernels import FILL
from tensorwasm.errors import DeviceLost, LaunchRefused, QuotaExceeded
from tensorwasm.gpu.device.arguments import HostWindow, Scalar
from tensorwasm.gpu.limits.accounts import MemoryLedger
from tensorwasm.gpu.limits.gate import Gate
from tensorwasm.gpu.memory.prefetch import PREFETCH_BYTES
from tensorwasm.gpu.native.layout import SessionLayout
from tensorwasm.gpu.session import Session
from tensorwasm.values import NEVER, WASM_PAGE_BYTES, LaunchConfig, Region

ONE = LaunchConfig((1, 1, 1), (1, 1, 1))
SIZE = 4 * PREFETCH_BYTES
PAGES = mmap.mmap(-1, SIZE)
BASE = ctypes.addressof(ctypes.c_char.from_buffer(PAGES))
MEMORY = Region(BASE, SIZE // 2, host=True)
GROWN = Region(BASE, SIZE, host=True)
SMALL = Region(BASE, PREFETCH_BYTES - WASM_PAGE_BYTES, host=True)


class Moves:
    """Implements `UnifiedMemory.prefetch`: notes what is moved and puts it in the stream."""

    def __init__(self, device):
        self.device, self.made, self.effect = device, [], True

    def prefetch(self, address, size_bytes, stream, *, to_host):
        self.device.begin("prefetch")
        assert not to_host
        if stream.recorded is not None:
            self.device.broken.append("a prefetch was recorded")
        if self.effect:
            self.made.append((stream.number, address - BASE, size_bytes))
            stream.give(Step(regions=(Region(address, size_bytes, host=True),)))
        return self.effect


@pytest.fixture
def device():
    device = FakeDevice(info=replace(INFO, concurrent_managed_access=True))
    device.unified = Moves(device)
    yield device
    assert device.broken == []


@pytest.fixture
def moves(device):
    return device.unified.made


@pytest.fixture
def layout():
    return SessionLayout()


@pytest.fixture
def session(device, layout):
    gate = Gate(1)
    with Session(device, ledger=MemoryLedger(), gate=gate, memory_kind="managed", layout=layout) as session:
        yield session
    assert device.holds_nothing()
    assert gate.in_use == 0


@pytest.fixture
def kernel(session):
    return session.kernels.load(FILL, "fill", NEVER)


def arguments(length, offset=0):
    return lambda: (HostWindow(BASE + offset, length), Scalar(struct.pack("<I", 7)))


def submit(session, kernel, length, offset=0, memory=MEMORY, stream=0):
    session.kernels.submit(kernel, ONE, arguments(length, offset), memory, NEVER, stream)


def reached(layout):
    return layout.reach_at, layout.reach_bytes


def test_a_large_window_is_moved_ahead_of_each_launch_on_its_stream(device, session, kernel, moves):
    other = session.streams.open()
    session.kernels.launch(kernel, ONE, arguments(PREFETCH_BYTES), MEMORY, NEVER)
    submit(session, kernel, PREFETCH_BYTES, 8, stream=other)
    own, second = (number for number, *_ in moves)
    assert own != second
    assert moves == [(own, 0, PREFETCH_BYTES), (second, 0, PREFETCH_BYTES + mmap.PAGESIZE)]
    (stream,) = device.busy
    assert stream.number == second
    assert [step.launch is None for step in stream.steps] == [True, False]
    session.streams.synchronize(NEVER)
    assert session.statistics().kernels_launched == 2


def test_every_move_counts_as_pending(session, kernel, layout, moves):
    parts = [HostWindow(BASE + number * PREFETCH_BYTES, PREFETCH_BYTES // 2) for number in range(4)]
    submit(session, kernel, 4, memory=GROWN)
    before = layout.pending
    work, reach = session._core.work, session._core.windows.reach
    stream, spans = work.find(0), reach.movable(parts)
    work.give(stream, len(spans), reach.move, spans, stream.stream)
    assert layout.pending - before == len(moves) == 4


def test_small_windows_are_not_moved(session, kernel, moves):
    submit(session, kernel, PREFETCH_BYTES - 4 * mmap.PAGESIZE)
    assert moves == []


def test_a_move_never_leaves_the_memory_as_it_is_now(session, kernel, moves):
    submit(session, kernel, MEMORY.size_bytes)
    submit(session, kernel, GROWN.size_bytes, memory=GROWN)
    assert [size for *_, size in moves] == [MEMORY.size_bytes, GROWN.size_bytes]


@pytest.mark.parametrize("kind", ["pinned", "vmm"])
def test_other_memory_is_not_moved(device, moves, kind):
    with Session(device, ledger=MemoryLedger(), gate=Gate(1), memory_kind=kind) as session:
        submit(session, session.kernels.load(FILL, "fill", NEVER), PREFETCH_BYTES)
    assert moves == []
    assert "prefetch" not in device.calls


def test_a_recording_and_its_replays_move_nothing(device, session, kernel, moves):
    session.graphs.begin(0)
    submit(session, kernel, PREFETCH_BYTES)
    graph = session.graphs.end(0)
    session.graphs.replay(graph, MEMORY, NEVER)
    session.streams.synchronize(NEVER)
    assert moves == []
    submit(session, kernel, PREFETCH_BYTES)
    assert len(moves) == 1


def test_compiled_code_is_shown_no_memory_in_which_a_window_may_have_to_be_moved(session, kernel, layout):
    submit(session, kernel, 4, memory=SMALL)
    assert reached(layout) == (BASE, SMALL.size_bytes)
    submit(session, kernel, 4)
    assert reached(layout) == (0, 0)


def test_without_an_effect_compiled_code_has_it_all_after_the_first_try(device, session, kernel, layout, moves):
    device.unified.effect = False
    for _ in range(3):
        submit(session, kernel, PREFETCH_BYTES)
        assert reached(layout) == (BASE, MEMORY.size_bytes)
    assert device.calls.count("prefetch") == 1
    assert moves == []


def test_without_concurrent_access_nothing_is_tried(device, layout):
    device.info = INFO
    with Session(device, ledger=MemoryLedger(), gate=Gate(1), memory_kind="managed", layout=layout) as session:
        submit(session, session.kernels.load(FILL, "fill", NEVER), PREFETCH_BYTES)
        assert reached(layout) == (BASE, MEMORY.size_bytes)
    assert "prefetch" not in device.calls


def test_a_hint_that_is_refused_changes_nothing_for_the_launch(device, session, kernel, moves):
    device.failures["prefetch"] = QuotaExceeded("full")
    session.kernels.launch(kernel, ONE, arguments(PREFETCH_BYTES), MEMORY, NEVER)
    assert (moves, len(device.launched)) == ([], 1)
    assert session.failure is None


def test_a_move_is_waited_for_although_its_launch_was_refused(device, session, kernel, moves):
    device.failures["launch"] = LaunchRefused("no")
    with pytest.raises(LaunchRefused):
        submit(session, kernel, PREFETCH_BYTES)
    assert len(moves) == 1
    assert device.busy
    session.streams.synchronize(NEVER)
    assert not device.busy


def test_a_device_that_is_lost_meanwhile_ends_the_session(device, session, kernel):
    device.failures["prefetch"] = DeviceLost("gone")
    with pytest.raises(DeviceLost):
        submit(session, kernel, PREFETCH_BYTES)
    assert isinstance(session.failure, DeviceLost)
    assert device.launched == []
