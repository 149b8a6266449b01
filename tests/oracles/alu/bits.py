"""Logic, shifts and bit fields."""

from __future__ import annotations

from typing import Any

from oracles.alu.form import BOOLEAN, Form, Judge, integer, signed, width, wrap


def bit(word: int, place: int) -> int:
    return word >> place & 1


def bfind(form: Form) -> Judge:
    size = width(form.last)

    def judge(a: int) -> tuple[int]:
        sign = bit(a, size - 1) if form.last[0] == "s" else 0
        for place in range(size - 1, -1, -1):
            if bit(a, place) != sign:
                return (size - 1 - place if "shiftamt" in form.flags else place,)
        return (0xFFFFFFFF,)

    return judge


def fns(_form: Form) -> Judge:
    def judge(mask: int, base: int, offset: int) -> tuple[int]:
        n = signed(offset, 32)
        if n == -(1 << 31):
            return (0,)  # whatever the mask and the base: the code that ptxas makes cannot negate it
        if base > 31:
            return (0xFFFFFFFF,)
        if n == 0:
            return (base if bit(mask, base) else 0xFFFFFFFF,)
        places = range(base, 32) if n > 0 else range(base, -1, -1)
        found = [place for place in places if bit(mask, place)]
        return (found[abs(n) - 1] if abs(n) <= len(found) else 0xFFFFFFFF,)

    return judge


def _field(position: int, length: int, top: int) -> tuple[int, int]:
    """Cut position and length to a byte, which GPUs do not for 64-bit types; PTX wants both within 0..255."""
    return (position & 0xFF, length & 0xFF) if top == 31 else (position, length)


def bfe(form: Form) -> Judge:
    top = width(form.last) - 1

    def judge(a: int, b: int, c: int) -> tuple[int]:
        pos, length = _field(b, c, top)
        sign = 0 if form.last[0] == "u" or length == 0 else bit(a, min(pos + length - 1, top))
        return (sum((bit(a, pos + i) if i < length and pos + i <= top else sign) << i for i in range(top + 1)),)

    return judge


def bfi(form: Form) -> Judge:
    top = width(form.last) - 1

    def judge(a: int, b: int, c: int, d: int) -> tuple[int]:
        pos, length = _field(c, d, top)
        for i in range(min(length, top + 1)):
            if pos + i <= top:
                b = b & ~(1 << (pos + i)) | bit(a, i) << (pos + i)
        return (b,)

    return judge


def bmsk(form: Form) -> Judge:
    def judge(a: int, b: int) -> tuple[int]:
        if "wrap" in form.flags:
            a, b = a & 31, b & 31
        return (sum(1 << i for i in range(32) if a <= i < a + b),)

    return judge


def szext(form: Form) -> Judge:
    def judge(a: int, b: int) -> tuple[int]:
        n = b & 31 if "wrap" in form.flags else min(b, 32)
        field = wrap(a, n)
        negative = form.last == "s32" and n and bit(a, n - 1)
        return (wrap(field - (1 << n) if negative else field, 32),)

    return judge


def prmt(form: Form) -> Judge:
    mode = form.one_of("f4e", "b4e", "rc8", "ecl", "ecr", "rc16")

    def judge(a: int, b: int, c: int) -> tuple[int]:
        source = (b << 32 | a).to_bytes(8, "little")
        n = c & 3
        picks = {
            None: lambda i: c >> 4 * i & 15,
            "f4e": lambda i: (n + i) % 8,
            "b4e": lambda i: (n - i) % 8,
            "rc8": lambda _: n,
            "ecl": lambda i: max(i, n),
            "ecr": lambda i: min(i, n),
            "rc16": lambda i: (n % 2) * 2 + i % 2,
        }[mode]
        chosen = [source[picks(i) & 7] if not picks(i) & 8 else 255 * (source[picks(i) & 7] >> 7) for i in range(4)]
        return (int.from_bytes(bytes(chosen), "little"),)

    return judge


def lop3(form: Form) -> Judge:
    boolean = form.one_of("and", "or")

    def judge(a: int, b: int, c: int, lut: int, *predicate: bool) -> tuple[Any, ...]:
        result = sum(bit(lut, bit(a, i) << 2 | bit(b, i) << 1 | bit(c, i)) << i for i in range(32))
        if boolean is None:
            return (result,)
        return result, BOOLEAN[boolean](result != 0, predicate[0])

    return judge


def shift(form: Form) -> Judge:
    size, left = width(form.last), form.opcode == "shl"

    def judge(a: int, b: int) -> tuple[int]:
        amount = min(b, size)
        return (wrap(a << amount if left else integer(a, form.last) >> amount, size),)

    return judge


def funnel(form: Form) -> Judge:
    def judge(a: int, b: int, c: int) -> tuple[int]:
        n = c & 31 if "wrap" in form.flags else min(c, 32)
        if "l" in form.flags:
            return (wrap(b << n | a >> (32 - n), 32),)
        return (wrap(b << (32 - n) | a >> n, 32),)

    return judge


def logic(form: Form) -> Judge:
    return lambda a, b: (BOOLEAN[form.opcode](a, b),)


def inverted(form: Form) -> Judge:
    return lambda a: (not a if form.last == "pred" else wrap(~a, width(form.last)),)
