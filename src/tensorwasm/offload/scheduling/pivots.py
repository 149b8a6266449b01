"""Cells for the row and the column that all elements of a matrix change by in one step, as shortest paths in place do.

`path[i][j]` from `path[i][k]` and `path[k][j]`: in step `k` elements depend on one another only through row and column
`k`, which the step changes too. With what these were before it and what they are after it in cells, all are parallel.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from tensorwasm.offload.affine import add, coefficient, counter, scale, shift, subtract
from tensorwasm.offload.nest import (
    ALWAYS,
    Affine,
    Carried,
    Cell,
    Constant,
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
)
from tensorwasm.offload.scheduling.footprints import operands_first
from tensorwasm.offload.scheduling.model import NestModel
from tensorwasm.offload.scheduling.rewriting import Body, rewritten, statements_in, substituted

_Role = Literal["own", "row", "column"]


class _Matrix(NamedTuple):
    """Addresses of elements, by row and column."""

    base: int
    row_stride: int
    column_stride: int

    def at(self, row: Affine, column: Affine) -> Affine:
        """The address of an element."""
        return shift(add(scale(row, self.row_stride), column, self.column_stride), self.base)

    def apart(self, columns: int, size_bytes: int) -> bool:
        """No two elements overlap."""
        width = abs(self.column_stride) * (columns - 1) + size_bytes
        return abs(self.column_stride) >= size_bytes and abs(self.row_stride) >= width


class _Element(NamedTuple):
    """The store of an element, in which column, and the loads since the store before."""

    store: Store
    column: Affine
    loads: tuple[Load, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """What is done to each element of a matrix in turn, for a step that is the number of a row and of a column.

    Attributes:
        steps: the loop over them, with the loop over rows in it.
        store: of one element, and the role of each load that its value has.
    """

    steps: Loop
    rows: Loop
    columns: int
    matrix: _Matrix
    store: Store
    roles: Mapping[Load, _Role]

    def value(self, own: Value, row: Value, column: Value) -> Value:
        """What an element becomes."""
        roles = {"own": own, "row": row, "column": column}
        replacements: dict[Value, Value] = {load: roles[role] for load, role in self.roles.items()}
        return substituted([self.store.value], replacements)[self.store.value]


def with_pivots(nest: Nest, model: NestModel) -> Nest:
    """The nest with cells for the rows and columns of steps; the same nest if there are none."""
    running = {each.number for each in model.statements}
    body = rewritten(nest.body, lambda statement: [statement] if statement.number in running else [])
    fresh = _Fresh(
        1 + max((each.number for each in statements_in(body)), default=0),
        1 + max((loop.counter for loop in _loops_in(nest.body)), default=0),
        1 + max((cell.number for cell in model.cell_extents), default=-1),
    )
    changed = tuple(_changed(body, fresh))
    return nest if fresh.is_unused else Nest(changed, nest.results)


class _Fresh:
    """Numbers that are not taken."""

    def __init__(self, statement: int, counter_: int, cell: int) -> None:
        self._statement, self._counter, self._cell = statement, counter_, cell
        self.is_unused = True

    def statement(self, *effects: Load | Store | SetCell) -> Statement:
        self._statement += 1
        return Statement(self._statement - 1, ALWAYS, effects)

    def counter(self) -> int:
        self._counter += 1
        return self._counter - 1

    def cell(self, like: Value, *counters: int) -> Cell:
        self.is_unused = False
        self._cell += 1
        return Cell(self._cell - 1, like.type, counters)


def _changed(body: Body, fresh: _Fresh) -> Iterator[Loop | Statement]:
    for item in body:
        if isinstance(item, Statement):
            yield item
        elif (step := _step(item)) is not None:
            yield Loop(item.counter, item.trip, _parts(step, fresh))
        else:
            yield Loop(item.counter, item.trip, tuple(_changed(item.body, fresh)))


def _parts(step: _Step, fresh: _Fresh) -> Body:
    """A loop that sets cells of the row, one for those of the column, and those over all elements."""
    opcode, number = step.store.opcode, step.steps.counter
    pivot, at = counter(number), step.matrix.at

    def load(row: Affine, column: Affine) -> Load:
        return Load(opcode.replace("store", "load"), at(row, column), 0)

    def line(count: int, *, is_row: bool) -> tuple[Loop, Cell, Cell]:
        inner = fresh.counter()
        here = counter(inner)
        crossing, own = load(pivot, pivot), load(pivot, here) if is_row else load(here, pivot)
        other = _until(here, pivot, crossing, step.value(crossing, crossing, crossing))
        after = step.value(own, own, other) if is_row else step.value(own, other, own)
        cells = fresh.cell(own, number, inner), fresh.cell(own, number, inner)
        changes = SetCell(cells[0], own), SetCell(cells[1], after)
        return Loop(inner, Affine(count), (fresh.statement(crossing, own, *changes),)), *cells

    row, *of_row = line(step.columns, is_row=True)
    column, *of_column = line(step.rows.trip.constant, is_row=False)
    inner = fresh.counter()
    down, right = counter(step.rows.counter), counter(inner)
    own = load(down, right)
    from_row = _until(down, pivot, *(Carried(cell, (number, inner)) for cell in of_row))
    from_column = _until(right, pivot, *(Carried(cell, (number, step.rows.counter)) for cell in of_column))
    body = fresh.statement(own, Store(opcode, at(down, right), 0, step.value(own, from_row, from_column)))
    return row, column, Loop(step.rows.counter, step.rows.trip, (Loop(inner, Affine(step.columns), (body,)),))


def _until(place: Affine, pivot: Affine, before: Value, after: Value) -> Value:
    """One value up to a place, and another one behind it."""
    is_before = Operation("i32", "i32.le_s", (Index("i32", place), Index("i32", pivot)))
    return Operation(before.type, "select", (before, after, is_before))


def _step(steps: Loop) -> _Step | None:
    """What a loop does in each turn, if that is a step."""
    if len(steps.body) != 1 or not isinstance(rows := steps.body[0], Loop) or steps.trip.terms or rows.trip.terms:
        return None
    elements: list[_Element] = []
    columns = 0
    for item in rows.body:
        found = _elements(item, columns)
        if not found:
            return None
        elements += found
        columns += len(found) * (item.trip.constant if isinstance(item, Loop) else 1)
    matrix = _matrix(rows, elements)
    if matrix is None or not matrix.apart(columns, elements[0].store.size_bytes):
        return None
    roles = [_roles(each, matrix, counter(rows.counter), counter(steps.counter)) for each in elements]
    first = _shape(elements[0], roles[0])
    same = all(first is not None and _shape(each, role) == first for each, role in zip(elements, roles, strict=True))
    if not same or roles[0] is None or {"row", "column"}.isdisjoint(roles[0].values()):
        return None
    if steps.trip.constant > min(columns, rows.trip.constant):
        return None
    return _Step(steps, rows, columns, matrix, elements[0].store, roles[0])


def _elements(item: Loop | Statement, first: int) -> list[_Element]:
    """The elements of a row that a statement changes, or a loop over one, from a column on; none if it does more."""
    statement, place, turns = item, Affine(first), 1
    if isinstance(statement, Loop):
        if len(statement.body) != 1 or statement.trip.terms:
            return []
        place, turns, statement = counter(statement.counter), statement.trip.constant, statement.body[0]
    if isinstance(statement, Loop) or statement.domain != ALWAYS or turns < 1:
        return []
    found: list[tuple[Store, tuple[Load, ...]]] = []
    loads: list[Load] = []
    for effect in statement.effects:
        if isinstance(effect, Load):
            loads.append(effect)
        elif isinstance(effect, Store):
            found.append((effect, tuple(loads)))
            loads = []
        else:
            return []
    if item is not statement:
        place = shift(scale(place, len(found)), first)
    return [_Element(store, shift(place, number), before) for number, (store, before) in enumerate(found)]


def _matrix(rows: Loop, elements: Sequence[_Element]) -> _Matrix | None:
    """The matrix whose elements are stored, row by row; None if they are not."""
    moving = next((each for each in elements if each.column.terms), None)
    if moving is None:
        return None
    ((inner, copies),) = moving.column.terms
    address = shift(moving.store.pointer, moving.store.offset)
    column_stride = coefficient(address, inner) // copies
    base = address.constant - column_stride * moving.column.constant
    matrix = _Matrix(base, coefficient(address, rows.counter), column_stride)
    places = ((each.store, matrix.at(counter(rows.counter), each.column)) for each in elements)
    return matrix if all(_is_at(store, place) for store, place in places) else None


def _is_at(access: Load | Store, place: Affine) -> bool:
    return subtract(shift(access.pointer, access.offset), place) == Affine()


def _roles(element: _Element, matrix: _Matrix, row: Affine, pivot: Affine) -> dict[Load, _Role] | None:
    """What each load of an element reads; None if it is something else."""
    places: dict[_Role, Affine] = {
        "own": matrix.at(row, element.column),
        "row": matrix.at(pivot, element.column),
        "column": matrix.at(row, pivot),
    }
    opcode = element.store.opcode
    if not opcode.endswith(".store"):
        return None
    roles: dict[Load, _Role] = {}
    for load in element.loads:
        role = next((role for role, place in places.items() if _is_at(load, place)), None)
        if role is None or load.opcode != opcode.replace("store", "load"):
            return None
        roles[load] = role
    return roles


def _shape(element: _Element, roles: Mapping[Load, _Role] | None) -> list[object] | None:
    """What an element's value is made of, the same for elements that become the same of their loads."""
    if roles is None:
        return None
    values = operands_first([element.store.value])
    numbers = {value: number for number, value in enumerate(values)}
    told: list[object] = [element.store.opcode]
    for value in values:
        match value:
            case Load() if value in roles:
                told.append(roles[value])
            case Constant():
                told.append((value.type, value.bits))
            case Input():
                told.append((value.type, "input", value.local))
            case Operation():
                told.append((value.type, value.opcode, [numbers[each] for each in value.operands]))
            case _:
                return None
    return told


def _loops_in(body: Body) -> Iterator[Loop]:
    for item in body:
        if isinstance(item, Loop):
            yield item
            yield from _loops_in(item.body)
