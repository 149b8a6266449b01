"""Video instructions: scalar, and two or four elements in a register.

Operands are whole registers, or all their elements in order: the selectors that pick bytes and halves (``%r1.b0``),
merges and masks are not supported.

Source: PTX ISA 9.7.18 (video instructions).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from tensorwasm.gpu.emulator.alu.rounding import Array
from tensorwasm.gpu.emulator.alu.rows import Modifiers, Row, Run
from tensorwasm.gpu.emulator.ops import DTYPES


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


def _finish(modifiers: Modifiers, dtype: np.dtype[Any]) -> Run:
    """Saturate an exact int64 result, and combine it with a third operand, all in the type of the destination."""
    second = next((_SECOND[word] for word in modifiers if word in _SECOND), None)

    def finish(exact: Array, *c: Array) -> Array:
        result = (_clamp(exact, dtype) if "sat" in modifiers else exact).astype(dtype)
        return result if second is None else second(result, c[0])

    return finish


def _scalar(compute: Callable[[Array, Array], Array]) -> Callable[[Modifiers], Run]:
    def make(modifiers: Modifiers) -> Run:
        finish = _finish(modifiers, DTYPES[modifiers[0]])
        return lambda a, b, *c: finish(compute(_wide(a), _wide(b)), *c)

    return make


def _shift(*, left: bool) -> Callable[[Modifiers], Run]:
    def make(modifiers: Modifiers) -> Run:
        finish = _finish(modifiers, DTYPES[modifiers[0]])

        def run(a: Array, b: Array, *c: Array) -> Array:
            amount = _wide(b & np.uint32(31) if "wrap" in modifiers else np.minimum(b, np.uint32(32)))
            if not left:
                return finish(_wide(a) >> amount, *c)
            # The last place of a shift by 32 may leave 64 bits; clamped before, the result is the same.
            first = np.minimum(amount, 31)
            exact = np.clip(_wide(a) << first, -(2**62), 2**62 - 2**31) << (amount - first)
            return finish(np.where(amount == first, _wide(a) << first, exact), *c)

        return run

    return make


def _scalar_compare(modifiers: Modifiers) -> Run:
    compare = _COMPARE[modifiers[2]]
    finish = _finish(modifiers, np.dtype(np.uint32))
    return lambda a, b, *c: finish(compare(_wide(a), _wide(b)), *c)


def _multiply_add(modifiers: Modifiers) -> Run:
    """Multiply, add ``c`` and perhaps 1, scale, saturate: signed if any factor is, whatever the destination."""
    signed = "s32" in modifiers[1:3]
    wide, narrow = (np.int64, np.int32) if signed else (np.uint64, np.uint32)
    shift = next((int(word[3:]) for word in modifiers if word.startswith("shr")), 0)

    def run(a: Array, b: Array, c: Array) -> Array:
        total = a.astype(wide) * b.astype(wide) + c.view(narrow).astype(wide) + wide("po" in modifiers)
        total = total >> wide(shift)
        total = _clamp(total, np.dtype(narrow)) if "sat" in modifiers else total
        return total.astype(np.uint32).view(DTYPES[modifiers[0]])

    return run


def _elements(compute: Callable[[Array, Array], Array], count: int, types: slice) -> Callable[[Modifiers], Run]:
    """Make a SIMD instruction; ``types`` says which modifiers are the types of ``a`` and ``b``."""
    bits = 32 // count

    def make(modifiers: Modifiers) -> Run:
        cut = [np.dtype(f"{'i' if word[0] == 's' else 'u'}{bits // 8}") for word in modifiers[types]]
        target = np.dtype(f"{'i' if modifiers[0][0] == 's' else 'u'}{bits // 8}")
        function = _COMPARE.get(modifiers[2], compute)

        def run(a: Array, b: Array, c: Array) -> Array:
            parts = (np.ascontiguousarray(x).view(dtype).astype(np.int32) for x, dtype in zip((a, b), cut, strict=True))
            result = function(*parts).astype(np.int32)
            if "add" in modifiers:
                return c + result.reshape(-1, count).sum(axis=1, dtype=np.int32).astype(c.dtype)
            result = _clamp(result, target) if "sat" in modifiers else result
            return result.astype(target).view(c.dtype)

        return run

    return make


_TYPES: Final = "{u32,s32}.{u32,s32}.{u32,s32}"
_SHIFTED: Final = "{u32,s32}.{u32,s32}.u32"
_COMPARED: Final = "{u32,s32}.{u32,s32}.{eq,ne,lt,le,gt,ge}"
_THEN: Final = "{.add,.min,.max}"
_SCALAR: Final = ("vadd", "vsub", "vabsdiff", "vmin", "vmax")


def _rows() -> tuple[Row, ...]:
    rows = []
    for name in _SCALAR:
        make = _scalar(_OPERATIONS[name])
        rows.append(Row(f"{name}.{_TYPES}{{,.sat}}", "E = D T", make))
        rows.append(Row(f"{name}.{_TYPES}{{,.sat}}{_THEN}", "E = D T E", make))
    for name, make in (("vshl", _shift(left=True)), ("vshr", _shift(left=False))):
        rows.append(Row(f"{name}.{_SHIFTED}{{,.sat}}{{.clamp,.wrap}}", "E = D T", make))
        rows.append(Row(f"{name}.{_SHIFTED}{{,.sat}}{{.clamp,.wrap}}{_THEN}", "E = D T E", make))
    for count in (2, 4):
        for name, compute in _OPERATIONS.items():
            make = _elements(compute, count, slice(1, 3))
            rows.append(Row(f"{name}{count}.{_TYPES}{{,.sat,.add}}", "E = D T E", make))
        make = _elements(np.equal, count, slice(0, 2))
        rows.append(Row(f"vset{count}.{_COMPARED}{{,.add}}", "u32 = D T u32", make))
    return tuple(rows)


ROWS: Final = (
    *_rows(),
    Row(f"vset.{_COMPARED}", "u32 = D T", _scalar_compare),
    Row(f"vset.{_COMPARED}{_THEN}", "u32 = D T u32", _scalar_compare),
    Row(f"vmad.{_TYPES}{{,.po}}{{,.sat}}{{,.shr7,.shr15}}", "E = D T b32", _multiply_add),
)
"""Rows of video instructions."""
