"""Integer expressions as linear forms: two addresses are equal, or a fixed distance apart, if their forms say so."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import lcm
from typing import Final

from tensorwasm.offload.declined import Declined, DeclineReason
from tensorwasm.offload.nest import Affine, Floor
from tensorwasm.offload.program import Compute, Expression, For

Atom = str | Compute
"""A variable, or an operation that is not linear."""

MAX_DEPTH: Final = 100
"""Of expressions in expressions, and of blocks in blocks."""


@dataclass(frozen=True, slots=True)
class Linear:
    """``constant`` plus each atom times its coefficient, which is not 0."""

    constant: int
    terms: frozenset[tuple[Atom, int]] = frozenset()

    def coefficient(self, atom: Atom) -> int:
        """Return the coefficient of an atom, 0 if it is not in the form."""
        return dict(self.terms).get(atom, 0)

    def mentions(self, variable: str) -> bool:
        """Return whether the value may depend on a variable."""
        return any(mentions(atom, variable) for atom, _ in self.terms)

    def stride(self, variable: str) -> int | None:
        """Return what the value grows by when a variable grows by 1; None if that is not a constant."""
        if any(isinstance(atom, Compute) and mentions(atom, variable) for atom, _ in self.terms):
            return None
        return self.coefficient(variable)


def weighted(parts: Iterable[tuple[Linear, int]]) -> Linear:
    """Return the sum of forms, each times a factor."""
    constant = 0
    terms: dict[Atom, int] = {}
    for form, factor in parts:
        constant += form.constant * factor
        for atom, coefficient in form.terms:
            terms[atom] = terms.get(atom, 0) + coefficient * factor
    return Linear(constant, frozenset((atom, coefficient) for atom, coefficient in terms.items() if coefficient))


def linear(expression: Expression, depth: int = 0) -> Linear:
    """Return the form of an expression.

    Raises:
        Declined: it is too deep.
    """
    if isinstance(expression, int):
        return Linear(expression)
    if isinstance(expression, str):
        return Linear(0, frozenset({(expression, 1)}))
    if depth > MAX_DEPTH:
        raise Declined(DeclineReason.TOO_LARGE, f"an expression has more than {MAX_DEPTH} levels")
    if expression.operator not in {"add", "sub", "mul", "neg"}:
        for operand in expression.operands:
            linear(operand, depth + 1)  # for its depth
        return Linear(0, frozenset({(expression, 1)}))
    first, *others = (linear(operand, depth + 1) for operand in expression.operands)
    if expression.operator == "neg":
        return weighted([(first, -1)])
    for other in others:
        if expression.operator != "mul":
            first = weighted([(first, 1), (other, 1 if expression.operator == "add" else -1)])
        elif not other.terms:
            first = weighted([(first, other.constant)])
        elif not first.terms:
            first = weighted([(other, first.constant)])
        else:
            return Linear(0, frozenset({(expression, 1)}))
    return first


def scaled(form: Linear, factor: int | str) -> Linear:
    """Return a form times a number or a variable."""
    if isinstance(factor, int):
        return weighted([(form, factor)])
    terms = {(Compute("mul", (atom, factor)), coefficient) for atom, coefficient in form.terms}
    return Linear(0, frozenset(terms | ({(factor, form.constant)} if form.constant else set())))


def affine_form(affine: Affine, counters: Mapping[int, Linear], depth: int = 0) -> Linear:
    """Return the form of an affine expression for values of the counters in it."""
    if depth > MAX_DEPTH:
        raise Declined(DeclineReason.TOO_LARGE, f"an address has more than {MAX_DEPTH} levels")
    parts = [(Linear(affine.constant), 1)]
    for term, coefficient in affine.terms:
        if isinstance(term, Floor):
            inner = expression_of(affine_form(term.value, counters, depth + 1))
            parts.append((linear(Compute("floor_div", (inner, term.divisor))), coefficient))
        else:
            parts.append((counters[term], coefficient))
    return weighted(parts)


def expression_of(form: Linear) -> Expression:
    """Return a form as an expression; equal forms give equal ones."""
    total: Expression = form.constant
    for atom, coefficient in sorted(form.terms, key=repr):
        total = Compute("add", (total, Compute("mul", (atom, coefficient))))
    return total


def mentions(expression: Expression, variable: str) -> bool:
    """Return whether a variable is in an expression."""
    if isinstance(expression, Compute):
        return any(mentions(operand, variable) for operand in expression.operands)
    return expression == variable


def evaluated(expression: Expression, value_of: Callable[[str], tuple[int, int]]) -> tuple[int, int]:
    """Return bounds of an expression, from those of its variables."""
    if isinstance(expression, int):
        return expression, expression
    if isinstance(expression, str):
        return value_of(expression)
    return _INTERVALS[expression.operator]([evaluated(operand, value_of) for operand in expression.operands])


_Interval = tuple[int, int]


def _sum(parts: list[_Interval]) -> _Interval:
    return sum(low for low, _ in parts), sum(high for _, high in parts)


def _negated(parts: list[_Interval]) -> _Interval:
    return -parts[0][1], -parts[0][0]


def _product(parts: list[_Interval]) -> _Interval:
    result = 1, 1
    for part in parts:
        ends = [a * b for a in result for b in part]
        result = min(ends), max(ends)
    return result


def _remainder(parts: list[_Interval]) -> _Interval:
    (low, high), (divisor, _) = parts
    if low // divisor == high // divisor:
        return low % divisor, high % divisor
    return 0, divisor - 1


def _difference(parts: list[_Interval]) -> _Interval:
    return _sum([parts[0], *(_negated([part]) for part in parts[1:])])


def _equal(parts: list[_Interval]) -> _Interval:
    (low, high), (least, most) = parts
    return int(low == high == least == most), int(low <= most and least <= high)


def _less(parts: list[_Interval], margin: int = 0) -> _Interval:
    (low, high), (least, most) = parts
    return int(high + margin <= least), int(low + margin <= most)


def _select(parts: list[_Interval]) -> _Interval:
    (low, high), then, otherwise = parts
    if low == high:
        return then if low else otherwise
    return min(then[0], otherwise[0]), max(then[1], otherwise[1])


_INTERVALS: Final[Mapping[str, Callable[[list[_Interval]], _Interval]]] = {
    "add": _sum,
    "sub": _difference,
    "mul": _product,
    "neg": _negated,
    "min": lambda parts: (min(low for low, _ in parts), min(high for _, high in parts)),
    "max": lambda parts: (max(low for low, _ in parts), max(high for _, high in parts)),
    "floor_div": lambda parts: (parts[0][0] // parts[1][0], parts[0][1] // parts[1][0]),
    "mod": _remainder,
    "eq": _equal,
    "le": _less,
    "lt": lambda parts: _less(parts, 1),
    "and": lambda parts: (min(low for low, _ in parts), min(high for _, high in parts)),
    "or": lambda parts: (max(low for low, _ in parts), max(high for _, high in parts)),
    "select": _select,
}


def least(form: Linear, loops: Sequence[For]) -> int | None:
    """Return a number that a form is never less than; None if none is found.

    Variables of the loops, outermost first, are replaced by their bounds, and quotients by what they are about.
    """
    if not loops:
        return _constant_least(form)
    *around, loop = loops
    coefficient = form.coefficient(loop.variable)
    if not coefficient:
        return least(form, around)
    rest = Linear(form.constant, form.terms - {(loop.variable, coefficient)})
    bounds = _options(loop.first, "max") if coefficient > 0 else _options(loop.last, "min")
    found = [least(weighted([(rest, 1), (linear(bound), coefficient)]), around) for bound in bounds]
    return max((each for each in found if each is not None), default=None)


def _options(bound: Expression, operator: str) -> Iterator[Expression]:
    """Yield bounds that are implied by one."""
    if isinstance(bound, Compute) and bound.operator == operator:
        for operand in bound.operands:
            yield from _options(operand, operator)
    else:
        yield bound


def _constant_least(form: Linear) -> int | None:
    divisors = [
        atom.operands[1] for atom, _ in form.terms if isinstance(atom, Compute) and atom.operator == "floor_div"
    ]
    scale = lcm(*[each for each in divisors if isinstance(each, int)])
    parts, slack = [(Linear(form.constant), scale)], 0
    for atom, coefficient in form.terms:
        if isinstance(atom, Compute) and atom.operator == "floor_div" and isinstance(atom.operands[1], int):
            divisor = atom.operands[1]
            factor = scale // divisor * coefficient
            parts.append((linear(atom.operands[0]), factor))  # less a remainder
            slack -= max(factor, 0) * (divisor - 1)
        else:
            parts.append((linear(atom), scale * coefficient))
    total = weighted(parts)
    return None if total.terms else -(-(total.constant + slack) // scale)
