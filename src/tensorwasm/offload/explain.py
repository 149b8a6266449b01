"""What becomes of each loop of a module, by the names and lines that people know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tensorwasm.errors import InvalidWasm, InvokeTimeout
from tensorwasm.offload.analysis.regions import DeclinedLoop, LoopRegion
from tensorwasm.offload.declined import DeclineReason
from tensorwasm.offload.module import CutModule
from tensorwasm.values import Deadline
from tensorwasm.wasm.line_table import SourceLine, find_lines, find_sections
from tensorwasm.wasm.module import Module, decode
from tensorwasm.wasm.names import read_function_names
from tensorwasm.watch import Watch

_NEAR: Final = 16
"""Instructions of a loop of which the first that has a line tells the loop's: ``loop`` itself is no code."""
_LINES_S: Final = 2.0
"""Longest that lines are looked up."""


@dataclass(frozen=True, slots=True)
class ExplainedLoop:
    """A nest that may run elsewhere, or a loop that is in none.

    Attributes:
        function: its name, or that of an export, or ``func`` and its index.
        line: where it begins in the source; None if that is not known.
        depth: how many loops of the nest are in each other, 0 for a loop that is in none.
        region: number of the nest's guard; None for a loop that is in none.
        reason: why the loop is in none.
        detail: of the reason.
    """

    function: str
    line: SourceLine | None
    depth: int
    region: int | None = None
    reason: DeclineReason | None = None
    detail: str = ""


def explain(wasm: bytes, cut: CutModule) -> list[ExplainedLoop]:
    """Return all loops in the order of the module's code."""
    found: list[LoopRegion | DeclinedLoop] = [*cut.regions, *cut.declined]
    module = decode(wasm)
    lines, names = _lines(wasm, module, found), _names(module)
    numbers = {id(region): number for number, region in enumerate(cut.regions)}
    loops = []
    for loop in sorted(found, key=lambda each: (each.function, each.start)):
        place = names.get(loop.function, f"func{loop.function}"), lines.get((loop.function, loop.start))
        if isinstance(loop, LoopRegion):
            loops.append(ExplainedLoop(*place, loop.depth, numbers[id(loop)]))
        else:
            loops.append(ExplainedLoop(*place, 0, None, loop.reason, loop.detail))
    return loops


def _names(module: Module) -> dict[int, str]:
    exported = {item.index: item.name for item in module.exports if item.kind == "func"}
    return exported | read_function_names(module)


def _lines(
    wasm: bytes, module: Module, found: Sequence[LoopRegion | DeclinedLoop]
) -> dict[tuple[int, int], SourceLine]:
    """Return the lines of loops, by function and place."""
    imported = len(module.imported("func"))
    try:
        table = find_sections(wasm)
        if table is None:
            return {}
        of_function = {each.function: module.bodies[each.function - imported].offsets() for each in found}
        offsets = {
            (each.function, each.start): of_function[each.function][each.start : each.start + _NEAR] for each in found
        }
        watch = Watch(Deadline.after(_LINES_S), "while source lines were looked up")
        lines = find_lines(table, [offset for near in offsets.values() for offset in near], watch)
    except (InvalidWasm, InvokeTimeout):  # then there are none
        return {}
    known = {place: [lines[offset] for offset in near if offset in lines] for place, near in offsets.items()}
    return {place: near[0] for place, near in known.items() if near}
