"""Integer sets and maps from rows of coefficients, with isl."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, TypeVar

import islpy as isl

from tensorwasm.offload.declined import Declined, DeclineReason

MAX_NUMBER: Final = 1 << 62
"""What coefficients and constants are less than, that isl takes them as they are."""

Row = tuple[int, ...]
"""The coefficients of an affine expression, and last its constant."""

Column = tuple[isl.dim_type, int]
"""A dimension that a coefficient belongs to."""

BasicT = TypeVar("BasicT", isl.BasicSet, isl.BasicMap)


@contextmanager
def limited_context(max_operations: int) -> Iterator[isl.Context]:
    """A context of isl whose errors are `Declined`, the one for too many operations among them.

    Raises:
        Declined: isl gave up.
    """
    context = isl.Context()
    context.set_max_operations(max_operations)
    try:
        yield context
        isl.Space.params_alloc(context, 0)  # fails if anything did for too many operations, whatever it returned
    except isl.Error as error:
        raise Declined(DeclineReason.TOO_LARGE, "operations on polyhedra") from error


def tuple_space(context: isl.Context, name: str, dimensions: int) -> isl.Space:
    """The space of a named tuple."""
    return isl.Space.set_alloc(context, 0, dimensions).set_tuple_name(isl.dim_type.set, name)


def constrain(
    basic: BasicT, columns: Sequence[Column], non_negative: Iterable[Row] = (), zero: Iterable[Row] = ()
) -> BasicT:
    """Add a constraint for each row, whose coefficients are those of the columns.

    Raises:
        Declined: a number is too large.
    """
    local_space = isl.LocalSpace.from_space(basic.get_space())
    for rows, allocate in ((non_negative, isl.Constraint.alloc_inequality), (zero, isl.Constraint.alloc_equality)):
        for row in rows:
            constraint = allocate(local_space)
            for (kind, position), coefficient in zip(columns, checked(row), strict=False):
                if coefficient:
                    constraint = constraint.set_coefficient_val(kind, position, coefficient)
            basic = basic.add_constraint(constraint.set_constant_val(row[-1]))
    return basic


def set_columns(count: int) -> tuple[Column, ...]:
    """The dimensions of a set."""
    return tuple((isl.dim_type.set, position) for position in range(count))


def checked(row: Row) -> Row:
    """The row itself.

    Raises:
        Declined: a number is too large.
    """
    if any(abs(number) >= MAX_NUMBER for number in row):
        raise Declined(DeclineReason.TOO_LARGE, "numbers")
    return row


def value_range(domain: isl.Set, coefficients: Row) -> tuple[int, int]:
    """The least and the greatest value of a linear expression on a set that is neither empty nor unbounded.

    Raises:
        Declined: the set is unbounded.
    """
    expression = isl.Aff.zero_on_domain(isl.LocalSpace.from_space(domain.get_space()))
    for position, coefficient in enumerate(checked(coefficients)):
        if coefficient:
            expression = expression.set_coefficient_val(isl.dim_type.in_, position, coefficient)
    least, greatest = domain.min_val(expression), domain.max_val(expression)
    if not (least.is_int() and greatest.is_int()):
        raise Declined(DeclineReason.TOO_LARGE, "a loop without a bound")
    return integer(least), integer(greatest)


def integer(value: isl.Val) -> int:
    """The number that a value is.

    Raises:
        Declined: isl has no operations left to tell.
    """
    text = value.to_str()
    if text is None:
        raise Declined(DeclineReason.TOO_LARGE, "operations on polyhedra")
    return int(text)
