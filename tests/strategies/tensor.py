"""Registers full of matrix elements."""

import math

import numpy as np

from oracles import tensor as oracle

EXACT_TYPES = {"s8", "u8", "s4", "u4", "b1", "s32"}


def finite_bits(rng, type_):
    """Return bits of an element whose products and sums stay exact in binary64."""
    if type_ in EXACT_TYPES:
        return int(rng.integers(0, 1 << oracle.BITS[type_]))
    value = float(rng.integers(-8, 9)) * 2.0 ** int(rng.integers(-2, 3))
    if type_ in {"e4m3", "e5m2"}:
        return int(rng.choice([bits for bits in range(256) if 2**-4 <= abs(oracle.decode(bits, type_)) <= 16]))
    if type_ == "f64":
        value += rng.random()
    ignored = int(rng.integers(0, 1 << 13)) if type_ == "tf32" else 0
    return oracle.encode(value, type_) | ignored


def draw_registers(rng, form, draw_bits):
    _, *counts = oracle.register_counts(form)
    lanes = []
    for _ in range(32):
        lane = []
        for count, type_ in zip(counts, (form.a, form.b, form.c), strict=True):
            width = oracle.BITS[type_]
            per = max(32 // width, 1)
            lane += [sum(draw_bits(rng, type_) << (i * width) for i in range(per)) for _ in range(count)]
        lanes.append(lane)
    return lanes


def near_the_edge(rng, type_):
    if type_ == "s32":
        return (0x7FFFFFF0 + int(rng.integers(0, 32))) & 0xFFFFFFFF
    return finite_bits(rng, type_)


def any_finite(rng, type_):
    while True:
        bits = int(rng.integers(0, 1 << oracle.BITS[type_], dtype=np.uint64))
        if math.isfinite(oracle.decode(bits, type_)):
            return bits


def small_bits(rng, type_):
    """Return bits of any integer of an integer type, or of an integer from -3 to 3, exact in every accumulator."""
    if type_ in EXACT_TYPES:
        return finite_bits(rng, type_)
    value = float(rng.integers(-3, 4))
    if type_ in {"e4m3", "e5m2"}:
        return next(bits for bits in range(256) if oracle.decode(bits, type_) == value)
    return oracle.encode(value, type_)
