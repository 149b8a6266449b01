"""How often the instructions of a function name each register."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from tensorwasm.ptx.model import (
    Address,
    Arguments,
    Block,
    Function,
    Instruction,
    Name,
    Not,
    Offset,
    Operand,
    Pair,
    Statement,
    Vector,
)
from tensorwasm.watch import Watch


def count_names(function: Function, watch: Watch) -> Counter[str]:
    """Return how often each name occurs as an operand or guard; equal names of different scopes count together.

    Raises:
        InvokeTimeout: the deadline has passed.
    """
    return Counter(watch.over(_statement_names(function.body or ())))


def _statement_names(body: Iterable[Statement]) -> Iterator[str]:
    for statement in body:
        if isinstance(statement, Instruction):
            if statement.guard is not None:
                yield statement.guard.predicate.name
            yield from _operand_names(statement.operands)
        elif isinstance(statement, Block):
            yield from _statement_names(statement.body)


def _operand_names(operands: Iterable[Operand]) -> Iterator[str]:
    for operand in operands:
        match operand:
            case Name():
                yield operand.name
            case Address() | Offset():
                coordinates = operand.coordinates if isinstance(operand, Address) else ()
                yield from _operand_names((operand.base, *coordinates))
            case Vector() | Arguments():
                yield from _operand_names(operand.elements)
            case Pair():
                yield from _operand_names((operand.first, operand.second))
            case Not():
                yield operand.operand.name
