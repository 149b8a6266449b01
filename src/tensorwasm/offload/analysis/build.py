"""From a region and concrete integers to a nest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import cast

from tensorwasm.offload.analysis.draft import LocalValue, WalkState
from tensorwasm.offload.analysis.finish import finish
from tensorwasm.offload.analysis.integers import BITS, number
from tensorwasm.offload.analysis.loops import NestWalk
from tensorwasm.offload.analysis.regions import LoopRegion, TypedLocal, local_types
from tensorwasm.offload.analysis.scope import Scope
from tensorwasm.offload.analysis.tree import CodeBlock, mark_live, parse
from tensorwasm.offload.analysis.vectors.splitting import has_vectors, without_vectors
from tensorwasm.offload.analysis.vectors.vector_stack import VectorCode
from tensorwasm.offload.declined import Declined, DeclineReason
from tensorwasm.offload.lanes import crossing_lane
from tensorwasm.offload.nest import Input, Nest, ValueType
from tensorwasm.wasm.module import Module


@dataclass(frozen=True, slots=True)
class RegionCode:
    """A region's code, ready to be walked as often as its inputs change.

    Attributes:
        types: of the function's locals, and of those that stand for lanes of vectors.
        counters: number of each loop, by the place where it starts; outer loops have lower ones.
        crossing: the local of each lane of a vector among the region's inputs.
    """

    region: LoopRegion
    tree: CodeBlock
    types: tuple[str, ...]
    counters: Mapping[int, int]
    crossing: Mapping[int, int] = field(default_factory=dict)


def read_region(module: Module, region: LoopRegion) -> RegionCode:
    """Decode a region.

    Raises:
        Declined: it exceeds a limit.
        InvalidWasm: it is malformed.
    """
    place = region.function - len(module.imported("func"))
    body = module.bodies[place]
    code = tuple(body.instructions())[region.start : region.end + 1]
    types = tuple(local_types(module.types[module.functions[place]], body))
    crossing: Mapping[int, int] = {}
    if has_vectors(code, types):
        inputs, outputs = _vector_locals(region.inputs), _vector_locals(region.outputs)
        made = without_vectors(VectorCode(code, types, module.types, inputs, outputs))
        code, types, crossing = made.code, made.types, made.crossing
    tree = parse(code, 0, len(code), module.types)
    mark_live(tree, sum(1 << crossing.get(local, local) for local, _ in region.outputs))
    loops = [place for place, each in enumerate(code) if each[0] in {"loop", "memory.fill", "memory.copy"}]
    return RegionCode(region, tree, types, {start: count for count, start in enumerate(loops)}, crossing)


def _vector_locals(inputs: Iterable[TypedLocal]) -> list[int]:
    """Return the locals of which lanes are among a region's inputs, each once."""
    return list(dict.fromkeys([found[0] for local, _ in inputs if (found := crossing_lane(local))]))


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
        held = number(kind, inputs[local]) if kind in BITS else Input(kind, local)
        values[code.crossing.get(local, local)] = held
    try:
        ends = walk.items(code.tree.items, [WalkState(values, [], Scope())])
        if len(ends) != 1:
            raise Declined(DeclineReason.CONTROL_FLOW, "the region does not end")
        results = {local: ends[0].locals[code.crossing.get(local, local)] for local, _ in region.outputs}
        return finish(walk, {local: value for local, value in results.items() if value is not None})
    except RecursionError as error:
        raise Declined(DeclineReason.TOO_LARGE, "blocks in blocks") from error
    except (IndexError, KeyError) as error:
        raise Declined(DeclineReason.MALFORMED, type(error).__name__) from error
