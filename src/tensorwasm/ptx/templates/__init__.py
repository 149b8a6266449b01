"""The parts of guarded kernels that are always the same: the guard writes them, the verifier compares them.

Names and numbers are in `tensorwasm.ptx.guarded`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from tensorwasm.ptx.guarded import (
    AT,
    CONST,
    CONSTS,
    DATA,
    FAMILIES,
    FIRST_VALUES,
    FRAME,
    FUEL_COMMON,
    FUEL_USED,
    GO,
    HIGH,
    LAUNCH,
    LAUNCH_DATA,
    LAUNCH_DEADLINE,
    LAUNCH_DYNAMIC,
    LAUNCH_FRAME,
    LAUNCH_HIGH,
    LAUNCH_LOOK,
    LAUNCH_MASK,
    LAUNCH_PARAMS,
    LAUNCH_SHARED,
    LAUNCH_ZERO,
    LIMIT,
    LOCAL,
    LOOK,
    MASK,
    NOW,
    PROGRAM_FAMILIES,
    SEEN,
    SHARED,
    SHARED_TOP,
    SIZE,
    STEP,
    STOP,
    TEST,
    TRAP,
    WHOLE_WARP,
    WORD,
    ZERO,
    Arrays,
    Width,
)
from tensorwasm.ptx.layout import variable_align, variable_bytes
from tensorwasm.ptx.model import (
    Address,
    Guard,
    Instruction,
    Int,
    Label,
    Name,
    Operand,
    Statement,
    Variable,
    Vector,
)

ZEROS: Final = Vector((Int(0),) * 4)

_LITTLE_SHARED_BYTES: Final = 16 << 10
"""Shared memory that is cleared in so little time that blocks which come too late may do it."""


def instruction(mnemonic: str, *operands: Operand, when: Name | None = None) -> Instruction:
    """Return an instruction, guarded by a predicate or not."""
    opcode, *modifiers = mnemonic.split(".")
    return Instruction(opcode, tuple(modifiers), operands, None if when is None else Guard(when))


def launch_field(offset: int) -> Address:
    """Return the operand that reads a field of the launch parameter."""
    return Address(Name(LAUNCH), offset)


def prologue(
    registers: Mapping[int, int],
    counts: Mapping[str, int],
    returns: Sequence[Variable],
    *,
    entry: bool,
    polled: bool,
    arrays: Arrays,
    shared_base: int,
    width: Width,
) -> list[Statement]:
    """Return how the body of a guarded function begins: clear registers, check the time, and clear memory.

    Kernels of which `checks_late` is true have the check of the time behind this, others before they clear memory.

    Args:
        registers: the program's, by their bits.
        counts: registers of each of `FAMILIES`.
        returns: results of the function: what it does not store must not be what a register happened to hold.
        entry: whether it is a kernel. The memory of a function has been cleared by the kernel.
        polled: whether the clock is read: by kernels, and by functions whose work has no small bound.
        arrays: of the kernel.
        shared_base: address of the array in shared memory.
        width: of the kernel.
    """
    made: list[Statement] = [
        _clear(bits, f"{PROGRAM_FAMILIES[bits]}{at}") for bits, count in registers.items() for at in range(count)
    ]
    made += [
        *_launch_registers(width),
        instruction("mov.u32", FUEL_USED, Int(0)),
        instruction("mov.u32", FUEL_COMMON, Int(0)),
    ]
    for each in returns:
        made += zero_param(each)
    if arrays.const_bytes:
        made.append(instruction("mov.u64", CONSTS, Name(CONST)))
    if polled:
        made += [*_clock(LAUNCH_LOOK)] if entry else [*_clock(LAUNCH_DEADLINE), *_deadline_check()]
    if arrays.local_bytes and entry:
        made.append(instruction("mov.u32", FRAME, Name(LOCAL)))
    elif arrays.local_bytes:
        made.append(instruction("ld.param.u32", FRAME, launch_field(LAUNCH_FRAME)))
    if arrays.dynamic:
        made.append(instruction("ld.param.u32", SIZE, launch_field(LAUNCH_SHARED)))
        made.append(instruction("sub.u32", SHARED_TOP, SIZE, Int(arrays.shared_reserve_bytes)))
    for family, value in FIRST_VALUES.items():
        word = "mov.b64" if FAMILIES[family] == "b64" else "mov.b32"
        made += [instruction(word, Name(f"{family}{at}"), value) for at in range(counts.get(family, 0))]
    return made + (_clear_memory(arrays, shared_base) if entry else [])


def _launch_registers(width: Width) -> list[Statement]:
    """Return what loads the fields of the launch parameter that fences need."""
    mask = {MASK: LAUNCH_MASK} if width == "wide" else {}
    fields = {HIGH: LAUNCH_HIGH, **mask, DATA: LAUNCH_DATA, ZERO: LAUNCH_ZERO}
    return [instruction("ld.param.u32", register, launch_field(offset)) for register, offset in fields.items()]


def checks_late(arrays: Arrays) -> bool:
    """Return whether a kernel checks the time behind its first instructions, since it clears little memory.

    To read the clock, and to ask where shared memory lies, takes long. What a kernel clears and computes first takes
    none of that time if it stands before the check.
    """
    return not (arrays.dynamic or arrays.local_bytes) and arrays.shared_bytes <= _LITTLE_SHARED_BYTES


def time_check(arrays: Arrays, shared_base: int) -> list[Statement]:
    """Return the check of a kernel whether it is time to look, or shared memory lies elsewhere than it should.

    By the clock that the prologue has read, most launches begin too early for it, and nothing of what can tell them to
    stop is read.
    """
    late = instruction("setp.gt.u64", TEST, NOW, LIMIT)
    if has_shared(arrays):
        late = instruction("setp.gt.or.u64", TEST, NOW, LIMIT, TEST)
    return [
        *(elsewhere(shared_base) if has_shared(arrays) else ()),
        late,
        instruction("bra", Name(LOOK), when=TEST),
        Label(GO),
    ]


def has_shared(arrays: Arrays) -> bool:
    """Return whether a kernel has an array in shared memory."""
    return arrays.dynamic or arrays.shared_bytes > 0


def elsewhere(shared_base: int) -> list[Statement]:
    """Return what sets `TEST` to whether the array in shared memory is not where accesses expect it."""
    return [instruction("mov.u32", SEEN, Name(SHARED)), instruction("setp.ne.u32", TEST, SEEN, Int(shared_base))]


def _deadline_check() -> list[Statement]:
    """Return the check of a function's deadline, by the clock that the prologue has read."""
    return [instruction("setp.gt.u64", TEST, NOW, LIMIT), instruction("bra", Name(STOP), when=TEST)]


def _clear_local(arrays: Arrays) -> list[Statement]:
    """Return what clears a kernel's array in local memory."""
    return [instruction("st.local.v4.b32", Address(Name(LOCAL), at), ZEROS) for at in range(0, arrays.local_bytes, 16)]


def zero_param(variable: Variable) -> list[Statement]:
    """Return the stores that make a parameter of a call, or a result, 0."""
    made, at, size = list[Statement](), 0, variable_bytes(variable)
    while at < size:
        step = min(8, variable_align(variable), 1 << (size - at).bit_length() - 1)
        made.append(instruction(f"st.param.b{8 * step}", Address(Name(variable.name), at), Int(0)))
        at += step
    return made


def program_registers(counts: Mapping[int, int]) -> list[Variable]:
    """Return the declarations of the program's registers."""
    kinds = {1: "pred"}
    return [
        Variable("reg", kinds.get(bits, f"b{bits}"), PROGRAM_FAMILIES[bits], count=count)
        for bits, count in counts.items()
        if count
    ]


def _clear(bits: int, name: str) -> Instruction:
    match bits:
        case 1:
            return instruction("mov.pred", Name(name), Int(0))
        case 8:
            return instruction("cvt.u8.u32", Name(name), Int(0))
        case 128:
            return instruction("mov.b128", Name(name), Vector((Int(0), Int(0))))
    return instruction(f"mov.b{bits}", Name(name), Int(0))


def _clock(limit: int) -> list[Statement]:
    """Return what reads the clock, and the time that it is compared with."""
    return [
        instruction("mov.u64", NOW, Name("%globaltimer")),
        instruction("ld.param.u64", LIMIT, launch_field(limit)),
    ]


def _clear_memory(arrays: Arrays, shared_base: int) -> list[Statement]:
    """Return what clears a kernel's memory, with the check of the time before that unless it comes late."""
    size_bytes = SIZE if arrays.dynamic else Int(arrays.shared_bytes)
    check = [] if checks_late(arrays) else time_check(arrays, shared_base)
    return [*check, *(_clear_shared(size_bytes) if has_shared(arrays) else ()), *_clear_local(arrays)]


def _clear_shared(size_bytes: Operand) -> list[Statement]:
    """Return a loop of all threads over shared memory, 16 bytes each in turn, and a barrier."""
    return [
        instruction("mov.u32", AT, Name("%tid", "z")),
        instruction("mov.u32", SEEN, Name("%ntid", "y")),
        instruction("mov.u32", WORD, Name("%tid", "y")),
        instruction("mad.lo.u32", AT, AT, SEEN, WORD),
        instruction("mov.u32", STEP, Name("%ntid", "x")),
        instruction("mov.u32", WORD, Name("%tid", "x")),
        instruction("mad.lo.u32", AT, AT, STEP, WORD),
        instruction("shl.b32", AT, AT, Int(4)),
        instruction("mul.lo.u32", STEP, STEP, SEEN),
        instruction("mov.u32", WORD, Name("%ntid", "z")),
        instruction("mul.lo.u32", STEP, STEP, WORD),
        instruction("shl.b32", STEP, STEP, Int(4)),
        instruction("mov.u32", SEEN, Name(SHARED)),
        instruction("add.u32", AT, AT, SEEN),
        instruction("add.u32", SEEN, SEEN, size_bytes),
        Label("__tw_clear"),
        instruction("setp.ge.u32", TEST, AT, SEEN),
        instruction("bra", Name("__tw_cleared"), when=TEST),
        instruction("st.shared.v4.b32", Address(AT), ZEROS),
        instruction("add.u32", AT, AT, STEP),
        instruction("bra", Name("__tw_clear")),
        Label("__tw_cleared"),
        instruction("bar.sync", Int(0)),
    ]


def hand_over(name: str, arrays: Arrays, width: Width) -> list[Statement]:
    """Return what stands before a call: the launch parameter of this function becomes the argument ``name``."""
    made: list[Statement] = [replace(LAUNCH_PARAMS[width], name=name)]
    last = (LAUNCH_MASK,) if width == "wide" else ()
    for at in (*range(0, LAUNCH_SHARED, 8), LAUNCH_DYNAMIC, *last):  # these two with the fields behind them
        made.append(instruction("ld.param.b64", NOW, launch_field(at)))
        made.append(instruction("st.param.b64", Address(Name(name), at), NOW))
    made.append(instruction("ld.param.b32", SEEN, launch_field(LAUNCH_SHARED)))
    made.append(instruction("st.param.b32", Address(Name(name), LAUNCH_SHARED), SEEN))
    frame = FRAME if arrays.local_bytes else FUEL_USED
    made.append(instruction("st.param.b32", Address(Name(name), LAUNCH_FRAME), frame))
    return made


def agreement(predicate: Name) -> list[Statement]:
    """Return the check that all threads of the warp have the same value of a predicate; otherwise the launch ends."""
    return [
        instruction("vote.sync.uni.pred", TEST, predicate, Int(WHOLE_WARP)),
        Instruction("bra", (), (Name(TRAP),), Guard(TEST, negated=True)),
    ]


def presence() -> list[Statement]:
    """Return the check that the whole warp is there; otherwise the launch ends. It stands before `WHOLE_WARP_ONLY`."""
    return [
        instruction("setp.eq.u32", TEST, Int(0), Int(0)),
        instruction("vote.sync.ballot.b32", SEEN, TEST, Int(WHOLE_WARP)),
        instruction("setp.ne.u32", TEST, SEEN, Int(WHOLE_WARP)),
        instruction("bra", Name(TRAP), when=TEST),
    ]
