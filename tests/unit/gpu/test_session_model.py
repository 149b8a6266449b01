"""Any sequence of operations leaves the session, the ledger and the device where a plain model says."""

import struct

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from fakes.device import FakeDevice
from strategies.kernels import FILL, with_global
from tensorwasm.errors import (
    DeviceLost,
    InvalidArgs,
    InvalidHandle,
    InvokeTimeout,
    KernelFault,
    LaunchRefused,
    MalformedPtx,
    QuotaExceeded,
)
from tensorwasm.gpu.launch import BufferOffset, HostWindow, Scalar
from tensorwasm.gpu.limits import SessionLimits
from tensorwasm.gpu.quota import Gate, Ledger, LedgerStatistics
from tensorwasm.gpu.session import Session
from tensorwasm.values import WASM_PAGE_BYTES, Deadline, LaunchConfig, Region

NEVER = Deadline()
ONE = LaunchConfig((1, 1, 1), (1, 1, 1))
LIMITS = SessionLimits(allocation_bytes=60, allocations=4, device_bytes=150, kernels=3)
PROCESS_BYTES, PROCESS_ALLOCATIONS = 170, 5
BYSTANDER_BYTES = 30
ADDRESS = 1 << 46
sizes = st.integers(0, 70)
refusal = st.none() | st.sampled_from([QuotaExceeded("full"), LaunchRefused("no")])
faults = st.sampled_from([KernelFault("thread 1"), InvokeTimeout("late"), DeviceLost("gone"), ValueError("a bug")])


class SessionModel(RuleBasedStateMachine):
    """One session after another on one device, beside a bystander that must not notice."""

    handles = Bundle("handles")

    @initialize(target=handles)
    def start(self):
        self.device = FakeDevice()
        self.ledger = Ledger(PROCESS_BYTES, PROCESS_ALLOCATIONS)
        self.gate = Gate(1)
        self.bystander = Session(self.device, ledger=self.ledger, gate=Gate(1))
        self.bystander.allocate(BYSTANDER_BYTES)
        self.launches = 0
        self.open()
        return multiple(0, 99, 1 << 63)

    def open(self):
        self.session = Session(self.device, LIMITS, self.ledger, self.gate)
        self.buffers = {}
        self.issued = 0
        self.kernels = {}
        self.pinned = 0
        self.in_flight = False
        self.pages = 1
        self.over = False

    def expect(self, error, use):
        """Run a use that raises that error, or DeviceLost on a session that is over."""
        expected = DeviceLost if self.over else error
        if expected is None:
            return use()
        try:
            use()
        except expected:
            return None
        raise AssertionError(f"no {expected.__name__}")

    def bytes_held(self):
        return sum(len(content) for content in self.buffers.values()) + sum(self.kernels.values())

    def room(self, size):
        held = self.bytes_held() + size
        return size <= 60 and held <= LIMITS.device_bytes and held + BYSTANDER_BYTES <= PROCESS_BYTES

    @rule(target=handles, size=sizes, refused=refusal)
    def allocate(self, size, refused):
        if refused is not None:
            self.device.failures["allocate"] = refused
        count = len(self.buffers)
        if size == 0:
            error = InvalidArgs
        elif not self.room(size) or count + 1 > LIMITS.allocations or count + 2 > PROCESS_ALLOCATIONS:
            error = QuotaExceeded
        else:
            error = type(refused) if refused else None
        handle = self.expect(error, lambda: self.session.allocate(size))
        self.device.failures.clear()
        if handle is None:
            return multiple()
        self.issued += 1
        assert handle == self.issued
        self.buffers[handle] = bytearray(size)
        return handle

    @rule(handle=consumes(handles))
    def free(self, handle):
        self.expect(None if handle in self.buffers else InvalidHandle, lambda: self.session.free(handle, NEVER))
        if not self.over and self.buffers.pop(handle, None) is not None:
            self.in_flight = False

    @rule(handle=handles, data=st.binary(max_size=70))
    def write(self, handle, data):
        error = self.copy_error(handle, len(data))
        self.expect(error, lambda: self.session.write(handle, data, NEVER))
        if not self.over and error is None:
            self.buffers[handle][: len(data)] = data
            self.in_flight = False

    @rule(handle=handles, length=sizes)
    def read(self, handle, length):
        error = self.copy_error(handle, length)
        into = bytearray(b"\xaa" * length)
        self.expect(error, lambda: self.session.read(handle, memoryview(into), NEVER))
        if not self.over and error is None:
            assert into == self.buffers[handle][:length]
            self.in_flight = False
        else:
            assert into == b"\xaa" * length

    def copy_error(self, handle, length):
        if handle not in self.buffers:
            return InvalidHandle
        return InvalidArgs if length > len(self.buffers[handle]) else None

    @rule(size=sizes.filter(bool) | st.none(), refused=st.none() | st.just(MalformedPtx("no")))
    def load(self, size, refused):
        text, entry = (FILL, "fill") if size is None else (with_global(size), "nothing")
        if refused is not None:
            self.device.failures["load"] = refused
        if len(self.kernels) == LIMITS.kernels or not self.room(size or 0):
            error = QuotaExceeded
        else:
            error = type(refused) if refused else None
        kernel = self.expect(error, lambda: self.session.load(text, entry, NEVER))
        self.device.failures.clear()
        if kernel is not None:
            assert kernel not in self.kernels
            self.kernels[kernel] = size or 0

    @precondition(lambda self: 0 in self.kernels.values())
    @rule(
        handle=handles | st.none(),
        grow=st.booleans(),
        offset=st.integers(0, 70).map(lambda n: n & ~3),
        refused=st.none() | st.just(LaunchRefused("no")),
        wait=st.booleans(),
    )
    def launch(self, handle, grow, offset, refused, wait):
        kernel = next(kernel for kernel, size in self.kernels.items() if size == 0)
        self.pages += grow
        memory = Region(ADDRESS, self.pages * WASM_PAGE_BYTES, host=True)
        argument = HostWindow(memory.end - 4, 4) if handle is None else BufferOffset(handle, offset)
        if refused is not None:
            self.device.failures["launch"] = refused
        error = type(refused) if refused else None
        if handle is not None and handle not in self.buffers:
            error = InvalidHandle
        elif handle is not None and offset >= len(self.buffers[handle]):
            error = LaunchRefused
        use = self.session.launch if wait else self.session.submit
        arguments = (argument, Scalar(struct.pack("<I", 7)))
        self.expect(error, lambda: use(kernel, ONE, lambda: arguments, memory, NEVER))
        self.device.failures.clear()
        if self.over:
            return
        if handle is None:
            if self.pinned != memory.size_bytes:
                self.in_flight = False
            self.pinned = memory.size_bytes
        if error is None:
            self.launches += 1
            self.in_flight = not wait

    @rule()
    def synchronize(self):
        self.expect(None, lambda: self.session.synchronize(NEVER))
        self.in_flight = self.in_flight and self.over

    @precondition(lambda self: 0 in self.kernels.values())
    @rule(fault=faults, where=st.sampled_from(["launch", "synchronize"]))
    def fail(self, fault, where):
        kernel = next(kernel for kernel, size in self.kernels.items() if size == 0)
        if not self.buffers or len(self.buffers[min(self.buffers)]) < 1:
            return
        self.device.failures[where] = fault
        arguments = (BufferOffset(min(self.buffers), 0), Scalar(struct.pack("<I", 7)))
        self.expect(type(fault), lambda: self.session.launch(kernel, ONE, lambda: arguments, None, NEVER))
        self.device.failures.clear()
        if not self.over:
            self.over = True
            self.launches += where == "synchronize"
            assert self.session.failure is fault

    @rule()
    def close_and_open_another(self):
        self.session.close()
        self.session.close()
        assert self.gate.in_use == 0
        assert self.ledger.statistics() == LedgerStatistics(1, BYSTANDER_BYTES)
        held = self.device.statistics()
        assert (held.allocations, held.registrations, held.modules, held.streams) == (1, 0, 0, 0)
        self.open()

    @invariant()
    def books_agree(self):
        assert self.device.broken == []
        if not hasattr(self, "buffers"):
            return
        held, books = self.device.statistics(), self.session.statistics()
        assert books.allocations == len(self.buffers) == held.allocations - 1
        assert books.kernels == len(self.kernels) == held.modules
        assert books.pinned_bytes == self.pinned == held.registered_bytes
        assert books.device_bytes == self.bytes_held()
        assert self.ledger.statistics() == LedgerStatistics(1 + len(self.buffers), BYSTANDER_BYTES + self.bytes_held())
        assert held.launches == self.launches
        if not self.over:
            assert bool(self.device.busy) == self.in_flight == bool(self.gate.in_use)

    def teardown(self):
        if hasattr(self, "session"):
            self.session.close()
            self.bystander.close()
            assert self.device.holds_nothing()
            assert self.ledger.statistics() == LedgerStatistics(0, 0)


TestSessionModel = SessionModel.TestCase
TestSessionModel.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
