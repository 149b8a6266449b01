"""Makes a `Nest` of recorded statements: each gets all that its values need."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from tensorwasm.offload.affine import counter, substitute
from tensorwasm.offload.analysis.draft import LocalValue, LoopDraft, StatementDraft, statements
from tensorwasm.offload.analysis.recording import may_overlap
from tensorwasm.offload.analysis.walk import CodeWalk
from tensorwasm.offload.declined import Declined, DeclineReason
from tensorwasm.offload.nest import (
    Affine,
    Carried,
    Cell,
    Constraint,
    Effect,
    Index,
    Load,
    Loop,
    Nest,
    Operation,
    SetCell,
    Statement,
    Store,
    TurningScalar,
    Value,
    While,
    values_of,
)

_MAX_NODES: Final = 20_000


def finish(walk: CodeWalk, results: Mapping[int, LocalValue]) -> Nest:
    """Return the nest that a walk has recorded.

    Args:
        walk: its body is the nest's.
        results: what locals hold behind it.
    """
    return _Finish(walk, {local: walk.value(value) for local, value in results.items()}).nest()


def leaves(values: Iterable[Value]) -> Iterator[Value]:
    """Yield all that values are made of, each once, operands first."""
    seen: set[Value] = set()
    waiting = [(value, False) for value in values][::-1]
    while waiting:
        value, is_done = waiting.pop()
        if is_done:
            yield value
        elif value not in seen:
            seen.add(value)
            waiting.append((value, True))
            if isinstance(value, Operation):
                waiting += [(operand, False) for operand in reversed(value.operands)]


class _Finish:
    def __init__(self, walk: CodeWalk, results: Mapping[int, Value]) -> None:
        self.walk = walk
        self.results = results
        self.spilled: dict[Load | TurningScalar, Cell] = {}
        self.repeated: dict[StatementDraft, list[Load]] = {}
        self.new_cells: dict[Cell, Cell] = {}
        self.loops = 0
        self.count = 0
        self.nodes = 0

    def nest(self) -> Nest:
        drafts = list(statements(self.walk.body))
        self._drop_dead_cells(drafts)
        for draft in drafts:
            for value in leaves(values_of(draft.effects)):
                self.count_node()
                if isinstance(value, TurningScalar) and self.walk.scalars[value] is not draft:
                    self._spill(value)
                elif isinstance(value, Load) and self.walk.loads[value].statement is not draft:
                    if self._may_repeat(value, draft):
                        self.repeated.setdefault(draft, []).append(value)
                    else:
                        self._spill(value)
        for value in leaves(self.results.values()):
            if isinstance(value, Load | TurningScalar):
                self._spill(value)
        self._drop_virtual_loads(drafts)
        body = self._body(self.walk.body, {})
        rebuild = _Rebuild(self, {}, {})
        return Nest(body, {local: rebuild.value(value) for local, value in self.results.items()})

    def count_node(self) -> None:
        """Take note of a value of a statement."""
        self.nodes += 1
        if self.nodes > _MAX_NODES:
            raise Declined(DeclineReason.TOO_LARGE, "values")

    def _drop_dead_cells(self, drafts: list[StatementDraft]) -> None:
        """Remove cells that no store and no result depends on."""
        sets: dict[Cell, list[Value]] = {}
        waiting = list(self.results.values())
        for draft in drafts:
            for effect in draft.effects:
                if isinstance(effect, SetCell):
                    sets.setdefault(effect.cell, []).append(effect.value)
                else:
                    waiting += values_of([effect])
        live: set[Cell] = set()
        while waiting:
            found = {value.cell for value in leaves(waiting) if isinstance(value, Carried)} - live
            live |= found
            waiting = [value for cell in found for value in sets.get(cell, ())]
        for draft in drafts:
            draft.effects = [each for each in draft.effects if not isinstance(each, SetCell) or each.cell in live]

    def _may_repeat(self, load: Load, draft: StatementDraft) -> bool:
        """Return whether a load may be repeated at the beginning of a later statement."""
        there = self.walk.loads[load]
        around = there.statement.loops
        if draft.loops[: len(around)] != around or there.time > draft.began:
            raise Declined(DeclineReason.CONTROL_FLOW, "a value is used outside of its loop")
        end = draft.began if draft.loops == around else draft.loops[len(around)].ended
        return not any(there.time < store.time <= end and may_overlap(there, store) for store in self.walk.stores)

    def _spill(self, value: Load | TurningScalar) -> None:
        """Keep what a load has read, or a loop of data has computed, in a cell."""
        if value not in self.spilled:
            walk = self.walk
            draft = walk.scalars[value] if isinstance(value, TurningScalar) else walk.loads[value].statement
            cell = walk.new_cell(value.type, tuple([loop.counter for loop in draft.loops]))
            self.spilled[value] = cell
            draft.effects.append(SetCell(cell, value))

    def _drop_virtual_loads(self, drafts: list[StatementDraft]) -> None:
        """Remove loads that the program does not have and no value needs."""
        for draft in drafts:
            needed = set(leaves(values_of(draft.effects)))
            draft.effects = [each for each in draft.effects if each not in self.walk.virtual or each in needed]

    def _body(
        self, items: Iterable[LoopDraft | StatementDraft], numbers: Mapping[int, Affine]
    ) -> tuple[Loop | Statement, ...]:
        body: list[Loop | Statement] = []
        for item in items:
            if isinstance(item, LoopDraft):
                number = self.loops
                self.loops += 1
                inside = {**numbers, item.counter: counter(number)}
                trip = substitute(item.trip, numbers)
                body.append(Loop(number, trip, self._body(item.body, inside)))
            elif item.effects:
                body.append(self._statement(item, numbers))
        return tuple(body)

    def _statement(self, draft: StatementDraft, numbers: Mapping[int, Affine]) -> Statement:
        rebuild = _Rebuild(self, numbers, {})
        effects: list[Effect] = [rebuild.load(load) for load in self.repeated.get(draft, ())]
        for effect in draft.effects:
            if isinstance(effect, Load):
                effects.append(rebuild.load(effect))
            elif isinstance(effect, While):
                effects.append(rebuild.turning(effect))
            elif isinstance(effect, Store):
                pointer = substitute(effect.pointer, numbers)
                effects.append(Store(effect.opcode, pointer, effect.offset, rebuild.value(effect.value)))
            else:
                effects.append(SetCell(self.cell(effect.cell, numbers), rebuild.value(effect.value)))
        constraints = [
            Constraint(substitute(each.value, numbers), each.equality)
            for scope in reversed(list(draft.scope.chain()))
            if scope.split is not None
            for each in scope.constraints
        ]
        self.count += 1
        return Statement(self.count - 1, (tuple(constraints),), tuple(effects))

    def cell(self, cell: Cell, numbers: Mapping[int, Affine]) -> Cell:
        """Return a cell with the nest's numbers."""
        if cell not in self.new_cells:
            counters = [numbers[each].terms[0][0] for each in cell.counters]
            self.new_cells[cell] = Cell(len(self.new_cells), cell.type, tuple(counters))  # type: ignore[arg-type]
        return self.new_cells[cell]


class _Rebuild:
    """Makes the values of one statement."""

    def __init__(self, nest: _Finish, numbers: Mapping[int, Affine], done: dict[Value, Value]) -> None:
        self.nest, self.numbers, self.done = nest, dict(numbers), done

    def load(self, load: Load) -> Load:
        """Return a load of this statement."""
        made = Load(load.opcode, substitute(load.pointer, self.numbers), load.offset)
        self.done[load] = made
        return made

    def turning(self, loop: While) -> While:
        """Return a loop of data of this statement."""
        number = self.nest.loops
        self.nest.loops += 1
        entered = None if loop.entered is None else self.value(loop.entered)
        initial = [self.value(value) for value in loop.initial]
        scalars = [TurningScalar(scalar.type) for scalar in loop.scalars]
        self.done.update(zip(loop.scalars, scalars, strict=True))
        turns = None if loop.turns is None else substitute(loop.turns, self.numbers)
        self.numbers[loop.counter] = counter(number)
        effects = [self.load(each) if isinstance(each, Load) else self.turning(each) for each in loop.effects]
        after = [self.value(value) for value in loop.after]
        again = self.value(loop.again)
        return While(number, turns, entered, tuple(scalars), tuple(initial), tuple(effects), tuple(after), again)

    def value(self, value: Value) -> Value:
        """Return a value of this statement."""
        for each in leaves([value]):
            if each not in self.done:
                self.done[each] = self._made(each)
                self.nest.count_node()
        return self.done[value]

    def _made(self, value: Value) -> Value:
        if isinstance(value, Operation):
            return Operation(value.type, value.opcode, tuple([self.done[operand] for operand in value.operands]))
        if isinstance(value, Index):
            return Index(value.type, substitute(value.affine, self.numbers))
        if isinstance(value, Carried):
            return Carried(self.nest.cell(value.cell, self.numbers))
        if isinstance(value, Load | TurningScalar):
            return Carried(self.nest.cell(self.nest.spilled[value], self.numbers))
        return value
