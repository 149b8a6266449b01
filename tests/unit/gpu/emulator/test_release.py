"""Memory that is released while work that reaches it waits or runs: a fault and never a crash."""

import ctypes
import mmap
import struct
import threading

import numpy as np
import pytest

from fakes.emulation import kernel
from tensorwasm.errors import DeviceLost, InvokeTimeout, KernelFault, LaunchRefused
from tensorwasm.gpu.limits.accounts import Accounts
from tensorwasm.gpu.limits.gate import Gate
from tensorwasm.gpu.shared_device import SharedDevice
from tensorwasm.ptx.parser import parse
from tensorwasm.values import NEVER, Deadline, LaunchConfig, Region

PAGE = mmap.PAGESIZE
ONE = LaunchConfig((1, 1, 1), (1, 1, 1))
INCREMENT = kernel(
    "ld.param.u64 %rd0, [p0]; ld.global.u32 %r1, [%rd0]; add.u32 %r1, %r1, 1; st.global.u32 [%rd0], %r1;"
)
# Adds to p0 for ever, so that others see it run, and reads p1 all the while if it is asked to.
SPIN = kernel(
    "ld.param.u64 %rd0, [p0]; ld.param.u64 %rd1, [p1]; ld.param.u64 %rd2, [p2];"
    "L: ld.global.u32 %r1, [%rd0]; add.u32 %r1, %r1, 1; st.global.u32 [%rd0], %r1;"
    "setp.ne.u64 %p0, %rd2, 0; @%p0 ld.global.u32 %r2, [%rd1]; bra L;",
    params=3,
)


class Case:
    """One kind of memory: how to make it, and how to release it."""

    def __init__(self, device, kind):
        self.device, self.kind = device, kind

    def make(self):
        device = self.device
        if self.kind == "device":
            address = device.allocate(PAGE)
        elif self.kind == "registered":
            self.block = mmap.mmap(-1, PAGE)
            anchor = ctypes.c_char.from_buffer(self.block)
            address = ctypes.addressof(anchor)
            del anchor
            device.register(address, PAGE)
        elif self.kind == "managed":
            address = device.unified.allocate_managed(PAGE)
        else:
            address = device.unified.reserve(1 << 17)
            device.unified.map(address, 1 << 16)
        return Region(address, PAGE, host=self.kind != "device")

    def release(self, region):
        device = self.device
        if self.kind == "device":
            device.free(region.address)
        elif self.kind == "registered":
            device.unregister(region.address)
            self.block.close()
        elif self.kind == "managed":
            device.unified.free_managed(region.address)
        else:
            device.unified.unmap(region.address, 1 << 16)

    def end(self, region):
        if self.kind == "mapped":
            self.device.unified.unreserve(region.address, 1 << 17)


@pytest.fixture(params=["device", "registered", "managed", "mapped"])
def case(emulation, request):
    return Case(emulation.device, request.param)


@pytest.fixture
def loaded(emulation):
    return {text: emulation.device.load(parse(text), NEVER) for text in (INCREMENT, SPIN)}


def start(emulation, loaded, text, values, regions, deadline=NEVER):
    args = [value.to_bytes(8, "little") for value in values]
    emulation.device.launch(loaded[text], "k", ONE, args, regions, emulation.stream, deadline)


def test_a_kernel_works_on_every_kind(emulation, case, loaded):
    region = case.make()
    start(emulation, loaded, INCREMENT, [region.address], [region])
    assert emulation.read(region)[0] == 1
    case.release(region)
    case.end(region)


def test_a_kernel_that_has_not_begun_faults(emulation, case, loaded):
    region = case.make()
    start(emulation, loaded, INCREMENT, [region.address], [region])
    case.release(region)
    with pytest.raises(KernelFault, match="accesses 4 bytes at"):
        emulation.device.synchronize(emulation.stream, NEVER)
    case.end(region)


def test_a_kernel_that_runs_faults_when_it_touches_it_again(emulation, case, loaded):
    seen, region = emulation.buffer([0]), case.make()
    start(emulation, loaded, SPIN, [seen.address, region.address, 1], [seen, region], Deadline.after(20))
    assert not emulation.device.ended(emulation.stream)
    emulation.stream, stream = emulation.device.open_stream(), emulation.stream
    while not emulation.read(seen)[0]:
        pass
    case.release(region)
    with pytest.raises(KernelFault, match="accesses 4 bytes at"):
        emulation.device.synchronize(stream, Deadline.after(20))
    case.end(region)


def test_a_kernel_that_does_not_touch_it_goes_on(emulation, case, loaded):
    seen, region = emulation.buffer([0]), case.make()
    start(emulation, loaded, SPIN, [seen.address, region.address, 0], [seen, region], Deadline.after(20))
    assert not emulation.device.ended(emulation.stream)
    emulation.stream, stream = emulation.device.open_stream(), emulation.stream
    while not emulation.read(seen)[0]:
        pass
    case.release(region)
    before = emulation.read(seen)[0]
    while emulation.read(seen)[0] == before:
        pass
    assert not emulation.device.ended(stream)
    case.end(region)
    emulation.device.close()
    with pytest.raises(DeviceLost):
        emulation.device._queues.run_to(emulation.device._queues.mark(stream), NEVER)


@pytest.mark.parametrize("inward", [True, False])
def test_a_copy_that_has_not_begun_faults(emulation, case, inward):
    region, other = case.make(), Case(emulation.device, "registered")
    device, host = emulation.device, other.make()
    if case.kind == "device":
        device.copy_out(host.address, region.address, 4, emulation.stream)
    elif inward:
        device.copy_in(emulation.buffer([0]).address, region.address, 4, emulation.stream)
    else:
        device.copy_out(region.address, emulation.buffer([0]).address, 4, emulation.stream)
    case.release(region)
    with pytest.raises(KernelFault, match="released before"):
        device.synchronize(emulation.stream, NEVER)
    case.end(region)
    other.release(host)


def test_a_copy_from_unknown_host_memory_is_refused(emulation):
    unified, device = emulation.device.unified, emulation.device
    target = device.allocate(1 << 18)
    base = unified.reserve(1 << 18)
    unified.map(base, 1 << 16)
    for address, size in (
        (target, 4),
        (base - 1, 4),
        (base + (1 << 16) - 1, 2),
        (base + (1 << 16), 1),
        (0, 1),
        ((1 << 52) - 1, 2),
        (-5, 2),
    ):
        with pytest.raises(LaunchRefused):
            device.copy_in(target, address, size, emulation.stream)
        with pytest.raises(LaunchRefused):
            device.copy_out(address, target, size, emulation.stream)
    device.synchronize(emulation.stream, NEVER)


def test_released_memory_is_no_region_of_a_launch(emulation, case, loaded):
    region = case.make()
    case.release(region)
    with pytest.raises(LaunchRefused):
        start(emulation, loaded, INCREMENT, [region.address], [region])
    with pytest.raises(LaunchRefused):
        emulation.device.fill(region.address, 4, emulation.stream)
    case.end(region)


def test_one_mapping_of_several_that_a_launch_reaches(emulation, loaded):
    unified, size = emulation.device.unified, 1 << 16
    address = unified.reserve(3 * size)
    for part in range(3):
        unified.map(address + part * size, size)
    start(emulation, loaded, INCREMENT, [address + 2 * size], [Region(address, 3 * size, host=True)])
    start(emulation, loaded, INCREMENT, [address + size], [Region(address, 3 * size, host=True)])
    unified.unmap(address + size, size)
    with pytest.raises(KernelFault):
        emulation.device.synchronize(emulation.stream, NEVER)
    assert ctypes.c_uint32.from_address(address + 2 * size).value == 1


def test_a_module_that_is_unloaded_before_its_kernel_runs(emulation, loaded):
    region = emulation.buffer([0])
    start(emulation, loaded, INCREMENT, [region.address], [region])
    emulation.device.unload(loaded[INCREMENT])
    with pytest.raises(KernelFault, match="unloaded"):
        emulation.device.synchronize(emulation.stream, NEVER)


def test_releasing_beside_kernels_that_come_and_go(emulation, loaded):
    device, failures = emulation.device, []
    shared = np.zeros(1, np.uint32)

    def work():
        try:
            for _ in range(40):
                address = device.unified.allocate_managed(PAGE)
                region, stream = Region(address, PAGE, host=True), device.open_stream()
                args = [address.to_bytes(8, "little")]
                device.launch(loaded[INCREMENT], "k", ONE, args, [region], stream, NEVER)
                device.ended(stream)
                device.unified.free_managed(address)
                try:
                    device.synchronize(stream, Deadline.after(20))
                except KernelFault:
                    shared[0] += 1
                device.close_stream(stream)
        except Exception as error:  # noqa: BLE001 - shown by the assertion below
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert device.statistics().unified_bytes == 0


def test_the_device_is_closed_under_a_kernel_that_never_ends(emulation, loaded):
    seen = emulation.buffer([0])
    address = emulation.device.unified.allocate_managed(PAGE)
    region = Region(address, PAGE, host=True)
    start(emulation, loaded, SPIN, [seen.address, address, 1], [seen, region])
    assert not emulation.device.ended(emulation.stream)
    stream = emulation.device.open_stream()
    into = bytearray(4)
    while struct.unpack("<I", into) == (0,):
        emulation.device.read(seen.address, memoryview(into), stream)
    emulation.device.close()
    emulation.device.close()
    assert emulation.device.statistics().streams == 0


def test_the_deadline_of_a_launch_counts_from_when_it_was_given(emulation, loaded):
    seen = emulation.buffer([0])
    start(emulation, loaded, SPIN, [seen.address, 0, 0], [seen], Deadline.after(0.05))
    with pytest.raises(InvokeTimeout):
        emulation.device.synchronize(emulation.stream, NEVER)
    assert emulation.device.statistics().launches == 1


def test_the_deadline_of_a_wait_stops_what_it_runs(emulation, loaded):
    seen = emulation.buffer([0])
    start(emulation, loaded, SPIN, [seen.address, 0, 0], [seen])
    with pytest.raises(InvokeTimeout):
        emulation.device.synchronize(emulation.stream, Deadline.after(0.05))


@pytest.mark.parametrize("ends", ["late", "faulty"])
def test_a_stream_whose_work_failed_as_its_session_closed_serves_no_other(emulation, ends):
    """A case of 2026-11-23: the next tenant's first allocation ended with the deadline of the one before."""
    shared = SharedDevice(emulation.device, Accounts(), Gate(4))
    forever = ".visible .entry k() { AGAIN: bra AGAIN; }"
    faulty = ".visible .entry k() { trap; }"
    text = ".version 7.0\n.target sm_70\n.address_size 64\n" + (forever if ends == "late" else faulty)
    with shared.open_session() as first:
        loaded = first.kernels.load(text.encode(), "k", NEVER)
        first.kernels.submit(loaded, ONE, tuple, None, Deadline.after(0.05))  # nobody waits for it
    with shared.open_session() as second:
        second.buffers.allocate(64)
        second.streams.synchronize(NEVER)
    shared.close()
