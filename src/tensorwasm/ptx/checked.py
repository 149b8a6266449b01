"""Checks of every access to global memory, written into a kernel: for authors of kernels, on any device.

The kernel calls a function before each access, which compares the address with a table of ranges and, if it is in none
or not aligned, writes a report and traps. Table and report are a variable of the kernel's module, so that the result is
a program like any other: whatever guards kernels guards this one as well, and what it reports is to be trusted as
little as the rest of a guest's memory.

Not checked: shared, local and constant memory, and of a matrix in memory all rows but the first.

Source: PTX ISA 5.1 (State Spaces), 9.7.9 (Data Movement), 7.1 (Function Declarations and Definitions).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Final, TypeGuard

from tensorwasm.ptx.layout import TYPE_BYTES
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
    Position,
    Statement,
    Variable,
)
from tensorwasm.ptx.parser import parse
from tensorwasm.ptx.printer import render
from tensorwasm.values import NEVER, Deadline

MAX_RANGES: Final = 1024
MARK: Final = b"tensor-wasm-chk\0"
"""Begins the record: a host finds it among the module's variables by this."""
_REPORT: Final = struct.Struct("<16sIIQ6II")
_RANGES_AT: Final = 64
RECORD_BYTES: Final = _RANGES_AT + 16 * MAX_RANGES
_VECTORS: Final = {"v2": 2, "v4": 4, "v8": 8}
_KINDS: Final = {"ld": "load", "ldu": "load", "st": "store", "atom": "atomic", "red": "atomic"}
_OTHER_SPACES: Final = ("shared", "local", "param", "const")
_HELPER: Final = """.version 7.0
.target sm_70
.address_size 64
.global .align 16 .b8 NAME_record[{size}] = {{{mark}}};
.func NAME_access(.param .b64 NAME_p0, .param .b32 NAME_p1, .param .b32 NAME_p2)
{{
.reg .b64 %a<9>; .reg .b32 %w<4>; .reg .pred %q, %found;
ld.param.b64 %a0, [NAME_p0]; ld.param.b32 %w0, [NAME_p1]; ld.param.b32 %w1, [NAME_p2];
cvt.u64.u32 %a1, %w0; add.u64 %a1, %a0, %a1;
mov.u64 %a2, NAME_record; ld.global.u32 %w2, [%a2+60];
mov.u32 %w3, 0; setp.ne.u32 %found, %w3, %w3;
again: setp.ge.u32 %q, %w3, %w2; @%q bra done;
mul.wide.u32 %a5, %w3, 16; add.u64 %a5, %a2, %a5;
ld.global.u64 %a6, [%a5+64]; ld.global.u64 %a7, [%a5+72];
setp.ge.u64 %q, %a0, %a6; setp.le.and.u64 %q, %a1, %a7, %q; setp.ge.and.u64 %q, %a1, %a0, %q;
or.pred %found, %found, %q;
add.u32 %w3, %w3, 1; bra again;
done: sub.u32 %w3, %w0, 1; cvt.u32.u64 %w2, %a0; and.b32 %w3, %w3, %w2;
setp.eq.and.u32 %found, %w3, 0, %found; @%found bra out;
atom.global.cas.b32 %w3, [%a2+16], 0, 1; setp.ne.u32 %q, %w3, 0; @%q bra told;
st.global.u32 [%a2+20], %w1; st.global.u64 [%a2+24], %a0;
mov.u32 %w3, %ctaid.x; st.global.u32 [%a2+32], %w3; mov.u32 %w3, %ctaid.y; st.global.u32 [%a2+36], %w3;
mov.u32 %w3, %ctaid.z; st.global.u32 [%a2+40], %w3; mov.u32 %w3, %tid.x; st.global.u32 [%a2+44], %w3;
mov.u32 %w3, %tid.y; st.global.u32 [%a2+48], %w3; mov.u32 %w3, %tid.z; st.global.u32 [%a2+52], %w3;
told: trap;
out: ret;
}}
"""


@dataclass(frozen=True, slots=True)
class Site:
    """An access of the program.

    Attributes:
        mnemonic: of the instruction.
        position: of it in the PTX text.
        source: file and line that the text names for it (``.loc``), empty if none.
        size_bytes: how many are accessed.
        kind: ``load``, ``store`` or ``atomic``.
    """

    mnemonic: str
    position: Position
    source: str
    size_bytes: int
    kind: str


@dataclass(frozen=True, slots=True)
class AccessReport:
    """The first access that was outside: where in the program, the address, and the thread."""

    site: int
    address: int
    block: tuple[int, int, int]
    thread: tuple[int, int, int]


def instrument(module: Module, deadline: Deadline = NEVER) -> tuple[Module, tuple[Site, ...]]:
    """Return a module whose accesses to global memory are checked, and these accesses.

    Args:
        module: of one kernel and what it reaches, as `tensorwasm.ptx.extract` returns it.
        deadline: as everywhere in this package.
    """
    name = "__chk"
    text = render(module, deadline)
    while name in text:
        name += "_"
    files = {item.arguments[0]: item.arguments[1] for item in module.items if _is_file(item)}
    checks = _Checks(name, frozenset(_variables(module)), files)
    items = tuple(checks.function(item) if isinstance(item, Function) else item for item in module.items)
    mark = ", ".join(map(str, MARK))
    helper = parse(_HELPER.format(size=RECORD_BYTES, mark=mark).replace("NAME", name), deadline)
    return replace(module, items=(*helper.items, *items)), tuple(checks.sites)


def ranges_of(ranges: Sequence[tuple[int, int]]) -> bytes:
    """Return the record with nothing reported: accesses have to lie in one of the ranges, of start and end.

    Ranges that touch are one; if they are more than `MAX_RANGES`, the last ones reach over what is between them.
    """
    merged: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if merged and (start <= merged[-1][1] or len(merged) == MAX_RANGES):
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((start, end))
    head = _REPORT.pack(MARK, 0, 0, 0, *(0,) * 6, 0)
    return head[:60] + struct.pack("<I", len(merged)) + b"".join(struct.pack("<QQ", *each) for each in merged)


def read_report(record: bytes, sites: int) -> AccessReport | None:
    """Return what a record reports, None if nothing, or nothing that the checks can have written."""
    mark, claimed, site, address, *threads, _ = _REPORT.unpack_from(record)
    if mark != MARK or claimed != 1 or site >= sites:
        return None
    return AccessReport(site, address, tuple(threads[:3]), tuple(threads[3:]))


def _is_file(item: object) -> TypeGuard[Directive]:
    return isinstance(item, Directive) and item.name == "file" and len(item.arguments) > 1


def _variables(module: Module) -> Iterator[str]:
    """Yield the names of all variables in memory: an access to one by its name is not checked."""
    bodies: list[Sequence[object]] = [module.items]
    while bodies:
        for item in bodies.pop():
            if isinstance(item, Variable) and item.space != "reg":
                yield item.name
            elif isinstance(item, Function | Block):
                bodies.append(item.body or ())
                bodies += (item.params, item.returns) if isinstance(item, Function) else ()


@dataclass(slots=True)
class _Checks:
    """The checks of one module, as they are written."""

    name: str
    variables: frozenset[str]
    files: Mapping[str, str]
    sites: list[Site] = field(default_factory=list)
    source: str = ""

    def function(self, function: Function) -> Function:
        if function.body is None:
            return function
        self.source = ""
        registers = (Variable("reg", "b64", f"%{self.name}_a"), Variable("reg", "pred", f"%{self.name}_p"))
        return replace(function, body=(*registers, *self._statements(function.body)))

    def _statements(self, body: Sequence[Statement]) -> Iterator[Statement]:
        for statement in body:
            if isinstance(statement, Block):
                yield replace(statement, body=tuple(self._statements(statement.body)))
                continue
            if isinstance(statement, Directive) and statement.name == "loc" and len(statement.arguments) > 1:
                file, line = statement.arguments[:2]
                self.source = f"{PurePath(self.files.get(file, file).strip(chr(34))).name}:{line}"
            if isinstance(statement, Instruction):
                yield from self._check(statement)
            yield statement

    def _check(self, instruction: Instruction) -> Iterator[Statement]:
        found = _access(instruction)
        if found is None or not isinstance(found[0].base, Name) or found[0].base.name in self.variables:
            return
        address, generic, size_bytes, kind = found
        number, register = len(self.sites), Name(f"%{self.name}_a")
        self.sites.append(Site(instruction.mnemonic, instruction.position, self.source, size_bytes, kind))
        behind, predicate = Name(f"{self.name}_{number}"), Name(f"%{self.name}_p")
        if instruction.guard is not None:
            around = Guard(instruction.guard.predicate, not instruction.guard.negated)
            yield Instruction("bra", (), (behind,), around)
        yield Instruction("add", ("s64",), (register, address.base, Int(address.offset)))
        for space in ("shared", "local") if generic else ():
            yield Instruction("isspacep", (space,), (predicate, register))
            yield Instruction("bra", (), (behind,), Guard(predicate))
        yield Block(tuple(self._call(number, register, size_bytes)))
        yield Label(behind.name)

    def _call(self, number: int, register: Name, size_bytes: int) -> Iterator[Statement]:
        params = [Name(f"{self.name}_v{index}") for index in range(3)]
        values: tuple[tuple[str, Operand], ...] = (
            ("b64", register),
            ("b32", Int(size_bytes)),
            ("b32", Int(number)),
        )
        for param, (kind, value) in zip(params, values, strict=True):
            yield Variable("param", kind, param.name)
            yield Instruction("st", ("param", kind), (Address(param), value))
        yield Instruction("call", (), (Name(f"{self.name}_access"), Arguments(tuple(params))))


def _access(instruction: Instruction) -> tuple[Address, bool, int, str] | None:
    """Return address, whether it is generic, bytes and kind of an access to global memory."""
    opcode, modifiers, operands = instruction.opcode, instruction.modifiers, instruction.operands
    if opcode == "cp" and modifiers[:1] == ("async",) and "global" in modifiers and len(operands) > 2:
        size, at, kind = operands[2], 1, "load"
        size_bytes = size.value if isinstance(size, Int) else 0
    elif opcode == "wmma" and modifiers[:1] in (("load",), ("store",)) and not set(modifiers) & set(_OTHER_SPACES):
        kind, at, size_bytes = modifiers[0], int(modifiers[0] == "load"), 16
    elif opcode in _KINDS and not any(word.split("::")[0] in _OTHER_SPACES for word in modifiers):
        kind, at = _KINDS[opcode], int(opcode in ("ld", "ldu", "atom"))
        vectors = [_VECTORS[word] for word in modifiers if word in _VECTORS]
        size_bytes = TYPE_BYTES.get(modifiers[-1], 0) * (vectors[0] if vectors else 1)
    else:
        return None
    address = operands[at] if len(operands) > at else None
    if not isinstance(address, Address) or not size_bytes:
        return None
    return address, "global" not in modifiers, size_bytes, kind
