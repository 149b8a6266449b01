"""Accepted instructions of warps and blocks: barriers, votes, shuffles, products of matrices.

Those at which threads wait are for the whole warp or the whole block; `tensorwasm.ptx.verifier.convergence` checks that
all come to them in the same order.

Source: PTX ISA 9.7.9.6 (shfl.sync), 9.7.13 (Parallel Synchronization), 9.7.14 (Warp Level Matrix).
"""

from __future__ import annotations

from typing import Final

from tensorwasm.ptx.guarded import WHOLE_WARP
from tensorwasm.ptx.model import Instruction, Int, Name, Pair
from tensorwasm.ptx.verifier.form import AcceptedForm, NotAccepted, are_values, is_value, require, words
from tensorwasm.ptx.verifier.memory_forms import SHAPE, matrix_access

_MATRIX_WORDS: Final = words(
    """mma sync aligned row col trans sp f16 f32 f64 bf16 tf32 s8 u8 s4 u4 s32 b1 e4m3 e5m2 xor and popc satfinite rn rz
    rm rp"""
)
_WARP_WORDS: Final = words(
    "sync up down bfly idx all any uni ballot b32 b64 pred add min max and or xor u32 s32 f32 abs NaN"
)


def matrix(instruction: Instruction) -> AcceptedForm:
    """Read a product of matrices, or an access to one."""
    if instruction.opcode == "wmma" and instruction.modifiers[:1] != ("mma",):
        return matrix_access(instruction)
    named = [word for word in instruction.modifiers if not SHAPE.fullmatch(word)]
    require(_MATRIX_WORDS.issuperset(named) and "sync" in named and "aligned" in named, instruction)
    require(all(map(are_values, instruction.operands)), instruction)
    return AcceptedForm()


def warp(instruction: Instruction) -> AcceptedForm:
    """Read a shuffle, a vote, a match or a reduction of the whole warp."""
    require("sync" in instruction.modifiers and _WARP_WORDS.issuperset(instruction.modifiers), instruction)
    for operand in instruction.operands:
        elements = (operand.first, operand.second) if isinstance(operand, Pair) else (operand,)
        require(all(map(is_value, elements)), instruction)
    _require_whole_warp(instruction)
    return AcceptedForm()


def _require_whole_warp(instruction: Instruction) -> None:
    mask = instruction.operands[-1] if instruction.operands else None
    if not (isinstance(mask, Int) and mask.value & WHOLE_WARP == WHOLE_WARP):
        raise NotAccepted(f"{instruction.mnemonic} for other threads than the whole warp")


def active(instruction: Instruction) -> AcceptedForm:
    """Read ``activemask``."""
    require(instruction.modifiers == ("b32",) and isinstance(instruction.operands[0], Name), instruction)
    return AcceptedForm()


def barrier(instruction: Instruction) -> AcceptedForm:
    """Read a barrier of the whole block or the whole warp."""
    named = tuple(word for word in instruction.modifiers if word != "cta")
    operands = instruction.operands
    if named == ("warp", "sync"):
        require(len(operands) == 1, instruction)
        _require_whole_warp(instruction)
        return AcceptedForm(writes=())
    if named in (("sync",), ("sync", "aligned")):
        if not (len(operands) == 1 and operands[0] == Int(0)):
            raise NotAccepted("a barrier other than barrier 0 of the whole block")
        return AcceptedForm(writes=())
    reduction = named[:1] == ("red",) and named[1:] in (("popc", "u32"), ("and", "pred"), ("or", "pred"))
    reduction = reduction or (named[:2] == ("red", "aligned") and named[2:] in (("popc", "u32"), ("and", "pred")))
    if not (reduction and len(operands) == 3 and operands[1] == Int(0) and is_value(operands[2])):
        raise NotAccepted(f"{instruction.mnemonic} can leave threads waiting for ever")
    return AcceptedForm()


def order(instruction: Instruction) -> AcceptedForm:
    """Read a fence."""
    named = instruction.modifiers
    if instruction.opcode == "membar":
        require(named in (("cta",), ("gl",), ("sys",)), instruction)
    else:
        orders, scopes = ("sc", "acq_rel", "acquire", "release"), ("cta", "gpu", "sys")
        require(len(named) == 2 and named[0] in orders and named[1] in scopes, instruction)
    require(not instruction.operands, instruction)
    return AcceptedForm(writes=())


def sleep(instruction: Instruction) -> AcceptedForm:
    """Read ``nanosleep``."""
    require(instruction.modifiers == ("u32",) and len(instruction.operands) == 1, instruction)
    require(is_value(instruction.operands[0]), instruction)
    return AcceptedForm(writes=())
