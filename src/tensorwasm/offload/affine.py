"""Arithmetic of affine expressions: sums, multiples, quotients and substitution, each in one canonical form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import gcd
from typing import Final

from tensorwasm.offload.declined import Declined, DeclineReason
from tensorwasm.offload.nest import Affine, Floor, Term

_MAX_TERMS: Final = 24
_MAX_FLOOR_DEPTH: Final = 4

ZERO: Final = Affine()
ONE: Final = Affine(1)


def counter(number: int) -> Affine:
    """Return a counter as an expression."""
    return Affine(0, ((number, 1),))


def add(left: Affine, right: Affine, factor: int = 1) -> Affine:
    """Return ``left + factor * right``.

    Raises:
        Declined: the sum has too many terms.
    """
    if not right.terms:
        return Affine(left.constant + factor * right.constant, left.terms) if right.constant else left
    sums = dict(left.terms)
    for term, coefficient in right.terms:
        sums[term] = sums.get(term, 0) + factor * coefficient
    return _build(left.constant + factor * right.constant, sums)


def shift(value: Affine, constant: int) -> Affine:
    """Return ``value + constant``."""
    return Affine(value.constant + constant, value.terms)


def scale(value: Affine, factor: int) -> Affine:
    """Return ``factor * value``."""
    if not factor:
        return ZERO
    return Affine(value.constant * factor, tuple([(term, number * factor) for term, number in value.terms]))


def subtract(left: Affine, right: Affine) -> Affine:
    """Return ``left - right``."""
    return add(left, right, -1)


def wrap(value: Affine, bits: int) -> Affine:
    """Return an expression that is equal modulo ``2**bits``, its coefficients of least magnitude."""
    size, half = 1 << bits, 1 << (bits - 1)
    sums = {term: (number + half) % size - half for term, number in value.terms}
    return _build((value.constant + half) % size - half, sums)


def quotient(value: Affine, divisor: int) -> Affine:
    """Return ``floor(value / divisor)`` for a positive divisor.

    Raises:
        Declined: quotients are nested too deep.
    """
    whole: dict[Term, int] = {}
    rest: dict[Term, int] = {}
    for term, number in value.terms:
        nearest = (2 * number + divisor) // (2 * divisor)
        whole[term], rest[term] = nearest, number - nearest * divisor
    high, low = divmod(value.constant, divisor)
    inner = _build(low, rest)
    common = gcd(divisor, *[number for _, number in inner.terms])
    if common > 1:
        inner = Affine(inner.constant // common, tuple([(term, number // common) for term, number in inner.terms]))
        divisor //= common
    if not inner.terms or divisor == 1:
        return add(_build(high, whole), inner if divisor == 1 else Affine(inner.constant // divisor))
    if len(inner.terms) == 1 and inner.terms[0][1] == 1 and isinstance(nested := inner.terms[0][0], Floor):
        inner = shift(nested.value, inner.constant * nested.divisor)
        return add(_build(high, whole), quotient(inner, divisor * nested.divisor))
    if _floor_depth(inner) >= _MAX_FLOOR_DEPTH:
        raise Declined(DeclineReason.TOO_LARGE, "quotients of quotients")
    return add(_build(high, whole), Affine(0, ((Floor(inner, divisor), 1),)))


def substitute(value: Affine, by: Mapping[int, Affine]) -> Affine:
    """Return the value with counters replaced by expressions."""
    result = Affine(value.constant)
    for term, number in value.terms:
        if isinstance(term, Floor):
            replaced = quotient(substitute(term.value, by), term.divisor)
        else:
            replaced = by.get(term) or counter(term)
        result = add(result, replaced, number)
    return result


def counters(value: Affine) -> Iterator[int]:
    """Yield all counters that an expression mentions, some more than once."""
    for term, _ in value.terms:
        if isinstance(term, Floor):
            yield from counters(term.value)
        else:
            yield term


def coefficient(value: Affine, term: Term) -> int:
    """Return what a term is multiplied by, 0 if it is not there."""
    return next((number for each, number in value.terms if each == term), 0)


def content(value: Affine) -> int:
    """Return the greatest common divisor of all coefficients, 0 if there is none."""
    return gcd(*[number for _, number in value.terms])


def _build(constant: int, sums: Mapping[Term, int]) -> Affine:
    terms = [(term, number) for term, number in sums.items() if number]
    if len(terms) > 1:
        if len(terms) > _MAX_TERMS:
            raise Declined(DeclineReason.TOO_LARGE, "terms of an expression")
        terms.sort(key=_term_key)
    return Affine(constant, tuple(terms))


def _term_key(item: tuple[Term, int]) -> tuple[object, ...]:
    term, number = item
    if isinstance(term, int):
        return (0, term, number)
    return (1, term.divisor, term.value.constant, len(term.value.terms), [_term_key(each) for each in term.value.terms])


def _floor_depth(value: Affine) -> int:
    return max((1 + _floor_depth(term.value) for term, _ in value.terms if isinstance(term, Floor)), default=0)
