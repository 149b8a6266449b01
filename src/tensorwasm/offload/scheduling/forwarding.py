"""Loads in place of cells that hand a loaded value on to the next iteration.

Compilers keep what one iteration of a stencil loads for the next, which would make its iterations depend on each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from tensorwasm.offload.affine import counter, counters, shift, substitute, subtract
from tensorwasm.offload.nest import (
    ALWAYS,
    Affine,
    Cell,
    Domain,
    Load,
    Loop,
    Nest,
    SetCell,
    Statement,
    Store,
    values_of,
    whiles_of,
)
from tensorwasm.offload.scheduling.footprints import cell_accesses, cells_in, tell_arrays
from tensorwasm.offload.scheduling.rewriting import Body, pruned, rewritten, statements_in, with_contents

_AccessArrays = Mapping[Load | Store, int]


@dataclass(frozen=True, slots=True)
class _Rotation:
    """A cell that a statement sets to a load before a loop, and another one in each iteration to that of the next.

    Attributes:
        replaced: the statements with loads in place of the cell.
        array: that of the loads.
    """

    replaced: Mapping[Statement, Statement]
    array: int


def simplified(nest: Nest, array_of: _AccessArrays) -> Nest:
    """A nest with the same effect and without needless loads and cells, given the array of each access that runs."""
    body = rewritten(nest.body, pruned)
    arrays = dict(array_of)
    kept = set(cells_in(nest.results.values()))
    while (rotation := next(_rotations(body, (), body, arrays, kept), None)) is not None:
        for before, statement in rotation.replaced.items():
            tell_arrays(arrays, [before], [statement])
            for effect in statement.effects:
                if isinstance(effect, Load):
                    arrays.setdefault(effect, rotation.array)
        body = _replaced(body, rotation.replaced)
    return nest if body == nest.body else Nest(body, nest.results)


def _replaced(body: Body, by: Mapping[Statement, Statement]) -> Body:
    return rewritten(body, lambda statement: pruned(by.get(statement, statement)))


def _rotations(
    body: Body, around: tuple[int, ...], whole: Body, arrays: _AccessArrays, kept: set[Cell]
) -> Iterator[_Rotation]:
    for index, item in enumerate(body):
        if isinstance(item, Loop):
            yield from _rotations(item.body, (*around, item.counter), whole, arrays, kept)
            for before, statement in enumerate(body[:index]):
                for first in _set_to_loads(statement, around, kept):
                    found = _rotation(body, before, index, first, whole, arrays)
                    if found is not None:
                        yield found


def _set_to_loads(item: Loop | Statement, around: tuple[int, ...], kept: set[Cell]) -> Iterator[SetCell]:
    """What sets cells to loads, of the cells that are of use within one iteration of the loops around only."""
    for effect in item.effects if isinstance(item, Statement) else ():
        if isinstance(effect, SetCell) and isinstance(effect.value, Load):
            cell = effect.cell
            if set(cell.counters) == set(around) and cell not in kept:
                yield effect


def _rotation(
    body: Body, before: int, index: int, first: SetCell, whole: Body, arrays: _AccessArrays
) -> _Rotation | None:
    """The rotation of a cell that a statement of a body sets, if a loop of the body goes on with it."""
    loop, setter, cell, initial = body[index], body[before], first.cell, first.value
    if not (isinstance(loop, Loop) and isinstance(setter, Statement) and isinstance(initial, Load)):
        return None
    turning = next((each for each in loop.body if isinstance(each, Statement) and _sets(each, cell)), None)
    if turning is None or _depends_on(turning.domain, loop.counter) or cell in cells_in(values_of(setter.effects)):
        return None
    later = next(each.value for each in turning.effects if isinstance(each, SetCell) and each.cell is cell)
    if not (isinstance(later, Load) and _continues(initial, later, loop.counter)):
        return None
    users = [each for each in statements_in(whole) if any(access.cell is cell for access in cell_accesses(each))]
    after = [each for each in body[index + 1 :] if isinstance(each, Statement) and each in users]
    others = set(users) != {setter, turning, *after} or any(_sets(each, cell) for each in after)
    others |= any(cell in cells_in(values_of(whiles_of(each.effects))) for each in users)
    if others or (after and (loop.trip.terms or loop.trip.constant < 0 or turning.domain != ALWAYS)):
        return None
    written = {arrays.get(each) for each in _stores(body[before : body.index(after[-1]) if after else index + 1])}
    array = arrays.get(later)
    if array is None or array != arrays.get(initial) or not written.isdisjoint({array, None}):
        return None
    previous = _moved(later, loop.counter, shift(counter(loop.counter), -1))
    replaced = {setter: with_contents(setter, {}, cell), turning: with_contents(turning, {cell: previous}, cell)}
    for each in after:
        replaced[each] = with_contents(each, {cell: _moved(later, loop.counter, shift(loop.trip, -1))})
    return _Rotation(replaced, array)


def _continues(initial: Load, later: Load, number: int) -> bool:
    """The first load is what the later one would be in the iteration before the first."""
    start = _moved(later, number, Affine(-1))
    distance = subtract(shift(start.pointer, start.offset), shift(initial.pointer, initial.offset))
    return later.opcode == initial.opcode and distance == Affine()


def _moved(load: Load, number: int, value: Affine) -> Load:
    """The load for another value of a counter."""
    return Load(load.opcode, substitute(load.pointer, {number: value}), load.offset)


def _depends_on(domain: Domain, number: int) -> bool:
    return any(number in counters(constraint.value) for part in domain for constraint in part)


def _sets(statement: Statement, cell: Cell) -> bool:
    return any(isinstance(effect, SetCell) and effect.cell is cell for effect in statement.effects)


def _stores(body: Iterable[Loop | Statement]) -> Iterator[Store]:
    for statement in statements_in(body):
        yield from (effect for effect in statement.effects if isinstance(effect, Store))
