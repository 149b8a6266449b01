"""Guarded sessions on the fake driver: what they ask of it, and that nothing is left."""

from __future__ import annotations

import ctypes
import struct
import time

import pytest

from fakes.emulation import kernel, store_result
from tensorwasm.errors import DeviceUnavailable, InvokeTimeout
from tensorwasm.gpu.cuda import clock
from tensorwasm.gpu.cuda.device import CudaDevice
from tensorwasm.gpu.device.arguments import BufferOffset
from tensorwasm.gpu.device.limits import GIB, GUARDED_UNLOOKED_NS, SessionLimits
from tensorwasm.gpu.limits.accounts import Accounts, MemoryLedger
from tensorwasm.gpu.limits.gate import Gate
from tensorwasm.gpu.native.layout import CLEARING_REFUSED, CLEARING_STARTED, LAUNCH_WORDS, SessionLayout
from tensorwasm.gpu.shared_device import SharedDevice
from tensorwasm.ptx.guarded import FLAG_BYTES, FLAG_STOPPED, LAUNCH_BYTES, STATUS_REQUEST, WIDE_LAUNCH_BYTES
from tensorwasm.values import MIB, NEVER, Deadline, LaunchConfig

ONE = LaunchConfig((1, 1, 1), (1, 1, 1))
STORE = kernel(store_result("%r0")).encode()
COUNTER = (
    kernel(store_result("%r0"), before=".global .u32 calls[300000];")
    .encode()
    .replace(b"mov.u32 %r0, %tid.x;", b"ld.global.u32 %r0, [calls];")
)


@pytest.fixture
def shared(device, monkeypatch):
    monkeypatch.setattr(CudaDevice, "timer_offset_ns", 0)
    accounts = Accounts(MemoryLedger())
    accounts.register("ann", 64 * MIB, 64 * MIB)
    accounts.register("bob", 64 * MIB, 64 * MIB)
    accounts.register("cid", 24 * GIB, 64 * MIB)
    before = device.statistics()
    with SharedDevice(device, accounts, Gate(4), guarded=True) as shared:
        yield shared
    after = device.statistics()
    assert (after.windows, after.window_bytes, after.registrations) == (0, 0, 0)
    assert (after.allocations, after.modules, after.streams) == (before.allocations, before.modules, before.streams)
    assert after.release_failures == 0


def test_sessions_take_windows_in_turn_and_leave_nothing(shared, device, fake):
    for tenant in ("ann", "ann", "bob"):
        session = shared.open_session(tenant)
        memory = session.open_memory(65536, 8 * MIB)
        memory.try_grow_in_place(3 * MIB)
        ctypes.memset(memory.address, 7, 3 * MIB)
        handles = [session.buffers.allocate(size_bytes) for size_bytes in (64, MIB, 5 * MIB)]
        session.buffers.write(handles[1], b"some bytes", NEVER)
        for text in (STORE, COUNTER):
            kernel_id = session.kernels.load(text, "k", NEVER)
            arguments = [BufferOffset(handles[0], 0)]
            session.kernels.launch(kernel_id, ONE, lambda given=arguments: given, None, Deadline.after(20))
        session.buffers.free(handles[2], NEVER)
        session.close()
        assert not session.abandoned
        memory.close()
    assert device.statistics().windows == 1


def test_a_launch_brings_what_the_guard_needs(shared, fake):
    seen = []
    real = fake.cuLaunchKernel

    def launch(function, *rest):
        _, launched_with = (ctypes.c_uint64 * 2).from_address(rest[-2])
        seen.append(struct.unpack("<IIQQQQIIII", ctypes.string_at(launched_with, LAUNCH_BYTES)))
        return real(function, *rest)

    fake.cuLaunchKernel = launch
    with shared.open_session("ann") as session:
        own, kernel_id = session.buffers.allocate(64), session.kernels.load(STORE, "k", NEVER)
        began_ns, deadline = time.monotonic_ns(), Deadline.after(20)
        session.kernels.launch(kernel_id, ONE, lambda: [BufferOffset(own, 0)], None, deadline)
        window = session._core.window
        assert window.address % (4 << 30) == 0
        words = window.stop.flag_at, window.stop.status_at
        ((*before, look_ns, _, _, _, _),) = seen
        assert before == [window.address >> 32, 0, deadline.at_ns, *words]
        assert began_ns + GUARDED_UNLOOKED_NS <= look_ns <= time.monotonic_ns() + GUARDED_UNLOOKED_NS


@pytest.mark.parametrize("tenant", ["ann", "cid"])
def test_a_launch_of_a_wide_kernel_says_how_large_the_window_is(shared, fake, tenant):
    seen, real = [], fake.cuLaunchKernel

    def launch(function, *rest):
        _, launched_with = (ctypes.c_uint64 * 2).from_address(rest[-2])
        seen.append(ctypes.string_at(launched_with, LAUNCH_BYTES if tenant == "ann" else WIDE_LAUNCH_BYTES))
        return real(function, *rest)

    fake.cuLaunchKernel = launch
    limits = SessionLimits(device_bytes=24 * GIB)
    with shared.open_session(tenant, limits) as session:
        own, kernel_id = session.buffers.allocate(64), session.kernels.load(STORE, "k", NEVER)
        session.kernels.launch(kernel_id, ONE, lambda: [BufferOffset(own, 0)], None, Deadline.after(20))
        window = session._core.window
        assert window.size_bytes == (4 * GIB if tenant == "ann" else 32 * GIB)
        assert int.from_bytes(seen[0][:4], "little") == window.address >> 32
        assert seen[0][LAUNCH_BYTES:] == (b"" if tenant == "ann" else struct.pack("<II", 7, 0))


def test_compiled_code_clears_nothing_by_itself_once_python_has_mapped_more_for_an_earlier_guest(shared, fake):
    layout = SessionLayout()
    with shared.open_session("ann", memory_kind="staged", layout=layout) as session:
        window = session._core.window
        assert [(row.address, row.size_bytes) for row in layout.clear if row.size_bytes] == window.clear_ranges != []
        session.open_memory(65536, 8 * MIB).close()  # it stays mapped for the next guest; nothing is launched
        assert session.renew()
        assert [row.size_bytes for row in layout.clear if row.size_bytes] == window.clear_ranges == []
        layout.launched += 1  # a guest of compiled code
        fake.cleared.clear()
        assert session.renew()
        assert fake.cleared


@pytest.mark.parametrize("used", [False, True])
def test_what_compiled_code_has_cleared_is_not_cleared_again(shared, fake, used):
    layout = SessionLayout()
    with shared.open_session("ann", memory_kind="staged", layout=layout) as session:
        if used:
            session.kernels.load(STORE, "k", NEVER)
        layout.launched += 1
        layout.clearing = CLEARING_STARTED
        fake.cleared.clear()
        assert session.renew()
        assert (fake.cleared, layout.clearing) == ([], CLEARING_STARTED)


@pytest.mark.parametrize("clearing", [0, CLEARING_REFUSED])
def test_what_compiled_code_has_not_cleared_is_cleared(shared, fake, clearing):
    layout = SessionLayout()
    with shared.open_session("ann", memory_kind="staged", layout=layout) as session:
        session.kernels.load(STORE, "k", NEVER)
        assert session.renew()
        layout.launched += 1  # a guest of compiled code
        layout.clearing = clearing
        fake.cleared.clear()
        assert session.renew()
        assert set(session._core.window.clear_ranges) <= set(fake.cleared) != set()


def test_memory_that_python_maps_during_a_guest_is_cleared_whatever_compiled_code_has_cleared(shared, fake):
    layout = SessionLayout()
    with shared.open_session("ann", memory_kind="staged", layout=layout) as session:
        assert any(row.size_bytes for row in layout.clear)
        kernel_id = session.kernels.load(COUNTER.replace(b"300000", b"64"), "k", NEVER)  # it stays mapped
        variables = session._core.table.kernels[kernel_id].data
        layout.launched += 1
        layout.clearing = CLEARING_STARTED  # of what was there when the guest began
        fake.cleared.clear()
        assert session.renew()
        assert any(at <= variables.address and variables.end <= at + size for at, size in fake.cleared)


def test_a_session_with_a_kernel_that_has_stopped_serves_no_other_guest(shared):
    layout = SessionLayout()
    with shared.open_session("ann", memory_kind="staged", layout=layout) as session:
        layout.launched += 1  # by compiled code alone
        layout.clearing = CLEARING_STARTED
        ctypes.c_uint32.from_address(session._core.window.stop.status_at).value = 1
        assert not session.renew()


def test_clearing_that_compiled_code_has_started_is_waited_for(shared, device, monkeypatch):
    def late(*_):
        raise InvokeTimeout("the deadline passed")

    layout = SessionLayout()
    with shared.open_session("ann", memory_kind="staged", layout=layout) as session:
        session.kernels.load(STORE, "k", NEVER)
        layout.clearing = CLEARING_STARTED
        monkeypatch.setattr(device, "synchronize", late)
        assert not session.await_clearing()
        assert layout.clearing == CLEARING_STARTED
        monkeypatch.undo()
        assert session.await_clearing()
        assert layout.clearing == 0


def test_a_pooled_session_learns_what_the_devices_clock_is_now(shared, monkeypatch):
    layout = SessionLayout()
    with shared.open_session("ann", memory_kind="staged", layout=layout) as session:
        assert session.renew()
        session.park()
        monkeypatch.setattr(CudaDevice, "timer_offset_ns", 12345)
        assert session.resume()
        assert layout.timer_offset == 12345


def test_a_closed_session_stops_no_kernels_of_the_next_that_has_its_window(shared):
    session = shared.open_session("ann")
    window = session._core.window
    session.close()
    with shared.open_session("ann") as other:
        assert other._core.window is window
        session.stop_kernels()
        assert not window.stop.stopping


def test_a_session_stops_its_kernels_without_a_call_of_the_driver(shared, fake):
    with shared.open_session("ann") as session:
        word, calls = session._core.window.stop, fake.calls.total()
        word.stopping = True
        assert fake.calls.total() == calls
        assert ctypes.c_uint32.from_address(word.status_at + STATUS_REQUEST).value == 1
        ctypes.c_uint32.from_address(word.status_at).value = 1
        with pytest.raises(InvokeTimeout, match="stopped at its deadline"):
            session.buffers.allocate(64)
    with shared.open_session("bob") as other:
        assert (other._core.window.stop.status, other._core.window.stop.stopping) == (0, False)


def test_the_words_of_a_session_whose_kernel_trapped_are_cleared_for_the_next(shared):
    with shared.open_session("ann") as session:
        word, device = session._core.window.stop, session._core.device
        device.write(word.flag_at, struct.pack("<QII", FLAG_STOPPED, 2, 0), None, NEVER)
        ctypes.c_uint32.from_address(word.status_at).value = 2
    found = bytearray(FLAG_BYTES)
    device.read(word.flag_at, memoryview(found), None, NEVER)
    assert (found, word.status, word.stopping) == (bytes(FLAG_BYTES), 0, False)


def test_compiled_code_has_room_for_the_launch_parameter():
    assert LAUNCH_WORDS * 8 == WIDE_LAUNCH_BYTES


def test_the_clock_is_compared_by_a_kernel_that_writes_it(device, fake, monkeypatch):
    real, shift_ns = fake.cuLaunchKernel, 123_456_789_000

    def launch(function, *rest):
        word = ctypes.c_uint64.from_address(device._clock._word)
        word.value = clock.time.monotonic_ns() + shift_ns
        return real(function, *rest)

    fake.cuLaunchKernel = launch
    assert abs(device.timer_offset_ns - shift_ns) < 50_000_000
    offset_ns = device.timer_offset_ns
    fake.cuLaunchKernel = real  # the GPU is full: the last answer stands
    monkeypatch.setattr(device._clock, "_until_ns", 0)
    assert device.timer_offset_ns == offset_ns


def test_a_clock_that_never_answers_is_no_clock(device, monkeypatch):
    monkeypatch.setattr(clock, "_FIRST_LIMIT_NS", 1000)
    with pytest.raises(DeviceUnavailable, match="too busy"):
        _ = device.timer_offset_ns
