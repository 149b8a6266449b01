"""Bounds of integer variables that one linear inequality implies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

Interval = tuple[int, int]
"""The least and the greatest value."""

ROUNDS: Final = 3
"""In one round the bounds of each variable narrow those of all others; more rounds seldom help."""


def narrowed(coefficients: Sequence[int], variables: Sequence[Interval], total: Interval) -> list[Interval] | None:
    """Narrower bounds of the variables, whose sum with coefficients is in ``total``; None if there is no solution."""
    bounds = list(variables)
    for _ in range(ROUNDS):
        if any(low > high for low, high in bounds):
            return None
        terms = [_scaled(factor, interval) for factor, interval in zip(coefficients, bounds, strict=True)]
        least, greatest = sum(low for low, _ in terms), sum(high for _, high in terms)
        if least > total[1] or greatest < total[0]:
            return None
        before = bounds[:]
        for index, factor in enumerate(coefficients):
            if factor:
                low, high = terms[index]
                bounds[index] = _divided(
                    factor, (total[0] - (greatest - high), total[1] - (least - low)), bounds[index]
                )
        if bounds == before:
            break
    return None if any(low > high for low, high in bounds) else bounds


def _scaled(factor: int, interval: Interval) -> Interval:
    low, high = interval
    return (factor * low, factor * high) if factor >= 0 else (factor * high, factor * low)


def _divided(factor: int, product: Interval, interval: Interval) -> Interval:
    """The part of an interval whose product with a factor is within bounds."""
    low, high = product if factor > 0 else (-product[1], -product[0])
    return max(interval[0], -(-low // abs(factor))), min(interval[1], high // abs(factor))
