"""Loops that reduce many terms to one, as loops whose iterations each reduce some of them.

``c = c + a[i]`` becomes, for rows ``b`` of turns ``k`` of ``LANES`` neighbours ``l``, ``q[b, l] = q[b, l] + a[i]``,
then ``p[b] = p[b] + q[b, l]``, and ``c = c + p[b]``. A loop around others that reduce begins each iteration with an
identity, and reduces their results.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tensorwasm.offload.affine import add, counter, scale, shift, substitute
from tensorwasm.offload.nest import (
    ALWAYS,
    Affine,
    Carried,
    Cell,
    Effect,
    Load,
    Loop,
    Nest,
    SetCell,
    Statement,
    Store,
    While,
    accesses_of,
    values_of,
)
from tensorwasm.offload.scheduling.footprints import cell_accesses, cells_in, may_meet, tell_arrays
from tensorwasm.offload.scheduling.reductions.copying import Copier, FreshNumbers
from tensorwasm.offload.scheduling.reductions.matching import Operator, Reduction, ZeroWatch, reduction, with_effects
from tensorwasm.offload.scheduling.reductions.preparing import liftable, rerolled
from tensorwasm.offload.scheduling.rewriting import Body, divided, loops_in, statements_in

LANES: Final = 32
"""Neighbours: lanes of vectors, or threads of a warp."""
MOST_ROWS: Final = 2048
"""Of lanes, whose results one thread reduces."""
FEWEST_TURNS: Final = 8
FEWEST_ITERATIONS: Final = 1024
"""Of a loop that is worth it."""
MANY_ROWS: Final = 8192
"""Iterations with loops in them that are too many for one thread to reduce their results."""


def reassociated(
    nest: Nest, numbers: Collection[int], array_of: Mapping[Load | Store, int], *, relaxed: bool = False
) -> Nest:
    """The nest with loops around some statements as reductions in parts; the same nest if there are none.

    A nest in which one loop reads cells of another is not changed.

    Args:
        nest: what to change.
        numbers: of statements that make a loop worth it.
        array_of: of each access that runs.
        relaxed: whether sums and products of floats are reductions.
    """
    accesses = (access for each in statements_in(nest.body) for access in cell_accesses(each))
    if any(access.counters != access.cell.counters for access in accesses):
        return nest
    body = _Reassociation(nest, numbers, array_of, relaxed=relaxed).body(nest.body, 1)
    return nest if body == nest.body else Nest(body, nest.results)


@dataclass(frozen=True, slots=True, eq=False)
class _Link:
    """Where a cell is set to a reduction of a cell's content."""

    statement: Statement
    effect: SetCell
    source: Cell
    reduction: Reduction


@dataclass(frozen=True, slots=True, eq=False)
class _Web:
    """A cell that a loop hands on, and those that its content goes through in one iteration, each part of it once."""

    cell: Cell
    operator: Operator
    links: tuple[_Link, ...]

    @property
    def cells(self) -> list[Cell]:
        """All that it is made of."""
        return [link.effect.cell for link in self.links]

    @property
    def selected(self) -> bool:
        """Data selects the least or greatest float."""
        return any(link.reduction.selected for link in self.links)

    @property
    def first(self) -> _Link:
        """What reads the cell."""
        return next(link for link in self.links if link.source is self.cell)

    @property
    def last(self) -> _Link:
        """What sets it."""
        return next(link for link in self.links if link.effect.cell is self.cell)


class _Reassociation:
    """Changes a nest from the outermost loops on."""

    def __init__(
        self, nest: Nest, numbers: Collection[int], array_of: Mapping[Load | Store, int], *, relaxed: bool
    ) -> None:
        self._numbers, self._array_of, self._relaxed = set(numbers), dict(array_of), relaxed
        self._fresh = FreshNumbers(nest)
        self._results = set(cells_in(nest.results.values()))
        self._users: dict[Cell, set[int]] = {}
        for statement in statements_in(nest.body):
            for access in cell_accesses(statement):
                self._users.setdefault(access.cell, set()).add(statement.number)

    def body(self, items: Body, rows: int, around: tuple[int, ...] = ()) -> Body:
        """The items after the change, of which so many iterations around are parallel."""
        changed: list[Loop | Statement] = []
        for item in items:
            changed += self._loop(item, rows, around) if isinstance(item, Loop) else [item]
        return tuple(changed)

    def _loop(self, loop: Loop, rows: int, around: tuple[int, ...]) -> Sequence[Loop | Statement]:
        if (lifted := self._lifted(loop, rows, around)) is not None:
            return lifted
        webs = self._webs(loop)
        if any(web.selected for web in webs):
            return self._watched(loop, [web for web in webs if web.selected], rows, around)
        kept, moved = self._apart(loop, webs)
        trip = 0 if loop.trip.terms else loop.trip.constant
        if moved and any(web.last.statement.number in self._numbers for web in webs):
            operators = {web.cell: web.operator for web in webs}
            before = [self._inside(loop, kept, rows, around)] if kept else []
            whole = self._detached(loop, moved, webs)
            has_loops = any(isinstance(item, Loop) for item in moved)
            if not has_loops:
                whole = rerolled(whole, operators, self._fresh, relaxed=self._relaxed)
            least = MANY_ROWS if has_loops else FEWEST_ITERATIONS
            if rows < MOST_ROWS and not whole.trip.terms and whole.trip.constant >= least:
                return [*before, *self._parts(whole, operators, around)]
            if has_loops:
                found = self._inside(whole, whole.body, rows * max(trip, 1), around)
                return [*before, self._renamed(found, around) if kept else found]
        return [self._inside(loop, loop.body, rows, around)]

    def _inside(self, loop: Loop, items: Body, rows: int, around: tuple[int, ...]) -> Loop:
        """The loop with some items of it, changed; the loop itself if that is the same."""
        body = self.body(items, rows, (*around, loop.counter))
        return loop if body == loop.body else Loop(loop.counter, loop.trip, body)

    def _lifted(self, loop: Loop, rows: int, around: tuple[int, ...]) -> Sequence[Loop | Statement] | None:
        """The loop without accesses to some places, and what comes before and behind it; None if that is of no use."""
        if loop.trip.terms or loop.trip.constant < 1:
            return None
        before, after, body = list[Statement](), list[Effect](), loop.body
        places: dict[Loop | Statement, None] = {}
        while (place := next(liftable(body, loop.counter, around, self._array_of, self._fresh), None)) is not None:
            body = tuple(place.without if item is place.statement else item for item in body)
            tell_arrays(self._array_of, [place.statement], [place.without])
            places.pop(place.statement, None)
            places[place.without] = None
            before += [self._fresh.statement(*place.before)] if place.before else []
            after.append(place.after)
        if self._numbers.isdisjoint(each.number for each in statements_in(places)):
            return None
        parts = [part for item in body for part in (self._divided(item) if item in places else [item])]
        for part in statements_in(parts):
            for access in cell_accesses(part):
                self._users.setdefault(access.cell, set()).add(part.number)
        without = Loop(loop.counter, loop.trip, tuple(parts))
        found = self._loop(without, rows, around)
        return None if without in found else [*before, *found, self._fresh.statement(*after)]

    def _divided(self, statement: Loop | Statement) -> Sequence[Loop | Statement]:
        """The statement in parts with numbers of their own."""
        found = divided(Nest((statement,)), {each.number for each in statements_in([statement])}, self._array_of).body
        parts = [self._fresh.renumbered(each) for each in statements_in(found)]
        self._numbers |= {each.number for each in parts}
        tell_arrays(self._array_of, statements_in([statement]), parts)
        return parts

    def _watched(
        self, loop: Loop, webs: Sequence[_Web], rows: int, around: tuple[int, ...]
    ) -> Sequence[Loop | Statement]:
        """The loop with cells beside those of webs that data selects, and what comes before and behind it."""
        begin, end, steps = list[SetCell](), list[SetCell](), dict[Effect, tuple[Effect, ...]]()
        for web in webs:
            cells = {cell: self._fresh.cell("i32", cell.counters) for cell in web.cells}
            self._users |= {new: self._users[cell] for cell, new in cells.items()}
            watch = ZeroWatch(web.operator, cells)
            begin.append(watch.begin(web.cell))
            end.append(watch.end(web.cell))
            steps |= {link.effect: watch.step(link.effect, link.source, link.reduction) for link in web.links}
        watched = with_effects(loop, lambda effect: steps.get(effect, (effect,)))
        found = self._loop(watched, rows, around)
        if watched in found:
            return [self._inside(loop, loop.body, rows, around)]
        return [self._fresh.statement(*begin), *found, self._fresh.statement(*end)]

    # ------------------------------------------------------------------------------------------- what is reduced

    def _webs(self, loop: Loop) -> list[_Web]:
        return [web for cell in _set_in(loop) if (web := self._web(loop, cell)) is not None]

    def _web(self, loop: Loop, cell: Cell) -> _Web | None:
        """The web of a cell in a loop, if it is one."""
        if loop.counter in cell.counters:
            return None
        cells, links = {cell}, dict[SetCell, _Link]()
        inside = list(statements_in(loop.body))
        while True:
            known = len(links)
            for statement in inside:
                if not self._link(statement, cells, links):
                    return None
            if len(links) == known:
                break
        operators = {link.reduction.operator for link in links.values()} - {None}
        numbers = {statement.number for statement in inside}
        through = cells - {cell}
        if len(operators) != 1 or any(
            loop.counter not in each.counters or each in self._results or not self._users[each] <= numbers
            for each in through
        ):
            return None
        web = _Web(cell, operators.pop(), tuple(links.values()))  # type: ignore[arg-type]  # None is not among them
        return web if self._is_one_chain(loop, web, inside) else None

    def _link(self, statement: Statement, cells: set[Cell], links: dict[SetCell, _Link]) -> bool:
        """Add what a statement does with some cells to links; return whether it is part of a web."""
        for effect in statement.effects:
            if isinstance(effect, Load):
                continue
            used = [each for each in cells_in(values_of([effect])) if each in cells]
            if not used and not (isinstance(effect, SetCell) and effect.cell in cells):
                continue
            if len(used) != 1 or not isinstance(effect, SetCell):
                return False
            found = reduction(effect.value, used[0], relaxed=self._relaxed)
            if found is None:
                return False
            cells.add(effect.cell)
            links[effect] = _Link(statement, effect, used[0], found)
        return True

    @staticmethod
    def _is_one_chain(loop: Loop, web: _Web, inside: list[Statement]) -> bool:
        """The cell's content is read once in an iteration, at first, and set once, at last."""
        readers = [link for link in web.links if link.source is web.cell]
        setters = [link for link in web.links if link.effect.cell is web.cell]
        if len(readers) != 1 or len(setters) != 1:
            return False
        (reader,), (setter,) = readers, setters
        if any(each.statement not in loop.body for each in (reader, setter)):
            return False
        if reader is setter:
            return len(web.links) == 1
        places = [inside.index(link.statement) for link in web.links]
        is_ordered = inside.index(reader.statement) == min(places) and inside.index(setter.statement) == max(places)
        return is_ordered and reader.statement.domain == setter.statement.domain == ALWAYS

    def _apart(self, loop: Loop, webs: Sequence[_Web]) -> tuple[Body, Body]:
        """The items of a loop that are no part of reductions, and those that are, if those may run before these.

        What is a part only loads, and sets cells of the reductions and of single iterations.
        """
        reduced = {web.cell for web in webs}
        wanted = {link.effect.cell for web in webs for link in web.links}
        moved: list[Loop | Statement] = []
        while True:
            more = [each for each in loop.body if each not in moved and wanted & _cells_set(each)]
            if not more:
                break
            moved += more
            for item in more:
                wanted |= {each for each in _cells_used(item) if loop.counter in each.counters}
        moved.sort(key=loop.body.index)
        kept = tuple(item for item in loop.body if item not in moved)
        numbers = {each.number for each in statements_in(moved)}
        for cell in set[Cell]().union(*map(_cells_set, moved)) - reduced:
            if loop.counter not in cell.counters or cell in self._results or not self._users[cell] <= numbers:
                return loop.body, ()
        effects = [effect for each in statements_in(moved) for effect in each.effects]
        if any(isinstance(effect, Store | While) for effect in effects):
            return loop.body, ()
        stores = [each for each in _accesses(kept) if isinstance(each, Store)]
        if any(may_meet(store, each, self._array_of) for each in _accesses(moved) for store in stores):
            return loop.body, ()
        used = set[Cell]().union(*map(_cells_used, moved)) - reduced
        if used & set[Cell]().union(*map(_cells_set, kept)):
            return loop.body, ()
        return kept, tuple(moved)

    # ------------------------------------------------------------------------------------------- in parts

    @staticmethod
    def _detached(loop: Loop, items: Body, webs: Sequence[_Web]) -> Loop:
        """The loop with some items of it, each iteration on its own: its end is added to what is handed on."""
        changes: dict[Effect, Effect] = {}
        for web in webs:
            if web.first is not web.last:
                changes[web.first.effect] = _without(web.first, web.operator)
                total = web.operator.of(Carried(web.cell), web.last.effect.value)
                changes[web.last.effect] = SetCell(web.cell, total)
        part = Loop(loop.counter, loop.trip, items)
        return with_effects(part, lambda effect: (changes.get(effect, effect),)) if changes else part

    def _parts(self, loop: Loop, operators: Mapping[Cell, Operator], around: tuple[int, ...]) -> Body:
        """The loop as rows of lanes of turns, and what is left."""
        trip, turns = loop.trip.constant, FEWEST_TURNS
        while trip // (turns * LANES) > MOST_ROWS:
            turns *= 2
        rows = trip // (turns * LANES)
        done = rows * turns * LANES
        row, lane, turn = (self._fresh.counter() for _ in range(3))
        place = add(add(scale(counter(row), turns * LANES), scale(counter(turn), LANES)), counter(lane))
        begin: dict[str, list[SetCell]] = {"row": [], "lane": []}
        end: dict[str, list[SetCell]] = {"lane": [], "lanes": [], "row": []}
        cells: dict[Cell, Cell] = {}
        for cell, operator in operators.items():
            whole = self._fresh.cell(cell.type, (*around, row))
            part, result = (self._fresh.cell(cell.type, (*around, row, lane)) for _ in range(2))
            cells[cell] = part
            begin["row"].append(SetCell(whole, operator.identity))
            begin["lane"].append(SetCell(part, operator.identity))
            end["lane"].append(SetCell(result, Carried(part)))
            end["lanes"].append(SetCell(whole, operator.of(Carried(whole), Carried(result))))
            end["row"].append(SetCell(cell, operator.of(Carried(cell), Carried(whole))))
        inner = self._copied(loop, place, cells, (*around, row, lane, turn))
        statement = self._fresh.statement
        turning = Loop(turn, Affine(turns), inner)
        lanes = (statement(*begin["lane"]), turning, statement(*end["lane"]), statement(*end["lanes"]))
        found: list[Loop | Statement] = [
            Loop(
                row,
                Affine(rows),
                (statement(*begin["row"]), Loop(lane, Affine(LANES), lanes), statement(*end["row"])),
            )
        ]
        if done < trip:
            left = self._fresh.counter()
            rest = Loop(left, Affine(trip - done), self._copied(loop, shift(counter(left), done), {}, (*around, left)))
            found += self._parts(rest, operators, around) if trip - done >= FEWEST_ITERATIONS else [rest]
        return tuple(found)

    def _renamed(self, loop: Loop, around: tuple[int, ...]) -> Loop:
        """The loop with another counter."""
        own = self._fresh.counter()
        return Loop(own, loop.trip, self._copied(loop, counter(own), {}, (*around, own)))

    def _copied(self, loop: Loop, place: Affine, cells: Mapping[Cell, Cell], counters: tuple[int, ...]) -> Body:
        """The body of a loop for another value of its counter, in loops of some counters."""
        loops = {each.counter: self._fresh.counter() for each in loops_in(loop.body)}
        own = dict(cells)
        inside = set[Cell]().union(*map(_cells_set, loop.body))
        for cell in sorted(inside, key=lambda each: each.number):
            if loop.counter in cell.counters:
                inner = [loops[each] for each in cell.counters if each in loops]
                own[cell] = self._fresh.cell(cell.type, (*counters, *inner))
        expressions = {loop.counter: place, **{old: counter(new) for old, new in loops.items()}}
        return Copier(self._fresh, lambda affine: substitute(affine, expressions), loops, own).body(loop.body)


def _without(link: _Link, operator: Operator) -> SetCell:
    terms = link.reduction.terms
    return SetCell(link.effect.cell, operator.all_of(terms) if terms else operator.identity)


def _set_in(loop: Loop) -> list[Cell]:
    """The cells that statements right in a loop set."""
    effects = [effect for item in loop.body if isinstance(item, Statement) for effect in item.effects]
    return list(dict.fromkeys(effect.cell for effect in effects if isinstance(effect, SetCell)))


def _cells_set(item: Loop | Statement) -> set[Cell]:
    return {access.cell for each in statements_in([item]) for access in cell_accesses(each) if access.write}


def _cells_used(item: Loop | Statement) -> set[Cell]:
    return {access.cell for each in statements_in([item]) for access in cell_accesses(each) if not access.write}


def _accesses(items: Iterable[Loop | Statement]) -> Iterable[Load | Store]:
    return (access for each in statements_in(items) for access in accesses_of(each.effects))
