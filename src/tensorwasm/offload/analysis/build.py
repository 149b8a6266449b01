"""From a region and concrete integers to a nest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from tensorwasm.offload.analysis.draft import LocalValue, WalkState
from tensorwasm.offload.analysis.finish import finish
from tensorwasm.offload.analysis.integers import BITS, number
from tensorwasm.offload.analysis.loops import NestWalk
from tensorwasm.offload.analysis.regions import LoopRegion, local_types
from tensorwasm.offload.analysis.scope import Scope
from tensorwasm.offload.analysis.tree import CodeBlock, mark_live, parse
from tensorwasm.offload.declined import Declined, DeclineReason
from tensorwasm.offload.nest import Input, Nest, ValueType
from tensorwasm.wasm.module import Module


@dataclass(frozen=True, slots=True)
class RegionCode:
    """A region's code, ready to be walked as often as its inputs change.

    Attributes:
        types: of the function's locals.
        counters: number of each loop, by the place where it starts; outer loops have lower ones.
    """

    region: LoopRegion
    tree: CodeBlock
    types: tuple[str, ...]
    counters: Mapping[int, int]


def read_region(module: Module, region: LoopRegion) -> RegionCode:
    """Decode a region.

    Raises:
        Declined: it exceeds a limit.
        InvalidWasm: it is malformed.
    """
    place = region.function - len(module.imported("func"))
    body = module.bodies[place]
    code = body.instructions()
    tree = parse(code, region.start, region.end + 1, module.types)
    mark_live(tree, sum(1 << local for local, _ in region.outputs))
    places = range(region.start, region.end)
    loops = [place for place in places if code[place][0] in {"loop", "memory.fill", "memory.copy"}]
    types = tuple(local_types(module.types[module.functions[place]], body))
    return RegionCode(region, tree, types, {start: count for count, start in enumerate(loops)})


def build_nest(code: RegionCode, inputs: Mapping[int, int], global_values: Mapping[int, int] | None = None) -> Nest:
    """Return what a region does for given integers.

    Args:
        code: the region.
        inputs: unsigned values of the inputs that are integers.
        global_values: unsigned values of the globals that it reads.

    Raises:
        Declined: it is not of a kind that is modelled.
    """
    region = code.region
    kinds = dict(region.globals)
    known = {local: number(kinds[local], value) for local, value in (global_values or {}).items() if local in kinds}
    walk = NestWalk(cast("tuple[ValueType, ...]", code.types), code.counters, known)
    values: list[LocalValue | None] = [None] * len(code.types)
    for local, kind in region.inputs:
        values[local] = number(kind, inputs[local]) if kind in BITS else Input(kind, local)
    try:
        ends = walk.items(code.tree.items, [WalkState(values, [], Scope())])
        if len(ends) != 1:
            raise Declined(DeclineReason.CONTROL_FLOW, "the region does not end")
        results = {local: ends[0].locals[local] for local, _ in region.outputs}
        return finish(walk, {local: value for local, value in results.items() if value is not None})
    except RecursionError as error:
        raise Declined(DeclineReason.TOO_LARGE, "blocks in blocks") from error
    except (IndexError, KeyError) as error:
        raise Declined(DeclineReason.MALFORMED, type(error).__name__) from error
