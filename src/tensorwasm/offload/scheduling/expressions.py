"""Expressions and statements of isl's syntax trees as those of a program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import islpy as isl

from tensorwasm.offload.declined import Declined, DeclineReason
from tensorwasm.offload.program import Block, Compute, Execute, Expression, For, If, Operator
from tensorwasm.offload.scheduling.intervals import Interval
from tensorwasm.offload.scheduling.polyhedra import integer

MAX_NODES: Final = 20_000
"""Of the trees of a program."""

_LIMIT: Final = 1 << 62

_OPERATORS: Final[Mapping[str, Operator]] = {
    "add": "add",
    "sub": "sub",
    "mul": "mul",
    "minus": "neg",
    "min": "min",
    "max": "max",
    "div": "floor_div",  # without a remainder
    "fdiv_q": "floor_div",
    "pdiv_q": "floor_div",  # of a number that is not negative
    "pdiv_r": "mod",
    "zdiv_r": "mod",  # compared with 0 only
    "eq": "eq",
    "le": "le",
    "lt": "lt",
    "and_": "and",
    "and_then": "and",
    "or_": "or",
    "or_else": "or",
    "cond": "select",
    "select": "select",
}
_SWAPPED: Final[Mapping[str, Operator]] = {"ge": "le", "gt": "lt"}


@dataclass(frozen=True, slots=True)
class Bounded:
    """An expression and the values that it may have."""

    expression: Expression
    interval: Interval


class NodeBudget:
    """How many nodes of trees may still be read."""

    def __init__(self) -> None:
        self._left = MAX_NODES

    def spend(self) -> None:
        """Count a node.

        Raises:
            Declined: there are too many.
        """
        self._left -= 1
        if self._left < 0:
            raise Declined(DeclineReason.TOO_LARGE, "code")


def compute(operator: Operator, *operands: Bounded) -> Bounded:
    """An operator applied to operands.

    Raises:
        Declined: the result may exceed 64 bits.
    """
    interval = _RESULTS[operator](*(each.interval for each in operands))
    if max(map(abs, interval)) >= _LIMIT:
        raise Declined(DeclineReason.TOO_LARGE, "numbers")
    return Bounded(Compute(operator, tuple(each.expression for each in operands)), interval)


def number(value: int) -> Bounded:
    """A constant.

    Raises:
        Declined: it exceeds 64 bits.
    """
    if abs(value) >= _LIMIT:
        raise Declined(DeclineReason.TOO_LARGE, "numbers")
    return Bounded(value, (value, value))


def plus(value: Bounded, constant: int) -> Bounded:
    """A value plus a constant."""
    if isinstance(value.expression, int):
        return number(value.expression + constant)
    return value if constant == 0 else compute("add", value, number(constant))


def _product(left: Interval, right: Interval) -> Interval:
    products = [a * b for a in left for b in right]
    return min(products), max(products)


def _quotient(dividend: Interval, divisor: Interval) -> Interval:
    return dividend[0] // divisor[0], dividend[1] // divisor[0]


def _truth(*_: Interval) -> Interval:
    return 0, 1


_RESULTS: Final[Mapping[Operator, Callable[..., Interval]]] = {
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "mul": _product,
    "neg": lambda a: (-a[1], -a[0]),
    "min": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "max": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    "floor_div": _quotient,
    "mod": lambda _, divisor: (0, divisor[0] - 1),
    "eq": _truth,
    "le": _truth,
    "lt": _truth,
    "and": _truth,
    "or": _truth,
    "select": lambda _, a, b: (min(a[0], b[0]), max(a[1], b[1])),
}


class TreeReader:
    """Reads syntax trees whose variables have known intervals."""

    def __init__(self, budget: NodeBudget, intervals: Mapping[str, Interval]) -> None:
        self._budget = budget
        self._intervals = dict(intervals)

    def read(self, expression: isl.AstExpr) -> Bounded:
        """An expression.

        Raises:
            Declined: its values may exceed 64 bits, or it has an operation that programs lack.
        """
        self._budget.spend()
        kind = isl.ast_expr_type(expression.get_type()).name
        if kind == "int":
            return number(integer(expression.get_val()))
        if kind == "id":
            name = expression.get_id().get_name()
            return Bounded(name, self._intervals[name])
        operation = operation_of(expression)
        operands = [self.read(expression.get_op_arg(index)) for index in range(expression.get_op_n_arg())]
        if operation in _SWAPPED:
            return compute(_SWAPPED[operation], *reversed(operands))
        operator = _OPERATORS.get(operation)
        if operator is None or (operator in {"floor_div", "mod"} and not _is_positive(operands[1])):
            raise Declined(DeclineReason.TOO_LARGE, "code")
        if len(operands) > 2 and operator != "select":  # minima and maxima of several
            while len(operands) > 1:
                operands[:2] = [compute(operator, *operands[:2])]
            return operands[0]
        return compute(operator, *operands)

    def bounds(self, loop: isl.AstNode) -> tuple[str, Bounded, Bounded, int]:
        """The variable, first and last value and step of a loop; the variable is known from then on."""
        variable = loop.for_get_iterator().get_id().get_name()
        first = self.read(loop.for_get_init())
        if loop.for_is_degenerate():
            last, step = first, 1
        else:
            condition = loop.for_get_cond()
            strict = operation_of(condition) == "lt"
            if not strict and operation_of(condition) != "le":
                raise Declined(DeclineReason.TOO_LARGE, "code")
            last = plus(self.read(condition.get_op_arg(1)), -strict)
            step = integer(loop.for_get_inc().get_val())
        self.define(variable, first, last)
        return variable, first, last, step

    def define(self, variable: str, first: Bounded, last: Bounded) -> None:
        """Make a variable known."""
        least, greatest = first.interval[0], max(first.interval[0], last.interval[1])
        self._intervals[variable] = (least, greatest)

    @property
    def intervals(self) -> Mapping[str, Interval]:
        """Of all variables."""
        return self._intervals

    def block(self, node: isl.AstNode) -> Block:
        """The loops, conditions and executions of a tree."""
        self._budget.spend()
        kind = kind_of(node)
        if kind == "block":
            children = node.block_get_children()
            return tuple(each for index in range(children.n_ast_node()) for each in self.block(children.get_at(index)))
        if kind == "for_":
            variable, first, last, step = self.bounds(node)
            return (For(variable, first.expression, last.expression, step, self.block(node.for_get_body())),)
        if kind == "if_":
            condition = self.read(node.if_get_cond()).expression
            otherwise = self.block(node.if_get_else_node()) if node.if_has_else_node() else ()
            return (If(condition, self.block(node.if_get_then_node()), otherwise),)
        call = node.user_get_expr()
        counters = (self.read(call.get_op_arg(index)).expression for index in range(1, call.get_op_n_arg()))
        return (Execute(int(call.get_op_arg(0).get_id().get_name()[1:]), tuple(counters)),)


def kind_of(node: isl.AstNode) -> str:
    """``block``, ``for_``, ``if_`` or ``user``."""
    return isl.ast_node_type(node.get_type()).name


def operation_of(expression: isl.AstExpr) -> str:
    """The name of an operation."""
    return isl.ast_expr_op_type(expression.get_op_type()).name


def _is_positive(operand: Bounded) -> bool:
    return isinstance(operand.expression, int) and operand.expression > 0
