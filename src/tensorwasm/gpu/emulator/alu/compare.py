"""Comparisons and selections.

Source: PTX ISA 9.7.6 (comparison and selection), 9.7.7 (half precision comparison).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np

from tensorwasm.gpu.emulator.alu.floating import element_of, flush, flush_of
from tensorwasm.gpu.emulator.alu.rounding import Array
from tensorwasm.gpu.emulator.alu.rows import Modifiers, OpRow, Run, always
from tensorwasm.gpu.emulator.ops import DTYPES, Op
from tensorwasm.ptx.model import Instruction, Pair

Compare = Callable[[Array, Array], Any]


def _not(compare: Compare) -> Compare:
    return lambda a, b: ~compare(a, b)


def _unequal(a: Array, b: Array) -> Any:
    return (a < b) | (a > b)


def _numbers(a: Array, b: Array) -> Any:
    return (a == a) & (b == b)  # noqa: PLR0124 - the NaN test


COMPARE: Final[dict[str, Compare]] = {
    "eq": np.equal,
    "ne": _unequal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
    "equ": _not(_unequal),
    "neu": np.not_equal,
    "ltu": _not(np.greater_equal),
    "leu": _not(np.greater),
    "gtu": _not(np.less_equal),
    "geu": _not(np.less),
    "num": _numbers,
    "nan": _not(_numbers),
}
"""Comparisons; ``ne`` is false for NaN, which no single ufunc is."""
COMBINE: Final[dict[str, np.ufunc]] = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}
"""How the outcome combines with a predicate."""


def _comparison(modifiers: Modifiers) -> Compare:
    """Return the comparison that the modifiers name, for one element of the last type among them."""
    type_ = element_of(modifiers)
    compare = np.not_equal if modifiers[0] == "ne" and type_[0] in "usb" and type_ != "bf16" else COMPARE[modifiers[0]]
    if "ftz" not in modifiers:
        return compare
    cut = flush_of(type_)
    return lambda a, b: compare(cut(a), cut(b))


def _combined(modifiers: Modifiers, compare: Run) -> Run:
    """Combine every outcome with a last, predicate source, if a modifier asks for it."""
    combine = COMBINE.get(modifiers[1])
    if combine is None:
        return compare

    def run(a: Array, b: Array, c: Array) -> Any:
        outcome = compare(a, b)
        return tuple(combine(one, c) for one in outcome) if isinstance(outcome, tuple) else combine(outcome, c)

    return run


# ------------------------------------------------------------------------------------------ predicates


def _both_ways(modifiers: Modifiers) -> Run:
    compare = _comparison(modifiers)

    def run(a: Array, b: Array) -> tuple[Array, Array]:
        outcome = compare(a, b)
        return outcome, ~outcome

    return _combined(modifiers, run)


def _one_way(modifiers: Modifiers) -> Run:
    return _combined(modifiers, _comparison(modifiers))


def _each_half(modifiers: Modifiers) -> Run:
    compare = _comparison(modifiers)
    dtype = DTYPES[element_of(modifiers)]

    def run(a: Array, b: Array) -> tuple[Array, Array]:
        outcome = compare(*(np.ascontiguousarray(source).view(dtype) for source in (a, b)))
        return outcome[0::2], outcome[1::2]

    return _combined(modifiers, run)


def _without_second(instruction: Instruction, op: Op) -> Op:
    """Drop the second predicate where the instruction has no ``p|q``."""
    if instruction.operands and isinstance(instruction.operands[0], Pair):
        return op
    if instruction.modifiers[-1].endswith("x2"):
        return replace(op, results=op.results[:1], run=lambda *sources: op.run(*sources)[0])
    return replace(op, results=op.results[:1], run=_one_way(instruction.modifiers))


# ------------------------------------------------------------------------------------------ masks


def _true(dtype: np.dtype[Any], *, mask: bool) -> Any:
    """Return what stands for true: all ones, or 1.0."""
    return np.full(1, -1, f"i{dtype.itemsize}").view(dtype)[0] if mask else dtype.type(1)


def _mask(modifiers: Modifiers) -> Run:
    compare = _combined(modifiers, _comparison(modifiers))
    dtype = DTYPES[modifiers[-2]]
    true = _true(dtype, mask=dtype.kind in "ui")
    return lambda *sources: np.where(compare(*sources), true, dtype.type(0))


def _mask_halves(modifiers: Modifiers) -> Run:
    target, source = modifiers[-2:]
    dtype = DTYPES[source.removesuffix("x2")]
    true = _true(dtype, mask=target != source)
    compare = _combined(modifiers, _comparison(modifiers))

    def run(a: Array, b: Array, *c: Array) -> Array:
        outcome = compare(*(np.ascontiguousarray(x).view(dtype) for x in (a, b)), *(np.repeat(x, 2) for x in c))
        return np.where(outcome, true, dtype.type(0)).view(DTYPES[target])

    return run


def _choose(a: Array, b: Array, c: Array) -> Array:
    return np.where(c, a, b)


def _choose_by_sign(modifiers: Modifiers) -> Run:
    cut: Run = flush if "ftz" in modifiers else np.asarray
    return lambda a, b, c: np.where(cut(c) >= 0, a, b)


_ORDERED: Final = "eq,ne,lt,le,gt,ge"
_FLOAT: Final = f"{{{_ORDERED},equ,neu,ltu,leu,gtu,geu,num,nan}}"
_BOTH: Final[tuple[tuple[str, str], ...]] = (
    ("{eq,ne}", "{b16,b32,b64}"),
    (f"{{{_ORDERED},lo,ls,hi,hs}}", "{u16,u32,u64}"),
    (f"{{{_ORDERED}}}", "{s16,s32,s64}"),
    (f"{_FLOAT}", "f64"),
    (f"{_FLOAT}", "f32"),
)
_ANY: Final = "{b16,b32,b64,u16,u32,u64,s16,s32,s64,f32,f64}"
_THEN: Final = "{.and,.or,.xor}"


def _setp(operations: str, types: str, make: Callable[[Modifiers], Run], results: str = "pred pred") -> Iterator[OpRow]:
    bind = _without_second if results == "pred pred" else None
    yield OpRow(f"setp.{operations}.{types}", f"{results} = T T", make, bind=bind)
    yield OpRow(f"setp.{operations}{_THEN}.{types}", f"{results} = T T pred", make, bind=bind)


def _set(operations: str, types: str, make: Callable[[Modifiers], Run] = _mask) -> Iterator[OpRow]:
    yield OpRow(f"set.{operations}.{types}", "D = T T", make)
    yield OpRow(f"set.{operations}{_THEN}.{types}", "D = T T pred", make)


def _rows() -> Iterator[OpRow]:
    for operations, types in _BOTH:
        yield from _setp(operations, types, _both_ways)
        yield from _set(operations, f"{{u32,s32,f32,f16,bf16}}.{types}")
    yield from _setp(_FLOAT, "ftz.f32", _both_ways)
    yield from _set(_FLOAT, "ftz.{u32,s32,f32,f16}.f32")
    yield from _setp(_FLOAT, "{f16,bf16,ftz.f16}", _one_way, "pred")
    yield from _set(_FLOAT, "{u16,s16,u32,s32,f16,bf16}.f16")
    yield from _set(_FLOAT, "ftz.{u16,s16,u32,s32,f16}.f16")
    yield from _set(_FLOAT, "{u16,s16,u32,s32,bf16}.bf16")
    yield from _setp(_FLOAT, "{f16x2,bf16x2,ftz.f16x2}", _each_half)
    yield from _set(_FLOAT, "{,ftz.}{u32,s32,f16x2}.f16x2", _mask_halves)
    yield from _set(_FLOAT, "{u32,s32,bf16x2}.bf16x2", _mask_halves)


ROWS: Final = (
    *_rows(),
    OpRow(f"selp.{_ANY}", "T = T T pred", always(_choose)),
    OpRow(f"slct.{_ANY}.s32", "D = D D T", _choose_by_sign),
    OpRow(f"slct{{,.ftz}}.{_ANY}.f32", "D = D D T", _choose_by_sign),
)
"""Rows of comparison and selection."""
