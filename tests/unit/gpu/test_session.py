"""A session lets nothing through that a device would have to refuse, and leaves nothing behind."""

import logging
import struct

import pytest

from fakes.device import FIRST_ADDRESS, FakeDevice
from strategies.kernels import BY_VALUE, FILL, NOTHING, VECTOR_ADD, padded, with_global
from tensorwasm.errors import (
    CapacityExhausted,
    DeviceLost,
    DeviceUnavailable,
    InternalError,
    InvalidArgs,
    InvalidDimensions,
    InvalidHandle,
    InvalidKernel,
    InvalidKernelArgs,
    InvokeTimeout,
    KernelArgsUnsupported,
    KernelFault,
    LaunchRefused,
    MalformedPtx,
    QuotaExceeded,
    UnsupportedPtx,
)
from tensorwasm.gpu.device.arguments import BufferOffset, HostWindow, Scalar
from tensorwasm.gpu.device.limits import SessionLimits
from tensorwasm.gpu.limits.accounts import PROCESS_LEDGER, MemoryLedger, MemoryLedgerStatistics
from tensorwasm.gpu.limits.gate import PROCESS_GATE, Gate
from tensorwasm.gpu.session import Session, SessionStatistics
from tensorwasm.values import MIB, Deadline, LaunchConfig, Region

ONE = LaunchConfig((1, 1, 1), (1, 1, 1))
NEVER = Deadline()
MEMORY = Region(1 << 46, 1 << 16, host=True)
GROWN = Region(1 << 46, 3 << 16, host=True)


@pytest.fixture
def device():
    device = FakeDevice()
    yield device
    assert device.broken == []


@pytest.fixture
def ledger():
    return MemoryLedger()


@pytest.fixture
def gate():
    return Gate(2)


@pytest.fixture
def session(device, ledger, gate):
    with Session(device, ledger=ledger, gate=gate) as session:
        yield session
    assert gate.in_use == 0


def word(value):
    return Scalar(struct.pack("<I", value))


def quad(value):
    return Scalar(struct.pack("<Q", value))


def run(session, kernel, *arguments, config=ONE, memory=MEMORY, deadline=NEVER):
    session.kernels.launch(kernel, config, lambda: arguments, memory, deadline)


# ------------------------------------------------------------------------------------------------------ buffers


def test_handles_start_at_1_and_are_never_used_twice(session):
    assert [session.buffers.allocate(1), session.buffers.allocate(1)] == [1, 2]
    session.buffers.free(2, NEVER)
    session.buffers.free(1, NEVER)
    assert session.buffers.allocate(1) == 3


@pytest.mark.parametrize("size", [0, -1])
def test_no_buffer_is_empty(session, device, size):
    with pytest.raises(InvalidArgs):
        session.buffers.allocate(size)
    assert device.calls == []


def test_one_allocation_has_at_most_256_mib(session, ledger):
    with pytest.raises(QuotaExceeded):
        session.buffers.allocate(256 * MIB + 1)
    session.buffers.allocate(256 * MIB)
    assert ledger.statistics() == MemoryLedgerStatistics(1, 256 * MIB)


@pytest.mark.parametrize("size", [1 << 31, 1 << 32, 1 << 53, 1 << 63, (1 << 64) - 1])
def test_absurd_sizes_are_over_quota(session, size):
    with pytest.raises(QuotaExceeded):
        session.buffers.allocate(size)


def test_an_instance_has_at_most_4_gib(session, device):
    for _ in range(16):
        session.buffers.allocate(256 * MIB)
    with pytest.raises(QuotaExceeded):
        session.buffers.allocate(1)
    session.buffers.free(7, NEVER)
    session.buffers.allocate(256 * MIB)
    assert device.statistics().allocated_bytes == 4096 * MIB


def test_an_instance_has_at_most_4096_buffers(session, device):
    for _ in range(4096):
        session.buffers.allocate(1)
    with pytest.raises(QuotaExceeded):
        session.buffers.allocate(1)
    session.buffers.free(1, NEVER)
    assert session.buffers.allocate(1) == 4097
    assert session.statistics().allocations == 4096


def test_a_process_has_at_most_64_gib_and_16384_buffers(device):
    ledger = MemoryLedger()
    sessions = [Session(device, ledger=ledger) for _ in range(17)]
    for session in sessions[:16]:
        for _ in range(16):
            session.buffers.allocate(256 * MIB)
    assert ledger.statistics().device_bytes == 64 << 30
    with pytest.raises(QuotaExceeded):
        sessions[16].buffers.allocate(1)
    sessions[0].close()
    sessions[16].buffers.allocate(256 * MIB)
    for session in sessions:
        session.close()
    assert ledger.statistics() == MemoryLedgerStatistics(0, 0)
    ledger.reserve(0, allocations=16384)
    with pytest.raises(QuotaExceeded):
        Session(device, ledger=ledger).buffers.allocate(1)


def test_an_allocation_that_the_device_refuses_is_refunded(session, device, ledger):
    device.failing["pool_allocate"] = QuotaExceeded("the device is full")
    with pytest.raises(QuotaExceeded):
        session.buffers.allocate(100)
    device.failing.clear()
    assert session.statistics() == SessionStatistics(quota_refusals=1)
    assert ledger.statistics() == MemoryLedgerStatistics(0, 0)
    assert session.buffers.allocate(100) == 1


def test_bytes_come_back_as_they_went(session):
    handle = session.buffers.allocate(8)
    into = bytearray(8)
    session.buffers.read(handle, memoryview(into), NEVER)
    assert into == bytes(8)
    session.buffers.write(handle, b"12345678", NEVER)
    session.buffers.write(handle, memoryview(b"ab"), NEVER)
    session.buffers.read(handle, memoryview(into), NEVER)
    assert into == b"ab345678"


@pytest.mark.rule("5-copies")
def test_a_copy_is_no_longer_than_its_buffer(session, device):
    handle = session.buffers.allocate(8)
    with pytest.raises(InvalidArgs):
        session.buffers.write(handle, bytes(9), NEVER)
    with pytest.raises(InvalidArgs):
        session.buffers.read(handle, memoryview(bytearray(9)), NEVER)
    session.buffers.write(handle, bytes(8), NEVER)
    session.buffers.read(handle, memoryview(bytearray(8)), NEVER)
    assert [call for call in device.calls if call in {"write", "read"}] == ["write", "read"]


def test_an_empty_copy_moves_nothing(session, device):
    handle = session.buffers.allocate(8)
    session.buffers.write(handle, b"", NEVER)
    session.buffers.read(handle, memoryview(bytearray()), NEVER)
    assert not {"write", "read"} & set(device.calls)


@pytest.mark.parametrize("handle", [0, 2, -1, 1 << 32, (1 << 64) - 1])
def test_handles_that_do_not_exist(session, handle):
    session.buffers.allocate(8)
    for use in (
        lambda: session.buffers.free(handle, NEVER),
        lambda: session.buffers.write(handle, b"", NEVER),
        lambda: session.buffers.read(handle, memoryview(bytearray()), NEVER),
    ):
        with pytest.raises(InvalidHandle):
            use()


def test_a_buffer_is_freed_once(session):
    handle = session.buffers.allocate(8)
    session.buffers.free(handle, NEVER)
    with pytest.raises(InvalidHandle):
        session.buffers.free(handle, NEVER)


# ------------------------------------------------------------------------------------------------------ kernels


def test_kernel_ids_are_positive_and_count_up_from_a_random_start(device):
    starts = set()
    for _ in range(20):
        with Session(device, ledger=MemoryLedger()) as session:
            first = session.kernels.load(NOTHING, "nothing", NEVER)
            assert 0 < first < 1 << 63
            assert first & 0xFFFF == 1
            assert session.kernels.load(NOTHING, "nothing", NEVER) == first + 1
            starts.add(first)
    assert len(starts) == 20


def test_another_sessions_kernel_is_no_kernel(session, device):
    with Session(device, ledger=MemoryLedger()) as other:
        foreign = other.kernels.load(NOTHING, "nothing", NEVER)
        with pytest.raises(InvalidKernel):
            run(session, foreign)


def test_an_entry_must_exist(session, device):
    with pytest.raises(InvalidKernel):
        session.kernels.load(NOTHING, "something", NEVER)
    assert device.calls == []


@pytest.mark.parametrize("text", [b"", b"\0", b"\xff", b"{" * 1000, NOTHING + b"\0\0", b"hello", NOTHING[:-3]])
def test_text_that_is_no_ptx(session, device, text):
    with pytest.raises(MalformedPtx):
        session.kernels.load(text, "nothing", NEVER)
    assert session.statistics() == SessionStatistics()
    assert device.calls == []


def test_a_kernel_that_the_device_cannot_load_is_refunded(session, device, ledger):
    device.failures["load"] = UnsupportedPtx("no such instruction")
    with pytest.raises(UnsupportedPtx):
        session.kernels.load(with_global(100), "nothing", NEVER)
    assert session.statistics() == SessionStatistics()
    assert ledger.statistics() == MemoryLedgerStatistics(0, 0)
    session.kernels.load(NOTHING, "nothing", NEVER)


def test_an_instance_has_at_most_256_kernels(session):
    for _ in range(256):
        session.kernels.load(NOTHING, "nothing", NEVER)
    with pytest.raises(QuotaExceeded):
        session.kernels.load(NOTHING, "nothing", NEVER)


def test_a_text_has_at_most_its_limit(device):
    limits = SessionLimits(ptx_bytes=1000)
    with Session(device, limits, MemoryLedger()) as session:
        session.kernels.load(padded(NOTHING, 1000), "nothing", NEVER)
        with pytest.raises(QuotaExceeded):
            session.kernels.load(padded(NOTHING, 1001), "nothing", NEVER)


def test_all_texts_together_have_a_limit(device):
    limits = SessionLimits(total_ptx_bytes=2000)
    with Session(device, limits, MemoryLedger()) as session:
        session.kernels.load(padded(NOTHING, 1000), "nothing", NEVER)
        with pytest.raises(QuotaExceeded):
            session.kernels.load(padded(NOTHING, 1001), "nothing", NEVER)
        session.kernels.load(padded(NOTHING, 1000), "nothing", NEVER)
        assert session.statistics().ptx_bytes == 2000


def test_the_numbers_are_the_abis():
    assert SessionLimits() == SessionLimits(8 * MIB, 512 * MIB, 256, 256 * MIB, 4096, 4096 * MIB)


def test_variables_of_a_module_are_charged(session, device, ledger):
    session.kernels.load(with_global(256 * MIB), "nothing", NEVER)
    assert ledger.statistics() == MemoryLedgerStatistics(0, 256 * MIB)
    with pytest.raises(QuotaExceeded):
        session.kernels.load(with_global(256 * MIB + 1), "nothing", NEVER)
    for _ in range(15):
        session.kernels.load(with_global(256 * MIB), "nothing", NEVER)
    with pytest.raises(QuotaExceeded):
        session.buffers.allocate(1)
    session.close()
    assert ledger.statistics() == MemoryLedgerStatistics(0, 0)


@pytest.mark.parametrize(
    "hidden",
    [b".global .align 4 .b8 t[64];", b"{ .const .align 4 .b8 t[64]; }", b"{ { .global .b32 t[8], u[8]; } }"],
)
def test_variables_inside_a_kernel_are_charged_too(session, ledger, hidden):
    session.kernels.load(NOTHING.replace(b"ret;", hidden + b"ret;"), "nothing", NEVER)
    assert ledger.statistics() == MemoryLedgerStatistics(0, 64)


def test_memory_that_a_kernel_keeps_elsewhere_is_not_charged(session, ledger):
    declared = b".local .b8 l[64]; .shared .b8 s[64]; .reg .b32 %r<64>; ret;"
    session.kernels.load(NOTHING.replace(b"ret;", declared), "nothing", NEVER)
    assert ledger.statistics() == MemoryLedgerStatistics(0, 0)


# ----------------------------------------------------------------------------------------------------- launches


def test_a_launch_brings_packed_values_and_all_regions(session, device):
    kernel = session.kernels.load(VECTOR_ADD, "vector_add", NEVER)
    first, second = session.buffers.allocate(16), session.buffers.allocate(32)
    config = LaunchConfig((4, 1, 1), (64, 1, 1), 128)
    arguments = HostWindow(MEMORY.address + 64, 16), BufferOffset(first, 4), BufferOffset(second, 0), word(7)
    run(session, kernel, *arguments, config=config)
    (launch,) = device.launched
    addresses = FIRST_ADDRESS, FIRST_ADDRESS + 256
    assert (launch.entry, launch.config) == ("vector_add", config)
    assert [int.from_bytes(value, "little") for value in launch.args] == [
        MEMORY.address + 64,
        addresses[0] + 4,
        addresses[1],
        7,
    ]
    assert launch.regions == (Region(addresses[0], 16, host=False), Region(addresses[1], 32, host=False), MEMORY)
    assert device.busy == set()
    assert session.statistics().kernels_launched == 1


def test_two_windows_on_the_same_bytes_are_the_same_address(session, device):
    kernel = session.kernels.load(VECTOR_ADD, "vector_add", NEVER)
    window = HostWindow(MEMORY.address, 16)
    run(session, kernel, window, window, window, word(4))
    assert len(set(device.launched[0].args[:3])) == 1
    assert device.calls.count("register") == 1


def test_memory_is_registered_for_windows_only(session, device):
    kernel = session.kernels.load(FILL, "fill", NEVER)
    run(session, kernel, BufferOffset(session.buffers.allocate(4), 0), word(1))
    assert device.registered == {}
    run(session, kernel, HostWindow(MEMORY.address, 4), word(1))
    run(session, kernel, HostWindow(MEMORY.address, 4), word(1))
    assert device.registered == {MEMORY.address: MEMORY.size_bytes}
    assert device.calls.count("register") == 1
    assert session.statistics().pinned_bytes == MEMORY.size_bytes


def test_grown_memory_is_registered_anew_so_that_a_window_may_span_old_and_new(session, device):
    kernel = session.kernels.load(FILL, "fill", NEVER)
    run(session, kernel, HostWindow(MEMORY.address, 4), word(1))
    run(session, kernel, HostWindow(MEMORY.end - 4, 8), word(1), memory=GROWN)
    assert device.registered == {GROWN.address: GROWN.size_bytes}
    assert device.launched[-1].regions == (GROWN,)


@pytest.mark.rule("3-registration")
def test_growth_while_work_is_in_flight_waits_and_keeps_its_permit(session, device, gate):
    kernel = session.kernels.load(FILL, "fill", NEVER)
    session.kernels.submit(kernel, ONE, lambda: (HostWindow(MEMORY.address, 4), word(1)), MEMORY, NEVER)
    session.kernels.submit(kernel, ONE, lambda: (HostWindow(MEMORY.end, 4), word(1)), GROWN, NEVER)
    assert gate.in_use == 1
    session.streams.synchronize(NEVER)
    assert gate.in_use == 0


def test_memory_that_cannot_be_registered_refuses_the_launch(session, device, gate):
    kernel = session.kernels.load(FILL, "fill", NEVER)
    device.failures["register"] = LaunchRefused("too much is pinned")
    with pytest.raises(LaunchRefused):
        run(session, kernel, HostWindow(MEMORY.address, 4), word(1))
    assert (device.launched, gate.in_use, session.statistics().pinned_bytes) == ([], 0, 0)
    run(session, kernel, HostWindow(MEMORY.address, 4), word(1))


def test_growth_that_cannot_be_registered_leaves_nothing_registered(session, device):
    kernel = session.kernels.load(FILL, "fill", NEVER)
    run(session, kernel, HostWindow(MEMORY.address, 4), word(1))
    device.failures["register"] = LaunchRefused("too much is pinned")
    with pytest.raises(LaunchRefused):
        run(session, kernel, HostWindow(MEMORY.address, 4), word(1), memory=GROWN)
    assert device.registered == {}
    with pytest.raises(LaunchRefused):
        run(session, kernel, quad(MEMORY.address), word(1), memory=GROWN)
    run(session, kernel, HostWindow(MEMORY.address, 4), word(1), memory=GROWN)


def test_memory_without_a_page_is_never_registered(session, device):
    kernel = session.kernels.load(FILL, "fill", NEVER)
    run(session, kernel, HostWindow(MEMORY.address, 0), word(1), memory=Region(MEMORY.address, 0, host=True))
    assert device.launched[0].args[0] == bytes(8)
    assert "register" not in device.calls


def test_memory_that_is_not_whole_pages_is_a_bug_here(session):
    kernel = session.kernels.load(FILL, "fill", NEVER)
    with pytest.raises(InternalError):
        run(session, kernel, HostWindow(MEMORY.address, 4), word(1), memory=Region(MEMORY.address + 1, 4096, host=True))


@pytest.mark.parametrize(
    "pointer", [0, 4096, 1 << 46, (1 << 46) + (1 << 16), (1 << 64) - 8, pytest.param(id(FILL) & ~7, id="heap")]
)
@pytest.mark.rule("5-first")
def test_a_number_for_a_pointer_is_refused_before_the_device_sees_it(session, device, pointer):
    kernel = session.kernels.load(FILL, "fill", NEVER)
    with pytest.raises(LaunchRefused):
        run(session, kernel, quad(pointer), word(1))
    assert device.launched == []
    assert session.failure is None


@pytest.mark.rule("5-owned")
def test_another_sessions_buffer_is_refused(session, device):
    with Session(device, ledger=MemoryLedger()) as other:
        other.buffers.allocate(64)
        (foreign,) = device.memory
        kernel = session.kernels.load(FILL, "fill", NEVER)
        with pytest.raises(LaunchRefused):
            run(session, kernel, quad(foreign), word(1))
        with pytest.raises(InvalidHandle):
            run(session, kernel, BufferOffset(1, 0), word(1))


def test_a_freed_buffer_is_refused(session, device):
    kernel, handle = session.kernels.load(FILL, "fill", NEVER), session.buffers.allocate(64)
    (address,) = device.memory
    session.buffers.free(handle, NEVER)
    with pytest.raises(InvalidHandle):
        run(session, kernel, BufferOffset(handle, 0), word(1))
    with pytest.raises(LaunchRefused):
        run(session, kernel, quad(address), word(1))


def test_structures_by_value_cannot_be_passed(session):
    kernel = session.kernels.load(BY_VALUE, "by_value", NEVER)
    with pytest.raises(KernelArgsUnsupported):
        run(session, kernel, quad(0))


def test_checks_come_in_the_order_of_the_abi(session, device, ledger):
    full = Session(device, ledger=ledger, gate=Gate(0))
    kernel = full.kernels.load(FILL, "fill", NEVER)
    with pytest.raises(InvalidDimensions):
        run(full, 5, config=LaunchConfig((0, 1, 1), (1, 1, 1)))
    with pytest.raises(CapacityExhausted):
        full.kernels.launch(kernel, ONE, lambda: pytest.fail("arguments are read once there is a place"), MEMORY, NEVER)
    assert full.statistics().back_pressure_rejections == 1
    full.close()

    def damaged():
        raise InvalidKernelArgs("damaged")

    with pytest.raises(InvalidKernelArgs):
        session.kernels.launch(5, ONE, damaged, MEMORY, NEVER)
    with pytest.raises(InvalidKernel):
        run(session, 5, HostWindow(MEMORY.address, 4))
    assert "register" not in device.calls
    kernel = session.kernels.load(FILL, "fill", NEVER)
    with pytest.raises(InvalidDimensions):
        run(session, kernel, config=LaunchConfig((1, 1, 1), (1, 1, 1), 228 * 1024 + 1))
    with pytest.raises(InvalidKernelArgs):
        run(session, kernel, word(1))
    assert device.launched == []


@pytest.mark.parametrize("error", [InvalidDimensions("z"), LaunchRefused("no"), QuotaExceeded("no memory")])
def test_a_launch_the_device_refuses_changes_nothing(session, device, gate, error):
    kernel = session.kernels.load(NOTHING, "nothing", NEVER)
    device.failures["launch"] = error
    with pytest.raises(type(error)):
        run(session, kernel)
    assert (session.failure, gate.in_use, session.statistics().kernels_launched) == (None, 0, 0)
    run(session, kernel)


def test_a_refusal_while_work_is_in_flight_keeps_the_permit(session, device, gate):
    kernel = session.kernels.load(NOTHING, "nothing", NEVER)
    session.kernels.submit(kernel, ONE, tuple, None, NEVER)
    device.failures["launch"] = LaunchRefused("no")
    with pytest.raises(LaunchRefused):
        session.kernels.submit(kernel, ONE, tuple, None, NEVER)
    assert gate.in_use == 1
    session.streams.synchronize(NEVER)


# ---------------------------------------------------------------------------------------------- in flight, faults


@pytest.mark.parametrize("use", ["free", "write", "read", "close"])
def test_work_in_flight_ends_before_what_it_reaches_is_touched(session, device, use):
    kernel, handle = session.kernels.load(NOTHING, "nothing", NEVER), session.buffers.allocate(4)
    session.kernels.submit(kernel, ONE, tuple, None, NEVER)
    assert device.busy
    uses = {
        "free": lambda: session.buffers.free(handle, NEVER),
        "write": lambda: session.buffers.write(handle, b"1234", NEVER),
        "read": lambda: session.buffers.read(handle, memoryview(bytearray(4)), NEVER),
        "close": session.close,
    }
    uses[use]()
    assert not device.busy


def test_a_handle_that_does_not_exist_waits_for_nothing(session, device):
    session.kernels.submit(session.kernels.load(NOTHING, "nothing", NEVER), ONE, tuple, None, NEVER)
    with pytest.raises(InvalidHandle):
        session.buffers.free(9, NEVER)
    assert device.busy


FAULTS = [
    KernelFault("thread 3"),
    InvokeTimeout("too late"),
    DeviceLost("gone"),
    RuntimeError("a bug"),
    KeyboardInterrupt(),
]


@pytest.mark.parametrize("where", ["launch", "synchronize", "open_stream"])
@pytest.mark.parametrize("error", FAULTS, ids=lambda error: type(error).__name__)
def test_after_a_fault_a_session_does_nothing_but_close(session, device, ledger, gate, where, error):
    kernel, handle = session.kernels.load(FILL, "fill", NEVER), 1
    if where != "open_stream":
        handle = session.buffers.allocate(4)
        session.streams.synchronize(NEVER)
    device.failures[where] = error
    with pytest.raises(type(error)):
        run(session, kernel, HostWindow(MEMORY.address, 4), word(1))
    assert session.failure is error
    called = list(device.calls)
    for use in (
        lambda: session.buffers.allocate(4),
        lambda: session.buffers.free(handle, NEVER),
        lambda: session.buffers.write(handle, b"", NEVER),
        lambda: session.buffers.read(handle, memoryview(bytearray()), NEVER),
        lambda: session.kernels.load(NOTHING, "nothing", NEVER),
        lambda: run(session, kernel),
        lambda: session.streams.synchronize(NEVER),
    ):
        with pytest.raises(DeviceLost):
            use()
    assert device.calls == called
    session.close()
    assert device.holds_nothing()
    assert ledger.statistics() == MemoryLedgerStatistics(0, 0)
    assert gate.in_use == 0


def test_a_load_that_ran_out_of_time_has_changed_nothing(session, device, ledger):
    kernel = session.kernels.load(NOTHING, "nothing", NEVER)
    before, charged = session.statistics(), ledger.statistics()
    with pytest.raises(InvokeTimeout):
        session.kernels.load(NOTHING, "nothing", Deadline.after(0))
    assert device.calls == ["load"]
    device.failures["load"] = InvokeTimeout("the deadline passed")
    with pytest.raises(InvokeTimeout):
        session.kernels.load(with_global(64), "nothing", NEVER)
    assert (session.statistics(), ledger.statistics(), session.failure) == (before, charged, None)
    run(session, kernel)
    assert session.kernels.load(NOTHING, "nothing", NEVER) == kernel + 1


def test_a_load_that_this_machine_cannot_do_has_changed_nothing(session, device, ledger):
    kernel = session.kernels.load(NOTHING, "nothing", NEVER)
    before, charged = session.statistics(), ledger.statistics()
    device.failures["load"] = DeviceUnavailable("this machine cannot run ptxas: no space left")
    with pytest.raises(DeviceUnavailable):
        session.kernels.load(with_global(64), "nothing", NEVER)
    assert (session.statistics(), ledger.statistics(), session.failure) == (before, charged, None)
    run(session, kernel)


def test_a_session_is_over_once_closed(session, device):
    session.close()
    session.close()
    with pytest.raises(DeviceLost, match="closed"):
        session.buffers.allocate(1)


def test_close_releases_everything(session, device, ledger):
    run(session, session.kernels.load(FILL, "fill", NEVER), HostWindow(MEMORY.address, 4), word(1))
    session.kernels.load(with_global(64), "nothing", NEVER)
    session.buffers.allocate(64)
    session.close()
    assert device.holds_nothing()
    assert ledger.statistics() == MemoryLedgerStatistics(0, 0)
    assert session.statistics() == SessionStatistics(kernels_launched=1)


def test_an_unused_session_asks_nothing_of_the_device(device):
    Session(device, ledger=MemoryLedger()).close()
    assert device.calls == []


@pytest.mark.rule("3-registration", "3-buffer")
def test_work_that_outlives_its_session_keeps_what_it_can_reach(device, caplog):
    ledger, gate = MemoryLedger(), Gate(1)
    session = Session(device, ledger=ledger, gate=gate)
    handle = session.buffers.allocate(64)
    kernel = session.kernels.load(FILL, "fill", NEVER)
    session.streams.synchronize(NEVER)
    device.failures["synchronize"] = InvokeTimeout("too late")
    with pytest.raises(InvokeTimeout):
        run(session, kernel, HostWindow(MEMORY.address, 4), word(1))
    device.failures["synchronize"] = InvokeTimeout("still running")
    with caplog.at_level(logging.ERROR):
        session.close()
    assert "outlived" in caplog.text
    assert session.statistics().abandoned
    assert (len(device.memory), len(device.registered), len(device.modules), len(device.streams)) == (1, 1, 1, 1)
    assert ledger.statistics() == MemoryLedgerStatistics(1, 256)
    assert gate.in_use == 1
    assert handle == 1


def test_a_lost_device_is_logged_and_counted_and_not_raised(device, caplog):
    ledger, gate = MemoryLedger(), Gate(1)
    session = Session(device, ledger=ledger, gate=gate)
    session.buffers.allocate(64)
    session.buffers.allocate(64)
    kernel = session.kernels.load(FILL, "fill", NEVER)
    session.streams.synchronize(NEVER)
    device.failures["synchronize"] = DeviceLost("gone")
    with pytest.raises(DeviceLost):
        run(session, kernel, HostWindow(MEMORY.address, 4), word(1))
    device.failures.update(
        dict.fromkeys(["synchronize", "unload", "close_event", "unregister", "close_stream"], DeviceLost("gone"))
    )
    with caplog.at_level(logging.ERROR):
        session.close()
    assert session.statistics().release_failures == 4
    assert session.statistics().abandoned
    assert "failed to release 4 things" in caplog.text
    assert ledger.statistics() == MemoryLedgerStatistics(0, 0)
    assert gate.in_use == 0


def test_pages_that_stay_registered_are_abandoned_even_without_work_of_the_sessions_own(device, caplog):
    session = Session(device, ledger=MemoryLedger(), gate=Gate(1))
    run(session, session.kernels.load(FILL, "fill", NEVER), HostWindow(MEMORY.address, 4), word(1))
    device.failures["unregister"] = DeviceLost("another session's kernel never ended")
    with caplog.at_level(logging.ERROR):
        session.close()
    assert session.statistics().abandoned
    assert session.statistics().pinned_bytes == MEMORY.size_bytes


def test_a_kernel_that_faulted_gives_its_permit_back_at_once(device):
    gate = Gate(1)
    with Session(device, ledger=MemoryLedger(), gate=gate) as session:
        kernel = session.kernels.load(NOTHING, "nothing", NEVER)
        device.failures["launch"] = KernelFault("thread 0")
        with pytest.raises(KernelFault):
            run(session, kernel)
        assert gate.in_use == 0, "its guest may go on for long"


def test_a_fault_found_at_close_is_an_end_of_work(device):
    session = Session(device, ledger=MemoryLedger(), gate=Gate(1))
    session.kernels.submit(session.kernels.load(NOTHING, "nothing", NEVER), ONE, tuple, None, NEVER)
    device.failures["synchronize"] = KernelFault("thread 0")
    session.close()
    assert device.holds_nothing()
    assert not session.statistics().abandoned


def test_sessions_share_the_gate(device):
    gate = Gate(1)
    with (
        Session(device, ledger=MemoryLedger(), gate=gate) as one,
        Session(device, ledger=MemoryLedger(), gate=gate) as two,
    ):
        one.kernels.submit(one.kernels.load(NOTHING, "nothing", NEVER), ONE, tuple, None, NEVER)
        kernel = two.kernels.load(NOTHING, "nothing", NEVER)
        with pytest.raises(CapacityExhausted):
            run(two, kernel, deadline=Deadline.after(0.01))
        assert two.statistics().back_pressure_rejections == 1
        one.streams.synchronize(NEVER)
        run(two, kernel)


def test_the_process_shares_one_ledger_and_one_gate(device):
    # A kernel that never ends keeps its place for the life of the process: other tests may have left some.
    charged, taken = PROCESS_LEDGER.statistics(), PROCESS_GATE.in_use
    with Session(device) as session:
        session.buffers.allocate(10)
        assert PROCESS_LEDGER.statistics() == MemoryLedgerStatistics(
            charged.allocations + 1, charged.device_bytes + 256
        )
        session.kernels.submit(session.kernels.load(NOTHING, "nothing", NEVER), ONE, tuple, None, NEVER)
        assert PROCESS_GATE.in_use == taken + 1
    assert PROCESS_LEDGER.statistics() == charged
    assert PROCESS_GATE.in_use == taken
