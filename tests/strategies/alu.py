"""Operands for instructions: bits of every type, biased towards the edges of its format, and mnemonics spelled out."""

from __future__ import annotations

import functools
import random
import re

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from oracles.formats import FORMATS, Real, decode, encode, log2_floor, multiply, negated
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
    mantissas |= {1 << i for i in range(0, m, 5)}
    positive = {x << m | y for x in exponents for y in mantissas if 0 <= x < 2**e}
    positive |= {infinity, infinity + 1, infinity | 1 << (m - 1), infinity | (1 << m) - 1}
    sign = 1 << (e + m)
    return tuple((v | s) << form.shift for v in sorted(positive) for s in (0, sign))


def bits(type_: str) -> st.SearchStrategy[int]:
    """Any bits of a type, half of them edges."""
    size = 1 if type_ == "pred" else 8 * width_bytes(type_)
    return st.one_of(st.sampled_from(edges(type_)), st.integers(0, (1 << size) - 1))


@st.composite
def floats_of(draw: st.DrawFn, type_: str, exponent: int | None = None) -> int:
    """Return a finite number, with few or many bits set, of about the given exponent field."""
    form = FORMATS[type_]
    m, top = form.mantissa, 2**form.exponent - 2
    field = draw(st.integers(0, top)) if exponent is None else min(max(exponent, 0), top)
    small = draw(st.integers(0, 7))
    mantissa = draw(st.sampled_from([draw(st.integers(0, 2**m - 1)), small, small << (m - 3), 2**m - 1 - small]))
    return draw(st.booleans()) << (form.exponent + m) | field << m | mantissa


@st.composite
def related(draw: st.DrawFn, opcode: str, type_: str) -> tuple[int, ...]:
    """Return operands whose exact result lies near a tie, near zero by cancellation, or near the ends of the range."""
    form = FORMATS[type_]
    m, bias, top = form.mantissa, 2 ** (form.exponent - 1) - 1, 2**form.exponent - 2
    a = draw(floats_of(type_))
    field = a >> m & (2**form.exponent - 1)
    apart = st.one_of(
        st.sampled_from([d * s for d in (0, 1, 2, m, m + 1, m + 2) for s in (1, -1)]), st.integers(-90, 90)
    )
    result = draw(st.one_of(st.integers(-m - 3, 4), st.integers(0, top), st.sampled_from([top, top + 1])))
    if opcode in {"rcp", "sqrt"}:
        return (a,)
    if opcode in {"add", "sub"}:
        return a, draw(floats_of(type_, field + draw(apart)))
    if opcode == "div":
        b = draw(floats_of(type_, field - result + bias))
        quotient = multiply(decode(draw(floats_of(type_, result)), type_), decode(b, type_))
        return draw(st.sampled_from([a, encode(quotient, type_)])), b
    b = draw(floats_of(type_, result + bias - field))
    return (a, b) if opcode == "mul" else (a, b, draw(_addend(a, b, type_, draw(apart))))


@st.composite
def _addend(draw: st.DrawFn, a: int, b: int, type_: str, apart: int) -> int:
    """Return what nearly cancels a product, or lies ``apart`` binary places from it."""
    product = multiply(decode(a, type_), decode(b, type_))
    if not isinstance(product, Real) or product.value == 0:
        return draw(bits(type_))
    if draw(st.booleans()):
        return encode(negated(product), type_, draw(st.sampled_from(["rn", "rz", "rm", "rp"])))
    bias = 2 ** (FORMATS[type_].exponent - 1) - 1
    scale = draw(st.sampled_from([1, 2]))
    return draw(floats_of(type_, log2_floor(abs(product.value)) + bias + scale * apart))


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
