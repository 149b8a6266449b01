"""Writes the checks of `tensorwasm.ptx.checked` into a module.

Source: PTX ISA 6.4 (Using Addresses), 7.1 (Function Declarations and Definitions).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import TypeGuard

from tensorwasm.ptx.checked.accesses import Access, accesses
from tensorwasm.ptx.checked.record import Site, helper, packed
from tensorwasm.ptx.layout import TYPE_BYTES, variable_align, variable_bytes
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


def instrument(module: Module, deadline: Deadline = NEVER) -> tuple[Module, tuple[Site, ...]]:
    """Return a module whose accesses are checked, and these accesses.

    Args:
        module: of one kernel and what it reaches, as `tensorwasm.ptx.extract` returns it.
        deadline: as everywhere in this package.
    """
    name = "__chk"
    text = render(module, deadline)
    while name in text:
        name += "_"
    files = {item.arguments[0]: item.arguments[1] for item in module.items if _is_file(item)}
    watch = Watch(deadline, "while checks were written into the kernel")
    checks = _Checks(name, files, tuple(_converted(module, watch)), watch)
    symbols = module_symbols(module, watch)
    items = tuple(checks.function(item, symbols) if isinstance(item, Function) else item for item in module.items)
    return replace(module, items=(*helper(name, deadline).items, *items)), tuple(checks.sites)


def _is_file(item: object) -> TypeGuard[Directive]:
    return isinstance(item, Directive) and item.name == "file" and len(item.arguments) > 1


def _converted(module: Module, watch: Watch) -> Iterator[str]:
    """Yield the state spaces, other than global memory, that generic addresses are made of."""
    words: set[str] = set()
    bodies = [each.body or () for each in module.functions()]
    while bodies:
        for statement in watch.over(bodies.pop()):
            if isinstance(statement, Block):
                bodies.append(statement.body)
            elif isinstance(statement, Instruction) and statement.opcode == "cvta" and "to" not in statement.modifiers:
                words.update(word.partition("::")[0] for word in statement.modifiers)
    yield from (space for space in ("local", "shared") if space in words)


@dataclass(slots=True)
class _Checks:
    """The checks of one module, as they are written.

    Attributes:
        name: how the names of checks begin.
        files: of ``.loc``, by their numbers.
        converted: state spaces that generic addresses may be of besides global memory.
        sites: what is checked.
        source: file and line of the next instruction.
    """

    name: str
    files: Mapping[str, str]
    converted: Sequence[str]
    watch: Watch
    sites: list[Site] = field(default_factory=list)
    source: str = ""
    labels: int = 0

    @property
    def address(self) -> Name:
        """The address that is checked."""
        return Name(f"%{self.name}_a")

    @property
    def low(self) -> Name:
        """32 bits on the way to it; then the bytes that are accessed, if an operand says them."""
        return Name(f"%{self.name}_l")

    @property
    def predicate(self) -> Name:
        return Name(f"%{self.name}_p")

    def function(self, function: Function, symbols: SymbolTable) -> Function:
        """Return a function with its checks."""
        if function.body is None:
            return function
        self.source = ""
        types = {self.address: "b64", self.low: "b32", self.predicate: "pred"}
        registers = (Variable("reg", kind, register.name) for register, kind in types.items())
        table = SymbolTable(symbols)
        for param in (*function.returns, *function.params):
            table.declare(param.name, param)
        return replace(function, body=(*registers, *self._statements(function.body, table)))

    def _statements(self, body: Sequence[Statement], table: SymbolTable) -> Iterator[Statement]:
        for statement in self.watch.over(body):
            if isinstance(statement, Block):
                yield replace(statement, body=tuple(self._statements(statement.body, SymbolTable(table))))
                continue
            if isinstance(statement, Variable):
                table.declare(statement.name, statement)
            elif isinstance(statement, Directive) and statement.name == "loc" and len(statement.arguments) > 1:
                file, line = statement.arguments[:2]
                self.source = f"{PurePath(self.files.get(file, file).strip(chr(34))).name}:{line}"
            elif isinstance(statement, Instruction):
                for access in accesses(statement):
                    yield from self._check(statement, access, table)
            yield statement

    def _label(self) -> Name:
        self.labels += 1
        return Name(f"{self.name}_{self.labels}")

    def _check(self, instruction: Instruction, access: Access, table: SymbolTable) -> Iterator[Statement]:
        """Yield the check of one access, behind the predicate of its instruction."""
        base = access.address.base
        symbol = table.find(base.name) if isinstance(base, Name) else None
        space: str = access.space
        if isinstance(symbol, Variable) and symbol.space != "reg":
            space = symbol.space
            if space not in ("global", "shared") or _is_inside(access, symbol):
                return
        behind = self._label()
        if instruction.guard is not None:
            yield self._leave(behind, Guard(instruction.guard.predicate, not instruction.guard.negated))
        yield from self._computed(access.address, space, symbol if isinstance(symbol, Variable) else None)
        if space == "generic":
            yield from self._of_other_spaces(instruction, access, behind)
            space = "global"
        yield from self._call(instruction, access, space, behind)
        yield Label(behind.name)

    def _leave(self, behind: Name, guard: Guard | None = None) -> Instruction:
        return Instruction("bra", (), (behind,), guard)

    def _computed(self, address: Address, space: str, symbol: Variable | None) -> Iterator[Statement]:
        """Yield what computes an address: in shared memory with 32 bits, otherwise with 64."""
        base, low, made = address.base, self.low, self.address
        narrow = symbol is not None and symbol.space == "reg" and TYPE_BYTES.get(symbol.type) == 4
        if space != "shared":
            if narrow:
                yield Instruction("cvt", ("u64", "u32"), (made, base))
            else:
                yield Instruction("mov", ("u64",), (made, base))
            if address.offset:
                yield Instruction("add", ("s64",), (made, made, Int(address.offset)))
            return
        wide = symbol is not None and symbol.space == "reg" and not narrow
        yield Instruction("cvt", ("u32", "u64"), (low, base)) if wide else Instruction("mov", ("u32",), (low, base))
        if address.offset:
            yield Instruction("add", ("s32",), (low, low, Int(address.offset)))
        yield Instruction("cvt", ("u64", "u32"), (made, low))

    def _of_other_spaces(self, instruction: Instruction, access: Access, behind: Name) -> Iterator[Statement]:
        """Yield the checks of a generic address that may be one of local or shared memory."""
        for space in self.converted:
            yield Instruction("isspacep", (space,), (self.predicate, self.address))
            if space == "local":
                yield self._leave(behind, Guard(self.predicate))
                continue
            other = self._label()
            yield self._leave(other, Guard(self.predicate, negated=True))
            yield Instruction("cvta", ("to", space, "u64"), (self.address, self.address))
            yield from self._call(instruction, access, space, behind)
            yield self._leave(behind)
            yield Label(other.name)

    def _call(self, instruction: Instruction, access: Access, space: str, behind: Name) -> Iterator[Statement]:
        """Yield the call of the function that checks an address, unless no byte is accessed."""
        size: Operand = Int(access.size_bytes)
        if isinstance(access.used, Int):
            size = access.used
        elif access.used is not None:
            size = self.low
            yield Instruction("min", ("u32",), (size, access.used, Int(access.size_bytes)))
            yield Instruction("setp", ("eq", "u32"), (self.predicate, size, Int(0)))
            yield self._leave(behind, Guard(self.predicate))
        if size == Int(0):
            return
        number = len(self.sites)
        source, mnemonic = self.source, instruction.mnemonic
        self.sites.append(Site(mnemonic, instruction.position, source, space, access.size_bytes, access.kind))
        params = [Name(f"{self.name}_v{index}") for index in range(3)]
        values = self.address, size, Int(packed(number, access, space))
        body: list[Statement] = []
        for param, kind, value in zip(params, ("b64", "b32", "b32"), values, strict=True):
            body.append(Variable("param", kind, param.name))
            body.append(Instruction("st", ("param", kind), (Address(param), value)))
        body.append(Instruction("call", (), (Name(f"{self.name}_access"), Arguments(tuple(params)))))
        yield Block(tuple(body))


def _is_inside(access: Access, variable: Variable) -> bool:
    """Return whether an access to a variable by its name is certain to be right."""
    start, align_bytes = access.address.offset, access.align_bytes
    aligned = start % align_bytes == 0 and variable_align(variable) % align_bytes == 0
    return aligned and start >= 0 and start + access.size_bytes <= variable_bytes(variable)
