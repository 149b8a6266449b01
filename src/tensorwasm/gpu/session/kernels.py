"""Kernels of a guest: loaded, launched and waited for, or launched only."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from tensorwasm.errors import DeviceUnavailable, InvalidArgs, InvalidDimensions, InvokeTimeout
from tensorwasm.gpu.device.arguments import Argument, HostWindow, Scalar, bind, check_fit, check_geometry
from tensorwasm.gpu.device.limits import GUARDED_PIECES
from tensorwasm.gpu.limits.load_places import LoadPlace
from tensorwasm.gpu.session.checked_launch import CheckedLaunch
from tensorwasm.gpu.session.core import in_turn
from tensorwasm.gpu.session.graphs import RecordingPart
from tensorwasm.gpu.staging import Placement
from tensorwasm.gpu.state.numbered import OWN
from tensorwasm.gpu.state.resource_table import HeldKernel
from tensorwasm.values import Deadline, LaunchConfig, Region

Arguments = Callable[[], Sequence[Argument]]


class SessionKernels(RecordingPart):
    """The kernels of one session, by their ids. Thread-safe; errors as in `tensorwasm.gpu.session`.

    The order of a launch's checks is part of the ABI (docs/abi.md, "Launching").
    """

    __slots__ = ()

    @in_turn(InvokeTimeout, DeviceUnavailable)
    def load(self, text: bytes, entry: str, deadline: Deadline) -> int:
        """Return the id of a kernel of a PTX text. Ids are positive and below 2**63.

        The text may hold several modules, one after the other: the one for the highest architecture that the device
        and its driver take is loaded. An error leaves the session as it was: a load starts no work.

        Raises:
            QuotaExceeded: over a limit.
            MalformedPtx: the text does not parse, or the device's compiler refuses it.
            UnsupportedPtx: it asks for what the device lacks.
            InvalidKernel: it has no such entry.
            InvokeTimeout: the deadline passed before it was loaded.
            DeviceUnavailable: this machine cannot assemble it now.
        """
        core = self._core
        if core.layout.layout is None:
            return core.table.load(text, entry, deadline)
        # Compiled code then makes the very first launch too, the only one of many short-lived sandboxes. The stream
        # comes first: it may be refused, and then nothing has been loaded.
        core.work.find(OWN)
        kernel_id = core.table.load(text, entry, deadline)
        if not core.layout.placed:
            core.work.permit.offer()
        core.credits.offer()
        core.windows.offer()
        return kernel_id

    def open_load_place(self) -> LoadPlace:
        """Return a place among its tenant's loads, for a guest that holds a shared thread while it loads a kernel."""
        return self._core.resources.load_places.open(self._core.tenancy.tenant)

    def take_output(self) -> tuple[bytes, bool]:
        """Return what kernels have printed since the last call, and whether some of it was not kept. Never waits."""
        return self._core.table.output.take()

    @in_turn()
    def unload(self, kernel_id: int, deadline: Deadline) -> None:
        """Release a kernel, once all work has ended. Graphs that use it can be replayed no more."""
        core = self._core
        core.table.kernels.require(kernel_id)
        core.work.drain(deadline)
        core.graphs.forget(kernel=kernel_id)
        core.table.unload(kernel_id)

    @in_turn()
    def launch(
        self, kernel_id: int, config: LaunchConfig, arguments: Arguments, memory: Region | None, deadline: Deadline
    ) -> None:
        """Run a kernel on the instance's own stream and wait for it.

        As `submit`, but small windows on memory that is not registered are copied to where the device reaches them, and
        back when the kernel has ended. A kernel that reaches beyond its windows finds other memory there.
        """
        check_geometry(config)
        permit = self._core.work.permit
        permit.take(deadline)
        try:
            self._finish(self._begin(kernel_id, config, arguments, memory, deadline), OWN, deadline)
        finally:
            permit.settle()

    @in_turn()
    def begin_launch(
        self, kernel_id: int, config: LaunchConfig, arguments: Arguments, memory: Region | None, deadline: Deadline
    ) -> Placement | None:
        """Do what `launch` does before it waits; `end_launch` takes what is returned, before any other launch."""
        check_geometry(config)
        permit = self._core.work.permit
        permit.take(deadline)
        try:
            return self._begin(kernel_id, config, arguments, memory, deadline)
        finally:
            permit.settle()

    @in_turn()
    def end_launch(self, placement: Placement | None, deadline: Deadline) -> None:
        """Do what `launch` does from its wait on."""
        self._finish(placement, OWN, deadline)
        self._core.work.permit.settle()

    @in_turn(recording=True)
    def submit(
        self,
        kernel_id: int,
        config: LaunchConfig,
        arguments: Arguments,
        memory: Region | None,
        deadline: Deadline,
        stream: int = OWN,
    ) -> None:
        """Start a kernel, and wait for it if a guarded one has windows that it does not reach in place.

        Args:
            kernel_id: from `load`.
            config: geometry.
            arguments: called once there is a permit, because what it resolves may change during the wait.
            memory: the guest's linear memory as it is now, whole pages; None if it has none. It is registered when a
                launch first has a window on it, and anew when it has grown.
            deadline: when the kernel must have stopped.
            stream: its number.

        Raises:
            InvalidDimensions: the geometry is outside the limits, or not for this kernel or device.
            CapacityExhausted: no permit at the gate in time.
            QuotaExceeded: over the tenant's cap on pinned memory, windows too large for memory that is to be staged, or
                the graph that is recorded is full.
            InvalidKernelArgs: the arguments do not fit the kernel's parameters.
            KernelArgsUnsupported: the kernel has a parameter that no argument can fill.
            InvalidArgs: also if another stream records, or this one records and a window is not reached in place.
            InvalidPointer: a window is not inside the memory.
            LaunchRefused: an argument is an address that is not the session's, the memory is to be staged, or the
                device refused.
        """
        check_geometry(config)
        core, work = self._core, self._core.work
        if core.graphs.recording is not None:
            self._record(kernel_id, config, arguments, memory, deadline, stream)
            return
        work.streams.require(stream)
        work.permit.take(deadline)
        try:
            self._submit(kernel_id, config, arguments, memory, deadline, stream)
        finally:
            work.permit.settle()

    @in_turn(recording=True)
    def pieces(self, kernel_id: int, config: LaunchConfig) -> int:
        """Return how many pieces of work a launch is, the moves of its windows not counted."""
        return self._core.launch_pieces(self._core.table.kernels[kernel_id], config)

    @in_turn(recording=True)
    def before_launch(self, memory: Region) -> list[int]:
        """Return the streams, by their numbers, that `launch` waits for if it has windows on the memory."""
        return self._core.windows.before_launch(memory)

    @in_turn(recording=True)
    def before_submit(self, memory: Region) -> list[int]:
        """Return the streams, by their numbers, that `submit` waits for if it has windows on the memory."""
        return self._core.windows.before_start(memory)

    @in_turn()
    def finish_staged(self, memory: Region, deadline: Deadline) -> None:
        """Wait for a staged launch that compiled code started, and copy its windows back.

        Args:
            memory: the guest's memory as it is now.
            deadline: when the kernel must have stopped.

        Raises:
            LaunchRefused: what the layout says is staged is not the guest's; nothing is copied.
        """
        core, work = self._core, self._core.work
        work.wait(work.find(OWN), deadline)
        work.permit.settle()
        core.windows.finish(memory)
        core.staged += 1

    # ------------------------------------------------------------------------------------------- parts

    def _submit(
        self,
        kernel_id: int,
        config: LaunchConfig,
        arguments: Arguments,
        memory: Region | None,
        deadline: Deadline,
        stream: int,
    ) -> None:
        placing = self._core.windows
        if placing.confined and placing.kind != "staged":
            placement = self._begin(kernel_id, config, arguments, memory, deadline, stream)
            if placement is not None:
                self._finish(placement, stream, deadline)
            return
        kernel, bound, windows = self._resolve(kernel_id, config, arguments)
        if memory is not None and windows:
            placing.extend(memory, deadline)
        self._start(kernel, config, self._bind(kernel, bound), windows, stream, deadline, None)

    def _begin(
        self,
        kernel_id: int,
        config: LaunchConfig,
        arguments: Arguments,
        memory: Region | None,
        deadline: Deadline,
        number: int = OWN,
    ) -> Placement | None:
        """Start a kernel; return where its windows are staged, if they are."""
        kernel, bound, windows = self._resolve(kernel_id, config, arguments)
        placing = self._core.windows
        placement = placing.place(windows, memory, deadline) if memory is not None and windows else None
        values = self._bind(kernel, bound, placement)
        if placement is not None:
            placing.copy_in(placement, deadline)
        self._start(kernel, config, values, windows, number, deadline, placement)
        return placement

    def _finish(self, placement: Placement | None, number: int, deadline: Deadline) -> None:
        core, work = self._core, self._core.work
        work.wait(work.find(number), deadline)
        if placement is not None:
            core.windows.copy_out(placement)
            core.staged += 1

    def _record(
        self,
        kernel_id: int,
        config: LaunchConfig,
        arguments: Arguments,
        memory: Region | None,
        deadline: Deadline,
        stream: int,
    ) -> None:
        core, uses = self._core, self._require_recording(stream).uses
        kernel, bound, windows = self._resolve(kernel_id, config, arguments)
        pieces = core.launch_pieces(kernel, config)
        if kernel.shared.sites:
            raise InvalidArgs("a kernel that checks its accesses is launched by itself, and not recorded into a graph")
        recorder = self._begin_step(stream, memory, deadline, pieces)
        self._require_reached(windows)
        config, values = core.complete(kernel, config, self._bind(kernel, bound), None)
        shared, regions = kernel.shared, core.table.reachable()
        core.device.launch(shared.loaded, shared.entry, config, values, regions, recorder, deadline)
        reached = core.windows.reach.region
        uses.add(bound, kernel_id, reached, pieces)
        if any(isinstance(argument, Scalar) and argument.size_bytes == 8 for argument in bound):
            # A number may be the address of anything that the session has: the graph needs all of it.
            uses.buffers.update(core.table.buffers)
            uses.memory = reached

    def _resolve(
        self, kernel_id: int, asked: LaunchConfig, arguments: Arguments
    ) -> tuple[HeldKernel, Sequence[Argument], list[HostWindow]]:
        bound, config = arguments(), asked
        kernel = self._core.table.kernels[kernel_id]
        guarded = kernel.shared.guarded
        if guarded is not None:
            if not guarded.verified.takes(config.block):
                raise InvalidDimensions(
                    f"block {config.block}: threads of this kernel wait for their warp, so it takes whole warps of 32 "
                    "threads, along x if there are several rows"
                )
            config = replace(asked, shared_bytes=guarded.shared.total(asked.shared_bytes))
        check_fit(config, kernel.shared.signature, self._core.device.info)
        if guarded is not None and (pieces := self._core.launch_pieces(kernel, asked)) > GUARDED_PIECES:
            most = math.prod(config.grid) * GUARDED_PIECES // pieces
            raise InvalidDimensions(
                f"grid {config.grid}: a guarded kernel has at most some {most} blocks of this size a launch, "
                "since each has to begin before it can stop; launch it in parts"
            )
        return kernel, bound, [argument for argument in bound if isinstance(argument, HostWindow)]

    def _bind(
        self, kernel: HeldKernel, bound: Sequence[Argument], placement: Placement | None = None
    ) -> tuple[bytes, ...]:
        core = self._core
        return bind(
            kernel.shared.signature, core.windows.locate(placement, bound), core.table.buffers, core.table.regions
        )

    def _start(
        self,
        kernel: HeldKernel,
        config: LaunchConfig,
        values: tuple[bytes, ...],
        windows: Sequence[HostWindow],
        number: int,
        deadline: Deadline,
        placement: Placement | None,
    ) -> None:
        core, work, reach = self._core, self._core.work, self._core.windows.reach
        stream = work.find(number)
        if spans := reach.movable(windows):  # large windows on managed memory move first: work of its own
            work.give(stream, len(spans), reach.move, spans, stream.stream)
        launch, shared, regions = core.device.launch, kernel.shared, core.table.reachable()
        checked = None
        if shared.sites:
            located = core.windows.locate(placement, windows)
            checked = CheckedLaunch(core, kernel, located, config.shared_bytes, deadline)
        pieces = core.launch_pieces(kernel, config)
        config, values = core.complete(kernel, config, values, deadline)
        work.give(stream, pieces, launch, shared.loaded, shared.entry, config, values, regions, stream.stream, deadline)
        core.launched += 1
        if checked is not None:
            checked.wait(stream)
