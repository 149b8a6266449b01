"""The lane operations that outlive their instruction: ``cp.async`` and ``mbarrier``.

Source: PTX ISA 9.7.9.25, 9.7.13.15.
"""

from __future__ import annotations

import itertools
from functools import cache
from typing import Final

from tensorwasm.errors import MalformedPtx, UnsupportedPtx
from tensorwasm.gpu.emulator.collective import barriers, copies
from tensorwasm.gpu.emulator.collective.catalog import Catalog, TypeOf
from tensorwasm.gpu.emulator.ops import LaneMemoryOp
from tensorwasm.ptx.model import Instruction, Int

_SIZES: Final = {"ca": (4, 8, 16), "cg": (16,)}
"""Bytes that ``cp.async`` copies, by cache operator."""

_LACKING: Final = {
    "bulk": "bulk copies (TMA)",
    "shared::cluster": "thread block clusters",
}


@cache
def catalog() -> Catalog[LaneMemoryOp]:
    """Return every supported form."""
    return Catalog.of(itertools.chain(copies.forms(), barriers.forms(copies.settle)))


def compile_lane_op(instruction: Instruction, type_of: TypeOf = lambda _operand: None) -> LaneMemoryOp | None:
    """Turn a ``cp.async`` or ``mbarrier`` instruction into its op; None if it is neither.

    Args:
        instruction: any instruction.
        type_of: PTX type of the register that an operand names, None for anything else; tells the predicate of
            ``cp.async`` (ignore the source) from a register with the source's size.

    Raises:
        UnsupportedPtx: a form that does not exist or that this device lacks; the message names it.
        MalformedPtx: operands that do not fit the form.
    """
    if instruction.opcode not in {"cp", "mbarrier"}:
        return None
    position = instruction.position
    for modifier in instruction.modifiers:
        if modifier in _LACKING:
            message = f"{instruction.mnemonic} needs {_LACKING[modifier]}, which this device lacks"
            raise UnsupportedPtx(message, position.line, position.column)
    op = catalog().find(instruction, type_of)
    if not _immediates_fit(instruction):
        message = f"the immediate operand does not fit {instruction.mnemonic}"
        raise MalformedPtx(message, position.line, position.column)
    return op


def _immediates_fit(instruction: Instruction) -> bool:
    """Check the operands that must be constants: the size of a copy and the number of groups."""
    words = instruction.modifiers
    if "wait_group" in words:
        (count,) = instruction.operands
        return isinstance(count, Int) and 0 <= count.value < 1 << 31
    for operator in _SIZES.keys() & set(words):
        size = instruction.operands[2]
        return isinstance(size, Int) and size.value in _SIZES[operator]
    return True
