"""Where data lies: cells in registers of threads or in scratch memory, and arrays of which a device needs no copy.

A nest fills an array if every byte is written before any is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import prod
from typing import Final

import islpy as isl

from tensorwasm.offload.declined import Declined, DeclineReason
from tensorwasm.offload.nest import Cell, Nest
from tensorwasm.offload.program import Array, CellStorage
from tensorwasm.offload.scheduling.axes import Axis
from tensorwasm.offload.scheduling.footprints import Footprint, cell_accesses, cells_in
from tensorwasm.offload.scheduling.model import NestModel, StatementModel
from tensorwasm.offload.scheduling.polyhedra import constrain, limited_context, set_columns
from tensorwasm.offload.scheduling.rewriting import statements_in
from tensorwasm.offload.scheduling.schedule import PlannedKernel, Step, kernels_in

MAX_SCRATCH_BYTES: Final = 1 << 28


def storages(nest: Nest, model: NestModel, steps: Sequence[Step]) -> tuple[CellStorage, ...]:
    """The storage of each cell of a nest.

    Raises:
        Declined: they take too much.
    """
    results = set(cells_in(nest.results.values()))
    kernels = list(kernels_in(steps))
    accesses = (access for statement in statements_in(nest.body) for access in cell_accesses(statement))
    shared = {access.cell for access in accesses if access.counters != access.cell.counters} | results
    cells = []
    scratch_bytes = 0
    for cell, extents in {**dict.fromkeys(results, ()), **model.cell_extents}.items():
        users = [each for each in model.statements if any(part.region is cell for part in each.footprints)]
        using = [kernel for kernel in kernels if any(user in kernel.statements for user in users)]
        private = cell not in shared and len(using) == 1 and _is_private(cell, using[0], users)
        kept = _kept(cell, extents, using, users)
        strides = tuple(prod(kept[index + 1 :]) if extent > 1 else 0 for index, extent in enumerate(kept))
        count = 1 if private else prod(kept)
        scratch_bytes += 0 if private else count * int(cell.type[1:]) // 8
        cells.append(CellStorage(cell, strides, count, private))
    if scratch_bytes > MAX_SCRATCH_BYTES:
        raise Declined(DeclineReason.TOO_LARGE, "scalars that iterations hand on")
    return tuple(cells)


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


MAX_OPERATIONS: Final = 300_000
"""Of isl for one array; without an answer the array counts as one that is not filled."""

_Access = tuple[StatementModel, Footprint]


def arrays_with_filled(model: NestModel) -> tuple[Array, ...]:
    """The arrays of a nest, with those marked that it fills."""
    return tuple(replace(array, filled=array.written and _fills(model, array)) for array in model.arrays)


def _fills(model: NestModel, array: Array) -> bool:
    """Whether stores of whole items of the nest's body fill an array before the items that read what it held."""
    stores = [
        (statement, each)
        for statement in model.statements
        for each in statement.footprints
        if each.write and each.region == array.number
    ]
    exposed = [
        statement.positions[0]
        for statement in model.statements
        for load in statement.loads
        if load.region == array.number and not any(_is_just_written(statement, load, store) for store in stores)
    ]
    if exposed:
        stores = [(statement, each) for statement, each in stores if statement.positions[0] < min(exposed)]
    if sum(statement.iterations() * each.size for statement, each in stores) < array.size_bytes:
        return False
    try:
        return _cover(array, stores)
    except Declined:
        return False


def _is_just_written(statement: StatementModel, load: Footprint, store: _Access) -> bool:
    """Whether a store has written what a load reads, earlier in the same iteration of the loops around the store."""
    writer, written = store
    depth = len(writer.counters)
    if writer.order >= statement.order or statement.counters[:depth] != writer.counters:
        return False
    if any(written.row[depth:-1]) or any(load.row[depth:-1]) or written.row[:depth] != load.row[:depth]:
        return False
    ahead = load.row[-1] - written.row[-1]
    if ahead < 0 or ahead + load.size > written.size:
        return False
    return bool(_iterations(statement, depth).is_subset(_iterations(writer, depth)))


def _iterations(statement: StatementModel, depth: int) -> isl.Set:
    """The values of the counters of the outermost loops for which a statement runs."""
    beyond = statement.domain.dim(isl.dim_type.set) - depth
    return statement.domain.project_out(isl.dim_type.set, depth, beyond).reset_tuple_id()


def _cover(array: Array, stores: Sequence[_Access]) -> bool:
    """Whether stores write all granules of an array.

    Raises:
        Declined: that takes too long to find.
    """
    with limited_context(MAX_OPERATIONS) as context:
        line = isl.Space.set_alloc(context, 0, 1)
        written = isl.Set.empty(line)
        for statement, store in stores:
            written = written.union(_granules(context, array, statement, store))
        last = array.size_bytes // array.granule_bytes - 1
        whole = constrain(isl.BasicSet.universe(line), set_columns(1), [(1, 0), (-1, last)])
        return bool(isl.Set.from_basic_set(whole).is_subset(written))


def _granules(context: isl.Context, array: Array, statement: StatementModel, store: Footprint) -> isl.Set:
    """The numbers of the granules of an array that a statement writes."""
    unit = array.granule_bytes
    row = [each // unit for each in (*store.row[:-1], store.row[-1] - array.first)]
    above = (*(-each for each in row[:-1]), 1, -row[-1])
    below = (*row[:-1], -1, row[-1] + store.size // unit - 1)
    domain = isl.Set.read_from_str(context, statement.domain.to_str()).reset_tuple_id()
    columns = len(row) - 1
    space = isl.Space.set_alloc(context, 0, columns + 1)
    touched = constrain(isl.BasicSet.universe(space), set_columns(columns + 1), [above, below])
    pairs = domain.add_dims(isl.dim_type.set, 1).intersect(isl.Set.from_basic_set(touched))
    return pairs.project_out(isl.dim_type.set, 0, columns)
