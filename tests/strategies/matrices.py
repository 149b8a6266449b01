"""Elements of matrices, as bits, for products on tensor cores."""

from __future__ import annotations

import functools

import numpy as np

from oracles import tensor

FLOATS = {"f64", "f32", "tf32", "bf16", "f16", "e4m3", "e5m2"}


@functools.cache
def encode(value: float, type_: str) -> int:
    """Return the bits of a number that the type holds exactly."""
    if type_ in {"e4m3", "e5m2"}:
        return next(bits for bits in range(256) if tensor.decode(bits, type_) == value)
    return {
        "f64": lambda: int(np.float64(value).view(np.uint64)),
        "f32": lambda: int(np.float32(value).view(np.uint32)),
        "tf32": lambda: int(np.float32(value).view(np.uint32)),
        "bf16": lambda: int(np.float32(value).view(np.uint32)) >> 16,
        "f16": lambda: int(np.float16(value).view(np.uint16)),
    }[type_]()


def draw_exact(random: np.random.Generator, type_: str) -> int:
    """Return an element whose products and sums over up to 64 of them are exact in every accumulator type.

    Floats are -2, -1.5, ... 2. Integers are any.
    """
    if type_ in FLOATS:
        return encode(int(random.integers(-4, 5)) / 2, type_)
    return int(random.integers(0, 1 << tensor.BITS[type_]))


def draw_rounding(random: np.random.Generator, type_: str) -> int:
    """Return an f16, bf16, tf32, f32 or f64 element in -1 .. 1 with a full mantissa."""
    value = random.uniform(-1, 1)
    if type_ == "tf32":
        return int(np.float32(value).view(np.uint32)) & ~0x1FFF
    if type_ == "bf16":
        return int(np.float32(value).view(np.uint32)) >> 16
    kind = {"f16": np.float16, "f32": np.float32, "f64": np.float64}[type_]
    return int(np.array(value, kind).view(f"u{np.dtype(kind).itemsize}"))


def pack(elements: list[int], type_: str) -> list[int]:
    """Return the registers that hold elements in order: 32 bits each, 64 for f64."""
    width = tensor.BITS[type_]
    per = max(32 // width, 1)
    return [
        sum(bits << (i * width) for i, bits in enumerate(elements[start : start + per]))
        for start in range(0, len(elements), per)
    ]
