"""What a worker is given, and what it tells."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tensorwasm.gpu.resources.guarded_compiler import KernelJob, KernelTarget
from tensorwasm.runtime.executor.local import PLACES
from tensorwasm.runtime.workers.frames import PROTOCOL, SetupFrame
from tensorwasm.runtime.workers.kernels.service import Done
from tensorwasm.runtime.workers.lifecycle import Backoff, State
from tensorwasm.runtime.workers.process import Patience
from tensorwasm.runtime.workers.template import PROGRAM
from tensorwasm.values import DeviceInfo, Isolation, SmPlacement


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """How a worker's processes are made: their time limits are `patience`, their restarts `backoff`."""

    device: str = "emulator"  # ``emulator`` or ``cuda:N``
    multiprocessors: int | None = None  # share of the device's, None for all
    # Where the share lies among those of the device's other workers; None for anywhere.
    place: SmPlacement | None = None
    isolation: Isolation = "stream"  # what keeps kernels apart in the process
    pipes: str | None = None  # folder of the MPS daemon that they join, None to join none
    places: int = PLACES  # calls without a device at a time
    requests: int = 256  # most that the worker holds, waiting ones included; one more is refused as `CapacityExhausted`
    patience: Patience = Patience()  # noqa: RUF009 - immutable
    backoff: Backoff = Backoff()  # noqa: RUF009 - immutable
    program: Sequence[str] = PROGRAM  # what Python runs as the template

    def setup(self, *, asks: bool, jit: bool) -> SetupFrame:
        """Return what a process is told first."""
        return SetupFrame(
            protocol=PROTOCOL,
            device=self.device,
            multiprocessors=self.multiprocessors,
            place=(self.place.unit, self.place.before) if self.place is not None else None,
            asks=asks,
            jit=jit,
            isolation=self.isolation,
            places=self.places,
            beat_s=self.patience.beat_s,
        )


@dataclass(frozen=True, slots=True)
class WorkerStatistics:
    """A snapshot of a worker."""

    number: int  # the worker's
    device: str  # what was asked for
    tenant: str | None  # whose alone it is, None for any tenant's
    state: State  # the current one
    pid: int | None  # its process, None if there is none
    info: DeviceInfo | None  # its process's device, None until one was ready
    waiting: int  # requests that no process was given yet
    running: int  # requests that its process has
    answered: int  # requests that processes have answered
    starts: int  # processes started
    last_end: str  # how the last process that was not stopped ended, empty if none has
    charges: tuple[tuple[str, int, int], ...]  # device and pinned bytes of tenants, by name


@dataclass(frozen=True, slots=True)
class Notices:
    """What a worker's owner is told, on the worker's own thread. None of them may wait or raise.

    Attributes:
        long_work: kernels of a tenant run long.
        fault: the process or its device was lost; with the tenants whose requests it had.
        wish: these tenants, and no others, with these weights, keep the device busy in the process; nobody does once it
            has ended.
        end_turn: the process has ended a turn on the device, the one with that number; and whether something of it runs
            on, of which it will tell the end.
        compile: the process wants a kernel; the second argument is given it, as by `KernelService.submit`.
        plan: the process wants a plan of a tenant: a packed `PlanJob`; the third argument is given its `PlanOutcome`.
        know: what the process's kernels are compiled for, once it is ready.
    """

    long_work: Callable[[str], object] = str
    fault: Callable[[frozenset[str]], object] = frozenset
    wish: Callable[[Mapping[str, int]], object] = dict
    end_turn: Callable[[int, bool], object] = max
    compile: Callable[[KernelJob, Done], object] | None = None
    plan: Callable[[str, bytes, Done], object] | None = None
    know: Callable[[KernelTarget], object] = id
