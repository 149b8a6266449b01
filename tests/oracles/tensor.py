"""What tensor-core instructions compute, in plain loops over Python numbers.

The places of elements are the ISA's formulas case by case (PTX ISA 9.7.14.5.1 to 9.7.14.5.13), not a pattern found in
them. Values are Python ints and floats, which hold every element exactly; whoever needs exact sums makes Fractions.
"""

import functools
import itertools
import math
import re
import struct
from dataclasses import dataclass
from fractions import Fraction

BITS = {"f64": 64, "f32": 32, "s32": 32, "tf32": 32, "f16": 16, "bf16": 16, "e4m3": 8, "e5m2": 8}
BITS |= {"s8": 8, "u8": 8, "s4": 4, "u4": 4, "b1": 1}


# ------------------------------------------------------------------------------------------------------- values


def decode(bits, type_):
    """Return the exact value of an element."""
    if type_ in {"u8", "u4", "b1"}:
        return bits
    if type_ in {"s8", "s4", "s32"}:
        width = BITS[type_]
        return bits - (1 << width) if bits >> (width - 1) else bits
    if type_ in {"e4m3", "e5m2"}:
        return _decode_fp8(bits, type_)
    return {
        "f64": lambda: struct.unpack("<d", struct.pack("<Q", bits))[0],
        "f32": lambda: struct.unpack("<f", struct.pack("<I", bits))[0],
        "tf32": lambda: struct.unpack("<f", struct.pack("<I", bits & ~0x1FFF))[0],
        "bf16": lambda: struct.unpack("<f", struct.pack("<I", bits << 16))[0],
        "f16": lambda: struct.unpack("<e", struct.pack("<H", bits))[0],
    }[type_]()


def encode(value, type_):
    """Return the bits of a value that the type holds."""
    form = {"f64": "<d", "f16": "<e"}.get(type_, "<f")
    bits = int.from_bytes(struct.pack(form, value), "little")
    return bits >> 16 if type_ == "bf16" else bits


@functools.cache
def _decode_fp8(bits, type_):
    mantissa_bits, bias = {"e4m3": (3, 7), "e5m2": (2, 15)}[type_]
    sign = -1 if bits & 0x80 else 1
    exponent, mantissa = (bits & 0x7F) >> mantissa_bits, bits & ((1 << mantissa_bits) - 1)
    if type_ == "e4m3" and bits & 0x7F == 0x7F:
        return math.nan
    if type_ == "e5m2" and exponent == 31:
        return math.nan if mantissa else sign * math.inf
    significand = mantissa / (1 << mantissa_bits) + (1 if exponent else 0)
    return math.copysign(significand * 2.0 ** (max(exponent, 1) - bias), sign)


def ulp(value, type_):
    """Return the distance of neighbours around a value in f16, f32 or f64."""
    precision, smallest = {"f16": (11, -14), "f32": (24, -126), "f64": (53, -1022)}[type_]
    if value == 0:
        return Fraction(2) ** (smallest - precision + 1)
    numerator, denominator = abs(Fraction(value)).as_integer_ratio()
    exponent = numerator.bit_length() - denominator.bit_length()
    if Fraction(2) ** exponent > abs(value):
        exponent -= 1
    return Fraction(2) ** (max(exponent, smallest) - precision + 1)


def round_to(value, type_):
    """Round to nearest even; beyond the largest finite number, to infinity."""
    largest = {"f16": Fraction(65504), "f32": Fraction(2) ** 128 - Fraction(2) ** 104}.get(type_)
    unit = ulp(value, type_)
    rounded = round(Fraction(value) / unit) * unit
    if largest is not None and abs(rounded) > largest:
        return math.copysign(math.inf, rounded)
    return rounded


def fuse(a, b, c):
    """Round ``a * b + c`` to f64 once; finite values only."""
    return float(Fraction(a) * Fraction(b) + Fraction(c))


# ------------------------------------------------------------------------------------------------------- products


def multiply(a, b, c, rule="sum"):
    """Return ``A * B + C`` of nested lists.

    Args:
        a: rows of A.
        b: rows of B.
        c: rows of C.
        rule: ``sum``, ``fma`` (rounded to f64 at every step), ``xor`` or ``and`` (counted bits).
    """
    step = {
        "sum": lambda x, y, z: z + x * y,
        "fma": fuse,
        "xor": lambda x, y, z: z + (x ^ y),
        "and": lambda x, y, z: z + (x & y),
    }[rule]
    result = [list(row) for row in c]
    for i, j in itertools.product(range(len(a)), range(len(b[0]))):
        for k in range(len(b)):
            result[i][j] = step(a[i][k], b[k][j], result[i][j])
    return result


def magnitude(a, b, c):
    """Return the sum of absolute values that each element of the product is a sum of."""
    absolute = [[[abs(x) for x in row] for row in matrix] for matrix in (a, b, c)]
    return multiply(*absolute)


def wrap(value):
    return (value + 2**31) % 2**32 - 2**31


def saturate(value):
    return min(max(value, -(2**31)), 2**31 - 1)


# ------------------------------------------------------------------------------------------------- places in mma


@dataclass(frozen=True)
class Form:
    """A product's mnemonic, read."""

    m: int
    n: int
    k: int
    layouts: tuple
    d: str
    a: str
    b: str
    c: str
    flags: frozenset

    @property
    def quad(self):
        return (self.m, self.n, self.k, self.a) == (8, 8, 4, "f16")

    @property
    def rule(self):
        if self.a == "f64":
            return "fma"
        return next((name for name in ("xor", "and") if name in self.flags), "sum")


def read_form(mnemonic):
    """Read an ``mma`` or ``wmma.mma`` mnemonic."""
    words = mnemonic.split(".")
    shape = next(word for word in words if re.fullmatch(r"m\d+n\d+k\d+", word))
    types = [word for word in words if word in BITS]
    if len(types) == 2:
        types = [types[0], "f16", "f16", types[1]]
    layouts = tuple(word for word in words if word in {"row", "col"})
    return Form(*map(int, re.findall(r"\d+", shape)), layouts, *types, frozenset(words))


def place_a(form, lane, i):
    """Return row and column of element ``i`` of A in a lane."""
    group, member = lane >> 2, lane % 4
    if form.quad:
        if form.layouts[0] == "row":
            return (lane % 4 if lane < 16 else lane % 4 + 4), i
        return (i % 4 if lane < 16 else i % 4 + 4), lane % 4
    wide = BITS[form.a]
    if form.m == 8:
        return group, {64: member, 8: member * 4 + i, 4: member * 8 + i, 1: member * 32 + i}[wide]
    if wide == 64 and form.k == 16:
        return (group, i * 2 + member) if i % 2 == 0 else (group + 8, i * 2 - 2 + member)
    if wide >= 32:
        return (group if i in {0, 2} else group + 8), (member if i < 2 else member + 4)
    if wide == 16:
        low = 0 <= i < 2 or 4 <= i < 6
        return (group if low else group + 8), member * 2 + (i & 1) + (8 if i >= 4 else 0)
    if wide == 8:
        low = 0 <= i < 4 or 8 <= i < 12
        return (group if low else group + 8), member * 4 + (i & 3) + (16 if i >= 8 else 0)
    if wide == 4:
        low = 0 <= i < 8 or 16 <= i < 24
        return (group if low else group + 8), member * 8 + (i & 7) + (32 if i >= 16 else 0)
    low = 0 <= i < 32 or 64 <= i < 96
    return (group if low else group + 8), member * 32 + (i & 31) + (128 if i >= 64 else 0)


def place_b(form, lane, i):
    """Return row and column of element ``i`` of B in a lane."""
    group, member = lane >> 2, lane % 4
    if form.quad:
        if form.layouts[1] == "row":
            return lane % 4, (i if lane < 16 else i + 4)
        return i, (lane % 4 if lane < 16 else lane % 4 + 4)
    row = {
        64: lambda: member + i * 4,
        32: lambda: member if i == 0 else member + 4,
        16: lambda: member * 2 + (i & 1) + (8 if i >= 2 else 0),
        8: lambda: member * 4 + (i & 3) + (16 if i >= 4 else 0),
        4: lambda: member * 8 + (i & 7) + (32 if i >= 8 else 0),
        1: lambda: member * 32 + (i & 31) + (128 if i >= 32 else 0),
    }[BITS[form.b]]()
    return row, group


def place_c(form, type_, lane, i):
    """Return row and column of element ``i`` of C or D in a lane."""
    group, member = lane >> 2, lane % 4
    if form.quad and type_ == "f16":
        return (lane % 4 if lane < 16 else lane % 4 + 4), i
    if form.quad:
        x = (lane & 0b1) + (i & 0b10)
        return (x if lane < 16 else x + 4), (i & 0b100) + (lane & 0b10) + (i & 0b1)
    return (group if i < 2 else group + 8), member * 2 + (i & 1)


def tile_of(form, lane):
    """Return which of the four products of ``mma.m8n8k4`` a lane takes part in."""
    return lane % 16 // 4 if form.quad else 0


def elements_per_lane(rows, columns, form):
    return rows * columns * (4 if form.quad else 1) // 32


def registers_per_lane(rows, columns, type_, form):
    return (
        max(elements_per_lane(rows, columns, form) * BITS[type_] // 32, 1) if type_ != "f64" else rows * columns // 32
    )


def gather(registers, type_, shape, place, form):
    """Return the matrices, nested lists of element bits, that ``registers[lane]`` hold."""
    rows, columns = shape
    tiles = [[[None] * columns for _ in range(rows)] for _ in range(4 if form.quad else 1)]
    for lane, i in itertools.product(range(32), range(elements_per_lane(rows, columns, form))):
        row, column = place(lane, i)
        tiles[tile_of(form, lane)][row][column] = element(registers[lane], type_, i)
    assert all(bits is not None for tile in tiles for row in tile for bits in row), "the layout leaves a hole"
    return tiles


def element(registers, type_, i):
    """Return the bits of element ``i`` of a lane's registers."""
    width = BITS[type_]
    if width == 64:
        return registers[i]
    per = 32 // width
    return registers[i // per] >> (i % per * width) & ((1 << width) - 1)


def register_counts(form):
    """Return the registers of D, A, B and C per lane."""
    return (
        registers_per_lane(form.m, form.n, form.d, form),
        registers_per_lane(form.m, form.k, form.a, form),
        registers_per_lane(form.k, form.n, form.b, form),
        registers_per_lane(form.m, form.n, form.c, form),
    )


def take_apart(form, registers):
    """Take the sources apart: element bits of A, B and C, per tile."""
    _, a, b, c = register_counts(form)
    return (
        gather([r[:a] for r in registers], form.a, (form.m, form.k), functools.partial(place_a, form), form),
        gather([r[a : a + b] for r in registers], form.b, (form.k, form.n), functools.partial(place_b, form), form),
        accumulators(form, form.c, [r[a + b : a + b + c] for r in registers]),
    )


def accumulators(form, type_, registers):
    """Return the element bits of C or D, per tile."""
    place = functools.partial(place_c, form, type_)
    return gather(registers, type_, (form.m, form.n), place, form)


def values(matrix, type_):
    return [[decode(bits, type_) for bits in row] for row in matrix]


def fractions(matrix, type_):
    return [[Fraction(value) for value in row] for row in values(matrix, type_)]


def float32(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


def float16(value):
    return struct.unpack("<e", struct.pack("<e", value))[0]


def expect(form, a, b, c):
    """Return the exact result, rounded or wrapped to the type of D, as values."""
    product = multiply(values(a, form.a), values(b, form.b), values(c, form.c), form.rule)
    finish = {
        "s32": saturate if "satfinite" in form.flags else wrap,
        "f64": lambda value: value,
        "f32": float32,
        "f16": float16,
    }[form.d]
    return [[finish(value) for value in row] for row in product]
