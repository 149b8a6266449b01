"""What is known of counters at a place in a nest, and the bounds that it sets to expressions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import gcd
from typing import Final

from tensorwasm.offload.affine import add, content, counters, shift, subtract
from tensorwasm.offload.declined import Declined, DeclineReason
from tensorwasm.offload.nest import Affine, Constraint, Floor, Term

_MAX_STEPS: Final = 80
"""Substitutions that one bound may take."""

_SYMBOLS: Final = 1 << 20

_Inequality = tuple[dict[Term, int], int]
"""The sum of the terms and of the constant is at least 0."""


def symbol(number: int, bits: int) -> int:
    """Return a counter that stands for an unknown unsigned integer of 32 or 64 bits."""
    return _SYMBOLS + 2 * number + (bits == 64)


def is_symbol(term: Term) -> bool:
    """Return whether a term is one of those of `symbol`."""
    return isinstance(term, int) and term >= _SYMBOLS


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """A condition that divides a scope into so many parts."""

    parts: int


@dataclass(slots=True, eq=False)
class Effort:
    """What all bounds of one nest may cost together: constraints that are looked at."""

    left: int = 2_000_000

    def spend(self, count: int) -> None:
        """Take note of a cost.

        Raises:
            Declined: it is too much.
        """
        self.left -= count
        if self.left < 0:
            raise Declined(DeclineReason.TOO_LARGE, "bounds")


@dataclass(slots=True, eq=False)
class Scope:
    """Constraints that hold at a place, added to those of the scope around it.

    Attributes:
        effort: of this scope and all around it.
        split: the condition that made this scope a part of its parent; None if it is all of it, as in a loop's body.
    """

    parent: Scope | None = None
    constraints: tuple[Constraint, ...] = ()
    split: Split | None = None
    effort: Effort = field(init=False)
    _system: list[_Inequality] | None = field(default=None, init=False)
    _uppers: dict[Affine, int | None] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.effort = Effort() if self.parent is None else self.parent.effort

    def chain(self) -> Iterator[Scope]:
        """Yield this scope and those around it."""
        scope: Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.parent

    def upper(self, value: Affine) -> int | None:
        """Return a number that the value does not exceed; None if no such number is known."""
        if not value.terms:
            return value.constant
        if value not in self._uppers:
            system = self.inequalities()
            if len(value.terms) > 1:
                system = [*system, *self._quotient_ranges(value)]
            found = _Search(system, value, self.effort).upper()
            if found is not None:
                for unit in (content(value), *self._moduli(value)):
                    residue = self.residue(value, unit)
                    found -= 0 if residue is None else (found - residue) % unit
            self._uppers[value] = found
        return self._uppers[value]

    def lower(self, value: Affine) -> int | None:
        """Return a number that the value is not less than; None if no such number is known."""
        upper = self.upper(Affine(-value.constant, tuple([(term, -number) for term, number in value.terms])))
        return None if upper is None else -upper

    def exact(self, value: Affine, first: int, bits: int) -> Affine | None:
        """Return the expression that is equal modulo ``2**bits`` and proved to lie in the range of that size."""
        lower = self.lower(value)
        if lower is None:
            return None
        value = shift(value, -((lower - first) >> bits << bits))
        upper = self.upper(value)
        return value if upper is not None and upper < first + (1 << bits) else None

    def multiples(self, value: Affine, bits: int) -> range | None:
        """Return which multiples of ``2**bits`` the value may be; None if not known."""
        lower, upper = self.lower(value), self.upper(value)
        if lower is None or upper is None:
            return None
        size, common = 1 << bits, content(value)
        found = range(-(-lower >> bits) << bits, upper + 1, size)
        if len(found) == 1 and common and (value.constant - found[0]) % common:
            return range(0)
        return found

    def equal(self, left: Affine, right: Affine, bits: int) -> bool:
        """Return whether two expressions are proved to be equal modulo ``2**bits``."""
        difference = subtract(left, right)
        if not difference.terms:
            return not difference.constant % (1 << bits)
        upper = self.upper(difference)
        return upper is not None and upper == self.lower(difference) and not upper % (1 << bits)

    def residue(self, value: Affine, unit: int) -> int | None:
        """Return the value modulo a number; None if it is not known."""
        for factor, known in ((0, Affine()), *[(each, known) for known in self._congruent(unit) for each in (1, -1)]):
            rest = add(value, known, factor)
            if not content(rest) % unit:
                return rest.constant % unit
        return None

    def _moduli(self, value: Affine) -> set[int]:
        """Return by which numbers an expression may have a known remainder, because of equalities with quotients."""
        own = gcd(*[number for term, number in value.terms if isinstance(term, Floor)])
        moduli = set()
        for scope in self.chain():
            for constraint in scope.constraints:
                if constraint.equality:
                    modulus = gcd(own, *[number for term, number in constraint.value.terms if isinstance(term, Floor)])
                    if modulus > 1:
                        moduli.add(modulus)
        return moduli

    def _congruent(self, unit: int) -> Iterator[Affine]:
        """Yield expressions that are 0 modulo a number, because of an equality with quotients."""
        for scope in self.chain():
            for constraint in scope.constraints:
                if constraint.equality:
                    terms = [item for item in constraint.value.terms if isinstance(item[0], int)]
                    if all(item in terms or not item[1] % unit for item in constraint.value.terms):
                        yield Affine(constraint.value.constant, tuple(terms))

    def _quotient_ranges(self, value: Affine) -> Iterator[_Inequality]:
        for term, _ in value.terms:
            if isinstance(term, Floor):
                alone = Affine(0, ((term, 1),))
                upper, lower = self.upper(alone), self.lower(alone)
                if upper is not None:
                    yield {term: -1}, upper
                if lower is not None:
                    yield {term: 1}, -lower

    def empty(self) -> bool:
        """Return whether a constraint of its own is proved not to hold within those of the scopes around it."""
        around = self.parent or Scope()
        for constraint in self.constraints:
            upper, lower = around.upper(constraint.value), around.lower(constraint.value)
            if (upper is not None and upper < 0) or (constraint.equality and lower is not None and lower > 0):
                return True
        return False

    def inequalities(self) -> list[_Inequality]:
        """Return all constraints, and what holds of their quotients."""
        if self._system is None:
            self._system = [] if self.parent is None else list(self.parent.inequalities())
            for constraint in self.constraints:
                self._system.extend(_split_equality(constraint))
        return self._system


def _split_equality(constraint: Constraint) -> Iterator[_Inequality]:
    terms = dict(constraint.value.terms)
    yield terms, constraint.value.constant
    if constraint.equality:
        yield {term: -number for term, number in terms.items()}, -constraint.value.constant
    yield from _definitions(constraint.value)


def _definitions(value: Affine) -> Iterator[_Inequality]:
    """Yield what holds of the quotients in an expression."""
    for term, _ in value.terms:
        if isinstance(term, Floor):
            rest = add(term.value, Affine(0, ((term, 1),)), -term.divisor)
            yield dict(rest.terms), rest.constant
            yield {each: -number for each, number in rest.terms}, term.divisor - 1 - rest.constant
            yield from _definitions(term.value)


def _rank(term: Term) -> float:
    """Order terms so that inner counters, whose bounds are made of outer ones, are eliminated first."""
    if isinstance(term, Floor):
        return max([_rank(each) for each, _ in term.value.terms]) + 0.001
    return -1 if is_symbol(term) else term


class _Search:
    """Replaces the terms of an expression by their bounds, innermost first; of several bounds the best one counts."""

    def __init__(self, system: list[_Inequality], value: Affine, effort: Effort) -> None:
        effort.spend(len(system))
        symbols = [each for each in counters(value) if is_symbol(each)]
        symbols += [each for terms, _ in system for each in terms if isinstance(each, int) and is_symbol(each)]
        self.system = [*system, *_definitions(value), *[each for name in symbols for each in _symbol_range(name)]]
        self.value = value
        self.effort = effort
        self.steps = _MAX_STEPS

    def upper(self) -> int | None:
        return self._upper(dict(self.value.terms), self.value.constant, 1, frozenset())

    def _upper(self, terms: dict[Term, int], constant: int, divisor: int, gone: frozenset[Term]) -> int | None:
        if not terms:
            return constant // divisor
        chosen = max(terms, key=_rank)
        number = terms[chosen]
        gone |= {chosen}
        best: int | None = None
        for others, other_constant in self.system:
            weight = others.get(chosen, 0)
            if weight * number >= 0 or (len(gone) > 1 and not gone.isdisjoint(others.keys() - {chosen})):
                continue
            if not self.steps:
                break
            self.steps -= 1
            self.effort.spend(len(self.system))
            # number * chosen <= |number / weight| * (the other terms and the constant)
            factor, by = abs(number), abs(weight)
            sums = {term: by * each for term, each in terms.items() if term != chosen}
            for term, each in others.items():
                if term != chosen:
                    sums[term] = sums.get(term, 0) + factor * each
            sums = {term: each for term, each in sums.items() if each}
            found = self._upper(sums, by * constant + factor * other_constant, divisor * by, gone)
            if found is not None and (best is None or found < best):
                best = found
        return best


def _symbol_range(name: int) -> Iterator[_Inequality]:
    yield {name: 1}, 0
    yield {name: -1}, (1 << (64 if name % 2 else 32)) - 1
