"""Conversions between numeric types.

A conversion to a floating-point type first makes the exact value, or its rounding to odd, in binary64, and then rounds
once.

Source: PTX ISA 9.7.9.21 (cvt).
"""

from __future__ import annotations

import itertools
from typing import Final

import numpy as np

from tensorwasm.gpu.emulator.alu.floating import flush, mode_of, rectify, saturate
from tensorwasm.gpu.emulator.alu.integer import unsigned
from tensorwasm.gpu.emulator.alu.rounding import (
    FORMATS,
    INTEGRAL,
    Array,
    Doubles,
    canonical,
    flush_tiny,
    narrow,
    nudge,
    to_odd,
)
from tensorwasm.gpu.emulator.alu.rows import Modifiers, OpRow, Run
from tensorwasm.gpu.emulator.ops import DTYPES


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
    high, low = a >> a.dtype.type(32), a & a.dtype.type(0xFFFFFFFF)
    return nearest, (high.astype(np.float64) * 2.0**32 - nearest) + low.astype(np.float64)


def _integer_to_float(modifiers: Modifiers) -> Run:
    target, mode = modifiers[-2], mode_of(modifiers)
    finish: Run = saturate if "sat" in modifiers else np.asarray
    if target == "f64":
        return lambda a: finish(nudge(*_pieces(a), mode))
    if target == "f32" and mode == "rn":
        return lambda a: finish(a.astype(np.float32))
    return lambda a: finish(narrow(to_odd(*_pieces(a)), target, mode))


def _rounding(modifiers: Modifiers) -> Run | None:
    """Return the rounding to an integral value that the modifiers name."""
    return next((INTEGRAL[word] for word in modifiers if word in INTEGRAL), None)


def _float_to_integer(modifiers: Modifiers) -> Run:
    """Round to an integer and clamp it to the type.

    NaN gives 0, or the top bit alone if the source is f64 or the target has 64 bits.
    """
    target, source = modifiers[-2:]
    dtype, step = DTYPES[target], _rounding(modifiers) or np.asarray
    low, high = (dtype.type(bound) for bound in _bounds(target))
    top = np.array([1 << (8 * dtype.itemsize - 1)], f"u{dtype.itemsize}").view(dtype)[0]
    invalid = top if source == "f64" or dtype.itemsize == 8 else dtype.type(0)
    beyond = float(int(high) + 1)

    def run(a: Array) -> Array:
        whole = step((flush(a) if "ftz" in modifiers else a).astype(np.float64))
        inside = (whole >= low) & (whole < beyond)
        result = np.where(whole < 0, low, high)
        np.copyto(result, np.where(inside, whole, 0).astype(dtype), where=inside)
        np.copyto(result, invalid, where=whole != whole)  # noqa: PLR0124 - the NaN test
        return result

    return run


def _float_to_float(modifiers: Modifiers) -> Run:
    ftz, target, source = "ftz" in modifiers, *modifiers[-2:]
    # NVIDIA GPUs do not flush what becomes f16, which shows when a subnormal is rounded away from zero.
    before: list[Run] = [flush] * (ftz and source == "f32" and target != "f16")
    before += [lambda a: flush_tiny(a, target, mode_of(modifiers))] * (ftz and source == "f64")
    after = [flush] * (ftz and target == "f32")
    after += [saturate] * ("sat" in modifiers) + [rectify] * ("relu" in modifiers)
    convert = _keep_payload(_rounded_cast(modifiers), modifiers)

    def run(a: Array) -> Array:
        for step in (*before, convert, *after):
            a = step(a)
        return a

    return run


def _rounded_cast(modifiers: Modifiers) -> Run:
    (target, source), mode, finite = modifiers[-2:], mode_of(modifiers), "satfinite" in modifiers
    step = _rounding(modifiers)
    if target == "f32" and source in {"f32", "bf16"} and not {"ftz", "sat"} & set(modifiers) and not step:
        return lambda a: a.astype(np.float32)
    if target == "f64":
        return lambda a: (step or np.asarray)(a.astype(np.float64))
    # NumPy and ml_dtypes round to nearest themselves, except from f64 to bf16, which goes through f32.
    if (
        mode == "rn"
        and not step
        and not finite
        and target in {"f32", "f16", "bf16"}
        and (target, source) != ("bf16", "f64")
    ):
        return lambda a: canonical(a.astype(DTYPES[target]), target)
    return lambda a: narrow((step or np.asarray)(a.astype(np.float64)), target, mode, finite=finite)


def _keep_payload(convert: Run, modifiers: Modifiers) -> Run:
    """Keep what NVIDIA GPUs keep of a NaN, on which PTX has no word, instead of the NaN that ``convert`` makes."""
    payload = _payload(modifiers)
    if payload is None:
        return convert

    def run(a: Array) -> Array:
        result, nan = convert(a), a != a  # noqa: PLR0124 - the NaN test
        if nan.any():
            unsigned(result)[nan] = payload(unsigned(a)[nan])
        return result

    return run


def _payload(modifiers: Modifiers) -> Run | None:
    """Return the function from the bits of a NaN to those of its conversion, or None if these are always the same."""
    target, source = modifiers[-2:]
    if "rna" in modifiers:  # truncated, even to infinity; .satfinite steps back from that
        back = np.uint32(0x2000 if "satfinite" in modifiers else 0)
        return lambda bits: (bits & np.uint32(0xFFFFE000)) - back
    if source != "f64" or target == "f64":
        return None
    form = FORMATS[target]
    sign, mantissa = 8 * form.dtype.itemsize - 1, form.precision - 1
    quiet = (1 << sign) - (1 << (mantissa - 1))
    return lambda bits: bits >> 63 << sign | quiet | bits >> (52 - mantissa) & ((1 << mantissa) - 1)


# ------------------------------------------------------------------------------------------ packed


def _tensor_float(modifiers: Modifiers) -> Run:
    convert = _float_to_float(modifiers)
    return lambda a: unsigned(convert(a))


def _two_to_pair(modifiers: Modifiers) -> Run:
    """Convert two f32, ``a`` into the upper part of the pair."""
    target = modifiers[-2]
    convert = _float_to_float((*modifiers[:-2], target.removesuffix("x2"), modifiers[-1]))

    def run(a: Array, b: Array) -> Array:
        return unsigned(np.stack([convert(b), convert(a)], axis=-1)).reshape(-1).view(DTYPES[target])

    return run


def _pair_to_pair(modifiers: Modifiers) -> Run:
    """Convert both parts of a pair."""
    target, source = modifiers[-2:]
    form = FORMATS[source.removesuffix("x2")]
    convert = _float_to_float((*modifiers[:-2], target.removesuffix("x2"), source.removesuffix("x2")))
    return lambda a: unsigned(convert(np.ascontiguousarray(a).view(form.dtype))).view(DTYPES[target])


_WIDTHS: Final = (8, 16, 32, 64)
_SATURATING: Final = ",".join(
    f"{d}{m}.{s}{n}"
    for d, m, s, n in itertools.product("us", _WIDTHS, "us", _WIDTHS)
    if (n > m if d == s else d == "u" or n >= m)  # where the target lacks some values of the source
)
_ALL: Final = "{u8,u16,u32,u64,s8,s16,s32,s64}"
_NOT_BYTES: Final = "{u16,u32,u64,s16,s32,s64}"  # bf16 does not convert from and to bytes
_EITHER: Final = "{.rn,.rz,.rm,.rp}"
_INTEGRAL: Final = "{.rni,.rzi,.rmi,.rpi}"
_MAYBE_INTEGRAL: Final = "{,.rni,.rzi,.rmi,.rpi}"
_EXTRA: Final = "{.rn,.rz}{.relu,.satfinite,.relu.satfinite}"
_BYTE_PAIRS: Final = "{e4m3x2,e5m2x2}"

_TO_FLOAT: Final = (
    f"cvt{_EITHER}{{,.sat}}.{{f16,f64}}.{_ALL}",
    f"cvt{_EITHER}{{,.ftz}}{{,.sat}}.f32.{_ALL}",
    f"cvt{_EITHER}.bf16.{_NOT_BYTES}",
)
_TO_INTEGER: Final = (
    f"cvt{_INTEGRAL}{{,.sat}}.{_ALL}.{{f16,f64}}",
    f"cvt{_INTEGRAL}{{,.ftz}}{{,.sat}}.{_ALL}.f32",
    f"cvt{_INTEGRAL}.{_NOT_BYTES}.bf16",
)
_BETWEEN_FLOATS: Final = (
    f"cvt{_MAYBE_INTEGRAL}{{,.sat}}.{{f16.f16,f64.f64}}",
    f"cvt{_MAYBE_INTEGRAL}{{,.ftz}}{{,.sat}}.f32.f32",
    f"cvt{_MAYBE_INTEGRAL}.bf16.bf16",
    f"cvt{_EITHER}.{{f16.bf16,bf16.f16,bf16.f64}}",
    f"cvt{_EITHER}{{,.ftz}}{{,.sat}}.{{f16.f32,f32.f64}}",
    f"cvt{_EITHER}{{,.sat}}.f16.f64",
    f"cvt{_EITHER}{{,.ftz}}.bf16.f32",
    "cvt{,.ftz}{,.sat}.{f32.f16,f64.f32}",
    "cvt{,.rn,.rz,.rm,.rp}{,.ftz}.f32.bf16",
    "cvt{,.sat}.f64.f16",
    "cvt{,.rn,.rz,.rm,.rp}.f64.bf16",
    f"cvt{_EXTRA}.{{f16,bf16}}.f32",
)

ROWS: Final = (
    OpRow(f"cvt.{_ALL}.{_ALL}", "D = T", _integer_to_integer),
    OpRow(f"cvt.sat.{{{_SATURATING}}}", "D = T", _integer_to_integer),
    *(OpRow(pattern, "D = T", _integer_to_float) for pattern in _TO_FLOAT),
    *(OpRow(pattern, "D = T", _float_to_integer) for pattern in _TO_INTEGER),
    *(OpRow(pattern, "D = T", _float_to_float) for pattern in _BETWEEN_FLOATS),
    OpRow("cvt{.rna,.rna.satfinite,.rn,.rz,.rn.relu,.rz.relu}.tf32.f32", "tf32 = f32", _tensor_float),
    OpRow(f"cvt{_EXTRA}.{{f16x2,bf16x2}}.f32", "D = f32 f32", _two_to_pair),
    OpRow("cvt{.rn,.rz}.{f16x2,bf16x2}.f32", "D = f32 f32", _two_to_pair),
    OpRow(f"cvt.rn.satfinite{{,.relu}}.{_BYTE_PAIRS}.f32", "D = f32 f32", _two_to_pair),
    OpRow(f"cvt.rn.satfinite{{,.relu}}.{_BYTE_PAIRS}.f16x2", "D = T", _pair_to_pair),
    OpRow(f"cvt.rn{{,.relu}}.f16x2.{_BYTE_PAIRS}", "D = T", _pair_to_pair),
)
"""Rows of conversions."""
