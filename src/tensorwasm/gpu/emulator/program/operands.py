"""How steps read and write operands: each operand becomes a function of the machine, once, at load time.

A register that is narrower than the type that an instruction reads or writes is refused with `MalformedPtx`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tensorwasm.errors import MalformedPtx
from tensorwasm.gpu.emulator.execution.machine import SimtMachine
from tensorwasm.gpu.emulator.lanes import Array
from tensorwasm.gpu.emulator.ops import DTYPES

Reader = Callable[[SimtMachine], Array]
Writer = Callable[[SimtMachine, Array], None]

RAW: Final = {bits: np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64)} | {1: np.dtype(np.bool_)}
SIGNED: Final = {bits: np.dtype(f"int{bits}") for bits in (8, 16, 32, 64)}


@dataclass(frozen=True, slots=True)
class RegisterSlot:
    """Index of a register among the machine's, and its bits: 8, 16, 32 or 64; 1 for a predicate."""

    slot: int
    bits: int


def read_register(register: RegisterSlot, dtype: np.dtype[Any]) -> Reader:
    """Return a reader that views a register as ``dtype``, or its low bits if that is narrower."""
    slot, raw = register.slot, RAW[register.bits]

    def read(machine: SimtMachine) -> Array:
        values = machine.regs[slot]
        active = machine.active
        if active is None:
            return values
        if type(active) is slice:
            return values[active]
        return values.take(active)

    if dtype == raw:
        return read
    if (dtype.kind == "b") != (raw.kind == "b") or dtype.itemsize > raw.itemsize:
        raise MalformedPtx(f"a register of {register.bits} bits where {dtype.name} is expected")
    if dtype.itemsize == raw.itemsize:
        return lambda machine: read(machine).view(dtype)
    low = RAW[dtype.itemsize * 8]
    return lambda machine: read(machine).astype(low).view(dtype)


def read_constant(bits: int, dtype: np.dtype[Any]) -> Reader:
    """Return a reader of an immediate."""
    return lambda machine: machine.constant(bits, dtype)


def read_computed(compute: Callable[[SimtMachine], int], dtype: np.dtype[Any]) -> Reader:
    """Return a reader of a value that the launch fixes, such as the address of a variable."""
    return lambda machine: machine.constant(compute(machine), dtype)


def write_register(register: RegisterSlot, ptx_type: str) -> Writer:
    """Return a writer of values of a PTX type, extended to the register: by sign for ``.s``, else by zeros."""
    slot, raw, dtype = register.slot, RAW[register.bits], DTYPES[ptx_type]
    if (dtype.kind == "b") != (raw.kind == "b") or dtype.itemsize > raw.itemsize:
        raise MalformedPtx(f"a register of {register.bits} bits where .{ptx_type} is expected")
    if dtype == raw:
        return lambda machine, values: machine.write(slot, values)
    if dtype.itemsize == raw.itemsize:
        return lambda machine, values: machine.write(slot, values.view(raw))
    if dtype.kind == "i":
        wide = SIGNED[register.bits]
        return lambda machine, values: machine.write(slot, values.astype(wide).view(raw))
    narrow = RAW[dtype.itemsize * 8]
    return lambda machine, values: machine.write(slot, values.view(narrow).astype(raw))


def write_nothing(_machine: SimtMachine, _values: Array) -> None:
    """Drop the values: the sink ``_``."""


def own(values: Array, sources: tuple[Array, ...]) -> Array:
    """Return values that share no memory with the sources, contiguous, so that a register may keep them."""
    if values.base is None and values.flags.writeable and values.flags.c_contiguous:
        for source in sources:
            if values is source:
                return values.copy()
        return values
    return values.copy()


def float_bits(value: float, width: int) -> int:
    """Return the IEEE bits of a number in single (32) or double (64) precision."""
    with np.errstate(all="ignore"):
        return int(np.float32(value).view(np.uint32) if width == 32 else np.float64(value).view(np.uint64))


def immediate_bits(value: int, ptx_type: str) -> int:
    """Return an integer constant (PTX ISA 4.5) as bits of a type: its value for floats, else two's complement."""
    if ptx_type in ("f32", "f64"):
        return float_bits(float(value), int(ptx_type[1:]))
    return value & ((1 << DTYPES[ptx_type].itemsize * 8) - 1)


def floating_bits(bits: int, width: int, ptx_type: str) -> int:
    """Return a floating-point constant as bits of a type, converted if ``ptx_type`` is the other precision."""
    target = DTYPES[ptx_type].itemsize * 8
    if target == width:
        return bits
    value = struct.unpack("<f" if width == 32 else "<d", bits.to_bytes(width // 8, "little"))[0]
    if target in (32, 64):
        return float_bits(value, target)
    raise MalformedPtx(f"a floating-point constant where .{ptx_type} is expected")
