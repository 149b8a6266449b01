"""The stack and the locals of code with vectors while it is rewritten, and the lanes in which vectors come and go."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tensorwasm.offload.analysis.vectors.shapes import NO_MASK, ScalarCode, ShapeVotes, VectorValue
from tensorwasm.offload.declined import Declined, DeclineReason
from tensorwasm.offload.lanes import SCALARS, VECTOR, crossing_kind, crossing_number, lane_count
from tensorwasm.wasm.instructions import Instruction
from tensorwasm.wasm.types import FuncType

ZERO: Final = VectorValue(-1, None, (), bytes(16))


@dataclass(frozen=True, slots=True)
class ScalarRegion:
    """A region without vectors.

    Attributes:
        types: of all locals, those that are added after those of the function.
        crossing: the local in which each lane of a vector comes in and goes out, by its number among a region's inputs.
    """

    code: tuple[Instruction, ...]
    types: tuple[str, ...]
    crossing: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class VectorCode:
    """Code with vectors.

    Attributes:
        code: of a region.
        types: of the function's locals.
        blocks: types of blocks, by their indices.
        inputs: locals that are vectors and hold one before it.
        outputs: those of them that hold one after it.
    """

    code: Sequence[Instruction]
    types: Sequence[str]
    blocks: Sequence[FuncType]
    inputs: Collection[int]
    outputs: Collection[int] = ()


class VectorStack:
    """Code up to a place.

    Attributes:
        known: what locals hold, since code that leads here from elsewhere.
        read: locals that are read where that is not known.
    """

    def __init__(self, given: VectorCode, before: VectorStack | None, *, masks: bool, is_dry: bool) -> None:
        """Begin a pass, given the one before, and whether masks are allowed."""
        self.given = given
        self.read: set[int] = set(given.outputs)
        self.known: dict[int, VectorValue] = {}
        self._kept = None if before is None else before.read
        self._shapes = None if before is None else before.votes.decide(masks=masks)
        self.votes: ShapeVotes = ShapeVotes()
        self.out = ScalarCode(len(given.types), is_dry=is_dry)
        self.stack: list[VectorValue | None] = []
        self.frames: list[tuple[int, int, int]] = []
        self.nodes = {local: self.votes.node() for local, kind in enumerate(given.types) if kind == VECTOR}
        self._kept_in: dict[int, tuple[int, ...]] = {}
        self.crossing: dict[int, int] = {}
        for local in given.inputs:
            self.votes.vote(self.nodes[local], NO_MASK)
            self._enter(local)

    def local_shapes(self) -> dict[int, str]:
        """Return the shape of each local that is a vector."""
        return {local: self.shape(node) for local, node in self.nodes.items()}

    def finished(self) -> ScalarRegion:
        """Return what was written."""
        for local in self.given.outputs:
            self._leave(local)
        return ScalarRegion(tuple(self.out.code), (*self.given.types, *self.out.kinds), self.crossing)

    def shape(self, node: int) -> str:
        """Return the shape that a value should have."""
        return "i64" if self._shapes is None else self._shapes[node]

    def pop(self) -> VectorValue:
        """Take a vector from the stack."""
        value = self.stack.pop()
        if value is None:
            raise Declined(DeclineReason.MALFORMED)
        return value

    def pop_scalar(self) -> None:
        """Take note that what is not a vector is taken from the stack."""
        if self.stack.pop() is not None:
            raise Declined(DeclineReason.MALFORMED)

    def push(self, node: int, shape: str, lanes: Sequence[Instruction]) -> None:
        """Put a vector on the stack."""
        self.stack.append(VectorValue(node, shape, tuple(lanes)))

    def push_each(
        self, node: int, shape: str, text: str, others: Mapping[str, Instruction], values: Sequence[VectorValue]
    ) -> None:
        """Push a vector of which each lane is a text of the same lane of values."""
        operands = [self.out.lanes(value, shape) for value in values]
        each = [{**others, **dict(zip("ab", lanes, strict=False))} for lanes in zip(*operands, strict=True)]
        self.push(node, shape, [self.out.compute(text, lane, SCALARS[shape]) for lane in each])

    def _places(self, local: int) -> tuple[int, ...]:
        """Return the locals in which the lanes of a local are kept."""
        if local not in self._kept_in:
            shape = self.shape(self.nodes[local])
            self._kept_in[local] = tuple([self.out.local(SCALARS[shape]) for _ in range(lane_count(shape))])
        return self._kept_in[local]

    def held(self, local: int) -> VectorValue:
        """Return what a local holds."""
        lanes = tuple([("local.get", place) for place in self._places(local)])
        return VectorValue(self.nodes[local], self.shape(self.nodes[local]), lanes)

    def move_local(self, name: str, local: int) -> None:
        """Rewrite ``local.get``, ``local.set`` or ``local.tee`` of a vector."""
        if name == "local.get":
            if local not in self.known:
                self.read.add(local)
                self.known[local] = self._copied(local)
            self.stack.append(self.known[local])
            return
        value = self.known[local] = self.pop()
        if self._kept is None or local in self._kept:
            self.votes.unite(self.nodes[local], value.node)
            self.assign(local, value)
        if name == "local.tee":
            self.stack.append(value)

    def meet(self) -> None:
        """Take note that other code may lead to this place."""
        self.known.clear()
        if not any(self.stack):
            self.out.release()

    def _copied(self, local: int) -> VectorValue:
        held = self.held(local)
        lanes = [self.out.copied(lane, SCALARS[held.shape or ""]) for lane in held.lanes]
        return VectorValue(held.node, held.shape, tuple(lanes))

    def assign(self, local: int, value: VectorValue) -> None:
        """Put a vector into a local, all lanes at once."""
        self.out.code += self.out.lanes(value, self.shape(self.nodes[local]))
        self.out.code += [("local.set", place) for place in reversed(self._places(local))]

    def _enter(self, local: int) -> None:
        """Take a vector in as numbers."""
        shape = self.shape(self.nodes[local])
        kind = crossing_kind(shape)
        made = [self.out.local(kind) for _ in range(lane_count(kind))]
        self.crossing |= {crossing_number(local, lane): place for lane, place in enumerate(made)}
        lanes = tuple([("local.get", place) for place in made])
        self.assign(local, VectorValue(self.nodes[local], kind, lanes))

    def _leave(self, local: int) -> None:
        kind = crossing_kind(self.shape(self.nodes[local]))
        for lane, value in enumerate(self.out.lanes(self.held(local), kind)):
            self.out.code += [value, ("local.set", self.crossing[crossing_number(local, lane)])]
