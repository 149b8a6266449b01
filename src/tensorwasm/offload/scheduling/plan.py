"""From a nest to a parallel program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import islpy as isl

from tensorwasm.offload.declined import Declined, DeclineReason
from tensorwasm.offload.nest import Nest
from tensorwasm.offload.program import NestProgram
from tensorwasm.offload.scheduling.dependences import dependences
from tensorwasm.offload.scheduling.forwarding import simplified
from tensorwasm.offload.scheduling.model import NestModel, model
from tensorwasm.offload.scheduling.polyhedra import limited_context
from tensorwasm.offload.scheduling.residing import reloading, resident
from tensorwasm.offload.scheduling.rewriting import divided
from tensorwasm.offload.scheduling.scanning import Scanner
from tensorwasm.offload.scheduling.schedule import Step, left_to_one_thread, schedule, sequential
from tensorwasm.offload.scheduling.splitting import split
from tensorwasm.offload.scheduling.storage import storages

MAX_OPERATIONS: Final = 3_000_000
"""Of isl in one analysis, which are about half a second."""

LONGER_IN_PLACE: Final = 1.25
"""How much longer an order may take that has no cells in memory."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A nest with an order."""

    nest: Nest
    model: NestModel
    steps: tuple[Step, ...]

    @property
    def parallel(self) -> bool:
        """One thread does less than half of the work."""
        whole = sum(each.iterations() for each in self.model.statements)
        return 2 * left_to_one_thread(self.steps) < whole

    @property
    def rank(self) -> tuple[bool, int]:
        """Less is better: parallel first, then by cost."""
        return not self.parallel, sum(step.cost for step in self.steps)


def plan(nest: Nest, memory_bytes: int, max_operations: int = MAX_OPERATIONS) -> NestProgram:
    """A parallel order of a nest on a memory of a size.

    The program's nest is another one with the same effect: some loads stand in place of cells, and statements may be
    in parts.

    Raises:
        Declined: there is none, or the nest would trap, or the analysis takes too long.
    """
    with limited_context(max_operations) as context:
        modelled = model(context, nest, memory_bytes)
        simple = simplified(nest, modelled.array_of)
        if simple is not nest:
            modelled = model(context, simple, memory_bytes)
        best = _scheduled(simple, modelled)
        parts = divided(simple, {each.number for each in sequential(best.steps)}, modelled.array_of)
        if parts is not simple:
            best = min(best, _divided(context, parts, memory_bytes, best), key=lambda candidate: candidate.rank)
        best = _in_memory(context, simple, modelled, memory_bytes, best)
        if not best.parallel:
            parts, origins = split(best.nest, sequential(best.steps), dependences(best.model.statements))
            if origins:
                other = _divided(context, parts, memory_bytes, best, origins)
                best = min(best, other, key=lambda candidate: candidate.rank)
        if not best.parallel:
            raise Declined(DeclineReason.SEQUENTIAL)
        cells = storages(best.nest, best.model, best.steps)
        code = Scanner(context).scan(best.steps)
        found, work = best.model, sum(each.iterations() * (len(each.footprints) + 1) for each in best.model.statements)
        return NestProgram(best.nest, code, found.arrays, cells, found.array_of, found.wraps, work=work)


def _scheduled(nest: Nest, modelled: NestModel, origins: Mapping[int, int] | None = None) -> _Candidate:
    found = dependences(modelled.statements)
    return _Candidate(nest, modelled, schedule(modelled.statements, found, origins or {}))


def _in_memory(
    context: isl.Context, nest: Nest, modelled: NestModel, memory_bytes: int, otherwise: _Candidate
) -> _Candidate:
    """The order of a nest with places in memory for cells, if another one has a sequential part or cells in memory."""
    if not sequential(otherwise.steps) and not _has_scratch(otherwise):
        return otherwise
    changed = resident(nest, modelled)
    if changed is nest:
        return otherwise
    best = _divided(context, changed, memory_bytes, otherwise)
    if sequential(best.steps):
        numbers = {each.number for each in modelled.statements}
        parts = divided(reloading(changed), numbers, model(context, changed, memory_bytes).array_of)
        best = min(best, _divided(context, parts, memory_bytes, best), key=lambda each: each.rank)
    is_as_good = best.parallel >= otherwise.parallel and best.rank[1] <= otherwise.rank[1] * LONGER_IN_PLACE
    return best if is_as_good else otherwise


def _has_scratch(candidate: _Candidate) -> bool:
    """A cell is an array in memory."""
    try:
        cells = storages(candidate.nest, candidate.model, candidate.steps)
    except Declined:
        return True
    return any(not each.private and each.count > 1 for each in cells)


def _divided(
    context: isl.Context,
    nest: Nest,
    memory_bytes: int,
    otherwise: _Candidate,
    origins: Mapping[int, int] | None = None,
) -> _Candidate:
    """The order of a nest in parts, or another one if these are too many."""
    try:
        return _scheduled(nest, model(context, nest, memory_bytes), origins)
    except Declined:
        return otherwise
