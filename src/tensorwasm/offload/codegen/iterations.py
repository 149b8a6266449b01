"""What one `Execute` of a kernel reads and writes, in linear forms, and how its unrolled copies become lanes.

Compilers unroll loops, so that one iteration of a statement does the same for two or four neighbours. Where that is a
parallel loop's, the copies are iterations of a loop with a smaller step, and the statement is written once.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tensorwasm.offload.codegen.linear import Linear, affine_form, least, linear, scaled, weighted
from tensorwasm.offload.nest import (
    Affine,
    Effect,
    Index,
    Load,
    Loop,
    Operation,
    SetCell,
    Statement,
    Store,
    Value,
    While,
    accesses_of,
    are_alike,
    whiles_of,
)
from tensorwasm.offload.program import Execute, For, NestProgram

Access = Load | Store


@dataclass(frozen=True, slots=True)
class Lanes:
    """The parallel loop of a kernel of which several iterations run as lanes of vectors."""

    variable: str
    step: int


@dataclass(frozen=True, slots=True)
class Iteration:
    """One iteration of a statement.

    Attributes:
        effects: in order, those of the first copy alone if there are several.
        counters: the values of loop counters, by their numbers.
        copies: how many neighbours it stands for, each a lane.
        addresses: distance of each access from its array's origin.
    """

    effects: tuple[Effect, ...]
    counters: Mapping[int, Linear]
    copies: int
    addresses: Mapping[Access, Linear]

    def form(self, affine: Affine) -> Linear:
        """Return the form of an affine expression of the nest."""
        return affine_form(affine, self.counters)

    def cell_offset(self, counters: Sequence[int], strides: Sequence[int | str], size_bytes: int) -> Linear:
        """Return where in its storage the cell of a size lies that counters choose, in bytes."""
        pairs = zip(counters, strides, strict=True)
        parts = [(scaled(self.counters[number], stride), size_bytes) for number, stride in pairs]
        return weighted(parts)


class Iterations:
    """Makes an `Iteration` of each `Execute` of a program."""

    def __init__(self, program: NestProgram, loops: Sequence[For] = ()) -> None:
        self._program = program
        self._loops = loops
        self._arrays = {array.number: array for array in program.arrays}
        self._statements = {
            statement.number: (statement, loops) for statement, loops in statements_of(program.nest.body)
        }

    def of(self, execute: Execute, lanes: Lanes | None) -> Iteration:
        """Return what an iteration does, with its copies as lanes where that is the same."""
        statement, loops = self._statements[execute.statement]
        counters = dict(zip(loops, map(linear, execute.counters), strict=True))
        counters |= {each.counter: linear(turn_variable(each)) for each in whiles_of(statement.effects)}
        addresses = {access: self._address(access, counters) for access in accesses_of(statement.effects)}
        iteration = Iteration(statement.effects, counters, 1, addresses)
        if lanes is None:
            return iteration
        return _Rerolling(iteration, lanes, self._program.array_of, self._loops).rolled()

    def _address(self, access: Access, counters: Mapping[int, Linear]) -> Linear:
        array = self._arrays[self._program.array_of[access]]
        offset = access.offset + self._program.wraps[access] - array.first - array.origin
        return weighted([(affine_form(access.pointer, counters), 1), (Linear(offset), 1)])


def turn_variable(loop: While) -> str:
    """Return the name of a variable for the number of the turn."""
    return f"turn{loop.counter}"


def statements_of(body: Sequence[Loop | Statement]) -> Iterator[tuple[Statement, tuple[int, ...]]]:
    """Yield all statements, each with the counters of the loops around it."""
    pending: list[tuple[Loop | Statement, tuple[int, ...]]] = [(part, ()) for part in body]
    while pending:
        part, around = pending.pop()
        if isinstance(part, Statement):
            yield part, around
        else:
            pending += [(inner, (*around, part.counter)) for inner in part.body]


def in_order(roots: Sequence[Value], known: Container[Value] = ()) -> list[Value]:
    """Return values and all that they are made of, each once, operands first, but for what is known."""
    found: dict[Value, None] = {}
    pending = [(root, False) for root in reversed(roots)]
    while pending:
        value, done = pending.pop()
        if done:
            found[value] = None
        elif value not in found and value not in known:
            pending.append((value, True))
            if isinstance(value, Operation):
                pending += [(operand, False) for operand in reversed(value.operands)]
    return list(found)


def distance(one: Linear, other: Linear) -> int | None:
    """Return how far the second form is above the first; None if that is not a constant."""
    difference = weighted([(other, 1), (one, -1)])
    return None if difference.terms else difference.constant


class _Rerolling:
    """Finds out whether an iteration is several copies of one, and makes it that one."""

    def __init__(
        self, iteration: Iteration, lanes: Lanes, array_of: Mapping[Access, int], loops: Sequence[For]
    ) -> None:
        self._loops = loops
        self._iteration = iteration
        self._lanes = lanes
        self._array_of = array_of
        self._copies = 0

    def rolled(self) -> Iteration:
        effects = self._iteration.effects
        stores = [effect for effect in effects if isinstance(effect, Store)]
        if len(stores) < 2 or any(isinstance(effect, SetCell | While) for effect in effects):
            return self._iteration
        self._copies = len(stores)
        ordered = self._ordered(stores)
        if ordered is None:
            return self._iteration
        pairs = [self._alike(ordered[0].value, store.value, number) for number, store in enumerate(ordered)]
        if not all(pairs) or not self._independent(ordered):
            return self._iteration
        used = set(in_order([ordered[0].value]))
        kept = tuple(effect for effect in effects if effect is ordered[0] or effect in used)
        return replace(self._iteration, effects=kept, copies=self._copies)

    def _ordered(self, stores: list[Store]) -> list[Store] | None:
        """Return the stores of the copies in the order of their lanes."""
        one, addresses = stores[0], self._iteration.addresses
        step = self._step(addresses[one])
        if step is None or abs(step) < one.size_bytes:
            return None
        found: dict[int, Store] = {}
        for store in stores:
            apart = distance(addresses[one], addresses[store])
            if apart is None or apart % step or not self._same_kind(one, store):
                return None
            found[apart // step] = store
        places = sorted(found)
        if len(places) != self._copies or places[-1] - places[0] != self._copies - 1:
            return None
        return [found[place] for place in places]

    def _same_kind(self, one: Access, other: Access) -> bool:
        return one.opcode == other.opcode and self._array_of[one] == self._array_of[other]

    def _step(self, form: Linear) -> int | None:
        """Return what a value grows by from one copy to the next; None if iterations have no room for that."""
        stride = form.stride(self._lanes.variable)
        if stride is None or stride * self._lanes.step % self._copies:
            return None
        return stride * self._lanes.step // self._copies

    def _follows(self, one: Linear, other: Linear, number: int) -> bool:
        step = self._step(one)
        return step is not None and distance(one, other) == number * step

    def _alike(self, one: Value, other: Value, number: int) -> bool:
        """Return whether the second value is the first one's copy of a number."""
        form, addresses = self._iteration.form, self._iteration.addresses

        def is_copy(one: Value, other: Value) -> bool:
            if isinstance(one, Index) and isinstance(other, Index):
                return one.type == other.type and self._follows(form(one.affine), form(other.affine), number)
            if isinstance(one, Load) and isinstance(other, Load):
                return self._same_kind(one, other) and self._follows(addresses[one], addresses[other], number)
            return False

        return are_alike(one, other, is_copy)

    def _independent(self, stores: list[Store]) -> bool:
        """Return whether no copy reads what another one writes."""
        addresses = self._iteration.addresses
        reads = [{value for value in in_order([store.value]) if isinstance(value, Load)} for store in stores]
        for writer, store in enumerate(stores):
            for reader, loads in enumerate(reads):
                for load in loads if reader != writer else ():
                    if self._array_of[load] != self._array_of[store]:
                        continue
                    if not self._are_apart(addresses[store], store.size_bytes, addresses[load], load.size_bytes):
                        return False
        return True

    def _are_apart(self, one: Linear, one_bytes: int, other: Linear, other_bytes: int) -> bool:
        """Return whether two places never overlap."""
        for below, size_bytes, above in ((one, one_bytes, other), (other, other_bytes, one)):
            found = least(weighted([(above, 1), (below, -1)]), self._loops)
            if found is not None and found >= size_bytes:
                return True
        return False
