"""Which handler compiles which instruction; the rest belongs to the tables of `alu` and `collective`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import numpy as np

from tensorwasm.errors import MalformedPtx, UnsupportedPtx
from tensorwasm.gpu.emulator import access, calls, control, moves, warp
from tensorwasm.gpu.emulator.alu import compile_op
from tensorwasm.gpu.emulator.arithmetic import compile_arithmetic
from tensorwasm.gpu.emulator.atomics import compile_atomic
from tensorwasm.gpu.emulator.builder import Builder
from tensorwasm.gpu.emulator.collective import compile_lane_op, compile_warp_op
from tensorwasm.gpu.emulator.cooperation import compile_lane_memory, compile_warp_step
from tensorwasm.ptx.model import Instruction

Handler = Callable[[Builder, Instruction], None]

HANDLERS: Final[dict[str, Handler]] = {
    "mov": moves.compile_mov,
    "cvta": moves.compile_cvta,
    "isspacep": moves.compile_isspacep,
    "ld": access.compile_load,
    "ldu": access.compile_load,
    "st": access.compile_store,
    "membar": access.compile_fence,
    "fence": access.compile_fence,
    "prefetch": access.compile_hint,
    "prefetchu": access.compile_hint,
    "discard": access.compile_hint,
    "applypriority": access.compile_hint,
    "createpolicy": access.compile_policy,
    "atom": compile_atomic,
    "red": compile_atomic,
    "shfl": warp.compile_shuffle,
    "vote": warp.compile_vote,
    "match": warp.compile_match,
    "activemask": warp.compile_active_mask,
    "elect": warp.compile_election,
    "redux": warp.compile_reduction,
    "bra": control.compile_branch,
    "brx": control.compile_indexed_branch,
    "call": calls.compile_call,
    "ret": calls.compile_return,
    "exit": control.compile_exit,
    "trap": control.compile_trap,
    "brkpt": control.compile_trap,
    "nanosleep": control.compile_sleep,
    "pmevent": control.compile_nothing,
    "bar": control.compile_barrier,
    "barrier": control.compile_barrier,
}

OPERANDS: Final[dict[str, tuple[int, int, str]]] = {
    "cvta": (2, 2, r"(to\.)?[a-z:]+\.u64"),
    "isspacep": (2, 2, r"[a-z:]+"),
    "membar": (0, 0, r".*"),
    "fence": (0, 0, r".*"),
    "prefetch": (1, 1, r"((global|local)\.)?L[12]|global\.L2::evict_(last|normal)|(const\.|param\.)?tensormap"),
    "prefetchu": (1, 1, r"L1"),
    "discard": (2, 2, r"(global\.)?L2"),
    "applypriority": (2, 2, r"(global\.)?L2::evict_normal"),
    "createpolicy": (1, 4, r"(fractional|range|cvt)\..*b64"),
    "ret": (0, 0, r"(uni)?"),
    "exit": (0, 0, r""),
    "trap": (0, 0, r""),
    "brkpt": (0, 0, r""),
    "nanosleep": (1, 1, r"u32"),
    "pmevent": (1, 1, r"(mask)?"),
    "bar": (1, 4, r".*"),
    "barrier": (0, 4, r".*"),
}
"""Fewest and most operands, and modifiers, of instructions whose handlers do not look themselves."""

LACKING: Final[dict[str, str]] = {
    **dict.fromkeys(("tex", "tld4", "txq", "istypep"), "textures"),
    **dict.fromkeys(("suld", "sust", "sured", "suq"), "surfaces"),
    **dict.fromkeys(("wgmma", "setmaxnreg"), "asynchronous warpgroup products"),
    **dict.fromkeys(("tcgen05",), "fifth-generation tensor cores"),
    **dict.fromkeys(("mapa", "getctarank", "clusterlaunchcontrol"), "clusters"),
    **dict.fromkeys(("multimem",), "multicast memory"),
    **dict.fromkeys(("tensormap",), "tensor maps"),
    **dict.fromkeys(("alloca", "stacksave", "stackrestore"), "stack of variable size"),
    **dict.fromkeys(("griddepcontrol",), "dependent launches"),
}
"""Opcodes that the emulator lacks, and why."""


def compile_instruction(builder: Builder, instruction: Instruction) -> None:
    """Add the steps of one instruction.

    Raises:
        MalformedPtx: the operands do not fit.
        UnsupportedPtx: the emulator lacks the instruction, or this form of it.
    """
    if instruction.opcode in LACKING:
        raise UnsupportedPtx(f"the emulator has no {LACKING[instruction.opcode]}")
    atomic_bulk = instruction.opcode == "red" and instruction.modifiers[:1] == ("async",)
    handler = None if atomic_bulk else HANDLERS.get(instruction.opcode)
    if handler is not None:
        _check_form(instruction)
        handler(builder, instruction)
        return
    op = compile_op(instruction)
    if op is not None:
        with np.errstate(all="ignore"):
            compile_arithmetic(builder, instruction, op)
        return
    warp_op = compile_warp_op(instruction)
    if warp_op is not None:
        compile_warp_step(builder, instruction, warp_op)
        return
    lane_op = compile_lane_op(instruction, builder.names.type_of)
    if lane_op is None:
        raise UnsupportedPtx("the emulator lacks this instruction")
    compile_lane_memory(builder, instruction, lane_op)


def _check_form(instruction: Instruction) -> None:
    fewest, most, modifiers = OPERANDS.get(instruction.opcode, (0, len(instruction.operands), ".*"))
    if not re.fullmatch(modifiers, ".".join(instruction.modifiers)):
        raise UnsupportedPtx(f"the emulator lacks this form of {instruction.opcode}")
    if not fewest <= len(instruction.operands) <= most:
        raise MalformedPtx(f"{len(instruction.operands)} operands")
