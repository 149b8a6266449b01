"""Operands for instructions: bits of every type, biased towards the edges of its format, and mnemonics spelled out."""

from __future__ import annotations

import functools
import random
import re
from fractions import Fraction

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from oracles.formats import FORMATS, Real, decode, encode, multiply
from strategies.lanes import LaneKernel, width_bytes
from tensorwasm.gpu.emulator import alu
from tensorwasm.gpu.emulator.ops import DTYPES
from tensorwasm.ptx.model import Instruction, Int, Name, Operand, Pair

LUTS = (0x00, 0x96, 0xE8, 0xC0, 0x3C, 0x1B, 0x7F, 0xFF)
_PARTS = {"f16x2": "f16", "bf16x2": "bf16", "u16x2": "u16", "s16x2": "s16", "e4m3x2": "e4m3", "e5m2x2": "e5m2"}
_SHIFTS = (0, 1, 2, 7, 8, 15, 16, 23, 24, 31, 32, 33, 63, 64, 65, 127, 128, 255, 256)


@functools.cache
def edges(type_: str) -> tuple[int, ...]:
    """Return the bits that tend to break things."""
    if type_ == "pred":
        return (0, 1)
    if type_ in _PARTS:
        part = edges(_PARTS[type_])
        size = 4 * width_bytes(type_)
        return tuple(part[(7 * i) % len(part)] << size | low for i, low in enumerate(part))
    if type_ in FORMATS:
        return _float_edges(type_)
    size = 8 * width_bytes(type_)
    powers = [1 << i for i in range(size)]
    values = {p + d for p in powers for d in (-1, 0, 1)} | set(_SHIFTS) | {0, 0x0F, 0xAAAAAAAA, 0x5555555555555555}
    return tuple(sorted({v & (1 << size) - 1 for v in values} | {~v & (1 << size) - 1 for v in values}))


def _float_edges(type_: str) -> tuple[int, ...]:
    """Zeros, subnormals, the borders of normal and finite numbers, infinities, NaNs, and small integers with ties."""
    form = FORMATS[type_]
    m, e = form.mantissa, form.exponent
    bias, infinity = 2 ** (e - 1) - 1, (2**e - 1) << m
    exponents = {
        0,
        1,
        2,
        m,
        bias - m - 1,
        bias - m,
        bias - 1,
        bias,
        bias + 1,
        bias + m,
        bias + m + 1,
        2**e - 3,
        2**e - 2,
    }
    exponents |= {bias + n for n in (7, 8, 15, 16, 31, 32, 63, 64) if n < bias}
    mantissas = {0, 1, 2, 3, 1 << (m - 1), (1 << (m - 1)) + 1, (1 << m) - 2, (1 << m) - 1}
    mantissas |= {bit << i for i in range(m - 1) for bit in (1, 3)}  # ties of every narrower format
    positive = {x << m | y for x in exponents for y in mantissas if 0 <= x < 2**e}
    positive |= {infinity, infinity + 1, infinity | 1 << (m - 1), infinity | (1 << m) - 1}
    sign = 1 << (e + m)
    return tuple((v | s) << form.shift for v in sorted(positive) for s in (0, sign))


def bits(type_: str) -> st.SearchStrategy[int]:
    """Any bits of a type, half of them edges."""
    size = 1 if type_ == "pred" else 8 * width_bytes(type_)
    return st.one_of(st.sampled_from(edges(type_)), st.integers(0, (1 << size) - 1))


def float_of(source: random.Random, type_: str, exponent: int) -> int:
    """Return a finite number, with few or many bits set, of about the given exponent field."""
    form = FORMATS[type_]
    m = form.mantissa
    field = min(max(exponent, 0), 2**form.exponent - 2)
    small = source.randrange(8)
    mantissa = source.choice([source.getrandbits(m), small, small << (m - 3), 2**m - 1 - small])
    return source.getrandbits(1) << (form.exponent + m) | field << m | mantissa


def related(source: random.Random, opcode: str, type_: str) -> tuple[int, ...]:
    """Return operands of an arithmetic instruction that make rounding hard.

    The exact result lies near a tie, near zero by cancellation, among subnormals, or near overflow.
    """
    if opcode in {"fma", "mad"}:
        return off_a_tie(source, type_)
    form = FORMATS[type_]
    m, bias, top = form.mantissa, 2 ** (form.exponent - 1) - 1, 2**form.exponent - 2
    field = source.randrange(top + 1)
    a = float_of(source, type_, field)
    if opcode in {"rcp", "sqrt"}:
        return (a,)
    if opcode in {"add", "sub"}:
        apart = source.choice([0, 1, -1, 2, -2, m, -m, m + 1, -m - 1, m + 2, -m - 2, source.randrange(-90, 90)])
        return a, float_of(source, type_, field + apart)
    result = source.choice([source.randrange(-m - 3, 5), source.randrange(top + 1), top, top + 1])
    if opcode == "mul":
        return source.choice([(a, float_of(source, type_, result + bias - field)), off_a_tie(source, type_)[:2]])
    b = float_of(source, type_, field - result + bias)
    quotient = multiply(decode(float_of(source, type_, result), type_), decode(b, type_))
    return source.choice([a, encode(quotient, type_)]), b


def off_a_tie(source: random.Random, type_: str) -> tuple[int, int, int]:
    """Return ``a, b, c`` with ``a * b + c`` a little off a tie: what one more rounding would get wrong.

    Ties of subnormals and of normal numbers, sums that cancel, and operands of every size come alike.
    """
    form = FORMATS[type_]
    m, half = form.mantissa, form.lowest - form.mantissa - 1  # the place of half the least subnormal
    exact = source.random() < 0.5
    x, y, extra, size = (_tie_product if exact else _near_tie_product)(source, m)
    place = source.choice([half, source.randint(half - 2, half + 4), source.randint(half + m, -half - m), 1 - m])
    spread = source.choice([3, 3, -form.lowest * 9 // 10])
    share = (place - extra) // 2 + source.randint(-spread, spread)
    factors = Fraction(x) * Fraction(2) ** share, Fraction(y) * Fraction(2) ** (place - extra - share)
    below, above = place - source.randint(m, 3 * m), place + source.randint(size, size + m)
    addend = source.choice([Fraction(2) ** below, Fraction(2) ** above, Fraction(0), factors[0] * factors[1]])
    values = (*factors, addend) if source.random() < 0.95 else (Fraction(0), factors[0], addend)
    signs = (source.choice([1, -1]) for _ in values)
    return tuple(encode(Real.of(v * s, negative=s < 0), type_) for v, s in zip(values, signs, strict=True))


def _tie_product(source: random.Random, m: int) -> tuple[int, int, int, int]:
    """Return factors of an odd number with one bit more than a significand holds, or a little less."""
    size = source.choice([m + 2, m + 2, source.randint(1, m + 2)])
    cut = source.randint(1, size)
    x = source.getrandbits(cut) | 1 << (cut - 1) | 1
    y = (source.randint(1 << (size - 1), (1 << size) - 1) // x) | 1
    return x, y, 0, size


def _near_tie_product(source: random.Random, m: int) -> tuple[int, int, int, int]:
    """Return factors whose product misses a shifted odd number by too little for one significand to tell."""
    size = source.randint(1, source.choice([m // 2, m + 2]))
    tie = source.getrandbits(size) | 1 << (size - 1) | 1
    x = source.getrandbits(m + 1) | 1 << m | 1
    extra = 2 * m + 1 - size
    return x, round(Fraction(tie << extra, x)), extra, size


def lanes(type_: str, count: int, seed: str) -> NDArray[np.generic]:
    """Return ``count`` operands of a type, edges and anything, the same ones for the same seed."""
    source = random.Random(f"{seed}:{type_}")
    size = 1 if type_ == "pred" else 8 * width_bytes(type_)
    pool = edges(type_)
    drawn = [source.choice(pool) if source.random() < 0.75 else source.getrandbits(size) for _ in range(count)]
    return from_bits(drawn, type_)


def from_bits(values: list[int], type_: str) -> NDArray[np.generic]:
    """Return raw bits in the dtype that ops take."""
    dtype = DTYPES[type_]
    return np.array(values, bool) if type_ == "pred" else np.array(values, f"u{dtype.itemsize}").view(dtype)


def to_bits(values: NDArray[np.generic]) -> list[int]:
    """Return the raw bits of what an op returns."""
    return (values if values.dtype == bool else values.view(f"u{values.dtype.itemsize}")).tolist()


def instruction(form: str, lut: int = 0x96) -> Instruction:
    """Spell a mnemonic out with registers ``%d0``, ... and ``%a0``, ..."""
    opcode, *modifiers = form.split(".")
    results, sources = alu.operands(form)
    targets: list[Operand] = [Name(f"%d{i}") for i in range(len(results))]
    head: tuple[Operand, ...] = (Pair(targets[0], targets[1]),) if len(targets) == 2 else (targets[0],)
    tail: list[Operand] = [Name(f"%a{i}") for i in range(len(sources))]
    if opcode == "lop3":
        tail[3] = Int(lut)
    return Instruction(opcode, tuple(modifiers), (*head, *tail))


def text(form: str, lut: int = 0x96) -> str:
    """Spell a mnemonic out as PTX."""
    results, sources = alu.operands(form)
    tail = [f"%a{i}" for i in range(len(sources))]
    if form.startswith("lop3"):
        tail[3] = str(lut)
    return f"{form} {'|'.join(f'%d{i}' for i in range(len(results)))}, {', '.join(tail)};"


def kernel(form: str, lut: int = 0x96) -> LaneKernel:
    """Return a kernel in which every lane executes one form."""
    name = re.sub(r"\W", "_", form)
    return LaneKernel(f"case_{name}", *reversed(alu.operands(form)), text(form, lut))
