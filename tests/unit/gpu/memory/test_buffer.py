"""A buffer of every kind is zero, checked, charged and given back."""

import ctypes
import gc
import mmap
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.unified import DEVICE_BYTES, DIRT, GRANULE_BYTES, FakeMemory
from tensorwasm.errors import (
    DeviceLost,
    InternalError,
    InvalidArgs,
    LaunchRefused,
    NotSupported,
    QuotaExceeded,
    TooLarge,
)
from tensorwasm.gpu.device.limits import MAX_PROCESS_DEVICE_BYTES
from tensorwasm.gpu.device.protocols import Advice
from tensorwasm.gpu.limits.accounts import Accounts, MemoryLedger
from tensorwasm.gpu.memory import UnifiedBuffer, pages
from tensorwasm.gpu.memory.backings import KINDS

PAGE = mmap.PAGESIZE
ROOM = 16 * GRANULE_BYTES
HOST_KINDS = [kind for kind, traits in KINDS.items() if traits.host]
GROWING_KINDS = [kind for kind, traits in KINDS.items() if traits.grows]
OPENING = {"device": "allocate", "pinned": "register", "managed": "allocate_managed", "vmm": "map"}
CLOSING = {"device": "free", "pinned": "unregister", "managed": "free_managed", "vmm": "unmap"}


@pytest.fixture
def device():
    device = FakeMemory()
    live = len(pages._live)
    yield device
    assert device.broken == []
    assert device.empty()
    assert len(pages._live) == live


@pytest.fixture
def account():
    account = Accounts(MemoryLedger()).register("a", 1 << 20, 1 << 20)
    yield account
    assert not account.charged


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


def contents(buffer):
    into = bytearray(len(buffer))
    buffer.read(into)
    return bytes(into)


def dirty(buffer):
    """Write past the end, up to where a device may reach."""
    reach = buffer.capacity if buffer.kind == "managed" else -(-len(buffer) // PAGE) * PAGE
    ctypes.memset(buffer.address, 0xEE, reach)


def check_regions(device, buffer):
    """The parts of a buffer follow each other, and none straddles two registrations."""
    regions = buffer.regions
    assert regions[0].address == buffer.address
    assert regions[-1].end == buffer.region.end
    assert all(before.end == after.address for before, after in pairwise(regions))
    for region in regions:
        inside = [at for at, size in device.registered.items() if at <= region.address and region.end <= at + size]
        assert len(inside) == (buffer.kind == "pinned")


def test_a_new_buffer_is_zero_and_describes_itself(device, kind):
    with UnifiedBuffer.allocate(device, 1000, kind) as buffer:
        assert len(buffer) == buffer.capacity == 1000
        assert not buffer.is_empty
        assert buffer.kind == kind
        assert buffer.device_id == "emulator:0"
        assert buffer.is_uvm_backed is (kind == "managed")
        assert not buffer.supports_grow_in_place
        assert (buffer.region.address, buffer.region.size_bytes) == (buffer.address, 1000)
        assert buffer.region.host is (kind != "device")
        assert contents(buffer) == bytes(1000)


@given(
    st.sampled_from(list(KINDS)),
    st.integers(1, 3 * PAGE),
    st.lists(st.tuples(st.integers(-2, 3 * PAGE), st.binary(max_size=40)), max_size=10),
)
def test_written_bytes_are_read_back_without_their_neighbours(kind, size, writes):
    device = FakeMemory()
    model = bytearray(size)
    with UnifiedBuffer.allocate(device, size, kind) as buffer:
        for offset, data in writes:
            if offset >= 0 and offset + len(data) <= size:
                buffer.write(data, offset)
                model[offset : offset + len(data)] = data
            else:
                with pytest.raises(InvalidArgs):
                    buffer.write(data, offset)
                with pytest.raises(InvalidArgs):
                    buffer.read(bytearray(len(data)), offset)
                with pytest.raises(InvalidArgs):
                    buffer.clear(offset, len(data))
        assert contents(buffer) == model
        part = bytearray(size // 2)
        buffer.read(part, size - len(part))
        assert part == model[size - len(part) :]
    assert device.broken == []
    assert device.empty()


def test_a_part_is_cleared(device, kind):
    with UnifiedBuffer.allocate(device, 100, kind) as buffer:
        buffer.write(b"\xff" * 100)
        buffer.clear(10, 20)
        buffer.clear(100, 0)
        assert contents(buffer) == b"\xff" * 10 + bytes(20) + b"\xff" * 70


@pytest.mark.parametrize("kind", HOST_KINDS)
def test_a_view_is_the_memory(device, kind):
    with UnifiedBuffer.allocate(device, 100, kind) as buffer:
        view = buffer.as_memoryview()
        assert (len(view), view.format, view.readonly) == (100, "B", False)
        view[3:5] = b"ab"
        assert contents(buffer)[2:6] == b"\0ab\0"
        del view


def test_device_memory_has_no_view(device):
    with UnifiedBuffer.allocate(device, 100, "device") as buffer:
        with pytest.raises(NotSupported):
            buffer.as_memoryview()
        assert not buffer.capabilities.host


@pytest.mark.parametrize(
    ("size", "capacity", "error"),
    [
        (0, None, InvalidArgs),
        (-1, None, InvalidArgs),
        (0, 100, InvalidArgs),
        (100, 99, InvalidArgs),
        (1 << 63, None, TooLarge),
        (1, 1 << 63, TooLarge),
    ],
)
def test_impossible_sizes_are_refused_before_the_device_is_asked(device, kind, size, capacity, error):
    with pytest.raises(error):
        UnifiedBuffer.allocate(device, size, kind, capacity_bytes=capacity)
    assert device.calls == []


def test_too_large_names_the_limit(device, kind):
    limit = DEVICE_BYTES if kind in ("device", "managed") else MAX_PROCESS_DEVICE_BYTES
    with pytest.raises(TooLarge) as caught:
        UnifiedBuffer.allocate(device, limit + 1, kind)
    assert (caught.value.requested_bytes, caught.value.limit_bytes) == (limit + 1, limit)


def test_there_is_no_other_kind(device):
    with pytest.raises(InvalidArgs):
        UnifiedBuffer.allocate(device, 1, "staged")


@pytest.mark.parametrize(("kind", "lacks"), [("managed", "managed"), ("vmm", "growable")])
def test_a_kind_that_the_device_lacks_is_not_supported(device, kind, lacks):
    setattr(device, lacks, False)
    with pytest.raises(NotSupported):
        UnifiedBuffer.allocate(device, 1, kind)
    assert device.calls == []


def test_device_memory_does_not_grow(device):
    with pytest.raises(NotSupported):
        UnifiedBuffer.allocate(device, 1, "device", capacity_bytes=2)
    with UnifiedBuffer.allocate(device, 1, "device") as buffer:
        with pytest.raises(NotSupported):
            buffer.try_grow_in_place(2)
        assert not buffer.capabilities.grows


@given(st.sampled_from(GROWING_KINDS), st.integers(1, ROOM), st.lists(st.integers(0, ROOM + 1), max_size=6))
@pytest.mark.rule("4-memory")
def test_growing_keeps_data_and_address_and_shows_zeros(kind, size, steps):
    device = FakeMemory()
    account = Accounts(MemoryLedger()).register("a", 1 << 20, 1 << 20)
    with UnifiedBuffer.allocate(device, size, kind, capacity_bytes=ROOM, account=account) as buffer:
        address, model = buffer.address, b""
        for wanted in steps:
            model = model.ljust(len(buffer), b"\xee")
            dirty(buffer)
            buffer.write(model)
            if wanted > ROOM:
                with pytest.raises(TooLarge):
                    buffer.try_grow_in_place(wanted)
            elif wanted < len(buffer):
                with pytest.raises(InvalidArgs):
                    buffer.try_grow_in_place(wanted)
            else:
                buffer.try_grow_in_place(wanted)
                assert len(buffer) == wanted
            assert buffer.address == address
            model = model.ljust(len(buffer), b"\0")
            assert contents(buffer) == model
            assert buffer.supports_grow_in_place is (len(buffer) < ROOM)
            check_regions(device, buffer)
    assert not account.charged
    assert device.broken == []
    assert device.empty()


def test_managed_memory_is_cleared_as_far_as_it_is_seen_and_no_byte_further(device, account):
    with UnifiedBuffer.allocate(device, 100, "managed", capacity_bytes=ROOM, account=account) as buffer:
        for size in (100, 101, PAGE, PAGE + 1, 3 * PAGE, ROOM):
            buffer.try_grow_in_place(size)
            assert ctypes.string_at(buffer.address, ROOM) == bytes(size) + bytes([DIRT]) * (ROOM - size)
        assert account.statistics().device_bytes == ROOM, "the capacity is charged, from the start"
        cleared = [call[1] for call in device.calls if call[0] == "clear_managed"]
        assert cleared == [1, PAGE - 101, 1, 2 * PAGE - 1, ROOM - 3 * PAGE]


def test_managed_memory_that_cannot_be_cleared_does_not_grow(device, account):
    with UnifiedBuffer.allocate(device, 100, "managed", capacity_bytes=ROOM, account=account) as buffer:
        device.failures["clear_managed"] = DeviceLost("gone")
        with pytest.raises(DeviceLost):
            buffer.try_grow_in_place(PAGE)
        assert len(buffer) == 100
        buffer.try_grow_in_place(PAGE)
        assert contents(buffer) == bytes(PAGE)


@pytest.mark.parametrize("kind", ["pinned", "vmm"])
def test_growing_within_what_is_held_calls_no_device(device, kind):
    with UnifiedBuffer.allocate(device, 1, kind, capacity_bytes=ROOM) as buffer:
        before = len(device.calls)
        buffer.try_grow_in_place(PAGE)
        assert len(device.calls) == before
        buffer.try_grow_in_place(ROOM)
        assert len(device.calls) == before + 1


@pytest.mark.parametrize("kind", ["pinned", "vmm"])
@pytest.mark.parametrize("error", [QuotaExceeded("full"), LaunchRefused("no"), DeviceLost("gone")])
def test_growth_that_fails_has_changed_nothing(device, account, kind, error):
    with UnifiedBuffer.allocate(device, 100, kind, capacity_bytes=ROOM, account=account) as buffer:
        buffer.write(b"x" * 100)
        before = account.statistics()
        device.failures[OPENING[kind]] = error
        with pytest.raises(type(error)):
            buffer.try_grow_in_place(ROOM)
        assert len(buffer) == 100
        assert contents(buffer) == b"x" * 100
        assert account.statistics().pinned_bytes == before.pinned_bytes
        buffer.try_grow_in_place(ROOM)
        assert contents(buffer) == b"x" * 100 + bytes(ROOM - 100)


@pytest.mark.parametrize(
    ("kind", "charged", "pinned"),
    [
        ("device", 1000, 0),
        ("managed", ROOM, 0),
        ("pinned", 0, PAGE),
        ("vmm", 0, GRANULE_BYTES),
    ],
)
def test_held_memory_is_charged(device, account, kind, charged, pinned):
    capacity = None if kind == "device" else ROOM
    with UnifiedBuffer.allocate(device, 1000, kind, capacity_bytes=capacity, account=account) as buffer:
        statistics = account.statistics()
        assert (statistics.device_bytes, statistics.pinned_bytes) == (charged, pinned)
        if capacity:
            buffer.try_grow_in_place(ROOM)
            statistics = account.statistics()
            assert (statistics.device_bytes, statistics.pinned_bytes) == ((charged, 0) if charged else (0, ROOM))


def test_over_the_account_the_device_is_not_asked(device, account, kind):
    with pytest.raises(QuotaExceeded):
        UnifiedBuffer.allocate(device, (1 << 20) + 1, kind, account=account)
    assert device.calls == []
    assert account.statistics().refusals == 1


@pytest.mark.parametrize("kind", ["pinned", "vmm"])
def test_growing_over_the_account_changes_nothing(device, account, kind):
    with (
        account.reserve_pinned((1 << 20) - GRANULE_BYTES),
        UnifiedBuffer.allocate(device, PAGE, kind, capacity_bytes=ROOM, account=account) as buffer,
    ):
        with pytest.raises(QuotaExceeded):
            buffer.try_grow_in_place(ROOM)
        assert len(buffer) == PAGE


@pytest.mark.parametrize("error", [QuotaExceeded("full"), LaunchRefused("no"), DeviceLost("gone"), ValueError("bug")])
def test_a_buffer_that_cannot_be_made_leaves_nothing(device, account, kind, error):
    device.failures[OPENING[kind]] = error
    with pytest.raises(type(error)):
        UnifiedBuffer.allocate(device, 100, kind, account=account)


def test_host_pages_that_are_not_there_are_over_a_quota(device, monkeypatch):
    monkeypatch.setattr(pages.mmap, "mmap", lambda *_, **__: (_ for _ in ()).throw(OSError(12, "no memory")))
    with pytest.raises(QuotaExceeded):
        UnifiedBuffer.allocate(device, 100, "pinned")


def test_hints_reach_managed_memory(device):
    with UnifiedBuffer.allocate(device, 100, "managed", capacity_bytes=200) as buffer:
        assert buffer.capabilities.hints
        stream = device.open_stream()
        assert all(buffer.advise(advice) for advice in Advice)
        assert buffer.prefetch_to_device(stream)
        assert buffer.prefetch_to_host(stream)
        hints = [call for call in device.calls if call[0] in ("advise", "prefetch")]
        assert hints[:-2] == [("advise", 100, advice) for advice in Advice]
        assert hints[-2:] == [("prefetch", 100, stream, False), ("prefetch", 100, stream, True)]
        device.close_stream(stream)


def test_hints_do_nothing_elsewhere_and_return_false(device, kind):
    if kind == "managed":
        device.info = replace(device.info, concurrent_managed_access=False)
    with UnifiedBuffer.allocate(device, 100, kind) as buffer:
        assert not buffer.capabilities.hints
        assert not any(buffer.advise(advice) for advice in Advice)
        assert not buffer.prefetch_to_device(object())
        assert not buffer.prefetch_to_host(object())
        assert not any(call[0] in ("advise", "prefetch") for call in device.calls)


def test_a_closed_buffer_is_empty_and_ended(device, kind):
    buffer = UnifiedBuffer.allocate(device, 100, kind)
    buffer.write(b"x")
    for _ in range(2):
        buffer.close()
    assert buffer.is_empty
    assert len(buffer) == buffer.capacity == 0
    for use in (
        lambda: buffer.address,
        lambda: buffer.region,
        lambda: buffer.write(b""),
        lambda: buffer.read(bytearray()),
        lambda: buffer.clear(0, 0),
        buffer.as_memoryview,
        lambda: buffer.try_grow_in_place(100),
        lambda: buffer.advise(Advice.READ_MOSTLY),
        lambda: buffer.prefetch_to_host(object()),
    ):
        with pytest.raises(InternalError):
            use()


@pytest.mark.rule("3-shared")
def test_a_buffer_that_a_stream_may_reach_is_not_closed(device, account, kind):
    drained = []
    buffer = UnifiedBuffer.allocate(device, 100, kind, account=account, drained=lambda: bool(drained))
    with pytest.raises(InternalError, match="stream"):
        buffer.close()
    buffer.write(b"still there")
    drained.append(True)
    buffer.close()


@pytest.mark.parametrize("kind", HOST_KINDS)
def test_a_buffer_of_which_there_is_a_view_is_not_closed(device, kind):
    buffer = UnifiedBuffer.allocate(device, 100, kind)
    part = buffer.as_memoryview()[10:20]
    del_later = memoryview(part).cast("b")
    del part
    with pytest.raises(InternalError, match="view"):
        buffer.close()
    del_later[0] = 1
    del del_later
    buffer.close()


def test_memory_that_the_device_does_not_release_stays_charged(device, account, kind):
    buffer = UnifiedBuffer.allocate(device, 100, kind, account=account)
    device.failures[CLOSING[kind]] = DeviceLost("gone")
    with pytest.raises(DeviceLost):
        buffer.close()
    assert account.charged
    assert not device.empty()
    with pytest.raises(InternalError):
        buffer.write(b"x")
    buffer.close()


@pytest.mark.parametrize("failing", [1, 2, 3])
def test_parts_that_were_released_are_not_released_twice(device, account, failing, monkeypatch):
    buffer = UnifiedBuffer.allocate(device, 1, "pinned", capacity_bytes=ROOM, account=account)
    for size in (2 * PAGE, 3 * PAGE):
        buffer.try_grow_in_place(size)
    unregister, calls = device.unregister, []

    def fail_once(address):
        calls.append(address)
        if len(calls) == failing:
            raise DeviceLost("gone")
        unregister(address)

    device.unregister = fail_once
    with pytest.raises(DeviceLost):
        buffer.close()
    buffer.close()
    assert len(calls) == 4


@pytest.mark.rule("4-memory")
def test_host_memory_is_zeroed_before_it_is_given_back(device, monkeypatch):
    seen = []
    monkeypatch.setattr(
        pages,
        "give_back",
        lambda address, original=pages.give_back: (seen.append(pages._live[address][:]), original(address)),
    )
    for kind in ("pinned", "vmm"):
        with UnifiedBuffer.allocate(device, PAGE + 1, kind, capacity_bytes=ROOM) as buffer:
            buffer.try_grow_in_place(GRANULE_BYTES + 1)
            dirty(buffer)
    assert len(seen) == 1
    assert not any(map(any, seen + device.seen))
    assert sum(map(len, device.seen)) == 2 * GRANULE_BYTES


def test_a_forgotten_buffer_keeps_its_pages(device):
    buffer = UnifiedBuffer.allocate(device, 100, "pinned")
    address, backing = buffer.address, buffer._backing
    buffer.write(b"abc")
    del buffer
    gc.collect()
    assert ctypes.string_at(address, 3) == b"abc"
    backing.release()


def test_a_buffer_is_shown_without_its_address(device, kind):
    with UnifiedBuffer.allocate(device, 100, kind) as buffer, UnifiedBuffer.allocate(device, 100, kind) as other:
        shown = repr(buffer)
        for spelled in (str(buffer.address), f"{buffer.address:x}", f"{buffer.address - FakeMemory.SHIFT:x}"):
            assert spelled not in shown
        assert kind in shown
        assert "100" in shown
        assert shown == repr(buffer) != repr(other)
    assert "closed" in repr(buffer)
