"""How the emulator tells where a kernel went wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn, Protocol

from tensorwasm.errors import KernelFault
from tensorwasm.ptx.model import (
    Address,
    Arguments,
    Float,
    Instruction,
    Int,
    Name,
    Not,
    Offset,
    Operand,
    Pair,
    Vector,
)


@dataclass(frozen=True, slots=True)
class Site:
    """An instruction as fault messages name it; it is put into words only when one is needed."""

    instruction: Instruction

    @property
    def line(self) -> int:
        """Its line in the PTX, 0 if unknown."""
        return self.instruction.position.line

    def __str__(self) -> str:
        return f"line {self.line}: `{_render(self.instruction)}`"


class Threads(Protocol):
    """Who the lanes of a batch are."""

    def describe(self, lane: int) -> str:
        """Return kernel, block and thread of a lane."""


def fault(threads: Threads, site: Site, lane: int, reason: str) -> NoReturn:
    """Raise `KernelFault` for one lane.

    Raises:
        KernelFault: always.
    """
    raise KernelFault(f"{threads.describe(lane)}, {site} {reason}")


def _render(instruction: Instruction) -> str:
    guard = ""
    if instruction.guard is not None:
        guard = f"@{'!' if instruction.guard.negated else ''}{_operand(instruction.guard.predicate)} "
    operands = ", ".join(_operand(operand) for operand in instruction.operands)
    return f"{guard}{instruction.mnemonic} {operands}".rstrip() + ";"


def _operand(operand: Operand) -> str:  # noqa: PLR0911 - one return per kind of operand is the clearest table here
    match operand:
        case Name():
            return operand.name if operand.component is None else f"{operand.name}.{operand.component}"
        case Int():
            return str(operand.value)
        case Float():
            return f"0{'f' if operand.width == 32 else 'd'}{operand.bits:0{operand.width // 4}X}"
        case Offset():
            return f"{_operand(operand.base)}{operand.offset:+d}"
        case Address():
            return f"[{_operand(operand.base)}{operand.offset:+d}]" if operand.offset else f"[{_operand(operand.base)}]"
        case Vector():
            return "{" + ", ".join(_operand(element) for element in operand.elements) + "}"
        case Pair():
            return f"{_operand(operand.first)}|{_operand(operand.second)}"
        case Not():
            return f"!{_operand(operand.operand)}"
        case Arguments():
            return "(" + ", ".join(_operand(element) for element in operand.elements) + ")"
