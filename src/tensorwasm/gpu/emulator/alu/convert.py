"""Conversions between numeric types.

A conversion to a floating-point type first makes the exact value, or its rounding to odd, in binary64, and then rounds
once.

Source: PTX ISA 9.7.9.21 (cvt).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from tensorwasm.gpu.emulator.alu.floating import flush, mode_of, saturate
from tensorwasm.gpu.emulator.alu.rounding import INTEGRAL, Array, Doubles, narrow, nudge, to_odd
from tensorwasm.gpu.emulator.alu.rows import Modifiers, Row, Run
from tensorwasm.gpu.emulator.ops import DTYPES

_INTEGERS: Final = "{u8,u16,u32,u64,s8,s16,s32,s64}"


def _bounds(name: str) -> tuple[int, int]:
    info = np.iinfo(DTYPES[name])
    return int(info.min), int(info.max)


def _integer_to_integer(modifiers: Modifiers) -> Run:
    target, source = modifiers[-2:]
    dtype = DTYPES[target]
    if "sat" not in modifiers:
        return lambda a: a.astype(dtype)
    (low, high), (least, most) = _bounds(target), _bounds(source)
    return lambda a: np.clip(a, max(low, least), min(high, most)).astype(dtype)


def _pieces(a: Array) -> tuple[Doubles, Doubles]:
    """Return the nearest double of each integer and the exact error."""
    nearest = a.astype(np.float64)
    if a.dtype.itemsize < 8:
        return nearest, np.zeros_like(nearest)
    high, low = a >> 32, (a & 0xFFFFFFFF).astype(np.float64)
    return nearest, (high.astype(np.float64) * 2.0**32 - nearest) + low


def _integer_to_float(modifiers: Modifiers) -> Run:
    target = modifiers[-2]
    mode = mode_of(modifiers)
    finish = saturate if "sat" in modifiers else np.asarray
    if target == "f64":
        return lambda a: finish(nudge(*_pieces(a), mode))
    return lambda a: finish(narrow(to_odd(*_pieces(a)), target, mode))


def _float_to_integer(modifiers: Modifiers) -> Run:
    """Round to an integer, clamp; NaN gives 0, or the sign bit alone where a 64-bit integer or f64 is involved."""
    target, source = modifiers[-2:]
    dtype = DTYPES[target]
    bits = 8 * dtype.itemsize
    low, high = _bounds(target)
    invalid = dtype.type(0)
    if source == "f64" or bits == 64:
        invalid = np.array(1 << (bits - 1), f"u{dtype.itemsize}").view(dtype)[()]
    step = next(INTEGRAL[word] for word in modifiers if word in INTEGRAL)

    def run(a: Array) -> Array:
        if "ftz" in modifiers:
            a = flush(a)
        whole = step(a.astype(np.float64))
        inside = (whole >= low) & (whole < 2.0 ** int(high).bit_length())
        result = np.where(inside, whole, 0.0).astype(dtype)
        result = np.where(inside, result, np.where(whole < 0, dtype.type(low), dtype.type(high)))
        return np.where(whole != whole, invalid, result)  # noqa: PLR0124 - the NaN test

    return run


def _float_to_float(modifiers: Modifiers) -> Run:
    target, source = modifiers[-2:]
    mode = mode_of(modifiers)
    step = next((INTEGRAL[word] for word in modifiers if word in INTEGRAL), None)
    ftz = "ftz" in modifiers

    def run(a: Array) -> Array:
        if ftz and source == "f32":
            a = flush(a)
        exact = a.astype(np.float64)
        if step is not None:
            exact = step(exact)
        result = exact if target == "f64" else narrow(exact, target, mode)
        if ftz and target == "f32":
            result = flush(result)
        return saturate(result) if "sat" in modifiers else result

    return run


ROWS: Final = (
    Row(f"cvt{{,.sat}}.{_INTEGERS}.{_INTEGERS}", "D = T", _integer_to_integer),
    Row(f"cvt{{.rn,.rz,.rm,.rp}}{{,.sat}}.{{f16,f32,f64,bf16}}.{_INTEGERS}", "D = T", _integer_to_float),
    Row(f"cvt{{.rni,.rzi,.rmi,.rpi}}{{,.sat}}.{_INTEGERS}.{{f16,f32,f64,bf16}}", "D = T", _float_to_integer),
    Row(f"cvt{{.rni,.rzi,.rmi,.rpi}}.ftz{{,.sat}}.{_INTEGERS}.f32", "D = T", _float_to_integer),
    Row("cvt{,.sat}.{f32,f64}.f16", "D = T", _float_to_float),
    Row("cvt{,.sat}.f64.f32", "D = T", _float_to_float),
    Row("cvt{.rn,.rz,.rm,.rp}{,.ftz}{,.sat}.f32.f64", "D = T", _float_to_float),
    Row("cvt{.rn,.rz,.rm,.rp}{,.sat}.f16.{f32,f64}", "D = T", _float_to_float),
)
"""Rows of conversions."""
