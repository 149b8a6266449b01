"""What one atomic operation does to a cell, on Python numbers."""

from __future__ import annotations

import operator
from collections.abc import Callable

import ml_dtypes
import numpy as np

FLOATS = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64}


def apply(operation: str, type_: str, cell: int, *operands: int) -> int:
    """Return the new bits of a cell.

    Args:
        operation: ``add``, ``inc``, ``cas``, ...
        type_: PTX type.
        cell: the bits that were there.
        operands: bits of b, and of c for ``cas``.
    """
    if type_ in {"f16x2", "bf16x2"}:
        half = type_.removesuffix("x2")
        low, high = (
            apply(operation, half, *(word >> shift & 0xFFFF for word in (cell, *operands))) for shift in (0, 16)
        )
        return low | high << 16
    if type_ in FLOATS:
        kind = FLOATS[type_]
        a, b = (np.array(word, f"u{np.dtype(kind).itemsize}").view(kind)[()] for word in (cell, *operands))
        return int(np.array(a + b, kind).view(f"u{np.dtype(kind).itemsize}"))
    bits = int(type_[1:])
    values = [_signed(word, bits) if type_[0] == "s" else word for word in (cell, *operands)]
    return int(_INTEGERS[operation](*values)) & ((1 << bits) - 1)


def _signed(word: int, bits: int) -> int:
    return word - (1 << bits) if word >> (bits - 1) else word


_INTEGERS: dict[str, Callable[..., int]] = {
    "add": operator.add,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "min": min,
    "max": max,
    "exch": lambda _a, b: b,
    "inc": lambda a, b: 0 if a >= b else a + 1,
    "dec": lambda a, b: b if a == 0 or a > b else a - 1,
    "cas": lambda a, b, c: c if a == b else a,
}
