"""Approximate functions: ex2, lg2, sin, cos, tanh, rcp, sqrt, rsqrt, div.

Where PTX allows an error, these give the correctly rounded value, up to the accuracy of the platform's library in
binary64; the special cases are those of the manual. GPUs differ from this by their table look-ups, within the
documented error.

Source: PTX ISA 9.7.3.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np

from tensorwasm.gpu.emulator.alu.floating import finished
from tensorwasm.gpu.emulator.alu.rounding import Array, Doubles, narrow
from tensorwasm.gpu.emulator.alu.rows import Modifiers, OpRow, Run, always

_TINY64: Final = np.finfo(np.float64).tiny
_HUGE: Final = 2.0**126
_UPPER: Final = np.uint64(0xFFFFFFFF00000000)
_NAN: Final = np.uint64(0x7FFFFFFF00000000)


def _reciprocal_root(a: Doubles) -> Doubles:
    return 1.0 / np.sqrt(a)


def _rounded(function: Callable[..., Doubles], modifiers: Modifiers) -> Run:
    """Make an f32 function from one on doubles."""

    def compute(*sources: Array) -> Array:
        return narrow(function(*(source.astype(np.float64) for source in sources)), "f32")

    return finished(compute, modifiers)


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

ROWS: Final = (
    *(OpRow(f"{op}.approx{{,.ftz}}.f32", "T = T", partial(_rounded, function)) for op, function in _FUNCTIONS),
    OpRow("tanh.approx.f32", "T = T", partial(_rounded, np.tanh)),
    OpRow("div.approx{,.ftz}.f32", "T = T T", partial(_rounded, _divide)),
    OpRow("div.full{,.ftz}.f32", "T = T T", partial(_rounded, np.divide)),
    OpRow("rsqrt.approx.f64", "T = T", always(_reciprocal_root)),
    OpRow("rcp.approx.ftz.f64", "T = T", always(_upper_half(np.reciprocal))),
    OpRow("rsqrt.approx.ftz.f64", "T = T", always(_upper_half(_reciprocal_root))),
)
"""Rows of approximate functions."""
