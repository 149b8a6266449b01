"""Floating-point arithmetic on f16, bf16 and their pairs f16x2, bf16x2.

NaN results are 0x7fff, as on NVIDIA GPUs. ``.relu`` and ``.sat`` make +0 of -0, which PTX leaves open.

Source: PTX ISA 9.7.4 (half precision arithmetic), 9.7.3 for ex2 and tanh.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from tensorwasm.gpu.emulator.alu.floating import larger, rectify, saturate, select_of, smaller
from tensorwasm.gpu.emulator.alu.packed import side_by_side
from tensorwasm.gpu.emulator.alu.rounding import FORMATS, Array, add_odd, canonical, flush_tiny, narrow
from tensorwasm.gpu.emulator.alu.rows import Modifiers, Row, Run
from tensorwasm.gpu.emulator.ops import DTYPES

Half = Callable[..., Array]


def element_of(modifiers: Modifiers) -> str:
    """Return the type of one element: ``f16`` or ``bf16``."""
    return modifiers[-1].removesuffix("x2")


def flush_half(a: Array, name: str) -> Array:
    """Turn subnormals into zeros of the same sign; NaN stays NaN."""
    smallest = a.dtype.type(FORMATS[name].smallest)
    return np.where(np.abs(a) < smallest, a * a.dtype.type(0), a)


def _finished(compute: Half, modifiers: Modifiers) -> Half:
    """Wrap an operation in what its modifiers ask for: flushing, NaN, saturation."""
    name = element_of(modifiers)
    flushing = [lambda a: flush_half(a, name)] if "ftz" in modifiers else []
    steps: list[Half] = [lambda a: canonical(a, name), *flushing]
    steps += [saturate] * ("sat" in modifiers) + [rectify] * ("relu" in modifiers)

    def run(*sources: Array) -> Array:
        for flush in flushing:
            sources = tuple(map(flush, sources))
        result = compute(*sources)
        for step in steps:
            result = step(result)
        return result

    return run


def _in_registers(run: Half, modifiers: Modifiers) -> Run:
    """Apply to one half, or to both halves of a packed register."""
    return side_by_side(run, DTYPES[element_of(modifiers)]) if modifiers[-1].endswith("x2") else run


def _nearest(ufunc: np.ufunc) -> Callable[[Modifiers], Run]:
    """Make an operation that f32 computes so closely that rounding its result is correct: NumPy's own."""

    def make(modifiers: Modifiers) -> Run:
        compute = _flushing(ufunc, element_of(modifiers)) if "ftz" in modifiers else ufunc
        return _in_registers(_finished(compute, modifiers), modifiers)

    return make


def _flushing(exact: Half, name: str) -> Half:
    """Round what an operation makes of doubles, subnormal results being zeros."""
    return lambda *sources: narrow(flush_tiny(exact(*(a.astype(np.float64) for a in sources)), name, "rn"), name)


def _fused(modifiers: Modifiers) -> Run:
    name = element_of(modifiers)
    # Where an f16 tie could be missed, all bits of the sum fit into a double; the range of bf16 is too wide for that.
    fuse: Half = (lambda a, b, c: a * b + c) if name == "f16" else lambda a, b, c: add_odd("rn", a * b, c)

    def compute(*sources: Array) -> Array:
        return narrow(fuse(*(source.astype(np.float64) for source in sources)), name)

    if "ftz" in modifiers:
        compute = _flushing(fuse, name)
    return _in_registers(_finished(compute, modifiers), modifiers)


def _through_single(function: Half) -> Callable[[Modifiers], Run]:
    """Make an exact operation from the one on f32."""

    def make(modifiers: Modifiers) -> Run:
        name = element_of(modifiers)

        def compute(*sources: Array) -> Array:
            return narrow(function(*(source.astype(np.float32) for source in sources)).astype(np.float64), name)

        return _in_registers(_finished(compute, modifiers), modifiers)

    return make


def _select(select: Half) -> Callable[[Modifiers], Run]:
    return lambda modifiers: _through_single(select_of(modifiers, select))(modifiers)


def _approximate(ufunc: np.ufunc) -> Callable[[Modifiers], Run]:
    def make(modifiers: Modifiers) -> Run:
        name = element_of(modifiers)
        return _in_registers(_finished(lambda a: narrow(ufunc(a.astype(np.float64)), name), modifiers), modifiers)

    return make


_F16: Final = "{f16,f16x2}"
_BF16: Final = "{bf16,bf16x2}"
_ARITHMETIC: Final = (("add", np.add), ("sub", np.subtract), ("mul", np.multiply))
_SIGNS: Final = (("abs", np.absolute), ("neg", np.negative))
_SELECTIONS: Final = (("min", smaller), ("max", larger))

ROWS: Final = (
    *(Row(f"{op}{{,.rn}}{{,.ftz}}{{,.sat}}.{_F16}", "T = T T", _nearest(run)) for op, run in _ARITHMETIC),
    *(Row(f"{op}{{,.rn}}.{_BF16}", "T = T T", _nearest(run)) for op, run in _ARITHMETIC),
    Row(f"fma.rn{{,.ftz}}{{,.sat,.relu}}.{_F16}", "T = T T T", _fused),
    Row(f"fma.rn{{,.relu}}.{_BF16}", "T = T T T", _fused),
    *(Row(f"{op}{{,.ftz}}.{_F16}", "T = T", _through_single(run)) for op, run in _SIGNS),
    *(Row(f"{op}.{_BF16}", "T = T", _through_single(run)) for op, run in _SIGNS),
    *(Row(f"{op}{{,.ftz}}{{,.NaN}}{{,.xorsign.abs}}.{_F16}", "T = T T", _select(run)) for op, run in _SELECTIONS),
    *(Row(f"{op}{{,.NaN}}{{,.xorsign.abs}}.{_BF16}", "T = T T", _select(run)) for op, run in _SELECTIONS),
    Row(f"ex2.approx.{_F16}", "T = T", _approximate(np.exp2)),
    Row(f"ex2.approx.ftz.{_BF16}", "T = T", _approximate(np.exp2)),
    Row(f"tanh.approx.{_F16}", "T = T", _approximate(np.tanh)),
    Row(f"tanh.approx.{_BF16}", "T = T", _approximate(np.tanh)),
)
"""Rows of half precision."""
