"""Which handler compiles which instruction; the rest belongs to the tables of `alu` and `collective`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import numpy as np

from tensorwasm.errors import MalformedPtx, UnsupportedPtx
from tensorwasm.gpu.emulator.alu import compile_op
from tensorwasm.gpu.emulator.collective import compile_lane_op, compile_warp_op
from tensorwasm.gpu.emulator.program.builder import Builder
from tensorwasm.gpu.emulator.steps import access, calls, control, moves, table_ops, warp
from tensorwasm.gpu.emulator.steps.atomics import compile_atomic
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

_FENCE: Final = (
    r"((sc|acq_rel|acquire|release)\.)?(cta|gpu|sys|cluster)|mbarrier_init\.release\.cluster"
    r"|proxy\.(alias|async(\.(global|shared::cta|shared::\{cta,cluster\}))?)"
)
_ANY_COUNT: Final = (0, 1 << 30)
FORMS: Final[dict[str, tuple[tuple[int, int], str]]] = {
    "cvta": ((2, 2), r"(to\.)?[a-z:]+\.u64"),
    "isspacep": ((2, 2), r"[a-z:]+"),
    "membar": ((0, 0), r"(level\.)?(cta|gl|sys)|proxy\.(alias|async(\.(global|shared::cta))?)"),
    "fence": ((0, 0), _FENCE),
    "prefetch": (
        (1, 1),
        r"((global|local)\.)?L[12]|global\.L2::evict_(last|normal)|(const\.|param\.)?tensormap",
    ),
    "prefetchu": ((1, 1), r"L1"),
    "discard": ((2, 2), r"(global\.)?L2"),
    "applypriority": ((2, 2), r"(global\.)?L2::evict_normal"),
    "createpolicy": ((1, 4), r"(fractional|range|cvt)\..*b64"),
    "match": (_ANY_COUNT, r"(any|all)\.sync\.b(32|64)"),
    "elect": (_ANY_COUNT, r"sync"),
    "bra": (_ANY_COUNT, r"(uni(\.uni)*)?"),
    "brx": (_ANY_COUNT, r"idx(\.uni)?"),
    "call": (_ANY_COUNT, r"(uni(\.uni)*)?"),
    "ret": ((0, 0), r"(uni)?"),
    "exit": ((0, 0), r""),
    "trap": ((0, 0), r""),
    "brkpt": ((0, 0), r""),
    "nanosleep": ((1, 1), r"u32"),
    "pmevent": ((1, 1), r"(mask)?"),
    "bar": ((1, 4), r".*"),
    "barrier": ((0, 4), r".*"),
}
"""Fewest and most operands, and modifiers; handlers check what is not here."""

LACKING: Final[dict[str, str]] = {
    **dict.fromkeys(("tex", "tld4", "txq", "istypep"), "textures"),
    **dict.fromkeys(("suld", "sust", "sured", "suq"), "surfaces"),
    **dict.fromkeys(("wgmma", "setmaxnreg"), "asynchronous warpgroup products"),
    "tcgen05": "fifth-generation tensor cores",
    **dict.fromkeys(("mapa", "getctarank", "clusterlaunchcontrol"), "clusters"),
    "multimem": "multicast memory",
    "tensormap": "tensor maps",
    **dict.fromkeys(("alloca", "stacksave", "stackrestore"), "stack of variable size"),
    "griddepcontrol": "dependent launches",
}
"""Opcodes that the emulator lacks, and what they need."""


def compile_instruction(builder: Builder, instruction: Instruction) -> None:
    """Add the steps of one instruction."""
    opcode = instruction.opcode
    if opcode in LACKING:
        raise UnsupportedPtx(f"the emulator has no {LACKING[opcode]}")
    is_bulk_atomic = opcode == "red" and instruction.modifiers[:1] == ("async",)
    handler = None if is_bulk_atomic else HANDLERS.get(opcode)
    if handler is not None:
        _check_form(instruction)
        handler(builder, instruction)
    elif (op := compile_op(instruction)) is not None:
        with np.errstate(all="ignore"):
            table_ops.compile_arithmetic(builder, instruction, op)
    elif (warp_op := compile_warp_op(instruction)) is not None:
        table_ops.compile_warp(builder, instruction, warp_op)
    elif (lane_op := compile_lane_op(instruction, builder.names.type_of)) is not None:
        table_ops.compile_lane_memory(builder, instruction, lane_op)
    else:
        raise UnsupportedPtx("the emulator lacks this instruction")


def _check_form(instruction: Instruction) -> None:
    if instruction.opcode not in FORMS:
        return
    (fewest, most), modifiers = FORMS[instruction.opcode]
    if not re.fullmatch(modifiers, ".".join(instruction.modifiers)):
        raise UnsupportedPtx(f"the emulator lacks this form of {instruction.opcode}")
    if not fewest <= len(instruction.operands) <= most:
        raise MalformedPtx(f"{len(instruction.operands)} operands")
