"""Kernels of a guest: loaded, and started one way or the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tensorwasm.errors import DeviceUnavailable, InvokeTimeout
from tensorwasm.gpu.device.arguments import Argument, check_geometry
from tensorwasm.gpu.launcher import Launcher
from tensorwasm.gpu.limits.queue_credits import QueueCredits
from tensorwasm.gpu.native.layout_writer import SessionLayoutWriter
from tensorwasm.gpu.session.lock import SessionLock, in_turn
from tensorwasm.gpu.staging import Placement
from tensorwasm.gpu.state.graph_book import GraphBook
from tensorwasm.gpu.state.resource_table import ResourceTable
from tensorwasm.gpu.state.streams import OWN
from tensorwasm.gpu.state.work import SessionWork
from tensorwasm.gpu.windows import Windows
from tensorwasm.values import Deadline, LaunchConfig, Region


class SessionKernels:
    """The kernels of one session, by their ids. Any thread may call.

    Args:
        turns: of the session.
        sheet: what compiled code knows.
        holdings: what the guest has.
        windows: of the guest's memory.
        work: the streams.
        book: told which graphs may be replayed no more.
        launcher: of launches and copies.
        share: of what may be pending.
    """

    __slots__ = ("_book", "_holdings", "_launcher", "_share", "_sheet", "_turns", "_windows", "_work")

    def __init__(
        self,
        turns: SessionLock,
        sheet: SessionLayoutWriter,
        holdings: ResourceTable,
        windows: Windows,
        work: SessionWork,
        book: GraphBook,
        launcher: Launcher,
        share: QueueCredits,
    ) -> None:
        self._turns = turns
        self._sheet = sheet
        self._holdings = holdings
        self._windows = windows
        self._work = work
        self._book = book
        self._launcher = launcher
        self._share = share

    @in_turn(InvokeTimeout, DeviceUnavailable)
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
        self._share.offer()
        self._windows.offer()
        return kernel_id

    def take_output(self) -> tuple[bytes, bool]:
        """Return what kernels have printed since the last call, and whether some of it was not kept. Never waits."""
        return self._holdings.output.take()

    @in_turn()
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
        self._book.forget_kernel(kernel_id)
        self._holdings.unload(kernel_id)

    @in_turn()
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

    @in_turn()
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

    @in_turn()
    def end_launch(self, placement: Placement | None, deadline: Deadline) -> None:
        """Do what `launch` does from its wait on.

        Raises:
            KernelFault: the kernel broke a rule.
            InvokeTimeout: the deadline passed.
            DeviceLost: the session is over, or the device does not answer.
        """
        self._launcher.end_launch(placement, deadline)
        self._work.place.settle()

    @in_turn(recording=True)
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

    @in_turn(recording=True)
    def before_launch(self, memory: Region) -> list[int]:
        """Return the streams, by their numbers, that `launch` waits for if it has windows on the memory."""
        return self._windows.before_launch(memory)

    @in_turn(recording=True)
    def before_submit(self, memory: Region) -> list[int]:
        """Return the streams, by their numbers, that `submit` waits for if it has windows on the memory."""
        return self._windows.before_start(memory)

    @in_turn()
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
