"""The parts of guarded kernels that are always the same: the guard writes them, the verifier compares them.

Names and numbers are in `tensorwasm.ptx.guarded`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tensorwasm.ptx.guarded import (
    AGAIN,
    AT,
    CONST,
    CONSTS,
    DATA,
    FAMILIES,
    FIRST_VALUES,
    FRAME,
    FUEL,
    FUEL_COMMON,
    FUEL_USED,
    HIGH,
    LAUNCH,
    LAUNCH_BYTES,
    LAUNCH_DATA,
    LAUNCH_DEADLINE,
    LAUNCH_DYNAMIC,
    LAUNCH_FLAG,
    LAUNCH_FRAME,
    LAUNCH_HIGH,
    LAUNCH_SHARED,
    LAUNCH_STATUS,
    LAUNCH_ZERO,
    LIMIT,
    LOCAL,
    NOW,
    PROGRAM_FAMILIES,
    SEEN,
    SHARED,
    SHARED_TOP,
    SIZE,
    STATUS_REQUEST,
    STEP,
    STOP,
    STOPPED,
    TEST,
    TRAP,
    TRAPPED,
    TURN_SHIFT,
    TURNS,
    WHOLE_WARP,
    WORD,
    ZERO,
    Arrays,
)
from tensorwasm.ptx.layout import variable_align, variable_bytes
from tensorwasm.ptx.model import (
    Address,
    Guard,
    Instruction,
    Int,
    Label,
    Name,
    Not,
    Operand,
    Statement,
    Variable,
    Vector,
)

ZEROS: Final = Vector((Int(0),) * 4)


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
) -> list[Statement]:
    """Return how the body of a guarded function begins: clear registers and memory, and check the deadline.

    Kernels of which `checks_late` is true have the check behind this.

    Args:
        registers: the program's, by their bits.
        counts: registers of each of `FAMILIES`.
        returns: results of the function: what it does not store must not be what a register happened to hold.
        entry: whether it is a kernel. The memory of a function has been cleared by the kernel.
        polled: whether the clock is read: by kernels, and by functions whose work has no small bound.
        arrays: of the kernel.
        shared_base: address of the array in shared memory.
    """
    made: list[Statement] = [
        _clear(bits, f"{PROGRAM_FAMILIES[bits]}{at}") for bits, count in registers.items() for at in range(count)
    ]
    made += [
        instruction("ld.param.u32", HIGH, launch_field(LAUNCH_HIGH)),
        instruction("ld.param.u32", DATA, launch_field(LAUNCH_DATA)),
        instruction("ld.param.u32", ZERO, launch_field(LAUNCH_ZERO)),
        instruction("mov.u32", FUEL_USED, Int(0)),
        instruction("mov.u32", FUEL_COMMON, Int(0)),
    ]
    for each in returns:
        made += zero_param(each)
    if arrays.const_bytes:
        made.append(instruction("mov.u64", CONSTS, Name(CONST)))
    if polled:
        made += [*_clock(), *([] if entry else deadline_check())]
    if arrays.local_bytes:
        made += _local_array(arrays, entry=entry)
    if arrays.dynamic:
        made.append(instruction("ld.param.u32", SIZE, launch_field(LAUNCH_SHARED)))
        made.append(instruction("sub.u32", SHARED_TOP, SIZE, Int(arrays.shared_reserve_bytes)))
    for family, value in FIRST_VALUES.items():
        word = "mov.b64" if FAMILIES[family] == "b64" else "mov.b32"
        made += [instruction(word, Name(f"{family}{at}"), value) for at in range(counts.get(family, 0))]
    return made + (_checked_shared(arrays, shared_base) if entry and not checks_late(arrays) else [])


def checks_late(arrays: Arrays) -> bool:
    """Return whether a kernel checks the deadline behind its first instructions: it clears no shared memory.

    To read the clock takes long. What a kernel computes first takes none of that time if it stands before the check.
    """
    return not (arrays.dynamic or arrays.shared_bytes)


def deadline_check() -> list[Statement]:
    """Return the check of the deadline, by the clock that the prologue has read."""
    return [instruction("setp.gt.u64", TEST, NOW, LIMIT), instruction("bra", Name(STOP), when=TEST)]


def _local_array(arrays: Arrays, *, entry: bool) -> list[Statement]:
    """Return what finds the array in local memory, and clears it if it is the function's own."""
    if not entry:
        return [instruction("ld.param.u32", FRAME, launch_field(LAUNCH_FRAME))]
    clears = (
        instruction("st.local.v4.b32", Address(Name(LOCAL), at), ZEROS) for at in range(0, arrays.local_bytes, 16)
    )
    return [instruction("mov.u32", FRAME, Name(LOCAL)), *clears]


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


def _clock() -> list[Statement]:
    """Return what reads the clock and the deadline."""
    return [
        instruction("mov.u64", NOW, Name("%globaltimer")),
        instruction("ld.param.u64", LIMIT, launch_field(LAUNCH_DEADLINE)),
    ]


def _asked_to_stop() -> list[Statement]:
    """Return the check of the flag, in the block's turn of the host's word, and of the deadline.

    `TEST` says whether the thread has to stop; `SEEN` and `WORD` are overwritten. The host does not write the flag: a
    copy to the device may wait behind the very kernels that are to stop. Who sees the host's word sets the flag.
    """
    return [
        instruction("mov.u64", NOW, Name("%globaltimer")),
        instruction("cvt.u32.u64", SEEN, NOW),
        instruction("shr.u32", SEEN, SEEN, Int(TURN_SHIFT)),
        instruction("mov.u32", WORD, Name("%ctaid", "x")),
        instruction("add.u32", SEEN, SEEN, WORD),
        instruction("and.b32", SEEN, SEEN, Int(TURNS - 1)),
        instruction("setp.eq.u32", TEST, SEEN, Int(0)),
        instruction("mov.u32", SEEN, Int(0)),
        instruction("ld.param.u64", LIMIT, launch_field(LAUNCH_STATUS)),
        instruction("ld.volatile.global.u32", SEEN, Address(LIMIT, STATUS_REQUEST), when=TEST),
        instruction("ld.param.u64", LIMIT, launch_field(LAUNCH_FLAG)),
        instruction("ld.volatile.global.u32", WORD, Address(LIMIT)),
        instruction("or.b32", SEEN, SEEN, WORD),
        instruction("ld.param.u64", LIMIT, launch_field(LAUNCH_DEADLINE)),
        instruction("setp.gt.u64", TEST, NOW, LIMIT),
        instruction("setp.ne.or.u32", TEST, SEEN, Int(0), TEST),
    ]


def _checked_shared(arrays: Arrays, base: int) -> list[Statement]:
    """Return what clears shared memory, with the check of the deadline before the loop."""
    clear = _clear_shared(SIZE if arrays.dynamic else Int(arrays.shared_bytes), base)
    loop = next((at for at, each in enumerate(clear) if isinstance(each, Label)), len(clear))
    check = [instruction("setp.gt.or.u64", TEST, NOW, LIMIT, TEST), instruction("bra", Name(STOP), when=TEST)]
    return [*clear[:loop], *check, *clear[loop:]]


def _clear_shared(size_bytes: Operand, base: int) -> list[Statement]:
    """Return a loop of all threads over shared memory, 16 bytes each in turn, and a barrier.

    Before the label of the loop `TEST` says whether the array is elsewhere than it should be.
    """
    made: list[Statement] = [
        instruction("mov.u32", AT, Name(SHARED)),
        instruction("setp.ne.u32", TEST, AT, Int(base)),
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
        Label("__tw_clear"),
        instruction("setp.ge.u32", TEST, AT, size_bytes),
        instruction("bra", Name("__tw_cleared"), when=TEST),
        instruction("st.shared.v4.b32", Address(AT, base), ZEROS),
        instruction("add.u32", AT, AT, STEP),
        instruction("bra", Name("__tw_clear")),
        Label("__tw_cleared"),
        instruction("bar.sync", Int(0)),
    ]
    return made


def hand_over(name: str, arrays: Arrays) -> list[Statement]:
    """Return what stands before a call: the launch parameter of this function becomes the argument ``name``."""
    made: list[Statement] = [Variable("param", "b8", name, align=8, shape=(LAUNCH_BYTES,))]
    for at in (*range(0, LAUNCH_SHARED, 8), LAUNCH_DYNAMIC):  # the last with the field behind it
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


@dataclass(frozen=True, slots=True)
class Poll:
    """What is done when fuel is used up.

    Attributes:
        back: label that it returns to.
        fuel: register that is filled again.
        leaves: whether a thread that has to stop leaves its loop, and goes on with what follows; otherwise it exits. A
            loop with a way to the end of the kernel is not one for ptxas that threads leave together.
    """

    back: str
    fuel: Name
    leaves: bool = False


def charge(cost: int, number: int, fuel: Name = FUEL_USED) -> list[Statement]:
    """Return what counts work in straight code, and polls when the fuel is used up."""
    return [
        instruction("add.u32", fuel, fuel, Int(cost)),
        instruction("setp.ge.u32", TEST, fuel, Int(FUEL)),
        instruction("bra", Name(poll_label(number)), when=TEST),
        Label(back_label(number)),
    ]


def charged_branch(branch: Instruction, cost: int, number: int, fuel: Name, *, leaves: bool) -> list[Statement]:
    """Return a branch backward that counts the work of its loop and leaves the loop to poll.

    The poll returns to the branch's label. A loop without another branch stays one block for the compiler.
    """
    target, when = branch.operands[0], branch.guard
    count = instruction("add.u32", fuel, fuel, Int(cost))
    taken = instruction("bra", target, when=TEST)
    poll = Instruction("bra", (), (Name(poll_label(number)),), when)
    if when is None:
        return [count, instruction("setp.lt.u32", TEST, fuel, Int(FUEL)), taken, poll]
    wanted: Operand = Not(when.predicate) if when.negated else when.predicate
    made = [count, instruction("setp.lt.and.u32", TEST, fuel, Int(FUEL), wanted), taken, poll]
    return [*made, Label(left_label(number))] if leaves else [*made]


def pay_turns(counter: Name, turns: Name, most: int, amount: int, fuel: Name) -> list[Statement]:
    """Return what stands before a counted loop: take some turns, at most ``most``, and count the work of all of them.

    The work of one turn more is counted, for the way back to here. A poll that is due is behind the loop: if one were
    here, ptxas would not unroll it.
    """
    return [
        instruction("min.u32", counter, turns, Int(most)),
        instruction("mad.lo.u32", fuel, counter, Int(amount), fuel),
        instruction("add.u32", fuel, fuel, Int(amount)),
    ]


def counted_branch(branch: Instruction, counter: Name, loop: int, number: int, fuel: Name) -> list[Statement]:
    """Return the branch backward of a loop whose turns are paid for, which leads to the payment for more.

    A thread that has to stop leaves the loop.
    """
    return [
        instruction("sub.u32", counter, counter, Int(1)),
        instruction("setp.gt.s32", TEST, counter, Int(0)),
        instruction("bra", branch.operands[0], when=TEST),
        *charge(0, number, fuel)[1:],
        Instruction("bra", (), (Name(again_label(loop)),), branch.guard),
        Label(left_label(number)),
        instruction("mov.u32", counter, Int(0)),  # so that it never wraps, however often this is passed
    ]


def left_label(number: int) -> str:
    """Return the label where a thread that has to stop goes on behind its loop."""
    return f"__tw_left_{number}"


def again_label(loop: int) -> str:
    """Return the label before the payment of a loop's turns."""
    return f"{AGAIN}{loop}"


def poll_label(number: int) -> str:
    """Return the label of a poll."""
    return f"__tw_poll_{number}"


def back_label(number: int) -> str:
    """Return the label where straight code goes on after a poll."""
    return f"__tw_back_{number}"


def epilogue(polls: Sequence[Poll], *, stops: bool, traps: bool) -> list[Statement]:
    """Return how the body of a guarded function ends: what its polls branch to, and the ways to stop.

    Args:
        polls: of the function.
        stops: whether the prologue branches to `STOP`.
        traps: whether anything branches to `TRAP`.
    """
    made: list[Statement] = []
    for number, poll in enumerate(polls):
        made.append(Label(poll_label(number)))
        made.append(instruction("mov.u32", poll.fuel, Int(0)))
        made += _asked_to_stop()
        if poll.leaves:
            made += _leave(poll, number)
        else:
            made += [instruction("bra", Name(STOP), when=TEST), instruction("bra", Name(poll.back))]
    stops = stops or not all(poll.leaves for poll in polls)
    for label, wanted, code in ((STOP, stops, STOPPED), (TRAP, traps, TRAPPED)):
        if wanted:
            made += [Label(label), *_tell(code), instruction("exit")]
    return made


def _leave(poll: Poll, number: int) -> list[Statement]:
    """Return how a thread that has to stop leaves its loop; its fuel stays used up."""
    return [
        Instruction("bra", (), (Name(poll.back),), Guard(TEST, negated=True)),
        *_tell(STOPPED),
        instruction("mov.u32", poll.fuel, Int(FUEL)),
        instruction("bra", Name(left_label(number))),
    ]


def _tell(code: int) -> list[Statement]:
    """Return what tells the host why a thread stopped, unless another thread was seen to have told it.

    Stores to memory of the host are slow: of the blocks of a large grid only the first ones make them. The load may
    come from the first-level cache, since a thread that sees too little only tells it again.
    """
    return [
        instruction("ld.param.u64", LIMIT, launch_field(LAUNCH_FLAG)),
        instruction("ld.relaxed.cta.global.u32", SEEN, Address(LIMIT)),
        instruction("setp.eq.u32", TEST, SEEN, Int(0)),
        instruction("mov.u32", SEEN, Int(code)),
        instruction("st.volatile.global.u32", Address(LIMIT), SEEN, when=TEST),
        instruction("ld.param.u64", LIMIT, launch_field(LAUNCH_STATUS)),
        instruction("st.volatile.global.u32", Address(LIMIT), SEEN, when=TEST),
    ]
