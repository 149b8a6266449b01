"""How often a loop runs, from the condition under which it goes on."""

from __future__ import annotations

from dataclasses import dataclass

from tensorwasm.offload.affine import (
    add,
    coefficient,
    counter,
    counters,
    quotient,
    scale,
    shift,
    substitute,
    subtract,
    wrap,
)
from tensorwasm.offload.analysis.integers import Comparison
from tensorwasm.offload.analysis.scope import Scope
from tensorwasm.offload.nest import Affine, Constraint, Floor


@dataclass(frozen=True, slots=True)
class ExitTest:
    """A branch that leaves a loop or goes on with it.

    Attributes:
        place: of the ``br_if`` in the function's body.
        stay: whether the loop goes on; None if that depends on data.
        at_end: an iteration's effects are before the test; else they are all behind it.
    """

    place: int
    stay: Comparison | None
    at_end: bool


def passes(stay: Comparison, number: int, scope: Scope) -> Affine | Constraint | None:
    """Return how often a test is passed before it fails for the first time.

    Args:
        stay: what is tested, as a function of the loop's counter.
        number: of the counter.
        scope: where the loop stands.

    Returns:
        None if it is not known; a constraint if it is known where that holds, and 0 where it does not.
    """
    settled = Comparison(stay.relation, _first(stay.left, number), _first(stay.right, number), stay.bits)
    found: Affine | Constraint | None = None
    if stay.relation == "ne":
        found = _until_equal(wrap(subtract(settled.left, settled.right), stay.bits), number, stay.bits, scope)
    elif stay.relation == "eq":
        found = _while_equal(subtract(settled.left, settled.right), number, stay.bits, scope)
    else:
        found = _while_less(settled, number, scope)
    if settled == stay:
        return found
    if not isinstance(found, Affine):
        return None
    inside = Scope(scope, (Constraint(counter(number)), Constraint(subtract(found, counter(number)))))
    sides = ((stay.left, settled.left), (stay.right, settled.right))
    return found if all(inside.equal(one, other, stay.bits) for one, other in sides) else None


def _first(value: Affine, number: int) -> Affine:
    """Return an expression with the quotients of a counter as they are in the first iteration."""
    result = Affine(value.constant)
    for term, factor in value.terms:
        alone = Affine(0, ((term, 1),))
        result = add(result, substitute(alone, {number: Affine()}) if isinstance(term, Floor) else alone, factor)
    return result


def _without(value: Affine, number: int) -> tuple[int, Affine] | None:
    """Return the coefficient of a counter, and the rest if it is free of it."""
    step = coefficient(value, number)
    rest = Affine(value.constant, tuple([item for item in value.terms if item[0] != number]))
    return None if number in counters(rest) else (step, rest)


def _while_equal(difference: Affine, number: int, bits: int, scope: Scope) -> Affine | None:
    parts = _without(difference, number)
    if parts is None or not parts[0] % (1 << bits):
        return None
    if scope.equal(parts[1], Affine(), bits):
        return Affine(1)
    multiples = scope.multiples(parts[1], bits)
    return Affine() if multiples is not None and not multiples else None


def _until_equal(difference: Affine, number: int, bits: int, scope: Scope) -> Affine | None:
    parts = _without(difference, number)
    if parts is None or not parts[0]:
        return None
    step, rest = parts
    distance = scope.exact(scale(rest, -1) if step > 0 else rest, 0, bits)
    if distance is None:
        return None
    is_met = scope.residue(distance, abs(step)) == 0
    return quotient(distance, abs(step)) if is_met else None


def _while_less(stay: Comparison, number: int, scope: Scope) -> Affine | Constraint | None:
    first = -(1 << (stay.bits - 1)) if stay.relation.endswith("_s") else 0
    equal_too = stay.relation[1] == "e"
    sides = [_without(side, number) for side in stay.ordered()]
    if sides[0] is None or sides[1] is None:
        return None
    (low_step, low), (high_step, high) = sides[0], sides[1]
    step = low_step - high_step
    least, most = scope.exact(low, first, stay.bits), scope.exact(high, first, stay.bits)
    if least is None or most is None or step <= 0 or low_step < 0 or high_step > 0:
        return None
    overshoot = step - 1 + equal_too  # the values that fail the test first are no further apart
    highest, lowest = scope.upper(most), scope.lower(least)
    if low_step and (highest is None or highest + overshoot >= first + (1 << stay.bits)):
        return None
    if high_step and (lowest is None or lowest - overshoot < first):
        return None
    gap = shift(add(most, least, -1), int(equal_too))
    lower, upper = scope.lower(gap), scope.upper(gap)
    if upper is not None and upper <= 0:
        return Affine()
    is_known = lower is not None and lower > -step
    return quotient(shift(gap, step - 1), step) if is_known else Constraint(shift(gap, -1))
