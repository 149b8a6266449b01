"""Runs plans on a device: copies arrays there, launches the kernels in order, and copies back what they wrote."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Final

from tensorwasm.errors import GuestTrap, InvokeTimeout, QuotaExceeded, TensorWasmError
from tensorwasm.gpu.device.arguments import Argument, BufferOffset, Scalar
from tensorwasm.guest.imports.host_function import HostCall
from tensorwasm.guest.imports.offload.guest_pages import GuestPages
from tensorwasm.guest.imports.offload.launches import PlanLaunch, PlanLaunches
from tensorwasm.guest.imports.offload.recording import SpanKind, SpanLog, measured
from tensorwasm.offload.codegen.arguments import storage_bytes
from tensorwasm.offload.codegen.linear import evaluated
from tensorwasm.offload.codegen.nvptx import GpuCode, GpuKernel, grid_of
from tensorwasm.offload.codegen.sizes import ReadyPlan
from tensorwasm.offload.declined import Declined, DeclineReason
from tensorwasm.offload.program import Array, HostLoop, Kernel
from tensorwasm.values import Deadline, LaunchConfig

if TYPE_CHECKING:
    from tensorwasm.gpu.session import Session, SessionStatistics

_FLAG_BYTES: Final = 8
_RESULT_BYTES: Final = 8
_SHOWN_BYTES: Final = 2048
_SIZES: Final = {"i32": 4, "f32": 4, "i64": 8, "f64": 8}
_ONE_THREAD: Final = LaunchConfig((1, 1, 1), (1, 1, 1))


class DeviceTarget:
    """A device, through a session of one instance; see `tensorwasm.guest.imports.offload.guards.OffloadTarget`.

    An error of the session declines as long as nothing was copied back.
    """

    def __init__(
        self,
        open_session: Callable[[], Session],
        end_session: Callable[[Session], bool],
        spans: SpanLog | None = None,
    ) -> None:
        """Use the session that the first function returns, which is called for the first plan that runs.

        The other one ends it, and returns whether nothing reaches the guest's memory any more.
        """
        self.moved_bytes = 0
        self._open = open_session
        self._end = end_session
        self._spans = spans
        self._parts: _DeviceParts | None = None

    def run(
        self,
        plan: ReadyPlan[GpuCode],
        inputs: Mapping[int, int],
        call: HostCall,
        kept: list[tuple[int, bytes]] | None = None,
    ) -> Mapping[int, int]:
        """Run a plan; raise what `HostCall.check` raises if the guest is to end meanwhile."""
        with ExitStack() as stack:
            try:
                if self._parts is None:
                    self._parts = _DeviceParts(self._open())
                run = stack.enter_context(_lent(self._parts, plan, inputs, call, self._spans))
                results = run.compute()
                if kept is not None:
                    kept += run.read_written()
            except (InvokeTimeout, GuestTrap):
                raise
            except TensorWasmError as error:
                raise Declined(DeclineReason.DEVICE, f"{error.kind}: {error.message}") from error
            if kept is None:
                run.give_back()
            self.moved_bytes += run.moved_bytes
            return results

    def stop(self) -> None:
        """Stop kernels that run, from any thread."""
        parts = self._parts
        if parts is not None:
            parts.session.stop_kernels()

    def statistics(self) -> SessionStatistics | None:
        """Return what was used of the device, None for nothing."""
        return None if self._parts is None else self._parts.session.statistics()

    def end(self) -> bool:
        """Close the session; return whether nothing of it reaches the guest's memory any more."""
        return self._parts is None or self._end(self._parts.session)


class _DeviceParts:
    """A session with what runs leave in it for later ones: buffers, kernels, and the registration of memory.

    Attributes:
        clean: whether the flag of the buffer of results is known to be 0.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.pages = GuestPages(session)
        self.launches = PlanLaunches()
        self.clean = True
        self._shown = 0
        self._free: list[tuple[int, int]] = []  # size and handle of buffers that no run uses
        self._kernels: dict[tuple[str, str], int] = {}  # ids of loaded kernels, by PTX and entry

    def load(self, ptx: str, entry: str, call: HostCall) -> int:
        """Return the id of a kernel."""
        kernel = self._kernels.get((ptx, entry))
        if kernel is None:
            kernel = self._kernels[ptx, entry] = self.session.kernels.load(ptx.encode(), entry, call.deadline)
        return kernel

    def shown(self, deadline: Deadline) -> int:
        """Return the handle of a buffer of the flag and the results; the flag is 0."""
        if not self._shown:
            self._shown = self.session.buffers.allocate(_SHOWN_BYTES)
        if not self.clean:
            self.session.buffers.write(self._shown, bytes(_FLAG_BYTES), deadline)
            self.clean = True
        return self._shown

    @contextmanager
    def lend(self, sizes_bytes: Sequence[int], deadline: Deadline) -> Iterator[list[int]]:
        """Yield handles of buffers of at least these sizes."""
        lent: list[tuple[int, int]] = []
        try:
            lent.extend(self._take(size_bytes, deadline) for size_bytes in sizes_bytes)
            yield [handle for _, handle in lent]
        finally:
            self._free += lent

    def _take(self, size_bytes: int, deadline: Deadline) -> tuple[int, int]:
        buffers = self.session.buffers
        fitting = [each for each in self._free if size_bytes <= each[0] <= 2 * size_bytes]
        if fitting:
            best = min(fitting)
            self._free.remove(best)
            return best
        try:
            return size_bytes, buffers.allocate(size_bytes)
        except QuotaExceeded:
            self.launches.forget(self.session, deadline)
            while self._free:
                buffers.free(self._free.pop()[1], deadline)
            if self._shown:  # it may hold a chunk of the pool alone; no run has it yet
                shown, self._shown, self.clean = self._shown, 0, True
                buffers.free(shown, deadline)
            return size_bytes, buffers.allocate(size_bytes)


@contextmanager
def _lent(
    parts: _DeviceParts,
    plan: ReadyPlan[GpuCode],
    inputs: Mapping[int, int],
    call: HostCall,
    spans: SpanLog | None,
) -> Iterator[_DeviceRun]:
    """Hold the buffers that a run needs."""
    arguments = plan.program.arguments
    sizes = [array.size_bytes for array in arguments.arrays]
    sizes += [storage_bytes(cell) for cell in arguments.cells]
    if _FLAG_BYTES + _RESULT_BYTES * len(arguments.results) > _SHOWN_BYTES:
        raise Declined(DeclineReason.TOO_LARGE, "results")
    with parts.lend(sizes, call.deadline) as buffers:
        yield _DeviceRun(parts, plan, inputs, call, buffers, parts.shown(call.deadline), spans)


@dataclass(slots=True)
class _DeviceRun:
    """One run of a plan.

    Attributes:
        buffers: of the arrays, then of the cells.
        shown: a buffer of the flag and the results.
        spans: takes what the time goes to; copies are waited for then.
        moved_bytes: copied to and from the device.
    """

    parts: _DeviceParts
    plan: ReadyPlan[GpuCode]
    inputs: Mapping[int, int]
    call: HostCall
    buffers: list[int]
    shown: int
    spans: SpanLog | None
    moved_bytes: int = 0

    def compute(self) -> dict[int, int]:
        """Copy arrays to the device and run all kernels; return the results, by local."""
        parts, results = self.parts, self.plan.program.arguments.results
        self._copy_in()
        parts.clean = False
        inputs = [self.inputs[local] for local, _ in self.plan.program.arguments.inputs]
        key = (self.plan, *self.buffers, self.shown, *inputs)
        with measured(self.spans, SpanKind.RUN) as span:
            launched = parts.launches.run(parts.session, key, self._launches(), self.call)
            shown = bytearray(_FLAG_BYTES + _RESULT_BYTES * len(results))
            parts.session.buffers.read(self.shown, memoryview(shown), self.call.deadline)
            if span is not None:
                span.amount = launched
        if any(shown[:_FLAG_BYTES]):
            raise Declined(DeclineReason.NOT_A_NUMBER)
        parts.clean = True
        places = range(_FLAG_BYTES, len(shown), _RESULT_BYTES)
        computed = {
            local: int.from_bytes(shown[place : place + _SIZES[kind]], "little")
            for place, (local, kind) in zip(places, results, strict=True)
        }
        return {**computed, **self.plan.program.known}

    def _copy_in(self) -> None:
        parts = self.parts
        with measured(self.spans, SpanKind.COPY_IN) as span:
            parts.pages.reach(self.plan.program.arguments.arrays, self.call.memory, self.call.deadline)
            for array, handle in self._arrays():
                if not array.filled:
                    parts.pages.copy_in(handle, array, self.call)
                    self.moved_bytes += array.size_bytes
            if span is not None:
                parts.pages.finish(self.call.deadline)
                span.amount = self.moved_bytes

    def give_back(self) -> None:
        """Copy to the guest's memory what kernels may have written."""
        before_bytes = self.moved_bytes
        with measured(self.spans, SpanKind.COPY_OUT) as span:
            for array, handle in self._arrays():
                if array.written:
                    self.parts.pages.copy_out(handle, array, self.call)
                    self.moved_bytes += array.size_bytes
            self.parts.pages.finish(self.call.deadline)
            if span is not None:
                span.amount = self.moved_bytes - before_bytes

    def read_written(self) -> Iterator[tuple[int, bytes]]:
        """Yield where kernels may have written, and what is there now."""
        for array, handle in self._arrays():
            if array.written:
                content = bytearray(array.size_bytes)
                self.parts.session.buffers.read(handle, memoryview(content), self.call.deadline)
                yield array.first, bytes(content)

    def _arrays(self) -> Iterator[tuple[Array, int]]:
        return zip(self.plan.program.arguments.arrays, self.buffers, strict=False)

    def _launches(self) -> Iterator[PlanLaunch]:
        """Yield all launches in order."""
        program, code = self.plan.program, self.plan.code
        origins = [array.origin for array in program.arguments.arrays]
        buffers = [BufferOffset(handle, origin) for handle, origin in zip_longest(self.buffers, origins, fillvalue=0)]
        inputs = [
            Scalar(self.inputs[local].to_bytes(_SIZES[kind], "little")) for local, kind in program.arguments.inputs
        ]
        given: tuple[Argument, ...] = (*buffers, *inputs)
        shown = BufferOffset(self.shown, 0)
        for kernel, variables, last in _kernels_in(self.plan, program.steps, program.sizes):
            config = grid_of(kernel, variables)
            if config is not None:
                values = [variables[name] if name in kernel.used else 0 for name in kernel.variables]
                scalars = [Scalar(value.to_bytes(8, "little", signed=True)) for value in values]
                loaded = self.parts.load(code.ptx, kernel.entry, self.call)
                yield PlanLaunch(loaded, config, (*given, *scalars, shown), last)
        if code.results is not None:
            loaded = self.parts.load(code.ptx, code.results, self.call)
            yield PlanLaunch(loaded, _ONE_THREAD, (*given, BufferOffset(self.shown, _FLAG_BYTES), shown), last=True)


def _kernels_in(
    plan: ReadyPlan[GpuCode], steps: Sequence[HostLoop | Kernel], variables: Mapping[str, int]
) -> Iterator[tuple[GpuKernel, Mapping[str, int], bool]]:
    """Yield the kernels of steps in order, with the values of the variables around each, and if it is a turn's last."""
    for step in steps:
        if isinstance(step, Kernel):
            yield plan.code.kernels[step.number], variables, step is steps[-1]
            continue
        known = {name: (value, value) for name, value in variables.items()}
        (first, _), (last, _) = (evaluated(bound, known.__getitem__) for bound in (step.first, step.last))
        for number in range(first, last + 1):
            yield from _kernels_in(plan, step.body, {**variables, step.variable: number})
