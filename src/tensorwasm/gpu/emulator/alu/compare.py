"""Comparisons and selections.

Source: PTX ISA 9.7.6 (comparison and selection), 9.7.7 (half precision comparison).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import numpy as np

from tensorwasm.gpu.emulator.alu.floating import flush
from tensorwasm.gpu.emulator.alu.rounding import Array
from tensorwasm.gpu.emulator.alu.rows import Modifiers, Row, Run, always
from tensorwasm.gpu.emulator.ops import DTYPES, Op
from tensorwasm.ptx.model import Instruction, Pair

Compare = Callable[[Array, Array], Any]


def _not(compare: Compare) -> Compare:
    return lambda a, b: ~compare(a, b)


def _number(a: Array, b: Array) -> Array:
    return (a == a) & (b == b)  # noqa: PLR0124 - the NaN test


COMPARE: Final[dict[str, Compare]] = {
    "eq": np.equal,
    "ne": lambda a, b: (a < b) | (a > b),  # false for NaN; integers use `neu`, a single call
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
    "equ": lambda a, b: ~((a < b) | (a > b)),
    "neu": np.not_equal,
    "ltu": _not(np.greater_equal),
    "leu": _not(np.greater),
    "gtu": _not(np.less_equal),
    "geu": _not(np.less),
    "num": _number,
    "nan": _not(_number),
}
COMBINE: Final[dict[str, np.ufunc]] = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}


def comparison(modifiers: Modifiers) -> Compare:
    """Return the comparison the modifiers name, for operands of the last type among them."""
    name = modifiers[0]
    kind = DTYPES[modifiers[-1]].kind
    compare = COMPARE["neu" if name == "ne" and kind in "ui" and not modifiers[-1].endswith("x2") else name]
    if "ftz" in modifiers and modifiers[-1] == "f32":
        return lambda a, b: compare(flush(a), flush(b))
    return compare


def _setp(modifiers: Modifiers) -> Run:
    compare = comparison(modifiers)
    combine = COMBINE.get(modifiers[1])

    def both(a: Array, b: Array, c: Array | None = None) -> tuple[Array, Array]:
        outcome = compare(a, b)
        return (outcome, ~outcome) if combine is None else (combine(outcome, c), combine(~outcome, c))

    return both


def _first_only(instruction: Instruction, op: Op) -> Op:
    """Drop the second predicate where the instruction has no ``p|q``."""
    if instruction.operands and isinstance(instruction.operands[0], Pair):
        return op
    compare, combine = comparison(instruction.modifiers), COMBINE.get(instruction.modifiers[1])
    run: Run = compare if combine is None else lambda a, b, c: combine(compare(a, b), c)
    return replace(op, results=op.results[:1], run=run)


_ORDERED: Final = "eq,ne,lt,le,gt,ge"
_FLOAT: Final = f"{{{_ORDERED},equ,neu,ltu,leu,gtu,geu,num,nan}}"
_OPERATIONS: Final[dict[str, str]] = {
    "{b16,b32,b64}": "{eq,ne}",
    "{u16,u32,u64}": f"{{{_ORDERED},lo,ls,hi,hs}}",
    "{s16,s32,s64}": f"{{{_ORDERED}}}",
    "{f64}": _FLOAT,
}


def _setp_rows(operations: str, types: str) -> tuple[Row, Row]:
    return (
        Row(f"setp.{operations}.{types}", "pred pred = T T", _setp, bind=_first_only),
        Row(f"setp.{operations}{{.and,.or,.xor}}.{types}", "pred pred = T T pred", _setp, bind=_first_only),
    )


def _choose(a: Array, b: Array, c: Array) -> Array:
    return np.where(c, a, b)


def _choose_by_sign(modifiers: Modifiers) -> Run:
    if modifiers[-1] == "f32":
        prepare = flush if "ftz" in modifiers else np.asarray
        return lambda a, b, c: np.where(prepare(c) >= 0, a, b)
    return lambda a, b, c: np.where(c >= 0, a, b)


ROWS: Final = (
    *(row for types, operations in _OPERATIONS.items() for row in _setp_rows(operations, types)),
    *_setp_rows(f"{_FLOAT}", "f32"),
    *_setp_rows(f"{_FLOAT}", "ftz.f32"),
    Row("selp.{b16,b32,b64,u16,u32,u64,s16,s32,s64,f32,f64}", "T = T T pred", always(_choose)),
    Row("slct.{b16,b32,b64,u16,u32,u64,s16,s32,s64,f32,f64}.s32", "D = D D T", _choose_by_sign),
    Row("slct{,.ftz}.{b16,b32,b64,u16,u32,u64,s16,s32,s64,f32,f64}.f32", "D = D D T", _choose_by_sign),
)
"""Rows of comparison and selection."""
