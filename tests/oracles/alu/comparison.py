"""Comparisons."""

from __future__ import annotations

from collections.abc import Callable

from oracles.alu.floats import load, order
from oracles.alu.form import BOOLEAN, RELATIONS, Form, Judge, halves, integer, is_float, signed, width, wrap
from oracles.formats import Real, encode, is_nan

_SAME = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}


def _compare(form: Form, type_: str) -> Callable[[int, int], bool]:
    name = _SAME.get(form.flags[0], form.flags[0])

    def compare(a: int, b: int) -> bool:
        if not is_float(type_):
            return RELATIONS[name](integer(a, type_), integer(b, type_))
        x, y = (load(form, bits, type_) for bits in (a, b))
        unordered = is_nan(x) or is_nan(y)
        if name in {"num", "nan"}:
            return unordered == (name == "nan")
        if unordered:
            return name.endswith("u") and len(name) == 3
        return RELATIONS[name[:2]](order(x)[0], order(y)[0])

    return compare


def _combine(form: Form, outcome: bool, c: tuple[bool, ...]) -> bool:  # noqa: FBT001 - one of two operands
    boolean = form.one_of(*BOOLEAN)
    return BOOLEAN[boolean](outcome, c[0]) if boolean else outcome


def setp(form: Form) -> Judge:
    compare = _compare(form, form.last.removesuffix("x2"))

    def judge(a: int, b: int, *c: bool) -> tuple[bool, ...]:
        if form.last.endswith("x2"):
            return tuple(_combine(form, compare(x, y), c) for x, y in zip(halves(a), halves(b), strict=True))
        outcome = compare(a, b)
        first = _combine(form, outcome, c)
        return (first,) if form.last in {"f16", "bf16"} else (first, _combine(form, not outcome, c))

    return judge


def set_mask(form: Form) -> Judge:
    target, source = form.types
    element = source.removesuffix("x2")
    compare = _compare(form, element)
    size = width(element) if source.endswith("x2") else width(target)
    result = element if target == source else target
    true = encode(Real.of(1), result) if is_float(result) else wrap(-1, size)

    def judge(a: int, b: int, *c: bool) -> tuple[int]:
        if source.endswith("x2"):
            parts = zip(halves(a), halves(b), strict=True)
            return (sum(true * _combine(form, compare(x, y), c) << 16 * i for i, (x, y) in enumerate(parts)),)
        return (true * _combine(form, compare(a, b), c),)

    return judge


def slct(form: Form) -> Judge:
    def judge(a: int, b: int, c: int) -> tuple[int]:
        if form.last == "s32":
            return (a if signed(c, 32) >= 0 else b,)
        x = load(form, c, "f32")
        return (a if not is_nan(x) and order(x)[0] >= 0 else b,)

    return judge
