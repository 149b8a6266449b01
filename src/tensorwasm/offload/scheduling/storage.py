"""Where cells lie: in registers of threads, or in scratch memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import prod
from typing import Final

from tensorwasm.offload.declined import Declined, DeclineReason
from tensorwasm.offload.nest import Cell, Nest
from tensorwasm.offload.program import CellStorage
from tensorwasm.offload.scheduling.axes import Axis
from tensorwasm.offload.scheduling.footprints import cells_in
from tensorwasm.offload.scheduling.model import NestModel, StatementModel
from tensorwasm.offload.scheduling.schedule import PlannedKernel, PlannedLoop, Step

MAX_SCRATCH_BYTES: Final = 1 << 28


def storages(nest: Nest, model: NestModel, steps: Sequence[Step]) -> tuple[CellStorage, ...]:
    """The storage of each cell of a nest.

    Raises:
        Declined: they take too much.
    """
    results = set(cells_in(nest.results.values()))
    kernels = list(_kernels(steps))
    cells = []
    scratch_bytes = 0
    for cell, extents in {**dict.fromkeys(results, ()), **model.cell_extents}.items():
        users = [each for each in model.statements if any(part.region is cell for part in each.footprints)]
        using = [kernel for kernel in kernels if any(user in kernel.statements for user in users)]
        private = cell not in results and len(using) == 1 and _is_private(cell, using[0], users)
        kept = _kept(cell, extents, using, users)
        strides = tuple(prod(kept[index + 1 :]) if extent > 1 else 0 for index, extent in enumerate(kept))
        count = 1 if private else prod(kept)
        scratch_bytes += 0 if private else count * int(cell.type[1:]) // 8
        cells.append(CellStorage(cell, strides, count, private))
    if scratch_bytes > MAX_SCRATCH_BYTES:
        raise Declined(DeclineReason.TOO_LARGE, "scalars that iterations hand on")
    return tuple(cells)


def _kernels(steps: Iterable[Step]) -> Iterator[PlannedKernel]:
    for step in steps:
        if isinstance(step, PlannedLoop):
            yield from _kernels(step.steps)
        else:
            yield step


def _is_private(cell: Cell, kernel: PlannedKernel, users: Sequence[StatementModel]) -> bool:
    """A thread is done with one element before it uses another, and no other launch uses either.

    A thread keeps the order of the nest: so it is done when all loops in it, from the outermost to the innermost that
    the cell's counters name, are among these.
    """
    if len(_repeated(cell, kernel.hosts, users)) < len(kernel.hosts):
        return False
    for user in users:
        fixed = {user.counters[axis.dimension(user)] for axis in (*kernel.hosts, *kernel.grid)}
        named = [counter in cell.counters for counter in user.counters if counter not in fixed]
        if named != sorted(named, reverse=True):
            return False
    return True


def _repeated(cell: Cell, hosts: Iterable[Axis], users: Sequence[StatementModel]) -> set[int]:
    """The cell's counters that loops of the host count, so that one pass of these uses one value of theirs."""
    return {
        counter
        for counter in cell.counters
        for axis in hosts
        if len({axis.places[user][1:] for user in users}) == 1
        and all(user.counters[axis.dimension(user)] == counter for user in users)
    }


def _kept(
    cell: Cell, extents: Sequence[int], using: Sequence[PlannedKernel], users: Sequence[StatementModel]
) -> tuple[int, ...]:
    """The extents, with 1 for each counter that is that of a host's loop around all that uses the cell."""
    hosts = set.intersection(*(set(kernel.hosts) for kernel in using)) if using else set()
    repeated = _repeated(cell, hosts, users)
    return tuple(1 if counter in repeated else extent for counter, extent in zip(cell.counters, extents, strict=True))
