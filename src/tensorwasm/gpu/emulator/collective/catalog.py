"""Finding the op of an instruction by its mnemonic.

Tools spell modifiers in more than one order (``ldmatrix...x4.m8n8`` and ``m8n8.x4``), and ptxas takes them all. Only
the order of layouts and of types among themselves has a meaning, so that is all a key keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from tensorwasm.errors import MalformedPtx, UnsupportedPtx
from tensorwasm.gpu.emulator.collective.elements import ELEMENTS, FLOAT_REGISTERS
from tensorwasm.gpu.emulator.ops import LaneMemoryOp, WarpOp
from tensorwasm.ptx.model import Address, Float, Instruction, Int, Name, Not, Operand, Vector

AnyOp = TypeVar("AnyOp", WarpOp, LaneMemoryOp)
Key = tuple[tuple[str, ...], tuple[str, ...]]
TypeOf = Callable[[Operand], str | None]
"""PTX type of the register that an operand names; None for anything else."""

_ORDERED: Final = frozenset({"row", "col", *ELEMENTS})


def key(modifiers: Iterable[str]) -> Key:
    """Return what identifies a mnemonic whatever the order of its modifiers."""
    words = tuple(modifiers)
    ordered = tuple(word for word in words if word in _ORDERED)
    return ordered, tuple(sorted(word for word in words if word not in _ORDERED))


def flatten(operands: Iterable[Operand]) -> tuple[Operand, ...]:
    """Return the operands with vectors taken apart."""
    flat: list[Operand] = []
    for operand in operands:
        flat.extend(operand.elements if isinstance(operand, Vector) else (operand,))
    return tuple(flat)


@dataclass(frozen=True, slots=True)
class Catalog(Generic[AnyOp]):
    """Ops by mnemonic.

    Attributes:
        ops: per key the ops of the mnemonic, which differ in their operands.
        names: the mnemonics, in the order the PTX ISA spells them.
    """

    ops: dict[Key, tuple[AnyOp, ...]]
    names: tuple[str, ...]

    @classmethod
    def of(cls, forms: Iterable[tuple[str, tuple[AnyOp, ...]]]) -> Catalog[AnyOp]:
        """Build the catalog of mnemonics and their ops."""
        listed = tuple(forms)
        return cls({key(name.split(".")): ops for name, ops in listed}, tuple(name for name, _ in listed))

    def find(self, instruction: Instruction, type_of: TypeOf) -> AnyOp:
        """Return the op of an instruction.

        Raises:
            UnsupportedPtx: no such form.
            MalformedPtx: the operands do not fit the form.
        """
        position = instruction.position
        ops = self.ops.get(key((instruction.opcode, *instruction.modifiers)))
        if ops is None:
            message = f"{instruction.mnemonic} is not an instruction this device has"
            raise UnsupportedPtx(message, position.line, position.column)
        operands = flatten(instruction.operands)
        for op in ops:
            if _fits(operands, op.results, op.sources, type_of):
                return op
        message = f"the operands do not fit {instruction.mnemonic}"
        raise MalformedPtx(message, position.line, position.column)


def _fits(operands: tuple[Operand, ...], results: tuple[str, ...], sources: tuple[str, ...], type_of: TypeOf) -> bool:
    if len(operands) != len(results) + len(sources):
        return False
    targets, inputs = operands[: len(results)], operands[len(results) :]
    return all(isinstance(target, Name) for target in targets) and all(
        _takes(type_, operand, type_of) for type_, operand in zip(sources, inputs, strict=True)
    )


def _takes(type_: str, operand: Operand, type_of: TypeOf) -> bool:
    """Tell whether a source of that type can be this operand; ``u64`` is always an address."""
    if isinstance(operand, Address) or type_ == "u64":
        return isinstance(operand, Address) and type_ == "u64" and not operand.coordinates
    if isinstance(operand, Not) or type_ == "pred":
        return type_ == "pred" and (isinstance(operand, Not) or type_of(operand) == "pred")
    if isinstance(operand, Name):
        return type_of(operand) != "pred"
    return isinstance(operand, Float if type_ in FLOAT_REGISTERS else Int)
