import ctypes
import threading
from itertools import count

import pytest

from tensorwasm.errors import (
    DeviceLost,
    DeviceUnavailable,
    InternalError,
    InvalidDimensions,
    InvalidHandle,
    InvalidKernel,
    InvalidKernelArgs,
    InvalidPointer,
    InvokeTimeout,
    KernelFault,
    LaunchRefused,
    MalformedPtx,
    QuotaExceeded,
    UnsupportedPtx,
)
from tensorwasm.gpu.cuda.driver.calls import Driver
from tensorwasm.gpu.cuda.opening import open_with
from tensorwasm.gpu.device.port import DeviceStatistics
from tensorwasm.ptx.parser import parse
from tensorwasm.values import NEVER, Deadline, LaunchConfig

PTX = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry scale(.param .u64 p, .param .u32 n, .param .f64 by) { ret; }
.visible .entry shaped() .reqntid 32, 2, 1 { ret; }
"""
NONE = Deadline()
PAGE = 4096


@pytest.fixture
def scale(device, stream):
    """Launch the kernel `scale` with anything about it changed."""
    loaded = device.load(parse(PTX), NEVER)

    def launch(entry="scale", grid=(1, 1, 1), block=(32, 1, 1), shared=0, args=None, deadline=NONE):
        args = [bytes(8), bytes(4), bytes(8)] if args is None else args
        device.launch(loaded, entry, LaunchConfig(grid, block, shared), args, (), stream, deadline)

    return launch


def expired() -> Deadline:
    return Deadline(at_ns=1)


# ------------------------------------------------------------------------------------------------- memory


@pytest.mark.rule("4-device")
def test_memory_is_zeroed_before_a_stream_sees_it(device, stream):
    address = device.allocate(1000)
    into = bytearray(b"x" * 1000)
    device.read(address, memoryview(into), stream)
    assert bytes(into) == bytes(1000)


def test_every_stream_is_ordered_behind_every_clearing_once(device, fake, stream):
    other = device.open_stream()
    address = device.allocate(8)
    for used in (stream, stream, other):
        device.fill(address, 8, used)
    assert [len(used.handle.waits) for used in (stream, other)] == [1, 1]
    device.allocate(8)
    device.fill(address, 8, stream)
    assert [len(used.handle.waits) for used in (stream, other)] == [2, 1]


def test_written_values_are_read_back(device, stream):
    address = device.allocate(64)
    device.write(address + 8, memoryview(b"written!"), stream)
    into = bytearray(16)
    device.read(address + 4, memoryview(into), stream)
    assert bytes(into) == bytes(4) + b"written!" + bytes(4)


@pytest.mark.parametrize(("offset", "size"), [(-1, 4), (61, 4), (64, 1), (0, 65), (2**63, 1)])
def test_a_copy_outside_one_allocation_never_reaches_the_driver(device, stream, offset, size):
    address = device.allocate(64)
    with pytest.raises(InvalidPointer):
        device.write(address + offset, bytes(size), stream)
    with pytest.raises(InvalidPointer):
        device.read(address + offset, memoryview(bytearray(size)), stream)


def test_a_read_into_bytes_is_a_bug_and_not_a_write_to_them(device, stream):
    address = device.allocate(8)
    with pytest.raises(InternalError):
        device.read(address, memoryview(b"constant"), stream)


@pytest.mark.parametrize("size", [2 << 30, 1 << 64, 1 << 200])
def test_more_memory_than_the_device_has_is_a_quota(device, size):
    with pytest.raises(QuotaExceeded):
        device.allocate(size)
    assert device.statistics() == DeviceStatistics()


def test_more_memory_than_is_left_is_a_quota(device):
    address = device.allocate(1 << 20)
    with pytest.raises(QuotaExceeded, match="error 2"):
        device.allocate(1 << 30)
    device.free(address)


def test_memory_is_freed_once(device, fake):
    address = device.allocate(8)
    device.free(address)
    with pytest.raises(InvalidHandle):
        device.free(address)
    assert fake.memory == {}


def test_pages_are_registered_and_counted(device, fake):
    device.register(16 * PAGE, 4 * PAGE)
    assert fake.registered == {16 * PAGE: 4 * PAGE}
    assert device.statistics() == DeviceStatistics(registrations=1, registered_bytes=4 * PAGE)
    device.unregister(16 * PAGE)
    assert device.statistics() == DeviceStatistics()
    assert fake.registered == {}


def test_pages_with_another_address_on_the_device_are_refused(device, fake):
    fake.shift = PAGE
    with pytest.raises(LaunchRefused, match="another address"):
        device.register(16 * PAGE, PAGE)
    assert fake.registered == {}
    assert device.statistics() == DeviceStatistics()


# ------------------------------------------------------------------------------------------------ modules


def test_a_module_is_loaded_as_text_with_its_final_nul(device, fake):
    device.load(parse(PTX), NEVER)
    assert fake.images[0].startswith(b".version 8.0")
    assert fake.images[0].endswith(b"\0")
    assert device.statistics().modules == 1


def test_the_compilers_log_is_in_the_error_without_paths(device, fake):
    fake.jit_log = b"ptxas /tmp/x.ptx, line 3; error   : no such thing\n"
    with (
        fake.failing("cuModuleLoadDataEx", 218),
        pytest.raises(MalformedPtx, match="line 3; error : no such thing") as e,
    ):
        device.load(parse(PTX), NEVER)
    assert "/tmp" not in e.value.message
    assert device.statistics() == DeviceStatistics()


@pytest.mark.parametrize(("code", "error"), [(222, UnsupportedPtx), (209, UnsupportedPtx), (200, MalformedPtx)])
def test_refusals_of_the_compiler_keep_their_kind(device, fake, code, error):
    with fake.failing("cuModuleLoadDataEx", code), pytest.raises(error) as e:
        device.load(parse(PTX), NEVER)
    assert type(e.value) is error


@pytest.mark.parametrize("text", [PTX.replace("8.0", "9.5"), PTX.replace("sm_80", "sm_120")])
def test_unsupported_features_are_refused_before_a_driver_call(device, fake, text):
    with pytest.raises(UnsupportedPtx):
        device.load(parse(text), NEVER)
    assert fake.images == []


def test_a_deadline_that_has_passed_ends_a_load_before_the_driver_sees_it(device, fake):
    with pytest.raises(InvokeTimeout):
        device.load(parse(PTX), Deadline.after(0))
    assert fake.images == []
    assert device.statistics() == DeviceStatistics()
    device.unload(device.load(parse(PTX), NEVER))


def test_a_module_is_unloaded_once(device):
    loaded = device.load(parse(PTX), NEVER)
    device.unload(loaded)
    with pytest.raises(InvalidHandle):
        device.unload(loaded)
    assert device.statistics() == DeviceStatistics()


# ----------------------------------------------------------------------------------------------- launches


def test_a_launch_passes_a_pointer_to_each_value(device, fake, scale, monkeypatch):
    seen = []

    def look(params: int) -> None:
        pointers = (ctypes.c_void_p * 3).from_address(params)
        seen.extend(ctypes.string_at(pointer, size) for pointer, size in zip(pointers, (8, 4, 8), strict=True))

    fake.on_launch = look
    values = [b"pointer!", b"u32!", b"float64!"]
    scale(args=values)
    assert seen == values
    assert device.statistics().launches == 1


def test_the_geometry_reaches_the_driver(fake, scale):
    scale(grid=(5, 6, 7), block=(4, 3, 2), shared=128)
    assert fake.launches[0] == ("scale", (5, 6, 7, 4, 3, 2, 128))


def test_shared_memory_beyond_48_kib_is_asked_for_once(fake, scale):
    for _ in range(2):
        scale(shared=100 << 10)
    assert fake.calls["cuFuncSetAttribute"] == 1
    assert len(fake.launches) == 2


@pytest.mark.parametrize(
    "geometry",
    [
        {"grid": (0, 1, 1)},
        {"grid": (2**31, 1, 1)},
        {"grid": (1, 65536, 1)},
        {"grid": (1, 1, 65536)},
        {"block": (1, 1, 65)},
        {"block": (0, 1, 1)},
        {"block": (1025, 1, 1)},
        {"block": (513, 1, 1)},
        {"shared": 232448 - 1024 + 1},
        {"shared": -1},
        {"entry": "shaped", "args": [], "block": (64, 1, 1)},
    ],
)
def test_a_geometry_outside_the_limits_never_reaches_the_driver(device, fake, scale, geometry):
    with pytest.raises(InvalidDimensions):
        scale(**geometry)
    assert fake.calls["cuLaunchKernel"] == 0
    assert device.statistics().launches == 0


def test_a_required_block_is_taken(scale):
    scale(entry="shaped", args=[], block=(32, 2, 1))


@pytest.mark.parametrize("args", [[], [bytes(8), bytes(4)], [bytes(8)] * 3, [bytes(8), bytes(4), bytes(8), bytes(1)]])
def test_arguments_that_do_not_fit_never_reach_the_driver(fake, scale, args):
    with pytest.raises(InvalidKernelArgs):
        scale(args=args)
    assert fake.calls["cuLaunchKernel"] == 0


def test_an_entry_that_is_not_there_is_named(scale):
    with pytest.raises(InvalidKernel):
        scale(entry="absent")


def test_after_the_deadline_nothing_is_launched_and_the_device_lives(device, fake, scale):
    with pytest.raises(InvokeTimeout):
        scale(deadline=expired())
    assert fake.launches == []
    scale()
    assert device.statistics().launches == 1


# ------------------------------------------------------------------------------------------------- waiting


def test_finished_work_is_waited_for_without_an_event(device, fake, scale, stream):
    scale()
    device.synchronize(stream, NONE)
    assert fake.calls["cuEventSynchronize"] == 0


def test_finished_work_is_finished_even_when_the_deadline_has_passed(device, scale, stream):
    scale()
    device.synchronize(stream, expired())


def test_long_work_is_waited_for_without_asking_again_and_again(device, fake, scale, stream):
    scale()
    fake.begin()
    fake.on_block = fake.finish
    device.synchronize(stream, NONE)
    assert fake.calls["cuEventSynchronize"] == 1


def test_a_kernel_that_ends_soon_after_its_deadline_fails_its_caller_alone(device, fake, scale, stream):
    scale(deadline=Deadline.after(0.01))
    fake.begin()
    with pytest.raises(InvokeTimeout):
        device.synchronize(stream, Deadline.after(0.02))
    device.free(device.allocate(8))
    fake.finish()
    device.synchronize(stream, NONE)


def test_a_kernel_that_outlives_its_deadline_loses_the_device(device, fake, scale, stream):
    address = device.allocate(8)
    scale()
    fake.begin()
    with pytest.raises(InvokeTimeout):
        device.synchronize(stream, expired())
    for use in (lambda: device.allocate(8), lambda: device.free(address), lambda: device.synchronize(stream, NONE)):
        with pytest.raises(DeviceLost, match="past its deadline"):
            use()
    assert device.statistics().allocations == 1
    device.close()
    assert len(fake.memory) == 1, "a running kernel may still write there"


@pytest.mark.parametrize("copy", ["read", "write"])
def test_a_copy_waits_for_earlier_work_no_longer_than_that_work_may_run(device, fake, scale, stream, copy):
    address = device.allocate(8)
    deadline = Deadline.after(0.05)
    scale(deadline=deadline)
    fake.begin()
    with pytest.raises(InvokeTimeout):
        getattr(device, copy)(address, memoryview(bytearray(8)), stream)


@pytest.mark.parametrize("function", ["cuStreamQuery", "cuEventSynchronize"])
def test_a_kernels_fault_is_reported_once_and_then_the_device_is_lost(device, fake, scale, stream, function):
    scale()
    if function == "cuEventSynchronize":
        fake.begin()
    with fake.failing(function, 700), pytest.raises(KernelFault, match="outside memory"):
        device.synchronize(stream, NONE)
    with pytest.raises(DeviceLost, match="outside memory"):
        device.open_stream()


# ------------------------------------------------------------------------------------------- the context


def test_the_callers_own_context_is_current_again_afterwards(device, fake):
    theirs = object()
    fake.stack().append(theirs)
    device.free(device.allocate(8))
    with pytest.raises(QuotaExceeded):
        device.allocate(2 << 30)
    assert fake.stack() == [theirs]


def test_the_context_is_bound_on_the_calling_thread(device):
    addresses = []
    threads = [threading.Thread(target=lambda: addresses.append(device.allocate(64))) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(addresses)) == 16
    assert device.statistics() == DeviceStatistics(allocations=16, allocated_bytes=16 * 64)


def test_the_context_is_retained_once_for_the_life_of_the_process(fake):
    driver = Driver(fake)
    for _ in range(3):
        open_with(driver, 0).close()
    assert fake.calls["cuDevicePrimaryCtxRetain"] == 1


def test_another_librarys_reset_is_survived_by_a_device_that_holds_nothing(device, fake):
    device.free(device.allocate(8))
    fake.reset()
    address = device.allocate(8)
    assert address in fake.memory
    assert fake.calls["cuDevicePrimaryCtxRetain"] == 2


def test_another_librarys_reset_and_retain_is_noticed_though_the_handle_is_the_same(device, fake):
    device.allocate(8)
    fake.reset()
    fake.cuDevicePrimaryCtxRetain(0)
    with pytest.raises(DeviceLost, match="reset"):
        device.allocate(8)


def test_another_librarys_reset_loses_a_device_that_holds_something(device, fake):
    device.allocate(8)
    fake.reset()
    with pytest.raises(DeviceLost, match="reset"):
        device.allocate(8)
    with pytest.raises(DeviceLost, match="reset"):
        device.open_stream()


# ------------------------------------------------------------------------------------------------- life


def operations(device):
    """Each operation of a device, ready to be tried."""
    stream = device.open_stream()
    address, loaded = device.allocate(64), device.load(parse(PTX), NEVER)
    spare, spare_stream, spare_module = device.allocate(64), device.open_stream(), device.load(parse(PTX), NEVER)
    device.register(64 * PAGE, PAGE)
    pages = count(100)
    args = [bytes(8), bytes(4), bytes(8)]
    config = LaunchConfig((1, 1, 1), (32, 1, 1), 100 << 10)
    return [
        lambda: device.allocate(64),
        lambda: device.register(next(pages) * PAGE, PAGE),
        lambda: device.write(address, b"12345678", stream),
        lambda: device.read(address, memoryview(bytearray(8)), stream),
        lambda: device.load(parse(PTX), NEVER),
        device.open_stream,
        lambda: device.launch(loaded, "scale", config, args, (), stream, NONE),
        lambda: device.synchronize(stream, NONE),
        lambda: device.free(spare),
        lambda: device.unregister(64 * PAGE),
        lambda: device.unload(spare_module),
        lambda: device.close_stream(spare_stream),
    ]


def test_close_gives_everything_back_and_is_idempotent(device, fake):
    operations(device)
    device.close()
    device.close()
    assert fake.leftovers() == []
    assert device.statistics() == DeviceStatistics()
    with pytest.raises(DeviceUnavailable, match="closed"):
        device.allocate(8)


def test_close_does_not_wait_for_a_kernel_that_never_ends(device, fake, scale):
    device.allocate(8)
    scale()
    fake.begin()
    device.close()
    assert fake.calls["cuMemFreeAsync"] == 0
    assert device.statistics().allocations == 1


def test_fifty_cycles_leave_threads_and_memory_where_they_were(fake):
    driver = Driver(fake)
    threads = set(threading.enumerate())
    for _ in range(50):
        device = open_with(driver, 0)
        operations(device)
        fake.begin()
        fake.on_block = fake.finish
        device.synchronize(device.open_stream(), NONE)
        device.close()
    assert set(threading.enumerate()) <= threads
    assert fake.leftovers() == []


def test_sixteen_threads_at_once_leave_exact_books(device, fake):
    loaded = device.load(parse(PTX), NEVER)
    failures = []

    def work(seed: int) -> None:
        try:
            stream = device.open_stream()
            for turn in range(20):
                address = device.allocate(64 + turn)
                device.write(address, bytes([seed]) * 64, stream)
                device.launch(
                    loaded,
                    "scale",
                    LaunchConfig((1, 1, 1), (32, 1, 1)),
                    [bytes(8), bytes(4), bytes(8)],
                    (),
                    stream,
                    NONE,
                )
                device.synchronize(stream, NONE)
                into = bytearray(64)
                device.read(address, memoryview(into), stream)
                assert set(into) == {seed}
                device.free(address)
            device.close_stream(stream)
        except Exception as error:  # noqa: BLE001 - shown by the assertion below
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert device.statistics() == DeviceStatistics(modules=1, launches=320)
    assert fake.memory == {}
