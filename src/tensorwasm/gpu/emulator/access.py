"""Steps that read and write memory: ``ld``, ``ldu``, ``st`` and what only hints.

Source: PTX ISA 9.7.9.8 (ld), 9.7.9.9 (ld.global.nc), 9.7.9.10 (ldu), 9.7.9.11 (st), 9.4.1 (operand size).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tensorwasm.errors import MalformedPtx, UnsupportedPtx
from tensorwasm.gpu.emulator.builder import Builder
from tensorwasm.gpu.emulator.machine import Machine
from tensorwasm.gpu.emulator.names import frame_offset
from tensorwasm.gpu.emulator.operands import RAW, Reader, Writer, read_computed, read_constant
from tensorwasm.gpu.emulator.ops import DTYPES
from tensorwasm.gpu.emulator.program import Step
from tensorwasm.ptx.model import Address, Instruction, Name, Operand, Variable

SPACES: Final = {
    "const": "const",
    "global": "global",
    "local": "local",
    "param": "param",
    "param::entry": "param",
    "param::func": "param",
    "shared": "shared",
    "shared::cta": "shared",
}
STRONG: Final = frozenset({"relaxed", "acquire", "release", "acq_rel", "volatile", "mmio"})
ORDERING: Final = frozenset({"acquire", "release", "acq_rel"})
SCOPES: Final = frozenset({"cta", "cluster", "gpu", "sys"})
HINTS: Final = re.compile(
    r"weak|ca|cg|cs|lu|cv|wb|wt|nc|unified|L1::(evict_(normal|unchanged|first|last)|no_allocate)"
    r"|L2::(evict_(normal|first|last)|cache_hint|64B|128B|256B)"
)
_COUNTS: Final = {"v2": 2, "v4": 4, "v8": 8}


@dataclass(frozen=True, slots=True)
class Access:
    """What the modifiers of a memory instruction say.

    Attributes:
        space: name of the space for `Memory`.
        type: PTX type of an element.
        count: elements.
        strong: whether it takes part in the memory model, and so never races.
        ordering: whether it orders other accesses.
        words: modifiers that mean something to the instruction itself.
    """

    space: str
    type: str
    count: int
    strong: bool
    ordering: bool
    words: tuple[str, ...] = ()


def parse_access(instruction: Instruction, own_words: frozenset[str] = frozenset()) -> Access:
    """Read the modifiers of a memory instruction.

    Raises:
        UnsupportedPtx: one is not known.
    """
    *words, ptx_type = instruction.modifiers or ("",)
    space, count, strong, ordering, own = "generic", 1, False, False, []
    for word in words:
        if word in own_words:
            own.append(word)
        elif word in SPACES:
            space = SPACES[word]
        elif word in _COUNTS:
            count = _COUNTS[word]
        elif word in STRONG:
            strong, ordering = True, ordering or word in ORDERING
        elif word not in SCOPES and not HINTS.fullmatch(word):
            raise UnsupportedPtx(f"the emulator lacks .{word} here")
    if ptx_type not in DTYPES or ptx_type == "pred":
        raise UnsupportedPtx(f"the emulator accesses no memory as .{ptx_type}")
    if DTYPES[ptx_type].itemsize * count > 32:
        raise UnsupportedPtx(f"the emulator has no accesses of more than 32 bytes, such as .v{count}.{ptx_type}")
    return Access(space, ptx_type, count, strong, ordering, tuple(own))


def note_width(builder: Builder, access: Access) -> None:
    """Note how narrow accesses to shared memory are."""
    if access.space in ("shared", "generic"):
        code = builder.code
        code.narrowest_bytes = min(code.narrowest_bytes, DTYPES[access.type].itemsize)


def memory_operand(builder: Builder, operand: Operand) -> Address:
    """Return an operand that must be an address.

    Raises:
        MalformedPtx: it is none.
        UnsupportedPtx: it has coordinates.
    """
    if not isinstance(operand, Address):
        raise MalformedPtx("an address in brackets is expected")
    if operand.coordinates:
        raise UnsupportedPtx("the emulator has no addresses with coordinates")
    if isinstance(operand.base, Name):
        variable = builder.names.variable(operand.base.name)
        if variable is not None and variable.type not in DTYPES and variable.type != "b128":
            raise UnsupportedPtx(f"the emulator has no variables of type .{variable.type}")
    return operand


def parameter(builder: Builder, access: Access, address: Address) -> Variable | None:
    """Return the ``.param`` variable that an access names directly, or None."""
    if access.space != "param" or not isinstance(address.base, Name):
        return None
    return builder.names.variable(address.base.name)


def locate(builder: Builder, access: Access, address: Address) -> tuple[str, Reader]:
    """Return the space and the addresses of an access; parameters of functions lie among the locals."""
    variable = parameter(builder, access, address)
    if variable is None or builder.names.kernel_parameter(variable):
        return access.space, builder.names.address(address)
    key, offset = builder.names.key(variable), address.offset
    return "local", read_computed(lambda machine: frame_offset(machine, key) + offset, RAW[64])


def _operands(instruction: Instruction, *, target_first: bool) -> tuple[Operand, Operand]:
    """Return (register side, address side), without a cache policy."""
    hint = any(word == "L2::cache_hint" for word in instruction.modifiers)
    if len(instruction.operands) != 2 + hint:
        raise MalformedPtx(f"{len(instruction.operands)} operands")
    first, second = instruction.operands[:2]
    return (first, second) if target_first else (second, first)


def compile_load(builder: Builder, instruction: Instruction) -> None:
    """Add the step of an ``ld`` or ``ldu``."""
    access = parse_access(instruction)
    target, place = _operands(instruction, target_first=True)
    address = memory_operand(builder, place)
    writes = [builder.names.writer(one, access.type) for one in builder.names.elements(target)]
    if len(writes) != access.count:
        raise MalformedPtx(f"{len(writes)} destinations for {access.count} elements")
    if _load_parameter(builder, access, address, writes):
        return
    note_width(builder, access)
    space, read = locate(builder, access, address)
    site, dtype, count, strong = builder.site(instruction), DTYPES[access.type], access.count, access.strong
    ordering = access.ordering
    (write, *_) = writes

    def load(machine: Machine) -> None:
        if strong:
            machine.spins += 1
        values = machine.memory.load(space, site, machine.who, read(machine), dtype, count, atomic=strong)
        if count == 1:
            write(machine, values)
        else:
            for column, write_one in enumerate(writes):
                write_one(machine, values[:, column].copy())
        if ordering:
            synchronize(machine)

    builder.step(load)


def _load_parameter(builder: Builder, access: Access, address: Address, writes: list[Writer]) -> bool:
    """Add the step that reads a kernel parameter named directly: the same value for every lane."""
    variable = parameter(builder, access, address)
    if variable is None or not builder.names.kernel_parameter(variable):
        return False
    dtype = DTYPES[access.type]
    size = dtype.itemsize
    start = builder.names.param_offset(variable) + address.offset
    if start < 0 or start + size * access.count > builder.names.param_bytes:
        raise MalformedPtx(f"{size * access.count} bytes at offset {start}, outside the kernel's parameters")
    if start % (size * access.count):
        raise MalformedPtx(f"a parameter of {size * access.count} bytes at the misaligned offset {start}")
    for index, write in enumerate(writes):
        builder.step(_copy_parameter(start + index * size, dtype, write))
    return True


def _copy_parameter(start: int, dtype: np.dtype[Any], write: Writer) -> Step:
    size = dtype.itemsize
    read = read_computed(lambda machine: int.from_bytes(machine.launch.params[start : start + size], "little"), dtype)
    return lambda machine: write(machine, read(machine))


def compile_store(builder: Builder, instruction: Instruction) -> None:
    """Add the step of an ``st``."""
    access = parse_access(instruction)
    source, place = _operands(instruction, target_first=False)
    address = memory_operand(builder, place)
    if access.space == "const":
        raise MalformedPtx("constant memory is read-only")
    dtype = DTYPES[access.type]
    raw = f"b{dtype.itemsize * 8}"
    kind = access.type if access.type in ("f32", "f64") else raw
    reads = [builder.names.reader(one, kind) for one in builder.names.elements(source)]
    if len(reads) != access.count:
        raise MalformedPtx(f"{len(reads)} sources for {access.count} elements")
    note_width(builder, access)
    space, read_address = locate(builder, access, address)
    site, count, strong, ordering = builder.site(instruction), access.count, access.strong, access.ordering
    (read, *_) = reads

    def store(machine: Machine) -> None:
        if ordering:
            synchronize(machine)
        values = read(machine) if count == 1 else np.stack([read_one(machine) for read_one in reads], axis=1)
        machine.memory.store(space, site, machine.who, read_address(machine), values, atomic=strong)

    builder.step(store)


def synchronize(machine: Machine) -> None:
    """Order all accesses so far, in the blocks of the active lanes, before all later ones, for race checks."""
    if machine.who is None:
        machine.memory.shadow.synchronize_blocks(slice(None))
    else:
        machine.memory.shadow.synchronize_blocks(np.unique(machine.geometry.block[machine.who]))


def compile_fence(builder: Builder, instruction: Instruction) -> None:
    """Add the step of a ``membar`` or ``fence``: lanes see each other's writes at once, so only races are concerned."""
    allowed = {"membar": _MEMBAR, "fence": _FENCE}[instruction.opcode]
    if not allowed.fullmatch(".".join(instruction.modifiers)):
        raise UnsupportedPtx(f"the emulator lacks this form of {instruction.opcode}")
    builder.step(synchronize)


_MEMBAR: Final = re.compile(r"(level\.)?(cta|gl|sys)|proxy\.(alias|async(\.(global|shared::cta))?)")
_FENCE: Final = re.compile(
    r"((sc|acq_rel|acquire|release)\.)?(cta|gpu|sys|cluster)"
    r"|mbarrier_init\.release\.cluster|proxy\.(alias|async(\.(global|shared::cta|shared::\{cta,cluster\}))?)"
)


def compile_hint(builder: Builder, instruction: Instruction) -> None:
    """Accept an instruction that only advises the caches."""
    for operand in instruction.operands:
        builder.names.reader(operand, "u64" if isinstance(operand, Address) else "b32")


def compile_policy(builder: Builder, instruction: Instruction) -> None:
    """Add the step of a ``createpolicy``: caches have no policies here, so any value is one."""
    write = builder.names.writer(instruction.operands[0], "b64") if instruction.operands else None
    if write is None:
        raise MalformedPtx("no destination")
    read = read_constant(0, RAW[64])
    builder.step(lambda machine: write(machine, read(machine)))
