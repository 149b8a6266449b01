"""Floating-point arithmetic on f32 and f64, and the approximate functions: ex2, lg2, sin, cos, tanh, rsqrt and others.

NaN results of f32 are 0x7fffffff, as on NVIDIA GPUs; f64 passes the payload of an operand, quieted.

Source: PTX ISA 9.7.3, its table 32 for NaN and subnormals.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np

from tensorwasm.gpu.emulator.alu.packed import side_by_side
from tensorwasm.gpu.emulator.alu.rounding import (
    FORMATS,
    MODES,
    Array,
    Doubles,
    add64,
    add_odd,
    canonical,
    divide64,
    flush_tiny,
    fma64,
    multiply64,
    narrow,
    root64,
    subtract64,
)
from tensorwasm.gpu.emulator.alu.rows import Modifiers, OpRow, Run, always
from tensorwasm.gpu.emulator.ops import DTYPES, Op
from tensorwasm.ptx.model import Instruction

TINY32: Final = np.float32(2.0**-126)
_HALF = np.uint64(1 << 28)
_LOW = np.uint64((1 << 29) - 1)


def flush(a: Array) -> Array:
    """Turn f32 subnormals into zeros of the same sign; NaN stays NaN."""
    return np.multiply(a, np.abs(a) >= TINY32)


def element_of(modifiers: Modifiers) -> str:
    """Return the type of one element of an instruction's last type."""
    return modifiers[-1].removesuffix("x2")


def flush_of(name: str) -> Run:
    """Return the function that turns subnormals of a type into zeros of the same sign; NaN stays NaN."""
    if name == "f32":
        return flush
    smallest = FORMATS[name].dtype.type(FORMATS[name].smallest)
    return lambda a: np.where(np.abs(a) < smallest, a * a.dtype.type(0), a)


def saturate(a: Array) -> Array:
    """Clamp to 0..1; NaN and -0 become +0."""
    return np.where(a > 0, np.minimum(a, a.dtype.type(1)), a.dtype.type(0))


def rectify(a: Array) -> Array:
    """Clamp negative values and -0 to +0; NaN stays."""
    return np.where(a <= 0, a.dtype.type(0), a)


def mode_of(modifiers: Modifiers) -> str:
    """Return the rounding mode among the modifiers, ``rn`` by default."""
    return next((word for word in modifiers if word in MODES), "rn")


# What each operation gives in binary64, exact or so that one more rounding is correct: quotients and roots of narrower
# operands cannot come closer than 2**-50 to a number of their own format without being it.
ODD: Final[dict[str, Callable[..., Doubles]]] = {
    "add": add_odd,
    "sub": lambda mode, a, b: add_odd(mode, a, -b),
    "mul": lambda _mode, a, b: a * b,
    "fma": lambda mode, a, b, c: add_odd(mode, a * b, c),
    "div": lambda _mode, a, b: a / b,
    "rcp": lambda _mode, a: 1.0 / a,
    "sqrt": lambda _mode, a: np.sqrt(a),
}


def _double(a: Array) -> Doubles:
    return np.asarray(a, np.float64)


def _fma32(a: Array, b: Array, c: Array) -> Array:
    """Fuse in one double addition, which is wrong only where its result lies between two floats or among subnormals."""
    product = a.astype(np.float64) * b
    total = product + c
    bits = total.view(np.uint64)
    subnormal = (bits << np.uint64(1)) - np.uint64(1) < np.uint64((897 << 53) - 1)
    hard = ((bits & _LOW) == _HALF) | subnormal
    if hard.any():
        total[hard] = add_odd("rn", product[hard], _double(c[hard]))
    return total.astype(np.float32)


_NEAREST32: Final[dict[str, Callable[..., Array]]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "rcp": np.reciprocal,
    "sqrt": np.sqrt,
    "fma": _fma32,
}


def finished(compute: Run, modifiers: Modifiers) -> Run:
    """Wrap an operation on one type in what its modifiers ask for: flushing, NaN, saturation, packed registers."""
    name = element_of(modifiers)
    flushing = [flush_of(name)] * ("ftz" in modifiers)
    steps: list[Run] = [lambda a: canonical(a, name), *flushing]
    steps += [saturate] * ("sat" in modifiers) + [rectify] * ("relu" in modifiers)

    def run(*sources: Array) -> Array:
        for cut in flushing:
            sources = tuple(map(cut, sources))
        result = compute(*sources)
        for step in steps:
            result = step(result)
        return result

    return side_by_side(run, DTYPES[name]) if modifiers[-1].endswith("x2") else run


def _arithmetic32(name: str, modifiers: Modifiers) -> Run:
    mode, odd, nearest = mode_of(modifiers), ODD[name], _NEAREST32[name]

    def exactly(*sources: Array) -> Array:
        exact = odd(mode, *map(_double, sources))
        return narrow(flush_tiny(exact, "f32", mode) if "ftz" in modifiers else exact, "f32", mode)

    def quickly(*sources: Array) -> Array:
        result = nearest(*sources)
        edge = np.abs(result) == TINY32
        if edge.any():
            result[edge] = exactly(*(source[edge] for source in sources))
        return result

    if mode != "rn":
        return finished(exactly, modifiers)
    return finished(quickly if "ftz" in modifiers else nearest, modifiers)


_NEAREST64: Final[dict[str, Run]] = {**_NEAREST32, "fma": lambda a, b, c: fma64(a, b, c, "rn")}
_DIRECTED64: Final[dict[str, Callable[..., Doubles]]] = {
    "add": add64,
    "sub": subtract64,
    "mul": multiply64,
    "div": divide64,
    "rcp": lambda a, mode: divide64(np.ones_like(a), a, mode),
    "sqrt": root64,
    "fma": fma64,
}


def _arithmetic64(name: str, modifiers: Modifiers) -> Run:
    mode, directed = mode_of(modifiers), _DIRECTED64[name]
    return _NEAREST64[name] if mode == "rn" else lambda *sources: directed(*sources, mode)


# ------------------------------------------------------------------------------------ sign, minimum, maximum


def _selection(precedes: np.ufunc, zero: np.ufunc, a: Array, b: Array) -> Array:
    """Return ``a`` where it precedes ``b`` or ``b`` is NaN, else ``b``; ``zero`` picks the sign bit of equal operands.

    Not NumPy's fmin and fmax: a signalling NaN wins there.
    """
    word = np.dtype(f"u{a.dtype.itemsize}")
    equal = zero(a.view(word), b.view(word)).view(a.dtype)
    return np.where(a == b, equal, np.where(precedes(a, b) | (b != b), a, b))  # noqa: PLR0124 - the NaN test


smaller: Final = partial(_selection, np.less, np.bitwise_or)
"""Returns the minimum: -0 < +0, a single NaN loses."""
larger: Final = partial(_selection, np.greater, np.bitwise_and)
"""Returns the maximum: -0 < +0, a single NaN loses."""


def contagious(select: Callable[[Array, Array], Array], a: Array, b: Array) -> Array:
    """Let any NaN win."""
    return np.where((a != a) | (b != b), a + b, select(a, b))  # noqa: PLR0124 - the NaN test


def sign_of_product(select: Callable[[Array, Array], Array], a: Array, b: Array) -> Array:
    """Compare magnitudes; the sign is the exclusive or of the signs."""
    word = np.dtype(f"u{a.dtype.itemsize}")
    sign = (a.view(word) ^ b.view(word)) & word.type(1 << (8 * a.dtype.itemsize - 1))
    return (select(np.abs(a), np.abs(b)).view(word) | sign).view(a.dtype)


def select_of(modifiers: Modifiers, select: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    """Adapt `smaller` or `larger` to ``.NaN`` and ``.xorsign.abs``."""
    chosen = (lambda a, b: contagious(select, a, b)) if "NaN" in modifiers else select
    return (lambda a, b: sign_of_product(chosen, a, b)) if "xorsign" in modifiers else chosen


def _select32(select: Callable[[Array, Array], Array], modifiers: Modifiers) -> Run:
    return finished(select_of(modifiers, select), modifiers)


def _three(instruction: Instruction, op: Op) -> Op:
    """Take a third source where there is one (PTX ISA 8.8): that of two, and then of that and the third."""
    if len(instruction.operands) != 4 or "xorsign" in instruction.modifiers:
        return op
    run = op.run
    return replace(op, sources=("f32",) * 3, run=lambda a, b, c: run(run(a, b), c))


def _magnitudes32(select: Callable[[Array, Array], Array], modifiers: Modifiers) -> Run:
    """Make the selection among the magnitudes of three sources, the only form with ``.abs`` alone."""
    run = _select32(select, modifiers)
    return lambda a, b, c: run(run(np.abs(a), np.abs(b)), np.abs(c))


def _copysign(a: Array, b: Array) -> Array:
    return np.copysign(b, a)


_CLASSES: Final[dict[str, Callable[[Array], Any]]] = {
    "finite": np.isfinite,
    "infinite": np.isinf,
    "number": lambda a: ~np.isnan(a),
    "notanumber": np.isnan,
    "normal": lambda a: np.isfinite(a) & ((np.abs(a) >= np.finfo(a.dtype).tiny) | (a == 0)),
    "subnormal": lambda a: (a != 0) & (np.abs(a) < np.finfo(a.dtype).tiny),
}


# ------------------------------------------------------------------------------------ approximate functions

# Where PTX allows an error, these give the correctly rounded value, up to the accuracy of the platform's library in
# binary64; the special cases are those of the manual. GPUs differ from this by their table look-ups, within the
# documented error.

_TINY64: Final = np.finfo(np.float64).tiny
_HUGE: Final = 2.0**126
_UPPER: Final = np.uint64(0xFFFFFFFF00000000)
_NAN: Final = np.uint64(0x7FFFFFFF00000000)


def _reciprocal_root(a: Doubles) -> Doubles:
    return 1.0 / np.sqrt(a)


def rounded(exact: Callable[..., Doubles], name: str) -> Run:
    """Round what an operation makes of doubles."""
    return lambda *sources: narrow(exact(*(source.astype(np.float64) for source in sources)), name)


def approximate(function: Callable[..., Doubles], modifiers: Modifiers) -> Run:
    """Make a function of a narrower type from one on doubles."""
    return finished(rounded(function, element_of(modifiers)), modifiers)


def _divide(a: Doubles, b: Doubles) -> Doubles:
    """Divide as by a multiplication with the reciprocal, which is flushed to 0 for divisors beyond 2**126."""
    return np.where((np.abs(b) > _HUGE) & np.isfinite(b), a * np.copysign(0.0, b), a / b)


def _upper_half(function: Callable[[Doubles], Doubles]) -> Run:
    """Compute on the upper 32 bits of doubles only; subnormals become zeros, before and after; NaN is 0x7fffffff."""

    def cut(a: Doubles) -> Doubles:
        return np.where(np.abs(a) < _TINY64, np.copysign(0.0, a), a)

    def run(a: Doubles) -> Doubles:
        exact = cut(function(cut((a.view(np.uint64) & _UPPER).view(np.float64))))
        half = np.where(np.isfinite(exact), np.uint64(1 << 31), np.uint64(0))
        bits = (exact.view(np.uint64) + half) & _UPPER
        return np.where(np.isnan(exact), _NAN, bits).view(np.float64)

    return run


_FUNCTIONS: Final[tuple[tuple[str, Callable[[Doubles], Doubles]], ...]] = (
    ("rcp", np.reciprocal),
    ("sqrt", np.sqrt),
    ("rsqrt", _reciprocal_root),
    ("sin", np.sin),
    ("cos", np.cos),
    ("lg2", np.log2),
    ("ex2", np.exp2),
)


_BINARY: Final = ("add", "sub", "mul")

ROWS: Final = (
    *(
        OpRow(f"{op}{{,.rn,.rz,.rm,.rp}}{{,.ftz}}{{,.sat}}.f32", "T = T T", partial(_arithmetic32, op))
        for op in _BINARY
    ),
    *(OpRow(f"{op}{{,.rn,.rz,.rm,.rp}}.f64", "T = T T", partial(_arithmetic64, op)) for op in _BINARY),
    *(
        OpRow(f"{op}{{.rn,.rz,.rm,.rp}}{{,.ftz}}{{,.sat}}.f32", "T = T T T", partial(_arithmetic32, "fma"))
        for op in ("fma", "mad")
    ),
    *(OpRow(f"{op}{{.rn,.rz,.rm,.rp}}.f64", "T = T T T", partial(_arithmetic64, "fma")) for op in ("fma", "mad")),
    OpRow("div{.rn,.rz,.rm,.rp}{,.ftz}.f32", "T = T T", partial(_arithmetic32, "div")),
    OpRow("div{.rn,.rz,.rm,.rp}.f64", "T = T T", partial(_arithmetic64, "div")),
    *(OpRow(f"{op}{{.rn,.rz,.rm,.rp}}{{,.ftz}}.f32", "T = T", partial(_arithmetic32, op)) for op in ("rcp", "sqrt")),
    *(OpRow(f"{op}{{.rn,.rz,.rm,.rp}}.f64", "T = T", partial(_arithmetic64, op)) for op in ("rcp", "sqrt")),
    OpRow("min{,.ftz}{,.NaN}{,.xorsign.abs}.f32", "T = T T", partial(_select32, smaller), bind=_three),
    OpRow("max{,.ftz}{,.NaN}{,.xorsign.abs}.f32", "T = T T", partial(_select32, larger), bind=_three),
    OpRow("min{,.ftz}{,.NaN}.abs.f32", "T = T T T", partial(_magnitudes32, smaller)),
    OpRow("max{,.ftz}{,.NaN}.abs.f32", "T = T T T", partial(_magnitudes32, larger)),
    OpRow("min.f64", "T = T T", always(smaller)),
    OpRow("max.f64", "T = T T", always(larger)),
    OpRow("abs{,.ftz}.f32", "T = T", partial(finished, np.absolute)),
    OpRow("neg{,.ftz}.f32", "T = T", partial(finished, np.negative)),
    OpRow("abs.f64", "T = T", always(np.absolute)),
    OpRow("neg.f64", "T = T", always(np.negative)),
    OpRow("copysign.{f32,f64}", "T = T T", always(_copysign)),
    OpRow("testp.{finite,infinite,number,notanumber,normal,subnormal}.{f32,f64}", "pred = T", lambda m: _CLASSES[m[0]]),
    *(OpRow(f"{op}.approx{{,.ftz}}.f32", "T = T", partial(approximate, function)) for op, function in _FUNCTIONS),
    OpRow("tanh.approx.f32", "T = T", partial(approximate, np.tanh)),
    OpRow("div.approx{,.ftz}.f32", "T = T T", partial(approximate, _divide)),
    OpRow("div.full{,.ftz}.f32", "T = T T", partial(approximate, np.divide)),
    OpRow("rsqrt.approx.f64", "T = T", always(_reciprocal_root)),
    OpRow("rcp.approx.ftz.f64", "T = T", always(_upper_half(np.reciprocal))),
    OpRow("rsqrt.approx.ftz.f64", "T = T", always(_upper_half(_reciprocal_root))),
)
"""Rows of f32 and f64 arithmetic."""
