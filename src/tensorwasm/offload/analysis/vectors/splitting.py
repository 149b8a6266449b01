"""Rewrites a region with vectors as one of scalars: a vector is its lanes, each in a local or a constant.

Where vectors only move, any shape would do. Values that flow into one another have one: that in which most instructions
see their lanes. Where another one is needed, lanes are split or joined as integers. To find the shapes, the code is
rewritten twice before it is kept: those times only count.

Compilers use one local for a vector of floats, and then for a mask. So what a local holds is remembered up to the next
label, and only what is read behind one is kept in locals.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from tensorwasm.offload.analysis.tree import OPENING
from tensorwasm.offload.analysis.vectors.shapes import NO_MASK, MaskLostError, VectorValue
from tensorwasm.offload.analysis.vectors.vector_stack import ZERO, ScalarRegion, VectorCode, VectorStack
from tensorwasm.offload.declined import Declined, DeclineReason
from tensorwasm.offload.lanes import (
    BITWISE,
    EXTRACTIONS,
    LANE_LOADS,
    LANE_OPCODES,
    LANE_STORES,
    REPLACEMENTS,
    SCALAR_OPERAND,
    SCALARS,
    SHAPE_BYTES,
    VECTOR,
    VECTOR_ACCESSES,
    VECTOR_EFFECTS,
    VECTOR_LOADS,
    VECTOR_ROWS,
    integer_shape,
    lane_count,
)
from tensorwasm.offload.stack import STACK_EFFECTS
from tensorwasm.wasm.instructions import Instruction
from tensorwasm.wasm.types import FuncType

_LOCALS: Final = frozenset({"local.get", "local.set", "local.tee"})
_BRANCHES: Final = {"br": (0, 0), "br_if": (1, 0), "br_table": (1, 0)}
_PASSES: Final = 2
_SHUFFLED: Final = (8, 4, 2, 1)
_FOR_MASKS: Final[Mapping[str, str]] = {
    "v128.and": "a b i32.and",
    "v128.or": "a b i32.or",
    "v128.xor": "a b i32.xor",
    "v128.andnot": "a b i32.eqz i32.and",
    "v128.not": "a i32.eqz",
}


def has_vectors(code: Sequence[Instruction], types: Sequence[str]) -> bool:
    """Return whether code has a vector."""
    return any(
        each[0] in VECTOR_EFFECTS or each[0] in VECTOR_ACCESSES or (each[0] in _LOCALS and types[each[1]] == VECTOR)
        for each in code
    )


def vector_shapes(given: VectorCode) -> dict[int, str]:
    """Return the shape of each local that is a vector.

    Raises:
        Declined: an instruction is not handled.
    """
    return _settled(given).local_shapes()


def without_vectors(given: VectorCode) -> ScalarRegion:
    """Return the same code without vectors.

    Raises:
        Declined: an instruction is not handled.
    """
    return _settled(given).finished()


def _settled(given: VectorCode) -> _Rewrite:
    for masks in (True, False):
        made: _Rewrite | None = None
        for _ in range(_PASSES):
            made = _Rewrite(given, made, masks=masks, is_dry=True)
            made.run()
        made = _Rewrite(given, made, masks=masks, is_dry=False)
        with suppress(MaskLostError):
            made.run()
            return made
    raise Declined(DeclineReason.INSTRUCTION, "a mask")


class _Rewrite(VectorStack):
    """One pass over the code."""

    def run(self) -> None:
        """Rewrite all of the code."""
        dead = 0
        try:
            for instruction in self.given.code:
                name = instruction[0]
                if dead:  # nothing comes here from what is before
                    dead += (name in OPENING) - (name == "end")
                    if dead > 1 or (dead == 1 and name != "else"):
                        continue
                    dead = 0
                if name in OPENING or name in {"else", "end"}:
                    self._border(instruction)
                else:
                    self._step(instruction)
                dead = int(name in {"br", "br_table"})
        except (IndexError, KeyError) as error:
            raise Declined(DeclineReason.MALFORMED, type(error).__name__) from error

    # ------------------------------------------------------------------------------------------------------- structure

    def _border(self, instruction: Instruction) -> None:
        name = instruction[0]
        if name in OPENING:
            if name == "if":
                self.pop_scalar()
            params, results = self._arity(instruction[1])
            self.frames.append((len(self.stack) - params, params, results))
        elif name == "else":
            height, params, _ = self.frames[-1]
            self.stack = [*self.stack[:height], *([None] * params)]
        else:
            height, _, results = self.frames.pop()
            self.stack = [*self.stack[:height], *([None] * results)]
        self.meet()
        self.out.code.append(instruction)

    def _arity(self, kind: str | int | None) -> tuple[int, int]:
        found = self.given.blocks[kind] if isinstance(kind, int) else FuncType((), () if kind is None else (kind,))
        if VECTOR in (*found.params, *found.results):
            raise Declined(DeclineReason.INSTRUCTION, "a block with vectors")
        return len(found.params), len(found.results)

    def _step(self, instruction: Instruction) -> None:
        name = instruction[0]
        if name in _LOCALS and instruction[1] in self.nodes:
            self.move_local(name, instruction[1])
        elif name in VECTOR_ROWS:
            self._row(name)
        elif name in _STEPS:
            _STEPS[name](self, instruction)
        elif name in {"drop", "select", "select_t"} and self.stack[-1 if name == "drop" else -2] is not None:
            self._moved(name)
        else:
            popped, pushed = _BRANCHES.get(name) or STACK_EFFECTS[name]
            if len(self.stack) < popped or any(self.stack[len(self.stack) - popped :]):
                raise Declined(DeclineReason.MALFORMED)
            self.stack[len(self.stack) - popped :] = [None] * pushed
            self.out.code.append(instruction)

    def _moved(self, name: str) -> None:
        if name == "drop":
            self.pop()
            return
        self.pop_scalar()
        condition = self.out.keep("i32")
        other, one = self.pop(), self.pop()
        node = self.votes.node()
        self.votes.unite(node, one.node, other.node)
        shape = self.shape(node)
        self.push_each(node, shape, "a b n select", {"n": condition}, (one, other))

    # ----------------------------------------------------------------------------------------------------- instructions

    def _row(self, name: str) -> None:
        row = VECTOR_ROWS[name]
        operands: dict[str, Instruction] = {}
        for letter, shape in reversed([*zip("ab", row.operands, strict=False)]):
            if shape == SCALAR_OPERAND:
                self.pop_scalar()
                is_splat = len(row.operands) == 1 and row.result is not None
                operands[SCALAR_OPERAND] = self.out.keep(SCALARS[row.result] if is_splat and row.result else "i32")
                continue
            value = self.pop()
            self.votes.vote(value.node, shape)
            operands |= {f"{letter}{lane}": each for lane, each in enumerate(self.out.lanes(value, shape))}
        if row.result is None:
            self.out.write(row.lanes[0], operands)
            self.stack.append(None)
            return
        node = self.votes.node()
        self.votes.vote(node, row.result)
        kind = SCALARS[row.result]
        self.push(node, row.result, [self.out.compute(text, operands, kind) for text in row.lanes])

    def constant(self, instruction: Instruction) -> None:
        """Rewrite ``v128.const``."""
        value = VectorValue(self.votes.node(), None, (), instruction[1])
        if not value.is_uniform:
            self.votes.vote(value.node, NO_MASK)
        self.stack.append(value)

    def extract(self, instruction: Instruction) -> None:
        """Rewrite ``extract_lane``."""
        shape, text = EXTRACTIONS[instruction[0]]
        value = self.pop()
        self.votes.vote(value.node, shape)
        self.out.write(text, {"a": self.out.lanes(value, shape)[instruction[1]]})
        self.stack.append(None)

    def replace(self, instruction: Instruction) -> None:
        """Rewrite ``replace_lane``."""
        shape = REPLACEMENTS[instruction[0]]
        self.pop_scalar()
        self._put(self.out.keep(SCALARS[shape]), instruction[1], shape)

    def _put(self, given: Instruction, lane: int, shape: str) -> None:
        """Replace a lane of the vector on the stack."""
        value, node = self.pop(), self.votes.node()
        self.votes.unite(node, value.node)
        self.votes.vote(node, shape)
        lanes = list(self.out.lanes(value, shape))
        lanes[lane] = given
        self.push(node, shape, lanes)

    def shuffle(self, instruction: Instruction) -> None:
        """Rewrite ``i8x16.shuffle``."""
        order = instruction[1]
        size = next(size for size in _SHUFFLED if _is_whole(order, size))
        other, one = self.pop(), self.pop()
        node = self.votes.node()
        self.votes.unite(node, one.node, other.node)
        self.votes.vote(node, NO_MASK)
        shape = self.shape(node)
        if SHAPE_BYTES[shape] > size:
            shape = integer_shape(size)
        step = SHAPE_BYTES[shape]
        lanes = (*self.out.lanes(one, shape), *self.out.lanes(other, shape))
        self.push(node, shape, [lanes[order[at] // step] for at in range(0, len(order), step)])

    def bitwise(self, instruction: Instruction) -> None:
        """Rewrite an instruction on all bits."""
        name = instruction[0]
        values = [self.pop() for _ in range(BITWISE[name])][::-1]
        node = self.votes.node()
        masks = {value.mask for value in values if value.mask}
        if len(masks) == 1 and all(value.mask or value.is_uniform for value in values):
            (mask,) = masks
            self.votes.vote(node, mask)
            self.push_each(node, mask, _FOR_MASKS[name], {}, values)
            return
        self.votes.unite(node, *[value.node for value in values if not value.mask])
        shape = self.shape(node)
        choice = [at for at, value in enumerate(values) if value.mask == f"m{shape[1:]}"]
        if (name == "v128.and" and choice) or (name == "v128.andnot" and 1 in choice):
            (zero, *_), lanes = self.out.lanes(ZERO, shape), self.out.lanes(values[1 - choice[-1]], shape)
            text = "z a n select" if name == "v128.andnot" else "a z n select"
            each = [{"a": a, "n": n, "z": zero} for a, n in zip(lanes, values[choice[-1]].lanes, strict=True)]
            self.push(node, shape, [self.out.compute(text, lane, SCALARS[shape]) for lane in each])
            return
        shape = f"i{shape[1:]}"
        kind, ones = SCALARS[shape], "-1L" if shape == "i64" else "-1"
        text = {"v128.not": f"a {ones} {kind}.xor", "v128.andnot": f"a b {ones} {kind}.xor {kind}.and"}.get(
            name, f"a b {kind}.{name[5:]}"
        )
        self.push_each(node, shape, text, {}, values)

    def choose(self, _instruction: Instruction) -> None:
        """Rewrite ``v128.bitselect``."""
        mask, other, one = self.pop(), self.pop(), self.pop()
        node = self.votes.node()
        self.votes.unite(node, one.node, other.node)
        shape = self.shape(node)
        if mask.mask:
            if SHAPE_BYTES[shape] != SHAPE_BYTES[mask.mask]:
                shape = integer_shape(SHAPE_BYTES[mask.mask])
            conditions, text = mask.lanes, "a b n select"
        else:
            shape = f"i{shape[1:]}"
            conditions, kind = self.out.lanes(mask, shape), SCALARS[shape]
            text = f"a b {kind}.xor n {kind}.and b {kind}.xor"
        given = (self.out.lanes(one, shape), self.out.lanes(other, shape), conditions)
        each = [dict(zip("abn", lane, strict=True)) for lane in zip(*given, strict=True)]
        self.push(node, shape, [self.out.compute(text, lane, SCALARS[shape]) for lane in each])

    # ----------------------------------------------------------------------------------------------------------- memory

    def load(self, instruction: Instruction) -> None:
        """Rewrite a load of a vector, or of what becomes one."""
        access = VECTOR_LOADS[instruction[0]]
        self.pop_scalar()
        pointer = self.out.keep("i32")
        node = self.votes.node()
        self.votes.vote(node, access.shape or NO_MASK)
        shape = access.shape or self.shape(node)
        if SHAPE_BYTES[shape] > access.size_bytes and not access.shape:
            shape = integer_shape(access.size_bytes)
        opcode = access.lane or LANE_OPCODES[shape][0]
        size = access.size_bytes // lane_count(shape) if access.lane else SHAPE_BYTES[shape]
        count = access.size_bytes // size
        lanes = [self._loaded(pointer, opcode, instruction[1], size * at, shape) for at in range(count)]
        if access.fill == "zero":
            lanes += self.out.lanes(ZERO, shape)[count:]
        self.push(node, shape, lanes * (lane_count(shape) // len(lanes)))

    def _loaded(
        self, pointer: Instruction, opcode: str, at: tuple[int, int, int], more: int, shape: str
    ) -> Instruction:
        self.out.code += [pointer, (opcode, (0, at[1] + more, at[2]))]
        return self.out.keep(SCALARS[shape])

    def store(self, instruction: Instruction) -> None:
        """Rewrite ``v128.store``."""
        value, at = self.pop(), instruction[1]
        self.pop_scalar()
        pointer = self.out.keep("i32")
        shape = value.shape or self.shape(value.node)
        shape = f"i{shape[1:]}" if shape[0] == "m" else shape
        for number, lane in enumerate(self.out.lanes(value, shape)):
            more = number * SHAPE_BYTES[shape]
            self.out.code += [pointer, lane, (LANE_OPCODES[shape][1], (0, at[1] + more, at[2]))]

    def load_lane(self, instruction: Instruction) -> None:
        """Rewrite a load of one lane."""
        name, at, lane = instruction
        value = self.pop()
        self.pop_scalar()
        pointer = self.out.keep("i32")
        shape = self._sized(value, LANE_LOADS[name])
        loaded = self._loaded(pointer, LANE_OPCODES[shape][0], at, 0, shape)
        self.stack.append(value)
        self._put(loaded, lane, shape)

    def store_lane(self, instruction: Instruction) -> None:
        """Rewrite a store of one lane."""
        name, at, lane = instruction
        value = self.pop()
        self.pop_scalar()
        pointer = self.out.keep("i32")
        shape = self._sized(value, LANE_STORES[name])
        value_lane = self.out.lanes(value, shape)[lane]
        self.out.code += [pointer, value_lane, (LANE_OPCODES[shape][1], (0, at[1], at[2]))]

    def _sized(self, value: VectorValue, size_bytes: int) -> str:
        """Return the shape of a value, if its lanes have a size, or that of integers."""
        shape = value.shape or self.shape(value.node)
        is_kept = SHAPE_BYTES[shape] == size_bytes and shape[0] != "m"
        return shape if is_kept else integer_shape(size_bytes)


def _is_whole(order: Sequence[int], size: int) -> bool:
    """Return whether a shuffle moves pieces of a size."""
    return all(
        order[at] % size == 0 and all(order[at + more] == order[at] + more for more in range(size))
        for at in range(0, len(order), size)
    )


_STEPS: Final[Mapping[str, Callable[[_Rewrite, Instruction], None]]] = {
    **dict.fromkeys(VECTOR_LOADS, _Rewrite.load),
    **dict.fromkeys(LANE_LOADS, _Rewrite.load_lane),
    **dict.fromkeys(LANE_STORES, _Rewrite.store_lane),
    **dict.fromkeys(EXTRACTIONS, _Rewrite.extract),
    **dict.fromkeys(REPLACEMENTS, _Rewrite.replace),
    **dict.fromkeys(BITWISE, _Rewrite.bitwise),
    "v128.store": _Rewrite.store,
    "v128.const": _Rewrite.constant,
    "v128.bitselect": _Rewrite.choose,
    "i8x16.shuffle": _Rewrite.shuffle,
}
