"""Windows of guarded sessions from one guest to the next, where the device is late or refuses."""

from __future__ import annotations

import ctypes
import mmap
import struct

import pytest

from fakes.emulation import kernel
from tensorwasm.errors import CapacityExhausted, DeviceLost, InternalError, InvokeTimeout, QuotaExceeded
from tensorwasm.gpu.device.arguments import BufferOffset, HostWindow
from tensorwasm.gpu.emulator.device import EmulatorDevice
from tensorwasm.gpu.limits.accounts import Accounts, MemoryLedger
from tensorwasm.gpu.limits.gate import Gate
from tensorwasm.gpu.native.layout import SessionLayout
from tensorwasm.gpu.shared_device import SharedDevice
from tensorwasm.ptx.guarded import FLAG_BYTES
from tensorwasm.values import MIB, NEVER, Deadline, LaunchConfig, Region

ONE = LaunchConfig((1, 1, 1), (1, 1, 1))
SECRET = 0x5EC2E75EC2E7
WORD_BYTES = 8
POKE = kernel(
    f"ld.param.u64 %rd1, [p0]; ld.global.u64 %rd2, [%rd1+8]; mov.u64 %rd3, {SECRET}; st.global.u64 [%rd2], %rd3;"
).encode()
PEEK = kernel(
    "ld.param.u64 %rd1, [p0]; ld.global.u64 %rd2, [%rd1+8]; ld.global.u64 %rd3, [%rd2]; st.global.u64 [%rd1], %rd3;"
).encode()
"""They write to and read from the address in the second word of their buffer."""
BEYOND = 3_800_000
STRAY = kernel(f"ld.param.u64 %rd1, [p0]; mov.u64 %rd2, {SECRET}; st.global.u64 [%rd1+{BEYOND}], %rd2;").encode()
LOOK = kernel(f"ld.param.u64 %rd1, [p0]; ld.global.u64 %rd2, [%rd1+{BEYOND}]; st.global.u64 [%rd1], %rd2;").encode()
ADD = kernel(
    "ld.param.u64 %rd1, [p0]; ld.global.u64 %rd2, [%rd1]; add.u64 %rd2, %rd2, 1; st.global.u64 [%rd1], %rd2;"
).encode()
ENDLESS = kernel("ld.param.u64 %rd1, [p0];\nAGAIN: st.volatile.global.u32 [%rd1], %r0; bra AGAIN;").encode()
NAMED = kernel(
    "ld.param.u64 %rd1, [p0]; mov.u64 %rd2, name; st.global.u64 [%rd1], %rd2;",
    before=f".global .align 8 .u64 name[64] = {{{', '.join([str(SECRET)] * 64)}}};",
).encode()
TENANTS = ("ann", "bob", "cid")
LIMIT_S = 20.0


@pytest.fixture
def device():
    device = EmulatorDevice(memory_bytes=256 * MIB)
    if not device.windows.available:
        pytest.skip("this system has no windows of addresses")
    yield device
    device.close()
    assert device.statistics().windows == 0


@pytest.fixture
def accounts():
    accounts = Accounts(MemoryLedger())
    for tenant in TENANTS:
        accounts.register(tenant, 64 * MIB, 64 * MIB)
    return accounts


@pytest.fixture
def shared(device, accounts):
    with SharedDevice(device, accounts, Gate(8), guarded=True) as shared:
        yield shared
    assert [device.statistics().registrations, device.statistics().window_bytes] == [0, 0]
    for tenant in TENANTS:
        found = accounts.account(tenant).statistics()
        assert (found.device_bytes, found.pinned_bytes) == (0, 0)


def run(session, text, address):
    """Run a kernel on a new buffer that holds an address in its second word; return its first word afterwards."""
    own, into = session.buffers.allocate(64), bytearray(WORD_BYTES)
    session.buffers.write(own, struct.pack("<QQ", 0, address), NEVER)
    kernel_id = session.kernels.load(text, "k", NEVER)
    session.kernels.launch(kernel_id, ONE, lambda: [BufferOffset(own, 0)], None, NEVER)
    session.buffers.read(own, memoryview(into), NEVER)
    return int.from_bytes(into, "little")


class Memory:
    """A guest's linear memory, as wasmtime has it."""

    def __init__(self, size_bytes=8 * MIB):
        self.pages = mmap.mmap(-1, size_bytes)
        self.region = Region(ctypes.addressof(ctypes.c_char.from_buffer(self.pages)), size_bytes, host=True)

    def launch(self, session, text, value=0, size_bytes=64):
        """Launch a kernel with a window on the memory, whose first word is a value; return that word afterwards."""
        self.pages[:WORD_BYTES] = value.to_bytes(WORD_BYTES, "little")
        kernel_id = session.kernels.load(text, "k", NEVER)
        window = HostWindow(self.region.address, size_bytes)
        session.kernels.launch(kernel_id, ONE, lambda: [window], self.region, NEVER)
        return int.from_bytes(self.pages[:WORD_BYTES], "little")


def fail_once(monkeypatch, owner, name, error, when=lambda *_: True):
    """Have a method of a device raise once, the first time that its arguments are so."""
    real, left = getattr(owner, name), [error]

    def method(*args, **named):
        if left and when(*args):
            raise left.pop()
        return real(*args, **named)

    monkeypatch.setattr(owner, name, method)


def test_linear_memory_that_is_kept_shows_nothing_of_guests_without_one(shared):
    session = shared.open_session("ann")
    memory = session.open_memory(65536, 4 * MIB)
    place = memory.address + memory.displacement + 256
    session.close()
    memory.close()
    for text in (POKE, PEEK):
        with shared.open_session("ann", memory_kind="staged") as session:
            assert run(session, text, place) == 0
    session = shared.open_session("ann")
    memory = session.open_memory(65536, 4 * MIB)
    assert ctypes.c_uint64.from_address(memory.address + 256).value == 0
    session.close()
    memory.close()


def test_a_slot_that_has_grown_shows_the_next_guest_of_a_pooled_session_nothing(shared, accounts):
    session = shared.open_session("ann")
    Memory().launch(session, STRAY, size_bytes=3 * MIB)
    assert session.renew()
    session.park()
    assert accounts.account("ann").statistics().pinned_bytes == 0
    assert session.resume()
    assert Memory().launch(session, LOOK) == 0
    session.close()


def test_a_clearing_that_is_late_reaches_no_other_session(shared, device, monkeypatch):
    session = shared.open_session("ann", memory_kind="staged")
    Memory().launch(session, ADD)
    assert session.renew()
    session.park()
    own, late, real = session._clearing, [True], device.synchronize

    def synchronize(stream, deadline):
        if late and stream is own:
            raise InvokeTimeout("the deadline passed")
        real(stream, deadline)

    monkeypatch.setattr(device, "synchronize", synchronize)
    assert not session.resume()
    session.close()
    assert session.abandoned
    window = session._core.window
    with shared.open_session("bob", memory_kind="staged") as other:
        assert other._core.window is not window
        assert Memory().launch(other, ADD, 41) == 42
    # For the test's own end: nothing gives such a window back.
    late.clear()
    real(own, NEVER)
    session._core.work.release(healthy=False)
    assert window.give_back() == []


def test_memory_that_the_device_keeps_goes_to_no_other_tenant(shared, device, monkeypatch):
    session = shared.open_session("ann")
    session.buffers.allocate(64)
    large = session.buffers.allocate(3 * MIB)
    place = session._core.table.buffers[large].address + 1024
    fail_once(monkeypatch, device.windows, "unmap", CapacityExhausted("the GPU is too busy"))
    session.buffers.free(large, NEVER)
    session.close()
    with shared.open_session("bob") as other:
        run(other, POKE, place)
    with shared.open_session("cid") as third:
        assert run(third, PEEK, place) == 0
        for _ in range(5):
            third.buffers.allocate(2 * MIB)
    assert shared._resources.windows._mapped["ann"]._bytes == 0


def test_a_stop_word_that_cannot_be_cleared_is_nobodys_again(shared, device, monkeypatch):
    session = shared.open_session("ann")
    own, kernel_id = session.buffers.allocate(64), session.kernels.load(ENDLESS, "k", NEVER)
    session.kernels.submit(kernel_id, ONE, lambda: [BufferOffset(own, 0)], None, Deadline.after(3600))
    session.streams.ended(0)
    flag, real = session._core.window.stop.flag_at, device.write

    def write(address, data, *rest):
        if address == flag and data == bytes(FLAG_BYTES):
            raise InvokeTimeout("the device did not come to it within a second")
        real(address, data, *rest)

    monkeypatch.setattr(device, "write", write)
    session.close()
    with shared.open_session("bob") as other:
        assert other._core.window.stop.flag_at != flag
        assert run(other, PEEK, 0) == 0
    monkeypatch.undo()
    stops = shared._resources.windows.stops
    stops._taken -= 1  # for the test's own end: such a word keeps its block until the process ends


def test_windows_that_are_cleared_late_are_used_later(shared, device, monkeypatch):
    real, busy = device.events.synchronize_event, [True]

    def late(event, deadline):
        if busy:
            raise InvokeTimeout("the deadline passed")
        return real(event, deadline)

    monkeypatch.setattr(device.events, "synchronize_event", late)
    for _ in range(4):
        with shared.open_session("ann") as session:
            session.buffers.allocate(64)
    busy.clear()
    assert shared._resources.windows.idle == device.statistics().windows > 1
    with shared.open_session("ann"):
        assert shared._resources.windows.idle == device.statistics().windows - 1


def test_a_window_that_could_neither_be_cleared_nor_closed_goes_to_nobody(shared, device, monkeypatch):
    session = shared.open_session("ann")
    place = session._core.window.address + (1 << 30)
    session.close()
    session = shared.open_session("ann")
    run(session, POKE, place)
    fail_once(monkeypatch, device.windows, "clear_scratch", CapacityExhausted("the GPU is too busy"))
    fail_once(monkeypatch, device.events, "synchronize_event", InvokeTimeout("the deadline passed"))
    session.close()
    with shared.open_session("bob") as other:
        assert run(other, PEEK, place) == 0


def test_idle_windows_and_pooled_sessions_leave_memory_to_others(shared, device):
    parked = []

    def open_all():
        while True:
            parked.append(shared.open_session("ann"))

    with pytest.raises(QuotaExceeded):
        open_all()
    assert len(parked) > 8
    for session in parked[1:]:
        assert session.renew()
        session.park()
    with shared.open_session("bob") as other:
        other.buffers.allocate(32 * MIB)
    parked[0].close()


def test_a_session_has_one_memory_and_none_once_it_is_over(shared):
    session = shared.open_session("ann")
    memory = session.open_memory(65536, 4 * MIB)
    with pytest.raises(InternalError):
        session.open_memory(65536, 4 * MIB)
    session.close()
    with pytest.raises(DeviceLost):
        session.open_memory(65536, 4 * MIB)
    memory.close()


def test_memory_that_must_not_wait_does_not_grow_while_kernels_run(shared):
    session = shared.open_session("ann")
    memory = session.open_memory(65536, 8 * MIB, waits=False)
    own, kernel_id = session.buffers.allocate(64), session.kernels.load(ENDLESS, "k", NEVER)
    session.streams.synchronize(NEVER)
    memory.try_grow_in_place(4 * MIB)
    session.kernels.submit(kernel_id, ONE, lambda: [BufferOffset(own, 0)], None, Deadline.after(3600))
    memory.try_grow_in_place(3 * MIB)
    with pytest.raises(QuotaExceeded, match="while its kernels run"):
        memory.try_grow_in_place(6 * MIB)
    session.close()
    memory.close()


@pytest.mark.parametrize("late_s", [0.05, -1.0], ids=["waited for", "late already"])
def test_kernels_of_a_late_graph_are_told_to_stop(shared, device, monkeypatch, late_s):
    session = shared.open_session("ann")
    own, kernel_id = session.buffers.allocate(64), session.kernels.load(ADD, "k", NEVER)
    session.graphs.begin(0)
    session.kernels.submit(kernel_id, ONE, lambda: [BufferOffset(own, 0)], None, NEVER, 0)
    graph = session.graphs.end(0)
    session.graphs.replay(graph, None, Deadline.after(LIMIT_S))
    session._core.work._replays_due = Deadline.after(late_s)
    window, real, told = session._core.window, device.synchronize, []

    def synchronize(stream, deadline):
        told.append(window.stop.late)
        real(stream, NEVER)
        if not told[-1]:  # as if it had gone on, since nobody told it to stop
            while not deadline.expired():
                pass
            raise InvokeTimeout("the deadline passed and the kernel is still running")

    monkeypatch.setattr(device, "synchronize", synchronize)
    session.streams.synchronize(Deadline.after(LIMIT_S))
    assert told[-1]
    assert not window.stop.late  # the graph ended all the same, and what comes later is not late
    monkeypatch.undo()
    session.close()


def test_blocks_of_a_replay_begin_no_more_once_they_are_told_to_stop(shared):
    session = shared.open_session("ann")
    own, kernel_id = session.buffers.allocate(64), session.kernels.load(ADD, "k", NEVER)
    session.graphs.begin(0)
    session.kernels.submit(kernel_id, ONE, lambda: [BufferOffset(own, 0)], None, NEVER, 0)
    graph = session.graphs.end(0)
    session.graphs.replay(graph, None, NEVER)
    session.streams.synchronize(Deadline.after(LIMIT_S))
    session._core.window.stop.stopping = True
    session.graphs.replay(graph, None, NEVER)
    with pytest.raises(InvokeTimeout, match="stopped"):
        session.streams.synchronize(Deadline.after(LIMIT_S))
    found = bytearray(8)
    shared._resources.device.read(session._core.table.buffers[own].address, memoryview(found), None)
    assert found == (1).to_bytes(8, "little")
    session.close()


def test_a_refused_memory_leaves_the_session_as_it_was(shared, accounts):
    session = shared.open_session("ann")
    with pytest.raises(QuotaExceeded):
        session.open_memory(65 * MIB, 128 * MIB)
    assert accounts.account("ann").statistics().pinned_bytes == 0
    assert run(session, PEEK, 0) == 0
    session.close()
    assert shared._resources.windows.idle == 1


def test_a_pooled_session_forgets_the_memory_of_its_last_guest(shared):
    session = shared.open_session("ann")
    memory = session.open_memory(65536, 4 * MIB)
    memory.close()
    assert session.renew()
    session.park()
    assert session.resume()
    assert Memory().launch(session, ADD, 41) == 42
    session.close()


def test_what_cannot_be_cleared_is_not_pooled(shared, device, monkeypatch):
    session = shared.open_session("ann", memory_kind="staged")
    Memory().launch(session, ADD)
    fail_once(monkeypatch, device.windows, "clear_scratch", CapacityExhausted("the GPU is too busy"))
    assert not session.renew()
    session.close()


def test_a_session_whose_slot_cannot_shrink_is_not_pooled(shared, device, monkeypatch):
    session = shared.open_session("ann", memory_kind="staged")
    Memory().launch(session, ADD, size_bytes=3 * MIB)
    fail_once(monkeypatch, device.windows, "unmap", CapacityExhausted("the GPU is too busy"))
    assert not session.renew()
    session.close()


def test_kept_memory_makes_room_for_larger_memory(shared):
    session = shared.open_session("ann")
    memory = session.open_memory(65536, 1990 * MIB)
    session.buffers.allocate(64)
    session.close()
    memory.close()
    for _ in range(2):
        session = shared.open_session("ann")
        memory = session.open_memory(65536, 2048 * MIB)
        session.close()
        memory.close()


def test_a_slot_that_cannot_shrink_stays_and_nothing_is_charged_twice(shared, device, accounts, monkeypatch):
    session, memory = shared.open_session("ann"), Memory(16 * MIB)
    assert memory.launch(session, ADD, 41, size_bytes=3 * MIB) == 42
    fail_once(monkeypatch, device.windows, "unmap", CapacityExhausted("the GPU is too busy"))
    with pytest.raises(CapacityExhausted):
        memory.launch(session, ADD, 41, size_bytes=5 * MIB)
    assert accounts.account("ann").statistics().pinned_bytes == 4 * MIB
    assert memory.launch(session, ADD, 41, size_bytes=5 * MIB) == 42
    assert accounts.account("ann").statistics().pinned_bytes == 6 * MIB
    session.close()


@pytest.mark.parametrize("name", ["stream", "timer_offset_ns"])
def test_a_session_that_cannot_be_opened_gives_its_window_back(shared, device, monkeypatch, name):
    def refuse(*_):
        raise DeviceLost("gone")

    if name == "stream":
        monkeypatch.setattr(shared._resources, "driver_at", refuse)
    else:
        monkeypatch.setattr(type(device), "timer_offset_ns", property(refuse))
    with pytest.raises(DeviceLost):
        shared.open_session("ann", layout=SessionLayout())
    monkeypatch.undo()
    assert shared._resources.windows.idle == 1


def test_variables_of_a_kernel_that_was_never_launched_show_the_next_guest_nothing(shared):
    session = shared.open_session("ann", memory_kind="staged")
    kernel_id = session.kernels.load(NAMED, "k", NEVER)
    place = session._core.table.kernels[kernel_id].data.address + 256  # past the next guest's buffer
    assert session.renew()
    session.park()
    assert session.resume()
    assert run(session, PEEK, place) == 0
    session.close()


def test_memory_of_a_guest_that_launched_nothing_shows_the_next_one_nothing(shared):
    session = shared.open_session("ann")
    memory = session.open_memory(65536, 4 * MIB)
    place = memory.address + memory.displacement + 256
    ctypes.c_uint64.from_address(memory.address + 256).value = SECRET
    memory.close()
    assert session.renew()
    session.park()
    assert session.resume()
    assert run(session, PEEK, place) == 0
    session.close()
