"""Pointers to functions become numbers, and calls through them a choice among the functions that fit.

No address of code reaches a kernel. The number of a function is made of its name, so that kernels of a module agree
about it. A call through a pointer compares it with the numbers of all functions whose address is taken and whose
parameters are those of the prototype, and calls the one that it is; what is none of them ends the launch.

Source: PTX ISA 7.1 (Function Declarations and Definitions), 9.7.12.5 (call), 11.2.3 and .4 (.calltargets,
.callprototype).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tensorwasm.errors import UnsupportedPtx
from tensorwasm.ptx.guard.flat import FlatFunction
from tensorwasm.ptx.guard.registers import is_register, register_width
from tensorwasm.ptx.layout import variable_align, variable_bytes
from tensorwasm.ptx.model import (
    Address,
    Arguments,
    Function,
    Guard,
    Instruction,
    Int,
    Label,
    Module,
    Name,
    Operand,
    Statement,
    TargetList,
    Variable,
    names,
)
from tensorwasm.ptx.symbols import split_call
from tensorwasm.ptx.templates import instruction
from tensorwasm.ptx.verifier.convergence import waits
from tensorwasm.ptx.verifier.costs import ends_run
from tensorwasm.watch import Watch

MAX_CHOICES: Final = 64
"""Functions that one call through a pointer may choose from."""
_NUMBER_BITS: Final = 63
_ALIGN: Final = 16
"""Of the numbers: languages keep a flag in the low bits of such pointers."""


_Shape = tuple[tuple[tuple[str, int, int, bool], ...], ...]


@dataclass(frozen=True, slots=True)
class FunctionNumbers:
    """What stands for addresses of functions.

    Attributes:
        functions: all that are declared, by name.
        numbers: of those whose address is taken.
        fitting: their names, by what their parameters and results are.
    """

    functions: Mapping[str, Function]
    numbers: Mapping[str, int]
    fitting: Mapping[_Shape, Sequence[str]]


def number_functions(module: Module, flats: Sequence[FlatFunction]) -> FunctionNumbers:
    """Return the numbers of the functions of a module; ``flats`` are those that have a body."""
    functions = {each.name: each for each in module.functions()}
    taken = {name for each in module.variables() for value in each.initializer for name in names(value)}
    for flat in flats:
        for each in flat.body:
            if isinstance(each, Instruction) and each.opcode != "call":
                taken.update(name for operand in each.operands for name in names(operand))
            elif isinstance(each, TargetList) and each.kind == "calltargets":
                taken.update(each.targets)
    whole = {flat.function.name for flat in flats if not flat.function.entry}
    numbers = {name: _number(name) for name in functions if name in taken and name in whole}
    fitting: dict[_Shape, list[str]] = {}
    for name in numbers:
        fitting.setdefault(_shape(functions[name]), []).append(name)
    return FunctionNumbers(functions, numbers, fitting)


def _number(name: str) -> int:
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return max(int.from_bytes(digest, "little") % (1 << _NUMBER_BITS) & -_ALIGN, _ALIGN)


def resolve_pointers(flat: FlatFunction, numbers: FunctionNumbers, watch: Watch) -> None:
    """Write numbers for addresses of functions, and choices for calls through pointers.

    Raises:
        UnsupportedPtx: a call whose arguments are not stored right before it, or its results not loaded right behind
            it, or that has too many functions to choose from.
        InvokeTimeout: the watch's deadline passed.
    """
    _Pointers(flat, numbers, watch).run()


class _Pointers:
    def __init__(self, flat: FlatFunction, numbers: FunctionNumbers, watch: Watch) -> None:
        self._flat = flat
        self._numbers = numbers.numbers
        self._functions = numbers.functions
        self._fitting = numbers.fitting
        self._watch = watch
        self._lists = {each.label: each for each in flat.body if isinstance(each, TargetList)}
        self._params = {each.name: each for each in flat.body if isinstance(each, Variable)}
        self._uses: dict[str, set[int]] = {}
        self._taken = {*self._lists, *self._params}
        self._taken |= {each.name for each in flat.body if isinstance(each, Label)}
        self._taken |= {each.name for each in (*flat.function.params, *flat.function.returns, *flat.variables)}
        self._out: list[Statement] = []
        self._names = 0

    def run(self) -> None:
        """Rewrite the body of the function."""
        body = self._flat.body
        calls = [at for at, each in enumerate(body) if isinstance(each, Instruction) and self._is_through(each)]
        for at, each in enumerate(body if calls else ()):
            if isinstance(each, Instruction):
                for name in _named(each).intersection(self._params):
                    self._uses.setdefault(name, set()).add(at)
        moved = {at: self._around(at) for at in calls}
        left_out = {at for stores, loads in moved.values() for at in (*stores, *loads)}
        for at, statement in enumerate(self._watch.over(body)):
            if at in moved:
                self._choose(at, *moved[at])
            elif at not in left_out and not (isinstance(statement, TargetList) and statement.kind != "branchtargets"):
                self._out.append(self._numbered(statement))
        used = (
            {name for each in self._out if isinstance(each, Instruction) for name in _named(each)} if calls else set()
        )
        self._flat.body = [
            each for each in self._out if not (calls and isinstance(each, Variable) and each.name not in used)
        ]

    def _is_through(self, statement: Instruction) -> bool:
        if statement.opcode != "call":
            return False
        place, taken, _ = split_call(statement)
        callee = statement.operands[place]
        if isinstance(callee, Name) and callee.name in self._functions:
            return statement.guard is not None and bool(taken)  # the results must not be read without the call
        return isinstance(callee, Name) and is_register(callee.name) and register_width(callee) == 64

    def _numbered(self, statement: Statement) -> Statement:
        """Return a statement with a number in the place of a function's address."""
        match statement:
            case Instruction("mov", ("u64" | "b64" | "s64",), (target, Name(name))) if name in self._numbers:
                operands = (target, Int(self._numbers[name]))
                return Instruction("mov", statement.modifiers, operands, statement.guard, statement.position)
        return statement

    # ------------------------------------------------------------------------------------- arguments, results

    def _around(self, at: int) -> tuple[list[int], list[int]]:
        """Return where the arguments of a call are stored, right before it, and its results loaded, right behind."""
        call = self._flat.body[at]
        assert isinstance(call, Instruction)  # noqa: S101 - as `run` says
        _, taken, given = split_call(call)
        stores, loads = self._accesses(at, given, "st", -1), self._accesses(at, taken, "ld", 1)
        if stores is None or loads is None:
            raise UnsupportedPtx("a call through a pointer, its arguments and results not next to it", *call.position)
        return sorted(stores), loads

    def _accesses(self, at: int, operands: Sequence[Operand], opcode: str, step: int) -> list[int] | None:
        """Return where the parameters of a call are accessed, None if anywhere else than on its side of the call."""
        wanted = {operand.name for operand in operands if isinstance(operand, Name)}
        if len(wanted) != len(operands) or not wanted <= self._params.keys():
            return None
        places = set().union(*(self._uses.get(name, ()) for name in wanted)) - {at}
        body, found, others = self._flat.body, list[int](), set[str]()
        here = at + step
        while len(found) < len(places) and 0 <= here < len(body):
            self._watch.step()
            each = body[here]
            if ends_run(each) or waits(each, ()) or (isinstance(each, Instruction) and each.opcode == "call"):
                break
            if here in places:
                # An access that moves to the call passes what is between them.
                own = self._is_access(each, opcode)
                if own is None or not own.isdisjoint(others):
                    return None
                found.append(here)
            elif isinstance(each, Instruction):
                others |= _named(each)
            here += step
        return found if len(found) == len(places) else None

    @staticmethod
    def _is_access(statement: Statement, opcode: str) -> set[str] | None:
        """Return the registers of an access to a parameter of a call, None if it is not a plain one."""
        if not isinstance(statement, Instruction) or statement.opcode != opcode or statement.guard is not None:
            return None
        if "param" not in {word.partition("::")[0] for word in statement.modifiers}:
            return None
        return {name for operand in statement.operands if not isinstance(operand, Address) for name in names(operand)}

    # ------------------------------------------------------------------------------------------------ choices

    def _choose(self, at: int, stores: list[int], loads: list[int]) -> None:
        """Write the choice among the functions that a call may reach."""
        call = self._flat.body[at]
        assert isinstance(call, Instruction)  # noqa: S101 - as `run` says
        place = split_call(call)[0]
        pointer, done = call.operands[place], self._name("called")
        assert isinstance(pointer, Name)  # noqa: S101 - a register
        self._watch.step()
        if call.guard is not None:
            other = Guard(call.guard.predicate, not call.guard.negated)
            self._out.append(Instruction("bra", (), (Name(done),), other, call.position))
        if pointer.name in self._functions:
            self._call(call, pointer.name, stores, loads)
            self._out.append(Label(done))
            return
        for name in self._choices(call, place):
            self._watch.step()
            following, differs = self._name("other"), self._flat.register(1)
            self._out.append(instruction("setp.ne.u64", differs, pointer, Int(self._numbers[name])))
            self._out.append(instruction("bra", Name(following), when=differs))
            self._call(call, name, stores, loads)
            self._out.append(instruction("bra", Name(done)))
            self._out.append(Label(following))
        self._out.append(Instruction("trap", (), (), None, call.position))
        self._out.append(Label(done))

    def _choices(self, call: Instruction, place: int) -> list[str]:
        """Return the functions that a call may reach."""
        last = call.operands[-1]
        listed = self._lists.get(last.name) if isinstance(last, Name) and len(call.operands) > place + 1 else None
        if listed is None:
            raise UnsupportedPtx("a call through a pointer without a prototype", *call.position)
        if listed.prototype is None:
            found = [name for name in dict.fromkeys(listed.targets) if name in self._numbers]
        else:
            found = list(self._fitting.get(_shape(listed.prototype), ()))
        if len(found) > MAX_CHOICES:
            raise UnsupportedPtx(f"a call through a pointer to {len(found)} functions", *call.position)
        return found

    def _call(self, call: Instruction, callee: str, stores: list[int], loads: list[int]) -> None:
        """Write a call of one function, with parameters of its own: they stand in one run of code with it."""
        _, taken, given = split_call(call)
        self._flat.growth.add(len(taken) + len(given) + len(stores) + len(loads))
        own: dict[str, str] = {}
        for operand in (*taken, *given):
            if isinstance(operand, Name):
                param = self._params[operand.name]
                own[param.name] = self._name(param.name)
                self._out.append(replace(param, name=own[param.name]))
        self._out += [self._renamed(self._flat.body[at], own) for at in stores]
        results = [Arguments(tuple(_renamed(each, own) for each in taken))] if taken else []
        made = Name(callee), Arguments(tuple(_renamed(each, own) for each in given))
        self._out.append(Instruction("call", (), (*results, *made), None, call.position))
        self._out += [self._renamed(self._flat.body[at], own) for at in loads]

    @staticmethod
    def _renamed(statement: Statement, own: Mapping[str, str]) -> Statement:
        if not isinstance(statement, Instruction):
            return statement
        operands = tuple(_renamed(each, own) for each in statement.operands)
        return Instruction(statement.opcode, statement.modifiers, operands, statement.guard, statement.position)

    def _name(self, stem: str) -> str:
        """Return a new name."""
        while True:
            self._names += 1
            made = f"{stem}$p{self._names}"
            if made not in self._taken and made not in self._functions:
                return made


def _named(statement: Instruction) -> set[str]:
    return {name for operand in statement.operands for name in names(operand)}


def _renamed(operand: Operand, own: Mapping[str, str]) -> Operand:
    if isinstance(operand, Name):
        return Name(own.get(operand.name, operand.name), operand.component)
    if isinstance(operand, Address) and isinstance(operand.base, Name):
        return Address(Name(own.get(operand.base.name, operand.base.name)), operand.offset)
    return operand


def _shape(function: Function) -> _Shape:
    """Return what parameters and results of a function are, without their names."""
    return tuple(
        tuple((each.space, variable_bytes(each), variable_align(each), bool(each.shape)) for each in some)
        for some in (function.returns, function.params)
    )
