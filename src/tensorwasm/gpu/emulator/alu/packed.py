"""Several small integers in one 32-bit register: halves side by side, dot products, packing with saturation, video.

Source: PTX ISA 9.7.1.23 (dp4a), 9.7.1.24 (dp2a), 9.7.9.22 (cvt.pack); .u16x2 and .s16x2 in 9.7.1; 9.7.18 (video
instructions).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import numpy as np

from tensorwasm.gpu.emulator.alu.integer import rectified
from tensorwasm.gpu.emulator.alu.rounding import Array
from tensorwasm.gpu.emulator.alu.rows import Modifiers, OpRow, Run
from tensorwasm.gpu.emulator.ops import DTYPES


def side_by_side(run: Run, dtype: np.dtype[np.generic]) -> Run:
    """Apply a function to the parts of 32-bit words, each part in ``dtype``; the results are words again."""

    def words(*sources: Array) -> Array:
        return run(*(np.ascontiguousarray(source).view(dtype) for source in sources)).view(np.uint32)

    return words


def _halves(run: Run, modifiers: Modifiers) -> Run:
    return side_by_side(run, DTYPES[modifiers[-1].removesuffix("x2")])


def _parts(a: Array, bits: int) -> list[Array]:
    """Cut words into parts of ``bits`` bits, lowest first, extended to 64 bits by the sign of their type."""
    wide = a.astype(np.int64)
    if a.dtype.kind == "u":
        return [(wide >> low) & (2**bits - 1) for low in range(0, 32, bits)]
    return [(wide << (64 - bits - low)) >> (64 - bits) for low in range(0, 32, bits)]


def _dot(modifiers: Modifiers) -> Run:
    """Multiply bytes by bytes (dp4a), or halves by the lower or upper two bytes (dp2a), and add up."""
    bits = 16 if modifiers[0] in {"lo", "hi"} else 8
    first = 2 if modifiers[0] == "hi" else 0

    def run(a: Array, b: Array, c: Array) -> Array:
        products = (x * y for x, y in zip(_parts(a, bits), _parts(b, 8)[first:], strict=False))
        return sum(products, c.astype(np.int64)).astype(c.dtype)

    return run


def _pack(modifiers: Modifiers) -> Run:
    """Saturate two integers, ``b`` into the lowest bits and ``a`` above it; ``c``, if any, moves up."""
    kind, bits = modifiers[2][0], int(modifiers[2][1:])
    low, high = (0, 2**bits - 1) if kind == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)

    def pair(a: Array, b: Array) -> Array:
        upper, lower = (np.clip(x, low, high).view(np.uint32) & np.uint32(2**bits - 1) for x in (a, b))
        return (upper << np.uint32(bits)) | lower

    return pair if bits == 16 else lambda a, b, c: (c << np.uint32(2 * bits)) | pair(a, b)


# ------------------------------------------------------------------------------------ video instructions

# Operands are whole registers, or all their elements in order: the selectors that pick bytes and halves (``%r1.b0``),
# merges and masks are not supported.
#
# Since sm_50 the scalar ones are sequences of other instructions, not all of which follow the pseudocode. The rows do
# as an H200 does: a second minimum or maximum sees 64 bits of the first result, of which ``vadd`` and ``vsub`` extend
# 32 by their sign, signed or unsigned as the destination is; ``vmad`` takes all its operands as signed. `DISPUTED`
# names the forms for which no rule was found, or one that loses their saturation.


def _average(a: Array, b: Array) -> Array:
    """Halve the sum, rounding non-negative ones up."""
    total = a + b
    return (total + (total >= 0)) >> 1


_OPERATIONS: Final[dict[str, Callable[[Array, Array], Array]]] = {
    "vadd": np.add,
    "vsub": np.subtract,
    "vavrg": _average,
    "vabsdiff": lambda a, b: np.absolute(a - b),
    "vmin": np.minimum,
    "vmax": np.maximum,
}
_COMPARE: Final[dict[str, np.ufunc]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
_SECOND: Final[dict[str, np.ufunc]] = {"add": np.add, "min": np.minimum, "max": np.maximum}


def _wide(a: Array) -> Array:
    return a.astype(np.int64)


def _clamp(exact: Array, dtype: np.dtype[Any]) -> Array:
    info = np.iinfo(dtype)
    return np.clip(exact, info.min, info.max)


def _finish(modifiers: Modifiers, type_: str, *, extend: bool = False) -> Run:
    """Saturate an int64 result and combine it with a third operand; ``extend`` its low 32 bits by their sign before."""
    dtype = DTYPES[type_]
    second = next((_SECOND[word] for word in modifiers if word in _SECOND), None)

    def finish(exact: Array, *c: Array) -> Array:
        result = _clamp(exact, dtype) if "sat" in modifiers else exact
        if second is None:
            return result.astype(dtype)
        first = (result.astype(np.int32).astype(np.int64) if extend else result).view(f"{dtype.kind}8")
        return second(first, c[0].astype(first.dtype)).astype(dtype)

    return finish


def _scalar(compute: Callable[[Array, Array], Array], modifiers: Modifiers, *, extend: bool) -> Run:
    finish = _finish(modifiers, modifiers[0], extend=extend)
    return lambda a, b, *c: finish(compute(_wide(a), _wide(b)), *c)


def _shift(direction: np.ufunc, modifiers: Modifiers) -> Run:
    finish = _finish(modifiers, modifiers[0])

    def run(a: Array, b: Array, *c: Array) -> Array:
        amount = b & np.uint32(31) if "wrap" in modifiers else np.minimum(b, np.uint32(32))
        return finish(direction(_wide(a), _wide(amount)), *c)

    return run


def _scalar_compare(modifiers: Modifiers) -> Run:
    """Compare; a second minimum or maximum takes its operand for signed if the first one of the comparison is."""
    compare = _COMPARE[modifiers[2]]
    finish = _finish(modifiers, modifiers[0])
    return lambda a, b, *c: finish(compare(_wide(a), _wide(b)).astype(np.int64), *c).view(np.uint32)


def _multiply_add(modifiers: Modifiers) -> Run:
    """Multiply, add ``c`` and perhaps 1, scale, saturate: to s32 if any factor is, whatever the destination."""
    bounds = np.dtype(np.int32 if "s32" in modifiers[1:3] else np.uint32)
    shift = next((int(word[3:]) for word in modifiers if word.startswith("shr")), 0)

    def run(*sources: Array) -> Array:
        a, b, c = (_wide(source.view(np.int32)) for source in sources)
        total = (a * b + c + ("po" in modifiers)) >> shift
        total = _clamp(total, bounds) if "sat" in modifiers else total
        return total.astype(DTYPES[modifiers[0]])

    return run


def _elements(compute: Callable[[Array, Array], Array], count: int, types: slice, modifiers: Modifiers) -> Run:
    """Make a SIMD instruction; ``types`` selects the modifiers that are the types of ``a`` and ``b``."""
    cut = [_element(word, count) for word in modifiers[types]]
    target = _element(modifiers[0], count)
    function = _COMPARE.get(modifiers[2], compute)

    def run(a: Array, b: Array, c: Array) -> Array:
        parts = (np.ascontiguousarray(x).view(dtype).astype(np.int32) for x, dtype in zip((a, b), cut, strict=True))
        result = function(*parts).astype(np.int32)
        if "add" in modifiers:
            return c + result.reshape(-1, count).sum(axis=1, dtype=np.int32).astype(c.dtype)
        result = _clamp(result, target) if "sat" in modifiers else result
        return result.astype(target).view(c.dtype)

    return run


def _element(word: str, count: int) -> np.dtype[Any]:
    return np.dtype(f"{'i' if word[0] == 's' else 'u'}{4 // count}")


_TYPES: Final = "{u32,s32}.{u32,s32}.{u32,s32}"
_SHIFTED: Final = "{u32,s32}.{u32,s32}.u32"
_COMPARED: Final = "{u32,s32}.{u32,s32}.{eq,ne,lt,le,gt,ge}"
_THEN: Final = "{.add,.min,.max}"
_SCALAR: Final = ("vadd", "vsub", "vabsdiff", "vmin", "vmax")


def _rows() -> Iterator[OpRow]:
    make: Callable[[Modifiers], Run]
    for name in _SCALAR:
        make = partial(_scalar, _OPERATIONS[name], extend=name in {"vadd", "vsub"})
        yield OpRow(f"{name}.{_TYPES}{{,.sat}}", "E = D T", make)
        yield OpRow(f"{name}.{_TYPES}{{,.sat}}{_THEN}", "E = D T E", make)
    for name, direction in (("vshl", np.left_shift), ("vshr", np.right_shift)):
        make = partial(_shift, direction)
        yield OpRow(f"{name}.{_SHIFTED}{{,.sat}}{{.clamp,.wrap}}", "E = D T", make)
        yield OpRow(f"{name}.{_SHIFTED}{{,.sat}}{{.clamp,.wrap}}{_THEN}", "E = D T E", make)
    for count in (2, 4):
        for name, compute in _OPERATIONS.items():
            make = partial(_elements, compute, count, slice(1, 3))
            yield OpRow(f"{name}{count}.{_TYPES}{{,.sat,.add}}", "E = D T E", make)
        make = partial(_elements, np.equal, count, slice(0, 2))
        yield OpRow(f"vset{count}.{_COMPARED}{{,.add}}", "u32 = D T u32", make)


_MIXED: Final = "{u32.s32,s32.u32,s32.s32}"

ROWS: Final = (
    OpRow("add.{u16x2,s16x2}", "T = T T", partial(_halves, np.add)),
    OpRow("min.{u16x2,s16x2}", "T = T T", partial(_halves, np.minimum)),
    OpRow("max.{u16x2,s16x2}", "T = T T", partial(_halves, np.maximum)),
    OpRow("min.relu.s16x2", "T = T T", partial(_halves, rectified(np.minimum))),
    OpRow("max.relu.s16x2", "T = T T", partial(_halves, rectified(np.maximum))),
    OpRow("dp4a.u32.u32", "u32 = u32 u32 u32", _dot),
    OpRow(f"dp4a.{_MIXED}", "s32 = D T s32", _dot),
    OpRow("dp2a.{lo,hi}.u32.u32", "u32 = u32 u32 u32", _dot),
    OpRow(f"dp2a.{{lo,hi}}.{_MIXED}", "s32 = D T s32", _dot),
    OpRow("cvt.pack.sat.{u16,s16}.s32", "b32 = s32 s32", _pack),
    OpRow("cvt.pack.sat.{u8,s8,u4,s4,u2,s2}.s32.b32", "b32 = s32 s32 b32", _pack),
    *_rows(),
    OpRow(f"vset.{_COMPARED}", "u32 = D T", _scalar_compare),
    OpRow(f"vset.{_COMPARED}{_THEN}", "u32 = D T D", _scalar_compare),
    OpRow(f"vmad.{_TYPES}{{,.po}}{{,.sat}}{{,.shr7,.shr15}}", "E = D T b32", _multiply_add),
)
"""Rows of packed integers and of video instructions."""

DISPUTED: Final = (
    "{vadd,vabsdiff}.u32.{u32.s32,s32.u32}.sat{,.add,.min,.max}",
    "vadd.u32.u32.u32.sat{,.add,.min,.max}",
    "vsub.u32.u32.s32.sat{,.add,.min,.max}",
    f"vshl.{_SHIFTED}.sat{{.clamp,.wrap}}{{,.add,.min,.max}}",
    "vshr.u32.u32.u32.sat.{clamp,wrap}.{min,max}",
    "vmad.{u32,s32}.u32.u32{,.po}.sat.{shr7,shr15}",
)
"""Patterns of mnemonics that PTX has and NVIDIA GPUs execute in another way."""
