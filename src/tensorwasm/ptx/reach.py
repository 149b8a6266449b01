"""What an entry can reach: functions and variables, in the order of the module.

Source: PTX ISA 7 (Abstracting the ABI), 9.7.12.5 (call).
"""

from __future__ import annotations

from collections.abc import Iterator

from tensorwasm.ptx.check import module_scope
from tensorwasm.ptx.model import (
    Address,
    Arguments,
    Block,
    Directive,
    Function,
    Generic,
    Initial,
    Instruction,
    Masked,
    Module,
    Name,
    Not,
    Offset,
    Operand,
    Pair,
    Property,
    Statement,
    TargetList,
    Variable,
    Vector,
)
from tensorwasm.watch import UNLIMITED, Watch


def statements(body: tuple[Statement, ...]) -> Iterator[Statement]:
    """Yield every statement of a body, those of inner blocks in their place after the block itself."""
    waiting = [iter(body)]
    while waiting:
        for statement in waiting[-1]:
            yield statement
            if isinstance(statement, Block):
                waiting.append(iter(statement.body))
                break
        else:
            waiting.pop()


def names(operand: Operand | Initial) -> Iterator[str]:
    """Yield every name in an operand or initial value."""
    if isinstance(operand, Name):
        yield operand.name
    elif isinstance(operand, Address | Offset | Generic):
        yield from names(operand.base)
        for coordinate in operand.coordinates if isinstance(operand, Address) else ():
            yield from names(coordinate)
    elif isinstance(operand, Vector | Arguments):
        for element in operand.elements:
            yield from names(element)
    elif isinstance(operand, Pair):
        yield from names(operand.first)
        yield from names(operand.second)
    elif isinstance(operand, Not):
        yield operand.operand.name
    elif isinstance(operand, Masked):
        yield from names(operand.address)
    elif isinstance(operand, Property):
        return


def mentioned(item: Function | Variable) -> Iterator[str]:
    """Yield the names that a function's body or a variable's initializer mentions, most of them many times."""
    if isinstance(item, Variable):
        for value in item.initializer:
            yield from names(value)
        return
    for statement in statements(item.body or ()):
        if isinstance(statement, Instruction):
            for operand in statement.operands:
                if type(operand) is Name:
                    yield operand.name  # as most are
                else:
                    yield from names(operand)
        elif isinstance(statement, Variable):
            yield from mentioned(statement)
        elif isinstance(statement, TargetList):
            yield from statement.targets


def aliases(module: Module) -> dict[str, str]:
    """Return the function that each alias of a module stands for."""
    directives = (item for item in module.items if isinstance(item, Directive) and item.name == "alias")
    return {directive.arguments[0]: directive.arguments[1] for directive in directives}


def reachable(module: Module, entry: Function, watch: Watch = UNLIMITED) -> tuple[Function | Variable, ...]:
    """Return what the entry mentions, directly or through others, the entry included, in source order.

    A name that a block declares itself and the module too counts as the module's: the answer may be too large, never
    too small. A function whose address is taken counts as called, an alias as its function.

    Raises:
        InvokeTimeout: the deadline has passed.
    """
    symbols = module_scope(module, watch).symbols
    others = aliases(module)
    seen = {entry.name}
    waiting: list[Function | Variable] = [entry]
    while waiting:
        for name in set(watch.over(mentioned(waiting.pop()))):
            found = symbols.get(others.get(name, name))
            if isinstance(found, Function | Variable) and found.name not in seen:
                seen.add(found.name)
                waiting.append(found)
    return tuple(item for item in module.items if isinstance(item, Function | Variable) and item.name in seen)
