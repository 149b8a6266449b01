"""Sessions of one device: correct layouts, permits handed over, streams and slots reused."""

import ctypes
import mmap
import struct
import threading

import pytest

from fakes.device import FakeDevice
from strategies.kernels import FILL, NOTHING, VECTOR_ADD
from tensorwasm.errors import (
    CapacityExhausted,
    DeviceLost,
    InvalidArgs,
    InvokeTimeout,
    KernelFault,
    LaunchRefused,
    QuotaExceeded,
)
from tensorwasm.gpu.device.arguments import BufferOffset, HostWindow, Scalar
from tensorwasm.gpu.device.limits import PIN_COPY_BYTES, PIN_PRICE_BYTES, STAGE_SLOT_BYTES, STAGE_SLOTS
from tensorwasm.gpu.limits.accounts import Accounts, MemoryLedger
from tensorwasm.gpu.limits.gate import Gate
from tensorwasm.gpu.native.layout import NO_DEADLINE_NS, KernelHead, SessionLayout
from tensorwasm.gpu.resources import device_resources as module
from tensorwasm.gpu.resources.device_resources import DeviceResources
from tensorwasm.gpu.shared_device import SharedDevice
from tensorwasm.values import NEVER, WASM_PAGE_BYTES, Deadline, LaunchConfig, Region

ONE = LaunchConfig((1, 1, 1), (1, 1, 1))
SIZE = 16 * WASM_PAGE_BYTES


class World:
    """A shared device with a guest's memory."""

    def __init__(self, gate=None, pinned_bytes=SIZE):
        self.device = FakeDevice(effects=True)
        self.gate = gate or Gate(4)
        self.accounts = Accounts(MemoryLedger())
        self.account = self.accounts.register("tenant", 1 << 20, pinned_bytes)
        self.shared = SharedDevice(self.device, self.accounts, self.gate)
        self.pages = mmap.mmap(-1, SIZE)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.pages))
        self.size = SIZE // 2

    def memory(self):
        return Region(self.address, self.size, host=True)

    def open(self, kind="auto", layout=None):
        return self.shared.open_session("tenant", memory_kind=kind, layout=layout)

    def fill(self, session, kernel, offset, value, length=4, **named):
        """Run ``fill`` on a window."""
        arguments = HostWindow(self.address + offset, length), word(value)
        start = session.kernels.submit if "stream" in named else session.kernels.launch
        start(kernel, ONE, lambda: arguments, self.memory(), NEVER, **named)

    def at(self, offset):
        return struct.unpack("<I", self.pages[offset : offset + 4])[0]


@pytest.fixture
def world():
    world = World()
    yield world
    world.shared.close()
    assert world.device.broken == []
    assert world.device.holds_nothing()
    assert world.gate.in_use == 0
    assert not world.account.charged


def word(value):
    return Scalar(struct.pack("<I", value))


def fill_buffer(session, kernel, handle, value, **named):
    arguments = BufferOffset(handle, 0), word(value)
    start = session.kernels.submit if "stream" in named else session.kernels.launch
    start(kernel, ONE, lambda: arguments, None, NEVER, **named)


def read_u32(session, handle):
    into = bytearray(4)
    session.buffers.read(handle, memoryview(into), NEVER)
    return struct.unpack("<I", into)[0]


# ---------------------------------------------------------------------------------------------- memory kinds


def test_small_windows_are_staged_and_nothing_of_the_guest_is_registered(world):
    with world.open() as session:
        kernel = session.kernels.load(FILL, "fill", NEVER)
        world.pages[96:112] = bytes(range(16))
        world.fill(session, kernel, 100, 0xDEADBEEF, 8)
        assert world.at(100) == 0xDEADBEEF
        assert world.pages[96:100] == bytes(range(4))
        assert world.pages[104:112] == bytes(range(8, 16))
        assert world.address not in world.device.registered
        assert session.statistics().staged_launches == session.statistics().kernels_launched == 1
        assert session.statistics().pinned_bytes == world.account.statistics().pinned_bytes == 0
        (launch,) = world.device.launched
        assert int.from_bytes(launch.args[0], "little") % 256 == (world.address + 100) % 256


@pytest.mark.parametrize(("length", "staged"), [(STAGE_SLOT_BYTES, 1), (STAGE_SLOT_BYTES + 1, 0)])
def test_windows_that_fit_no_slot_are_reached_in_place(world, length, staged):
    with world.open() as session:
        kernel = session.kernels.load(FILL, "fill", NEVER)
        world.fill(session, kernel, 0, 5, length)
        assert session.statistics().staged_launches == staged
        assert bool(world.device.registered.get(world.address)) == (not staged)
        world.fill(session, kernel, 0, 6)
        assert session.statistics().staged_launches == 2 * staged, "registered memory is used from then on"
        assert world.at(0) == 6


def test_memory_that_is_to_be_staged_is_never_registered(world):
    with world.open("staged") as session:
        kernel, handle = session.kernels.load(FILL, "fill", NEVER), session.buffers.allocate(64)
        world.fill(session, kernel, 0, 5, STAGE_SLOT_BYTES)
        with pytest.raises(QuotaExceeded):
            world.fill(session, kernel, 0, 5, STAGE_SLOT_BYTES + 1)
        with pytest.raises(LaunchRefused):
            world.fill(session, kernel, 0, 5, stream=0)
        session.buffers.copy_in(handle, 0, HostWindow(world.address, 4), world.memory(), NEVER)
        session.buffers.copy_out(HostWindow(world.address + 8, 4), world.memory(), handle, 0, NEVER)
        session.streams.synchronize(NEVER)
        assert world.at(8) == world.at(0) == 5
        assert world.address not in world.device.registered


@pytest.mark.rule("3-pinned")
def test_pinned_memory_is_registered_for_the_smallest_window(world):
    with world.open("pinned") as session:
        world.fill(session, session.kernels.load(FILL, "fill", NEVER), 0, 5)
        assert world.device.registered == {world.address: world.size}
        assert world.account.statistics().pinned_bytes == world.size
        world.size = SIZE
        world.fill(session, session.kernels.load(FILL, "fill", NEVER), SIZE - 4, 6)
        assert world.device.registered == {world.address: SIZE}
        assert world.account.statistics().pinned_bytes == SIZE


@pytest.mark.rule("3-pinned")
def test_pinned_bytes_over_the_tenants_cap_are_refused_and_change_nothing():
    world = World(pinned_bytes=SIZE // 2)
    with world.open("pinned") as session:
        kernel = session.kernels.load(FILL, "fill", NEVER)
        world.fill(session, kernel, 0, 5)
        world.size = SIZE
        with pytest.raises(QuotaExceeded):
            world.fill(session, kernel, SIZE - 4, 6)
        assert world.device.registered == {world.address: SIZE // 2}
        assert session.statistics().quota_refusals == 1
        world.size = SIZE // 2
        world.fill(session, kernel, 0, 7)
    assert not world.account.charged


@pytest.mark.parametrize("kind", ["managed", "vmm"])
def test_memory_that_the_device_reaches_anyway_is_neither_registered_nor_charged(world, kind):
    layout = SessionLayout()
    with world.open(kind, layout) as session:
        kernel = session.kernels.load(NOTHING, "nothing", NEVER)
        fill = session.kernels.load(FILL, "fill", NEVER)
        world.device.effects = False  # no registration says that this memory is real
        world.fill(session, fill, 0, 5)
        world.size = SIZE
        session.kernels.submit(kernel, ONE, tuple, world.memory(), NEVER)
        world.fill(session, fill, SIZE - 4, 5)
        assert world.device.launched[-1].regions[-1] == world.memory()
        assert "register" not in world.device.calls
        assert session.statistics().pinned_bytes == 0
        assert (layout.reach_at, layout.reach_bytes, layout.stage_at) == (world.address, SIZE, 0)


def test_without_a_free_slot_memory_is_registered_or_the_launch_refused(world):
    hoarders = [world.open() for _ in range(STAGE_SLOTS)]
    kernel = [session.kernels.load(FILL, "fill", NEVER) for session in hoarders]
    for session, each in zip(hoarders, kernel, strict=True):
        world.fill(session, each, 0, 1)
    with world.open() as late, world.open("staged") as strict:
        world.fill(late, late.kernels.load(FILL, "fill", NEVER), 0, 2)
        assert late.statistics().staged_launches == 0
        with pytest.raises(CapacityExhausted):
            world.fill(strict, strict.kernels.load(FILL, "fill", NEVER), 0, 3)
        hoarders[7].close()
        world.fill(strict, strict.kernels.load(FILL, "fill", NEVER), 0, 4)
    assert world.at(0) == 4
    for session in hoarders:
        session.close()


def test_overlapping_windows_are_the_same_bytes_for_a_staged_kernel(world):
    with world.open() as session:
        kernel = session.kernels.load(VECTOR_ADD, "vector_add", NEVER)
        windows = [HostWindow(world.address + at, 64) for at in (100, 132, 1000)]
        session.kernels.launch(kernel, ONE, lambda: (*windows, word(1)), world.memory(), NEVER)
        first, second, third = (int.from_bytes(arg, "little") for arg in world.device.launched[0].args[:3])
        assert second - first == 32
        assert third - first not in range(96 + 32)
        assert session.statistics().staged_launches == 1


def test_a_large_copy_registers_what_it_can(world):
    with world.open() as session:
        handle = session.buffers.allocate(1 << 17)
        data = memoryview(bytes(1 << 17))
        session.buffers.write(handle, data[: PIN_COPY_BYTES - 1], NEVER, memory=world.memory())
        assert session.statistics().pinned_bytes == 0
        session.buffers.write(handle, data[:PIN_COPY_BYTES], NEVER, memory=world.memory())
        assert session.statistics().pinned_bytes == world.size
    world.accounts.register("tenant", 1 << 20, 0)
    with world.open() as session:
        session.buffers.write(session.buffers.allocate(1 << 17), data, NEVER, memory=world.memory())
        assert session.statistics().pinned_bytes == 0


# ------------------------------------------------------------------------------------------------------ pads


def test_the_layout_shows_what_compiled_code_may_use(world):
    layout = SessionLayout()
    with world.open(layout=layout) as session:
        assert (layout.armed, layout.driver != 0, layout.placed, layout.pending) == (1, True, 0, 0)
        session.enter(Deadline(12345))
        assert layout.deadline_ns == 12345
        kernel, handle = session.kernels.load(FILL, "fill", NEVER), session.buffers.allocate(64)
        row = layout.kernels[kernel % 64]
        assert row.id == kernel
        assert KernelHead.from_address(row.head).param_count == 2
        buffer = layout.buffers[handle]
        assert (buffer.handle, buffer.size_bytes) == (handle, 64)
        world.fill(session, kernel, 0, 9)
        assert (layout.stage_at % 4096, layout.stage_bytes) == (0, STAGE_SLOT_BYTES)
        assert layout.stage_left == PIN_PRICE_BYTES + world.size // 2 - 4
        assert (layout.reach_at, layout.reach_bytes) == (0, 0)
        assert (layout.placed, layout.pending) == (1, 0)
        world.fill(session, kernel, 0, 9, stream=0)
        assert (layout.reach_at, layout.reach_bytes, layout.stage_left) == (world.address, world.size, 0)
        own = layout.streams[0]
        assert (own.number, own.pending, own.recording, layout.pending) == (0, 1, 0, 1)
        stream = session.streams.open()
        assert layout.streams[stream].number == stream
        confined = {each.number: each.confined for each in world.device.streams}
        assert world.memory() in confined[own.stream]
        assert confined[own.stream] == confined[layout.streams[stream].stream]
        session.kernels.unload(kernel, NEVER)
        session.buffers.free(handle, NEVER)
        session.streams.close(stream, NEVER)
        assert row.id == row.head == buffer.handle == layout.streams[stream].stream == 0
        session.enter(NEVER)
        assert layout.deadline_ns == NO_DEADLINE_NS
    assert bytes(layout.streams) == bytes(ctypes.sizeof(layout.streams))
    assert (
        layout.armed == layout.driver == layout.placed == layout.reach_at == layout.stage_at == layout.stage_left == 0
    )


def test_the_deadline_of_a_call_reaches_the_device(world):
    with world.open(layout=SessionLayout()) as session:
        session.kernels.load(FILL, "fill", NEVER)
        session.buffers.allocate(4)
        session.enter(Deadline(99))
        (stream,) = world.device.streams
        assert stream.deadlines[-1] == Deadline(99)


@pytest.mark.parametrize(
    "error", [KernelFault("thread 1"), InvokeTimeout("late"), DeviceLost("gone"), ValueError("bug")]
)
def test_a_failure_disarms_the_layout(world, error):
    layout = SessionLayout()
    session = world.open(layout=layout)
    session.kernels.submit(session.kernels.load(NOTHING, "nothing", NEVER), ONE, tuple, None, NEVER)
    world.device.failures["synchronize"] = error
    with pytest.raises(type(error)):
        session.streams.synchronize(NEVER)
    assert layout.armed == 0
    session.enter(NEVER)
    session.leave()
    session.close()


def compiled_work(world, layout, run=lambda: None, number=0):
    """Do what compiled code does with a launch."""
    row = layout.streams[number]
    world.device.native.give(row.stream, run)
    row.pending += 1
    layout.pending += 1
    layout.launched += 1


@pytest.mark.rule("3-buffer")
def test_work_of_compiled_code_is_waited_for_and_counted(world):
    layout = SessionLayout()
    with world.open(layout=layout) as session:
        kernel, handle = session.kernels.load(FILL, "fill", NEVER), session.buffers.allocate(64)
        fill_buffer(session, kernel, handle, 1)
        compiled_work(world, layout)
        assert world.device.busy
        assert not session.streams.ended(0)
        session.buffers.free(handle, NEVER)
        assert not world.device.busy
        assert (layout.pending, layout.streams[0].pending) == (0, 0)
        assert session.statistics().kernels_launched == 2
        assert "started" in world.device.calls, "the device is told of work that it was not given by Python"
        compiled_work(world, layout)
    assert not world.device.busy
    assert session.statistics().kernels_launched == 3
    with world.open(layout=layout) as session:
        assert session.statistics().kernels_launched == 0, "counters only grow; sessions begin anew"


@pytest.mark.rule("4-staging")
def test_a_staged_launch_of_compiled_code_is_finished(world):
    layout = SessionLayout()
    with world.open(layout=layout) as session:
        kernel = session.kernels.load(FILL, "fill", NEVER)
        world.fill(session, kernel, 0, 1)
        slot = layout.stage_at
        layout.windows[0].offset, layout.windows[0].length_bytes, layout.windows[0].place = 40, 4, 296
        layout.staged, layout.stage_used = 1, 300
        compiled_work(world, layout, lambda: ctypes.memmove(slot + 296, b"\7\0\0\0", 4))
        session.kernels.finish_staged(world.memory(), NEVER)
        assert (world.at(40), layout.staged, layout.pending) == (7, 0, 0)
        layout.windows[0].offset, layout.staged = world.size - 3, 1
        with pytest.raises(LaunchRefused):
            session.kernels.finish_staged(world.memory(), NEVER)
        assert session.failure is None
    with world.open() as another:
        world.fill(another, another.kernels.load(FILL, "fill", NEVER), 8, 1)
        assert ctypes.string_at(slot + 256, 64) == bytes(64), "what was used is cleared"


def test_an_abandoned_layout_serves_another_session(world):
    layout, device, gate = SessionLayout(), FakeDevice(), Gate(1)
    lost = SharedDevice(device, Accounts(MemoryLedger()), gate)
    session = lost.open_session(layout=layout)
    session.kernels.submit(session.kernels.load(NOTHING, "nothing", NEVER), ONE, tuple, None, NEVER)
    device.failures["synchronize"] = InvokeTimeout("never ends")
    session.close()
    assert session.statistics().abandoned
    with world.open(layout=layout) as other:
        world.fill(other, other.kernels.load(FILL, "fill", NEVER), 0, 3)
        assert world.at(0) == 3
    with lost.open_session() as late:
        kernel = late.kernels.load(NOTHING, "nothing", NEVER)
        with pytest.raises(CapacityExhausted):  # the place of work that never ends is nobody's
            late.kernels.submit(kernel, ONE, tuple, None, Deadline.after(0.01))
    lost.close()
    assert (len(device.modules), len(device.streams), gate.in_use) == (1, 1, 1)


# ------------------------------------------------------------------------------------------------------ gate


def test_a_permit_is_kept_between_launches_and_taken_back_when_needed():
    world = World(Gate(1))
    one_pad, two_pad = SessionLayout(), SessionLayout()
    with world.open(layout=one_pad) as one, world.open(layout=two_pad) as two:
        kernels = [session.kernels.load(NOTHING, "nothing", NEVER) for session in (one, two)]
        one.kernels.launch(kernels[0], ONE, tuple, None, NEVER)
        assert (one_pad.placed, world.gate.in_use) == (1, 1)
        two.kernels.launch(kernels[1], ONE, tuple, None, Deadline.after(1))
        assert (one_pad.placed, two_pad.placed, world.gate.in_use) == (0, 1, 1)
        compiled_work(world, two_pad)
        with pytest.raises(CapacityExhausted):
            one.kernels.launch(kernels[0], ONE, tuple, None, Deadline.after(0.07))
        assert one.statistics().back_pressure_rejections == 1
        two.streams.synchronize(NEVER)
        one.kernels.launch(kernels[0], ONE, tuple, None, Deadline.after(1))
        one.leave()
        assert (one_pad.placed, world.gate.in_use) == (0, 0)
    assert world.gate.in_use == 0


def test_an_idle_permit_of_compiled_code_goes_to_a_waiting_session():
    world = World(Gate(1))
    layout = SessionLayout()
    with world.open(layout=layout) as one, world.open() as two:
        one.kernels.launch(one.kernels.load(NOTHING, "nothing", NEVER), ONE, tuple, None, NEVER)
        compiled_work(world, layout)
        done = threading.Event()
        kernel = two.kernels.load(NOTHING, "nothing", NEVER)

        def launch():
            two.kernels.launch(kernel, ONE, tuple, None, Deadline.after(60))
            done.set()

        waiter = threading.Thread(target=launch)
        waiter.start()
        assert not done.wait(0.02)
        world.device.finish()
        layout.pending = layout.streams[0].pending = 0  # as compiled code does once it has seen the end
        assert done.wait(10)
        waiter.join()
        assert layout.placed == 0


def test_work_that_outlives_a_call_keeps_its_permit(world):
    with world.open(layout=SessionLayout()) as session:
        session.kernels.submit(session.kernels.load(NOTHING, "nothing", NEVER), ONE, tuple, None, NEVER)
        session.leave()
        assert world.gate.in_use == 1


# ------------------------------------------------------------------------------------------- streams, tenants


def test_drained_streams_serve_the_next_session(world):
    for _ in range(3):
        with world.open() as session:
            session.streams.open()
            session.kernels.launch(session.kernels.load(NOTHING, "nothing", NEVER), ONE, tuple, None, NEVER)
    assert world.device.calls.count("open_stream") == 2
    assert "close_stream" not in world.device.calls


@pytest.mark.rule("3-stream")
def test_streams_of_a_failed_session_are_not_reused(world):
    session = world.open()
    session.kernels.submit(session.kernels.load(NOTHING, "nothing", NEVER), ONE, tuple, None, NEVER)
    world.device.failures["synchronize"] = KernelFault("thread 0")
    with pytest.raises(KernelFault):
        session.streams.synchronize(NEVER)
    session.close()
    assert not world.device.streams


@pytest.mark.rule("3-staging")
def test_a_slot_that_lost_work_may_still_write_to_is_not_reused():
    world = World()
    session = world.open("staged")
    world.fill(session, session.kernels.load(FILL, "fill", NEVER), 0, 1)
    session.kernels.submit(session.kernels.load(NOTHING, "nothing", NEVER), ONE, tuple, None, NEVER)
    world.device.failures["synchronize"] = DeviceLost("gone")
    session.close()
    others = [world.open("staged") for _ in range(STAGE_SLOTS - 1)]
    for other in others:
        world.fill(other, other.kernels.load(FILL, "fill", NEVER), 0, 1)
    with world.open("staged") as late, pytest.raises(CapacityExhausted):
        world.fill(late, late.kernels.load(FILL, "fill", NEVER), 0, 1)
    for other in others:
        other.close()


def test_a_tenant_has_to_be_registered(world):
    with pytest.raises(InvalidArgs):
        world.shared.open_session("nobody")
    world.accounts.register("late", 1 << 20)
    world.shared.open_session("late").close()
    world.accounts.unregister("late")
    with pytest.raises(InvalidArgs):
        world.shared.open_session("late")


def test_buffers_are_cut_from_the_tenants_suballocator_under_its_cap(world):
    with world.open() as one, world.open() as two, world.shared.open_session() as other:
        one.buffers.allocate(1 << 19)
        two.buffers.allocate(1 << 19)
        with pytest.raises(QuotaExceeded):
            two.buffers.allocate(1)
        assert two.statistics().quota_refusals == 1
        other.buffers.allocate(1 << 19)
        calls = len(world.device.calls)
        with pytest.raises(QuotaExceeded):
            one.buffers.allocate(1)
        assert len(world.device.calls) == calls, "a refusal does not reach the device"


@pytest.mark.rule("4-device")
def test_a_buffer_that_another_sandbox_had_is_zeros(world):
    with world.open() as session:
        handle = session.buffers.allocate(4)
        fill_buffer(session, session.kernels.load(FILL, "fill", NEVER), handle, 77)
        assert read_u32(session, handle) == 77
    with world.open() as session:
        assert read_u32(session, session.buffers.allocate(4)) == 0


def test_statistics_say_what_sessions_share(world):
    assert world.shared.statistics().accounts == world.accounts.statistics()
    with world.open() as session:
        kernel = session.kernels.load(FILL, "fill", NEVER)
        world.fill(session, kernel, 0, 7)
        session.buffers.allocate(100)
        found = world.shared.statistics()
        assert (found.kernels_held, found.kernels_idle, found.sessions_parked) == (1, 0, 0)
        assert found.accounts[-1].device_bytes == 256
        assert found.device.modules == 1
        taken = found.slots_idle
    found = world.shared.statistics()
    assert (found.kernels_held, found.kernels_idle, found.places_in_use) == (0, 1, 0)
    assert found.slots_idle == taken + 1
    assert found.accounts[-1].device_bytes == 0


def test_two_that_open_at_once_have_one_table_of_the_driver(monkeypatch):
    # Pads have its address, and only the resources keep it alive: a second one would free the first.
    device, inner = FakeDevice(), []
    resources = DeviceResources(device, Accounts(MemoryLedger()))
    make = module.driver_table

    def meet(*arguments):
        monkeypatch.setattr(module, "driver_table", make)
        inner.append(resources.driver_at())  # another thread, while the device is asked
        return make(*arguments)

    monkeypatch.setattr(module, "driver_table", meet)
    assert resources.driver_at() == inner[0] == resources.driver_at()
