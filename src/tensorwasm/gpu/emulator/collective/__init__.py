"""Tensor-core instructions, asynchronous copies, and barriers in shared memory (mbarrier).

Tools spell modifiers in more than one order (``ldmatrix...x4.m8n8`` and ``m8n8.x4``), and ptxas takes them all. Only
the order of layouts and of types among themselves has a meaning, so that is all a key keeps.

Source: PTX ISA 9.7.14 (tensor cores), 9.7.9.25 (cp.async), 9.7.13.15 (mbarrier).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Final, Generic, TypeVar

from tensorwasm.errors import MalformedPtx, UnsupportedPtx
from tensorwasm.gpu.emulator.collective import cp_async, mbarrier, mma
from tensorwasm.gpu.emulator.collective.matrices import ELEMENTS, FLOAT_REGISTERS
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


@dataclass(frozen=True, slots=True)
class OpCatalog(Generic[AnyOp]):
    """Ops by mnemonic: those of a key differ in their operands; names are as the PTX ISA spells them."""

    ops: dict[Key, tuple[AnyOp, ...]]
    names: tuple[str, ...]

    @classmethod
    def of(cls, forms: Iterable[tuple[str, tuple[AnyOp, ...]]]) -> OpCatalog[AnyOp]:
        """Build the catalog of mnemonics and their ops."""
        listed = tuple(forms)
        return cls({key(name.split(".")): ops for name, ops in listed}, tuple(name for name, _ in listed))

    def find(self, instruction: Instruction, type_of: TypeOf) -> AnyOp:
        """Return the op of an instruction."""
        ops = self.ops.get(key((instruction.opcode, *instruction.modifiers)))
        if ops is None:
            raise UnsupportedPtx(f"{instruction.mnemonic} is not an instruction this device has", *instruction.position)
        operands: list[Operand] = []
        for operand in instruction.operands:
            operands.extend(operand.elements if isinstance(operand, Vector) else (operand,))
        for op in ops:
            if _fits(operands, op.results, op.sources, type_of):
                return op
        raise MalformedPtx(f"the operands do not fit {instruction.mnemonic}", *instruction.position)


def _fits(operands: list[Operand], results: tuple[str, ...], sources: tuple[str, ...], type_of: TypeOf) -> bool:
    if len(operands) != len(results) + len(sources):
        return False
    targets, inputs = operands[: len(results)], operands[len(results) :]
    return all(isinstance(target, Name) for target in targets) and all(
        _takes(type_, operand, type_of) for type_, operand in zip(sources, inputs, strict=True)
    )


def _takes(type_: str, operand: Operand, type_of: TypeOf) -> bool:
    """Return whether a source of that type can be this operand; ``u64`` is always an address."""
    if isinstance(operand, Address) or type_ == "u64":
        return isinstance(operand, Address) and type_ == "u64" and not operand.coordinates
    if isinstance(operand, Not) or type_ == "pred":
        return type_ == "pred" and (isinstance(operand, Not) or type_of(operand) == "pred")
    if isinstance(operand, Name):
        return type_of(operand) != "pred"
    return isinstance(operand, Float if type_ in FLOAT_REGISTERS else Int)


def _no_type(_operand: Operand) -> None:
    return None


def _refuse_lacking(instruction: Instruction, words: Iterable[str], lacking: dict[str, str]) -> None:
    for word in words:
        if word in lacking:
            message = f"{instruction.mnemonic} needs {lacking[word]}, which this device lacks"
            raise UnsupportedPtx(message, *instruction.position)


def forms() -> list[str]:
    """Return every supported mnemonic of this package, in the spelling of the PTX ISA."""
    return [*warp_catalog().names, *lane_catalog().names]


# ------------------------------------------------------------------------------------------------ tensor cores

_WARP_OPCODES: Final = frozenset({"mma", "wmma", "ldmatrix", "stmatrix", "movmatrix"})
_WARP_LACKING: Final = {
    "wgmma": "warpgroup matrix products",
    "tcgen05": "fifth-generation tensor cores",
    "sp": "sparse matrix products",
    "sp::ordered_metadata": "sparse matrix products",
    "block_scale": "block-scaled matrix products",
    "kind::f8f6f4": "matrix products of 4- and 6-bit floats",
    "m16n16": "matrix tiles of 8-bit elements",
    "m8n16": "matrix tiles of narrow elements",
    "m16n8": "matrix tiles of 8-bit elements",
}


@cache
def warp_catalog() -> OpCatalog[WarpOp]:
    """Return every supported form of the tensor-core family."""
    made = OpCatalog.of(mma.forms())
    for name in made.names:
        if name.startswith("wmma."):  # before PTX ISA 6.3 a word of these was left out
            made.ops[key(word for word in name.split(".") if word != "aligned")] = made.ops[key(name.split("."))]
    return made


def compile_warp_op(instruction: Instruction) -> WarpOp | None:
    """Turn a tensor-core instruction into its op; None if it is not one.

    Raises `UnsupportedPtx` for a form that does not exist or that this device lacks, by name, and `MalformedPtx` if the
    operands do not fit.
    """
    if instruction.opcode not in _WARP_OPCODES and instruction.opcode not in _WARP_LACKING:
        return None
    _refuse_lacking(instruction, (instruction.opcode, *instruction.modifiers), _WARP_LACKING)
    return warp_catalog().find(instruction, _no_type)


# ------------------------------------------------------------------------------------------ cp.async, mbarrier

_COPY_SIZES: Final = {"ca": (4, 8, 16), "cg": (16,)}
"""Bytes that ``cp.async`` copies, by cache operator."""
_LANE_LACKING: Final = {"bulk": "bulk copies (TMA)", "shared::cluster": "thread block clusters"}


@cache
def lane_catalog() -> OpCatalog[LaneMemoryOp]:
    """Return every supported form of ``cp.async`` and ``mbarrier``."""
    return OpCatalog.of(itertools.chain(cp_async.forms(), mbarrier.forms(cp_async.settle)))


def compile_lane_op(instruction: Instruction, type_of: TypeOf = _no_type) -> LaneMemoryOp | None:
    """Turn a ``cp.async`` or ``mbarrier`` instruction into its op; None if it is neither. Errors as `compile_warp_op`.

    ``type_of`` distinguishes the predicate of ``cp.async`` (ignore the source) from a register with the source's size.
    """
    if instruction.opcode not in {"cp", "mbarrier"}:
        return None
    _refuse_lacking(instruction, instruction.modifiers, _LANE_LACKING)
    op = lane_catalog().find(instruction, type_of)
    if not _immediates_fit(instruction):
        raise MalformedPtx(f"the immediate operand does not fit {instruction.mnemonic}", *instruction.position)
    return op


def _immediates_fit(instruction: Instruction) -> bool:
    """Check the operands that must be constants: the size of a copy and the number of groups."""
    words = instruction.modifiers
    if "wait_group" in words:
        (count,) = instruction.operands
        return isinstance(count, Int) and 0 <= count.value < 1 << 31
    for operator in _COPY_SIZES.keys() & set(words):
        size = instruction.operands[2]
        return isinstance(size, Int) and size.value in _COPY_SIZES[operator]
    return True
