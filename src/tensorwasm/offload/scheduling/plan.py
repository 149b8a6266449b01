"""From a nest to a parallel program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import islpy as isl

from tensorwasm.offload.declined import Declined, DeclineReason
from tensorwasm.offload.nest import Nest, whiles_of
from tensorwasm.offload.program import NestProgram
from tensorwasm.offload.scheduling.dependences import dependences
from tensorwasm.offload.scheduling.expansion import expanded
from tensorwasm.offload.scheduling.forwarding import simplified
from tensorwasm.offload.scheduling.model import NestModel, model
from tensorwasm.offload.scheduling.pivots import with_pivots
from tensorwasm.offload.scheduling.polyhedra import limited_context
from tensorwasm.offload.scheduling.reductions.reassociation import reassociated
from tensorwasm.offload.scheduling.residing import reloading, resident
from tensorwasm.offload.scheduling.rewriting import divided, split, statements_in
from tensorwasm.offload.scheduling.scanning import Scanner
from tensorwasm.offload.scheduling.schedule import Step, crowded, left_to_one_thread, schedule, sequential
from tensorwasm.offload.scheduling.storage import arrays_with_filled, storages

MAX_OPERATIONS: Final = 3_000_000
"""Of isl in one analysis, which are about half a second."""
FUSED_SEQUENTIAL: Final = 2000
"""Most iterations that one thread runs of a region that is several: a processor is faster, and one may decline."""

LONGER_IN_PLACE: Final = 1.25
"""How much longer an order may take that has no cells in memory."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A nest with an order, found in a context of its own."""

    context: isl.Context
    nest: Nest
    model: NestModel
    steps: tuple[Step, ...]

    @property
    def parallel(self) -> bool:
        """One thread does less than half of the work."""
        whole = sum(each.iterations() for each in self.model.statements)
        return 2 * left_to_one_thread(self.steps) < whole

    def leaves_at_most(self, iterations: int) -> bool:
        """Whether single threads run at most so many iterations, and no loop of data."""
        alone = {each.number for each in sequential(self.steps)}
        turning = any(each.number in alone and any(whiles_of(each.effects)) for each in statements_in(self.nest.body))
        return not turning and left_to_one_thread(self.steps) <= iterations

    @property
    def rank(self) -> tuple[bool, int]:
        """Less is better: parallel first, then by cost."""
        return not self.parallel, sum(step.cost for step in self.steps)

    @property
    def has_scratch(self) -> bool:
        """A cell is an array in memory."""
        try:
            cells = storages(self.nest, self.model, self.steps)
        except Declined:
            return True
        return any(not each.private and each.count > 1 for each in cells)


@dataclass(frozen=True, slots=True)
class _Trial:
    """Under which limits orders are sought, each on its own."""

    memory_bytes: int
    max_operations: int

    def of(self, nest: Nest, otherwise: _Candidate, origins: Mapping[int, int] | None = None) -> _Candidate:
        """The order of a nest, or another one if it is too large or its cells are."""
        try:
            with limited_context(self.max_operations) as context:
                found = _scheduled(context, nest, model(context, nest, self.memory_bytes), origins)
                storages(found.nest, found.model, found.steps)
                return found
        except Declined:
            return otherwise

    def better(self, nest: Nest, than: _Candidate, origins: Mapping[int, int] | None = None) -> _Candidate:
        """The better of the order of a nest and another one."""
        return min(than, self.of(nest, than, origins), key=lambda candidate: candidate.rank)


def plan(
    nest: Nest,
    memory_bytes: int,
    max_operations: int = MAX_OPERATIONS,
    *,
    most_sequential: int | None = None,
    relaxed: bool = False,
) -> NestProgram:
    """A parallel order of a nest on a memory of a size.

    The program's nest is another one with the same effect: some loads stand in place of cells, and statements may be
    in parts. Single threads run at most ``most_sequential`` iterations, or less than half of the work if that is None.
    If it is ``relaxed``, sums and products of floats are reductions, too.

    Raises:
        Declined: there is none, or the nest would trap, or the analysis takes too long.
    """
    trial = _Trial(memory_bytes, max_operations)
    with limited_context(max_operations) as context:
        modelled = model(context, nest, memory_bytes)
        simple = simplified(nest, modelled.array_of)
        if simple is not nest:
            modelled = model(context, simple, memory_bytes)
        first = best = _scheduled(context, simple, modelled)
        parts = divided(simple, {each.number for each in crowded(best.steps)}, modelled.array_of)
        if parts is not simple:
            best = trial.better(parts, best)
        parts, origins = expanded(best.nest, best.model)
        best = trial.better(parts, best, origins) if origins else best
        if sequential(best.steps) or best.has_scratch:
            best = _in_memory(trial, first, best)
        if not best.parallel:
            whole = with_pivots(first.nest, first.model)
            best = best if whole is first.nest else trial.better(whole, best)
        if not best.parallel:
            parts, origins = split(best.nest, sequential(best.steps), dependences(best.model.statements))
            best = trial.better(parts, best, origins) if origins else best
        if sequential(best.steps):
            best = _reduced(trial, best, relaxed=relaxed)
        if not best.parallel or (most_sequential is not None and not best.leaves_at_most(most_sequential)):
            raise Declined(DeclineReason.SEQUENTIAL)
        cells = storages(best.nest, best.model, best.steps)
        code = Scanner(best.context).scan(best.steps)
        arrays = arrays_with_filled(best.model)
        isl.Space.params_alloc(best.context, 0)  # fails if that took too long, whatever it returned
        found, work = best.model, sum(each.iterations() * (len(each.footprints) + 1) for each in best.model.statements)
        return NestProgram(best.nest, code, arrays, cells, found.array_of, found.wraps, work=work)


def _scheduled(
    context: isl.Context, nest: Nest, modelled: NestModel, origins: Mapping[int, int] | None = None
) -> _Candidate:
    found = dependences(modelled.statements)
    return _Candidate(context, nest, modelled, schedule(modelled.statements, found, origins or {}))


def _reduced(trial: _Trial, otherwise: _Candidate, *, relaxed: bool) -> _Candidate:
    """The order of a nest with sequential reductions in parts, if it is better than another one."""
    alone = {each.number for each in sequential(otherwise.steps)}
    parts = divided(otherwise.nest, alone, otherwise.model.array_of)
    for base in (otherwise, otherwise if parts is otherwise.nest else trial.of(parts, otherwise)):
        alone = {each.number for each in sequential(base.steps)}
        changed = reassociated(base.nest, alone, base.model.array_of, relaxed=relaxed)
        if changed is not base.nest:
            return trial.better(changed, otherwise)
    return otherwise


def _in_memory(trial: _Trial, first: _Candidate, otherwise: _Candidate) -> _Candidate:
    """The order of a nest with places in memory for cells, if it is about as good as another one."""
    changed = resident(first.nest, first.model)
    if changed is first.nest:
        return otherwise
    best = trial.of(changed, otherwise)
    if best is not otherwise and sequential(best.steps):
        whole = trial.of(reloading(changed), best)
        parts = divided(whole.nest, {each.number for each in whole.model.statements}, whole.model.array_of)
        best = trial.better(parts, best)
    is_as_good = best.parallel >= otherwise.parallel and best.rank[1] <= otherwise.rank[1] * LONGER_IN_PLACE
    return best if is_as_good else otherwise
