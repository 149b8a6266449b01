"""Conversions."""

from __future__ import annotations

from typing import Any

from oracles.alu.floats import any_nan, flushed, store
from oracles.alu.form import Form, Judge, bounds, clamp, integer, is_float, width, wrap
from oracles.alu.integers import packed
from oracles.formats import FORMATS, Number, Real, decode, integral, is_nan


def cvt(form: Form) -> Judge:
    if form.flags[:1] == ("pack",):
        return packed(form)
    target, source = form.types
    if target.endswith("x2") or source.endswith("x2"):
        return _cvt_pairs(form)
    step = form.one_of("rni", "rzi", "rmi", "rpi")

    def judge(a: int) -> tuple[Any]:
        if not is_float(source):
            value = integer(a, source)
            if is_float(target):
                return (store(form, Real.of(value), target),)
            return (wrap(clamp(value, target) if "sat" in form.flags else value, width(target)),)
        # NVIDIA GPUs do not flush what becomes f16, which shows when a subnormal is rounded away from zero.
        x = decode(flushed(a, source) if "ftz" in form.flags and source == "f32" and target != "f16" else a, source)
        if is_nan(x) and is_float(target) and "sat" not in form.flags:
            return (_nan(form, a),)
        if step:
            x = integral(x, step[:2])
        return (store(_plain_ftz(form), x, target) if is_float(target) else _whole(x, target, source),)

    return judge


def _nan(form: Form, a: int) -> Any:
    """Return the NaN that an H200 makes of a NaN. PTX does not say which.

    Source: PTX ISA 9.7.9.21, which has no word on payloads.
    """
    target, source = form.types
    mantissa, size = FORMATS[target].mantissa, FORMATS[target].width
    if target == "f64":
        return any_nan("f64")
    if "rna" in form.flags:  # truncates, payloads included, and then steps back from infinity
        return (a >> 13 << 13) - ("satfinite" in form.flags) * 0x2000
    if source == "f64":  # sign and upper payload, made quiet
        payload = (a >> (52 - mantissa)) & (2**mantissa - 1)
        return a >> 63 << (size - 1) | (1 << (size - 1)) - (1 << (mantissa - 1)) | payload
    if target == "f32" and source in {"f32", "bf16"} and set(form.flags) <= {"rn", "rz", "rm", "rp"}:
        return a << (32 - width(source))
    return FORMATS[target].nan


def _plain_ftz(form: Form) -> Form:
    """Flush a result only if it is f32."""
    if form.types[0] == "f32":
        return form
    return Form(form.opcode, tuple(flag for flag in form.flags if flag != "ftz"), form.types)


def _whole(x: Number, target: str, source: str) -> int:
    low, high = bounds(target)
    if is_nan(x):
        return 1 << (width(target) - 1) if source == "f64" or width(target) == 64 else 0
    if not isinstance(x, Real):
        return wrap(low if x < 0 else high, width(target))
    return wrap(clamp(int(x.value), target), width(target))


def _cvt_pairs(form: Form) -> Judge:
    target, source = (type_.removesuffix("x2") for type_ in form.types)
    to_width, from_width = FORMATS[target].width, FORMATS[source].width

    def judge(*sources: int) -> tuple[int]:
        if len(sources) == 2:
            high, low = sources
        else:
            low, high = wrap(sources[0], from_width), sources[0] >> from_width
        upper, lower = (store(form, decode(bits, source), target) for bits in (high, low))
        return (upper << to_width | lower,)

    return judge
