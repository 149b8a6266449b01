"""The instruction tables of the emulator: PTX instructions that every lane executes for itself.

Source: PTX ISA 9.x, chapter 9.7.
"""

from __future__ import annotations

from functools import cache

from tensorwasm.errors import UnsupportedPtx
from tensorwasm.gpu.emulator.alu import compare, convert, floating, integer, logic
from tensorwasm.gpu.emulator.alu.rows import Row
from tensorwasm.gpu.emulator.ops import Op
from tensorwasm.ptx.model import Instruction

ROOMS = (integer, floating, logic, compare, convert)


@cache
def _table() -> dict[str, Row]:
    """Every mnemonic and its row."""
    return {mnemonic: row for room in ROOMS for row in room.ROWS for mnemonic in row.mnemonics()}


@cache
def _opcodes() -> frozenset[str]:
    return frozenset(mnemonic.partition(".")[0] for mnemonic in _table())


def forms() -> list[str]:
    """Return all supported mnemonics, sorted."""
    return sorted(_table())


def compile_op(instruction: Instruction) -> Op | None:
    """Turn an instruction into an op.

    Returns:
        The op, or None if the opcode is not one of these tables.

    Raises:
        UnsupportedPtx: the opcode is known, but not in this form.
    """
    if instruction.opcode not in _opcodes():
        return None
    row = _table().get(instruction.mnemonic)
    if row is None:
        raise UnsupportedPtx(instruction.mnemonic, instruction.position.line, instruction.position.column)
    op = row.compile(instruction.mnemonic)
    return row.bind(instruction, op) if row.bind else op
