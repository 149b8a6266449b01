"""Which loops of a kernel become the grid of a GPU, and how many neighbouring iterations one of its threads does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tensorwasm.offload.codegen.linear import Linear, expression_of, linear, mentions, weighted
from tensorwasm.offload.program import Block, Compute, Execute, Expression, For, If

SIDE: Final = 4
"""Rows and columns of results that a thread keeps in registers."""
MOST_RESULTS: Final = 16
MOST_VALUES: Final = 1200
"""Of all iterations of a thread together."""


@dataclass(frozen=True, slots=True)
class Tile:
    """Iterations that a thread does of the two innermost parallel loops.

    Attributes:
        rows: of the outer one, which are neighbours.
        columns: of the inner one, which are as far apart as a block is wide.
    """

    rows: int = 1
    columns: int = 1


LONE: Final = Tile()
"""One iteration."""


def choose_tile(loops: Sequence[For], controls: Iterable[Expression], loads: Sequence[Linear], values: int) -> Tile:
    """Return the tile of a kernel.

    Args:
        loops: its parallel loops.
        controls: bounds and conditions of what a thread does.
        loads: addresses of loads in the loops in a thread: those that move along one side of a tile only are made once
            for the other side.
        values: how many values and effects one iteration has.
    """
    if len(loops) < 2 or mentions(loops[-1].first, loops[-2].variable):
        return LONE
    used = list(controls)
    rows, columns = (
        SIDE if all(not mentions(each, name) for each in used) and any(not load.mentions(name) for load in loads) else 1
        for name in (loops[-2].variable, loops[-1].variable)
    )
    while rows * columns > 1 and rows * columns * values > MOST_VALUES:
        rows, columns = (rows, columns // 2) if columns >= rows else (rows // 2, columns)
    return Tile(rows, columns)


@dataclass(frozen=True, slots=True)
class Skewed:
    """Two parallel loops of which the inner one ends where the sum of both counters has a value, for any outer one.

    They are the same as loops over the sum, and over the inner counter as far as the outer one's bounds hold.

    Attributes:
        outer: the loop over the sum.
        inner: the loop over the inner counter.
        guard: what has to hold for an iteration.
        replaced: the outer counter, in terms of both.
    """

    outer: For
    inner: For
    guard: Expression
    replaced: Compute


def unskewed(outer: For, inner: For) -> Skewed | None:
    """Return two loops by the sum of their counters; None if they are not of that kind."""
    last = linear(inner.last)
    plain = outer.step == inner.step == 1 and not mentions(inner.first, outer.variable)
    rest = weighted([(last, 1), (Linear(0, frozenset({(outer.variable, 1)})), 1)])
    if not plain or last.coefficient(outer.variable) != -1 or rest.mentions(outer.variable):
        return None
    total, name = f"{outer.variable}+{inner.variable}", inner.variable
    return Skewed(
        replace(outer, variable=total, first=Compute("add", (outer.first, inner.first)), last=expression_of(rest)),
        replace(inner, last=Compute("sub", (total, outer.first))),
        Compute("le", (Compute("sub", (total, outer.last)), name)),
        Compute("sub", (total, name)),
    )


def with_value(block: Block, variable: str, value: Expression) -> Block:
    """Return a block with an expression in a variable's place."""

    def changed(expression: Expression) -> Expression:
        if isinstance(expression, Compute):
            return replace(expression, operands=tuple(map(changed, expression.operands)))
        return value if expression == variable else expression

    return _changed(block, changed)


def _changed(block: Block, changed: Callable[[Expression], Expression]) -> Block:
    parts: list[For | If | Execute] = []
    for part in block:
        match part:
            case For():
                body = _changed(part.body, changed)
                parts.append(replace(part, first=changed(part.first), last=changed(part.last), body=body))
            case If():
                then, otherwise = _changed(part.then, changed), _changed(part.otherwise, changed)
                parts.append(If(changed(part.condition), then, otherwise))
            case Execute():
                parts.append(Execute(part.statement, tuple(map(changed, part.counters))))
    return tuple(parts)
