"""Sizes and alignments of what PTX declares.

Source: PTX ISA 5.2 (Types), 5.4 (Variables).
"""

from __future__ import annotations

import math
from typing import Final

from tensorwasm.ptx.model import Variable

TYPE_BYTES: Final = {
    **{f"{kind}{bits}": bits // 8 for kind in "bus" for bits in (8, 16, 32, 64)},
    "b128": 16,
    "f16": 2,
    "f16x2": 4,
    "f32": 4,
    "f64": 8,
}
"""Bytes of each fundamental type that memory can hold."""

OPAQUE_TYPES: Final = frozenset({"texref", "samplerref", "surfref"})
"""Types of handles, which take 8 bytes and have no contents of their own."""

REGISTER_TYPES: Final = frozenset(TYPE_BYTES) | {"pred"}
"""Types a register may have."""


def element_bytes(variable: Variable) -> int:
    """Return the bytes of one array element: a scalar or a vector. 1 for a predicate."""
    if variable.type in OPAQUE_TYPES:
        return 8
    return TYPE_BYTES.get(variable.type, 1) * variable.vector


def element_count(variable: Variable) -> int:
    """Return how many array elements there are; for ``[]``, whole rows that hold the initializer."""
    inner = math.prod(variable.shape[1:])
    if not variable.shape:
        return 1
    if variable.shape[0]:
        return variable.shape[0] * inner
    return -(-len(variable.initializer) // (inner * variable.vector)) * inner


def variable_bytes(variable: Variable) -> int:
    """Return the bytes of a variable or parameter; 0 for one of unknown size."""
    return element_bytes(variable) * element_count(variable)


def variable_align(variable: Variable) -> int:
    """Return its alignment in bytes: what it declares, else its element's natural one."""
    return variable.align or element_bytes(variable)
