"""Windows have the same alignment and overlaps in a slot as in memory."""

import ctypes
import mmap
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.device import FakeDevice
from tensorwasm.errors import CapacityExhausted, DeviceLost, InvalidPointer, LaunchRefused
from tensorwasm.gpu.device.arguments import HostWindow
from tensorwasm.gpu.staging import BLOCK_BYTES, Placement, StagingRing, copy_back
from tensorwasm.gpu.windows import require_inside
from tensorwasm.values import Region

SIZE = 1 << 14
PAGES = mmap.mmap(-1, 2 * SIZE)
BASE = ctypes.addressof(ctypes.c_char.from_buffer(PAGES))
SLOT_AT = BASE + SIZE

windows = st.lists(
    st.tuples(st.integers(0, 4000), st.integers(0, 600)).map(lambda pair: HostWindow(BASE + pair[0], pair[1])),
    min_size=1,
    max_size=8,
)


@pytest.fixture
def device():
    device = FakeDevice()
    yield device
    assert device.broken == []


@given(windows)
def test_windows_keep_their_alignment_and_their_distances_inside_a_part(given_windows):
    placement = Placement(given_windows, BASE)
    for window in given_windows:
        located = placement.locate(window, SLOT_AT)
        assert located.length_bytes == window.length_bytes
        assert located.address % BLOCK_BYTES == window.address % BLOCK_BYTES
        assert SLOT_AT <= located.address <= located.address + window.length_bytes <= SLOT_AT + placement.used_bytes
        for other in given_windows:
            if other.address <= window.address <= other.address + other.length_bytes:
                distance = window.address - other.address
                assert located.address - placement.locate(other, SLOT_AT).address == distance


@given(windows)
def test_parts_are_apart_in_memory_and_in_the_slot(given_windows):
    parts = Placement(given_windows, BASE).parts
    for (first, end, place), (after, _, following) in pairwise(parts):
        assert end < after
        assert place + end - first <= following
        assert following // BLOCK_BYTES > (place + end - first - 1) // BLOCK_BYTES or end == first


@given(windows, st.integers(0, 1 << 32).map(Random))
def test_bytes_go_there_and_back_and_nothing_else_does(given_windows, random):
    memory = random.randbytes(SIZE)
    PAGES[:] = memory + bytes(SIZE)
    placement = Placement(given_windows, BASE)
    placement.copy_in(SLOT_AT)
    for window in given_windows:
        located = placement.locate(window, SLOT_AT)
        assert ctypes.string_at(located.address, located.length_bytes) == ctypes.string_at(*_of(window))
    changed = random.randbytes(SIZE)
    PAGES[SIZE:] = changed
    placement.copy_out(SLOT_AT)
    expected = bytearray(memory)
    for first, end, place in placement.parts:
        expected[first:end] = changed[place : place + end - first]
    assert PAGES[:SIZE] == expected


def _of(window):
    return window.address, window.length_bytes


def test_windows_that_touch_are_one_part():
    placement = Placement([HostWindow(BASE + 8, 8), HostWindow(BASE, 8), HostWindow(BASE + 17, 1)], BASE)
    assert placement.parts == [(0, 16, 0), (17, 18, 256 + 17)]


@pytest.mark.parametrize(
    "window",
    [(-1, 4), (SIZE, 1), (SIZE - 1, 2), (0, SIZE + 1), (1 << 32, 0), (0, -1), (1 << 63, 1)],
)
def test_a_window_outside_the_memory_is_refused_once_more(window):
    with pytest.raises(InvalidPointer):
        require_inside(HostWindow(BASE + window[0], window[1]), Region(BASE, SIZE, host=True))


def test_the_ring_is_made_when_the_first_slot_is_taken_and_registered_once(device):
    ring = StagingRing(device, slots=2, slot_bytes=4096)
    assert device.calls == []
    first, second = ring.take("a"), ring.take("a")
    assert first.region != second.region
    assert list(device.registered.values()) == [2 * 4096]
    with pytest.raises(CapacityExhausted):
        ring.take("a")
    ring.give(first)
    assert ring.take("a") is first
    assert device.calls == ["register"]


@pytest.mark.rule("4-staging")
def test_used_staging_slots_are_cleared_before_the_next_tenant(device):
    ring = StagingRing(device, slots=1, slot_bytes=4096)
    slot = ring.take("a")
    ctypes.memset(slot.region.address, 0xAA, 4096)
    slot.used_bytes = 100
    ring.give(slot)
    again = ring.take("a")
    assert ctypes.string_at(again.region.address, 100) == bytes(100)
    ring.give(again)
    foreign = ring.take("b")
    assert ctypes.string_at(foreign.region.address, 4096) == bytes(4096)


def test_a_tenant_gets_its_own_slot_back_while_there_are_others(device):
    ring = StagingRing(device, slots=3, slot_bytes=4096)
    mine, theirs = ring.take("a"), ring.take("b")
    ring.give(mine)
    ring.give(theirs)
    assert ring.take("a") is mine
    assert ring.take("c").tenant == "c"
    assert ring.idle == 1


def test_a_device_that_registers_nothing_is_asked_once(device):
    ring = StagingRing(device)
    device.failures["register"] = LaunchRefused("no such memory")
    for _ in range(2):
        with pytest.raises(CapacityExhausted):
            ring.take("a")
    assert device.calls == ["register"]
    assert ring.close() == []


def test_a_lost_device_is_no_lack_of_slots(device):
    device.failures["register"] = DeviceLost("gone")
    with pytest.raises(DeviceLost):
        StagingRing(device).take("a")


@pytest.mark.parametrize("taken", [False, True])
@pytest.mark.rule("3-staging")
def test_a_ring_is_released_unless_a_slot_is_in_use(device, taken):
    ring = StagingRing(device, slots=2, slot_bytes=4096)
    slot = ring.take("a")
    ctypes.memset(slot.region.address, 1, 4096)
    if not taken:
        ring.give(slot)
    assert ring.close() == ring.close() == []
    assert bool(device.registered) == taken
    if taken:
        assert ctypes.string_at(slot.region.address, 1) == b"\1", "still mapped"


def test_a_ring_that_stays_registered_stays_mapped(device):
    ring = StagingRing(device, slots=1, slot_bytes=4096)
    slot = ring.take("a")
    ring.give(slot)
    device.failures["unregister"] = DeviceLost("gone")
    assert len(ring.close()) == 1
    assert ctypes.string_at(slot.region.address, 1) == b"\0"


@pytest.mark.parametrize("row", [(SIZE, 1, 0), (0, SIZE + 1, 0), (0, 8, 4096 - 7), (1 << 63, 8, 0)])
def test_a_layout_with_invalid_windows_has_nothing_copied(device, row):
    slot = StagingRing(device, slots=1, slot_bytes=4096).take("a")
    ctypes.memset(slot.region.address, 7, 16)
    PAGES[:16] = bytes(16)
    with pytest.raises(LaunchRefused):
        copy_back([(0, 8, 0), row], Region(BASE, SIZE, host=True), slot)
    assert PAGES[:16] == bytes(16)
