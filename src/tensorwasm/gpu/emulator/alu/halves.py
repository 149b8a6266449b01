"""Floating-point arithmetic on f16, bf16 and their pairs f16x2, bf16x2.

NaN results are 0x7fff, as on NVIDIA GPUs. ``.relu`` and ``.sat`` make +0 of -0, which PTX leaves open.

Source: PTX ISA 9.7.4 (half precision arithmetic), 9.7.3 for ex2 and tanh.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np

from tensorwasm.gpu.emulator.alu.floating import approximate, element_of, finished, larger, rounded, select_of, smaller
from tensorwasm.gpu.emulator.alu.rounding import Array, add_odd, flush_tiny, narrow
from tensorwasm.gpu.emulator.alu.rows import Modifiers, OpRow, Run

Half = Callable[..., Array]


def _nearest(ufunc: np.ufunc, modifiers: Modifiers) -> Run:
    """Make an operation that f32 computes so closely that rounding its result is correct: NumPy's own."""
    return finished(_flushing(ufunc, element_of(modifiers)) if "ftz" in modifiers else ufunc, modifiers)


def _flushing(exact: Half, name: str) -> Half:
    """Round what an operation makes of doubles, subnormal results being zeros."""
    return lambda *sources: narrow(flush_tiny(exact(*(a.astype(np.float64) for a in sources)), name, "rn"), name)


def _fused(modifiers: Modifiers) -> Run:
    name = element_of(modifiers)
    # Where an f16 tie could be missed, all bits of the sum fit into a double; the range of bf16 is too wide for that.
    fuse: Half = (lambda a, b, c: a * b + c) if name == "f16" else lambda a, b, c: add_odd("rn", a * b, c)
    return finished(_flushing(fuse, name) if "ftz" in modifiers else rounded(fuse, name), modifiers)


def _through_single(function: Half, modifiers: Modifiers) -> Run:
    """Make an exact operation from the one on f32."""
    name = element_of(modifiers)

    def compute(*sources: Array) -> Array:
        return narrow(function(*(source.astype(np.float32) for source in sources)).astype(np.float64), name)

    return finished(compute, modifiers)


def _select(select: Half, modifiers: Modifiers) -> Run:
    return _through_single(select_of(modifiers, select), modifiers)


_F16: Final = "{f16,f16x2}"
_BF16: Final = "{bf16,bf16x2}"
_ARITHMETIC: Final = (("add", np.add), ("sub", np.subtract), ("mul", np.multiply))
_SIGNS: Final = (("abs", np.absolute), ("neg", np.negative))
_SELECTIONS: Final = (("min", smaller), ("max", larger))

ROWS: Final = (
    *(OpRow(f"{op}{{,.rn}}{{,.ftz}}{{,.sat}}.{_F16}", "T = T T", partial(_nearest, run)) for op, run in _ARITHMETIC),
    *(OpRow(f"{op}{{,.rn}}.{_BF16}", "T = T T", partial(_nearest, run)) for op, run in _ARITHMETIC),
    OpRow(f"fma.rn{{,.ftz}}{{,.sat,.relu}}.{_F16}", "T = T T T", _fused),
    OpRow(f"fma.rn{{,.relu}}.{_BF16}", "T = T T T", _fused),
    *(OpRow(f"{op}{{,.ftz}}.{_F16}", "T = T", partial(_through_single, run)) for op, run in _SIGNS),
    *(OpRow(f"{op}.{_BF16}", "T = T", partial(_through_single, run)) for op, run in _SIGNS),
    *(
        OpRow(f"{op}{{,.ftz}}{{,.NaN}}{{,.xorsign.abs}}.{_F16}", "T = T T", partial(_select, run))
        for op, run in _SELECTIONS
    ),
    *(OpRow(f"{op}{{,.NaN}}{{,.xorsign.abs}}.{_BF16}", "T = T T", partial(_select, run)) for op, run in _SELECTIONS),
    OpRow(f"ex2.approx.{_F16}", "T = T", partial(approximate, np.exp2)),
    OpRow(f"ex2.approx.ftz.{_BF16}", "T = T", partial(approximate, np.exp2)),
    OpRow(f"tanh.approx.{_F16}", "T = T", partial(approximate, np.tanh)),
    OpRow(f"tanh.approx.{_BF16}", "T = T", partial(approximate, np.tanh)),
)
"""Rows of half precision."""
