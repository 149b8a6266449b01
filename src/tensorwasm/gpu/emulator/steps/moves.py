"""Steps that move values: ``mov`` in all forms, address conversions and tests.

Source: PTX ISA 9.7.9.1 and .2 (mov), 9.7.9.18 (isspacep), 9.7.9.20 (cvta).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from tensorwasm.errors import MalformedPtx, UnsupportedPtx
from tensorwasm.gpu.emulator.execution.machine import SimtMachine, Step
from tensorwasm.gpu.emulator.lanes import Array
from tensorwasm.gpu.emulator.memory.planes import CONST_WINDOW, WINDOW_BYTES
from tensorwasm.gpu.emulator.memory.spaces import SHARED_WINDOW, WINDOWS, to_local
from tensorwasm.gpu.emulator.ops import DTYPES
from tensorwasm.gpu.emulator.program.builder import Builder
from tensorwasm.gpu.emulator.program.operands import RAW, Reader, own
from tensorwasm.ptx.model import Instruction, Name, Operand
from tensorwasm.ptx.symbols import SPECIALS

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
        _move_each(builder, list(names.elements(target)), list(names.elements(source)), ptx_type)
    elif names.is_vector(source):
        _pack(builder, target, list(names.elements(source)), ptx_type)
    elif names.is_vector(target):
        _unpack(builder, list(names.elements(target)), source, ptx_type)
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
