"""What stands between one instance and a device: every safety check, once, for every device alike.

A session hands out buffers, kernels, streams, events and graphs, keeps the table of addresses its kernels may touch,
charges quotas, and lets nothing reach the device that the device would have to be trusted to refuse. After a fault, a
timeout or a lost device it is poisoned: whatever the device holds may be wrong, so all that is left to do is
`Session.close`.

A session may have a launch pad, through which compiled code gives work to its streams without asking. The session keeps
the pad true, and waits for that work as for its own.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, Final, ParamSpec, Self, TypeVar

from tensorwasm.errors import (
    CallerError,
    DeviceLost,
    DeviceUnavailable,
    InvalidArgs,
    InvokeTimeout,
    LimitError,
    QuotaExceeded,
)
from tensorwasm.gpu.accounts import DEFAULT_TENANT, Accounts
from tensorwasm.gpu.commons import Commons
from tensorwasm.gpu.device import Device
from tensorwasm.gpu.events import Marks
from tensorwasm.gpu.graphs import GraphBook
from tensorwasm.gpu.holdings import Holdings
from tensorwasm.gpu.launch import Argument, BufferOffset, HostWindow, check_geometry
from tensorwasm.gpu.launcher import Launcher
from tensorwasm.gpu.limits import SessionLimits
from tensorwasm.gpu.pad import PadLayout
from tensorwasm.gpu.place import NoPlace, Place
from tensorwasm.gpu.quota import PROCESS_GATE, PROCESS_LEDGER, Gate, Ledger
from tensorwasm.gpu.releases import attempt
from tensorwasm.gpu.sheet import Sheet
from tensorwasm.gpu.staging import Placement
from tensorwasm.gpu.statistics import SessionStatistics, describe_compiled
from tensorwasm.gpu.streams import OWN, Lane
from tensorwasm.gpu.windows import Windows
from tensorwasm.gpu.work import Work
from tensorwasm.values import Deadline, DeviceInfo, LaunchConfig, MemoryKind, Region

__all__ = ["Session", "SessionStatistics"]

_REFUSALS: Final = (CallerError, LimitError, NoPlace)
"""Errors after which all is as before."""

_LIMITS: Final = SessionLimits()

_log = logging.getLogger(__name__)
_P = ParamSpec("_P")
_R = TypeVar("_R")
_Method = Callable[Concatenate[Any, _P], _R]


def _turn(*harmless: type[BaseException], recording: bool = False) -> Callable[[_Method[_P, _R]], _Method[_P, _R]]:
    """Give a method its turn; tell refusals, after which all is as before, from failures, after which nothing is sure.

    Args:
        harmless: errors that are as good as refusals here.
        recording: whether the method may be used while a stream records.
    """

    def wrap(method: _Method[_P, _R]) -> _Method[_P, _R]:
        @functools.wraps(method)
        def take(self: Any, /, *args: _P.args, **named: _P.kwargs) -> _R:
            with self._turn:
                self._require_usable(recording)
                self._used = True
                if self._sheet.loads:
                    self._holdings.adopt()
                try:
                    return method(self, *args, **named)
                except BaseException as error:
                    self._judge(error, harmless)
                    raise

        return take

    return wrap


class Session:
    """One instance's share of a device.

    Methods take turns, so any thread may call. A refusal (CallerError, LimitError) has changed nothing, nor has a
    `load` that ran out of time; any other error poisons the session. A poisoned or closed session answers every method
    but `close`, `enter`, `leave`, `info`, `failure` and `statistics` with DeviceLost. While a stream records a graph,
    only launches and copies on that stream, and `end_graph`, are allowed.

    Streams, events and graphs have numbers from 1 on that are never used twice; stream 0 is the instance's own. A
    stream, the registration of guest memory, a staging slot and the place at the gate are taken when first needed.

    Args:
        device: outlives the session.
        limits: what this session may hold.
        ledger: charged for device memory; the process's own unless a test brings one. Not used with ``commons``.
        gate: entered while work is on the device; likewise.
        architecture: compute capability that PTX is chosen for, None for the device's own.
        commons: what the device's sessions share, outlives the session; None for a session that shares nothing.
        tenant: registered; whose account is charged.
        memory_kind: of the guest's memory. ``staged``: windows of launches that wait are copied through a slot.
            ``pinned``: they are reached in place, registered when first needed. ``auto``: staged until that has cost as
            much as registering (`tensorwasm.gpu.windows`). ``managed``, ``vmm``: reached in place from the start.
        pad: kept true from now until `close`, and left empty. None if no compiled code serves the guest.

    Raises:
        InvalidArgs: no such tenant is registered.
    """

    def __init__(
        self,
        device: Device,
        limits: SessionLimits | None = None,
        ledger: Ledger = PROCESS_LEDGER,
        gate: Gate = PROCESS_GATE,
        architecture: tuple[int, int] | None = None,
        *,
        commons: Commons | None = None,
        tenant: str = DEFAULT_TENANT,
        memory_kind: MemoryKind = "pinned",
        pad: PadLayout | None = None,
    ) -> None:
        self._own_commons: Commons | None = None
        if commons is None:
            self._own_commons = commons = Commons(device, Accounts(ledger), gate)
        self._device = device
        limits = limits or _LIMITS
        self._commons = commons
        self._tenancy = tenancy = commons.tenancy(tenant)
        self._sheet = sheet = Sheet(pad, commons.driver_at() if pad is not None else 0)
        self._holdings = holdings = Holdings(commons, tenancy, limits, sheet, architecture or commons.architecture)
        self._work = work = Work(commons, sheet, holdings.regions, limits.streams)
        self._graphs = graphs = GraphBook(device, sheet, limits.graphs)
        self._windows = windows = Windows(commons, tenancy, holdings.regions, sheet, work, graphs, memory_kind)
        self._launcher = Launcher(device, holdings, windows, work, sheet, graphs, limits.graph_launches)
        self._marks = Marks(commons.events, limits.events)
        self._turn = threading.RLock()
        self._failure: BaseException | None = None
        self._closed = False
        self._refused = 0
        self._native = 0, 0, 0
        self._release_failures = 0
        self._abandoned = False
        self._used = False

    # ----------------------------------------------------------------------------------------- buffers

    @_turn()
    def allocate(self, size_bytes: int) -> int:
        """Return the handle of new zeroed device memory. Handles start at 1 and are never used twice.

        Raises:
            InvalidArgs: the size is 0, or a stream records.
            QuotaExceeded: over a limit of the session, the tenant or the process, or the device has no memory left.
            DeviceLost: the session is over, or the device does not answer.
        """
        handle, region = self._holdings.allocate(size_bytes)
        try:
            self._work.clear(region)
        except _REFUSALS:
            self._holdings.free(handle)
            raise
        self._holdings.show(handle)
        self._work.confine()
        return handle

    @_turn()
    def free(self, handle: int, deadline: Deadline) -> None:
        """Release a buffer, once all work has ended. Graphs that use it can be replayed no more.

        Raises:
            InvalidHandle: no such buffer.
            InvalidArgs: a stream records.
            KernelFault: that work broke a rule.
            InvokeTimeout: that work did not end in time.
            DeviceLost: the session is over, or the device does not answer.
        """
        self._holdings.buffer(handle)
        self._work.drain(deadline)
        self._graphs.forget_buffer(handle)
        self._holdings.free(handle)
        self._work.confine()

    @_turn()
    def write(
        self,
        handle: int,
        data: bytes | memoryview,
        deadline: Deadline,
        offset_bytes: int = 0,
        memory: Region | None = None,
    ) -> None:
        """Copy host bytes to a place in a buffer, after all work in flight. Blocks until done.

        Args:
            handle: of the buffer.
            data: what is copied.
            deadline: when the work in flight must have ended.
            offset_bytes: where the copy begins.
            memory: the guest's memory, if ``data`` is part of it. Many bytes are faster from registered memory, so it
                is registered for them.

        Raises:
            InvalidHandle: no such buffer.
            InvalidArgs: more bytes than the buffer has there, or a stream records.
            KernelFault: the work in flight broke a rule.
            InvokeTimeout: the work in flight did not end in time.
            DeviceLost: the session is over, or the device does not answer.
        """
        region = self._holdings.buffer(handle, len(data), offset_bytes)
        self._work.drain(deadline)
        if data:
            self._windows.prefer(memory, len(data), deadline)
            self._device.write(region.address + offset_bytes, data, self._work.find(OWN).stream)

    @_turn()
    def read(
        self,
        handle: int,
        into: memoryview,
        deadline: Deadline,
        offset_bytes: int = 0,
        memory: Region | None = None,
    ) -> None:
        """Fill writable bytes from a place in a buffer, after all work in flight. Blocks until done.

        Args:
            handle: of the buffer.
            into: what is filled.
            deadline: when the work in flight must have ended.
            offset_bytes: where the copy begins.
            memory: as in `write`.

        Raises:
            InvalidHandle: no such buffer.
            InvalidArgs: more bytes than the buffer has there, or a stream records.
            KernelFault: the work in flight broke a rule.
            InvokeTimeout: the work in flight did not end in time.
            DeviceLost: the session is over, or the device does not answer.
        """
        region = self._holdings.buffer(handle, len(into), offset_bytes)
        self._work.drain(deadline)
        if into:
            self._windows.prefer(memory, len(into), deadline)
            self._device.read(region.address + offset_bytes, into, self._work.find(OWN).stream)

    @_turn(recording=True)
    def copy_in(
        self,
        handle: int,
        offset_bytes: int,
        window: HostWindow,
        memory: Region,
        deadline: Deadline,
        stream: int = OWN,
    ) -> None:
        """Start copying guest memory to a place in a buffer; with memory that is staged, only once the stream drained.

        Args:
            handle: of the buffer.
            offset_bytes: where the copy begins.
            window: of guest memory; it stays as it is until the stream has drained.
            memory: the guest's memory as it is now, registered if it is not.
            deadline: when the copy must have ended.
            stream: its number.

        Raises:
            InvalidHandle: no such buffer or stream.
            InvalidArgs: more bytes than the buffer has there, or another stream records, or this one records and the
                window is not reached in place.
            InvalidPointer: the window is not inside the memory.
            CapacityExhausted: no place on the GPU in time.
            QuotaExceeded: over the tenant's cap on pinned memory, or the graph that is recorded is full.
            LaunchRefused: the memory cannot be registered.
            KernelFault: the work in flight broke a rule.
            InvokeTimeout: the work in flight did not end in time.
            DeviceLost: the session is over, or the device does not answer.
        """
        place = BufferOffset(handle, offset_bytes)
        self._launcher.copy(window, memory, place, deadline, stream, inward=True)

    @_turn(recording=True)
    def copy_out(
        self,
        window: HostWindow,
        memory: Region,
        handle: int,
        offset_bytes: int,
        deadline: Deadline,
        stream: int = OWN,
    ) -> None:
        """Start copying a place in a buffer to guest memory; see `copy_in`.

        Raises:
            TensorWasmError: what `copy_in` raises.
        """
        place = BufferOffset(handle, offset_bytes)
        self._launcher.copy(window, memory, place, deadline, stream, inward=False)

    # ----------------------------------------------------------------------------------------- kernels

    @_turn(InvokeTimeout, DeviceUnavailable)
    def load(self, text: bytes, entry: str, deadline: Deadline) -> int:
        """Return the id of a kernel of a PTX text. Ids are positive and below 2**63.

        The text may hold several modules, one after the other: the one for the highest architecture that the device
        and its driver take is loaded.

        A deadline that passes leaves the session as it was: a load starts no work, and is undone where it stopped.

        Raises:
            QuotaExceeded: over a limit.
            MalformedPtx: the text does not parse, or the device's compiler refuses it.
            UnsupportedPtx: it asks for what the device lacks.
            InvalidKernel: it has no such entry.
            InvalidArgs: a stream records.
            InvokeTimeout: the deadline passed before it was loaded.
            DeviceUnavailable: this machine cannot assemble it now; like a deadline, that changes nothing.
            DeviceLost: the session is over, or the device does not answer.
        """
        if self._sheet.pad is None:
            return self._holdings.load(text, entry, deadline)
        # Compiled code then makes the very first launch too, which is all that a short-lived sandbox makes. The stream
        # comes first: it may be refused, and then nothing has been loaded.
        self._work.find(OWN)
        kernel_id = self._holdings.load(text, entry, deadline)
        if not self._sheet.placed:
            self._work.place.offer()
        self._windows.offer()
        return kernel_id

    @_turn()
    def unload(self, kernel_id: int, deadline: Deadline) -> None:
        """Release a kernel, once all work has ended. Graphs that use it can be replayed no more.

        Raises:
            InvalidKernel: no such kernel.
            InvalidArgs: a stream records.
            KernelFault: that work broke a rule.
            InvokeTimeout: that work did not end in time.
            DeviceLost: the session is over, or the device does not answer.
        """
        self._holdings.kernel(kernel_id)
        self._work.drain(deadline)
        self._graphs.forget_kernel(kernel_id)
        self._holdings.unload(kernel_id)

    @_turn()
    def launch(
        self,
        kernel_id: int,
        config: LaunchConfig,
        arguments: Callable[[], Sequence[Argument]],
        memory: Region | None,
        deadline: Deadline,
    ) -> None:
        """Run a kernel on the instance's own stream and wait for it.

        As `submit`, but small windows on memory that is not registered are copied to where the device reaches them, and
        back when the kernel has ended. A kernel that reaches beyond its windows finds other memory there.

        Raises:
            TensorWasmError: what `submit` raises, but InvalidHandle for a stream.
        """
        check_geometry(config)
        self._launcher.launch(kernel_id, config, arguments, memory, deadline)

    @_turn()
    def begin_launch(
        self,
        kernel_id: int,
        config: LaunchConfig,
        arguments: Callable[[], Sequence[Argument]],
        memory: Region | None,
        deadline: Deadline,
    ) -> Placement | None:
        """Do what `launch` does before it waits; `end_launch` takes what is returned, before anything else is launched.

        Raises:
            TensorWasmError: what `launch` raises.
        """
        check_geometry(config)
        return self._launcher.begin_launch(kernel_id, config, arguments, memory, deadline)

    @_turn()
    def end_launch(self, placement: Placement | None, deadline: Deadline) -> None:
        """Do what `launch` does from its wait on.

        Raises:
            KernelFault: the kernel broke a rule.
            InvokeTimeout: the deadline passed.
            DeviceLost: the session is over, or the device does not answer.
        """
        self._launcher.end_launch(placement, deadline)
        self._work.place.settle()

    def attempt(self, work: Callable[[], _R]) -> _R:
        """Do with this session what may take its place at the gate, without waiting for that.

        Raises:
            NoPlace: there is none now. All is as before; once `place` was waited for, it may be attempted again.
        """
        with self._turn:
            return self._work.place.attempt(work)

    @_turn(recording=True)
    def submit(
        self,
        kernel_id: int,
        config: LaunchConfig,
        arguments: Callable[[], Sequence[Argument]],
        memory: Region | None,
        deadline: Deadline,
        stream: int = OWN,
    ) -> None:
        """Start a kernel.

        Args:
            kernel_id: from `load`.
            config: geometry.
            arguments: called once there is a place on the GPU, because what it resolves may change during the wait.
            memory: the guest's linear memory as it is now, whole pages; None if it has none. It is registered when a
                launch first has a window on it, and anew when it has grown.
            deadline: when the kernel must have stopped.
            stream: its number.

        Raises:
            InvalidDimensions: the geometry is outside the limits, or not for this kernel or device.
            CapacityExhausted: no place on the GPU in time.
            QuotaExceeded: over the tenant's cap on pinned memory, windows too large for memory that is to be staged, or
                the graph that is recorded is full.
            InvalidKernel: no such kernel.
            InvalidKernelArgs: the arguments do not fit the kernel's parameters.
            KernelArgsUnsupported: the kernel has a parameter that no argument can fill.
            InvalidHandle: an argument names no buffer, or there is no such stream.
            InvalidArgs: another stream records, or this one records and a window is not reached in place.
            InvalidPointer: a window is not inside the memory.
            LaunchRefused: an argument is an address that is not the session's, the memory is to be staged, or the
                device refused.
            KernelFault: the kernel, or work before it, broke a rule.
            InvokeTimeout: the deadline passed.
            DeviceLost: the session is over, or the device does not answer.
        """
        check_geometry(config)
        start = self._launcher.submit if self._launcher.recording is None else self._launcher.record
        start(kernel_id, config, arguments, memory, deadline, stream)

    @_turn()
    def finish_staged(self, memory: Region, deadline: Deadline) -> None:
        """Wait for a staged launch that compiled code started, and copy its windows back.

        Args:
            memory: the guest's memory as it is now.
            deadline: when the kernel must have stopped.

        Raises:
            LaunchRefused: what the pad says is staged is not the guest's; nothing is copied.
            KernelFault: the kernel broke a rule.
            InvokeTimeout: the deadline passed.
            DeviceLost: the session is over, or the device does not answer.
        """
        self._work.wait(self._work.find(OWN), deadline)
        self._work.place.settle()
        self._windows.finish(memory)
        self._launcher.staged += 1

    @_turn()
    def synchronize(self, deadline: Deadline, stream: int | None = None) -> None:
        """Wait for the work in flight on one stream, or on all.

        Raises:
            InvalidHandle: no such stream.
            InvalidArgs: a stream records.
            KernelFault: a kernel broke a rule.
            InvokeTimeout: the deadline passed.
            DeviceLost: the session is over, or the device does not answer.
        """
        if stream is None:
            self._work.drain(deadline)
        elif (lane := self._known(stream)) is not None:
            self._work.wait(lane, deadline)
            self._work.place.settle()

    @_turn()
    def ended(self, stream: int) -> bool:
        """Return whether a stream has nothing to do; never waits.

        Raises:
            InvalidHandle: no such stream.
            InvalidArgs: a stream records.
            KernelFault: a kernel broke a rule.
            DeviceLost: the session is over, or the device does not answer.
        """
        lane = self._known(stream)
        return lane is None or self._work.ended(lane)

    @_turn()
    def notify(self, stream: int, function: int, argument: int) -> bool:
        """Have a C function called when the work that a stream has now is over.

        Args:
            stream: its number.
            function: address of ``void function(void *argument)``, which must not call the device.
            argument: its argument.

        Returns:
            Whether it will be called, once, on any thread, perhaps already; if not, there is no work to wait for. For a
            moment after the call the stream may still seem busy.

        Raises:
            InvalidHandle: no such stream.
            InvalidArgs: a stream records.
            KernelFault: a kernel broke a rule.
            DeviceLost: the session is over, or the device does not answer.
        """
        lane = self._known(stream)
        return lane is not None and self._work.notify(lane, function, argument)

    # ------------------------------------------------------------------------------ streams and events

    @_turn()
    def open_stream(self) -> int:
        """Return the number of a new stream.

        Raises:
            QuotaExceeded: the session has as many as it may.
            InvalidArgs: a stream records.
            DeviceLost: the session is over, or the device does not answer.
        """
        return self._work.open().number

    @_turn()
    def close_stream(self, number: int, deadline: Deadline) -> None:
        """Wait for a stream and release it; the instance's own cannot be released.

        Raises:
            InvalidHandle: no such stream.
            InvalidArgs: it is the instance's own, or a stream records.
            KernelFault: a kernel broke a rule.
            InvokeTimeout: the deadline passed.
            DeviceLost: the session is over, or the device does not answer.
        """
        if number == OWN:
            raise InvalidArgs("the instance's own stream stays open")
        lane = self._known(number)
        if lane is not None:
            self._work.close(lane, deadline)

    @_turn()
    def open_event(self) -> int:
        """Return the number of a new event, which counts as reached until it is recorded.

        Raises:
            QuotaExceeded: the session has as many as it may.
            InvalidArgs: a stream records.
            DeviceLost: the session is over.
        """
        return self._marks.open()

    @_turn()
    def close_event(self, number: int) -> None:
        """Release an event; streams that wait for it go on waiting for what was recorded.

        Raises:
            InvalidHandle: no such event.
            InvalidArgs: a stream records.
            DeviceLost: the session is over, or the device does not answer.
        """
        self._marks.close(number)

    @_turn()
    def record(self, event: int, stream: int) -> None:
        """Set an event behind the work that a stream was given so far.

        Raises:
            InvalidHandle: no such event or stream.
            InvalidArgs: a stream records.
            DeviceLost: the session is over, or the device does not answer.
        """
        self._marks.find(event)
        lane = self._work.find(stream)
        self._work.mark(lane, self._marks.recordable(event))

    @_turn()
    def wait_event(self, stream: int, event: int) -> None:
        """Put what a stream is given next behind an event.

        Raises:
            InvalidHandle: no such event or stream.
            InvalidArgs: a stream records.
            DeviceLost: the session is over, or the device does not answer.
        """
        mark = self._marks.find(event)
        self._known(stream)
        if mark is not None:
            self._work.put_behind(self._work.find(stream), mark)

    @_turn()
    def synchronize_event(self, event: int, deadline: Deadline) -> None:
        """Wait for the work before an event.

        Raises:
            InvalidHandle: no such event.
            InvalidArgs: a stream records.
            KernelFault: a kernel broke a rule.
            InvokeTimeout: the deadline passed.
            DeviceLost: the session is over, or the device does not answer.
        """
        mark = self._marks.find(event)
        if mark is not None:
            self._device.events.synchronize_event(mark, deadline)

    @_turn()
    def notify_event(self, event: int, function: int, argument: int) -> bool:
        """Have a C function called when the work before an event is over; as `notify`.

        Raises:
            InvalidHandle: no such event.
            InvalidArgs: a stream records.
            KernelFault: a kernel broke a rule.
            DeviceLost: the session is over, or the device does not answer.
        """
        mark = self._marks.find(event)
        if mark is None or self._device.events.event_reached(mark):
            return False
        self._work.notify_behind(mark, function, argument)
        return True

    @_turn()
    def event_reached(self, event: int) -> bool:
        """Return whether the work before an event has ended; never waits.

        Raises:
            InvalidHandle: no such event.
            InvalidArgs: a stream records.
            KernelFault: a kernel broke a rule.
            DeviceLost: the session is over, or the device does not answer.
        """
        mark = self._marks.find(event)
        return mark is None or self._device.events.event_reached(mark)

    # ------------------------------------------------------------------------------------------ graphs

    @_turn()
    def begin_graph(self, stream: int) -> None:
        """Record what a stream is given from now on, instead of running it.

        Raises:
            InvalidHandle: no such stream.
            InvalidArgs: a stream records already.
            QuotaExceeded: the session has as many graphs as it may.
            DeviceLost: the session is over, or the device does not answer.
        """
        self._known(stream)
        self._launcher.begin(stream)

    @_turn(recording=True)
    def end_graph(self, stream: int) -> int:
        """Stop recording; return the number of the graph.

        Raises:
            InvalidHandle: no such stream.
            InvalidArgs: it does not record.
            LaunchRefused: what was recorded cannot be replayed. The stream records no longer.
            DeviceLost: the session is over, or the device does not answer.
        """
        return self._launcher.end(stream)

    @_turn()
    def replay(self, graph: int, memory: Region | None, deadline: Deadline, stream: int = OWN) -> None:
        """Start everything that a graph holds, in its order, behind the work of a stream.

        Args:
            graph: its number.
            memory: the guest's memory as it is now. What the graph reaches of it is at the same place as when it was
                recorded, and still registered, or the graph is dead.
            deadline: when all of it must have stopped.
            stream: its number.

        Raises:
            InvalidHandle: no such graph or stream, or a buffer, a kernel or memory that the graph uses has gone.
            InvalidArgs: a stream records.
            CapacityExhausted: no place on the GPU in time.
            LaunchRefused: the device refused.
            KernelFault: a kernel, or work before it, broke a rule.
            InvokeTimeout: the deadline passed.
            DeviceLost: the session is over, or the device does not answer.
        """
        self._launcher.replay(graph, memory, deadline, stream)

    @_turn()
    def close_graph(self, graph: int, deadline: Deadline) -> None:
        """Release a graph, once all work has ended.

        Raises:
            InvalidHandle: no such graph.
            InvalidArgs: a stream records.
            KernelFault: that work broke a rule.
            InvokeTimeout: that work did not end in time.
            DeviceLost: the session is over, or the device does not answer.
        """
        self._graphs.find(graph)
        self._work.drain(deadline)
        self._graphs.close(graph)

    # -------------------------------------------------------------------------------------------- life

    @property
    def info(self) -> DeviceInfo:
        """What the device is."""
        return self._device.info

    @property
    def failure(self) -> BaseException | None:
        """What poisoned the session, or None."""
        return self._failure

    @property
    def abandoned(self) -> bool:
        """See `SessionStatistics.abandoned`."""
        return self._abandoned

    @property
    def streams(self) -> tuple[int, ...]:
        """Numbers of the streams that ever had work or were opened."""
        return tuple(lane.number for lane in self._work.lanes)

    @property
    def place(self) -> Place:
        """The place at the gate, for whoever waits for it without a thread."""
        return self._work.place

    @property
    def pad(self) -> PadLayout | None:
        """The pad that is kept true, or None."""
        return self._sheet.pad

    @property
    def confined(self) -> bool:
        """Whether `enter` has to be called before a guest, because the device confines what compiled code gives it."""
        return self._device.native.confines

    def enter(self, deadline: Deadline) -> None:
        """Say, before a guest's call, when it must have ended. Nothing on a session that is over.

        Raises:
            DeviceLost: the device does not answer.
        """
        with self._turn:
            if self._failure is None and not self._closed:
                try:
                    self._work.begin_call(deadline)
                except BaseException as error:
                    self._judge(error, ())
                    raise

    def leave(self) -> None:
        """Say that a guest's call has ended: the place at the gate is given back unless work is pending."""
        with self._turn:
            if not self._closed and not self._sheet.pending:
                self._work.place.leave()

    def statistics(self) -> SessionStatistics:
        """Return a snapshot."""
        sheet = self._sheet
        launched, replayed, refused = self._native if self._closed else sheet.counters()
        if not (self._used or self._closed):  # there is nothing but what compiled code has done
            return describe_compiled(sheet.loads, sheet.loaded_bytes, launched, replayed, refused)
        holdings, work, launcher = self._holdings, self._work, self._launcher
        return SessionStatistics(
            allocations=len(holdings.buffers),
            device_bytes=holdings.device_bytes,
            kernels=len(holdings.kernels) + sheet.loads,
            ptx_bytes=holdings.ptx_bytes + sheet.loaded_bytes,
            pinned_bytes=self._windows.reach.pinned_bytes,
            kernels_launched=launcher.launched + launched,
            back_pressure_rejections=work.place.rejected,
            release_failures=self._release_failures,
            abandoned=self._abandoned,
            staged_launches=launcher.staged,
            replays=launcher.replayed + replayed,
            quota_refusals=self._refused + refused,
            streams=work.lanes.count,
            events=self._marks.count,
            graphs=self._graphs.count,
        )

    def renew(self) -> bool:
        """Make the session as good as new for the next guest of its tenant, once a guest and its memory have gone.

        It keeps its stream, its slot, cleared, its place at the gate, and the kernels, which compiled code may give to
        a guest that brings the same text. What a guest sees of it is what it sees of a new one.

        Returns:
            Whether it could be done: it cannot if anything failed or is left, or was ever there that has a number. Such
            a session is to be closed.
        """
        if self._closed:
            return False
        if self._used:
            with self._turn:
                if not self._renewable() or not self._renew_books():
                    return False
        self._windows.renew()
        self._work.place.renew()
        self._holdings.forget_loads()
        return True

    def park(self) -> None:
        """Keep the session, which was renewed, for whoever resumes it; it may be closed from now on, until then."""
        self._commons.parking.put(self)

    def resume(self) -> bool:
        """Return whether a parked session is the caller's, and as good as one that is opened now.

        If not, it is to be closed: its tenant has gone, or its device, or it has been closed already.
        """
        taken = self._commons.parking.take(self)
        return taken and self._tenancy.account.registered and self._device.native.usable

    def close(self) -> None:
        """Release everything. Idempotent; raises nothing; waits at most a second for work still running.

        Call it before the guest's pages go, and look at `SessionStatistics.abandoned` before they are used again: what
        running work can reach stays allocated, registered and charged, for no moment is safe to release it.
        """
        with self._turn:
            if self._closed:
                return
            self._closed = True
            self._sheet.disarm()
            self._native = self._sheet.counters()
            stopped = self._launcher.stop_recording()
            ended, trusted = self._work.has_ended()
            if ended:
                self._release(stopped, trusted=trusted)
            self._abandoned = not (ended and trusted) or self._windows.reach.region is not None
            self._sheet.wipe()

    def __enter__(self) -> Self:
        """Return the session."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the session."""
        self.close()

    # ------------------------------------------------------------------------------------------- parts

    def _require_usable(self, recording: bool) -> None:  # noqa: FBT001 - one caller, on every path of every guest
        if self._failure is not None:
            raise DeviceLost(f"this GPU session ended with an earlier failure: {self._failure}")
        if self._closed:
            raise DeviceLost("this GPU session is closed")
        if self._launcher.recording is not None and not recording:
            raise InvalidArgs("while a stream records, there are only launches and copies on it")

    def _judge(self, error: BaseException, harmless: tuple[type[BaseException], ...]) -> None:
        if isinstance(error, QuotaExceeded):
            self._refused += 1
        if not isinstance(error, (*_REFUSALS, *harmless)):
            self._failure = error
            self._sheet.disarm()

    def _known(self, stream: int) -> Lane | None:
        """Return a stream, None for the instance's own while that has never had work.

        Raises:
            InvalidHandle: no such stream.
        """
        self._work.lanes.require(stream)
        return self._work.lanes.get(stream)

    def _renewable(self) -> bool:
        if self._failure is not None or self._launcher.recording is not None or self._sheet.staged:
            return False
        parts = self._marks.unused and self._graphs.unused and self._holdings.renewable and self._work.renewable
        return parts and self._windows.reach.region is None

    def _renew_books(self) -> bool:
        if attempt(Holdings.renew, self._holdings):
            return False
        self._launcher.renew()
        self._refused = 0
        self._used = False
        return True

    def _release(self, failures: list[Exception], *, trusted: bool) -> None:
        healthy = trusted and self._failure is None and not failures
        if self._graphs.count:
            failures += self._graphs.release()
        failures += self._holdings.release()
        failures += self._windows.release(trusted=trusted)
        if self._marks.count:
            failures += self._marks.release()
        failures += self._work.release(healthy=healthy)
        if self._own_commons is not None:
            failures += self._own_commons.close()
        self._release_failures = len(failures)
        if failures:
            _log.error("a device failed to release %d things at the end of a session: %s", len(failures), failures[0])
