"""Runs a `Nest` in program order, and says which access read what which other wrote."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from oracles.wasm_interpreter import StepsExhausted, load, store
from oracles.wasm_numeric import ARITY, NUMERIC, to_float
from tensorwasm.offload.nest import (
    Affine,
    Carried,
    Cell,
    Constant,
    Domain,
    Effect,
    Floor,
    Index,
    Input,
    Load,
    Loop,
    Nest,
    Operation,
    SetCell,
    Statement,
    Store,
    Value,
    While,
)

Instance = tuple[int, tuple[int, ...]]
"""Number of a statement, and counters of the loops around it, outermost first."""

MAX_TURNS = 1_000_000
"""Of a loop of data."""

_CONVERTED = re.compile(r"_([if](?:32|64))(?:_[su])?$")
_COMPARED = re.compile(r"\.(?:eqz|(?:eq|ne|lt|gt|le|ge)(?:_[su])?)$")


def evaluate(affine: Affine, counters: Mapping[int, int]) -> int:
    total = affine.constant
    for term, coefficient in affine.terms:
        if isinstance(term, Floor):
            total += coefficient * (evaluate(term.value, counters) // term.divisor)
        else:
            total += coefficient * counters[term]
    return total


def _is_nan(type_: str, bits: int) -> bool:
    return type_[0] == "f" and math.isnan(to_float(type_, bits))


def contains(domain: Domain, counters: Mapping[int, int]) -> bool:
    for constraints in domain:
        values = [(evaluate(constraint.value, counters), constraint.equality) for constraint in constraints]
        if all(value == 0 if equality else value >= 0 for value, equality in values):
            return True
    return False


class UndefinedCell(Exception):
    """A cell is used before it is set."""


@dataclass
class Trace:
    """What a run did, apart from numbers.

    Attributes:
        executed: statements in order.
        sources: for each load, by statement and number of the effect, what wrote each of its bytes before, and for each
            content of a cell that a statement used, what set it.
        last: what wrote each byte last.
        has_nan: whether a float that was loaded or computed was a NaN.
    """

    executed: list[Instance] = field(default_factory=list)
    sources: dict[tuple[Instance | None, int | tuple[Cell, tuple[int, ...]]], object] = field(default_factory=dict)
    last: list[Instance | None] = field(default_factory=list)
    has_nan: bool = False


class Machine:
    """Executes statements over linear memory, for given live-in locals."""

    def __init__(self, nest: Nest, values: Mapping[int, int], memory: bytearray) -> None:
        self.nest, self.values, self.memory = nest, values, memory
        self.trace = Trace(last=[None] * len(memory))
        self.contents: dict[tuple[Cell, tuple[int, ...]], tuple[int, Instance]] = {}

    def address(self, access: Load | Store, counters: Mapping[int, int]) -> int:
        return evaluate(access.pointer, counters) % (1 << 32) + access.offset

    def get_cell(self, cell: Cell, at: tuple[int, ...]) -> tuple[int, Instance]:
        found = self.contents.get((cell, at))
        if found is None:
            raise UndefinedCell(f"cell {cell.number}")
        return found

    def set_cell(self, cell: Cell, at: tuple[int, ...], bits: int, by: Instance) -> None:
        self.contents[cell, at] = bits, by

    def execute(self, statement: Statement, counters: Mapping[int, int]) -> None:
        instance = statement.number, tuple(counters.values())
        self.trace.executed.append(instance)
        values: dict[Value, int] = {}
        changes = []
        for number, effect in enumerate(statement.effects):
            if isinstance(effect, SetCell):
                changes.append(effect)
                continue
            if isinstance(effect, While):
                self.turn(effect, counters, values, instance)
                continue
            address = self.address(effect, counters)
            end = address + effect.size_bytes
            if isinstance(effect, Load):
                values[effect] = load(self.memory, effect.opcode, address)
                self.trace.sources[instance, number] = self.trace.last[address:end]
            else:
                bits = self.value(effect.value, counters, values, instance)
                store(self.memory, effect.opcode, address, bits)
                self.trace.last[address:end] = [instance] * effect.size_bytes
        made = [(effect.cell, self.value(effect.value, counters, values, instance)) for effect in changes]
        for cell, bits in made:
            self.set_cell(cell, tuple(counters[counter] for counter in cell.counters), bits, instance)

    def turn(self, loop: While, counters: Mapping[int, int], values: dict[Value, int], by: Instance) -> None:
        current = [self.value(value, counters, values, by) for value in loop.initial]
        going = loop.entered is None or self.value(loop.entered, counters, values, by) != 0
        number = 0
        while going:
            if loop.turns is not None and number >= evaluate(loop.turns, counters):
                raise AssertionError("more turns than there may be")
            if number >= MAX_TURNS:
                raise StepsExhausted
            inside = {**values, **dict(zip(loop.scalars, current, strict=True))}
            here = {**counters, loop.counter: number}
            for effect in loop.effects:
                if isinstance(effect, Load):
                    inside[effect] = load(self.memory, effect.opcode, self.address(effect, here))
                else:
                    self.turn(effect, here, inside, by)
            going = self.value(loop.again, here, inside, by) != 0
            current = [self.value(value, here, inside, by) for value in loop.after]
            number += 1
        values |= dict(zip(loop.scalars, current, strict=True))

    def value(
        self, root: Value, counters: Mapping[int, int], values: dict[Value, int], by: Instance | None = None
    ) -> int:
        """Return a value's bits, given those of loads; all that are found are added to ``values``."""
        open_ = [root]
        while open_:
            value = open_[-1]
            if value in values:
                open_.pop()
                continue
            if isinstance(value, Operation):
                missing = [operand for operand in value.operands if operand not in values]
                if missing:
                    open_ += missing
                    continue
                operands = [values[operand] for operand in value.operands]
                if value.opcode == "select":
                    values[value] = operands[0] if operands[2] else operands[1]
                else:
                    values[value] = NUMERIC[value.opcode](*operands)
            else:
                values[value] = self._leaf(value, counters, by)
        self.trace.has_nan |= any(_is_nan(value.type, bits) for value, bits in values.items())
        return values[root]

    def _leaf(self, value: Value, counters: Mapping[int, int], by: Instance | None) -> int:
        match value:
            case Constant():
                return value.bits
            case Input():
                return self.values[value.local]
            case Index():
                return evaluate(value.affine, counters) % (1 << int(value.type[1:]))
            case Carried():
                bits, source = self.get_cell(value.cell, tuple(counters[counter] for counter in value.counters))
                self.trace.sources[by, (value.cell, value.counters)] = source
                return bits
        raise AssertionError(f"{value} is not among the effects before its use")

    def results(self) -> dict[int, int]:
        return {local: self.value(value, {}, {}) for local, value in self.nest.results.items()}


class _InOrder(Machine):
    def __init__(self, nest: Nest, values: Mapping[int, int], memory: bytearray, max_steps: int) -> None:
        super().__init__(nest, values, memory)
        self.left = max_steps

    def run(self, body: tuple[Loop | Statement, ...], counters: dict[int, int]) -> None:
        for item in body:
            self.left -= 1
            if self.left < 0:
                raise StepsExhausted
            if isinstance(item, Loop):
                for counter in range(evaluate(item.trip, counters)):
                    self.run(item.body, {**counters, item.counter: counter})
            elif contains(item.domain, counters):
                self.execute(item, counters)


def run_nest(
    nest: Nest, values: Mapping[int, int], memory: bytearray, max_steps: int = 1_000_000
) -> tuple[dict[int, int], Trace]:
    """Run a nest over a memory; return what locals hold after it, and what it did.

    Args:
        nest: it has no `faults`.
        values: of live-in locals, as bits.
        memory: is changed.
        max_steps: most loops and statements that are met.

    Raises:
        StepsExhausted: there are more.
        Trapped: an access is out of bounds.
        UndefinedCell: a cell is used before it is set.
    """
    machine = _InOrder(nest, values, memory, max_steps)
    machine.run(nest.body, {})
    return machine.results(), machine.trace


# ------------------------------------------------------------------------------------------------------------ structure


def statements(
    body: tuple[Loop | Statement, ...], around: tuple[int, ...] = ()
) -> Iterator[tuple[Statement, tuple[int, ...]]]:
    """Yield each statement with the counters of the loops around it."""
    for item in body:
        if isinstance(item, Loop):
            yield from statements(item.body, (*around, item.counter))
        else:
            yield item, around


def faults(nest: Nest) -> list[str]:
    """Return what breaks the rules of `Nest`."""
    found: list[str] = []
    listed = list(statements(nest.body))
    for kind, numbers in (("statement", [item.number for item, _ in listed]), ("counter", list(_counters(nest.body)))):
        found += [f"{kind} {number} twice" for number in set(numbers) if numbers.count(number) > 1]
    effects = [effect for statement, _ in listed for effect in statement.effects]
    found += [f"{effect} twice" for effect in set(effects) if effects.count(effect) > 1]
    for statement, around in listed:
        where = f"statement {statement.number}: "
        found += [where + fault for fault in _statement_faults(statement, around)]
    for local, value in nest.results.items():
        found += [f"result {local}: {fault}" for fault in _value_faults(value, frozenset(), ())]
    return found


def _counters(body: tuple[Loop | Statement, ...]) -> Iterator[int]:
    for item in body:
        if isinstance(item, Loop):
            yield item.counter
            yield from _counters(item.body)


def _statement_faults(statement: Statement, around: tuple[int, ...]) -> Iterator[str]:
    for constraints in statement.domain:
        for constraint in constraints:
            yield from _affine_faults(constraint.value, around)
    loads: set[Effect] = set()
    changed = [effect.cell for effect in statement.effects if isinstance(effect, SetCell)]
    yield from [f"cell {cell.number} set twice" for cell in set(changed) if changed.count(cell) > 1]
    yield from [f"cell {cell.number} in other loops" for cell in changed if not set(cell.counters) <= set(around)]
    for effect in statement.effects:
        if isinstance(effect, While):
            yield from _turning_faults(effect, loads, around)
        elif not isinstance(effect, SetCell):
            yield from _affine_faults(effect.pointer, around)
        if isinstance(effect, Load | While):
            loads.add(effect)
        elif isinstance(effect, Store):
            yield from _value_faults(effect.value, loads, around)
            if effect.value.type != effect.opcode[:3]:
                yield f"{effect.opcode} of {effect.value.type}"
    for effect in statement.effects:
        if isinstance(effect, SetCell):
            yield from _value_faults(effect.value, loads, around)
            if effect.value.type != effect.cell.type:
                yield f"cell {effect.cell.number} of {effect.cell.type} set to {effect.value.type}"


def _turning_faults(loop: While, loads: set[Effect], around: tuple[int, ...]) -> Iterator[str]:
    for value in (*loop.initial, *([] if loop.entered is None else [loop.entered])):
        yield from _value_faults(value, loads, around)
    inside, here = set(loads), (*around, loop.counter)
    for effect in loop.effects:
        if isinstance(effect, Load):
            yield from _affine_faults(effect.pointer, here)
        else:
            yield from _turning_faults(effect, inside, here)
        inside.add(effect)
    for value in (*loop.after, loop.again):
        yield from _value_faults(value, inside, here)
    types = [[value.type for value in values] for values in (loop.scalars, loop.initial, loop.after)]
    if types != [types[0]] * 3 or loop.again.type != "i32":
        yield f"scalars of {types}"


def _affine_faults(affine: Affine, around: tuple[int, ...]) -> Iterator[str]:
    terms = [term for term, _ in affine.terms]
    if len(set(terms)) < len(terms) or any(not coefficient for _, coefficient in affine.terms):
        yield f"{affine} is not in its normal form"
    for term in terms:
        if isinstance(term, Floor):
            yield from _affine_faults(term.value, around)
            if term.divisor < 2:
                yield f"divisor {term.divisor}"
        elif term not in around:
            yield f"counter {term} is not of a loop around it"


def _value_faults(root: Value, loads: frozenset[Effect] | set[Effect], around: tuple[int, ...]) -> Iterator[str]:
    seen: set[Value] = set()
    open_ = [root]
    while open_:
        value = open_.pop()
        if value in seen:
            continue
        seen.add(value)
        if isinstance(value, Load) and value not in loads:
            yield f"{value.opcode} is not among the effects before its use"
        if isinstance(value, Index):
            yield from _affine_faults(value.affine, around)
            if value.type not in {"i32", "i64"}:
                yield f"index of type {value.type}"
        if isinstance(value, Constant) and not 0 <= value.bits < 1 << int(value.type[1:]):
            yield f"{value.bits} is not an {value.type}"
        if isinstance(value, Carried) and not set(value.counters) <= set(around):
            yield f"cell {value.cell.number} in other loops"
        if isinstance(value, Carried) and len(value.counters) != len(value.cell.counters):
            yield f"cell {value.cell.number} of {value.counters}"
        if isinstance(value, Operation):
            yield from _operation_faults(value)
            open_ += value.operands


def _operation_faults(operation: Operation) -> Iterator[str]:
    opcode, types = operation.opcode, [operand.type for operand in operation.operands]
    if opcode == "select":
        expected, result = [operation.type, operation.type, "i32"], operation.type
    elif opcode not in NUMERIC:
        yield f"{opcode} is not numeric"
        return
    else:
        converted = _CONVERTED.search(opcode)
        expected = [converted.group(1) if converted else opcode[:3]] * ARITY[opcode]
        result = "i32" if _COMPARED.search(opcode) else opcode[:3]
    if types != expected or operation.type != result:
        yield f"{opcode} from {types} to {operation.type}"
