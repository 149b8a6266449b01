"""What the guard asks of the registers of a function."""

from __future__ import annotations

from typing import Final

from tensorwasm.ptx.guarded import PROGRAM_FAMILIES
from tensorwasm.ptx.model import Instruction, Name, names

_SPECIAL_64: Final = frozenset({"%clock64", "%globaltimer"})
_BITS: Final = {prefix: bits for bits, prefix in PROGRAM_FAMILIES.items()}
_NOT_WRITTEN: Final = frozenset(
    {"st", "red", "bra", "brx", "bar", "barrier", "membar", "fence", "stmatrix", "ret", "exit", "cp", "nanosleep"}
)
"""Opcodes whose first operand is not written."""


def register_width(register: Name) -> int:
    """Return the bits of a register of a flat function, special ones included; 0 for another name."""
    name = register.name
    bits = _BITS.get(name[:2], 0) if name[2:].isdecimal() else 0
    if bits or not name.startswith("%"):
        return bits
    return 64 if name in _SPECIAL_64 else 32


def is_register(name: str) -> bool:
    """Return whether a name is one of the program's registers in a flat function."""
    return name[:2] in _BITS and name[2:].isdecimal()


def written(instruction: Instruction) -> set[str]:
    """Return the registers that an instruction may write, and perhaps others that it names."""
    operands = instruction.operands
    if instruction.opcode in _NOT_WRITTEN or (instruction.opcode == "wmma" and instruction.modifiers[:1] == ("store",)):
        return set()
    taken = operands if instruction.opcode == "call" else operands[:1]
    return {name for operand in taken for name in names(operand)}
