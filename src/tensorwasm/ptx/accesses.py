"""What instructions with addresses access: which state spaces, and how much at once.

Source: PTX ISA 9.7.9 (Data Movement and Conversion), 9.7.13 (Parallel Synchronization), 9.7.14 (Warp Level Matrix).
"""

from __future__ import annotations

from typing import Final

from tensorwasm.ptx.layout import TYPE_BYTES
from tensorwasm.ptx.model import Instruction, Int

_SPACES: Final = frozenset({"global", "shared", "local", "const", "param"})

ELEMENT_BYTES: Final = {
    **TYPE_BYTES,
    **dict.fromkeys(("bf16", "e4m3x2", "e5m2x2"), 2),
    **dict.fromkeys(("bf16x2", "u16x2", "s16x2", "e4m3x4", "e5m2x4", "tf32"), 4),
}
_VECTORS: Final = {"v2": 2, "v4": 4, "v8": 8}

HANDLES: Final = frozenset({"tex", "tld4", "txq", "suld", "sust", "sured", "suq"})
"""Opcodes whose brackets hold the handle of a texture or surface."""

_FIXED_BYTES: Final = {
    "prefetch": 1,
    "prefetchu": 1,
    "createpolicy": 1,
    "discard": 128,
    "applypriority": 128,
    "wmma": 16,
}
"""What the operands of these are aligned to, whatever their type."""

_BULK_BYTES: Final = 16
"""What bulk copies are aligned to."""


def spaces(instruction: Instruction, count: int) -> list[str]:
    """Return the state spaces of an instruction's ``count`` addresses, in order; ``generic`` where none is named."""
    named = [word.partition("::")[0] for word in instruction.modifiers]
    found = [word for word in named if word in _SPACES]
    return found if len(found) > 1 else (found or ["generic"]) * count


def access_bytes(instruction: Instruction) -> int:
    """Return the alignment that an access needs."""
    if instruction.opcode in _FIXED_BYTES:
        return _FIXED_BYTES[instruction.opcode]
    if instruction.opcode == "cp":
        size = instruction.operands[2] if len(instruction.operands) > 2 else None
        return size.value if isinstance(size, Int) and size.value in {4, 8, 16} else _BULK_BYTES
    sizes = [ELEMENT_BYTES[word] for word in instruction.modifiers if word in ELEMENT_BYTES]
    lanes = [_VECTORS[word] for word in instruction.modifiers if word in _VECTORS]
    return (sizes[-1] if sizes else 1) * (lanes[0] if lanes else 1)
