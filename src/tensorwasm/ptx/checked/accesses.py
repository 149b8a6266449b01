"""Accesses of an instruction that are checked: which operand, in which state space, and how many bytes.

Source: PTX ISA 5.1 (State Spaces), 6.4 (Using Addresses), 9.7.9 (Data Movement and Conversion).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from tensorwasm.ptx.layout import ELEMENT_BYTES, access_align_bytes, address_spaces
from tensorwasm.ptx.model import Address, Instruction, Int, Operand

Space = Literal["global", "shared", "generic"]

_KINDS: Final = {"ld": "load", "ldu": "load", "st": "store", "atom": "atomic", "red": "atomic"}
_CHECKED: Final[dict[str, Space]] = {"global": "global", "shared": "shared", "generic": "generic"}
_VECTORS: Final = {"v2": 2, "v4": 4, "v8": 8}
_ROW_BYTES: Final = 16
"""Bytes that the first row of each matrix of ``wmma`` has at least."""


@dataclass(frozen=True, slots=True)
class Access:
    """An access of an instruction.

    Attributes:
        kind: ``load``, ``store`` or ``atomic``.
        size_bytes: how many are accessed, at most if `used` says less.
        align_bytes: what the address is a multiple of.
        used: how many bytes are accessed, where an operand says it.
    """

    address: Address
    space: Space
    kind: str
    size_bytes: int
    align_bytes: int
    used: Operand | None = None


def accesses(instruction: Instruction) -> tuple[Access, ...]:
    """Return the accesses of an instruction that are checked, none for one that is not of memory."""
    opcode, modifiers = instruction.opcode, instruction.modifiers
    if opcode == "cp":
        return _copy(instruction)
    if opcode == "wmma" and modifiers[:1] in (("load",), ("store",)):
        kind, size_bytes = modifiers[0], _ROW_BYTES
    elif opcode in _KINDS and "async" not in modifiers:
        elements = [_VECTORS[word] for word in modifiers if word in _VECTORS]
        kind = _KINDS[opcode]
        size_bytes = ELEMENT_BYTES.get(modifiers[-1], 0) * (elements[0] if elements else 1)
    else:
        return ()
    address = next((each for each in instruction.operands if isinstance(each, Address)), None)
    space = _CHECKED.get(address_spaces(instruction, 1)[0])
    if address is None or space is None or not size_bytes:
        return ()
    return (Access(address, space, kind, size_bytes, access_align_bytes(instruction)),)


def _copy(instruction: Instruction) -> tuple[Access, ...]:
    """Return the accesses of an asynchronous copy to shared memory; the operand behind its size says what it reads."""
    operands, modifiers = instruction.operands, instruction.modifiers
    if "L2::cache_hint" in modifiers:
        operands = operands[:-1]
    if modifiers[:1] != ("async",) or "bulk" in modifiers or not 3 <= len(operands) <= 4:
        return ()
    target, source, size = operands[:3]
    if not (isinstance(target, Address) and isinstance(source, Address) and isinstance(size, Int)):
        return ()
    used = operands[3] if len(operands) == 4 else None
    align_bytes = access_align_bytes(instruction)
    written = Access(target, "shared", "store", size.value, align_bytes)
    return written, Access(source, "global", "load", size.value, align_bytes, used)
