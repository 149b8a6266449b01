"""Integer arithmetic, carry chains, dot products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from oracles.alu.form import Form, Judge, clamp, integer, signed, width, wrap


def _magnitude_divide(x: int, y: int) -> int:
    quotient = abs(x) // abs(y)
    return quotient if (x < 0) == (y < 0) else -quotient


_INTEGER: dict[str, Callable[..., int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "min": min,
    "max": max,
    "sad": lambda a, b, c: c + abs(a - b),
    "abs": abs,
    "neg": lambda a: -a,
    "div": lambda a, b: _magnitude_divide(a, b) if b else -1,
    "rem": lambda a, b: a - _magnitude_divide(a, b) * b if b else -1,
}


def whole_numbers(form: Form) -> Judge:
    compute, type_ = _INTEGER[form.opcode], form.last

    def judge(*sources: int) -> tuple[int]:
        value = compute(*(integer(bits, type_) for bits in sources))
        value = max(value, 0) if "relu" in form.flags else value
        return (wrap(clamp(value, type_) if "sat" in form.flags else value, width(type_)),)

    return judge


def product(form: Form, a: int, b: int) -> int:
    size = width(form.last)
    if form.opcode.endswith("24"):
        field = [wrap(x, 24) for x in (a, b)]
        x, y = (signed(f, 24) if form.last[0] == "s" else f for f in field)
        return wrap(x * y >> (16 if "hi" in form.flags else 0), 32)
    exact = integer(a, form.last) * integer(b, form.last)
    if "wide" in form.flags:
        return wrap(exact, 2 * size)
    return wrap(exact >> size if "hi" in form.flags else exact, size)


def multiplied(form: Form) -> Judge:
    return lambda a, b: (product(form, a, b),)


def multiplied_and_added(form: Form) -> Judge:
    size = width(form.last) * (2 if "wide" in form.flags else 1)

    def judge(a: int, b: int, c: int) -> tuple[int]:
        term = product(form, a, b)
        if "sat" in form.flags:
            return (wrap(clamp(signed(term, 32) + signed(c, 32), "s32"), 32),)
        return (wrap(term + c, size),)

    return judge


def chained(form: Form) -> Judge:
    """Judge a link of a chain: a subtraction adds the complement, so that its carry says that nothing was borrowed."""
    reads = form.opcode.endswith("c")
    minus = form.opcode.startswith("sub")
    size = width(form.last)

    def judge(*sources: Any) -> tuple[Any, ...]:
        carry = int(sources[-1]) if reads else int(minus)
        a, b = sources[:2] if form.opcode[0] != "m" else (product(form, *sources[:2]), sources[2])
        exact = wrap(a, size) + wrap(~b if minus else b, size) + carry
        result = wrap(exact, size)
        return (result, bool(exact >> size)) if "cc" in form.flags else (result,)

    return judge


def fields(word: int, type_: str, size: int) -> list[int]:
    parts = [word >> at & ((1 << size) - 1) for at in range(0, 32, size)]
    return [signed(part, size) if type_[0] == "s" else part for part in parts]


def dot(form: Form) -> Judge:
    size = 8 if form.opcode == "dp4a" else 16
    first = 2 if "hi" in form.flags else 0

    def judge(a: int, b: int, c: int) -> tuple[int]:
        x, y = fields(a, form.types[0], size), fields(b, form.types[1], 8)[first:]
        return (wrap(c + sum(p * q for p, q in zip(x, y, strict=False)), 32),)

    return judge


def packed(form: Form) -> Judge:
    size = width(form.types[0])

    def judge(a: int, b: int, c: int = 0) -> tuple[int]:
        high, low = (wrap(clamp(signed(x, 32), form.types[0]), size) for x in (a, b))
        return (wrap(c << 2 * size | high << size | low, 32),)

    return judge
