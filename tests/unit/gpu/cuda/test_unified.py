import ctypes

import pytest

from fakes.driver import FakeDriver
from fakes.driver_memory import DIRT
from fakes.driver_memory import GRANULARITY as GRAIN
from tensorwasm.errors import InvalidHandle, InvalidPointer, LaunchRefused, QuotaExceeded
from tensorwasm.gpu.cuda.driver.calls import Driver
from tensorwasm.gpu.cuda.opening import open_with
from tensorwasm.gpu.device.port import DeviceStatistics
from tensorwasm.gpu.device.protocols import Advice

KIB = 1 << 10


def opened(**changes):
    """Open a device whose driver differs: keywords of the fake, and attributes in capitals."""
    attributes = {name: changes.pop(name) for name in list(changes) if name.isupper()}
    fake = FakeDriver(**changes)
    fake.attributes |= attributes
    return open_with(Driver(fake), 0), fake


def test_managed_memory_is_zeroed_and_counted_and_freed_once(device, fake):
    before = fake.leftovers()
    address = device.unified.allocate_managed(64 * KIB)
    assert ctypes.string_at(address, 64 * KIB) == bytes(64 * KIB)
    assert device.statistics() == DeviceStatistics(unified_bytes=64 * KIB)
    device.unified.free_managed(address)
    with pytest.raises(InvalidHandle):
        device.unified.free_managed(address)
    assert set(fake.leftovers()) == set(before)


def test_managed_memory_is_zeroed_by_the_device_where_the_host_may_not_touch_it_at_any_time():
    device, fake = opened(CONCURRENT_MANAGED_ACCESS=0)
    address = device.unified.allocate_managed(64 * KIB)
    assert ctypes.string_at(address, 64 * KIB) == bytes(64 * KIB)
    assert fake.calls["cuMemsetD8Async"] == 1
    device.close()
    assert fake.leftovers() == []


@pytest.mark.parametrize("concurrent", [1, 0])
@pytest.mark.parametrize("zero", [0, 1, 5000, 64 * KIB])
def test_managed_memory_is_cleared_as_far_as_was_asked_and_no_byte_further(concurrent, zero):
    device, fake = opened(CONCURRENT_MANAGED_ACCESS=concurrent)
    address = device.unified.allocate_managed(64 * KIB, zero)
    dirt = bytes([DIRT])
    assert ctypes.string_at(address, 64 * KIB) == bytes(zero) + dirt * (64 * KIB - zero)
    ctypes.memset(address, DIRT, 64 * KIB)
    device.unified.clear_managed(address + 3, 4 * KIB)
    assert ctypes.string_at(address, 64 * KIB) == dirt * 3 + bytes(4 * KIB) + dirt * (60 * KIB - 3)
    assert fake.calls["cuMemsetD8Async"] == (0 if concurrent else 1 + bool(zero))
    device.close()
    assert fake.leftovers() == []


@pytest.mark.parametrize(("offset", "size"), [(-1, 4), (64 * KIB, 1), (0, 64 * KIB + 1)])
def test_nothing_is_cleared_beside_managed_memory(device, offset, size):
    address = device.unified.allocate_managed(64 * KIB)
    with pytest.raises(InvalidPointer):
        device.unified.clear_managed(address + offset, size)


@pytest.mark.parametrize("size", [(1 << 30) + 1, 1 << 64, 1 << 200])
def test_managed_memory_is_never_more_than_the_device_has_free(device, fake, size):
    with pytest.raises(QuotaExceeded, match="free"):
        device.unified.allocate_managed(size)
    assert fake.calls["cuMemAllocManaged"] == 0
    address = device.allocate(1 << 20)
    assert device.unified.free_bytes() == (1 << 30) - (1 << 20)
    with pytest.raises(QuotaExceeded):
        device.unified.allocate_managed(1 << 30)
    device.free(address)


def test_a_device_without_managed_memory_refuses_it():
    device, _ = opened(MANAGED_MEMORY=0)
    assert not device.unified.managed
    with pytest.raises(LaunchRefused):
        device.unified.allocate_managed(8)
    device.close()


BINDINGS = {
    "bindings 13": ({}, "DEVICE", "HOST"),
    "bindings 12": ({"bindings": 12, "cuda": 12090}, "DEVICE", "HOST"),
    "bindings 12, a driver before locations": ({"bindings": 12, "cuda": 12010}, 0, -1),
}


@pytest.mark.parametrize("case", BINDINGS)
def test_every_hint_reaches_the_driver_as_its_bindings_spell_it(case):
    options, here, host = BINDINGS[case]
    device, fake = opened(**options)
    stream = device.open_stream()
    address = device.unified.allocate_managed(64 * KIB)
    for advice in Advice:
        assert device.unified.advise(address, 4 * KIB, advice)
    for to_host in (False, True):
        assert device.unified.prefetch(address + 4 * KIB, 8 * KIB, stream, to_host=to_host)
    kinds = ["READ_MOSTLY", "PREFERRED_LOCATION", "ACCESSED_BY"]
    asked = [("advise", f"{verb}_{kind}", here) for kind in kinds for verb in ("SET", "UNSET")]
    assert fake.hints == [*asked, ("prefetch", "", here), ("prefetch", "", host)]
    device.close()


@pytest.mark.parametrize("options", [{"CONCURRENT_MANAGED_ACCESS": 0}, {"cuda": 12010}, {"lacks": 1}])
def test_hints_without_effect_return_false(options):
    lacks = options.pop("lacks", 0)
    device, fake = opened(**options)
    if lacks:
        fake.missing |= {"cuMemAdvise", "cuMemPrefetchAsync"}
    stream = device.open_stream()
    address = device.unified.allocate_managed(64 * KIB)
    assert not device.unified.advise(address, 64 * KIB, Advice.READ_MOSTLY)
    assert not device.unified.prefetch(address, 64 * KIB, stream, to_host=True)
    assert fake.hints == []
    device.close()


@pytest.mark.parametrize(("offset", "size"), [(-1, 4), (64 * KIB, 1), (0, 64 * KIB + 1)])
def test_hints_outside_managed_memory_never_reach_the_driver(device, fake, stream, offset, size):
    address = device.unified.allocate_managed(64 * KIB)
    with pytest.raises(InvalidPointer):
        device.unified.advise(address + offset, size, Advice.ACCESSED_BY)
    with pytest.raises(InvalidPointer):
        device.unified.prefetch(address + offset, size, stream, to_host=False)


def test_a_range_grows_in_place_with_what_is_in_it(device, fake):
    unified, before = device.unified, fake.leftovers()
    assert unified.growable
    assert unified.granularity_bytes == GRAIN
    start = unified.reserve(4 * GRAIN)
    unified.map(start, GRAIN)
    assert ctypes.string_at(start, GRAIN) == bytes(GRAIN)
    ctypes.memset(start, 7, GRAIN)
    unified.map(start + GRAIN, 2 * GRAIN)
    assert ctypes.string_at(start, 3 * GRAIN) == b"\7" * GRAIN + bytes(2 * GRAIN)
    assert fake.users == {start: {"DEVICE", "HOST_NUMA"}, start + GRAIN: {"DEVICE", "HOST_NUMA"}}
    assert not any(handle.kind == "memory" for handle in fake.handles), "a mapping keeps memory by itself"
    assert device.statistics().unified_bytes == 3 * GRAIN
    unified.unmap(start, GRAIN)
    unified.unmap(start + GRAIN, 2 * GRAIN)
    unified.unreserve(start, 4 * GRAIN)
    assert set(fake.leftovers()) == set(before)
    assert device.statistics() == DeviceStatistics()


def test_the_device_copies_to_and_from_what_is_mapped(device, stream):
    start = device.unified.reserve(GRAIN)
    device.unified.map(start, GRAIN)
    device.write(start + 100, b"mapped", stream)
    assert ctypes.string_at(start + 100, 6) == b"mapped"


def test_a_reservation_is_rounded_up_and_given_back_by_the_size_that_was_asked(device, fake):
    start = device.unified.reserve(5)
    device.unified.map(start, GRAIN)
    with pytest.raises(InvalidPointer, match="mapped in"):
        device.unified.unreserve(start, 5)
    device.unified.unmap(start, GRAIN)
    device.unified.unreserve(start, 5)
    with pytest.raises(InvalidPointer, match="reserved"):
        device.unified.unreserve(start, 5)
    assert fake.reserved == {}


@pytest.mark.parametrize(("offset", "size"), [(1, GRAIN), (0, 1), (0, 0), (0, 3 * GRAIN), (2 * GRAIN, GRAIN)])
def test_only_whole_granules_of_a_reserved_range_are_mapped(device, fake, offset, size):
    start = device.unified.reserve(2 * GRAIN)
    with pytest.raises(InvalidPointer):
        device.unified.map(start + offset, size)
    assert fake.calls["cuMemCreate"] == 0


def test_exactly_what_was_mapped_is_unmapped(device):
    start = device.unified.reserve(2 * GRAIN)
    device.unified.map(start, 2 * GRAIN)
    for wrong in ((start, GRAIN), (start + GRAIN, GRAIN)):
        with pytest.raises(InvalidPointer):
            device.unified.unmap(*wrong)
    device.unified.unmap(start, 2 * GRAIN)


def test_memory_that_the_host_does_not_have_is_a_quota_and_maps_nothing(device, fake):
    start = device.unified.reserve(2 * GRAIN)
    fake.host_bytes = GRAIN
    with pytest.raises(QuotaExceeded):
        device.unified.map(start, 2 * GRAIN)
    assert fake.mapped == {}


@pytest.mark.parametrize("size", [0, -1, 1 << 47, 1 << 64])
def test_a_range_without_room_is_refused(device, size):
    with pytest.raises(LaunchRefused, match="room"):
        device.unified.reserve(size)


def test_a_full_address_space_is_a_refusal_and_no_quota(device, fake):
    with fake.failing("cuMemAddressReserve", 2), pytest.raises(LaunchRefused, match="room"):
        device.unified.reserve(GRAIN)


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED": 0}, "HOST"),
        ({"HOST_NUMA_ID": 1}, "HOST_NUMA"),
        ({"VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED": 0}, ""),
        (
            {
                "HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED": None,
                "HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED": None,
            },
            "",
        ),
        ({"cuda": 12010}, ""),
    ],
)
def test_the_location_of_mapped_memory_follows_from_the_devices_attributes(changes, kind):
    device, fake = opened(**changes)
    assert device.unified.growable == bool(kind)
    if kind:
        start = device.unified.reserve(GRAIN)
        device.unified.map(start, GRAIN)
        assert fake.users[start] == {"DEVICE", kind}
    else:
        assert device.unified.granularity_bytes == 0
        with pytest.raises(LaunchRefused):
            device.unified.reserve(GRAIN)
        with pytest.raises(LaunchRefused):
            device.unified.map(0, GRAIN)
    device.close()
    assert fake.leftovers() == []
