"""What an entry can reach: functions and variables, in the order of the module.

Source: PTX ISA 7 (Abstracting the ABI), 9.7.12.5 (call).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tensorwasm.errors import InvalidKernel, UnsupportedPtx
from tensorwasm.ptx.check import module_scope
from tensorwasm.ptx.lexer import shown
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
    Position,
    Property,
    Statement,
    TargetList,
    Variable,
    Vector,
)
from tensorwasm.values import NEVER, Deadline
from tensorwasm.watch import UNLIMITED, Watch

_NAMES_SHOWN: Final = 10
_PRINTER: Final = Name("vprintf")
_NAMES_OF_LINES: Final = ".debug_str"
"""The section whose labels ``.loc`` names."""


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
    too small. A function whose address is taken counts as called, an alias as itself and its function.

    Raises:
        InvokeTimeout: the deadline has passed.
    """
    symbols = module_scope(module, watch).symbols
    others = aliases(module)
    seen = {entry.name}
    waiting: list[Function | Variable] = [entry]
    while waiting:
        for name in set(watch.over(mentioned(waiting.pop()))):
            for each in {name, others.get(name, name)}:
                found = symbols.get(each)
                if isinstance(found, Function | Variable) and found.name not in seen:
                    seen.add(found.name)
                    waiting.append(found)
    return tuple(item for item in module.items if isinstance(item, Function | Variable) and item.name in seen)


def kernel(module: Module, entry: str) -> Function:
    """Return a kernel that has a body.

    Raises:
        InvalidKernel: no kernel of that name has one; the message names some that do.
    """
    function = module.entry(entry)
    if function is not None:
        return function
    names = [function.name for function in module.functions() if function.entry and function.body is not None]
    listed = ", ".join(shown(name) for name in names[:_NAMES_SHOWN]) or "none"
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    raise InvalidKernel(f"no kernel {shown(entry)}; the module has {listed}{more}")


def printing(module: Module) -> Position | None:
    """Return where a function of a module first calls ``vprintf``, None if none does."""
    for function in module.functions():
        for statement in statements(function.body or ()):
            if isinstance(statement, Instruction) and statement.opcode == "call" and _PRINTER in statement.operands:
                return statement.position
    return None


def require_understood(function: Function) -> None:
    """Refuse a function that the parser did not understand.

    Raises:
        UnsupportedPtx: it did not; with the reason and the line.
    """
    refusal = function.refusal
    if refusal is not None:
        raise UnsupportedPtx(f"{function.name}: {refusal.message}", refusal.position.line, refusal.position.column)


def extract(module: Module, entry: str, deadline: Deadline = NEVER) -> Module:
    """Return a module with one kernel and what it reaches: functions, variables, and the names of source lines.

    What else the module holds is left out, understood or not. Debugging data, which describes the whole module, is too.

    Args:
        module: consistent, as ``parse`` returns it.
        entry: name of the kernel.
        deadline: when to give up.

    Raises:
        InvalidKernel: no kernel of that name has a body.
        UnsupportedPtx: the kernel reaches a function that is refused, itself perhaps.
        InvokeTimeout: the deadline passed.
    """
    watch = Watch(deadline, "while the kernel was cut out of its module")
    reached = reachable(module, kernel(module, entry), watch)
    kept = {item.name for item in reached}
    for item in reached:
        if isinstance(item, Function):
            require_understood(item)
    items = tuple(item for item in watch.over(module.items) if _belongs(item, kept))
    target = tuple(word for word in module.target if word != "debug")  # which promises the data that was left out
    return Module(module.version, target, module.address_size, items)


def _belongs(item: Function | Variable | Directive, kept: set[str]) -> bool:
    if not isinstance(item, Directive):
        return item.name in kept
    if item.name == "section":
        return item.arguments[0] == _NAMES_OF_LINES
    return item.name != "alias" or item.arguments[0] in kept
