"""Steps that move data: ``mov`` in all forms, address conversions and tests, loads, stores, fences, cache hints.

Source: PTX ISA 9.7.9.3 and .4 (mov), 9.7.9.8 (ld), 9.7.9.9 (ld.global.nc), 9.7.9.10 (ldu), 9.7.9.11 (st), 9.7.9.18
(isspacep), 9.7.9.20 (cvta), 9.4.1 (operand size).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tensorwasm.errors import MalformedPtx, UnsupportedPtx
from tensorwasm.gpu.emulator.execution.machine import SimtMachine, Step
from tensorwasm.gpu.emulator.lanes import Array
from tensorwasm.gpu.emulator.memory.planes import CONST_WINDOW, WINDOW_BYTES
from tensorwasm.gpu.emulator.memory.spaces import SHARED_WINDOW, WINDOWS, to_local
from tensorwasm.gpu.emulator.ops import DTYPES
from tensorwasm.gpu.emulator.program.builder import Builder
from tensorwasm.gpu.emulator.program.names import frame_offset
from tensorwasm.gpu.emulator.program.program import RAW, Reader, Writer, own, read_computed, read_constant
from tensorwasm.ptx.model import Address, Instruction, Name, Operand, Variable
from tensorwasm.ptx.symbols import SPECIALS

SPACES: Final = {
    **{space: space for space in ("const", "global", "local", "param", "shared")},
    **dict.fromkeys(("param::entry", "param::func"), "param"),
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
    """The modifiers of a memory instruction.

    Attributes:
        space: as `BatchMemory` names it.
        type, dtype: PTX and NumPy type of an element.
        count: elements.
        strong: whether it takes part in the memory model, and so never races.
        ordering: whether it orders other accesses.
        words: modifiers of the instruction itself.
    """

    space: str
    type: str
    dtype: np.dtype[Any]
    count: int
    strong: bool
    ordering: bool
    words: tuple[str, ...] = ()


def parse_access(instruction: Instruction, own_words: frozenset[str] = frozenset()) -> Access:
    """Read the modifiers of a memory instruction."""
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
    dtype = DTYPES[ptx_type]
    if dtype.itemsize * count > 32:
        raise UnsupportedPtx(f"the emulator has no accesses of more than 32 bytes, such as .v{count}.{ptx_type}")
    return Access(space, ptx_type, dtype, count, strong, ordering, tuple(own))


def memory_operand(builder: Builder, operand: Operand) -> Address:
    """Return an operand that must be an address."""
    if not isinstance(operand, Address):
        raise MalformedPtx("an address in brackets is expected")
    if operand.coordinates:
        raise UnsupportedPtx("the emulator has no addresses with coordinates")
    variable = builder.names.variable(operand.base)
    if variable is not None and variable.type not in DTYPES and variable.type != "b128":
        raise UnsupportedPtx(f"the emulator has no variables of type .{variable.type}")
    return operand


def _parameter(builder: Builder, access: Access, address: Address) -> Variable | None:
    """Return the ``.param`` variable that an access names directly, or None."""
    return builder.names.variable(address.base) if access.space == "param" else None


def locate(builder: Builder, access: Access, address: Address) -> tuple[str, Reader]:
    """Return space and addresses of an access, and note its width. Parameters of functions are in local memory."""
    if access.space in ("shared", "generic"):
        builder.code.note_access(access.dtype.itemsize)
    variable = _parameter(builder, access, address)
    if variable is None or builder.names.param_offset(variable) is not None:
        return access.space, builder.names.address(address)
    key, offset = builder.names.key(variable), address.offset
    return "local", read_computed(lambda machine: frame_offset(machine, key) + offset, RAW[64])


def _two_operands(instruction: Instruction) -> tuple[Operand, ...]:
    """Return the operands without a cache policy."""
    if len(instruction.operands) != 2 + ("L2::cache_hint" in instruction.modifiers):
        raise MalformedPtx(f"{len(instruction.operands)} operands")
    return instruction.operands[:2]


def compile_load(builder: Builder, instruction: Instruction) -> None:
    """Add the step of an ``ld`` or ``ldu``."""
    access = parse_access(instruction)
    target, place = _two_operands(instruction)
    address = memory_operand(builder, place)
    writes = [builder.names.writer(one, access.type) for one in builder.names.elements(target)]
    dtype, count, strong, ordering = access.dtype, access.count, access.strong, access.ordering
    if len(writes) != count:
        raise MalformedPtx(f"{len(writes)} destinations for {count} elements")
    start = builder.names.param_offset(_parameter(builder, access, address))
    if start is not None:
        _load_parameter(builder, start + address.offset, dtype, writes)
        return
    space, read = locate(builder, access, address)
    (write, *_) = writes

    def load(machine: SimtMachine) -> None:
        if strong:
            machine.spins += 1
        values = machine.memory.load(space, instruction, machine.active, read(machine), dtype, count, atomic=strong)
        if count == 1:
            write(machine, values)
        else:
            for column, write_one in enumerate(writes):
                write_one(machine, values[:, column].copy())
        if ordering:
            synchronize(machine)

    builder.step(load)


def _load_parameter(builder: Builder, start: int, dtype: np.dtype[Any], writes: list[Writer]) -> None:
    """Add the steps that read a kernel parameter named directly: the same value for every lane."""
    size = dtype.itemsize
    total = size * len(writes)
    if start < 0 or start + total > builder.names.param_bytes:
        raise MalformedPtx(f"{total} bytes at offset {start}, outside the kernel's parameters")
    if start % total:
        raise MalformedPtx(f"a parameter of {total} bytes at the misaligned offset {start}")
    for index, write in enumerate(writes):
        builder.step(_copy_parameter(start + index * size, dtype, write))


def _copy_parameter(start: int, dtype: np.dtype[Any], write: Writer) -> Step:
    part = slice(start, start + dtype.itemsize)
    read = read_computed(lambda machine: int.from_bytes(machine.launch.params[part], "little"), dtype)
    return lambda machine: write(machine, read(machine))


def compile_store(builder: Builder, instruction: Instruction) -> None:
    """Add the step of an ``st``."""
    access = parse_access(instruction)
    place, source = _two_operands(instruction)
    address = memory_operand(builder, place)
    if access.space == "const":
        raise MalformedPtx("constant memory is read-only")
    kind = access.type if access.type in ("f32", "f64") else f"b{access.dtype.itemsize * 8}"
    reads = [builder.names.reader(one, kind) for one in builder.names.elements(source)]
    count, strong, ordering = access.count, access.strong, access.ordering
    if len(reads) != count:
        raise MalformedPtx(f"{len(reads)} sources for {count} elements")
    space, read_address = locate(builder, access, address)
    (read, *_) = reads

    def store(machine: SimtMachine) -> None:
        if ordering:
            synchronize(machine)
        values = read(machine) if count == 1 else np.stack([read_one(machine) for read_one in reads], axis=1)
        machine.memory.store(space, instruction, machine.active, read_address(machine), values, atomic=strong)

    builder.step(store)


def synchronize(machine: SimtMachine) -> None:
    """Order all accesses so far, in the blocks of the active lanes, before all later ones, for race checks."""
    if machine.active is None:
        machine.memory.races.synchronize_blocks(slice(None))
    else:
        machine.memory.races.synchronize_blocks(np.unique(machine.geometry.block[machine.active]))


def compile_fence(builder: Builder, _instruction: Instruction) -> None:
    """Add the step of a ``membar`` or ``fence``: lanes see each other's writes at once, so only races are concerned."""
    builder.step(synchronize)


def compile_hint(builder: Builder, instruction: Instruction) -> None:
    """Accept an instruction that only advises the caches."""
    for operand in instruction.operands:
        builder.names.reader(operand, "u64" if isinstance(operand, Address) else "b32")


def compile_policy(builder: Builder, instruction: Instruction) -> None:
    """Add the step of a ``createpolicy``: caches have no policies here, so any value is one."""
    write = builder.names.writer(instruction.operands[0], "b64")
    read = read_constant(0, RAW[64])
    builder.step(lambda machine: write(machine, read(machine)))


# ---------------------------------------------------------------------------------------------------------------- moves

_SCALARS: Final = frozenset(
    {"pred", "f16", "f16x2", "bf16", "bf16x2", "f32", "f64"}
    | {f"{kind}{bits}" for kind in "bus" for bits in (16, 32, 64)}
)


def compile_mov(builder: Builder, instruction: Instruction) -> None:
    """Add the step of a ``mov``: registers, constants, addresses, packing and unpacking."""
    names = builder.names
    ptx_type = instruction.modifiers[-1] if instruction.modifiers else ""
    if ptx_type == "b128":
        raise UnsupportedPtx("the emulator has no 128-bit registers")
    width = instruction.modifiers[:-1]
    if ptx_type not in _SCALARS or width not in ((), ("v2",), ("v4",)) or len(instruction.operands) != 2:
        raise UnsupportedPtx("the emulator lacks this form of mov")
    target, source = instruction.operands
    if width:
        _move_each(builder, names.elements(target), names.elements(source), ptx_type)
    elif names.is_vector(source):
        _pack(builder, target, names.elements(source), ptx_type)
    elif names.is_vector(target):
        _unpack(builder, names.elements(target), source, ptx_type)
    else:
        _move(builder, target, source, ptx_type)


def _move(builder: Builder, target: Operand, source: Operand, ptx_type: str) -> None:
    builder.names.require_width(target, ptx_type)
    builder.names.require_width(source, ptx_type)
    raw = "pred" if ptx_type == "pred" else f"b{DTYPES[ptx_type].itemsize * 8}"
    if isinstance(target, Name) and isinstance(source, Name) and source.name not in SPECIALS:
        register, origin = builder.names.register(target), builder.names.register(source)
        if register is not None and origin is not None:
            builder.step(_share(register.slot, origin.slot, builder.names.reader(source, raw)))
            return
    immediate = ptx_type if ptx_type in ("f32", "f64") else raw
    read, write = builder.names.reader(source, immediate), builder.names.writer(target, immediate)

    def step(machine: SimtMachine) -> None:
        values = read(machine)
        # A read-only array (a constant, a special register) is what `SimtMachine.write` expects of a shared one.
        write(machine, values if not values.flags.writeable else own(values, (values,)))

    builder.step(step)


def _share(target: int, source: int, read: Reader) -> Step:
    def step(machine: SimtMachine) -> None:
        if machine.active is None:
            values = machine.regs[source]
            values.flags.writeable = False
            machine.regs[target] = values
        else:
            machine.write(target, read(machine))

    return step


def _move_each(builder: Builder, targets: list[Operand], sources: list[Operand], ptx_type: str) -> None:
    if len(targets) != len(sources):
        raise MalformedPtx("vectors of different lengths")
    reads = [builder.names.reader(source, ptx_type) for source in sources]
    writes = [builder.names.writer(target, ptx_type) for target in targets]

    def step(machine: SimtMachine) -> None:
        values = [read(machine).copy() for read in reads]
        for write, value in zip(writes, values, strict=True):
            write(machine, value)

    builder.step(step)


def _part(ptx_type: str, count: int) -> np.dtype[Any]:
    """Return the raw type of each of ``count`` parts of a type."""
    bits = DTYPES[ptx_type].itemsize * 8
    if count not in (2, 4) or bits // count < 8 or ptx_type == "pred":
        raise MalformedPtx(f"{count} elements in .{ptx_type}")
    return RAW[bits // count]


def _pack(builder: Builder, target: Operand, sources: list[Operand], ptx_type: str) -> None:
    part, bits = _part(ptx_type, len(sources)), DTYPES[ptx_type].itemsize * 8
    for source in sources:
        builder.names.require_width(source, f"b{part.itemsize * 8}")
    reads = [builder.names.reader(source, f"b{part.itemsize * 8}") for source in sources]
    write = builder.names.writer(target, f"b{bits}")
    whole = RAW[bits]

    def step(machine: SimtMachine) -> None:
        values = np.empty((machine.count, len(reads)), part)
        for column, read in enumerate(reads):
            values[:, column] = read(machine)
        write(machine, values.view(whole).reshape(-1))

    builder.step(step)


def _unpack(builder: Builder, targets: list[Operand], source: Operand, ptx_type: str) -> None:
    part = _part(ptx_type, len(targets))
    read = builder.names.reader(source, f"b{DTYPES[ptx_type].itemsize * 8}")
    sinks = [isinstance(target, Name) and target.name == "_" for target in targets]
    writes = [builder.names.writer(target, f"b{part.itemsize * 8}") for target in targets]

    def step(machine: SimtMachine) -> None:
        parts = read(machine).view(part).reshape(machine.count, -1)
        values = [None if sink else parts[:, column].copy() for column, sink in enumerate(sinks)]
        for write, value in zip(writes, values, strict=True):
            if value is not None:
                write(machine, value)

    builder.step(step)


# ---------------------------------------------------------------------------------------------- addresses


def _base_space(word: str) -> str:
    """Return a space without ``::cta`` or ``::entry``."""
    return word.split("::", maxsplit=1)[0] if word.rsplit("::", maxsplit=1)[-1] in ("cta", "entry", word) else word


def compile_cvta(builder: Builder, instruction: Instruction) -> None:
    """Add the step of a ``cvta``: an address into or out of the generic space."""
    space, to_space = _base_space(instruction.modifiers[-2]), instruction.modifiers[0] == "to"
    if space not in (*WINDOWS, "global", "const"):
        raise UnsupportedPtx("the emulator lacks this form of cvta")
    target, source = instruction.operands
    window = WINDOWS.get(space, 0)
    if window == 0:
        _move(builder, target, source, "u64")
        return
    delta = np.uint64(-window % (1 << 64) if to_space else window)
    read, write = builder.names.reader(source, "u64"), builder.names.writer(target, "u64")
    if space == "local" and not to_space:
        builder.step(lambda machine: write(machine, to_local(read(machine)) + delta))
    else:
        builder.step(lambda machine: write(machine, read(machine) + delta))


def _between(low: int, high: int) -> Callable[[Array], Array]:
    return lambda values: (values >= np.uint64(low)) & (values < np.uint64(high))


_TESTS: Final[dict[str, Callable[[Array], Array]]] = {
    "const": _between(CONST_WINDOW, CONST_WINDOW + WINDOW_BYTES),
    **{space: _between(window, window + WINDOW_BYTES) for space, window in WINDOWS.items()},
    "global": lambda values: (values < np.uint64(SHARED_WINDOW)) & ~_TESTS["const"](values),
}


def compile_isspacep(builder: Builder, instruction: Instruction) -> None:
    """Add the step of an ``isspacep``: whether a generic address is in a space."""
    test = _TESTS.get(_base_space(instruction.modifiers[0]))
    if test is None:
        raise UnsupportedPtx("the emulator lacks this form of isspacep")
    target, source = instruction.operands
    read, write = builder.names.reader(source, "u64"), builder.names.writer(target, "pred")
    builder.step(lambda machine: write(machine, test(read(machine))))
