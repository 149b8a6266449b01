"""Windows of the emulator: pages of one file, charged to the device, and given back after every failure."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import pytest

from fakes.emulation import Emulation
from tensorwasm.errors import InvalidHandle, LaunchRefused, QuotaExceeded
from tensorwasm.gpu.device.address_windows import GRANULE_BYTES as GRAIN
from tensorwasm.gpu.device.address_windows import SLACK_BYTES, WINDOW_BYTES
from tensorwasm.gpu.device.port import DeviceStatistics
from tensorwasm.gpu.emulator.memory import windows as windows_module
from tensorwasm.values import MIB, NEVER, Region

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="maps one file again and again")

CHUNK = 64 * MIB


@pytest.fixture
def emulation():
    opened = Emulation()
    yield opened
    opened.device.close()


@pytest.fixture
def windows(emulation):
    return emulation.device.windows


@pytest.fixture
def window(windows):
    return windows.open_window(CHUNK)


def word(address):
    return ctypes.c_uint32.from_address(address)


def resources():
    """Return the descriptors and the mappings of this process."""
    maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return len([*Path("/proc/self/fd").iterdir()]), sum("tensorwasm-window" in line for line in maps)


def test_every_page_shows_the_one_chunk(window):
    start = window.address - SLACK_BYTES
    for number, place in enumerate(range(start, start + WINDOW_BYTES + 2 * SLACK_BYTES, CHUNK)):
        assert word(place + 4096).value == number
        word(place + 4096).value += 1


@pytest.mark.parametrize("size", [2 * WINDOW_BYTES, 32 * WINDOW_BYTES])
def test_larger_windows_take_one_mapping_for_each_chunk_of_the_largest_size(emulation, windows, size):
    files, maps = resources()
    window = windows.open_window(GRAIN, size)
    assert resources() == (files + 1, maps + size // CHUNK + 2)
    assert emulation.device.statistics().window_bytes == CHUNK + GRAIN
    word(window.address + size - 4).value = 5
    assert word(window.address - 4).value == 5
    windows.close_window(window)
    assert resources() == (files, maps)


def test_aliases_return_to_their_places_in_the_chunk(windows, window):
    word(window.address + 5 * GRAIN).value = 5
    word(window.address + CHUNK).value = 6
    windows.map_device(window, CHUNK - GRAIN, 2 * CHUNK)
    assert word(window.address + CHUNK).value == 0
    windows.unmap(window, CHUNK - GRAIN)
    assert word(window.address + CHUNK + 5 * GRAIN).value == 5
    assert word(window.address + 2 * CHUNK).value == 6


def test_a_window_is_charged_to_the_device(emulation, windows):
    device = emulation.device
    window = windows.open_window(16 * MIB)
    windows.map_device(window, 0, 4 * GRAIN)
    windows.map_host(window, 8 * GRAIN, GRAIN)
    assert device.unified.free_bytes() == (1 << 30) - 16 * MIB - 5 * GRAIN
    expected = DeviceStatistics(streams=1, windows=1, window_bytes=16 * MIB + 6 * GRAIN, unified_bytes=GRAIN)
    assert device.statistics() == expected
    with pytest.raises(QuotaExceeded):
        windows.map_device(window, CHUNK, 1 << 30)
    assert device.statistics() == expected
    assert word(window.address + CHUNK).value == 0
    windows.unmap(window, 0)
    windows.unmap(window, 8 * GRAIN)
    windows.close_window(window)
    assert device.unified.free_bytes() == 1 << 30
    assert device.statistics() == DeviceStatistics(streams=1)


def test_a_window_for_which_there_is_no_memory_leaves_nothing():
    emulation = Emulation(memory_bytes=16 * MIB)
    before = resources()
    with pytest.raises(QuotaExceeded):
        emulation.device.windows.open_window(16 * MIB)
    assert resources() == before
    assert emulation.device.statistics() == DeviceStatistics(streams=1)


def test_closing_gives_back_descriptors_and_addresses(emulation):
    before = resources()
    for close_all in (False, True):
        window = emulation.device.windows.open_window(CHUNK)
        emulation.device.windows.map_device(window, 0, GRAIN)
        emulation.device.windows.map_host(window, GRAIN, GRAIN)
        assert resources() > before
        if close_all:
            emulation.device.close()
        else:
            emulation.device.windows.close_window(window)
        assert resources() == before


CHANGES = {
    "open": lambda device, _: device.windows.open_window(CHUNK),
    "device": lambda device, window: device.windows.map_device(window, CHUNK, GRAIN),
    "host": lambda device, window: device.windows.map_host(window, CHUNK, GRAIN),
    "unmap": lambda device, window: device.windows.unmap(window, 0),
}


@pytest.mark.parametrize("function", ["map_pages", "os.memfd_create", "os.ftruncate"])
@pytest.mark.parametrize("change", CHANGES)
def test_what_the_system_refuses_is_a_quota_and_changes_nothing(emulation, window, monkeypatch, change, function):
    emulation.device.windows.map_device(window, 0, GRAIN)
    word(window.address).value = 1
    word(window.address + CHUNK).value = 2
    before = emulation.device.statistics(), resources()

    def refuse(*_, **__):
        raise OSError(12, "Cannot allocate memory")

    with monkeypatch.context() as patch:
        patch.setattr(f"{windows_module.__name__}.{function}", refuse)
        if function == "map_pages" or change in {"open", "host"}:
            with pytest.raises(QuotaExceeded, match="Cannot allocate"):
                CHANGES[change](emulation.device, window)
            assert (emulation.device.statistics(), resources()) == before
            assert (word(window.address).value, word(window.address + CHUNK).value) == (1, 2)
    CHANGES[change](emulation.device, window)


def test_scratch_is_cleared_in_the_order_of_the_stream(emulation, windows, window):
    windows.map_device(window, 0, GRAIN)
    word(window.address).value = word(window.address + GRAIN).value = 7
    windows.clear_scratch(window, emulation.stream)
    assert word(window.address + GRAIN).value == 7
    emulation.device.synchronize(emulation.stream, NEVER)
    assert (word(window.address).value, word(window.address + GRAIN).value) == (7, 0)


def test_clearing_the_scratch_of_a_window_that_was_closed_does_nothing(emulation, windows, window):
    windows.clear_scratch(window, emulation.stream)
    windows.close_window(window)
    emulation.device.synchronize(emulation.stream, NEVER)


def test_a_window_is_a_region_of_host_memory_as_long_as_it_is_open(emulation, windows, window):
    text = """.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 p) { .reg .b64 %rd<2>; ld.param.u64 %rd1, [p]; st.global.u32 [%rd1], 9; ret; }
"""
    region = Region(window.address - SLACK_BYTES, WINDOW_BYTES + 2 * SLACK_BYTES, host=True)
    emulation.launch(text, region)
    assert word(window.address).value == 9
    part = Region(window.address + GRAIN, 4, host=True)
    emulation.launch(text, part)
    assert "byte -4 of the 4-byte host region" in emulation.fault(
        text, part, args=[(part.address - 4).to_bytes(8, "little")]
    )
    windows.close_window(window)
    with pytest.raises(LaunchRefused):
        emulation.launch(text, region)
    with pytest.raises(InvalidHandle):
        windows.close_window(window)


def test_many_windows_fit_into_the_mappings_of_a_process():
    emulation = Emulation(memory_bytes=1 << 40)
    opened = [emulation.device.windows.open_window(2 * MIB) for _ in range(200)]
    assert resources()[1] < 200 * 70
    assert len({window.address for window in opened}) == 200
    emulation.device.close()


def test_a_system_without_such_files_has_no_windows(emulation, monkeypatch):
    monkeypatch.setattr(windows_module.EmulatedWindows, "available", False)
    with pytest.raises(LaunchRefused):
        emulation.device.windows.open_window(CHUNK)
