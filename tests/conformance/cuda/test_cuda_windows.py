"""What only a GPU can show of windows: device memory that runs out, and many windows at once."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tensorwasm.errors import QuotaExceeded
from tensorwasm.gpu.device.address_windows import GRANULE_BYTES, WINDOW_BYTES
from tensorwasm.values import MIB, NEVER

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]


@pytest.fixture
def windows(gpu):
    assert gpu.windows.available
    return gpu.windows


@pytest.fixture
def window(windows):
    window = windows.open_window(16 * MIB)
    yield window
    windows.close_window(window)


def test_device_memory_that_runs_out_leaves_the_window_as_it_was(gpu, windows, window, stream):
    windows.map_device(window, GRANULE_BYTES, GRANULE_BYTES)
    gpu.write(window.address + GRANULE_BYTES, b"kept", stream)
    taken = gpu.allocate(gpu.unified.free_bytes() - 1024 * MIB)
    try:
        before = gpu.statistics()
        for offset in (2 * GRANULE_BYTES, WINDOW_BYTES - 2048 * MIB):
            with pytest.raises(QuotaExceeded):
                windows.map_device(window, offset, 2048 * MIB)
        assert gpu.statistics() == before
        into = bytearray(4)
        gpu.read(window.address + GRANULE_BYTES, memoryview(into), stream)
        assert into == b"kept"
    finally:
        gpu.free(taken)
    windows.map_device(window, WINDOW_BYTES - 2048 * MIB, 2048 * MIB)  # the device's pool gives back what it has kept
    windows.clear_scratch(window, stream)
    gpu.synchronize(stream, NEVER)


def test_a_hundred_windows_are_apart_and_give_all_of_their_memory_back(gpu, windows, stream):
    gpu.synchronize(stream, NEVER)
    free_bytes = gpu.unified.free_bytes()
    opened = [windows.open_window(16 * MIB) for _ in range(100)]
    addresses = sorted(window.address for window in opened)
    assert all(second - first >= 2 * WINDOW_BYTES for first, second in pairwise(addresses))
    assert all(address % WINDOW_BYTES == 0 for address in addresses)
    for window in opened:
        windows.map_device(window, 0, 4 * GRANULE_BYTES)
    assert free_bytes - gpu.unified.free_bytes() >= 100 * 26 * MIB
    for window in opened:
        windows.close_window(window)
    assert free_bytes - gpu.unified.free_bytes() <= 64 * MIB
