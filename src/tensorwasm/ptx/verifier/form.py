"""What the readers of instructions share: the description of an accepted instruction, and its refusal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tensorwasm.ptx.model import Float, Instruction, Int, Name, Not, Operand, Vector
from tensorwasm.ptx.symbols import SPECIALS


def words(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())


TYPES: Final = {
    **{f"{kind}{bits}": bits // 8 for kind in "bus" for bits in (8, 16, 32, 64)},
    "b128": 16,
    **dict.fromkeys(("f16", "bf16"), 2),
    **dict.fromkeys(("f16x2", "bf16x2", "f32"), 4),
    "f64": 8,
}
"""Bytes of the types of memory accesses."""

ALLOWED_SPECIALS: Final = frozenset(
    f"%{name}"
    for name in words(
        """tid ntid ctaid nctaid laneid warpid nwarpid smid nsmid lanemask_eq lanemask_le lanemask_lt lanemask_ge
        lanemask_gt clock clock_hi clock64 globaltimer globaltimer_lo globaltimer_hi"""
    )
)


@dataclass(frozen=True, slots=True)
class MemoryAccess:
    """An access of an instruction: which operand is its address, in which state space, and how many bytes from there.

    Attributes:
        align: bytes that the address has to be a multiple of.
        row: whether it is of a row of a matrix. Its address must not be known to ptxas: release 13.0 deletes such an
            ``ldmatrix``, and what another kernel has left in the registers stays there.
    """

    operand: int
    space: str
    size_bytes: int
    align: int
    row: bool = False


@dataclass(frozen=True, slots=True)
class AcceptedForm:
    """An accepted instruction.

    Attributes:
        accesses: to memory.
        writes: operands whose registers it writes.
        bounds: operands that must be indices, each with the greatest value that it may have and what that and it are
            multiples of.
    """

    accesses: tuple[MemoryAccess, ...] = ()
    writes: tuple[int, ...] = (0,)
    bounds: tuple[tuple[int, int, int], ...] = ()


class NotAccepted(Exception):
    """An instruction is not in the list; the message says why."""


def is_value(operand: Operand) -> bool:
    """Return whether an operand is a register, an allowed special register or a number."""
    if isinstance(operand, Name):
        return operand.name not in SPECIALS or operand.name in ALLOWED_SPECIALS
    return isinstance(operand, (Int, Float, Not))


def require(holds: object, instruction: Instruction) -> None:
    """Raise `NotAccepted` unless something holds."""
    if not holds:
        raise NotAccepted(f"{instruction.mnemonic} in this form is not available")


def are_values(operand: Operand) -> bool:
    """Return whether an operand is a value, or a vector of values."""
    return all(map(is_value, operand.elements)) if isinstance(operand, Vector) else is_value(operand)
