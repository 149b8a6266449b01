"""Names of a module: symbol tables, special registers, and the check that each name is declared once and used as it is.

Registers and variables are visible from their declaration to the end of their block, labels in their whole block; both
also in the blocks inside. Functions and variables of the module are visible everywhere.

Source: PTX ISA 4.4 (Identifiers), 5.4 (Variables), 9.3 (Predicated Execution), 9.7.12 (bra, brx.idx, call), 10 (Special
Registers), 11.2, 11.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from tensorwasm.errors import MalformedPtx
from tensorwasm.ptx.declarations import MAX_REGISTERS
from tensorwasm.ptx.layout import variable_bytes
from tensorwasm.ptx.lexer import shown
from tensorwasm.ptx.model import (
    PARTS,
    Arguments,
    Block,
    Directive,
    Function,
    Instruction,
    Label,
    Module,
    Name,
    Operand,
    Position,
    Statement,
    TargetList,
    Variable,
    names,
)
from tensorwasm.watch import UNLIMITED, Watch

VECTOR_SPECIALS: Final = frozenset(
    f"%{name}"
    for name in ("tid", "ntid", "ctaid", "nctaid", "clusterid", "nclusterid", "cluster_ctaid", "cluster_nctaid")
)
"""Special registers with components x, y, z and w."""

_SCALAR_SPECIALS: Final = """
    laneid warpid nwarpid smid nsmid gridid is_explicit_cluster cluster_ctarank cluster_nctarank lanemask_eq lanemask_le
    lanemask_lt lanemask_ge lanemask_gt clock clock_hi clock64 globaltimer globaltimer_lo globaltimer_hi
    reserved_smem_offset_begin reserved_smem_offset_end reserved_smem_offset_cap reserved_smem_offset_0
    reserved_smem_offset_1 total_smem_size aggr_smem_size dynamic_smem_size current_graph_exec
"""
SPECIALS: Final = VECTOR_SPECIALS | {
    *(f"%{name}" for name in _SCALAR_SPECIALS.split()),
    *(f"%pm{index}{suffix}" for index in range(8) for suffix in ("", "_64")),
    *(f"%envreg{index}" for index in range(32)),
}
"""Every special register; programs may not declare these names."""

Symbol = Variable | Function | Label | TargetList | Directive
"""What a name can refer to; a directive is an ``.alias``."""

_MAX_DIGITS: Final = len(str(MAX_REGISTERS))
_DIGITS: Final = "0123456789"
_NUMBERED_SPECIALS: Final = frozenset(name.rstrip(_DIGITS) for name in SPECIALS if name[-1].isdigit())


def _splits(name: str) -> list[tuple[str, int]]:
    """Return the prefixes and register numbers that may form ``name``, the longest prefix first."""
    digits = min(_MAX_DIGITS, len(name) - len(name.rstrip(_DIGITS)), len(name) - 1)
    return [(name[:-most], int(name[-most:])) for most in range(1, digits + 1) if most == 1 or name[-most] != "0"]


def _has_member(family: Variable, digits: str) -> bool:
    """Return whether the digits are the number of a register of the family."""
    return 0 < len(digits) <= _MAX_DIGITS and (digits[0] != "0" or digits == "0") and int(digits) < (family.count or 0)


class SymbolTable:
    """The names that one block declares; they hide those of the blocks around it.

    Every look-up counts as a step of the watch, so that each method raises `InvokeTimeout` after its deadline.

    Attributes:
        symbols: declarations by name, without numbered registers.
        families: numbered registers by prefix.
        predicates: names known to be predicates here, as ``values`` are known to be values: the checks of
            instructions look each up once.
    """

    __slots__ = ("families", "parent", "predicates", "symbols", "values", "watch")

    def __init__(self, parent: SymbolTable | None = None, watch: Watch = UNLIMITED) -> None:
        """Begin an empty table inside ``parent``, whose watch it takes."""
        self.parent = parent
        self.symbols: dict[str, Symbol] = {}
        self.families: dict[str, Variable] = {}
        self.predicates: set[str] = set()
        self.values: set[str] = set()
        self.watch: Watch = watch if parent is None else parent.watch

    def declare(self, name: str, symbol: Symbol) -> None:
        """Add a name; raise `MalformedPtx` if the block declares it already, or if it is a special register."""
        self.watch.step()
        if name in SPECIALS:
            raise MalformedPtx(f"{name} is a special register", *symbol.position)
        if isinstance(symbol, Variable) and symbol.count is not None:
            if name in self.families:
                raise MalformedPtx(f"{shown(name + '<...>')} is declared twice", *symbol.position)
            self.families[name] = symbol
            self.values.clear()
            self.predicates.clear()
            return
        if name in self.symbols:
            raise MalformedPtx(f"{shown(name)} is declared twice", *symbol.position)
        self.symbols[name] = symbol
        self.values.discard(name)
        self.predicates.discard(name)

    def find(self, name: str) -> Symbol | None:
        """Return what ``name`` refers to here, or None."""
        found = self.locate(name)
        return found and found[1]

    def locate(self, name: str) -> tuple[SymbolTable, Symbol] | None:
        """Return the table that declares ``name`` and its symbol, or None."""
        self.watch.step()
        stem = name.rstrip(_DIGITS)
        splits: list[tuple[str, int]] | None = None
        table: SymbolTable | None = self
        while table is not None:
            symbol = table.symbols.get(name)
            if symbol is None and table.families:
                # Compilers write names whose digits are all the number. `close` refuses a block with a second reading.
                symbol = table.families.get(stem)
                if symbol is None or not _has_member(symbol, name[len(stem) :]):
                    splits = _splits(name) if splits is None else splits
                    symbol = table.member(splits)
            if symbol is not None:
                return table, symbol
            table = table.parent
        return None

    def member(self, splits: list[tuple[str, int]]) -> Variable | None:
        """Return the family of this block that one of ``splits`` belongs to, or None."""
        for prefix, number in splits:
            family = self.families.get(prefix)
            if family is not None and number < (family.count or 0):
                return family
        return None

    def close(self) -> None:
        """End the block; raise `MalformedPtx` if a numbered register is also declared in another way."""
        if not self.families:
            return
        for name, symbol in self.watch.over(self.symbols.items()):
            if self.member(_splits(name)) is not None:
                raise MalformedPtx(f"{shown(name)} is declared twice, once by its number", *symbol.position)
        for prefix, family in self.families.items():
            # Of the names that prefix<n> declares, prefix0 has the smallest number under any shorter prefix.
            if prefix in _NUMBERED_SPECIALS or self.member(_splits(prefix + "0")[1:]) is not None:
                raise MalformedPtx(f"{shown(prefix + '<...>')} declares names that are taken", *family.position)


# --------------------------------------------------------------------------------------------------- checks of a module

_COMPONENT_INDEX: Final = {"x": 0, "y": 1, "z": 2, "w": 3, "r": 0, "g": 1, "b": 2, "a": 3}


def check(module: Module, watch: Watch = UNLIMITED) -> None:
    """Check that a module is consistent.

    Raises:
        MalformedPtx: a name is declared twice, not at all, or as something else; with its position.
        InvokeTimeout: the deadline has passed.
    """
    table = module_symbols(module, watch)
    for item in module.items:
        match item:
            case Variable():
                _check_initializer(table, item)
            case Function():
                _check_function(table, item)
            case Directive(name="alias"):
                _check_names(table, item.arguments, Function, "is not a function", item.position)


def module_symbols(module: Module, watch: Watch = UNLIMITED) -> SymbolTable:
    """Return the names of a module; a definition hides its declarations. Errors are those of `check`."""
    table = SymbolTable(watch=watch)
    for item in watch.over(module.items):
        if not isinstance(item, Directive):
            _declare(table, item)
    return table


def _declare(table: SymbolTable, item: Function | Variable) -> None:
    before = table.symbols.get(item.name)
    if before is None:
        table.declare(item.name, item)
    elif isinstance(item, Function) and isinstance(before, Function):
        if before.body is not None and item.body is not None:
            raise MalformedPtx(f"{shown(item.name)} is defined twice", *item.position)
        if before.entry != item.entry or _call_layout(before) != _call_layout(item):
            raise MalformedPtx(f"{shown(item.name)} is declared again with other parameters", *item.position)
        if item.body is not None:
            table.symbols[item.name] = item
    elif isinstance(item, Variable) and isinstance(before, Variable) and "extern" in item.linkage + before.linkage:
        if (item.space, item.type, item.vector) != (before.space, before.type, before.vector):
            raise MalformedPtx(f"{shown(item.name)} is declared again with another type", *item.position)
        if "extern" in before.linkage:
            table.symbols[item.name] = item
    else:
        raise MalformedPtx(f"{shown(item.name)} is declared twice", *item.position)


def _call_layout(function: Function) -> tuple[list[tuple[str, int]], ...]:
    """Return what callers rely on: space and size of each parameter."""
    return tuple(
        [(param.space, variable_bytes(param)) for param in each] for each in (function.params, function.returns)
    )


def _check_initializer(table: SymbolTable, variable: Variable) -> None:
    mentioned = (name for value in variable.initializer for name in names(value))
    _check_names(table, mentioned, (Variable, Function), "is not declared", variable.position)


def _check_names(
    table: SymbolTable, mentioned: Iterable[str], kinds: type | tuple[type, ...], fault: str, position: Position
) -> None:
    for name in mentioned:
        if not isinstance(table.find(name), kinds):
            raise MalformedPtx(f"{shown(name)} {fault}", *position)


# ------------------------------------------------------------------------------------------------ functions


def _check_function(module: SymbolTable, function: Function) -> None:
    table = SymbolTable(module)
    for param in (*function.returns, *function.params):
        table.declare(param.name, param)
    if _check_body(table, function.body or ()) > MAX_REGISTERS:
        raise MalformedPtx(f"{shown(function.name)} has more than {MAX_REGISTERS} registers", *function.position)


def _check_body(table: SymbolTable, body: tuple[Statement, ...]) -> int:
    """Check the statements of a block; return the number of registers that it declares."""
    table.watch.step()  # declaring and finding names are steps, too; the rest takes a fraction of parsing it
    for statement in body:
        match statement:
            case Label():
                table.declare(statement.name, statement)
            case TargetList():
                table.declare(statement.label, statement)
    registers = 0
    for statement in body:
        if type(statement) is Instruction:  # as most are
            _check_instruction(table, statement)
            continue
        match statement:
            case Variable():
                table.declare(statement.name, statement)
                _check_initializer(table, statement)
                registers += statement.count or 1
            case Block():
                registers += _check_body(SymbolTable(table), statement.body)
            case TargetList(kind="calltargets"):
                _check_names(table, statement.targets, Function, "is not a function here", statement.position)
            case TargetList():
                _check_names(table, statement.targets, Label, "is not a label here", statement.position)
    table.close()
    return registers


# --------------------------------------------------------------------------------------------- instructions


def _check_instruction(table: SymbolTable, instruction: Instruction) -> None:
    guard = instruction.guard
    if guard is not None and guard.predicate.name not in table.predicates:
        name = guard.predicate.name
        register = table.find(name)
        if not isinstance(register, Variable) or register.type != "pred":
            raise MalformedPtx(f"{shown(name)} is not a predicate", *instruction.position)
        table.predicates.add(name)
    check_operands = _BY_OPCODE.get(instruction.opcode)
    if check_operands is None:
        _check_values(table, instruction.operands, instruction.position)
    else:
        check_operands(table, instruction)


def _check_values(table: SymbolTable, operands: Iterable[Operand], position: Position) -> None:
    values = table.values
    for operand in operands:
        if type(operand) is Name:
            if operand.name not in values or operand.component is not None:
                _check_value(table, operand, position)
        else:
            parts = PARTS.get(type(operand))
            if parts is not None:
                _check_values(table, parts(operand), position)


def _check_value(table: SymbolTable, operand: Name, position: Position) -> None:
    name = operand.name
    width = 1
    if name in SPECIALS:
        width = 4 if name in VECTOR_SPECIALS else 1
    elif name != "_":
        symbol = table.find(name)
        if symbol is None:
            raise MalformedPtx(f"{shown(name)} is not declared", *position)
        if isinstance(symbol, Variable):
            width = symbol.vector
        elif not isinstance(symbol, Function):
            raise MalformedPtx(f"{shown(name)} is a label, not a value", *position)
    if operand.component is None:
        table.values.add(name)
    elif width == 1 or _COMPONENT_INDEX[operand.component] >= width:
        raise MalformedPtx(f"{shown(name)} has no component {operand.component}", *position)


def _check_branch(table: SymbolTable, instruction: Instruction) -> None:
    target = instruction.operands[0] if len(instruction.operands) == 1 else None
    if not isinstance(target, Name):
        raise MalformedPtx("bra takes one label", *instruction.position)
    if not isinstance(table.find(target.name), Label):
        raise MalformedPtx(f"{shown(target.name)} is not a label here", *instruction.position)


def _check_indexed_branch(table: SymbolTable, instruction: Instruction) -> None:
    if len(instruction.operands) != 2 or not isinstance(instruction.operands[1], Name):
        raise MalformedPtx("brx.idx takes an index and a list of labels", *instruction.position)
    index, targets = instruction.operands
    _check_values(table, (index,), instruction.position)
    _find_list(table, targets, ("branchtargets",), instruction.position)


def _find_list(table: SymbolTable, operand: Operand, kinds: tuple[str, ...], position: Position) -> TargetList:
    symbol = table.find(operand.name) if isinstance(operand, Name) else None
    if not isinstance(symbol, TargetList) or symbol.kind not in kinds:
        raise MalformedPtx(f"{' or '.join(kinds)} expected", *position)
    return symbol


def _check_call(table: SymbolTable, instruction: Instruction) -> None:
    callee, *others = [operand for operand in instruction.operands if isinstance(operand, Name)]
    lists = [operand for operand in instruction.operands if isinstance(operand, Arguments)]
    _check_values(table, (callee, *lists), instruction.position)
    symbol = table.find(callee.name)
    if isinstance(symbol, Function):
        _check_arity(symbol, instruction)
    elif not others:
        raise MalformedPtx(f"a call through {shown(callee.name)} needs a prototype or targets", *instruction.position)
    for operand in others:
        targets = _find_list(table, operand, ("callprototype", "calltargets"), instruction.position)
        if targets.prototype is not None:
            _check_arity(targets.prototype, instruction)


def _check_arity(function: Function, instruction: Instruction) -> None:
    _, taken, given = split_call(instruction)
    variadic = bool(function.params) and not variable_bytes(function.params[-1])
    if len(given) != len(function.params) and not (variadic and len(given) >= len(function.params) - 1):
        raise MalformedPtx(f"{len(given)} arguments for {len(function.params)} parameters", *instruction.position)
    if len(taken) != len(function.returns):
        raise MalformedPtx(f"{len(taken)} results of {len(function.returns)}", *instruction.position)


def split_call(call: Instruction) -> tuple[int, tuple[Operand, ...], tuple[Operand, ...]]:
    """Return the index of the callee in a call's operands, where its results go, and its arguments."""
    callee = next(index for index, operand in enumerate(call.operands) if isinstance(operand, Name))
    taken, given = (
        operands[0].elements if operands and isinstance(operands[0], Arguments) else ()
        for operands in (call.operands[:callee], call.operands[callee + 1 :])
    )
    return callee, taken, given


_BY_OPCODE: Final[dict[str, Callable[[SymbolTable, Instruction], None]]] = {
    "bra": _check_branch,
    "brx": _check_indexed_branch,
    "call": _check_call,
}
