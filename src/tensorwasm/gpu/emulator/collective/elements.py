"""Matrix elements inside registers: taking 32- and 64-bit registers apart and putting them together.

Source: PTX ISA 5.2.3 (alternate floating-point formats), 9.7.14.2 (matrix data types).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tensorwasm.gpu.emulator.alu.rounding import narrow
from tensorwasm.gpu.emulator.collective.fragments import Fragment
from tensorwasm.gpu.emulator.ops import Lanes

Bits = NDArray[Any]
Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Element:
    """A matrix element type.

    Attributes:
        bits: its width.
        decode: unsigned integers of the register's width, each one element, to their exact values.
    """

    bits: int
    decode: Callable[[Bits], Values]

    @property
    def register(self) -> str:
        """PTX type of the registers that hold it."""
        return "b64" if self.bits == 64 else "b32"

    @property
    def per(self) -> int:
        """Elements in a register."""
        return max(32 // self.bits, 1)


def _view(dtype: Any) -> Callable[[Bits], Values]:
    width = np.dtype(f"uint{8 * np.dtype(dtype).itemsize}")
    return lambda bits: bits.astype(width).view(dtype).astype(np.float64)


def _decode_s4(bits: Bits) -> Values:
    return ((bits.astype(np.int64) ^ 8) - 8).astype(np.float64)


def _decode_tf32(bits: Bits) -> Values:
    """Ignore the low 13 bits, which tf32 does not have."""
    return (bits & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)


ELEMENTS: Final[dict[str, Element]] = {
    "f64": Element(64, _view(np.float64)),
    "f32": Element(32, _view(np.float32)),
    "s32": Element(32, _view(np.int32)),
    "tf32": Element(32, _decode_tf32),
    "f16": Element(16, _view(np.float16)),
    "bf16": Element(16, _view(ml_dtypes.bfloat16)),
    "e4m3": Element(8, _view(ml_dtypes.float8_e4m3fn)),
    "e5m2": Element(8, _view(ml_dtypes.float8_e5m2)),
    "s8": Element(8, _view(np.int8)),
    "u8": Element(8, _view(np.uint8)),
    "s4": Element(4, _decode_s4),
    "u4": Element(4, _view(np.uint8)),
    "b1": Element(1, _view(np.uint8)),
}
"""Element types of tensor-core instructions."""

FLOAT_REGISTERS: Final = frozenset({"f32", "f64"})
"""Element types whose registers are floating-point registers."""

_NARROW: Final[dict[str, Callable[[Values], Bits]]] = {
    "f64": lambda x: np.where(np.isnan(x), np.nan, x).view(np.uint64),
    "f32": lambda x: narrow(x, "f32").view(np.uint32),
    "f16": lambda x: narrow(x, "f16").view(np.uint16),
    "s32": lambda x: x.astype(np.int64).astype(np.int32).view(np.uint32),
}
"""Rounds exact values to the bits of an accumulator type; every NaN becomes the canonical one."""


def unpack(words: Lanes, element: Element) -> Bits:
    """Take registers ``(..., registers)`` apart to elements ``(..., registers * per)``, low bits first."""
    if element.per == 1:
        return words
    shifts = np.arange(element.per, dtype=np.uint32) * np.uint32(element.bits)
    parts: Bits = (words[..., None] >> shifts) & np.uint32((1 << element.bits) - 1)
    return parts.reshape(*words.shape[:-1], -1)


def pack(bits: Bits, element: Element) -> Lanes:
    """Put elements ``(..., registers * per)`` together to registers ``(..., registers)``."""
    if element.per == 1:
        return bits
    shifts = np.arange(element.per, dtype=np.uint32) * np.uint32(element.bits)
    parts = bits.astype(np.uint32).reshape(*bits.shape[:-1], -1, element.per)
    words: Lanes = np.bitwise_or.reduce(parts << shifts, axis=-1)
    return words


@dataclass(frozen=True, slots=True)
class Operand:
    """A matrix in the registers of a warp.

    Attributes:
        fragment: who holds what.
        type: key of `ELEMENTS`.
        copies: how often the registers repeat the fragment; the first time counts.
    """

    fragment: Fragment
    type: str
    copies: int = 1

    @property
    def element(self) -> Element:
        """The element type."""
        return ELEMENTS[self.type]

    @property
    def registers(self) -> tuple[str, ...]:
        """PTX types of the registers as results: raw bits."""
        count = self.fragment.elements // self.element.per * self.copies
        return (self.element.register,) * count

    @property
    def sources(self) -> tuple[str, ...]:
        """PTX types of the registers as sources: f32 and f64 have constants of their own (PTX ISA 4.5.2)."""
        return tuple(self.type if self.type in FLOAT_REGISTERS else register for register in self.registers)

    def read(self, registers: Sequence[Lanes]) -> Values:
        """Return the values of the matrix, ``(warps, tiles, rows, columns)``, from ``(warps, 32)`` registers."""
        used = registers[: len(registers) // self.copies]
        return self.fragment.assemble(self.element.decode(self.join(used)))

    def write(self, values: Values) -> tuple[Lanes, ...]:
        """Round a matrix to the element type and distribute it over registers."""
        return self.split(_NARROW[self.type](self.fragment.distribute(values)))

    def join(self, registers: Sequence[Lanes]) -> Bits:
        """Return the element bits ``(warps, 32, elements)`` in registers."""
        words = np.stack(registers, axis=-1)
        return unpack(words.view(f"uint{8 * words.dtype.itemsize}"), self.element)

    def split(self, elements: Bits) -> tuple[Lanes, ...]:
        """Make registers of element bits ``(warps, 32, elements)``."""
        words = pack(elements, self.element)
        return tuple(np.ascontiguousarray(words[..., index]) for index in range(words.shape[-1])) * self.copies
