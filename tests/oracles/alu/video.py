"""Video instructions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from oracles.alu.form import RELATIONS, Form, Judge, clamp, integer, signed, wrap
from oracles.alu.integers import fields


def _second(form: Form, value: int, type_: str, c: tuple[int, ...]) -> int:
    """Saturate, then combine with a third operand.

    As an H200 does it, and the pseudocode of PTX does not: a minimum or maximum sees 64 bits of the value, in vadd and
    vsub its low 32 extended by their sign, and compares them as signed or unsigned, as the destination is.
    """
    value = clamp(value, type_) if "sat" in form.flags else value
    then = form.one_of("add", "min", "max")
    if then == "add":
        value += c[0]
    elif then:
        first = signed(wrap(value, 32), 32) if form.opcode in {"vadd", "vsub"} else value
        wide = wrap(first, 64) if type_ == "u32" else signed(wrap(first, 64), 64)
        value = {"min": min, "max": max}[then](wide, integer(c[0], type_))
    return wrap(value, 32)


def _average(x: int, y: int) -> int:
    return (x + y + 1) // 2 if x + y >= 0 else (x + y) // 2


VIDEO: dict[str, Callable[[int, int], int]] = {
    "vadd": lambda x, y: x + y,
    "vsub": lambda x, y: x - y,
    "vabsdiff": lambda x, y: abs(x - y),
    "vmin": min,
    "vmax": max,
    "vavrg": _average,
}


def video(form: Form) -> Judge:
    d, s, t = form.types
    return lambda a, b, *c: (_second(form, VIDEO[form.opcode](integer(a, s), integer(b, t)), d, c),)


def video_shift(form: Form) -> Judge:
    d, s, _ = form.types

    def judge(a: int, b: int, *c: int) -> tuple[int]:
        n = b & 31 if "wrap" in form.flags else min(b, 32)
        value = integer(a, s)
        return (_second(form, value << n if form.opcode == "vshl" else value >> n, d, c),)

    return judge


def relation(form: Form) -> Callable[[Any, Any], bool]:
    return RELATIONS[next(flag for flag in form.flags if flag in RELATIONS)]


def video_set(form: Form) -> Judge:
    s, t = form.types
    return lambda a, b, *c: (_second(form, int(relation(form)(integer(a, s), integer(b, t))), s, c),)


def video_mad(form: Form) -> Judge:
    _, s, t = form.types
    type_ = "s32" if "s32" in (s, t) else "u32"  # to which it saturates; an H200 takes all operands as signed
    shift = int((form.one_of("shr7", "shr15") or "shr0")[3:])

    def judge(a: int, b: int, c: int) -> tuple[int]:
        total = (signed(a, 32) * signed(b, 32) + signed(c, 32) + ("po" in form.flags)) >> shift
        return (wrap(clamp(total, type_) if "sat" in form.flags else total, 32),)

    return judge


def video_elements(form: Form) -> Judge:
    count = int(form.opcode[-1])
    size = 32 // count
    compare = form.opcode.startswith("vset")
    compute = relation(form) if compare else VIDEO[form.opcode[:-1]]
    s, t = form.types[-2:]
    target = f"{form.types[0][0]}{size}"

    def judge(a: int, b: int, c: int) -> tuple[int]:
        parts = [int(compute(x, y)) for x, y in zip(fields(a, s, size), fields(b, t, size), strict=True)]
        if "add" in form.flags:
            return (wrap(c + sum(parts), 32),)
        if "sat" in form.flags:
            parts = [clamp(part, target) for part in parts]
        return (sum(wrap(part, size) << size * i for i, part in enumerate(parts)),)

    return judge
