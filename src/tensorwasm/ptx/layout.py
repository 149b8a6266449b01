"""Sizes, alignments and state spaces of declarations and of memory accesses.

Source: PTX ISA 5.2 (Types), 5.4 (Variables), 9.7.9 (Data Movement and Conversion), 9.7.13 (Parallel Synchronization),
9.7.14 (Warp Level Matrix).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from tensorwasm.ptx.model import Instruction, Int, Variable

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

ELEMENT_BYTES: Final = {
    **TYPE_BYTES,
    **dict.fromkeys(("bf16", "e4m3x2", "e5m2x2"), 2),
    **dict.fromkeys(("bf16x2", "u16x2", "s16x2", "e4m3x4", "e5m2x4", "tf32"), 4),
}
"""Bytes of each type that an instruction can access."""

HANDLE_OPCODES: Final = frozenset({"tex", "tld4", "txq", "suld", "sust", "sured", "suq"})
"""Opcodes whose brackets hold the handle of a texture or surface."""

_VECTORS: Final = {"v2": 2, "v4": 4, "v8": 8}
_ADDRESS_SPACES: Final = frozenset({"global", "shared", "local", "const", "param"})
_FIXED_ALIGN_BYTES: Final = {
    **dict.fromkeys(("prefetch", "prefetchu", "createpolicy"), 1),
    **dict.fromkeys(("discard", "applypriority"), 128),
    "wmma": 16,
}
"""Alignment of the addresses of instructions for which it does not depend on the type."""
_BULK_ALIGN_BYTES: Final = 16


def element_bytes(variable: Variable) -> int:
    """Return the bytes of one array element: a scalar or a vector. 1 for a predicate."""
    return 8 if variable.type in OPAQUE_TYPES else TYPE_BYTES.get(variable.type, 1) * variable.vector


def element_count(variable: Variable) -> int:
    """Return the number of array elements; for ``[]`` that of the whole rows that hold the initializer."""
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
    """Return the declared alignment in bytes, or the natural one of the element."""
    return variable.align or element_bytes(variable)


def place(variables: Iterable[Variable], start: int = 0) -> tuple[list[int], int]:
    """Return the offset of each variable, one after the other from ``start``, each aligned, and the end of the last."""
    offsets, end = list[int](), start
    for variable in variables:
        align = variable_align(variable)
        offsets.append(-(-end // align) * align)
        end = offsets[-1] + variable_bytes(variable)
    return offsets, end


def address_spaces(instruction: Instruction, count: int) -> list[str]:
    """Return the state spaces of an instruction's ``count`` addresses, in order; ``generic`` where none is named."""
    named = [word.partition("::")[0] for word in instruction.modifiers]
    found = [word for word in named if word in _ADDRESS_SPACES]
    return found if len(found) > 1 else (found or ["generic"]) * count


def access_align_bytes(instruction: Instruction) -> int:
    """Return the alignment that an access needs."""
    if instruction.opcode in _FIXED_ALIGN_BYTES:
        return _FIXED_ALIGN_BYTES[instruction.opcode]
    if instruction.opcode == "cp":
        size = instruction.operands[2] if len(instruction.operands) > 2 else None
        return size.value if isinstance(size, Int) and size.value in {4, 8, 16} else _BULK_ALIGN_BYTES
    sizes = [ELEMENT_BYTES[word] for word in instruction.modifiers if word in ELEMENT_BYTES]
    elements = [_VECTORS[word] for word in instruction.modifiers if word in _VECTORS]
    return (sizes[-1] if sizes else 1) * (elements[0] if elements else 1)
