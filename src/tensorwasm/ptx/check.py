"""Checks that need the whole module: every name is declared, once, and used as what it is.

Registers and variables are known from their declaration to the end of their block, labels in their whole block; both
also in the blocks inside. Functions and variables of the module are known everywhere.

Source: PTX ISA 4.4 (Identifiers), 5.4 (Variables), 9.3 (Predicated Execution), 9.7.12 (bra, brx.idx, call), 11.2, 11.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from tensorwasm.ptx.declarations import MAX_REGISTERS
from tensorwasm.ptx.layout import variable_bytes
from tensorwasm.ptx.lexer import shown
from tensorwasm.ptx.model import (
    Address,
    Arguments,
    Block,
    Directive,
    Function,
    Generic,
    Guard,
    Initial,
    Instruction,
    Label,
    Masked,
    Module,
    Name,
    Not,
    Offset,
    Operand,
    Pair,
    Position,
    Statement,
    TargetList,
    Variable,
    Vector,
)
from tensorwasm.ptx.scope import Scope, fault
from tensorwasm.ptx.special import SPECIALS, VECTOR_SPECIALS
from tensorwasm.watch import UNLIMITED, Watch

_COMPONENT_INDEX: Final = {"x": 0, "y": 1, "z": 2, "w": 3, "r": 0, "g": 1, "b": 2, "a": 3}


def check(module: Module, watch: Watch = UNLIMITED) -> None:
    """Check that a module is consistent.

    Raises:
        MalformedPtx: a name is declared twice, not at all, or as something else; with its place.
        InvokeTimeout: the deadline has passed.
    """
    scope = module_scope(module, watch)
    for item in module.items:
        if isinstance(item, Variable):
            _check_initializer(scope, item)
        elif isinstance(item, Function):
            _check_function(scope, item)
        elif item.name == "alias":
            _check_alias(scope, item)


# --------------------------------------------------------------------------------------------- module scope


def module_scope(module: Module, watch: Watch = UNLIMITED) -> Scope:
    """Return the names of a module; of several declarations of one, the definition.

    Raises:
        MalformedPtx: a name is declared twice.
        InvokeTimeout: the deadline has passed.
    """
    scope = Scope(watch=watch)
    for item in watch.over(module.items):
        _declare_item(scope, item)
    return scope


def _declare_item(scope: Scope, item: Function | Variable | Directive) -> None:
    if isinstance(item, Directive):
        return
    before = scope.symbols.get(item.name)
    if before is None:
        scope.declare(item.name, item)
    elif isinstance(item, Function) and isinstance(before, Function):
        _check_redeclaration(before, item)
        if item.body is not None:
            scope.symbols[item.name] = item
    elif isinstance(item, Variable) and isinstance(before, Variable) and "extern" in item.linkage + before.linkage:
        if (item.space, item.type, item.vector) != (before.space, before.type, before.vector):
            raise fault(f"{shown(item.name)} is declared again with another type", item.position)
        if "extern" in before.linkage:
            scope.symbols[item.name] = item
    else:
        raise fault(f"{shown(item.name)} is declared twice", item.position)


def _check_redeclaration(before: Function, now: Function) -> None:
    if before.body is not None and now.body is not None:
        raise fault(f"{shown(now.name)} is defined twice", now.position)
    if before.entry != now.entry or _shape_of(before) != _shape_of(now):
        raise fault(f"{shown(now.name)} is declared again with other parameters", now.position)


def _shape_of(function: Function) -> tuple[list[tuple[str, int]], ...]:
    """Return what callers must agree on: space and size of each parameter."""
    return tuple(
        [(param.space, variable_bytes(param)) for param in each] for each in (function.params, function.returns)
    )


def _check_alias(scope: Scope, alias: Directive) -> None:
    for name in alias.arguments:
        if not isinstance(scope.find(name), Function):
            raise fault(f"{shown(name)} is no function", alias.position)


def _check_initializer(scope: Scope, variable: Variable) -> None:
    for value in variable.initializer:
        name = _initial_name(value)
        if name is not None and not isinstance(scope.find(name), Variable | Function):
            raise fault(f"{shown(name)} is not declared", variable.position)


def _initial_name(value: Initial) -> str | None:
    if isinstance(value, Masked):
        value = value.address
    if isinstance(value, Offset | Generic):
        value = value.base
    return value.name if isinstance(value, Name) else None


# ------------------------------------------------------------------------------------------------ functions


def _check_function(module: Scope, function: Function) -> None:
    scope = Scope(module)
    for param in (*function.returns, *function.params):
        scope.declare(param.name, param)
    if function.body is not None:
        registers = _check_body(scope, function.body)
        if registers > MAX_REGISTERS:
            raise fault(f"{shown(function.name)} has more than {MAX_REGISTERS} registers", function.position)


def _check_body(scope: Scope, body: tuple[Statement, ...]) -> int:
    """Check the statements of a block; return how many registers it declares."""
    scope.watch.step()  # as declaring and finding names do; the rest takes a fraction of reading it
    for statement in body:
        if isinstance(statement, Label):
            scope.declare(statement.name, statement)
        elif isinstance(statement, TargetList):
            scope.declare(statement.label, statement)
    registers = 0
    for statement in body:
        if type(statement) is Instruction:
            _check_instruction(scope, statement)
        elif isinstance(statement, Variable):
            scope.declare(statement.name, statement)
            _check_initializer(scope, statement)
            registers += statement.count or 1
        elif isinstance(statement, Block):
            registers += _check_body(Scope(scope), statement.body)
        elif isinstance(statement, TargetList):
            _check_targets(scope, statement)
    scope.close()
    return registers


def _check_targets(scope: Scope, targets: TargetList) -> None:
    kind = Function if targets.kind == "calltargets" else Label
    for name in targets.targets:
        if not isinstance(scope.find(name), kind):
            raise fault(f"{shown(name)} is no {kind.__name__.lower()} here", targets.position)


# --------------------------------------------------------------------------------------------- instructions


def _check_instruction(scope: Scope, instruction: Instruction) -> None:
    if instruction.guard is not None:
        _check_guard(scope, instruction, instruction.guard)
    check_operands = _BY_OPCODE.get(instruction.opcode)
    if check_operands is None:
        _check_values(scope, instruction.operands, instruction.position)
    else:
        check_operands(scope, instruction)


def _check_guard(scope: Scope, instruction: Instruction, guard: Guard) -> None:
    name = guard.predicate.name
    if name in scope.predicates:
        return
    register = scope.find(name)
    if not isinstance(register, Variable) or register.type != "pred":
        raise fault(f"{shown(name)} is no predicate", instruction.position)
    scope.predicates.add(name)


def _check_values(scope: Scope, operands: Iterable[Operand], position: Position) -> None:
    values = scope.values
    for operand in operands:
        if type(operand) is Name:
            if operand.name not in values or operand.component is not None:
                _check_value(scope, operand, position)
        else:
            inner = _INNER.get(type(operand))
            if inner is not None:
                _check_values(scope, inner(operand), position)


_INNER: Final[dict[type, Callable[..., Iterable[Operand]]]] = {
    Address: lambda operand: (operand.base, *operand.coordinates),
    Offset: lambda operand: (operand.base,),
    Vector: lambda operand: operand.elements,
    Arguments: lambda operand: operand.elements,
    Pair: lambda operand: (operand.first, operand.second),
    Not: lambda operand: (operand.operand,),
}


def _check_value(scope: Scope, operand: Name, position: Position) -> None:
    name = operand.name
    if name in SPECIALS:
        width = 4 if name in VECTOR_SPECIALS else 1
    elif name == "_":
        width = 1
    else:
        symbol = scope.find(name)
        if symbol is None:
            raise fault(f"{shown(name)} is not declared", position)
        if not isinstance(symbol, Variable | Function):
            raise fault(f"{shown(name)} is a label, not a value", position)
        width = symbol.vector if isinstance(symbol, Variable) else 1
    if operand.component is None:
        scope.values.add(name)
    elif width == 1 or _COMPONENT_INDEX[operand.component] >= width:
        raise fault(f"{shown(name)} has no component {operand.component}", position)


def _check_branch(scope: Scope, instruction: Instruction) -> None:
    target = instruction.operands[0] if len(instruction.operands) == 1 else None
    if not isinstance(target, Name):
        raise fault("bra takes one label", instruction.position)
    if not isinstance(scope.find(target.name), Label):
        raise fault(f"{shown(target.name)} is no label here", instruction.position)


def _check_indexed_branch(scope: Scope, instruction: Instruction) -> None:
    if len(instruction.operands) != 2 or not isinstance(instruction.operands[1], Name):
        raise fault("brx.idx takes an index and a list of labels", instruction.position)
    index, targets = instruction.operands
    _check_values(scope, (index,), instruction.position)
    _check_list(scope, targets, ("branchtargets",), instruction.position)


def _check_list(scope: Scope, operand: Operand, kinds: tuple[str, ...], position: Position) -> TargetList:
    symbol = scope.find(operand.name) if isinstance(operand, Name) else None
    if not isinstance(symbol, TargetList) or symbol.kind not in kinds:
        raise fault(f"{' or '.join(kinds)} expected", position)
    return symbol


def _check_call(scope: Scope, instruction: Instruction) -> None:
    names = [operand for operand in instruction.operands if isinstance(operand, Name)]
    lists = [operand for operand in instruction.operands if isinstance(operand, Arguments)]
    callee = names[0]
    _check_values(scope, (callee, *lists), instruction.position)
    symbol = scope.find(callee.name)
    if isinstance(symbol, Function):
        _check_arity(symbol, instruction)
    for operand in names[1:]:
        targets = _check_list(scope, operand, ("callprototype", "calltargets"), instruction.position)
        if targets.prototype is not None:
            _check_arity(targets.prototype, instruction)
    if not isinstance(symbol, Function) and len(names) == 1:
        raise fault(f"a call through {shown(callee.name)} needs a prototype or targets", instruction.position)


def _check_arity(function: Function, instruction: Instruction) -> None:
    at = next(index for index, operand in enumerate(instruction.operands) if isinstance(operand, Name))
    returns = instruction.operands[0] if at else None
    arguments = instruction.operands[at + 1] if at + 1 < len(instruction.operands) else None
    given = len(arguments.elements) if isinstance(arguments, Arguments) else 0
    taken = len(returns.elements) if isinstance(returns, Arguments) else 0
    variadic = bool(function.params) and not variable_bytes(function.params[-1])
    if given != len(function.params) and not (variadic and given >= len(function.params) - 1):
        raise fault(f"{given} arguments for {len(function.params)} parameters", instruction.position)
    if taken != len(function.returns):
        raise fault(f"{taken} results of {len(function.returns)}", instruction.position)


_BY_OPCODE: Final[dict[str, Callable[[Scope, Instruction], None]]] = {
    "bra": _check_branch,
    "brx": _check_indexed_branch,
    "call": _check_call,
}
