"""Limits of linear forms in a kernel, from the bounds of its parallel loops."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import lcm

from tensorwasm.offload.codegen.linear import Linear, linear, weighted
from tensorwasm.offload.program import Compute, Expression, For


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
