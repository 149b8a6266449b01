"""What a vector's lanes are: the shape that values which flow into one another share, and code that changes it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from tensorwasm.offload.lanes import SCALARS, SHAPE_BYTES, integer_shape, is_mask, lane_count
from tensorwasm.offload.nest import ValueType
from tensorwasm.wasm.instructions import Instruction

NO_MASK: Final = ""
"""A vote against masks."""

_JOINED: Final[Mapping[str, str]] = {
    "i8": "a 255 i32.and b 8 i32.shl i32.or",
    "i16": "a 65535 i32.and b 16 i32.shl i32.or",
    "i32": "a i64.extend_i32_u b i64.extend_i32_u 32L i64.shl i64.or",
}
"""Two lanes of each shape as one of twice the size."""
_SPLIT: Final[Mapping[str, tuple[str, str]]] = {
    "i64": ("a i32.wrap_i64", "a 32L i64.shr_u i32.wrap_i64"),
    "i32": ("a", "a 16 i32.shr_u"),
    "i16": ("a", "a 8 i32.shr_u"),
}
"""A lane of each shape as two of half the size."""


class MaskLostError(Exception):
    """A vector is to be a mask of which that is not known."""


@dataclass(frozen=True, slots=True)
class VectorValue:
    """A vector on the stack.

    Attributes:
        node: its number in `ShapeVotes`.
        shape: of its lanes; None if it is a constant.
        lanes: what pushes each one.
        constant: its bytes, if it is one.
    """

    node: int
    shape: str | None
    lanes: tuple[Instruction, ...] = ()
    constant: bytes = b""

    @property
    def mask(self) -> str | None:
        """Its shape, if that is a mask's."""
        return self.shape if self.shape is not None and is_mask(self.shape) else None

    @property
    def is_uniform(self) -> bool:
        """Whether it is a constant of which all bits are the same."""
        return self.constant in {bytes(16), b"\xff" * 16}


class ShapeVotes:
    """Which values flow into one another, and the shapes that instructions see them in."""

    def __init__(self) -> None:
        self._parents: list[int] = []
        self._votes: list[Counter[str]] = []

    def node(self) -> int:
        """Return the number of a new value."""
        self._parents.append(len(self._parents))
        self._votes.append(Counter())
        return len(self._parents) - 1

    def vote(self, node: int, shape: str) -> None:
        """Count an instruction that sees a value in a shape, or `NO_MASK`."""
        self._votes[node][shape] += 1

    def unite(self, *nodes: int) -> None:
        """Take note that values flow into one another."""
        for node in nodes[1:]:
            self._parents[self._root(node)] = self._root(nodes[0])

    def decide(self, *, masks: bool) -> list[str]:
        """Return the shape of each value; that of a mask only if it is allowed."""
        totals: dict[int, Counter[str]] = {}
        for node, votes in enumerate(self._votes):
            totals.setdefault(self._root(node), Counter()).update(votes)
        shapes = {root: _chosen(votes, masks=masks) for root, votes in totals.items()}
        return [shapes[self._root(node)] for node in range(len(self._parents))]

    def _root(self, node: int) -> int:
        while self._parents[node] != node:
            self._parents[node] = node = self._parents[self._parents[node]]
        return node


def _chosen(votes: Counter[str], *, masks: bool) -> str:
    kept = [shape for shape in votes if shape != NO_MASK and not is_mask(shape)]
    if kept:
        return max(kept, key=lambda shape: (votes[shape], shape))
    found = [shape for shape in votes if shape != NO_MASK]
    if len(found) == 1:
        return found[0] if masks and NO_MASK not in votes else f"i{found[0][1:]}"
    return "i64"


class ScalarCode:
    """Code that is written, and the locals that it needs.

    Attributes:
        code: what is written.
        kinds: of the locals that are added.
    """

    def __init__(self, first: int, *, is_dry: bool) -> None:
        self.code: list[Instruction] = []
        self.kinds: list[ValueType] = []
        self._first = first
        self._is_dry = is_dry
        self._free: dict[ValueType, list[int]] = {}
        self._used: list[int] = []

    def local(self, kind: ValueType) -> int:
        """Return the number of a new local."""
        self.kinds.append(kind)
        return self._first + len(self.kinds) - 1

    def temporary(self, kind: ValueType) -> int:
        """Return the number of a local that is in use until `release`."""
        free = self._free.setdefault(kind, [])
        number = free.pop() if free else self.local(kind)
        self._used.append(number)
        return number

    def release(self) -> None:
        """Take back all temporary locals."""
        for number in reversed(self._used):
            self._free[self.kinds[number - self._first]].append(number)
        self._used.clear()

    def keep(self, kind: ValueType) -> Instruction:
        """Take what is on the stack; return what pushes it."""
        number = self.temporary(kind)
        self.code.append(("local.set", number))
        return ("local.get", number)

    def copied(self, lane: Instruction, kind: ValueType) -> Instruction:
        """Return what pushes the present value of a lane, whatever becomes of its local."""
        self.code.append(lane)
        return self.keep(kind)

    def compute(self, text: str, operands: Mapping[str, Instruction], kind: ValueType) -> Instruction:
        """Write the code of a text; return what pushes its value."""
        if text in operands:
            return operands[text]
        self.write(text, operands)
        return self.keep(kind)

    def write(self, text: str, operands: Mapping[str, Instruction]) -> None:
        """Write the code of a text, which leaves its value on the stack."""
        if self._is_dry:
            return
        kept: dict[str, int] = {}
        for word in text.split():
            if word in operands:
                self.code.append(operands[word])
            elif word[0] == "=":
                self.code.append(("local.set", kept.setdefault(word[1:], self.temporary("i32"))))
            elif word in kept:
                self.code.append(("local.get", kept[word]))
            else:
                self.code.append(_instruction(word))

    def lanes(self, value: VectorValue, shape: str) -> tuple[Instruction, ...]:
        """Return the lanes of a value in a shape.

        Raises:
            MaskLostError: it is a mask's, and the value is not known to be one.
        """
        if value.shape is None:
            if is_mask(shape) and not value.is_uniform:
                raise MaskLostError
            return constant_lanes(value.constant, shape)
        if value.shape == shape or self._is_dry:
            return value.lanes if value.shape == shape else (("nop",),) * lane_count(shape)
        if is_mask(shape):
            raise MaskLostError
        size, wanted = SHAPE_BYTES[value.shape], SHAPE_BYTES[shape]
        lanes = self._integers(value.shape, value.lanes)
        while size > wanted:
            lanes = tuple(self._halves(integer_shape(size), lanes))
            size //= 2
        while size < wanted:
            lanes = tuple(self._pairs(integer_shape(size), lanes))
            size *= 2
        if shape[0] == "i":
            return lanes
        text = f"a {shape}.reinterpret_i{shape[1:]}"
        return tuple([self.compute(text, {"a": lane}, SCALARS[shape]) for lane in lanes])

    def _integers(self, shape: str, lanes: Sequence[Instruction]) -> tuple[Instruction, ...]:
        whole = f"i{shape[1:]}"
        text = {
            "i": "a",
            "f": f"a {whole}.reinterpret_{shape}",
            "m": "0L a i64.extend_i32_u i64.sub" if shape == "m64" else "0 a i32.sub",
        }[shape[0]]
        return tuple([self.compute(text, {"a": lane}, SCALARS[whole]) for lane in lanes])

    def _halves(self, shape: str, lanes: Sequence[Instruction]) -> Iterator[Instruction]:
        for lane in lanes:
            for text in _SPLIT[shape]:
                yield self.compute(text, {"a": lane}, "i32")

    def _pairs(self, shape: str, lanes: Sequence[Instruction]) -> Iterator[Instruction]:
        kind: ValueType = "i64" if shape == "i32" else "i32"
        for low, high in zip(lanes[::2], lanes[1::2], strict=True):
            yield self.compute(_JOINED[shape], {"a": low, "b": high}, kind)


def constant_lanes(constant: bytes, shape: str) -> tuple[Instruction, ...]:
    """Return what pushes the lanes of a constant."""
    size, kind = SHAPE_BYTES[shape], SCALARS[shape]
    pieces = [constant[at : at + size] for at in range(0, len(constant), size)]
    if is_mask(shape):
        return tuple([("i32.const", piece[0] & 1) for piece in pieces])
    is_signed = shape[0] == "i"
    return tuple([(f"{kind}.const", int.from_bytes(piece, "little", signed=is_signed)) for piece in pieces])


@cache
def _instruction(word: str) -> Instruction:
    if word[-1] == "L":
        return ("i64.const", int(word[:-1]))
    return ("i32.const", int(word)) if word.lstrip("-").isdigit() else (word,)
