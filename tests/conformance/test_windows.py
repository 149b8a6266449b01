"""Windows of addresses: every access finds memory, mapped memory keeps its bytes, nothing of one shows in another."""

from __future__ import annotations

import ctypes
import struct

import pytest

from conformance.rig import Rig
from tensorwasm.errors import InvalidArgs, InvalidHandle, InvalidPointer, LaunchRefused
from tensorwasm.gpu.device.address_windows import GRANULE_BYTES, SLACK_BYTES, WINDOW_BYTES
from tensorwasm.values import MIB, Region

SCRATCH = 16 * MIB
SPREAD = [
    -SLACK_BYTES,
    -SCRATCH,
    -4,
    0,
    4096,
    3 * SCRATCH + 8,
    WINDOW_BYTES // 2 + 12,
    WINDOW_BYTES - 4,
    WINDOW_BYTES,
    WINDOW_BYTES + SLACK_BYTES - 4,
]
"""Offsets all over a window and its slack."""


@pytest.fixture
def windows(device):
    if not device.windows.available:
        pytest.skip("no windows")
    return device.windows


class Room:
    """A window, and kernels that reach nothing else but what the rig has."""

    def __init__(self, device, rig: Rig, size_bytes: int = WINDOW_BYTES) -> None:
        self.device, self.rig = device, rig
        self.window = device.windows.open_window(SCRATCH, size_bytes)
        self.at = self.window.address
        self.stream = rig.stream()
        self.cell = rig.words(0)
        rig.regions.append(Region(self.at - SLACK_BYTES, size_bytes + 2 * SLACK_BYTES, host=True))

    def read(self, offset: int) -> int:
        """Return the word that a kernel reads."""
        self.device.write(self.cell, bytes(4), self.stream)
        self.rig.mix(self.stream, self.cell, self.at + offset, 0)
        self.rig.drain(self.stream)
        return self.rig.look(self.cell)[0] - 1

    def write(self, offset: int, value: int) -> None:
        """Let a kernel write a word."""
        self.device.write(self.cell, struct.pack("<I", value - 1), self.stream)
        self.rig.mix(self.stream, self.at + offset, self.cell, 0)
        self.rig.drain(self.stream)

    def reads(self, offsets=SPREAD) -> list[int]:
        return [self.read(offset) for offset in offsets]


@pytest.fixture
def rig(device):
    with Rig(device) as rig:
        yield rig


@pytest.fixture
def room(device, windows, rig):
    room = Room(device, rig)
    yield room
    windows.close_window(room.window)


def test_a_window_is_aligned_and_counted(device, windows):
    before = device.statistics()
    window = windows.open_window(SCRATCH)
    assert window.address % WINDOW_BYTES == 0
    assert window.size_bytes == WINDOW_BYTES
    windows.map_device(window, 0, 2 * GRANULE_BYTES)
    windows.map_host(window, 4 * GRANULE_BYTES, GRANULE_BYTES)
    during = device.statistics()
    assert during.windows == before.windows + 1
    assert during.window_bytes - before.window_bytes >= SCRATCH + 3 * GRANULE_BYTES
    windows.close_window(window)
    assert device.statistics() == before


@pytest.mark.parametrize("size_bytes", [WINDOW_BYTES << more for more in (1, 2, 3, 4, 5)])
def test_windows_of_every_size_have_no_unmapped_page(device, windows, rig, size_bytes):
    room = Room(device, rig, size_bytes)
    assert room.window.size_bytes == size_bytes
    assert room.window.address % size_bytes == 0
    ends = (
        -SLACK_BYTES,
        -4,
        0,
        WINDOW_BYTES - 4,
        WINDOW_BYTES,
        size_bytes - 4,
        size_bytes,
        size_bytes + SLACK_BYTES - 4,
    )
    assert room.reads(ends) == [0] * len(ends)
    for place in (WINDOW_BYTES - GRANULE_BYTES, size_bytes - 2 * GRANULE_BYTES):
        windows.map_device(room.window, place, 2 * GRANULE_BYTES)
        for offset in (place, place + 2 * GRANULE_BYTES - 4):
            room.write(offset, offset % 1009)
            assert room.read(offset) == offset % 1009
    with pytest.raises(InvalidPointer):
        windows.map_device(room.window, size_bytes - GRANULE_BYTES, 2 * GRANULE_BYTES)
    windows.unmap(room.window, WINDOW_BYTES - GRANULE_BYTES)
    for number, offset in enumerate(ends, 1):
        room.write(offset, number)
        assert room.read(offset) == number
    device.windows.clear_scratch(room.window, room.stream)
    assert room.reads(ends[:-3]) == [0] * 5
    windows.close_window(room.window)


@pytest.mark.parametrize("size_bytes", [0, WINDOW_BYTES // 2, 3 * WINDOW_BYTES, WINDOW_BYTES + 1, 64 * WINDOW_BYTES])
def test_other_sizes_of_windows_are_refused(device, windows, size_bytes):
    before = device.statistics()
    with pytest.raises(InvalidArgs):
        windows.open_window(SCRATCH, size_bytes)
    assert device.statistics() == before


def test_every_address_of_a_window_and_its_slack_is_zero_at_first_and_can_be_written(room):
    assert room.reads() == [0] * len(SPREAD)
    for number, offset in enumerate(SPREAD, 1):
        room.write(offset, number)
        assert room.read(offset) == number
    room.device.windows.clear_scratch(room.window, room.stream)
    assert room.reads() == [0] * len(SPREAD)


def test_aliases_show_what_was_written_to_aliases_and_nothing_else(room):
    for number, offset in enumerate(SPREAD, 1):
        room.write(offset, number)
    assert set(room.reads(range(0, WINDOW_BYTES, WINDOW_BYTES // 16))) <= {*range(len(SPREAD) + 1)}


@pytest.mark.parametrize("offset", [0, GRANULE_BYTES, SCRATCH, SCRATCH - GRANULE_BYTES, WINDOW_BYTES - 5 * SCRATCH])
@pytest.mark.parametrize("size", [GRANULE_BYTES, SCRATCH, 2 * SCRATCH + GRANULE_BYTES])
def test_memory_of_its_own_keeps_its_bytes_and_aliases_return(room, offset, size):
    windows, last = room.device.windows, offset + size - 4
    for place in (offset, last, -4):
        room.write(place, 9)
    windows.map_device(room.window, offset, size)
    assert room.reads([offset, offset + 4, last]) == [0, 0, 0]
    room.write(offset, 5)
    room.write(last, 6)
    around = [offset - 4, offset + size]
    for place in around:
        room.write(place, 7)
    assert room.reads([offset, last, *around]) == [5, 6, 7, 7]
    windows.clear_scratch(room.window, room.stream)
    assert room.reads([offset, last, *around]) == [5, 6, 0, 0]
    windows.unmap(room.window, offset)
    assert set(room.reads([*range(offset, last, GRANULE_BYTES), last, *around, *SPREAD])) == {0}


def test_parts_beside_each_other_come_and_go_in_any_order(room):
    windows, first = room.device.windows, 5 * SCRATCH
    places = [first + index * GRANULE_BYTES for index in range(10)]
    for number, place in enumerate(places, 1):
        windows.map_device(room.window, place, GRANULE_BYTES)
        room.write(place, number)
    assert room.reads(places) == [*range(1, 11)]
    for index in (3, 0, 9, 7, 8):
        windows.unmap(room.window, places[index])
        assert room.read(places[index]) == 0
    assert room.reads(places) == [0, 2, 3, 0, 5, 6, 7, 0, 0, 0]
    windows.map_device(room.window, places[7], 3 * GRANULE_BYTES)
    room.write(places[9] + GRANULE_BYTES - 4, 12)
    assert room.reads(places) == [0, 2, 3, 0, 5, 6, 7, 0, 0, 0]
    for index in (1, 2, 4, 5, 6, 7):
        windows.unmap(room.window, places[index])
    assert room.reads([*places, places[9] + GRANULE_BYTES - 4]) == [0] * 11


def test_mapped_memory_is_memory_of_the_device(room):
    windows, device = room.device.windows, room.device
    windows.map_device(room.window, 0, GRANULE_BYTES)
    device.write(room.at + 8, struct.pack("<II", 3, 4), room.stream)
    room.rig.mix(room.stream, room.at + 8, room.at + 12, 10)
    assert (room.read(8), room.read(12)) == (35, 4)
    block, host = room.rig.host()
    block[:4] = struct.pack("<I", 8)
    device.copy_in(room.at + 8, host, 4, room.stream)
    device.fill(room.at + 12, 4, room.stream)
    device.copy_out(host + 8, room.at + 8, 8, room.stream)
    room.rig.drain(room.stream)
    assert struct.unpack_from("<II", block, 8) == (8, 0)
    windows.clear(room.window, 8, 4, room.stream)
    assert room.reads([8, GRANULE_BYTES - 4]) == [0, 0]


def test_host_memory_is_the_same_for_kernels_and_for_the_host(room):
    windows, device, offset = room.device.windows, room.device, 2 * SCRATCH + GRANULE_BYTES
    view = windows.map_host(room.window, offset, 2 * GRANULE_BYTES)
    cells = (ctypes.c_uint32 * (2 * GRANULE_BYTES // 4)).from_address(view)
    assert not any(cells)
    assert room.reads([offset, offset + 2 * GRANULE_BYTES - 4]) == [0, 0]
    cells[0], cells[len(cells) - 1] = 3, 4
    assert room.reads([offset, offset + 2 * GRANULE_BYTES - 4]) == [3, 4]
    room.write(offset + 4, 5)
    assert cells[1] == 5
    address = room.rig.words(0, 0)
    device.copy_in(address, view, 8, room.stream)
    room.rig.drain(room.stream)
    assert room.rig.look(address, 2) == [3, 5]
    device.copy_out(view + 8, address, 8, room.stream)
    room.rig.drain(room.stream)
    assert cells[2:4] == [3, 5]
    assert room.reads([offset + 8, offset + 12]) == [3, 5]
    windows.clear(room.window, offset, 8, room.stream)
    room.rig.drain(room.stream)
    assert cells[0:4] == [0, 0, 3, 5]
    windows.unmap(room.window, offset)
    assert room.read(offset + 8) == 0


def test_the_slot_is_host_memory_that_is_cleared_with_the_scratch_memory(room):
    windows, offset = room.device.windows, 2 * SCRATCH + GRANULE_BYTES
    cells = (ctypes.c_uint32 * (GRANULE_BYTES // 4)).from_address(windows.map_slot(room.window, offset))
    last, around = offset + GRANULE_BYTES - 4, [offset - 4, offset + GRANULE_BYTES]
    assert room.reads([offset, last]) == [0, 0]
    for place in (offset, last, *around):
        room.write(place, 7)
    assert [cells[0], cells[len(cells) - 1]] == [7, 7]
    windows.clear_scratch(room.window, room.stream)
    room.rig.drain(room.stream)
    assert not any(cells)
    assert room.reads([offset, last, *around, *SPREAD]) == [0] * (4 + len(SPREAD))
    with pytest.raises(InvalidPointer):
        windows.unmap(room.window, offset)


def test_views_grow_in_a_range_that_the_caller_reserved(room):
    windows, unified = room.device.windows, room.device.unified
    if not unified.growable:
        pytest.skip("no ranges that grow")
    start = unified.reserve(8 * GRANULE_BYTES)
    try:
        assert windows.map_host(room.window, SCRATCH, GRANULE_BYTES, start) == start
        second = start + GRANULE_BYTES
        assert windows.map_host(room.window, SCRATCH + GRANULE_BYTES, 2 * GRANULE_BYTES, second) == second
        cells = (ctypes.c_uint32 * (3 * GRANULE_BYTES // 4)).from_address(start)
        edge = GRANULE_BYTES // 4
        cells[edge - 1], cells[edge] = 1, 2
        assert room.reads([SCRATCH + GRANULE_BYTES - 4, SCRATCH + GRANULE_BYTES]) == [1, 2]
        with pytest.raises((InvalidPointer, LaunchRefused)):
            unified.unreserve(start, 8 * GRANULE_BYTES)
        windows.unmap(room.window, SCRATCH + GRANULE_BYTES)
        assert cells[edge - 1] == 1
        windows.unmap(room.window, SCRATCH)
        for wrong in (start + 1, start + 8 * GRANULE_BYTES):
            with pytest.raises((InvalidPointer, LaunchRefused)):
                windows.map_host(room.window, SCRATCH, GRANULE_BYTES, wrong)
        assert room.read(SCRATCH) == 0
    finally:
        unified.unreserve(start, 8 * GRANULE_BYTES)


def test_nothing_of_one_window_shows_in_another(device, windows, rig):
    rooms = [Room(device, rig) for _ in range(3)]
    try:
        assert len({room.at for room in rooms}) == 3
        for room in rooms:
            windows.map_device(room.window, 0, GRANULE_BYTES)
            windows.map_host(room.window, SCRATCH, GRANULE_BYTES)
        for number, room in enumerate(rooms, 1):
            for offset in (-SLACK_BYTES, 0, SCRATCH, 5 * SCRATCH, WINDOW_BYTES + SLACK_BYTES - 4):
                room.write(offset, number)
        for number, room in enumerate(rooms, 1):
            seen = room.reads([-SLACK_BYTES, 0, SCRATCH, 5 * SCRATCH, WINDOW_BYTES + SLACK_BYTES - 4])
            assert seen == [number] * 5
            assert set(room.reads()) <= {0, number}
    finally:
        for room in rooms:
            windows.close_window(room.window)


def test_memory_comes_back_when_it_is_mapped_again_and_is_zero(room):
    windows = room.device.windows
    for _ in range(5):
        windows.map_device(room.window, SCRATCH, SCRATCH)
        view = windows.map_host(room.window, 3 * SCRATCH, GRANULE_BYTES)
        assert room.reads([SCRATCH, 2 * SCRATCH - 4, 3 * SCRATCH]) == [0, 0, 0]
        room.write(SCRATCH, 1)
        room.write(2 * SCRATCH - 4, 1)
        ctypes.memset(view, 1, GRANULE_BYTES)
        windows.unmap(room.window, SCRATCH)
        windows.unmap(room.window, 3 * SCRATCH)


def test_windows_change_while_a_kernel_runs_elsewhere(device, windows, rig, room):
    stream = rig.stream()
    block, flag = rig.host()
    rig.hold(stream, flag)
    assert not device.ended(stream)
    for _ in range(3):
        window = windows.open_window(SCRATCH)
        windows.map_device(window, 0, SCRATCH)
        windows.map_host(window, SCRATCH, GRANULE_BYTES)
        windows.clear_scratch(window, room.stream)
        windows.unmap(window, 0)
        rig.drain(room.stream)
        windows.close_window(window)
    assert not device.ended(stream)
    block[:4] = struct.pack("<I", 1)
    rig.drain(stream)


@pytest.mark.parametrize(
    ("offset", "size"),
    [
        (1, GRANULE_BYTES),
        (0, GRANULE_BYTES - 1),
        (0, 0),
        (0, -GRANULE_BYTES),
        (-GRANULE_BYTES, GRANULE_BYTES),
        (WINDOW_BYTES, GRANULE_BYTES),
        (WINDOW_BYTES - GRANULE_BYTES, 2 * GRANULE_BYTES),
        (0, 1 << 70),
        (1 << 70, GRANULE_BYTES),
        (10 * GRANULE_BYTES, GRANULE_BYTES),
        (9 * GRANULE_BYTES, 4 * GRANULE_BYTES),
    ],
)
def test_only_aliases_in_whole_granules_are_replaced(room, offset, size):
    windows = room.device.windows
    windows.map_device(room.window, 10 * GRANULE_BYTES, 2 * GRANULE_BYTES)
    before = room.device.statistics()
    for method in (windows.map_device, windows.map_host):
        with pytest.raises(InvalidPointer):
            method(room.window, offset, size)
    assert room.device.statistics() == before


def test_only_what_was_mapped_is_unmapped_and_cleared(room):
    windows = room.device.windows
    windows.map_device(room.window, 0, 2 * GRANULE_BYTES)
    for offset in (GRANULE_BYTES, 4, -GRANULE_BYTES, 8 * GRANULE_BYTES):
        with pytest.raises(InvalidPointer):
            windows.unmap(room.window, offset)
    for offset, size in ((0, 2 * GRANULE_BYTES + 1), (-1, 2), (8 * GRANULE_BYTES, 1), (4, -1)):
        with pytest.raises(InvalidPointer):
            windows.clear(room.window, offset, size, room.stream)
    windows.unmap(room.window, 0)
    with pytest.raises(InvalidPointer):
        windows.unmap(room.window, 0)


def test_a_window_that_is_not_open_is_refused(room):
    windows = room.device.windows
    closed = windows.open_window(0)
    windows.close_window(closed)
    for window in (closed, object(), None):
        for call in (
            windows.close_window,
            lambda unknown: windows.map_device(unknown, 0, GRANULE_BYTES),
            lambda unknown: windows.map_host(unknown, 0, GRANULE_BYTES),
            lambda unknown: windows.unmap(unknown, 0),
            lambda unknown: windows.clear_scratch(unknown, room.stream),
            lambda unknown: windows.clear(unknown, 0, 4, room.stream),
        ):
            with pytest.raises(InvalidHandle):
                call(window)


def test_a_stream_that_is_not_open_clears_nothing(room):
    windows = room.device.windows
    windows.map_device(room.window, 0, GRANULE_BYTES)
    for call in (
        lambda: windows.clear_scratch(room.window, object()),
        lambda: windows.clear(room.window, 0, GRANULE_BYTES, object()),
    ):
        with pytest.raises(InvalidHandle):
            call()


@pytest.mark.parametrize("scratch", [-1, 0, GRANULE_BYTES, 5 * MIB, 64 * MIB, 1 << 40])
def test_a_window_opens_whatever_scratch_is_asked_for(device, windows, rig, scratch):
    window = windows.open_window(scratch)
    rig.regions.append(Region(window.address, WINDOW_BYTES, host=True))
    address, stream = rig.words(0, 5), rig.stream()
    rig.mix(stream, window.address + WINDOW_BYTES - 4, address + 4, 0)
    rig.mix(stream, address, window.address + WINDOW_BYTES - 4, 0)
    rig.drain(stream)
    assert rig.look(address) == [7]
    windows.close_window(window)


def test_windows_come_and_go(device, windows):
    opened = [windows.open_window(SCRATCH) for _ in range(12)]
    for window in opened[::2]:
        windows.close_window(window)
    opened[::2] = [windows.open_window(SCRATCH) for _ in opened[::2]]
    assert len({window.address for window in opened}) == 12
    for window in opened:
        windows.map_device(window, SCRATCH, GRANULE_BYTES)
    for window in opened:
        windows.close_window(window)
