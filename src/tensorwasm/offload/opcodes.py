"""WebAssembly's numeric instructions in LLVM's: one row an instruction, for scalars and for vectors alike.

In a row ``{0}`` and ``{1}`` are the operands, ``{s}`` is their type, ``{t}`` the result's, ``{n}`` and ``{m}`` are the
suffixes of intrinsics for the result and the operand. A row of several instructions names the results before the last
``{a}``, ``{b}``. No row has a flag that lets LLVM assume or approximate anything.

Source: Wasm core 2.0, 4.3 (numerics); LLVM language reference, "Floating-Point Environment", "Behavior of NaN values".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tensorwasm.offload.nest import ValueType

WIDTH_BITS: Final = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "f32": 32, "f64": 64}


@dataclass(frozen=True, slots=True)
class InstructionRow:
    """How one instruction is written.

    Attributes:
        operands: their types.
        result: its type.
        lines: instructions; the last one has the result.
        narrow: type of what the last line gives, which is then extended by zeros; that of the result if None.
    """

    operands: tuple[ValueType, ...]
    result: ValueType
    lines: tuple[str, ...]
    narrow: str | None = None


_INTEGER_BINARY: Final = {
    "add": ("add {t} {0}, {1}",),
    "sub": ("sub {t} {0}, {1}",),
    "mul": ("mul {t} {0}, {1}",),
    "div_s": ("sdiv {t} {0}, {1}",),
    "div_u": ("udiv {t} {0}, {1}",),
    "rem_s": ("srem {t} {0}, {1}",),
    "rem_u": ("urem {t} {0}, {1}",),
    "and": ("and {t} {0}, {1}",),
    "or": ("or {t} {0}, {1}",),
    "xor": ("xor {t} {0}, {1}",),
    "shl": ("and {t} {1}, {mask}", "shl {t} {0}, {a}"),
    "shr_s": ("and {t} {1}, {mask}", "ashr {t} {0}, {a}"),
    "shr_u": ("and {t} {1}, {mask}", "lshr {t} {0}, {a}"),
    "rotl": ("call {t} @llvm.fshl.{n}({t} {0}, {t} {0}, {t} {1})",),
    "rotr": ("call {t} @llvm.fshr.{n}({t} {0}, {t} {0}, {t} {1})",),
}
_INTEGER_UNARY: Final = {
    "clz": ("call {t} @llvm.ctlz.{n}({t} {0}, i1 false)",),
    "ctz": ("call {t} @llvm.cttz.{n}({t} {0}, i1 false)",),
    "popcnt": ("call {t} @llvm.ctpop.{n}({t} {0})",),
    "extend8_s": ("trunc {t} {0} to {i8}", "sext {i8} {a} to {t}"),
    "extend16_s": ("trunc {t} {0} to {i16}", "sext {i16} {a} to {t}"),
}
_INTEGER_TESTS: Final = {
    "eq": "icmp eq {s} {0}, {1}",
    "ne": "icmp ne {s} {0}, {1}",
    "lt_s": "icmp slt {s} {0}, {1}",
    "lt_u": "icmp ult {s} {0}, {1}",
    "gt_s": "icmp sgt {s} {0}, {1}",
    "gt_u": "icmp ugt {s} {0}, {1}",
    "le_s": "icmp sle {s} {0}, {1}",
    "le_u": "icmp ule {s} {0}, {1}",
    "ge_s": "icmp sge {s} {0}, {1}",
    "ge_u": "icmp uge {s} {0}, {1}",
}
_FLOAT_BINARY: Final = {
    "add": ("fadd {t} {0}, {1}",),
    "sub": ("fsub {t} {0}, {1}",),
    "mul": ("fmul {t} {0}, {1}",),
    "div": ("fdiv {t} {0}, {1}",),
    "min": ("call {t} @llvm.minimum.{n}({t} {0}, {t} {1})",),
    "max": ("call {t} @llvm.maximum.{n}({t} {0}, {t} {1})",),
    "copysign": ("call {t} @llvm.copysign.{n}({t} {0}, {t} {1})",),
}
_FLOAT_UNARY: Final = {
    "abs": ("call {t} @llvm.fabs.{n}({t} {0})",),
    "neg": ("fneg {t} {0}",),
    "sqrt": ("call {t} @llvm.sqrt.{n}({t} {0})",),
    "ceil": ("call {t} @llvm.ceil.{n}({t} {0})",),
    "floor": ("call {t} @llvm.floor.{n}({t} {0})",),
    "trunc": ("call {t} @llvm.trunc.{n}({t} {0})",),
    "nearest": ("call {t} @llvm.roundeven.{n}({t} {0})",),
}
_FLOAT_TESTS: Final = {
    "eq": "fcmp oeq {s} {0}, {1}",
    "ne": "fcmp une {s} {0}, {1}",
    "lt": "fcmp olt {s} {0}, {1}",
    "gt": "fcmp ogt {s} {0}, {1}",
    "le": "fcmp ole {s} {0}, {1}",
    "ge": "fcmp oge {s} {0}, {1}",
}
_CONVERSIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "i32.wrap_i64": ("trunc {s} {0} to {t}",),
    "i64.extend_i32_s": ("sext {s} {0} to {t}",),
    "i64.extend_i32_u": ("zext {s} {0} to {t}",),
    "i64.extend32_s": ("trunc {t} {0} to {i32}", "sext {i32} {a} to {t}"),
    "f32.demote_f64": ("fptrunc {s} {0} to {t}",),
    "f64.promote_f32": ("fpext {s} {0} to {t}",),
    "i32.reinterpret_f32": ("bitcast {s} {0} to {t}",),
    "i64.reinterpret_f64": ("bitcast {s} {0} to {t}",),
    "f32.reinterpret_i32": ("bitcast {s} {0} to {t}",),
    "f64.reinterpret_i64": ("bitcast {s} {0} to {t}",),
}
_INTEGERS: Final[tuple[ValueType, ...]] = ("i32", "i64")
_FLOATS: Final[tuple[ValueType, ...]] = ("f32", "f64")


def _source(opcode: str, result: ValueType) -> ValueType:
    """Return the type of the operand of a conversion, which its name has if it is not the result's."""
    kinds: tuple[ValueType, ...] = (*_INTEGERS, *_FLOATS)
    return next((kind for kind in kinds if f"_{kind}" in opcode), result)


def _rows() -> dict[str, InstructionRow]:
    rows: dict[str, InstructionRow] = {}
    for kind in _INTEGERS:
        rows |= {f"{kind}.{name}": InstructionRow((kind,) * 2, kind, it) for name, it in _INTEGER_BINARY.items()}
        rows |= {f"{kind}.{name}": InstructionRow((kind,), kind, it) for name, it in _INTEGER_UNARY.items()}
        rows |= {
            f"{kind}.{name}": InstructionRow((kind,) * 2, "i32", (it,), "i1") for name, it in _INTEGER_TESTS.items()
        }
        rows[f"{kind}.eqz"] = InstructionRow((kind,), "i32", ("icmp eq {s} {0}, {zero}",), "i1")
    for kind in _FLOATS:
        rows |= {f"{kind}.{name}": InstructionRow((kind,) * 2, kind, it) for name, it in _FLOAT_BINARY.items()}
        rows |= {f"{kind}.{name}": InstructionRow((kind,), kind, it) for name, it in _FLOAT_UNARY.items()}
        rows |= {f"{kind}.{name}": InstructionRow((kind,) * 2, "i32", (it,), "i1") for name, it in _FLOAT_TESTS.items()}
    for number in _FLOATS:
        for integer in _INTEGERS:
            for sign, to, back in (("s", "sitofp", "fptosi"), ("u", "uitofp", "fptoui")):
                convert, truncate = f"{number}.convert_{integer}_{sign}", f"{integer}.trunc_sat_{number}_{sign}"
                rows[convert] = InstructionRow((integer,), number, (to + " {s} {0} to {t}",))
                call = "call {t} @llvm." + back + ".sat.{n}.{m}({s} {0})"
                rows[truncate] = InstructionRow((number,), integer, (call,))
    for opcode, lines in _CONVERSIONS.items():
        result: ValueType = next(kind for kind in (*_INTEGERS, *_FLOATS) if opcode.startswith(kind))
        rows[opcode] = InstructionRow((_source(opcode, result),), result, lines)
    return rows


ROWS: Final[Mapping[str, InstructionRow]] = _rows()
"""All numeric instructions that cannot trap, and division by what is known not to trap."""

DIVISIONS: Final = frozenset(f"{kind}.{name}" for kind in _INTEGERS for name in ("div_s", "div_u", "rem_s", "rem_u"))
"""Those of `ROWS` that are only for a constant divisor which is neither 0 nor, signed, -1."""

SAME_BITS: Final = frozenset(f"{kind}.{name}" for kind in _FLOATS for name in ("abs", "neg", "copysign"))
"""Those that leave all but the sign of a NaN alone: the result's bits are known if the first operand's are."""

KNOWN_BITS: Final = frozenset({"f32.reinterpret_i32", "f64.reinterpret_i64"})
"""Those whose result is a float of which every bit is known, though it is a NaN."""

SHOWS_BITS: Final[Mapping[str, int]] = {
    "i32.reinterpret_f32": 0,
    "i64.reinterpret_f64": 0,
    "f32.copysign": 1,
    "f64.copysign": 1,
}
"""Those that show the payload or the sign of a NaN, and of which operand."""
