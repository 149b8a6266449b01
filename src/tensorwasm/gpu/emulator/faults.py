"""How the emulator tells where a kernel went wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn, Protocol

from tensorwasm.errors import KernelFault
from tensorwasm.ptx.model import Instruction
from tensorwasm.ptx.printer import render_instruction


@dataclass(frozen=True, slots=True)
class Site:
    """An instruction as fault messages name it; it is put into words only when one is needed."""

    instruction: Instruction

    @property
    def line(self) -> int:
        """Its line in the PTX, 0 if unknown."""
        return self.instruction.position.line

    def __str__(self) -> str:
        return f"line {self.line}: `{render_instruction(self.instruction)}`"


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
