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
from tensorwasm.guest.imports.offload.launches import Launch, PlanLaunches
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
_SIZES: Final = {"i32": 4, "f32": 4, "i64": 8, "f64": 8}
_ONE_THREAD: Final = LaunchConfig((1, 1, 1), (1, 1, 1))


class DeviceTarget:
    """A device, through a session of one instance; see `tensorwasm.guest.imports.offload.guards.OffloadTarget`.

    An error of the session declines as long as nothing was copied back.
    """

    def __init__(self, open_session: Callable[[], Session]) -> None:
        """Use the session that the function returns, which is called for the first plan that runs."""
        self.moved_bytes = 0
        self.launches = PlanLaunches()
        self._open = open_session
        self._session: Session | None = None
        self._free: list[tuple[int, int]] = []  # size and handle of buffers that no run uses
        self._kernels: dict[tuple[str, str], int] = {}  # ids of loaded kernels, by PTX and entry

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
                if self._session is None:
                    self._session = self._open()
                run = stack.enter_context(_lent(self, self._session, plan, inputs, call))
                results = run.compute()
                if kept is not None:
                    kept += run.read_written()
            except (InvokeTimeout, GuestTrap):
                raise
            except TensorWasmError as error:
                raise Declined(DeclineReason.DEVICE, f"{error.kind}: {error.message}") from error
            if kept is None:
                run.give_back()
            return results

    def stop(self) -> None:
        """Stop kernels that run, from any thread."""
        session = self._session
        if session is not None:
            session.stop_kernels()

    def statistics(self) -> SessionStatistics | None:
        """Return what was used of the device, None for nothing."""
        return None if self._session is None else self._session.statistics()

    def load(self, session: Session, ptx: str, entry: str, call: HostCall) -> int:
        """Return the id of a kernel."""
        kernel = self._kernels.get((ptx, entry))
        if kernel is None:
            kernel = self._kernels[ptx, entry] = session.kernels.load(ptx.encode(), entry, call.deadline)
        return kernel

    @contextmanager
    def lend(self, session: Session, sizes_bytes: Sequence[int], deadline: Deadline) -> Iterator[list[int]]:
        """Yield handles of buffers of at least these sizes."""
        lent: list[tuple[int, int]] = []
        try:
            lent.extend(self._take(session, size_bytes, deadline) for size_bytes in sizes_bytes)
            yield [handle for _, handle in lent]
        finally:
            self._free += lent

    def _take(self, session: Session, size_bytes: int, deadline: Deadline) -> tuple[int, int]:
        fitting = [each for each in self._free if size_bytes <= each[0] <= 2 * size_bytes]
        if fitting:
            best = min(fitting)
            self._free.remove(best)
            return best
        try:
            return size_bytes, session.buffers.allocate(size_bytes)
        except QuotaExceeded:
            self.launches.forget(session, deadline)
            while self._free:
                session.buffers.free(self._free.pop()[1], deadline)
            return size_bytes, session.buffers.allocate(size_bytes)


@contextmanager
def _lent(
    target: DeviceTarget, session: Session, plan: ReadyPlan[GpuCode], inputs: Mapping[int, int], call: HostCall
) -> Iterator[_DeviceRun]:
    """Hold the buffers that a run needs."""
    arguments = plan.program.arguments
    sizes = [array.size_bytes for array in arguments.arrays]
    sizes += [storage_bytes(cell) for cell in arguments.cells]
    sizes.append(_FLAG_BYTES + _RESULT_BYTES * len(arguments.results))
    with target.lend(session, sizes, call.deadline) as (*buffers, shown):
        yield _DeviceRun(target, session, plan, inputs, call, buffers, shown)


@dataclass(slots=True)
class _DeviceRun:
    """One run of a plan.

    Attributes:
        buffers: of the arrays, then of the cells.
        shown: a buffer of the flag and the results.
    """

    target: DeviceTarget
    session: Session
    plan: ReadyPlan[GpuCode]
    inputs: Mapping[int, int]
    call: HostCall
    buffers: list[int]
    shown: int

    def compute(self) -> dict[int, int]:
        """Copy arrays to the device and run all kernels; return the results, by local."""
        deadline = self.call.deadline
        for array, handle in self._arrays():
            self.session.buffers.write(handle, self.call.memory.view(array.first, array.size_bytes), deadline)
            self.target.moved_bytes += array.size_bytes
        self.session.buffers.write(self.shown, bytes(_FLAG_BYTES), deadline)
        inputs = [self.inputs[local] for local, _ in self.plan.program.arguments.inputs]
        key = (self.plan, *self.buffers, self.shown, *inputs)
        self.target.launches.run(self.session, key, self._all_launches(), self.call)
        shown = bytearray(_FLAG_BYTES + _RESULT_BYTES * len(self.plan.program.arguments.results))
        self.session.buffers.read(self.shown, memoryview(shown), deadline)
        if any(shown[:_FLAG_BYTES]):
            raise Declined(DeclineReason.NOT_A_NUMBER)
        places = range(_FLAG_BYTES, len(shown), _RESULT_BYTES)
        computed = {
            local: int.from_bytes(shown[place : place + _SIZES[kind]], "little")
            for place, (local, kind) in zip(places, self.plan.program.arguments.results, strict=True)
        }
        return {**computed, **self.plan.program.known}

    def give_back(self) -> None:
        """Copy to the guest's memory what kernels may have written."""
        for array, handle in self._arrays():
            if array.written:
                into = self.call.memory.view(array.first, array.size_bytes)
                self.session.buffers.read(handle, into, self.call.deadline)
                self.target.moved_bytes += array.size_bytes

    def read_written(self) -> Iterator[tuple[int, bytes]]:
        """Yield where kernels may have written, and what is there now."""
        for array, handle in self._arrays():
            if array.written:
                content = bytearray(array.size_bytes)
                self.session.buffers.read(handle, memoryview(content), self.call.deadline)
                yield array.first, bytes(content)

    def _arrays(self) -> Iterator[tuple[Array, int]]:
        return zip(self.plan.program.arguments.arrays, self.buffers, strict=False)

    def _all_launches(self) -> Iterator[Launch]:
        yield from self._steps(self.plan.program.steps, self.plan.program.sizes)
        if self.plan.code.results is not None:
            yield self._launch(self.plan.code.results, _ONE_THREAD, [BufferOffset(self.shown, _FLAG_BYTES)])

    def _steps(self, steps: Sequence[HostLoop | Kernel], variables: Mapping[str, int]) -> Iterator[Launch]:
        for step in steps:
            if isinstance(step, Kernel):
                yield from self._kernel(self.plan.code.kernels[step.number], variables, last=step is steps[-1])
                continue
            known = {name: (value, value) for name, value in variables.items()}
            (first, _), (last, _) = (evaluated(bound, known.__getitem__) for bound in (step.first, step.last))
            for number in range(first, last + 1):
                yield from self._steps(step.body, {**variables, step.variable: number})

    def _kernel(self, kernel: GpuKernel, variables: Mapping[str, int], *, last: bool) -> Iterator[Launch]:
        config = grid_of(kernel, variables)
        if config is not None:
            values = [variables[name] if name in kernel.used else 0 for name in kernel.variables]
            given = [Scalar(value.to_bytes(8, "little", signed=True)) for value in values]
            yield self._launch(kernel.entry, config, given, last=last)

    def _launch(self, entry: str, config: LaunchConfig, given: Sequence[Argument], *, last: bool = True) -> Launch:
        code = self.plan.code
        kernel = self.target.load(self.session, code.ptx, entry, self.call)
        origins = [array.origin for array in self.plan.program.arguments.arrays]
        buffers = [BufferOffset(handle, origin) for handle, origin in zip_longest(self.buffers, origins, fillvalue=0)]
        inputs = [
            Scalar(self.inputs[local].to_bytes(_SIZES[kind], "little"))
            for local, kind in self.plan.program.arguments.inputs
        ]
        return Launch(kernel, config, (*buffers, *inputs, *given, BufferOffset(self.shown, 0)), last)
