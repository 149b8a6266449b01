"""What instructions compute, one lane at a time, in Python integers and exact fractions.

A judge takes the raw bits of each source (a bool for a predicate) and returns one expectation per result: bits, a bool,
or a function that says whether the bits are acceptable. Written from the manual's pseudocode, bit by bit where it is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from oracles.formats import (
    FORMATS,
    NAN,
    Number,
    Real,
    add,
    decode,
    divide,
    encode,
    integral,
    is_nan,
    is_negative,
    multiply,
    negated,
    root,
)

Judge = Callable[..., tuple[Any, ...]]
_TYPE = re.compile(r"pred|[bus]\d+(x2)?|b?f\d+(x2)?|tf32|e\dm\dx2")


@dataclass(frozen=True)
class Form:
    """A mnemonic, taken apart."""

    opcode: str
    flags: tuple[str, ...]
    types: tuple[str, ...]

    @staticmethod
    def of(mnemonic: str) -> Form:
        opcode, *rest = mnemonic.split(".")
        types = tuple(word for word in rest if _TYPE.fullmatch(word))
        return Form(opcode, tuple(word for word in rest if word not in types), types)

    @property
    def mode(self) -> str:
        return next((flag for flag in self.flags if flag in {"rn", "rz", "rm", "rp", "rna"}), "rn")

    @property
    def last(self) -> str:
        return self.types[-1]

    def one_of(self, *flags: str) -> str | None:
        return next((flag for flag in self.flags if flag in flags), None)


def width(type_: str) -> int:
    return FORMATS[type_].width if type_ in FORMATS else int(re.sub(r"\D", "", type_))


def is_float(type_: str) -> bool:
    return type_ in FORMATS


def signed(bits: int, size: int) -> int:
    return bits - (1 << size) if bits >> (size - 1) else bits


def integer(bits: int, type_: str) -> int:
    return signed(bits, width(type_)) if type_[0] == "s" else bits


def wrap(value: int, size: int) -> int:
    return value & ((1 << size) - 1)


def bounds(type_: str) -> tuple[int, int]:
    size = width(type_)
    return (-(1 << (size - 1)), (1 << (size - 1)) - 1) if type_[0] == "s" else (0, (1 << size) - 1)


def clamp(value: int, type_: str) -> int:
    low, high = bounds(type_)
    return min(max(value, low), high)


def halves(word: int) -> tuple[int, int]:
    return word & 0xFFFF, word >> 16


# ------------------------------------------------------------------------------------------ integers


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


def _integers(form: Form) -> Judge:
    compute, type_ = _INTEGER[form.opcode], form.last

    def judge(*sources: int) -> tuple[int]:
        value = compute(*(integer(bits, type_) for bits in sources))
        value = max(value, 0) if "relu" in form.flags else value
        return (wrap(clamp(value, type_) if "sat" in form.flags else value, width(type_)),)

    return judge


def _pairs(form: Form) -> Judge:
    one = JUDGES[form.opcode](Form(form.opcode, form.flags, (form.last.removesuffix("x2"),)))

    def judge(*sources: int) -> tuple[Any]:
        low, high = (one(*part)[0] for part in zip(*map(halves, sources), strict=True))
        if callable(low):
            return (lambda bits: low(bits & 0xFFFF) and high(bits >> 16),)
        return (low | high << 16,)

    return judge


def _product(form: Form, a: int, b: int) -> int:
    size = width(form.last)
    if form.opcode.endswith("24"):
        field = [wrap(x, 24) for x in (a, b)]
        x, y = (signed(f, 24) if form.last[0] == "s" else f for f in field)
        return wrap(x * y >> (16 if "hi" in form.flags else 0), 32)
    exact = integer(a, form.last) * integer(b, form.last)
    if "wide" in form.flags:
        return wrap(exact, 2 * size)
    return wrap(exact >> size if "hi" in form.flags else exact, size)


def _multiply(form: Form) -> Judge:
    return lambda a, b: (_product(form, a, b),)


def _multiply_add(form: Form) -> Judge:
    size = width(form.last) * (2 if "wide" in form.flags else 1)

    def judge(a: int, b: int, c: int) -> tuple[int]:
        product = _product(form, a, b)
        if "sat" in form.flags:
            return (wrap(clamp(signed(product, 32) + signed(c, 32), "s32"), 32),)
        return (wrap(product + c, size),)

    return judge


def _chain(form: Form) -> Judge:
    reads = form.opcode.endswith("c") and form.opcode != "c"
    minus = form.opcode.startswith("sub")
    size = width(form.last)

    def judge(*sources: Any) -> tuple[Any, ...]:
        carry = int(sources[-1]) if reads else 0
        a, b = sources[:2] if form.opcode[0] != "m" else (_product(form, *sources[:2]), sources[2])
        exact = a - b - carry if minus else a + b + carry
        result = wrap(exact, size)
        return (result, exact != result) if "cc" in form.flags else (result,)

    return judge


# ------------------------------------------------------------------------------------------ bits


def bit(word: int, place: int) -> int:
    return word >> place & 1


def _bfind(form: Form) -> Judge:
    size = width(form.last)

    def judge(a: int) -> tuple[int]:
        sign = bit(a, size - 1) if form.last[0] == "s" else 0
        for place in range(size - 1, -1, -1):
            if bit(a, place) != sign:
                return (size - 1 - place if "shiftamt" in form.flags else place,)
        return (0xFFFFFFFF,)

    return judge


def _fns(_form: Form) -> Judge:
    def judge(mask: int, base: int, offset: int) -> tuple[int]:
        n = signed(offset, 32)
        if base > 31:
            return (0xFFFFFFFF,)
        if n == 0:
            return (base if bit(mask, base) else 0xFFFFFFFF,)
        places = range(base, 32) if n > 0 else range(base, -1, -1)
        found = [place for place in places if bit(mask, place)]
        return (found[abs(n) - 1] if abs(n) <= len(found) else 0xFFFFFFFF,)

    return judge


def _bfe(form: Form) -> Judge:
    top = width(form.last) - 1

    def judge(a: int, b: int, c: int) -> tuple[int]:
        pos, length = b & 0xFF, c & 0xFF
        sign = 0 if form.last[0] == "u" or length == 0 else bit(a, min(pos + length - 1, top))
        return (sum((bit(a, pos + i) if i < length and pos + i <= top else sign) << i for i in range(top + 1)),)

    return judge


def _bfi(form: Form) -> Judge:
    top = width(form.last) - 1

    def judge(a: int, b: int, c: int, d: int) -> tuple[int]:
        pos, length = c & 0xFF, d & 0xFF
        for i in range(length):
            if pos + i <= top:
                b = b & ~(1 << (pos + i)) | bit(a, i) << (pos + i)
        return (b,)

    return judge


def _bmsk(form: Form) -> Judge:
    def judge(a: int, b: int) -> tuple[int]:
        if "wrap" in form.flags:
            a, b = a & 31, b & 31
        return (sum(1 << i for i in range(32) if a <= i < a + b),)

    return judge


def _szext(form: Form) -> Judge:
    def judge(a: int, b: int) -> tuple[int]:
        n = b & 31 if "wrap" in form.flags else min(b, 32)
        field = wrap(a, n)
        negative = form.last == "s32" and n and bit(a, n - 1)
        return (wrap(field - (1 << n) if negative else field, 32),)

    return judge


def _prmt(form: Form) -> Judge:
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


def _lop3(form: Form) -> Judge:
    boolean = form.one_of("and", "or")

    def judge(a: int, b: int, c: int, lut: int, *predicate: bool) -> tuple[Any, ...]:
        result = sum(bit(lut, bit(a, i) << 2 | bit(b, i) << 1 | bit(c, i)) << i for i in range(32))
        if boolean is None:
            return (result,)
        return result, _BOOLEAN[boolean](result != 0, predicate[0])

    return judge


def _shift(form: Form) -> Judge:
    size, left = width(form.last), form.opcode == "shl"

    def judge(a: int, b: int) -> tuple[int]:
        amount = min(b, size)
        return (wrap(a << amount if left else integer(a, form.last) >> amount, size),)

    return judge


def _funnel(form: Form) -> Judge:
    def judge(a: int, b: int, c: int) -> tuple[int]:
        n = c & 31 if "wrap" in form.flags else min(c, 32)
        if "l" in form.flags:
            return (wrap(b << n | a >> (32 - n), 32),)
        return (wrap(b << (32 - n) | a >> n, 32),)

    return judge


_BOOLEAN: dict[str, Callable[[Any, Any], Any]] = {
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
}


def _logic(form: Form) -> Judge:
    return lambda a, b: (_BOOLEAN[form.opcode](a, b),)


def _not(form: Form) -> Judge:
    return lambda a: (not a if form.last == "pred" else wrap(~a, width(form.last)),)


def _fields(word: int, type_: str, size: int) -> list[int]:
    parts = [word >> at & ((1 << size) - 1) for at in range(0, 32, size)]
    return [signed(part, size) if type_[0] == "s" else part for part in parts]


def _dot(form: Form) -> Judge:
    size = 8 if form.opcode == "dp4a" else 16
    first = 2 if "hi" in form.flags else 0

    def judge(a: int, b: int, c: int) -> tuple[int]:
        x, y = _fields(a, form.types[0], size), _fields(b, form.types[1], 8)[first:]
        return (wrap(c + sum(p * q for p, q in zip(x, y, strict=False)), 32),)

    return judge


def _cvt_pack(form: Form) -> Judge:
    size = width(form.types[0])

    def judge(a: int, b: int, c: int = 0) -> tuple[int]:
        high, low = (wrap(clamp(signed(x, 32), form.types[0]), size) for x in (a, b))
        return (wrap(c << 2 * size | high << size | low, 32),)

    return judge


# ------------------------------------------------------------------------------------------ video


def _second(form: Form, value: int, type_: str, c: tuple[int, ...]) -> int:
    """Saturate, then combine with a third operand of the destination's type."""
    value = clamp(value, type_) if "sat" in form.flags else integer(wrap(value, 32), type_)
    then = form.one_of("add", "min", "max")
    if then:
        value = {"add": int.__add__, "min": min, "max": max}[then](value, integer(c[0], type_))
    return wrap(value, 32)


def _average(x: int, y: int) -> int:
    return (x + y + 1) // 2 if x + y >= 0 else (x + y) // 2


_VIDEO: dict[str, Callable[[int, int], int]] = {
    "vadd": lambda x, y: x + y,
    "vsub": lambda x, y: x - y,
    "vabsdiff": lambda x, y: abs(x - y),
    "vmin": min,
    "vmax": max,
    "vavrg": _average,
}
_RELATIONS: dict[str, Callable[[Any, Any], bool]] = {
    "eq": lambda x, y: x == y,
    "ne": lambda x, y: x != y,
    "lt": lambda x, y: x < y,
    "le": lambda x, y: x <= y,
    "gt": lambda x, y: x > y,
    "ge": lambda x, y: x >= y,
}


def _video(form: Form) -> Judge:
    d, s, t = form.types
    return lambda a, b, *c: (_second(form, _VIDEO[form.opcode](integer(a, s), integer(b, t)), d, c),)


def _video_shift(form: Form) -> Judge:
    d, s, _ = form.types

    def judge(a: int, b: int, *c: int) -> tuple[int]:
        n = b & 31 if "wrap" in form.flags else min(b, 32)
        value = integer(a, s)
        return (_second(form, value << n if form.opcode == "vshl" else value >> n, d, c),)

    return judge


def _relation(form: Form) -> Callable[[Any, Any], bool]:
    return _RELATIONS[next(flag for flag in form.flags if flag in _RELATIONS)]


def _video_set(form: Form) -> Judge:
    s, t = form.types
    return lambda a, b, *c: (_second(form, int(_relation(form)(integer(a, s), integer(b, t))), "u32", c),)


def _video_mad(form: Form) -> Judge:
    _, s, t = form.types
    type_ = "s32" if "s32" in (s, t) else "u32"
    shift = int((form.one_of("shr7", "shr15") or "shr0")[3:])

    def judge(a: int, b: int, c: int) -> tuple[int]:
        total = (integer(a, s) * integer(b, t) + integer(c, type_) + ("po" in form.flags)) >> shift
        return (wrap(clamp(total, type_) if "sat" in form.flags else total, 32),)

    return judge


def _video_elements(form: Form) -> Judge:
    count = int(form.opcode[-1])
    size = 32 // count
    compare = form.opcode.startswith("vset")
    compute = _relation(form) if compare else _VIDEO[form.opcode[:-1]]
    s, t = form.types[-2:]
    target = f"{form.types[0][0]}{size}"

    def judge(a: int, b: int, c: int) -> tuple[int]:
        parts = [int(compute(x, y)) for x, y in zip(_fields(a, s, size), _fields(b, t, size), strict=True)]
        if "add" in form.flags:
            return (wrap(c + sum(parts), 32),)
        if "sat" in form.flags:
            parts = [clamp(part, target) for part in parts]
        return (sum(wrap(part, size) << size * i for i, part in enumerate(parts)),)

    return judge


# ------------------------------------------------------------------------------------------ floating point


def flushed(bits: int, type_: str) -> int:
    form = FORMATS[type_]
    size = form.exponent + form.mantissa
    return bits if bits >> form.mantissa & (2**form.exponent - 1) else bits & (1 << size)


def _load(form: Form, bits: int, type_: str) -> Number:
    return decode(flushed(bits, type_) if "ftz" in form.flags and type_ != "f64" else bits, type_)


def any_nan(type_: str) -> Callable[[int], bool]:
    return lambda bits: is_nan(decode(bits, type_))


def _store(form: Form, value: Number, type_: str) -> Any:
    """Round, flush, saturate."""
    if is_nan(value) and "sat" in form.flags:
        return 0
    if is_nan(value) and type_ == "f64":
        return any_nan("f64")
    bits = encode(value, type_, form.mode, finite="satfinite" in form.flags)
    if "ftz" in form.flags and type_ in {"f32", "f16"}:
        bits = flushed(bits, type_)
    if "sat" in form.flags or "relu" in form.flags:
        result = decode(bits, type_)
        if not is_nan(result) and (is_negative(result) or (isinstance(result, Real) and result.value == 0)):
            return 0
        one = encode(Real.of(1), type_)
        above = result == math.inf or (isinstance(result, Real) and result.value > 1)
        return one if "sat" in form.flags and above else bits
    return bits


_ARITHMETIC: dict[str, Callable[..., Number]] = {
    "add": lambda mode, x, y: add(x, y, mode),
    "sub": lambda mode, x, y: add(x, negated(y), mode),
    "mul": lambda _, x, y: multiply(x, y),
    "fma": lambda mode, x, y, z: NAN if any(map(is_nan, (x, y, z))) else add(multiply(x, y), z, mode),
    "mad": lambda mode, x, y, z: NAN if any(map(is_nan, (x, y, z))) else add(multiply(x, y), z, mode),
    "div": lambda _, x, y: divide(x, y),
    "rcp": lambda _, x: divide(Real.of(1), x),
    "sqrt": lambda _, x: root(x),
    "abs": lambda _, x: negated(x) if is_negative(x) else x,
    "neg": lambda _, x: negated(x),
}


def _floats(form: Form) -> Judge:
    compute, type_ = _ARITHMETIC[form.opcode], form.last

    def judge(*sources: int) -> tuple[Any]:
        return (_store(form, compute(form.mode, *(_load(form, bits, type_) for bits in sources)), type_),)

    return judge


def _order(x: Number) -> tuple[Any, bool]:
    """Rank numbers, -0 below +0."""
    return (x.value if isinstance(x, Real) else x), not is_negative(x)


def _select(form: Form) -> Judge:
    pick = min if form.opcode == "min" else max
    type_ = form.last

    def judge(a: int, b: int) -> tuple[Any]:
        x, y = (_load(form, bits, type_) for bits in (a, b))
        flip = is_negative(x) != is_negative(y) if not (is_nan(x) or is_nan(y)) else bool((a ^ b) >> (width(type_) - 1))
        if "abs" in form.flags:
            x, y = (negated(z) if is_negative(z) else z for z in (x, y))
        if is_nan(x) or is_nan(y):
            other = y if is_nan(x) else x
            result = NAN if "NaN" in form.flags or is_nan(other) else other
        else:
            result = pick(x, y, key=_order)
        if "xorsign" in form.flags and not is_nan(result) and is_negative(result) != flip:
            result = negated(result)
        return (_store(form, result, type_),)

    return judge


def _copysign(form: Form) -> Judge:
    size = width(form.last) - 1
    return lambda a, b: (wrap(b, size) | bit(a, size) << size,)


def _testp(form: Form) -> Judge:
    type_, kind = form.last, form.flags[0]
    smallest = Fraction(2) ** FORMATS[type_].lowest

    def judge(a: int) -> tuple[bool]:
        x = decode(a, type_)
        finite = isinstance(x, Real)
        size = abs(x.value) if isinstance(x, Real) else Fraction(0)
        return (
            {
                "finite": finite,
                "infinite": not finite and not is_nan(x),
                "number": not is_nan(x),
                "notanumber": is_nan(x),
                "normal": size >= smallest,
                "subnormal": 0 < size < smallest,
            }[kind],
        )

    return judge


# ------------------------------------------------------------------------------------------ approximations


@dataclass(frozen=True)
class Bound:
    """The error that the manual allows: absolute, relative, or in units of the last place of the result's format."""

    absolute: float = 0.0
    relative: float = 0.0
    ulp: int = 0


def _binary64(function: Callable[[float], float]) -> Callable[[Number], Number]:
    """Lift a function of the standard library; its own error is far below every bound here."""

    def lifted(x: Number) -> Number:
        argument = math.copysign(float(x.value), -1 if x.negative else 1) if isinstance(x, Real) else x
        try:
            result = function(argument)
        except ValueError:
            return NAN
        except OverflowError:
            return math.inf
        return Real.of(Fraction(result), negative=math.copysign(1, result) < 0) if math.isfinite(result) else result

    return lifted


def _log2(x: Number) -> Number:
    if isinstance(x, Real) and x.value == 0:
        return -math.inf
    return _binary64(math.log2)(x)


def _exp2(x: Number) -> Number:
    if isinstance(x, Real) and x.value < -1100:
        return Real.of(0)
    return _binary64(math.exp2)(x)


_TRIGONOMETRIC_BOUND = Bound(absolute=2.0**-20.5)
_APPROXIMATE: dict[str, tuple[Callable[..., Number], Bound]] = {
    "rcp": (lambda x: divide(Real.of(1), x), Bound(ulp=1)),
    "sqrt": (root, Bound(relative=2.0**-23, ulp=1)),
    "rsqrt": (lambda x: divide(Real.of(1), root(x)), Bound(relative=2.0**-22.9)),
    "sin": (_binary64(math.sin), _TRIGONOMETRIC_BOUND),
    "cos": (_binary64(math.cos), _TRIGONOMETRIC_BOUND),
    "lg2": (_log2, Bound(absolute=2.0**-22, relative=2.0**-22)),
    "ex2": (_exp2, Bound(ulp=2)),
    "tanh": (_binary64(math.tanh), Bound(relative=2.0**-11)),
    "div": (divide, Bound(ulp=2)),
}
_HALF_BOUNDS = {
    ("ex2", "f16"): Bound(relative=2.0**-9.9),
    ("ex2", "bf16"): Bound(relative=2.0**-7),
    ("tanh", "f16"): Bound(absolute=2.0**-10.987),
    ("tanh", "bf16"): Bound(absolute=2.0**-8),
}


def within(bits: int, exact: Number, type_: str, bound: Bound) -> bool:
    """Say whether bits are as near to an exact value as a bound allows; special values must be met."""
    got = decode(bits, type_)
    if not isinstance(exact, Real) or not isinstance(got, Real):
        rounded = decode(encode(exact, type_), type_)
        if isinstance(rounded, Real) or (isinstance(got, Real) and isinstance(exact, Real)):
            return bound.ulp > 0 and abs(bits - encode(exact, type_)) <= bound.ulp  # next to overflow
        return is_nan(rounded) == is_nan(got) and (is_nan(got) or rounded == got)
    if exact.value == 0:
        return got.value == 0 and got.negative == exact.negative
    error = abs(got.value - exact.value)
    form = FORMATS[type_]
    tiny = Fraction(2) ** (form.lowest - form.mantissa)
    ulp = max(Fraction(2) ** (_exponent(exact.value) - form.mantissa), tiny)
    half = ulp / 2 if error <= tiny else 0
    return error <= max(bound.ulp * ulp, Fraction(bound.absolute), Fraction(bound.relative) * abs(exact.value), half)


def _exponent(x: Fraction) -> int:
    return math.frexp(abs(x))[1] - 1 if abs(x) > Fraction(1, 2**1000) else -1001


def _approximation(form: Form) -> Judge:
    type_ = form.last
    function, bound = _APPROXIMATE[form.opcode]
    bound = _HALF_BOUNDS.get((form.opcode, type_), bound)
    cut = "ftz" in form.flags

    def judge(*sources: int) -> tuple[Any]:
        x = [decode(flushed(bits, type_) if cut else bits, type_) for bits in sources]
        exact = _narrow_divide(*x) if form.opcode == "div" and "approx" in form.flags else function(*x)

        def accept(bits: int) -> bool:
            nearest = encode(exact, type_)
            flush = cut and flushed(nearest, type_) != nearest
            return bits == flushed(nearest, type_) if flush else within(bits, exact, type_, bound) or bits == nearest

        return (accept,)

    return judge


def _narrow_divide(x: Number, y: Number) -> Number:
    """Divide where divisors above 2**126 have a reciprocal of 0."""
    if isinstance(y, Real) and abs(y.value) > 2**126:
        return multiply(x, Real.of(0, negative=y.negative))
    return divide(x, y)


def _upper_half(form: Form) -> Judge:
    function, _ = _APPROXIMATE[form.opcode]

    def judge(a: int) -> tuple[Any]:
        exact = function(decode(flushed(a >> 32 << 32, "f64"), "f64"))
        if is_nan(exact):
            return (0x7FFFFFFF00000000,)
        nearest = flushed(encode(exact, "f64"), "f64")

        def accept(bits: int) -> bool:
            if bits & 0xFFFFFFFF:
                return False
            if nearest & ~(1 << 63) == 0 or not isinstance(exact, Real):
                return bits == nearest
            return within(bits, exact, "f64", Bound(relative=2.0**-20))

        return (accept,)

    return judge


def _rsqrt64(_form: Form) -> Judge:
    function, _ = _APPROXIMATE["rsqrt"]

    def judge(a: int) -> tuple[Any]:
        exact = function(decode(a, "f64"))
        return (lambda bits: within(bits, exact, "f64", Bound(relative=2.0**-51)),)

    return judge


# ------------------------------------------------------------------------------------------ comparison

_SAME = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}


def _compare(form: Form, type_: str) -> Callable[[int, int], bool]:
    name = _SAME.get(form.flags[0], form.flags[0])

    def compare(a: int, b: int) -> bool:
        if not is_float(type_):
            return _RELATIONS[name](integer(a, type_), integer(b, type_))
        x, y = (_load(form, bits, type_) for bits in (a, b))
        unordered = is_nan(x) or is_nan(y)
        if name in {"num", "nan"}:
            return unordered == (name == "nan")
        if unordered:
            return name.endswith("u") and len(name) == 3
        return _RELATIONS[name[:2]](_order(x)[0], _order(y)[0])

    return compare


def _combine(form: Form, outcome: bool, c: tuple[bool, ...]) -> bool:  # noqa: FBT001 - one of two operands
    boolean = form.one_of(*_BOOLEAN)
    return _BOOLEAN[boolean](outcome, c[0]) if boolean else outcome


def _setp(form: Form) -> Judge:
    compare = _compare(form, form.last.removesuffix("x2"))

    def judge(a: int, b: int, *c: bool) -> tuple[bool, ...]:
        if form.last.endswith("x2"):
            return tuple(_combine(form, compare(x, y), c) for x, y in zip(halves(a), halves(b), strict=True))
        outcome = compare(a, b)
        first = _combine(form, outcome, c)
        return (first,) if form.last in {"f16", "bf16"} else (first, _combine(form, not outcome, c))

    return judge


def _set(form: Form) -> Judge:
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


def _slct(form: Form) -> Judge:
    def judge(a: int, b: int, c: int) -> tuple[int]:
        if form.last == "s32":
            return (a if signed(c, 32) >= 0 else b,)
        x = _load(form, c, "f32")
        return (a if not is_nan(x) and _order(x)[0] >= 0 else b,)

    return judge


# ------------------------------------------------------------------------------------------ conversion


def _cvt(form: Form) -> Judge:
    if form.flags[:1] == ("pack",):
        return _cvt_pack(form)
    target, source = form.types
    if target.endswith("x2") or source.endswith("x2"):
        return _cvt_pairs(form)
    step = form.one_of("rni", "rzi", "rmi", "rpi")

    def judge(a: int) -> tuple[Any]:
        if not is_float(source):
            value = integer(a, source)
            if is_float(target):
                return (_store(form, Real.of(value), target),)
            return (wrap(clamp(value, target) if "sat" in form.flags else value, width(target)),)
        x = decode(flushed(a, source) if "ftz" in form.flags and source == "f32" else a, source)
        if step:
            x = integral(x, step[:2])
        return (_store(_plain_ftz(form), x, target) if is_float(target) else _whole(x, target, source),)

    return judge


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
        upper, lower = (_store(form, decode(bits, source), target) for bits in (high, low))
        return (upper << to_width | lower,)

    return judge


# ------------------------------------------------------------------------------------------ which judge


def _by_type(floats: Callable[[Form], Judge], integers: Callable[[Form], Judge]) -> Callable[[Form], Judge]:
    def choose(form: Form) -> Judge:
        if form.last.endswith("x2"):
            return _pairs(form)
        return floats(form) if is_float(form.last) else integers(form)

    return choose


def _maybe_approximate(floats: Callable[[Form], Judge]) -> Callable[[Form], Judge]:
    return lambda form: (_approximation if form.one_of("approx", "full") else floats)(form)


def _maybe_chain(form: Form) -> Judge:
    return (_chain if "cc" in form.flags else _integers if form.opcode != "mad" else _multiply_add)(form)


def _special(form: Form) -> Judge:
    if form.last == "f64":
        return (_upper_half if "ftz" in form.flags else _rsqrt64 if form.opcode == "rsqrt" else _floats)(form)
    return _by_type(_maybe_approximate(_floats), _integers)(form)


def _rcp_or_sqrt(form: Form) -> Judge:
    return _special(form) if "approx" in form.flags else _floats(form)


JUDGES: dict[str, Callable[[Form], Judge]] = {
    **dict.fromkeys(("add", "sub"), _by_type(_floats, _maybe_chain)),
    "mul": _by_type(_floats, _multiply),
    "mad": _by_type(_floats, _maybe_chain),
    "fma": _by_type(_floats, _integers),
    **dict.fromkeys(("addc", "subc", "madc"), _chain),
    "mul24": _multiply,
    "mad24": _multiply_add,
    **dict.fromkeys(("sad", "rem"), _integers),
    **dict.fromkeys(("abs", "neg"), _by_type(_floats, _integers)),
    **dict.fromkeys(("min", "max"), _by_type(_select, _integers)),
    "div": _by_type(_maybe_approximate(_floats), _integers),
    **dict.fromkeys(("rcp", "sqrt", "rsqrt"), _rcp_or_sqrt),
    **dict.fromkeys(("sin", "cos", "lg2", "ex2", "tanh"), _special),
    "popc": lambda _: lambda a: (a.bit_count(),),
    "clz": lambda form: lambda a: (width(form.last) - a.bit_length(),),
    "brev": lambda form: lambda a: (int(f"{a:0{width(form.last)}b}"[::-1], 2),),
    "bfind": _bfind,
    "fns": _fns,
    "bfe": _bfe,
    "bfi": _bfi,
    "bmsk": _bmsk,
    "szext": _szext,
    "prmt": _prmt,
    "lop3": _lop3,
    **dict.fromkeys(("dp4a", "dp2a"), _dot),
    **dict.fromkeys(("shl", "shr"), _shift),
    "shf": _funnel,
    **dict.fromkeys(("and", "or", "xor"), _logic),
    "not": _not,
    "cnot": lambda _: lambda a: (int(a == 0),),
    "mov": lambda _: lambda a: (a,),
    "selp": lambda _: lambda a, b, c: (a if c else b,),
    "slct": _slct,
    "setp": _setp,
    "set": _set,
    "copysign": _copysign,
    "testp": _testp,
    "cvt": _cvt,
    **dict.fromkeys(("vadd", "vsub", "vabsdiff", "vmin", "vmax"), _video),
    **dict.fromkeys(("vshl", "vshr"), _video_shift),
    "vset": _video_set,
    "vmad": _video_mad,
    **{f"{name}{count}": _video_elements for name in (*_VIDEO, "vset") for count in (2, 4)},
}


def judge(mnemonic: str) -> Judge:
    """Return the judge of a mnemonic.

    Raises:
        KeyError: there is none.
    """
    form = Form.of(mnemonic)
    return JUDGES[form.opcode](form)


def agrees(expected: Any, bits: int) -> bool:
    return bool(expected(bits)) if callable(expected) else expected == bits
