"""WebAssembly's vector instructions as scalar ones, lane by lane: one row an instruction.

A shape is the type of a vector's lanes. Lanes of 8 and 16 bits are ``i32`` whose upper bits may be anything. The lanes
of a mask (``m8`` to ``m64``) are ``i32`` that are 1 where all bits of the lane are ones, and 0 where none is.

A lane of a result is a text of scalar instructions: ``a3`` is lane 3 of the first operand, ``b0`` lane 0 of the second,
``n`` an operand that is no vector; a number is an ``i32``, one with ``L`` an ``i64``; ``=t`` and ``t`` set and get a
local. What is not here, declines: ``i8x16.swizzle``, whose lanes data chooses, and what is relaxed.

Source: Wasm core 2.0, 4.3 (numerics) and 4.4.3 (vector instructions).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from tensorwasm.offload.nest import ValueType

SHAPE_BYTES: Final[Mapping[str, int]] = {
    **dict.fromkeys(("i8", "m8"), 1),
    **dict.fromkeys(("i16", "m16"), 2),
    **dict.fromkeys(("i32", "f32", "m32"), 4),
    **dict.fromkeys(("i64", "f64", "m64"), 8),
}
"""Bytes of a lane of each shape."""

SCALARS: Final[Mapping[str, ValueType]] = {
    **dict.fromkeys(("i8", "i16", "i32", "m8", "m16", "m32", "m64"), "i32"),
    "i64": "i64",
    "f32": "f32",
    "f64": "f64",
}
"""The type that a lane of each shape is computed in."""

SCALAR_OPERAND: Final = "n"
AS_DATA: Final = "as_data"
"""Not WebAssembly's: what is on the stack decides no path, though it may be known to be affine."""
VECTOR: Final = "v128"
_BYTES: Final = 16
_FIRST_CROSSING: Final = 1 << 16
_MOST_LANES: Final = 4


def crossing_kind(shape: str) -> ValueType:
    """Return the type of the numbers that a vector is among the inputs and outputs of a region."""
    kinds: Mapping[str, ValueType] = {"f32": "f32", "f64": "f64", "i32": "i32"}
    return kinds.get(shape, "i64")


def crossing_number(local: int, lane: int) -> int:
    """Return the number of a lane of a local among a region's inputs and outputs; it is above that of any local."""
    return _FIRST_CROSSING + local * _MOST_LANES + lane


def crossing_lane(number: int) -> tuple[int, int] | None:
    """Return the local and its lane of such a number; None if it is that of a local."""
    return None if number < _FIRST_CROSSING else divmod(number - _FIRST_CROSSING, _MOST_LANES)


def lane_count(shape: str) -> int:
    """Return how many lanes a vector of a shape has."""
    return _BYTES // SHAPE_BYTES[shape]


def integer_shape(size_bytes: int) -> str:
    """Return the shape of integers of a size."""
    return f"i{8 * size_bytes}"


def is_mask(shape: str) -> bool:
    """Return whether lanes of a shape say whether all bits of a lane are ones."""
    return shape[0] == "m"


@dataclass(frozen=True, slots=True)
class VectorRow:
    """How one instruction is written.

    Attributes:
        operands: their shapes, `SCALAR_OPERAND` for one that is no vector, which is the last one.
        result: its shape; None if it is an ``i32``.
        lanes: of the result.
    """

    operands: tuple[str, ...]
    result: str | None
    lanes: tuple[str, ...]


class VectorAccess(NamedTuple):
    """What an instruction reads or writes.

    Attributes:
        size_bytes: what it accesses.
        lane: opcode that loads a lane, of an instruction that extends each one.
        shape: of what such an instruction loads.
        fill: ``splat`` if what is loaded is repeated, ``zero`` if zeros follow it.
    """

    size_bytes: int
    lane: str = ""
    shape: str = ""
    fill: str = ""


def _loads() -> Iterator[tuple[str, VectorAccess]]:
    yield "v128.load", VectorAccess(_BYTES)
    for bits, count, shape in ((8, 8, "i16"), (16, 4, "i32"), (32, 2, "i64")):
        for sign in "su":
            opcode = f"{SCALARS[shape]}.load{bits}_{sign}"
            yield f"v128.load{bits}x{count}_{sign}", VectorAccess(8, opcode, shape)
    for size_bytes in (1, 2, 4, 8):
        yield f"v128.load{8 * size_bytes}_splat", VectorAccess(size_bytes, fill="splat")
    for size_bytes in (4, 8):
        yield f"v128.load{8 * size_bytes}_zero", VectorAccess(size_bytes, fill="zero")


VECTOR_LOADS: Final[Mapping[str, VectorAccess]] = dict(_loads())
LANE_LOADS: Final[Mapping[str, int]] = {f"v128.load{8 * size}_lane": size for size in (1, 2, 4, 8)}
"""Bytes that each one reads."""
LANE_STORES: Final[Mapping[str, int]] = {f"v128.store{8 * size}_lane": size for size in (1, 2, 4, 8)}
"""Bytes that each one writes."""
LANE_OPCODES: Final[Mapping[str, tuple[str, str]]] = {
    "i8": ("i32.load8_u", "i32.store8"),
    "i16": ("i32.load16_u", "i32.store16"),
    **{kind: (f"{kind}.load", f"{kind}.store") for kind in ("i32", "i64", "f32", "f64")},
}
"""What loads and stores a lane of each shape."""

BITWISE: Final[Mapping[str, int]] = {"v128.and": 2, "v128.or": 2, "v128.xor": 2, "v128.andnot": 2, "v128.not": 1}
"""Instructions that know no lanes, and how many operands they have."""


def _extended(shape: str, sign: str) -> Callable[[str], str]:
    """Return what extends a lane."""
    bits = 8 * SHAPE_BYTES[shape]
    if bits >= 32:
        return lambda lane: lane
    return lambda lane: f"{lane} i32.extend{bits}_s" if sign == "s" else f"{lane} {(1 << bits) - 1} i32.and"


def _clamped(value: str, bits: int, sign: str) -> str:
    """Return an ``i32`` that is brought into the range of a smaller integer."""
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if sign == "s" else (0, (1 << bits) - 1)
    return f"{value} =t t {high} t {high} i32.lt_s {AS_DATA} select =t t {low} t {low} i32.gt_s {AS_DATA} select"


def _widened(shape: str, sign: str) -> Callable[[str], str]:
    """Return what makes a lane of twice the size."""
    return (lambda lane: f"{lane} i64.extend_i32_{sign}") if shape == "i32" else _extended(shape, sign)


def _integer_texts(shape: str) -> Iterator[tuple[str, str, str]]:
    """Yield for instructions on integers: name, operands, and text with ``a`` and ``b`` for the operands' lanes."""
    kind, bits, end = SCALARS[shape], 8 * SHAPE_BYTES[shape], "L" if shape == "i64" else ""
    signs = {sign: (_extended(shape, sign)("a"), _extended(shape, sign)("b")) for sign in "su"}
    one, other = signs["s"]
    yield from (("add", "ab", f"a b {kind}.add"), ("sub", "ab", f"a b {kind}.sub"))
    yield "neg", "a", f"0{end} a {kind}.sub"
    yield "abs", "a", f"0{end} {one} {kind}.sub {one} {one} 0{end} {kind}.lt_s {AS_DATA} select"
    if shape != "i8":
        yield "mul", "ab", f"a b {kind}.mul"
    count = f"n {bits - 1} i32.and" + (" i64.extend_i32_u" if end else "")
    yield "shl", "an", f"a {count} {kind}.shl"
    for sign in "su":
        yield f"shr_{sign}", "an", f"{signs[sign][0]} {count} {kind}.shr_{sign}"
    if shape == "i64":
        return
    for sign, (a, b) in signs.items():
        yield f"min_{sign}", "ab", f"{a} {b} {a} {b} i32.lt_{sign} {AS_DATA} select"
        yield f"max_{sign}", "ab", f"{a} {b} {a} {b} i32.gt_{sign} {AS_DATA} select"
        if shape != "i32":
            yield f"add_sat_{sign}", "ab", _clamped(f"{a} {b} i32.add", bits, sign)
            yield f"sub_sat_{sign}", "ab", _clamped(f"{a} {b} i32.sub", bits, sign)
    if shape != "i32":
        a, b = signs["u"]
        yield "avgr_u", "ab", f"{a} {b} i32.add 1 i32.add 1 i32.shr_u"
    if shape == "i8":
        yield "popcnt", "a", f"{signs['u'][0]} i32.popcnt"
    if shape == "i16":
        yield "q15mulr_sat_s", "ab", _clamped(f"{one} {other} i32.mul 16384 i32.add 15 i32.shr_s", bits, "s")


def _float_texts(shape: str) -> Iterator[tuple[str, str, str]]:
    for name in ("add", "sub", "mul", "div", "min", "max"):
        yield name, "ab", f"a b {shape}.{name}"
    for name in ("abs", "neg", "sqrt", "ceil", "floor", "trunc", "nearest"):
        yield name, "a", f"a {shape}.{name}"
    yield "pmin", "ab", f"b a b a {shape}.lt select"
    yield "pmax", "ab", f"b a a b {shape}.lt select"


def _tests(shape: str) -> Iterator[tuple[str, str]]:
    """Yield the names of comparisons, and their texts."""
    if shape[0] == "f":
        yield from ((name, f"a b {shape}.{name}") for name in ("eq", "ne", "lt", "gt", "le", "ge"))
        return
    names = [f"{name}_{sign}" for name in ("lt", "gt", "le", "ge") for sign in ("s" if shape == "i64" else "su")]
    for name in ("eq", "ne", *names):
        extend = _extended(shape, name[-1])
        yield name, f"{extend('a')} {extend('b')} {SCALARS[shape]}.{name} {AS_DATA}"


def _at(text: str, lane: int) -> str:
    """Return a text for one lane."""
    return " ".join([f"{word}{lane}" if word in {"a", "b"} else word for word in text.split()])


def _spelled(shape: str) -> str:
    return f"{shape}x{lane_count(shape)}"


def _by_lanes() -> Iterator[tuple[str, VectorRow]]:
    """Yield the rows of instructions that do the same to each lane."""
    for shape in ("i8", "i16", "i32", "i64", "f32", "f64"):
        lanes, name = range(lane_count(shape)), _spelled(shape)
        for operation, operands, text in _float_texts(shape) if shape[0] == "f" else _integer_texts(shape):
            shapes = tuple([SCALAR_OPERAND if each == SCALAR_OPERAND else shape for each in operands])
            yield f"{name}.{operation}", VectorRow(shapes, shape, tuple([_at(text, lane) for lane in lanes]))
        for operation, text in _tests(shape):
            made = tuple([_at(text, lane) for lane in lanes])
            yield f"{name}.{operation}", VectorRow((shape, shape), f"m{shape[1:]}", made)
        yield f"{name}.splat", VectorRow((SCALAR_OPERAND,), shape, ("n",) * len(lanes))


def _widenings() -> Iterator[tuple[str, VectorRow]]:
    """Yield the rows of instructions whose lanes are larger, and of those that make them smaller."""
    for shape, wide in (("i8", "i16"), ("i16", "i32"), ("i32", "i64")):
        count, kind = lane_count(wide), SCALARS[wide]
        for sign in "su":
            widen = _widened(shape, sign)
            for half, first in (("low", 0), ("high", count)):
                lanes, end = range(first, first + count), f"{half}_{_spelled(shape)}_{sign}"
                row = VectorRow((shape,), wide, tuple([widen(f"a{lane}") for lane in lanes]))
                yield f"{_spelled(wide)}.extend_{end}", row
                products = tuple([f"{widen(f'a{lane}')} {widen(f'b{lane}')} {kind}.mul" for lane in lanes])
                yield f"{_spelled(wide)}.extmul_{end}", VectorRow((shape, shape), wide, products)
            if shape == "i32":
                continue
            pairs = range(0, 2 * count, 2)
            sums = tuple([f"{widen(f'a{lane}')} {widen(f'a{lane + 1}')} i32.add" for lane in pairs])
            yield f"{_spelled(wide)}.extadd_pairwise_{_spelled(shape)}_{sign}", VectorRow((shape,), wide, sums)
            whole = _extended(wide, "s")
            sources = [f"{operand}{lane}" for operand in "ab" for lane in range(count)]
            small = tuple([_clamped(whole(lane), 8 * SHAPE_BYTES[shape], sign) for lane in sources])
            yield f"{_spelled(shape)}.narrow_{_spelled(wide)}_{sign}", VectorRow((wide, wide), shape, small)
    signed = _extended("i16", "s")
    products = tuple([f"{signed(f'a{lane}')} {signed(f'b{lane}')} i32.mul" for lane in range(8)])
    dots = tuple([f"{products[lane]} {products[lane + 1]} i32.add" for lane in range(0, 8, 2)])
    yield "i32x4.dot_i16x8_s", VectorRow(("i16", "i16"), "i32", dots)


def _conversions() -> Iterator[tuple[str, VectorRow]]:
    four, two = range(4), range(2)
    for sign in "su":
        low = tuple([f"a{lane} f64.convert_i32_{sign}" for lane in two])
        yield f"f64x2.convert_low_i32x4_{sign}", VectorRow(("i32",), "f64", low)
        made = tuple([f"a{lane} f32.convert_i32_{sign}" for lane in four])
        yield f"f32x4.convert_i32x4_{sign}", VectorRow(("i32",), "f32", made)
        made = tuple([f"a{lane} i32.trunc_sat_f32_{sign}" for lane in four])
        yield f"i32x4.trunc_sat_f32x4_{sign}", VectorRow(("f32",), "i32", made)
        made = tuple([f"a{lane} i32.trunc_sat_f64_{sign}" for lane in two])
        yield f"i32x4.trunc_sat_f64x2_{sign}_zero", VectorRow(("f64",), "i32", (*made, "0", "0"))
    small = tuple([f"a{lane} f32.demote_f64" for lane in two])
    yield "f32x4.demote_f64x2_zero", VectorRow(("f64",), "f32", (*small, *("0 f32.reinterpret_i32",) * 2))
    large = tuple([f"a{lane} f64.promote_f32" for lane in two])
    yield "f64x2.promote_low_f32x4", VectorRow(("f32",), "f64", large)


def _summaries() -> Iterator[tuple[str, VectorRow]]:
    """Yield the rows of instructions that make one number of a vector."""
    for shape in ("i8", "i16", "i32", "i64"):
        count, end = lane_count(shape), "L" if shape == "i64" else ""
        unsigned, signed, kind = _extended(shape, "u"), _extended(shape, "s"), SCALARS[shape]
        tests = [f"{unsigned(f'a{lane}')} 0{end} {kind}.ne {AS_DATA}" for lane in range(count)]
        whole = tests[0] + "".join([f" {test} i32.and" for test in tests[1:]])
        yield f"{_spelled(shape)}.all_true", VectorRow((shape,), None, (whole,))
        bits = [f"{signed(f'a{lane}')} 0{end} {kind}.lt_s {AS_DATA} {lane} i32.shl" for lane in range(count)]
        every = bits[0] + "".join([f" {bit} i32.or" for bit in bits[1:]])
        yield f"{_spelled(shape)}.bitmask", VectorRow((shape,), None, (every,))
    some = f"a0 a1 i64.or 0L i64.ne {AS_DATA}"
    yield "v128.any_true", VectorRow(("i64",), None, (some,))


VECTOR_ROWS: Final[Mapping[str, VectorRow]] = dict([*_by_lanes(), *_widenings(), *_conversions(), *_summaries()])
"""Instructions of which only the operands' lanes decide what they do."""


def _extractions() -> Iterator[tuple[str, tuple[str, str]]]:
    for shape in ("i8", "i16", "i32", "i64", "f32", "f64"):
        for sign in ("s", "u") if shape in {"i8", "i16"} else ("",):
            name = f"{_spelled(shape)}.extract_lane"
            yield (f"{name}_{sign}" if sign else name), (shape, _extended(shape, sign)("a"))


EXTRACTIONS: Final[Mapping[str, tuple[str, str]]] = dict(_extractions())
"""The shape of which each ``extract_lane`` takes a lane, and what it makes of it."""
REPLACEMENTS: Final[Mapping[str, str]] = {
    f"{_spelled(shape)}.replace_lane": shape for shape in ("i8", "i16", "i32", "i64", "f32", "f64")
}

VECTOR_ACCESSES: Final[Mapping[str, tuple[int, int]]] = {
    **dict.fromkeys(VECTOR_LOADS, (1, 1)),
    "v128.store": (2, 0),
    **dict.fromkeys(LANE_LOADS, (2, 1)),
    **dict.fromkeys(LANE_STORES, (2, 0)),
}
"""How many values each vector instruction on memory takes from the stack, the address first, and leaves there."""

VECTOR_EFFECTS: Final[Mapping[str, tuple[int, int]]] = {
    **{name: (len(row.operands), 1) for name, row in VECTOR_ROWS.items()},
    **{name: (count, 1) for name, count in BITWISE.items()},
    **dict.fromkeys(EXTRACTIONS, (1, 1)),
    **dict.fromkeys(REPLACEMENTS, (2, 1)),
    "v128.bitselect": (3, 1),
    "i8x16.shuffle": (2, 1),
    "v128.const": (0, 1),
}
"""The same of all others."""
