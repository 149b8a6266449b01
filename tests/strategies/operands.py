"""Numbers of every PTX type as bits, seeded, and drawn to where instructions go wrong: edges, ties, equal operands."""

from __future__ import annotations

import zlib

import numpy as np
from numpy.typing import NDArray

from strategies.lanes import raw_dtype, width_bytes

FORMATS = {"f16": (5, 10), "bf16": (8, 7), "tf32": (8, 23), "f32": (8, 23), "f64": (11, 52)}
"""Bits of exponent and stored mantissa."""


def draw(form: str, types: tuple[str, ...], lanes: int) -> list[NDArray]:
    """Return one array of raw bits per operand, the same for the same form on every machine."""
    random = np.random.default_rng(zlib.crc32(form.encode()))
    columns = [_draw_type(random, type_, lanes) for type_ in types]
    for column, type_ in zip(columns[1:], types[1:], strict=True):
        if type_ == types[0]:  # equal operands, and operands that differ in the last bit
            same = random.random(lanes) < 0.15
            column[same] = columns[0][same] ^ (random.random(same.sum()) < 0.5).astype(column.dtype)
    if len(types) == 3 and len(set(types)) == 1 and types[0] in FORMATS:
        _cancel(random, types[0], columns)
    return columns


def _cancel(random: np.random.Generator, type_: str, columns: list[NDArray]) -> None:
    """Make ``a * 1 + c`` cancel, wholly or but for the last bits, in some lanes."""
    exponent_bits, mantissa_bits = FORMATS[type_]
    a, b, c = columns
    chosen = random.random(len(a)) < 0.15
    one, sign = ((1 << (exponent_bits - 1)) - 1) << mantissa_bits, 1 << (exponent_bits + mantissa_bits)
    b[chosen] = one
    c[chosen] = a[chosen] ^ a.dtype.type(sign) ^ random.integers(0, 3, chosen.sum()).astype(a.dtype)


def _draw_type(random: np.random.Generator, type_: str, lanes: int) -> NDArray:
    if type_ == "pred":
        return random.integers(0, 2, lanes, dtype=np.uint32)
    if type_ in {"e4m3x2", "e5m2x2", "ue8m0x2"}:
        return random.integers(0, 1 << 16, lanes, dtype=np.uint16)  # few enough to meet them all by chance
    base, _, packed = type_.partition("x")
    if packed:
        parts = _draw_type(random, base, lanes * int(packed))
        return np.ascontiguousarray(parts).view(raw_dtype(type_))
    return _draw_float(random, base, lanes) if base in FORMATS else _draw_integer(random, base, lanes)


def _draw_integer(random: np.random.Generator, type_: str, lanes: int) -> NDArray:
    bits = 8 * width_bytes(type_)
    mask = (1 << bits) - 1
    edges = [0, 1, 2, mask, mask - 1, mask >> 1, (mask >> 1) + 1, (mask >> 1) + 2, 0x55 * (mask // 255)]
    edges += [bits - 1, bits, bits + 1, 31, 32, 33, 64]  # counts and positions
    anything = random.integers(0, 256, (lanes, bits // 8), dtype=np.uint8).view(f"u{bits // 8}").ravel()
    narrow = anything >> random.integers(0, bits, lanes).astype(anything.dtype)
    narrow = np.where(random.random(lanes) < 0.5, narrow, ~narrow)
    return _mix(random, [anything, narrow, np.array([edge & mask for edge in edges], anything.dtype)])


def _draw_float(random: np.random.Generator, type_: str, lanes: int) -> NDArray:
    exponent_bits, mantissa_bits = FORMATS[type_]
    dtype, bias, top = raw_dtype(type_), (1 << (exponent_bits - 1)) - 1, (1 << exponent_bits) - 1
    sign_place = exponent_bits + mantissa_bits

    def encode(exponent, mantissa, sign=0):
        parts = [np.asarray(part).astype(dtype) for part in (sign, exponent, mantissa)]
        return parts[0] << dtype.type(sign_place) | parts[1] << dtype.type(mantissa_bits) | parts[2]

    full, half = (1 << mantissa_bits) - 1, 1 << (mantissa_bits - 1)
    magnitudes = [(0, 0), (0, 1), (0, full), (1, 0), (1, 1), (bias, 0), (bias, 1), (bias - 1, 0), (bias - 1, full)]
    magnitudes += [(bias, half), (bias + 1, half), (bias + mantissa_bits, 1), (bias + 31, 0), (bias + 30, full)]
    magnitudes += [(top - 1, full), (top - 1, 0), (top, 0), (top, half), (top, half | 5), (top, 1)]
    edges = np.array([encode(e & top, m, sign) for sign in (0, 1) for e, m in magnitudes], dtype)
    sign = random.integers(0, 2, lanes)
    mantissa = random.integers(0, full + 1, lanes, dtype=np.uint64)
    few_bits = mantissa & ~np.uint64(full >> 4)  # sums and products of these are often exact or ties
    wide = encode(random.integers(0, top, lanes), mantissa, sign)
    close = encode(bias + random.integers(-6, 7, lanes), mantissa, sign)
    round_ = encode(bias + random.integers(-3, 12, lanes), few_bits, sign)
    return _mix(random, [wide, close, round_, edges])


def _mix(random: np.random.Generator, pools: list[NDArray]) -> NDArray:
    """Take each lane from a pool at random; the last pool is of edges, any number of them."""
    lanes = len(pools[0])
    edges = random.choice(pools[-1], lanes)
    return np.choose(random.integers(0, len(pools), lanes), [*pools[:-1], edges])
