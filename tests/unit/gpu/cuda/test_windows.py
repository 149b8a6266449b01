"""Windows on the fake driver: no page is ever unmapped, few mappings, and every failure leaves what was there."""

from __future__ import annotations

from contextlib import nullcontext, suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.driver import FakeDriver
from tensorwasm.errors import (
    CallerError,
    CapacityExhausted,
    DeviceLost,
    DeviceUnavailable,
    InternalError,
    InvalidPointer,
    LaunchRefused,
    LimitError,
    QuotaExceeded,
    TensorWasmError,
)
from tensorwasm.gpu.cuda.driver.calls import Driver
from tensorwasm.gpu.cuda.opening import open_with
from tensorwasm.gpu.cuda.streams import device_streams
from tensorwasm.gpu.device.address_windows import GRANULE_BYTES as GRAIN
from tensorwasm.gpu.device.address_windows import SLACK_BYTES, WINDOW_BYTES
from tensorwasm.gpu.shared_device import SharedDevice
from tensorwasm.values import MIB, NEVER

CHUNK = 64 * MIB


@pytest.fixture
def windows(device):
    return device.windows


@pytest.fixture
def window(windows):
    return windows.open_window(CHUNK)


def shown(fake, window):
    """Return what each page of a window and its slack shows: mappings as (offset, size, handle), ascending."""
    start, end = window.address - SLACK_BYTES, window.address + window.size_bytes + SLACK_BYTES
    found = [(at - window.address, fake.mapped[at], fake.shows[at]) for at in sorted(fake.mapped) if start <= at < end]
    at = -SLACK_BYTES
    for offset, size, handle in found:
        assert offset == at, "a hole"
        assert size == handle.size
        assert fake.users[window.address + offset] == {"DEVICE"}
        at += size
    assert at == window.size_bytes + SLACK_BYTES
    return found


def state(fake, device):
    """Return everything that a failed call must leave as it was."""
    return dict(fake.shows), dict(fake.users), set(fake.handles), set(fake.reserved), device.statistics()


def check_layout(fake, window, parts):
    """Each part is one mapping of memory of its own; a chunk's place without any is one mapping; the rest granules."""
    chunk, granule = window.handles
    expected = []
    for place in range(-SLACK_BYTES, window.size_bytes + SLACK_BYTES, CHUNK):
        if not any(at < place + CHUNK and place < at + size for at, size in parts.items()):
            expected.append((place, CHUNK))
            continue
        for at in range(place, place + CHUNK, GRAIN):
            covers = [start for start, size in parts.items() if start <= at < start + size]
            expected += [(at, GRAIN)] if not covers else [(at, parts[at])] if covers == [at] else []
    found = shown(fake, window)
    assert [(offset, size) for offset, size, _ in found] == expected
    for offset, size, handle in found:
        if parts.get(offset) == size:
            assert handle not in (chunk, granule)
        else:
            assert handle is (chunk if size == CHUNK else granule)


@pytest.mark.parametrize("size", [WINDOW_BYTES, 2 * WINDOW_BYTES, 32 * WINDOW_BYTES])
def test_a_window_is_one_chunk_again_and_again(windows, fake, device, size):
    window = windows.open_window(CHUNK if size == WINDOW_BYTES else GRAIN, size)
    check_layout(fake, window, {})
    assert window.address % window.size_bytes == 0
    assert device.statistics().windows == 1
    assert device.statistics().window_bytes == CHUNK + GRAIN
    assert fake.calls["cuMemSetAccess"] == 1
    windows.close_window(window)
    assert fake.calls["cuMemUnmap"] == 1
    assert fake.shows == {}
    assert not any(handle.kind == "memory" for handle in fake.handles)


@pytest.mark.parametrize(
    ("asked", "got"), [(0, 2), (1, 2), (2 * MIB, 2), (2 * MIB + 1, 4), (16 * MIB, 16), (40 * MIB, 64), (1 << 50, 64)]
)
def test_the_chunk_is_a_power_of_two(windows, device, asked, got):
    window = windows.open_window(asked)
    assert device.statistics().window_bytes == got * MIB + GRAIN
    windows.close_window(window)


@settings(max_examples=30, deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.integers(0, 70), st.sampled_from([1, 2, 31, 32, 33, 64, 65]), st.booleans()), max_size=25
    )
)
def test_no_page_is_ever_unmapped_and_no_mapping_is_idle(steps):
    fake = FakeDriver()
    device = open_with(Driver(fake), 0)
    window, parts = device.windows.open_window(CHUNK), {}
    for place, count, host in steps:
        offset, size = place * GRAIN, count * GRAIN
        if offset in parts:
            device.windows.unmap(window, offset)
            del parts[offset]
        else:
            taken = any(at < offset + size and offset < at + held for at, held in parts.items())
            with pytest.raises(InvalidPointer) if taken else nullcontext():
                (device.windows.map_host if host else device.windows.map_device)(window, offset, size)
                parts[offset] = size
        check_layout(fake, window, parts)
        assert device.statistics().window_bytes == CHUNK + GRAIN + sum(parts.values())
    device.windows.close_window(window)
    device.close()
    assert fake.leftovers() == []


def test_host_memory_has_a_view_which_both_may_access(windows, window, fake, device):
    view = windows.map_host(window, GRAIN, 2 * GRAIN)
    assert fake.shows[view] is fake.shows[window.address + GRAIN]
    assert fake.shows[view].entry == "HOST_NUMA"
    assert fake.users[view] == {"DEVICE", "HOST_NUMA"}
    assert device.statistics().unified_bytes == 2 * GRAIN
    windows.unmap(window, GRAIN)
    assert view not in fake.mapped
    assert view not in fake.reserved
    assert device.statistics().unified_bytes == 0


def test_a_view_of_the_caller_stays_his_range(windows, window, fake, device):
    start = device.unified.reserve(4 * GRAIN)
    assert windows.map_host(window, 0, GRAIN, start + GRAIN) == start + GRAIN
    with pytest.raises(InvalidPointer, match="mapped in"):
        device.unified.unreserve(start, 4 * GRAIN)
    before = state(fake, device)
    for wrong in (start + GRAIN + 1, start + 4 * GRAIN, start - GRAIN, 0):
        with pytest.raises(InvalidPointer):
            windows.map_host(window, 4 * GRAIN, GRAIN, wrong)
        assert state(fake, device) == before
    windows.close_window(window)
    device.unified.unreserve(start, 4 * GRAIN)


def test_device_memory_is_the_devices_and_aliases_are_not(windows, window, device, stream):
    windows.map_device(window, GRAIN, GRAIN)
    device.fill(window.address + GRAIN, GRAIN, stream)
    for address, size in ((window.address, 4), (window.address + GRAIN, GRAIN + 1), (window.address - 4, 4)):
        with pytest.raises(InvalidPointer):
            device.fill(address, size, stream)


def test_all_new_memory_is_cleared_and_scratch_where_it_is_always_mapped(windows, fake, stream):
    window = windows.open_window(16 * MIB)
    tail = window.address + WINDOW_BYTES + SLACK_BYTES
    scratch = [(tail, GRAIN + 16 * MIB)]
    chunk, granule = window.handles
    assert fake.cleared == scratch
    assert (fake.shows[tail], fake.shows[tail + GRAIN]) == (granule, chunk)
    windows.map_device(window, GRAIN, 3 * GRAIN)
    windows.map_device(window, 16 * MIB, GRAIN)
    windows.clear_scratch(window, stream)
    windows.clear(window, GRAIN, 8, stream)
    windows.clear(window, GRAIN, 0, stream)
    new = [(window.address + GRAIN, 3 * GRAIN), (window.address + 16 * MIB, GRAIN)]
    assert fake.cleared == [*scratch, *new, *scratch, (window.address + GRAIN, 8)]


def test_the_slot_is_cleared_with_the_scratch_memory_in_one_fill(windows, fake, stream):
    window = windows.open_window(16 * MIB)
    view = windows.map_slot(window, 4 * GRAIN)
    tail, size = windows.scratch_ranges(window)[0]
    assert (tail, size) == (window.address + WINDOW_BYTES + SLACK_BYTES, 16 * MIB + 2 * GRAIN)
    assert fake.shows[view] is fake.shows[window.address + 4 * GRAIN] is fake.shows[tail + size - GRAIN]
    fake.cleared.clear()
    windows.clear_scratch(window, stream)
    assert fake.cleared == [(tail, size)]
    for refused in (lambda: windows.unmap(window, 4 * GRAIN), lambda: windows.map_slot(window, 5 * GRAIN)):
        with pytest.raises(InvalidPointer, match="slot"):
            refused()


def test_a_window_whose_slot_could_not_be_mapped_again_can_only_be_closed(device, windows, window, fake):
    fake.fail_once("cuMemSetAccess", 3, 2)
    with pytest.raises(TensorWasmError):
        windows.map_slot(window, 0)
    with pytest.raises(InternalError, match="hole"):
        windows.map_device(window, GRAIN, GRAIN)
    windows.close_window(window)
    device.close()
    assert fake.leftovers() == []


def test_a_stream_is_put_behind_the_clearing_of_what_was_mapped(windows, window, device, stream, fake):
    device.synchronize(stream, NEVER)
    windows.map_device(window, 0, GRAIN)
    before = fake.calls["cuStreamWaitEvent"]
    windows.clear_scratch(window, stream)
    assert fake.calls["cuStreamWaitEvent"] == before + 1


def test_memory_that_the_devices_pool_keeps_is_returned_when_needed(device, windows, window, fake):
    device.free(device.allocate(64))
    fake.kept = fake.capacity - CHUNK - 2 * GRAIN
    windows.map_device(window, 0, 4 * GRAIN)
    assert fake.kept == 0


@pytest.mark.parametrize("host", [False, True])
def test_memory_that_is_not_there_is_a_quota_and_leaves_the_aliases(device, windows, window, fake, host):
    fake.host_bytes = GRAIN
    before = state(fake, device)
    with pytest.raises(QuotaExceeded):
        (windows.map_host if host else windows.map_device)(window, 0, fake.capacity)
    assert state(fake, device) == before


def test_scratch_memory_that_is_not_there_is_a_quota_and_opens_nothing(windows, device, fake):
    fake.capacity = CHUNK
    before = state(fake, device)
    with pytest.raises(QuotaExceeded):
        windows.open_window(CHUNK)
    assert state(fake, device) == before


def test_addresses_that_are_not_there_are_a_refusal(windows, fake):
    with fake.failing("cuMemAddressReserve", 2), pytest.raises(LaunchRefused, match="room"):
        windows.open_window(CHUNK)


@pytest.mark.parametrize(
    "attribute", ["VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED", "HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED"]
)
def test_a_device_without_such_memory_has_no_windows(attribute):
    fake = FakeDriver()
    fake.attributes[attribute] = 0
    if attribute.startswith("HOST"):
        fake.attributes["HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED"] = 0
    device = open_with(Driver(fake), 0)
    assert not device.windows.available
    with pytest.raises(DeviceUnavailable, match="isolation='process'"):
        SharedDevice(device, guarded=True)
    with pytest.raises(LaunchRefused):
        device.windows.open_window(CHUNK)
    device.close()


# ------------------------------------------------------------------------------------------------------------ failures


def prepared(device):
    """Return a window in which something is mapped."""
    window = device.windows.open_window(CHUNK)
    device.windows.map_device(window, GRAIN, 2 * GRAIN)
    device.windows.map_host(window, 4 * GRAIN, GRAIN)
    return window


CHANGES = {
    "open": lambda device, _: device.windows.open_window(CHUNK),
    "device": lambda device, window: device.windows.map_device(window, 8 * GRAIN, CHUNK),
    "host": lambda device, window: device.windows.map_host(window, 8 * GRAIN, CHUNK),
    "unmap device": lambda device, window: device.windows.unmap(window, GRAIN),
    "unmap host": lambda device, window: device.windows.unmap(window, 4 * GRAIN),
    "close": lambda device, window: device.windows.close_window(window),
}
FREEING = {"cuMemRelease", "cuMemAddressFree", "cuMemUnmap"}


@pytest.fixture(autouse=True)
def no_spin(monkeypatch):
    """Let a wait ask the driver once, so that every run makes the same calls."""
    monkeypatch.setattr(device_streams, "_SPIN_NS", 0)


def calls_of(change):
    """Return how often each entry point is called by a change."""
    fake = FakeDriver()
    device = open_with(Driver(fake), 0)
    window = prepared(device)
    before = dict(fake.calls)
    CHANGES[change](device, window)
    device_calls = {name: count - before.get(name, 0) for name, count in fake.calls.items()}
    device.close()
    assert fake.leftovers() == []
    return {name: count for name, count in device_calls.items() if count and not name.startswith("cuCtx")}


def turns(count):
    return sorted({1, 2, count // 2, count} & set(range(1, count + 1)))


@pytest.mark.parametrize("code", [2, 801])
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_that_fails_anywhere_changes_nothing_or_is_finished(change, code, caplog):
    for function, count in calls_of(change).items():
        for nth in turns(count):
            fake = FakeDriver()
            device = open_with(Driver(fake), 0)
            window = prepared(device)
            before = state(fake, device)
            fake.fail_once(function, nth, code)
            case = f"call {nth} of {function}"
            try:
                CHANGES[change](device, window)
                failed = False
            except (CallerError, LimitError):
                failed = True
            assert fake.failed(), case
            if failed and change != "close":
                assert state(fake, device) == before, case
                CHANGES[change](device, window)
            elif failed:
                assert device.statistics().windows == 1, case
                device.windows.close_window(window)
            else:
                assert function in FREEING | {"cuStreamQuery", "cuMemCreate"}, case
            device.close()
            said = device.statistics()
            assert not fake.leftovers() or said.release_failures, f"{case} left {fake.leftovers()}"
            assert said.windows == 0


@pytest.mark.parametrize("change", [*CHANGES][1:5])
def test_a_sticky_failure_in_a_change_loses_the_device(change):
    for function, count in calls_of(change).items():
        for nth in turns(count):
            fake = FakeDriver()
            device = open_with(Driver(fake), 0)
            window = prepared(device)
            fake.fail_once(function, nth, 719)
            with suppress(DeviceLost, InternalError):
                CHANGES[change](device, window)
            with pytest.raises(DeviceLost):
                device.allocate(8)


@pytest.mark.parametrize("change", [*CHANGES][1:5])
def test_a_window_that_was_not_mended_is_closed_and_nothing_else(change, device, fake, stream):
    window = prepared(device)
    with fake.failing("cuMemSetAccess", 801):
        if change == "host":  # the view fails first, and changes nothing
            with pytest.raises(LaunchRefused):
                CHANGES[change](device, window)
            return
        with pytest.raises(InternalError):
            CHANGES[change](device, window)
    windows = device.windows
    for call in (
        lambda: windows.map_device(window, 0, GRAIN),
        lambda: windows.map_host(window, 0, GRAIN),
        lambda: windows.unmap(window, GRAIN),
        lambda: windows.clear_scratch(window, stream),
        lambda: windows.clear(window, GRAIN, 4, stream),
    ):
        with pytest.raises(InternalError, match="hole"):
            call()
    windows.close_window(window)
    assert device.statistics().windows == device.statistics().window_bytes == 0
    assert fake.shows == {}
    assert fake.reserved == {}


def test_a_window_that_could_be_neither_made_nor_given_back_goes_with_the_device(fake):
    device = open_with(Driver(fake), 0)
    fake.fail |= {"cuMemSetAccess": 801, "cuMemUnmap": 801}
    with pytest.raises(TensorWasmError):
        device.windows.open_window(CHUNK)
    assert device.statistics().windows == 1
    fake.fail.clear()
    device.close()
    assert fake.leftovers() == []


@pytest.mark.parametrize("change", ["unmap device", "unmap host", "close"])
def test_what_may_still_be_cleared_is_not_unmapped(device, fake, monkeypatch, change):
    window = prepared(device)
    before = state(fake, device)
    monkeypatch.setattr(device._core.streams, "wait", lambda *_: False)
    with pytest.raises(CapacityExhausted):
        CHANGES[change](device, window)
    assert state(fake, device) == before
    monkeypatch.undo()
    CHANGES[change](device, window)


# ---------------------------------------------------------------------------------------------------------------- life


def test_closing_the_device_closes_its_windows():
    fake = FakeDriver()
    device = open_with(Driver(fake), 0)
    prepared(device)
    start = device.unified.reserve(4 * GRAIN)
    device.windows.map_host(prepared(device), 8 * GRAIN, GRAIN, start)
    device.close()
    assert fake.leftovers() == []
    assert device.statistics().windows == device.statistics().window_bytes == 0


def test_a_reset_loses_a_device_with_a_window_and_spares_one_without(device, fake, windows):
    windows.close_window(prepared(device))
    fake.reset()
    window = prepared(device)
    fake.reset()
    with pytest.raises(DeviceLost, match="reset"):
        windows.map_device(window, 0, GRAIN)
