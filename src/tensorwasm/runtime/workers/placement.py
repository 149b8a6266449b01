"""Placement: which worker gets a request, and where on a GPU the shares of its workers lie.

Under ``stream`` isolation every device has one worker for all tenants; under ``guarded`` it has two, the second one for
tenants whose kernels run long, because loading code waits for every kernel that runs in the same context. Under
``process`` each tenant has a worker of its own, because a process is the fault domain: on CUDA an unguarded kernel that
breaks a rule takes the device from the whole process, and may read other tenants' memory there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tensorwasm.runtime.workers.worker import Worker
from tensorwasm.values import SmPlacement


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """What placement knows of a worker."""

    number: int  # the worker's
    device: int  # index of its device in the executor's list
    tenant: str | None  # whose alone it is, None for any tenant's
    requests: int = 0  # waiting and running
    held_bytes: int = 0  # device memory held
    takes: bool = True  # whether it takes requests; one that never will again is not replaced
    used_at: int = 0  # when it was last given a request; larger is later
    long: bool = False  # for tenants whose kernels run long


@dataclass(slots=True)
class PlacedWorker:
    """A worker, and what placement knows of it."""

    worker: Worker
    device: int
    long: bool = False
    used_at: int = 0

    def load(self, number: int) -> WorkerLoad:
        """Return what decides whether it gets a request."""
        worker = self.worker
        return WorkerLoad(
            number,
            self.device,
            worker.tenant,
            worker.load,
            worker.held_bytes,
            worker.lifecycle.takes,
            self.used_at,
            self.long,
        )


@dataclass(frozen=True, slots=True)
class Use:
    """Give the request to an existing worker."""

    number: int


@dataclass(frozen=True, slots=True)
class Start:
    """Start a worker on a device, in place of an idle one where there are too many."""

    device: int
    instead_of: int | None = None


Decision = Use | Start | None
"""None where there is no room: all workers are busy."""


def choose(loads: Sequence[WorkerLoad], owner: str | None, devices: int, most: int, *, long: bool = False) -> Decision:
    """Decide where a request goes: to the least loaded worker it may use, by requests, then by bytes.

    Args:
        loads: of all workers.
        owner: the tenant, if it is to have a worker of its own, else None.
        devices: how many there are.
        most: workers of one tenant alone that a device has at most.
        long: whether it is one of a tenant whose kernels run long.
    """
    own = [load for load in loads if load.tenant == owner and load.long == long]
    takers = [load for load in own if load.takes]
    unused = [device for device in range(devices) if not any(load.device == device for load in own)]
    if takers and (owner is not None or not unused or any(not load.requests for load in takers)):
        return Use(min(takers, key=_weight).number)
    if own and (owner is not None or not unused):
        return None  # a worker that was given up stays so
    return _make_room(loads, devices, most) if owner is not None else Start(unused[0])


def _weight(load: WorkerLoad) -> tuple[int, int, int]:
    return load.requests, load.held_bytes, load.number


def _make_room(loads: Sequence[WorkerLoad], devices: int, most: int) -> Decision:
    loads = [load for load in loads if load.tenant is not None]
    on = [[load for load in loads if load.device == device] for device in range(devices)]
    free = [device for device in range(devices) if len(on[device]) < most]
    if free:
        return Start(min(free, key=lambda device: (len(on[device]), sum(load.requests for load in on[device]), device)))
    idle = [load for load in loads if load.takes and not load.requests]
    if not idle:
        return None
    oldest = min(idle, key=lambda load: (load.used_at, load.number))
    return Start(oldest.device, instead_of=oldest.number)


@dataclass(slots=True)
class _Cell:
    """Multiprocessors of one share, as requested when it was made, and the worker that has it now."""

    multiprocessors: int
    owner: int | None


class GpuShares:
    """The shares of one GPU, side by side without overlap, for the given sizes in multiprocessors. Not thread-safe.

    The driver decides how large a share is only when it is taken, so a place is given by the shares before it, and
    these must not move: a worker that leaves leaves a gap of the same size, which others that fit may take.
    """

    def __init__(self, sizes: Iterable[int]) -> None:
        self._unit = math.gcd(*sizes)
        self._cells: list[_Cell] = []

    def take(self, owner: int, multiprocessors: int) -> SmPlacement:
        """Return a place for a worker's share: the smallest gap that is large enough, else behind all others.

        The worker's process finds out whether the GPU is large enough for it.
        """
        start, end = self._find_gap(multiprocessors)
        if start == end:
            self._cells.append(_Cell(multiprocessors, owner))
        for cell in self._cells[start:end]:
            cell.owner = owner
        return SmPlacement(self._unit, tuple(cell.multiprocessors for cell in self._cells[:start]))

    def leave(self, owner: int) -> None:
        """Free a worker's share, if it has one."""
        for cell in self._cells:
            if cell.owner == owner:
                cell.owner = None
        while self._cells and self._cells[-1].owner is None:
            self._cells.pop()

    def _find_gap(self, multiprocessors: int) -> tuple[int, int]:
        """Return the first cell of a gap and the one after its last; twice the end if there is none."""
        found = len(self._cells), len(self._cells)
        smallest = math.inf
        for start in range(len(self._cells)):
            size = 0
            for end, cell in enumerate(self._cells[start:], start + 1):
                if cell.owner is not None:
                    break
                size += cell.multiprocessors
                if size >= multiprocessors:
                    found, smallest = ((start, end), size) if size < smallest else (found, smallest)
                    break
        return found
