"""Which window a guarded session has, where what lies in it, and what is kept of it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from fakes.emulation import kernel, store_result
from tensorwasm.errors import QuotaExceeded
from tensorwasm.gpu.device.address_windows import GRANULE_BYTES, MAX_WINDOW_BYTES
from tensorwasm.gpu.device.limits import GIB, SessionLimits
from tensorwasm.gpu.emulator.device import EmulatorDevice
from tensorwasm.gpu.limits.accounts import Accounts, MemoryLedger
from tensorwasm.gpu.limits.gate import Gate
from tensorwasm.gpu.resources.idle_windows import IdleWindows
from tensorwasm.gpu.resources.session_windows import SCRATCH_BYTES
from tensorwasm.gpu.resources.window_heap import HOST_BYTES, window_bytes
from tensorwasm.gpu.shared_device import SharedDevice
from tensorwasm.values import MIB, NEVER

VARIABLE = kernel(
    "ld.global.u32 %r1, [calls]; st.global.u32 [calls+4194304], %r1;\n" + store_result(),
    before=".global .u32 calls[1048577];",
).encode()
LIMITS = SessionLimits(device_bytes=64 * GIB, allocation_bytes=64 * GIB)


@pytest.fixture
def device():
    device = EmulatorDevice(memory_bytes=512 * MIB)
    if not device.windows.available:
        pytest.skip("this system has no windows of addresses")
    yield device
    device.close()


@pytest.fixture
def accounts():
    accounts = Accounts(MemoryLedger())
    accounts.register("ann", 64 * MIB)
    accounts.register("bob", 6 * GIB)
    accounts.register("cid", 6 * GIB)
    return accounts


@pytest.fixture
def shared(device, accounts):
    with SharedDevice(device, accounts, Gate(8), guarded=True, limits=LIMITS) as shared:
        yield shared
    assert device.statistics().windows == 0
    assert not any(account.device_bytes or account.pinned_bytes for account in accounts.statistics())


@pytest.mark.parametrize(
    ("cap", "window"),
    [
        *((0, 4), (1, 4), (4 * GIB, 4), (4 * GIB + 1, 8), (5 * GIB - 16 * MIB, 8), (5 * GIB, 16), (12 * GIB, 16)),
        *((13 * GIB, 32), (28 * GIB, 32), (60 * GIB, 64), (61 * GIB, 128), (80 * GIB, 128), (1 << 63, 128)),
    ],
)
def test_the_window_is_the_smallest_that_holds_the_cap(cap, window):
    assert window_bytes(cap) == window * GIB


def test_by_default_windows_are_narrow():
    assert window_bytes(min(SessionLimits().device_bytes, Accounts().account("default").max_bytes)) == 4 * GIB


@pytest.mark.parametrize("cap", [4 * GIB + 1, 5 * GIB, 20 * GIB, 60 * GIB, MAX_WINDOW_BYTES - 4 * GIB])
def test_a_wide_window_has_room_for_the_cap_beside_memory_of_the_host(shared, accounts, cap):
    accounts.register("bob", cap)
    with shared.open_session("bob", replace(LIMITS, device_bytes=cap)) as session:
        heap = session._core.window.heap
        host = heap.reserve(HOST_BYTES)
        whole = cap // GRANULE_BYTES * GRANULE_BYTES
        heap.unreserve(heap.reserve(whole), whole)
        with pytest.raises(QuotaExceeded, match=f"of the {window_bytes(cap)} that this session has"):
            heap.reserve(window_bytes(cap))
        heap.unreserve(host, HOST_BYTES)


def test_idle_windows_are_used_again_by_their_size(shared, device):
    places = {}
    for _ in range(2):
        for tenant in ("ann", "bob", "cid"):
            with shared.open_session(tenant) as session:
                places.setdefault(session._core.window.size_bytes, set()).add(session._core.window.address)
    assert {size: len(found) for size, found in places.items()} == {4 * GIB: 1, 16 * GIB: 1}
    assert shared._resources.windows.idle == device.statistics().windows == 2
    assert shared._resources.windows.trim()
    assert shared._resources.windows.trim()
    assert device.statistics().windows == 0


def test_a_pooled_session_serves_under_a_new_cap_only_if_its_window_has_the_size_for_it(shared, accounts):
    session = shared.open_session("ann")
    for cap_bytes, stands in ((32 * MIB, True), (64 * MIB, True), (6 * GIB, False), (64 * MIB, True)):
        assert session.renew()
        session.park()
        accounts.register("ann", cap_bytes)
        assert session.resume() == stands
        assert session._core.cap_stands() == stands, "however often it is asked"
    session.close()


def test_idle_windows_stay_within_a_share_of_the_devices_memory(shared, device):
    most_bytes = 16 * (SCRATCH_BYTES + 2 * GRANULE_BYTES)
    for tenant in ("bob", "ann"):
        sessions = [shared.open_session(tenant) for _ in range(4)]
        for session in sessions:
            session.close()
        assert 0 < device.statistics().window_bytes <= most_bytes
    assert shared._resources.windows.idle == device.statistics().windows


@dataclass
class Window:
    """A window that is idle."""

    tenant: str
    size_bytes: int
    idle_bytes: int = 10


def test_an_idle_window_is_chosen_by_size_then_tenant_then_age():
    idle, windows = IdleWindows(55), [Window(tenant, size) for size in (4, 8) for tenant in ("ann", "bob", "ann")]
    for at, window in enumerate(windows):
        assert idle.has_room(window) == (at < 5)
        idle.add(window)
    assert idle.choose("ann", 16) is None
    assert idle.choose("ann", 4) is windows[2]
    assert idle.choose("cid", 4) is windows[0]
    assert [idle.take_any() for _ in range(2)] == windows[3:5]
    assert idle.has_room(windows[0])
    assert idle.take_all() == [windows[1], windows[5]]
    assert len(idle) == 0
    assert idle.take_any() is None


def test_variables_of_modules_have_a_place_in_the_first_4_gib(shared):
    with shared.open_session("bob") as session:
        window = session._core.window
        rest = [window.heap.reserve(size) for size in (8 * GIB, 4 * GIB, 2 * GIB)]
        kernel_id = session.kernels.load(VARIABLE, "k", NEVER)
        data = session._core.table.kernels[kernel_id].data
        assert 64 * MIB <= data.address - window.address < GIB - data.size_bytes
        session.kernels.unload(kernel_id, NEVER)
        for size, at in zip((8 * GIB, 4 * GIB, 2 * GIB), rest, strict=True):
            window.heap.unreserve(at, size)
        buffer = session._core.table.buffers[session.buffers.allocate(64)]
        assert buffer.address - window.address >= GIB
        assert window.heap.held_bytes % GRANULE_BYTES == 0
