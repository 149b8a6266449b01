"""What only a GPU can show: waiting, faults, other libraries in the process. What ends a context runs in a child."""

from __future__ import annotations

import importlib.util
import mmap
import os
import threading
from pathlib import Path

import pytest

from conformance.cuda.child import run_child
from conformance.cuda.kernels import COUNT, POLL
from tensorwasm.errors import InvalidDimensions, LaunchRefused, MalformedPtx
from tensorwasm.gpu.cuda.driver.calls import load_driver
from tensorwasm.gpu.cuda.opening import open_cuda, open_with
from tensorwasm.ptx.model import Function, Instruction, Module
from tensorwasm.ptx.parser import parse
from tensorwasm.values import NEVER, Deadline, LaunchConfig

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]

NONE = Deadline()
ONE = LaunchConfig((1, 1, 1), (1, 1, 1))

WIDE = """
.version 6.3
.target sm_70
.address_size 64
.visible .entry wide() .maxntid 256, 1, 1 { ret; }
"""

LIBRARIES = {
    "the CUDA runtime": """
from cuda.bindings import runtime
def call(function, *values):
    status, *found = function(*values)
    assert status == runtime.cudaError_t.cudaSuccess, status
    return found[0] if found else None
def begin():
    call(runtime.cudaSetDevice, 0)
    there = call(runtime.cudaMalloc, 64)
    call(runtime.cudaMemset, there, 7, 64)
    return there
def end(there):
    into = bytearray(64)
    call(runtime.cudaMemcpy, into, there, 64, runtime.cudaMemcpyKind.cudaMemcpyDeviceToHost)
    call(runtime.cudaFree, there)
    assert into == bytes([7]) * 64
""",
}
"""Other libraries that use the device: ``begin`` puts something on it, ``end`` finds it there."""
if importlib.util.find_spec("torch"):
    LIBRARIES["PyTorch"] = """
import torch
def begin():
    return torch.arange(1000, device="cuda")
def end(there):
    assert int((there * 2).sum()) == 999000
"""

TOGETHER = """
run(sys.argv[1], "count")
there = begin()
run(sys.argv[1], "count")
end(there)
there = begin()
run(sys.argv[1], "count")
word = bytearray(4)
device.read(address, memoryview(word), stream)
assert int.from_bytes(word, "little") == 3
device.close()
end(there)
end(begin())
"""

FAULTS = {
    "an access outside memory": "mov.u64 %rd1, 0xdead0000; st.global.u32 [%rd1], 1;",
    "a misaligned access": "ld.param.u64 %rd1, [p]; add.u64 %rd1, %rd1, 1; st.global.u32 [%rd1], 1;",
    "failed or trapped|illegal instruction": "trap;",
}


@pytest.mark.hardware("BUG-4")
def test_the_gpu_says_what_it_is(gpu):
    info = gpu.info
    assert info.kind == "cuda"
    assert info.name
    assert info.compute_capability >= (7, 0)
    assert info.ptx_version >= (8, 0)
    assert info.memory_bytes > 1 << 30
    assert info.max_shared_bytes >= 64 << 10
    assert "CUDA" in info.driver


def test_other_threads_run_while_one_waits(gpu, flag, poll, stream):
    poll()
    waiter = threading.Thread(target=gpu.synchronize, args=(stream, NONE))
    waiter.start()
    total = sum(number * number for number in range(300_000))
    assert waiter.is_alive(), "the kernel ends only when the flag is set"
    flag.value = 1
    waiter.join(30)
    assert not waiter.is_alive()
    assert total


def test_waits_on_different_streams_do_not_hold_each_other_up(gpu, flag, poll, stream):
    other = gpu.open_stream()  # before: a driver may make none while a kernel runs
    poll()
    waiter = threading.Thread(target=gpu.synchronize, args=(stream, NONE))
    waiter.start()
    gpu.synchronize(other, Deadline.after(30))
    assert waiter.is_alive()
    flag.value = 1
    waiter.join(30)
    gpu.close_stream(other)


def test_new_memory_is_usable_while_another_stream_is_busy(gpu, flag, poll, stream):
    other = gpu.open_stream()
    poll()
    address = gpu.allocate(1 << 16)
    into = bytearray(1 << 16)
    gpu.read(address, memoryview(into), other)
    assert into == bytes(1 << 16)
    flag.value = 1
    gpu.synchronize(stream, NONE)
    gpu.free(address)
    gpu.close_stream(other)


def test_the_callers_context_is_current_again(gpu, stream):
    driver = load_driver()
    before = int(driver.call("cuCtxGetCurrent"))
    gpu.synchronize(stream, NONE)
    assert int(driver.call("cuCtxGetCurrent")) == before


def test_memory_that_cannot_be_registered_is_refused(gpu):
    before = gpu.statistics()
    with pytest.raises(LaunchRefused):
        gpu.register(mmap.PAGESIZE, mmap.PAGESIZE)
    assert gpu.statistics() == before


def test_a_block_larger_than_the_kernels_own_limit_is_refused(gpu, stream):
    loaded = gpu.load(parse(WIDE), NEVER)
    with pytest.raises(InvalidDimensions):
        gpu.launch(loaded, "wide", LaunchConfig((1, 1, 1), (512, 1, 1)), [], (), stream, NONE)
    with pytest.raises(InvalidDimensions):
        gpu.launch(loaded, "wide", LaunchConfig((1, 1 << 17, 1), (1, 1, 1)), [], (), stream, NONE)
    gpu.launch(loaded, "wide", LaunchConfig((1, 1, 1), (256, 1, 1)), [], (), stream, NONE)
    gpu.synchronize(stream, NONE)
    gpu.unload(loaded)


@pytest.mark.parametrize("through", ["the configured compiler", "the driver's own compiler"])
def test_text_that_the_compiler_refuses_is_malformed_and_the_device_stays_usable(gpu, through):
    bad = Module((6, 3), ("sm_70",), 64, (Function(entry=True, name="k", body=(Instruction("nonsense"),)),))
    good = Module((6, 3), ("sm_70",), 64, (Function(entry=True, name="k", body=(Instruction("ret"),)),))
    device = gpu if through == "the configured compiler" else open_with(load_driver(), 0)
    with pytest.raises(MalformedPtx, match="nonsense"):
        device.load(bad, NEVER)
    device.unload(device.load(good, NEVER))
    if device is not gpu:
        device.close()


@pytest.mark.hardware("H2-allocate")
def test_fifty_cycles_leave_descriptors_threads_and_memory_where_they_were(gpu):
    def cycle() -> None:
        device = open_cuda()
        stream = device.open_stream()
        address = device.allocate(1 << 20)
        loaded = device.load(parse(WIDE), NEVER)
        device.launch(loaded, "wide", ONE, [], (), stream, NONE)
        device.synchronize(stream, NONE)
        device.read(address, memoryview(bytearray(8)), stream)
        device.close()

    def state() -> tuple[int, int, int]:
        descriptors = len(list(Path("/proc/self/fd").iterdir()))
        if "PYTEST_XDIST_WORKER" in os.environ:
            return descriptors, threading.active_count(), 0  # other workers fill and empty the same card meanwhile
        driver = load_driver()
        context = driver.call("cuDevicePrimaryCtxRetain", driver.call("cuDeviceGet", 0))
        driver.call("cuCtxPushCurrent", context)
        free, _ = driver.call("cuMemGetInfo")
        driver.call("cuCtxPopCurrent")
        driver.call("cuDevicePrimaryCtxRelease", driver.call("cuDeviceGet", 0))
        return descriptors, threading.active_count(), int(free)

    for _ in range(3):
        cycle()
    before = state()
    for _ in range(50):
        cycle()
    assert state() == before


def test_an_endless_kernel_ends_with_its_deadline_and_so_does_the_process():
    said = run_child(
        """
started = time.monotonic()
expect(InvokeTimeout, lambda: run(sys.argv[1], "poll", Deadline.after(0.5)))
assert 0.5 <= time.monotonic() - started < 5
device.free(device.allocate(8))
expect(InvokeTimeout, lambda: device.synchronize(stream, Deadline.after(1)))
expect(DeviceLost, lambda: device.allocate(8))
device.close()
assert time.monotonic() - started < 5
assert device.statistics().allocations == 1
""",
        POLL,
    )
    assert said.startswith("InvokeTimeout")
    assert "past its deadline" in said


@pytest.mark.parametrize("message", FAULTS)
def test_a_faulting_kernel_is_named_and_loses_the_device_for_its_process_alone(gpu, message):
    text = f"""
.version 6.3
.target sm_70
.address_size 64
.visible .entry fault(.param .u64 p) {{ .reg .b64 %rd<2>; {FAULTS[message]} ret; }}
"""
    said = run_child(
        """
expect(KernelFault, lambda: run(sys.argv[1], "fault"))
expect(DeviceLost, lambda: device.open_stream())
device.close()
expect(DeviceUnavailable, open_cuda)
""",
        text,
    )
    assert said.startswith("KernelFault")
    assert any(part in said for part in message.split("|"))
    gpu.free(gpu.allocate(64))


@pytest.mark.parametrize("then", ["left alone", "retained by another"])
def test_another_librarys_reset_is_survived_with_nothing_held_and_noticed_with_something(then):
    run_child(
        """
from tensorwasm.gpu.cuda.driver.calls import load_driver
def reset():
    load_driver().call("cuDevicePrimaryCtxReset", load_driver().call("cuDeviceGet", 0))
device.free(address)
device.close_stream(stream)
reset()
stream = device.open_stream()
address = device.allocate(64)
device.write(address, b"alive", stream)
reset()
if sys.argv[1] == "retained by another":
    load_driver().call("cuDevicePrimaryCtxRetain", load_driver().call("cuDeviceGet", 0))
expect(DeviceLost, lambda: device.allocate(64))
device.close()
""",
        then,
    )


@pytest.mark.hardware("BUG-release", "H2-context")
def test_another_librarys_release_leaves_the_context_alive(gpu):
    driver = load_driver()
    device = driver.call("cuDeviceGet", gpu.info.ordinal)
    driver.call("cuDevicePrimaryCtxRetain", device)
    driver.call("cuDevicePrimaryCtxRelease", device)
    gpu.free(gpu.allocate(64))


@pytest.mark.parametrize("library", LIBRARIES)
def test_another_library_works_in_the_same_thread(library):
    run_child(LIBRARIES[library] + TOGETHER, COUNT, limit_s=120)
