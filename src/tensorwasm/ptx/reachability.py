"""What a kernel can reach: functions, variables, and among them the variables that it may write.

Source: PTX ISA 5.1.4 (Global State Space), 6.4 (Using Addresses, Arrays, and Vectors), 7 (Abstracting the ABI),
9.7.9 (Data Movement), 9.7.12.5 (call).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final

from tensorwasm.errors import InvalidKernel, UnsupportedPtx
from tensorwasm.ptx.lexer import shown
from tensorwasm.ptx.model import (
    Block,
    Directive,
    Function,
    Instruction,
    Module,
    Name,
    Position,
    Statement,
    TargetList,
    Variable,
    names,
)
from tensorwasm.ptx.symbols import module_symbols
from tensorwasm.values import NEVER, Deadline
from tensorwasm.watch import UNLIMITED, Watch

_NAMES_SHOWN: Final = 10
_PRINTF: Final = Name("vprintf")
_LINE_NAMES: Final = ".debug_str"
"""The section whose labels ``.loc`` names."""

_MOVES: Final = frozenset(
    {"add", "and", "cvt", "cvta", "mad", "max", "min", "mov", "mul", "not", "or", "selp", "shl", "shr", "sub", "xor"}
)
"""Opcodes whose first operand can hold an address, or a part of one, only if another operand does."""
_LOADS: Final = frozenset({"isspacep", "ld", "ldu", "prefetch", "prefetchu", "setp"})
"""Opcodes that only read what is at an address, or compare it."""


def statements(body: tuple[Statement, ...]) -> Iterator[Statement]:
    """Yield every statement of a body; a block comes before the statements inside it."""
    waiting = [iter(body)]
    while waiting:
        for statement in waiting[-1]:
            yield statement
            if isinstance(statement, Block):
                waiting.append(iter(statement.body))
                break
        else:
            waiting.pop()


def variables(items: Iterable[Function | Variable]) -> Iterator[Variable]:
    """Yield variables of a module and those declared in bodies of its functions, in source order."""
    for item in items:
        found = (item,) if isinstance(item, Variable) else statements(item.body or ())
        yield from (each for each in found if isinstance(each, Variable))


def mentioned(item: Function | Variable) -> Iterator[str]:
    """Yield the names that a function's body or a variable's initializer mentions, most of them repeatedly."""
    for statement in (item,) if isinstance(item, Variable) else statements(item.body or ()):
        match statement:
            case Instruction():
                for operand in statement.operands:
                    if type(operand) is Name:
                        yield operand.name  # the usual case
                    else:
                        yield from names(operand)
            case Variable():
                yield from chain.from_iterable(map(names, statement.initializer))
            case TargetList():
                yield from statement.targets


def aliases(module: Module) -> dict[str, str]:
    """Return the function that each alias of a module stands for."""
    directives = (item for item in module.items if isinstance(item, Directive) and item.name == "alias")
    return {directive.arguments[0]: directive.arguments[1] for directive in directives}


def reachable(module: Module, entry: Function, watch: Watch = UNLIMITED) -> tuple[Function | Variable, ...]:
    """Return what the entry mentions, directly or through others, the entry included, in source order.

    The answer may be too large, never too small: a name that both a block and the module declare counts as the
    module's. A function whose address is taken counts as called, an alias as itself and its function.
    """
    symbols = module_symbols(module, watch).symbols
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


def find_kernel(module: Module, entry: str) -> Function:
    """Return a kernel that has a body; raise `InvalidKernel`, naming some, if none of that name has one."""
    function = module.entry(entry)
    if function is not None:
        return function
    known = [kernel.name for kernel in module.kernels()]
    listed = ", ".join(shown(name) for name in known[:_NAMES_SHOWN]) or "none"
    more = f" and {len(known) - _NAMES_SHOWN} more" if len(known) > _NAMES_SHOWN else ""
    raise InvalidKernel(f"no kernel {shown(entry)}; the module has {listed}{more}")


def find_printf(module: Module) -> Position | None:
    """Return where a function of a module first calls ``vprintf``, None if none does."""
    for statement in chain.from_iterable(statements(function.body or ()) for function in module.functions()):
        if isinstance(statement, Instruction) and statement.opcode == "call" and _PRINTF in statement.operands:
            return statement.position
    return None


def require_understood(function: Function) -> None:
    """Raise `UnsupportedPtx`, with the reason and the line, if the parser does not support a function."""
    refusal = function.refusal
    if refusal is not None:
        raise UnsupportedPtx(f"{function.name}: {refusal.message}", *refusal.position)


def extract(module: Module, entry: str, deadline: Deadline = NEVER) -> Module:
    """Return a module with one kernel and what it reaches: functions, variables, and the names of source lines.

    Everything else is left out, supported or not, also debugging data, which describes the whole module.

    Raises:
        InvalidKernel: no kernel of that name has a body.
        UnsupportedPtx: the kernel is a refused function, or reaches one.
        InvokeTimeout: the deadline passed.
    """
    watch = Watch(deadline, "while the kernel was cut out of its module")
    reached = reachable(module, find_kernel(module, entry), watch)
    kept = {item.name for item in reached}
    for item in reached:
        if isinstance(item, Function):
            require_understood(item)
    items = tuple(item for item in watch.over(module.items) if _belongs(item, kept))
    target = tuple(word for word in module.target if word != "debug")  # it promises the data that is left out
    return Module(module.version, target, module.address_size, items)


def _belongs(item: Function | Variable | Directive, kept: set[str]) -> bool:
    if not isinstance(item, Directive):
        return item.name in kept
    if item.name == "section":
        return item.arguments[0] == _LINE_NAMES
    return item.name != "alias" or item.arguments[0] in kept


# ------------------------------------------------------------------------------------------ written variables


def may_write(module: Module, entry: str, deadline: Deadline = NEVER) -> bool:
    """Return whether a kernel may write to variables of its module in global memory.

    Compilers put tables there that no kernel writes, for the reduction of an angle for instance. A variable may be
    written if its address, moved and calculated with, is used by anything but a load. False is certain, True is not:
    registers are distinguished by their names alone. Takes time proportional to the size of what the kernel reaches.

    Raises:
        InvokeTimeout: the deadline passed.
    """
    function = module.entry(entry)
    if function is None:
        return False
    watch = Watch(deadline, "while the uses of the module's variables were traced")
    reached = reachable(module, function, watch)
    found = frozenset(variable.name for variable in watch.over(variables(reached)) if variable.space == "global")
    pointed = (name for item in variables(reached) for name in mentioned(item))
    if not found.isdisjoint(watch.over(pointed)):
        return True
    return any(_leaks(item, found, watch) for item in reached if isinstance(item, Function))


def _leaks(function: Function, found: frozenset[str], watch: Watch) -> bool:
    """Return whether the address of a variable reaches an instruction that is neither a move nor a load."""
    readers: dict[str, list[Instruction]] = {}
    elsewhere: set[str] = set()
    for statement in watch.over(statements(function.body or ())):
        if not isinstance(statement, Instruction) or statement.opcode in _LOADS:
            continue
        if statement.opcode in _MOVES and statement.operands:
            for name in set(chain.from_iterable(map(names, statement.operands[1:]))):
                readers.setdefault(name, []).append(statement)
        else:
            elsewhere.update(chain.from_iterable(map(names, statement.operands)))
    seen, waiting, done = set(found), list(found), set[int]()
    while waiting:
        for instruction in watch.over(readers.pop(waiting.pop(), ())):
            if id(instruction) not in done:
                done.add(id(instruction))
                reached = set(names(instruction.operands[0])) - seen
                seen |= reached
                waiting += reached
    return not seen.isdisjoint(elsewhere)
