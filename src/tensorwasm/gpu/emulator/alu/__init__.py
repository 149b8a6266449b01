"""The instruction tables of the emulator: PTX instructions that every lane executes for itself.

Source: PTX ISA 9.x, chapter 9.7.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Final

from msgspec.structs import replace

from tensorwasm.errors import MalformedPtx, UnsupportedPtx
from tensorwasm.gpu.emulator.alu import (
    bits,
    compare,
    convert,
    floating,
    halves,
    integer,
    packed,
)
from tensorwasm.gpu.emulator.alu.rows import Key, OpRow, key, spell
from tensorwasm.gpu.emulator.ops import Op
from tensorwasm.ptx.model import Instruction, Pair, Vector

_TABLE_MODULES = (integer, bits, packed, floating, halves, compare, convert)
_MNEMONICS_KEPT: Final = 1024


@cache
def _table() -> dict[Key, tuple[str, OpRow]]:
    """Every mnemonic as its row spells it, and the row."""
    rows = {
        key(mnemonic): (mnemonic, row)
        for module in _TABLE_MODULES
        for row in module.ROWS
        for mnemonic in spell(row.pattern)
    }
    return {found: rows[found] for found in rows if found not in _disputed()}


@cache
def _disputed() -> frozenset[Key]:
    return frozenset(key(mnemonic) for pattern in packed.DISPUTED for mnemonic in spell(pattern))


@cache
def _opcodes() -> frozenset[str]:
    return frozenset(opcode for opcode, _, _ in _table())


def forms() -> list[str]:
    """Return all supported mnemonics, sorted; each is legal for ``.target sm_90`` from PTX ISA 8.2 on."""
    return sorted(mnemonic for mnemonic, _ in _table().values())


def operands(form: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the result types and the source types of a mnemonic, carry flag excluded."""
    _, _, op = _find(Instruction(*_split(form)))
    return op.results[: len(op.results) - op.writes_carry], op.sources[: len(op.sources) - op.reads_carry]


def compile_op(instruction: Instruction) -> Op | None:
    """Turn an instruction into an op, or None if the opcode is not one of these tables.

    Raises `UnsupportedPtx` if the opcode is known, but not in this form, `MalformedPtx` for a wrong number of operands.
    """
    if instruction.opcode not in _opcodes():
        return None
    mnemonic, row, op = _find(instruction)
    if row.bind:
        op = row.bind(replace(instruction, modifiers=_split(mnemonic)[1]), op)
    expected = len(op.results) - op.writes_carry + len(op.sources) - op.reads_carry
    given = sum(
        len(one.elements) if isinstance(one, Vector) else 1 + isinstance(one, Pair) for one in instruction.operands
    )
    if given != expected:
        raise MalformedPtx(f"{instruction.mnemonic} takes {expected} operands, not {given}", *instruction.position)
    return op


def _find(instruction: Instruction) -> tuple[str, OpRow, Op]:
    """Return the mnemonic as its row spells it, the row, and the op of any operands."""
    try:
        return _look_up(instruction.mnemonic)
    except KeyError:
        disputed = key(instruction.mnemonic) in _disputed()
        why = "not emulated: hardware and the ISA disagree" if disputed else f"no such form of {instruction.opcode}"
        raise UnsupportedPtx(f"{instruction.mnemonic}: {why}", *instruction.position) from None


@lru_cache(_MNEMONICS_KEPT)
def _look_up(written: str) -> tuple[str, OpRow, Op]:
    mnemonic, row = _table()[key(written)]  # what is no mnemonic, and may be long, raises and is not kept
    return mnemonic, row, row.compile(mnemonic)


def _split(mnemonic: str) -> tuple[str, tuple[str, ...]]:
    opcode, *modifiers = mnemonic.split(".")
    return opcode, tuple(modifiers)
