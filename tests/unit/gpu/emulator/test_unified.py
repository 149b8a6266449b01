import ctypes
import mmap

import pytest

from fakes.emulation import Emulation
from tensorwasm.errors import InvalidHandle, LaunchRefused, QuotaExceeded
from tensorwasm.gpu.device.protocols import Advice
from tensorwasm.gpu.emulator.memory import unified as unified_module
from tensorwasm.gpu.emulator.memory.unified import GRANULARITY_BYTES as GRANULE
from tensorwasm.values import MIB

PAGE = mmap.PAGESIZE


@pytest.fixture
def unified(emulation):
    yield emulation.device.unified
    emulation.device.close()


def test_managed_memory_is_charged_to_the_device(unified, emulation):
    assert unified.free_bytes() == 1 << 30
    with pytest.raises(QuotaExceeded):
        unified.allocate_managed((1 << 30) + 1)
    address = unified.allocate_managed(MIB)
    assert unified.free_bytes() == (1 << 30) - MIB
    assert emulation.device.statistics().unified_bytes == MIB
    assert emulation.device.statistics().allocations == 0
    unified.free_managed(address)
    assert unified.free_bytes() == 1 << 30
    with pytest.raises(LaunchRefused):
        unified.free_managed(address)


@pytest.mark.parametrize("size", [0, -1])
def test_no_managed_memory_of_no_size(unified, size):
    with pytest.raises(LaunchRefused):
        unified.allocate_managed(size)


def test_a_part_of_managed_memory_is_cleared_and_nothing_beside_it(unified, emulation):
    address = unified.allocate_managed(3 * PAGE, PAGE)
    assert ctypes.string_at(address, 3 * PAGE) == bytes(3 * PAGE)
    ctypes.memset(address, 0xEE, 3 * PAGE)
    unified.clear_managed(address + 100, PAGE)
    assert ctypes.string_at(address, 3 * PAGE) == b"\xee" * 100 + bytes(PAGE) + b"\xee" * (2 * PAGE - 100)
    device = emulation.device.allocate(PAGE)
    for start, size in ((address, 3 * PAGE + 1), (address - 1, 1), (device, PAGE)):
        with pytest.raises(LaunchRefused):
            unified.clear_managed(start, size)


def test_hints_return_false_and_are_refused_for_other_memory(unified, emulation):
    address = unified.allocate_managed(3 * PAGE)
    for advice in Advice:
        assert unified.advise(address + PAGE, 2 * PAGE, advice) is False
    assert unified.prefetch(address, 3 * PAGE, emulation.stream, to_host=True) is False
    device = emulation.device.allocate(PAGE)
    for start, size in ((address, 3 * PAGE + 1), (address - 1, 1), (device, PAGE)):
        with pytest.raises(LaunchRefused):
            unified.advise(start, size, Advice.READ_MOSTLY)
        with pytest.raises(LaunchRefused):
            unified.prefetch(start, size, emulation.stream, to_host=False)
    with pytest.raises(InvalidHandle):
        unified.prefetch(address, PAGE, object(), to_host=False)


def test_a_mapping_is_inside_a_range_and_whole_granules_and_the_only_one(unified):
    base = unified.reserve(4 * GRANULE)
    unified.map(base + GRANULE, 2 * GRANULE)
    for address, size in (
        (base, 2 * GRANULE),
        (base + 2 * GRANULE, GRANULE),
        (base + GRANULE, 2 * GRANULE),
        (base + 3 * GRANULE, 2 * GRANULE),
        (base - GRANULE, GRANULE),
        (base, GRANULE - 1),
        (base + 1, GRANULE),
        (base, 0),
        (base, -GRANULE),
    ):
        with pytest.raises(LaunchRefused):
            unified.map(address, size)
    for address, size in ((base + GRANULE, GRANULE), (base + 2 * GRANULE, GRANULE), (base, GRANULE)):
        with pytest.raises(LaunchRefused):
            unified.unmap(address, size)
    for address, size in ((base, 4 * GRANULE), (base, GRANULE), (base + GRANULE, GRANULE)):
        with pytest.raises(LaunchRefused):
            unified.unreserve(address, size)
    unified.unmap(base + GRANULE, 2 * GRANULE)
    unified.unreserve(base, 4 * GRANULE)
    with pytest.raises(LaunchRefused):
        unified.map(base, GRANULE)


def test_mapped_memory_is_not_charged_to_the_device_but_counted(unified, emulation):
    base = unified.reserve(1 << 33)
    unified.map(base, 1 << 31)
    ctypes.memset(base + (1 << 31) - 1, 7, 1)
    assert unified.free_bytes() == 1 << 30
    assert emulation.device.statistics().unified_bytes == 1 << 31


@pytest.mark.parametrize("size", [0, -1, 1 << 47, 1 << 63])
def test_a_range_that_there_is_no_room_for(unified, size):
    with pytest.raises(LaunchRefused):
        unified.reserve(size)


def test_memory_that_the_machine_does_not_have_leaves_everything_as_it_was(unified, emulation, monkeypatch):
    base = unified.reserve(4 * GRANULE)
    unified.map(base + GRANULE, GRANULE)
    before = emulation.device.statistics()

    def refuse(*_):
        raise OSError(12, "Cannot allocate memory")

    for name in ("open_pages", "close_pages", "map_pages"):
        monkeypatch.setattr(unified_module, name, refuse)
    for error, attempt in (
        (QuotaExceeded, lambda: unified.map(base, GRANULE)),
        (LaunchRefused, lambda: unified.unmap(base + GRANULE, GRANULE)),
        (QuotaExceeded, lambda: unified.allocate_managed(PAGE)),
        (LaunchRefused, lambda: unified.reserve(PAGE)),
    ):
        with pytest.raises(error, match="Cannot allocate"):
            attempt()
    assert emulation.device.statistics() == before
    ctypes.memset(base + GRANULE, 1, GRANULE)
    monkeypatch.undo()
    unified.unmap(base + GRANULE, GRANULE)
    unified.map(base, GRANULE)


def test_pages_that_the_system_does_not_take_back_are_counted(monkeypatch, caplog):
    emulation = Emulation()
    unified = emulation.device.unified
    address = unified.allocate_managed(PAGE)

    def refuse(*_):
        raise OSError(12, "Cannot allocate memory")

    with monkeypatch.context() as patch:
        patch.setattr(unified_module, "release_pages", refuse)
        unified.free_managed(address)
    assert emulation.device.statistics().release_failures == 1
    assert "were not given back" in caplog.text
    unified_module.release_pages(address, PAGE)


def test_a_system_without_such_pages_is_an_error(monkeypatch):
    monkeypatch.setattr(unified_module, "AVAILABLE", False)
    unified_module._libc.cache_clear()
    try:
        for attempt in (
            lambda: unified_module.map_pages(PAGE, 0),
            lambda: Emulation().device.unified.allocate_managed(PAGE),
        ):
            with pytest.raises(LaunchRefused, match="POSIX"):
                attempt()
    finally:
        unified_module._libc.cache_clear()


def test_everything_goes_back_when_the_device_is_closed():
    emulation = Emulation()
    unified = emulation.device.unified
    unified.allocate_managed(PAGE)
    unified.map(unified.reserve(4 * GRANULE), GRANULE)
    emulation.device.close()
    assert emulation.device.statistics().unified_bytes == 0
    assert emulation.device.statistics().release_failures == 0
