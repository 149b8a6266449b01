"""Accesses of an instruction that are checked: which operand, in which state space, and how many bytes.

Source: PTX ISA 5.1 (State Spaces), 6.4 (Using Addresses), 9.7.9 (Data Movement and Conversion).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tensorwasm.ptx.layout import ELEMENT_BYTES, access_align_bytes, address_spaces
from tensorwasm.ptx.model import Address, Instruction, Int, Operand

_KINDS: Final = {"ld": "load", "ldu": "load", "st": "store", "atom": "atomic", "red": "atomic"}
_SPACES: Final = frozenset({"global", "shared", "generic"})
_COPIED_BYTES: Final = frozenset({4, 8, 16})


@dataclass(frozen=True, slots=True)
class CheckedAccess:
    """An access of an instruction.

    Attributes:
        space: ``global``, ``shared`` or ``generic``.
        kind: ``load``, ``store`` or ``atomic``.
        size_bytes: how many are accessed, at most if `used` says less; the address is a multiple of it.
        used: how many bytes are accessed, where an operand says it.
    """

    address: Address
    space: str
    kind: str
    size_bytes: int
    used: Operand | None = None


def accesses(instruction: Instruction) -> tuple[CheckedAccess, ...]:
    """Return the accesses of an instruction that are checked, none for one that is not of memory."""
    opcode, modifiers = instruction.opcode, instruction.modifiers
    if opcode == "cp":
        return _copy(instruction)
    if opcode == "wmma" and modifiers[:1] in (("load",), ("store",)):
        kind = modifiers[0]  # of the first row, of which 16 bytes are accessed at least, and so much is it aligned
    elif opcode in _KINDS and "async" not in modifiers and modifiers and modifiers[-1] in ELEMENT_BYTES:
        kind = _KINDS[opcode]
    else:
        return ()
    address = next((each for each in instruction.operands if isinstance(each, Address)), None)
    space = address_spaces(instruction, 1)[0]
    if address is None or space not in _SPACES:
        return ()
    return (CheckedAccess(address, space, kind, access_align_bytes(instruction)),)


def _copy(instruction: Instruction) -> tuple[CheckedAccess, ...]:
    """Return the accesses of an asynchronous copy to shared memory; the operand behind its size says what it reads."""
    operands, modifiers = instruction.operands, instruction.modifiers
    if "L2::cache_hint" in modifiers:
        operands = operands[:-1]
    if modifiers[:1] != ("async",) or "bulk" in modifiers or not 3 <= len(operands) <= 4:
        return ()
    target, source, size = operands[:3]
    if not (isinstance(target, Address) and isinstance(source, Address) and isinstance(size, Int)):
        return ()
    if size.value not in _COPIED_BYTES:
        return ()
    used = operands[3] if len(operands) == 4 else None
    return (
        CheckedAccess(target, "shared", "store", size.value),
        CheckedAccess(source, "global", "load", size.value, used),
    )
