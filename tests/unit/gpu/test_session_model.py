"""Any sequence of operations leaves session, accounts and device as a plain model says, failures included."""

import ctypes
import mmap
import struct
from functools import partial

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fakes.device import FakeDevice
from strategies.kernels import FILL, with_global
from tensorwasm.errors import (
    CallerError,
    DeviceLost,
    DeviceUnavailable,
    InvalidArgs,
    InvalidHandle,
    InvokeTimeout,
    KernelFault,
    LaunchRefused,
    LimitError,
    MalformedPtx,
    QuotaExceeded,
)
from tensorwasm.gpu.device.arguments import BufferOffset, HostWindow, Scalar
from tensorwasm.gpu.device.limits import SessionLimits
from tensorwasm.gpu.limits.accounts import Accounts, MemoryLedger, MemoryLedgerStatistics
from tensorwasm.gpu.limits.gate import Gate
from tensorwasm.gpu.native.layout import SessionLayout
from tensorwasm.gpu.shared_device import SharedDevice
from tensorwasm.values import WASM_PAGE_BYTES, Deadline, LaunchConfig, Region

NEVER = Deadline()
ONE = LaunchConfig((1, 1, 1), (1, 1, 1))
LIMITS = SessionLimits(
    allocation_bytes=600, allocations=4, device_bytes=1500, kernels=3, streams=2, events=2, graphs=2, graph_launches=3
)
PAGES = 4
PINNED_BYTES = (PAGES - 1) * WASM_PAGE_BYTES
REFUSALS = {
    "register": LaunchRefused,
    "pool_allocate": QuotaExceeded,
    "open_pool": QuotaExceeded,
    "load": MalformedPtx,
    "launch": LaunchRefused,
    "copy_in": LaunchRefused,
    "copy_out": LaunchRefused,
    "open_stream": QuotaExceeded,
    "begin_capture": LaunchRefused,
    "end_capture": LaunchRefused,
    "replay": LaunchRefused,
}
METHODS = (*REFUSALS, "unregister", "fill", "write", "read", "synchronize", "unload", "close_stream", "confine")
MARKS = ("open_event", "close_event", "record", "wait_event", "event_reached", "synchronize_event", "kernel", "started")
FATAL = (KernelFault, InvokeTimeout, DeviceLost, ValueError)

values = st.integers(0, (1 << 32) - 1)
offsets = st.integers(0, 160).map(lambda n: 4 * n)
few = st.integers(0, 4)


def word(value):
    return struct.pack("<I", value)


class SessionModel(RuleBasedStateMachine):
    """One session after another on a shared device, beside a bystander that must not notice.

    Each stream has buffers and a place in guest memory of its own: which of two streams comes first is nobody's
    promise, so the model need not say either.
    """

    @initialize(kind=st.sampled_from(["auto", "staged", "pinned"]), layout=st.booleans())
    def start(self, kind, layout):
        self.pages = mmap.mmap(-1, PAGES * WASM_PAGE_BYTES)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.pages))
        self.host = bytearray(len(self.pages))
        self.size = WASM_PAGE_BYTES
        self.begin_world()
        self.session.close()
        self.open(kind, layout=layout)
        if self.expect(lambda: self.session.kernels.load(FILL, "fill", NEVER)):
            self.kernels[self.result] = 0
        self.allocate_some(64)

    def begin_world(self):
        self.device = FakeDevice(effects=True)
        self.ledger = MemoryLedger()
        self.gate = Gate(2)
        accounts = Accounts(self.ledger)
        self.account = accounts.register("tenant", 1 << 20, PINNED_BYTES)
        self.shared = SharedDevice(self.device, accounts, self.gate)
        self.watch_releases()
        self.bystander = self.shared.open_session("tenant")
        self.bystander.buffers.allocate(30)
        self.bystander.kernels.load(FILL, "fill", NEVER)
        self.open("auto", layout=False)

    def watch_releases(self):
        """Have what is handed on inside the process checked like what is given back to the device."""
        resources = self.shared._resources
        slab, ring = resources.tenancy("tenant").suballocator, resources.ring
        for owner, name, region in ((slab, "free", lambda region: region), (ring, "give", lambda slot: slot.region)):
            release = getattr(owner, name)

            def checked(thing, release=release, region=region):
                place = region(thing)
                assert not self.device.reachable(place.address, place.size_bytes)
                release(thing)

            if owner is ring:
                ring.give = checked
            else:
                resources.tenancy("tenant").suballocator = Watched(slab, checked)

    def open(self, kind, *, layout):
        self.kind = kind
        self.layout = SessionLayout() if layout else None
        self.session = self.shared.open_session("tenant", LIMITS, memory_kind=kind, layout=self.layout)
        self.over = False
        self.buffers = {}
        self.owner = {}
        self.issued = 0
        self.kernels = {}
        self.streams = [0]
        self.opened = 0
        self.events = []
        self.marked = 0
        self.recording = None
        self.steps = []
        self.graphs = {}
        self.drawn = 0

    # -------------------------------------------------------------------------------------------- judging

    def expect(self, use, *errors, recordable=False, harmless=()):
        """Use the session; return whether it did as asked.

        It raises one of the errors, if there are any, or what was injected into the device, which ends the session
        unless it is harmless.
        """
        injected = list(self.device.nth.values())
        if self.over:
            errors = (DeviceLost,)
        elif self.recording is not None and not recordable:
            errors = (InvalidArgs,)
        try:
            self.result = use()
        except BaseException as error:
            if any(error is each for each in injected) or isinstance(error, DeviceLost):
                self.over = self.over or not isinstance(error, (CallerError, LimitError, *harmless))
                assert self.over == (self.session.failure is not None)
                self.settle()
                return False
            # What was injected may have been answered already, by going on without the guest's memory.
            consequence = injected and self.recording is not None and isinstance(error, InvalidArgs)
            if consequence or any(each.args == error.args for each in injected) or isinstance(error, errors):
                self.settle()
                return False
            raise
        assert not errors, f"no {errors}"
        self.settle()
        return True

    def settle(self):
        """Take from the device what only an injected failure can have changed."""
        if self.session._core.graphs.recording is None:
            self.recording = None

    @property
    def memory(self):
        return Region(self.address, self.size, host=True)

    @property
    def reached(self):
        return self.session.statistics().pinned_bytes

    def in_place(self):
        """Return the errors of reaching all of the guest's memory in place."""
        if self.reached == self.size:
            return ()
        if self.kind == "staged":
            return (LaunchRefused,)
        return (QuotaExceeded,) if self.size > PINNED_BYTES else ()

    def mine(self, stream):
        """Return a buffer of a stream, or one that may become its own."""
        return next((handle for handle in self.buffers if self.owner.get(handle, stream) == stream), None)

    # -------------------------------------------------------------------------------------------- failures

    @rule(method=st.sampled_from(METHODS + MARKS), nth=st.integers(1, 3), fatal=st.sampled_from(FATAL) | st.none())
    def inject(self, method, nth, fatal):
        if len(self.device.nth) > 1 or (fatal is None and method not in REFUSALS):
            return
        if fatal is InvokeTimeout and method == "load":
            return  # as good as a refusal: it has a test of its own
        self.device.fail(method, nth, (fatal or REFUSALS[method])(f"injected {self.drawn}"))
        self.drawn += 1

    @rule()
    def calm(self):
        self.device.nth.clear()

    @rule(which=few)
    def finish(self, which):
        streams = sorted(self.device.streams, key=lambda stream: stream.number)
        if streams:
            self.device.finish(streams[which % len(streams)])

    # --------------------------------------------------------------------------------------------- buffers

    @rule(size=st.integers(0, 700))
    def allocate(self, size):
        held = sum(map(len, self.buffers.values())) + sum(self.kernels.values())
        errors = (InvalidArgs,) if size == 0 else ()
        if size > 600 or held + size > 1500 or len(self.buffers) >= 4:
            errors = (QuotaExceeded, *errors)
        self.allocate_some(size, *errors)

    def allocate_some(self, size, *errors):
        if self.expect(lambda: self.session.buffers.allocate(size), *errors):
            self.issued = max(self.issued, self.result - 1) + 1
            assert self.result == self.issued
            self.buffers[self.result] = bytearray(size)

    @rule(which=few)
    def free(self, which):
        handle = which if which in self.buffers else next(iter(self.buffers), 99)
        if self.expect(
            lambda: self.session.buffers.free(handle, NEVER), *(() if handle in self.buffers else (InvalidHandle,))
        ):
            del self.buffers[handle]
            self.owner.clear()

    @rule(which=few, data=st.binary(max_size=20), offset=offsets)
    def write(self, which, data, offset):
        handle, content = which, self.buffers.get(which)
        errors = (InvalidHandle,) if content is None else ()
        if content is not None and offset + len(data) > len(content):
            errors = (InvalidArgs,)
        if self.expect(lambda: self.session.buffers.write(handle, data, NEVER, offset), *errors):
            content[offset : offset + len(data)] = data
            self.owner.clear()

    @rule(which=few)
    def read(self, which):
        content = self.buffers.get(which)
        into = bytearray(len(content or b"") or 1)
        errors = (InvalidHandle,) if content is None else ()
        if self.expect(lambda: self.session.buffers.read(which, memoryview(into), NEVER), *errors):
            assert into == content
            self.owner.clear()

    @rule(which=few, inward=st.booleans(), length=st.integers(0, 8))
    def copy(self, which, inward, length):
        stream = self.stream(which)
        handle = self.mine(stream)
        if handle is None or len(self.buffers[handle]) < 8:
            return
        at = 64 * stream
        window = HostWindow(self.address + at, length)
        errors = self.window_errors(length, (self.in_place() if self.kind != "staged" and length else ()))
        arguments = (handle, 0, window, self.memory, NEVER, stream)
        if inward:
            use = lambda: self.session.buffers.copy_in(*arguments)  # noqa: E731 - one of two
        else:
            use = lambda: self.session.buffers.copy_out(window, self.memory, handle, 0, NEVER, stream)  # noqa: E731
        if self.expect(use, *self.graph_full(errors, length), recordable=True) and length:
            self.give(stream, ("copy", handle, at, length, inward))

    def window_errors(self, length, errors):
        """Return the errors of a window of work that may be recorded."""
        if self.recording is None or not length:
            return errors
        if self.reached:
            return ()  # windows lie low: growth does not matter to them
        # The first step, if it comes that far, registers the memory if it can.
        capturing = self.session._core.graphs.recording.capturing if not self.over else False
        return (InvalidArgs,) if capturing or errors or self.kind == "staged" else ()

    def graph_full(self, errors, length):
        if self.recording is not None and length and len(self.steps) >= LIMITS.graph_launches:
            return (QuotaExceeded,)
        return errors

    def stream(self, which):
        if self.recording is not None:
            return self.recording
        return self.streams[which % len(self.streams)]

    def give(self, stream, effect):
        if self.recording is not None:
            self.steps.append(effect)
        else:
            self.owner.setdefault(effect[1], stream)
            self.apply(effect)

    def apply(self, effect):
        kind, handle, at, *rest = effect
        if kind == "copy":
            length, inward = rest
            if inward:
                self.buffers[handle][:length] = self.host[at : at + length]
            else:
                self.host[at : at + length] = self.buffers[handle][:length]
        else:
            target = self.host if handle is None else self.buffers[handle]
            target[at : at + 4] = word(rest[0])

    # --------------------------------------------------------------------------------------------- kernels

    @rule(size=st.integers(1, 700) | st.none())
    def load(self, size):
        text, entry = (FILL, "fill") if size is None else (with_global(size), "nothing")
        held = sum(map(len, self.buffers.values())) + sum(self.kernels.values()) + (size or 0)
        errors = (QuotaExceeded,) if len(self.kernels) >= 3 or (size or 0) > 600 or held > 1500 else ()
        loads = partial(self.session.kernels.load, text, entry, NEVER)
        if self.expect(loads, *errors, harmless=(InvokeTimeout, DeviceUnavailable)):
            assert self.result not in self.kernels
            self.kernels[self.result] = size or 0

    @rule(newest=st.booleans())
    def unload(self, newest):
        kernel = (list(self.kernels) or [5])[-newest]
        if kernel in self.kernels and self.expect(lambda: self.session.kernels.unload(kernel, NEVER)):
            del self.kernels[kernel]
            self.owner.clear()

    @property
    def fill(self):
        return next((kernel for kernel, size in self.kernels.items() if not size), None)

    @precondition(lambda self: self.fill)
    @rule(which=few, window=st.booleans(), grow=st.booleans(), value=values, wait=st.booleans())
    def launch(self, which, window, grow, value, wait):
        self.launch_some(which, window, grow, value, wait)

    def launch_some(self, which, window, grow, value, wait):
        stream = 0 if wait else self.stream(which)
        handle = None if window else self.mine(stream)
        if not window and (handle is None or len(self.buffers[handle]) < 4):
            return
        self.size = min(self.size + grow * WASM_PAGE_BYTES, PAGES * WASM_PAGE_BYTES)
        at = 64 * stream if window else 0
        target = HostWindow(self.address + at, 4) if window else BufferOffset(handle, 0)
        arguments = (target, Scalar(word(value)))
        start = self.session.kernels.launch if wait else self.session.kernels.submit
        more = () if wait else (stream,)
        errors = self.in_place() if window else ()
        if wait and self.kind in {"auto", "staged"}:
            errors = ()
        elif not wait:
            errors = self.graph_full(self.window_errors(window, errors), 1)
        use = lambda: start(self.fill, ONE, lambda: arguments, self.memory, NEVER, *more)  # noqa: E731 - said once
        if self.expect(use, *errors, recordable=not wait):
            self.give(stream, ("fill", handle, at, value))
            if wait and window and self.session.statistics().staged_launches:
                self.owner.clear()

    @precondition(lambda self: self.layout is not None)
    @rule(value=values)
    def launch_compiled(self, value):
        """Do what compiled code does: look at the layout, give work to the stream, count."""
        row = self.layout.streams[0]
        if not (self.layout.armed and self.layout.placed and row.stream and not row.recording):
            return
        handle = self.mine(0)
        buffer = self.layout.buffers[(handle or 0) % 256]
        if handle is None or buffer.handle != handle or buffer.size_bytes < 4:
            return
        address = buffer.address
        self.device.native.give(row.stream, lambda: self.device.cleared.write(address, word(value)))
        row.pending += 1
        self.layout.pending += 1
        self.layout.launched += 1
        self.give(0, ("fill", handle, 0, value))

    # --------------------------------------------------------------------------------- streams and events

    @rule()
    def open_stream(self):
        errors = (QuotaExceeded,) if len(self.streams) > LIMITS.streams else ()
        if self.expect(self.session.streams.open, *errors):
            assert self.result > self.opened
            self.opened = self.result
            self.streams.append(self.result)

    @rule(which=few)
    def close_stream(self, which):
        stream = self.streams[which % len(self.streams)]
        if self.expect(lambda: self.session.streams.close(stream, NEVER), *((InvalidArgs,) if stream == 0 else ())):
            self.streams.remove(stream)
            self.owner = {handle: owner for handle, owner in self.owner.items() if owner != stream}

    @rule()
    def open_event(self):
        if self.expect(self.session.events.open, *((QuotaExceeded,) if len(self.events) >= LIMITS.events else ())):
            assert self.result > self.marked
            self.marked = self.result
            self.events.append(self.result)

    @rule(which=few, what=st.sampled_from(["record", "wait", "reached", "synchronize", "close"]), stream=few)
    def use_event(self, which, what, stream):
        event = self.events[which % len(self.events)] if self.events and which < 4 else 99
        stream = self.streams[stream % len(self.streams)]
        uses = {
            "record": lambda: self.session.events.record(event, stream),
            "wait": lambda: self.session.events.wait(stream, event),
            "reached": lambda: self.session.events.reached(event),
            "synchronize": lambda: self.session.events.synchronize(event, NEVER),
            "close": lambda: self.session.events.close(event),
        }
        if self.expect(uses[what], *(() if event in self.events else (InvalidHandle,))) and what == "close":
            self.events.remove(event)

    @rule()
    def synchronize_all(self):
        if self.expect(lambda: self.session.streams.synchronize(NEVER)):
            self.owner.clear()
            assert self.pages[:] == self.host
            for handle, content in self.buffers.items():
                into = bytearray(len(content))
                if not self.expect(lambda: self.session.buffers.read(handle, memoryview(into), NEVER)):  # noqa: B023 - at once
                    return
                assert into == content

    @rule(which=st.none() | few)
    def synchronize(self, which):
        stream = None if which is None else self.streams[which % len(self.streams)]
        if self.expect(lambda: self.session.streams.synchronize(NEVER, stream)) and stream is None:
            self.owner.clear()
            assert self.pages[:] == self.host

    @rule(which=few)
    def ended(self, which):
        stream = self.streams[which % len(self.streams)]
        self.expect(lambda: self.session.streams.ended(stream))

    # ---------------------------------------------------------------------------------------------- graphs

    @rule(which=few)
    def begin_graph(self, which):
        self.begin_graph_on(self.streams[which % len(self.streams)])

    def begin_graph_on(self, stream):
        errors = (QuotaExceeded,) if len(self.graphs) >= LIMITS.graphs else ()
        if self.expect(lambda: self.session.graphs.begin(stream), *errors):
            self.recording, self.steps = stream, []

    @precondition(lambda self: self.recording is not None)
    @rule()
    def end_graph(self):
        self.stop()

    def stop(self):
        stream = self.recording
        if self.expect(lambda: self.session.graphs.end(stream), recordable=True):
            reached = self.reached
            kernel = self.fill if any(step[0] == "fill" for step in self.steps) else None
            self.graphs[self.result] = (stream, self.steps, kernel, reached)

    @precondition(lambda self: self.recording is None and self.fill)
    @rule(which=few, windows=st.lists(st.booleans(), max_size=4), value=values)
    def record_graph(self, which, windows, value):
        self.begin_graph_on(self.streams[which % len(self.streams)])
        for window in windows:
            if self.recording is not None and self.fill:
                self.launch_some(which, window, False, value, False)
        if self.recording is not None:
            self.stop()

    @precondition(lambda self: self.graphs)
    @rule(which=few)
    def replay(self, which):
        graph = list(self.graphs)[which % len(self.graphs)]
        stream, steps, kernel, _ = self.graphs[graph]
        if stream not in self.streams or any(
            step[1] is not None and self.owner.get(step[1], stream) != stream for step in steps
        ):
            return
        handles = {step[1] for step in steps} - {None}
        windows = any(step[0] == "copy" or step[1] is None for step in steps)
        gone = handles - set(self.buffers) or (kernel is not None and kernel not in self.kernels)
        dead = gone or (windows and not self.reached)
        if self.expect(
            lambda: self.session.graphs.replay(graph, self.memory, NEVER, stream), *((InvalidHandle,) if dead else ())
        ):
            for step in steps:
                self.give(stream, step)

    @precondition(lambda self: self.graphs)
    @rule(which=few)
    def close_graph(self, which):
        graph = list(self.graphs)[which % len(self.graphs)]
        if self.expect(lambda: self.session.graphs.close(graph, NEVER)):
            del self.graphs[graph]
            self.owner.clear()

    # ------------------------------------------------------------------------------------------------ life

    @rule()
    def begin_call(self):
        if self.session.failure is not None:
            self.session.enter(NEVER)
        else:
            self.expect(lambda: self.session.enter(NEVER), recordable=True)

    @rule()
    def end_call(self):
        self.session.leave()

    @rule(kind=st.sampled_from(["auto", "staged", "pinned"]), layout=st.booleans(), calm=st.booleans())
    def close_and_open_another(self, kind, layout, calm):
        if calm:
            self.device.nth.clear()
        self.session.close()
        self.session.close()
        stats = self.session.statistics()
        if stats.abandoned:
            self.device.finish()
            self.host[:] = self.pages[:]
            self.begin_world()
            return
        assert not self.over or calm or stats.release_failures >= 0
        self.host[:] = self.pages[:]
        assert self.gate.in_use == 0
        assert self.ledger.statistics() == MemoryLedgerStatistics(1, 256)
        assert self.account.statistics().pinned_bytes == 0
        assert not self.device.registered.get(self.address)
        if self.layout is not None:
            assert not any(bytes(self.layout.streams) + bytes(self.layout.buffers) + bytes(self.layout.kernels))
        if stats.release_failures:
            self.begin_world()
        else:
            self.open(kind, layout=layout)

    @invariant()
    def books_agree(self):
        if not hasattr(self, "session"):
            return
        assert self.device.broken == []
        books = self.session.statistics()
        if self.over:
            return
        assert books.kernels == len(self.kernels)
        assert books.streams == len(self.streams) - 1
        assert books.events == len(self.events)
        assert books.graphs == len(self.graphs)
        assert books.pinned_bytes == self.device.registered.get(self.address, 0)
        assert books.pinned_bytes == self.account.statistics().pinned_bytes
        if self.layout is None and not self.session._core.layout.pending:
            assert self.gate.in_use == 0

    def teardown(self):
        if not hasattr(self, "session"):
            return
        self.device.nth.clear()
        self.session.close()
        self.bystander.close()
        if not self.session.statistics().abandoned and not self.session.statistics().release_failures:
            self.shared.close()
            assert self.device.holds_nothing()
            assert self.ledger.statistics() == MemoryLedgerStatistics(0, 0)
        assert self.device.broken == []


class Watched:
    """A slab whose releases are looked at."""

    def __init__(self, slab, free):
        self._slab = slab
        self.free = free

    def __getattr__(self, name):
        return getattr(self._slab, name)


TestSessionModel = SessionModel.TestCase
TestSessionModel.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)


def test_a_slot_that_cannot_be_had_in_time_does_not_end_the_session_that_loads():
    """Found by the model: staging memory is registered while a kernel is loaded, and a load starts no work."""
    model = SessionModel()
    model.start(kind="auto", layout=False)
    model.close_and_open_another(calm=False, kind="auto", layout=True)
    model.inject(fatal=InvokeTimeout, method="register", nth=1)
    model.load(size=None)
    assert model.session.failure is None
    model.teardown()
