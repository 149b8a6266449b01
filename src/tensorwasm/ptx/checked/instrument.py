"""Writes the checks of `tensorwasm.ptx.checked` into a module.

A check is a call before its access, without branches around it, so that the threads of a warp stay together and the
code stays short. Where the access is not made, the function is told of 0 bytes.

Source: PTX ISA 6.4 (Using Addresses), 7.1 (Function Declarations and Definitions).
"""

from __future__ import annotations

from collections.abc import Container, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Final, TypeGuard

from tensorwasm.ptx.checked.accesses import CheckedAccess, accesses
from tensorwasm.ptx.checked.record import Site, helper, packed
from tensorwasm.ptx.guarded import SHARED_BASE
from tensorwasm.ptx.layout import TYPE_BYTES, variable_align, variable_bytes
from tensorwasm.ptx.model import (
    Address,
    Arguments,
    Block,
    Directive,
    Function,
    Instruction,
    Int,
    Module,
    Name,
    Operand,
    Statement,
    Variable,
)
from tensorwasm.ptx.printer import render
from tensorwasm.ptx.symbols import SymbolTable, module_symbols
from tensorwasm.values import NEVER, Deadline
from tensorwasm.watch import Watch

_BOUNDS: Final = frozenset({"maxntid", "reqntid", "minnctapersm", "maxnreg"})
_EVERY_BLOCK: Final = Directive("maxntid", ("1024", "1", "1"))
"""Has ptxas use no more registers than blocks of every size leave a thread: checks take some."""


def instrument(
    module: Module, shared_base: int = SHARED_BASE, deadline: Deadline = NEVER
) -> tuple[Module, tuple[Site, ...]]:
    """Return a module whose accesses are checked, and these accesses; the module as it is if there are none.

    Args:
        module: of one kernel and what it reaches, as `tensorwasm.ptx.extract` returns it.
        shared_base: address of the first variable in shared memory on the device.
        deadline: as everywhere in this package.
    """
    name = "__chk"
    text = render(module, deadline)
    while name in text:
        name += "_"
    files = {item.arguments[0]: item.arguments[1] for item in module.items if _is_file(item)}
    watch = Watch(deadline, "while checks were written into the kernel")
    checks = _Checks(name, files, frozenset(_converted(module, watch)), shared_base, watch)
    symbols = module_symbols(module, watch)
    items = tuple(checks.function(item, symbols) if isinstance(item, Function) else item for item in module.items)
    if not checks.sites:
        return module, ()
    return replace(module, items=(*helper(name, deadline).items, *items)), tuple(checks.sites)


def _is_file(item: object) -> TypeGuard[Directive]:
    return isinstance(item, Directive) and item.name == "file" and len(item.arguments) > 1


def _converted(module: Module, watch: Watch) -> Iterator[str]:
    """Yield the state spaces that generic addresses are made of."""
    bodies = [each.body or () for each in module.functions()]
    while bodies:
        for statement in watch.over(bodies.pop()):
            if isinstance(statement, Block):
                bodies.append(statement.body)
            elif isinstance(statement, Instruction) and statement.opcode == "cvta" and "to" not in statement.modifiers:
                yield from (word.partition("::")[0] for word in statement.modifiers)


class _Checks:
    """The checks of one module, as they are written.

    Args:
        name: how the names of checks begin.
        files: of ``.loc``, by their numbers.
        converted: state spaces that generic addresses are made of.
        shared_base: address of the first variable in shared memory.
        watch: of the deadline.

    Attributes:
        sites: what is checked.
    """

    def __init__(
        self, name: str, files: Mapping[str, str], converted: Container[str], shared_base: int, watch: Watch
    ) -> None:
        self.sites: list[Site] = []
        self._name, self._files, self._converted = name, files, converted
        self._shared_base, self._watch = shared_base, watch
        self._source = ""  # file and line of the next instruction
        # What the function is given, where it is not constant; and what that is made of for a generic address.
        self._address, self._size, self._site = (Name(f"%{name}_{index}") for index in range(3))
        self._offset, self._is_other = Name(f"%{name}_3"), Name(f"%{name}_4")

    def function(self, function: Function, symbols: SymbolTable) -> Function:
        """Return a function with its checks."""
        if function.body is None:
            return function
        self._source = ""
        types = {
            self._address: "b64",
            self._size: "b32",
            self._site: "b32",
            self._offset: "b64",
            self._is_other: "pred",
        }
        registers = (Variable("reg", kind, register.name) for register, kind in types.items())
        table = SymbolTable(symbols)
        for param in (*function.returns, *function.params):
            table.declare(param.name, param)
        body = (*registers, *self._statements(function.body, table))
        if function.entry and _BOUNDS.isdisjoint(each.name for each in function.directives):
            return replace(function, directives=(*function.directives, _EVERY_BLOCK), body=body)
        return replace(function, body=body)

    def _statements(self, body: Sequence[Statement], table: SymbolTable) -> Iterator[Statement]:
        for statement in self._watch.over(body):
            if isinstance(statement, Block):
                yield replace(statement, body=tuple(self._statements(statement.body, SymbolTable(table))))
                continue
            if isinstance(statement, Variable):
                table.declare(statement.name, statement)
            elif isinstance(statement, Directive) and statement.name == "loc" and len(statement.arguments) > 1:
                file, line = statement.arguments[:2]
                self._source = f"{PurePath(self._files.get(file, file).strip(chr(34))).name}:{line}"
            elif isinstance(statement, Instruction):
                for access in accesses(statement):
                    yield from self._check(statement, access, table)
            yield statement

    def _check(self, instruction: Instruction, access: CheckedAccess, table: SymbolTable) -> Iterator[Statement]:
        """Yield the check of one access."""
        base = access.address.base
        found = table.find(base.name) if isinstance(base, Name) else None
        symbol = found if isinstance(found, Variable) else None
        space = access.space
        if symbol is not None and symbol.space != "reg":
            space = symbol.space
            if space not in ("global", "shared") or _is_inside(access, symbol):
                return
        if access.used == Int(0):
            return
        number = len(self.sites)
        self.sites.append(
            Site(instruction.mnemonic, instruction.position, self._source, access.size_bytes, access.kind)
        )
        address = access.address
        if space == "shared" and isinstance(address.base, Int):  # what the guard writes counts from the first variable
            address = Address(Int(address.base.value - self._shared_base), address.offset)
        yield from self._computed(address, symbol)
        size = yield from self._accessed(instruction, access)
        site: Operand = Int(packed(number, access, shared=space == "shared"))
        if space == "generic" and "local" in self._converted:
            yield Instruction("isspacep", ("local",), (self._is_other, self._address))
            yield Instruction("selp", ("b32",), (self._size, Int(0), size, self._is_other))
            size = self._size
        if space == "generic" and "shared" in self._converted:
            in_shared = Int(packed(number, access, shared=True))
            yield Instruction("isspacep", ("shared",), (self._is_other, self._address))
            yield Instruction("cvta", ("to", "shared", "u64"), (self._offset, self._address))
            yield Instruction("selp", ("b64",), (self._address, self._offset, self._address, self._is_other))
            yield Instruction("selp", ("b32",), (self._site, in_shared, site, self._is_other))
            site = self._site
        yield self._call(number, (self._address, size, site))

    def _computed(self, address: Address, symbol: Variable | None) -> Iterator[Statement]:
        """Yield what computes an address."""
        if symbol is not None and symbol.space == "reg" and TYPE_BYTES.get(symbol.type) == 4:
            yield Instruction("cvt", ("u64", "u32"), (self._address, address.base))
        else:
            yield Instruction("mov", ("u64",), (self._address, address.base))
        if address.offset:
            yield Instruction("add", ("s64",), (self._address, self._address, Int(address.offset)))

    def _accessed(self, instruction: Instruction, access: CheckedAccess) -> Generator[Statement, None, Operand]:
        """Yield what computes how many bytes are accessed, and return that: 0 if the instruction is not executed."""
        size: Operand = Int(access.size_bytes)
        if isinstance(access.used, Int):
            size = access.used
        elif access.used is not None:
            yield Instruction("min", ("u32",), (self._size, access.used, size))
            size = self._size
        guard = instruction.guard
        if guard is not None:
            either = (Int(0), size) if guard.negated else (size, Int(0))
            yield Instruction("selp", ("b32",), (self._size, *either, guard.predicate))
            size = self._size
        return size

    def _call(self, number: int, values: Sequence[Operand]) -> Block:
        """Return the call of the function that checks an access."""
        body: list[Statement] = []
        params = tuple(Name(f"{self._name}_{number}_{index}") for index in range(3))
        for param, kind, value in zip(params, ("b64", "b32", "b32"), values, strict=True):
            body.append(Variable("param", kind, param.name))
            body.append(Instruction("st", ("param", kind), (Address(param), value)))
        body.append(Instruction("call", (), (Name(f"{self._name}_access"), Arguments(params))))
        return Block(tuple(body))


def _is_inside(access: CheckedAccess, variable: Variable) -> bool:
    """Return whether an access to a variable by its name is certain to be right."""
    if "extern" in variable.linkage:  # dynamic shared memory: of what size, only the launch says
        return False
    start, size_bytes = access.address.offset, access.size_bytes
    is_aligned = start % size_bytes == 0 and variable_align(variable) % size_bytes == 0
    return is_aligned and 0 <= start <= variable_bytes(variable) - size_bytes
