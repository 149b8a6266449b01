"""A function as one list of statements without scopes, its registers with the names of `tensorwasm.ptx.guarded`.

ptxas tells registers apart by other rules than the PTX ISA has (``%d01`` and ``%d1`` are one register for it where a
family ``%d<2>`` is declared), so no name of a register reaches it.

Source: PTX ISA 4.4 (Identifiers), 5.4 (Variables), 11.2.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from tensorwasm.errors import UnsupportedPtx
from tensorwasm.ptx.guard.growth import Growth
from tensorwasm.ptx.guarded import MAX_PARAM_BYTES, NOT_UNROLLED, PROGRAM_FAMILIES, RESERVED, register_bits
from tensorwasm.ptx.layout import variable_bytes
from tensorwasm.ptx.lexer import shown
from tensorwasm.ptx.model import (
    Address,
    Arguments,
    Block,
    Directive,
    Function,
    Guard,
    Instruction,
    Int,
    Label,
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
from tensorwasm.watch import Watch

_DIGITS: Final = "0123456789"


@dataclass(slots=True)
class FlatFunction:
    """A function without scopes.

    Attributes:
        registers: how many of each of `PROGRAM_FAMILIES` it uses, by their bits.
        variables: of the body in shared, local, global and constant memory.
        body: instructions, labels, lists of labels, declarations of parameters of calls, and `NOT_UNROLLED`.
        narrow: instructions of the body that the whole warp executes in the place of some of its threads.
        growth: of the kernel.
    """

    function: Function
    registers: dict[int, int] = field(default_factory=lambda: dict.fromkeys(PROGRAM_FAMILIES, 0))
    variables: list[Variable] = field(default_factory=list)
    body: list[Statement] = field(default_factory=list)
    narrow: list[Instruction] = field(default_factory=list)
    growth: Growth = field(default_factory=Growth)

    def register(self, bits: int) -> Name:
        """Return a new register."""
        number = self.registers[bits]
        self.registers[bits] = number + 1
        return Name(f"{PROGRAM_FAMILIES[bits]}{number}")


@dataclass(slots=True)
class _Scope:
    """What names of a block mean: new names of what it declares, and the bits of its registers."""

    names: dict[str, str] = field(default_factory=dict)
    singles: dict[str, int] = field(default_factory=dict)
    families: dict[str, tuple[int, int]] = field(default_factory=dict)

    def bits(self, name: str) -> int:
        """Return the bits of a register that this block declares, 0 if it declares none of that name."""
        if name in self.singles:
            return self.singles[name]
        for cut in range(len(name) - 1, 0, -1):
            if name[cut] not in _DIGITS:
                break
            bits, count = self.families.get(name[:cut], (0, 0))
            if count and (name[cut] != "0" or cut == len(name) - 1) and int(name[cut:]) < count:
                return bits
        return 0


def flatten(function: Function, growth: Growth, watch: Watch) -> FlatFunction:
    """Return a function without scopes; variables and labels of inner blocks get a suffix that makes them unique.

    Raises:
        UnsupportedPtx: it declares a name that is reserved for the guard, or registers that are vectors.
        InvokeTimeout: the watch's deadline passed.
    """
    made = _Flattener(function, watch).run()
    made.growth = growth
    return made


class _Flattener:
    def __init__(self, function: Function, watch: Watch) -> None:
        self._made = FlatFunction(function)
        self._watch = watch
        self._scopes: list[_Scope] = []
        self._taken: set[str] = set()
        self._operands: dict[Operand, Operand] = {}
        for param in (*function.params, *function.returns):
            _require_free(param.name, param.position)
            self._taken.add(param.name)
            if not function.entry:
                _require_small(param)

    def run(self) -> FlatFunction:
        """Flatten the function."""
        self._block(self._made.function.body or ())
        return self._made

    def _block(self, body: tuple[Statement, ...]) -> None:
        self._scopes.append(_Scope())
        self._operands.clear()
        for label in _labels(body):
            self._declare(label)
        add = self._made.body.append
        for statement in self._watch.over(body):
            match statement:
                case Instruction():
                    add(self._instruction(statement))
                case Label():
                    add(Label(self._name(statement.name), statement.position))
                case TargetList():
                    targets = tuple(map(self._name, statement.targets))
                    add(TargetList(self._name(statement.label), statement.kind, targets, statement.prototype))
                case Variable():
                    self._variable(statement)
                case Block():
                    self._block(statement.body)
                case Directive() if statement == NOT_UNROLLED:
                    add(NOT_UNROLLED)
                case Directive():  # debugging and other hints to the compiler
                    pass
        self._scopes.pop()
        self._operands.clear()

    def _variable(self, variable: Variable) -> None:
        self._operands.clear()
        if variable.space == "reg":
            self._registers(variable)
            return
        if variable.space == "param":
            _require_small(variable)
        made = replace(variable, name=self._declare(variable))
        (self._made.body if variable.space == "param" else self._made.variables).append(made)

    def _registers(self, variable: Variable) -> None:
        _require_free(variable.name, variable.position)
        if variable.vector != 1 or variable.shape:
            raise UnsupportedPtx(f"{shown(variable.name)}: registers that are vectors", *variable.position)
        scope, bits = self._scopes[-1], register_bits(variable.type)
        scope.names.pop(variable.name, None)
        if variable.count is None:
            scope.singles[variable.name] = bits
        else:
            scope.families[variable.name] = bits, variable.count

    def _declare(self, item: Variable | Label | TargetList) -> str:
        """Give an item of the innermost block a name that is unique in the function; return it."""
        name = item.label if isinstance(item, TargetList) else item.name
        _require_free(name, item.position)
        if name.startswith("%"):
            raise UnsupportedPtx(f"{shown(name)}: a name of registers", *item.position)
        made, number = name, 0
        while made in self._taken or (len(self._scopes) > 1 and made == name):
            number += 1
            made = f"{name}${len(self._scopes)}_{number}"
        self._taken.add(made)
        self._scopes[-1].names[name] = made
        return made

    def _name(self, name: str) -> str:
        """Return the new name of what a name means here."""
        for scope in reversed(self._scopes):
            found = scope.names.get(name)
            if found is not None:
                return found
            bits = scope.bits(name)
            if bits:
                found = scope.names[name] = self._made.register(bits).name
                return found
        return name

    def _instruction(self, instruction: Instruction) -> Instruction:
        guard = instruction.guard
        if guard is not None:
            guard = Guard(Name(self._name(guard.predicate.name)), guard.negated)
        operands = tuple(map(self._operand, instruction.operands))
        return Instruction(instruction.opcode, instruction.modifiers, operands, guard, instruction.position)

    def _operand(self, operand: Operand) -> Operand:
        found = self._operands.get(operand)
        if found is None:
            found = self._operands[operand] = self._renamed(operand)
        return found

    def _renamed(self, operand: Operand) -> Operand:
        made: Operand = operand
        match operand:
            case Name():
                made = self._one(operand)
            case Offset():
                made = Offset(self._one(operand.base), operand.offset)
            case Address():
                base = operand.base if isinstance(operand.base, Int) else self._one(operand.base)
                made = Address(base, operand.offset, tuple(map(self._renamed, operand.coordinates)))
            case Vector() | Arguments():
                made = type(operand)(tuple(map(self._renamed, operand.elements)))
            case Pair():
                made = Pair(self._renamed(operand.first), self._renamed(operand.second))
            case Not():
                made = Not(self._one(operand.operand))
        return made

    def _one(self, name: Name) -> Name:
        return Name(self._name(name.name), name.component)


def _labels(body: tuple[Statement, ...]) -> Iterator[Label | TargetList]:
    return (each for each in body if isinstance(each, (Label, TargetList)))


def _require_small(param: Variable) -> None:
    if variable_bytes(param) > MAX_PARAM_BYTES:
        raise UnsupportedPtx(f"{shown(param.name)}: more than {MAX_PARAM_BYTES} bytes", *param.position)


def _require_free(name: str, position: Position) -> None:
    if name.startswith(RESERVED):
        raise UnsupportedPtx(f"{shown(name)}: names that begin so are the runtime's", *position)
