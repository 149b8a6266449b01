"""Templates of work that is counted, of polls, and of the ways in which threads stop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tensorwasm.ptx.guarded import (
    AGAIN,
    FUEL,
    FUEL_USED,
    LAUNCH_DEADLINE,
    LAUNCH_FLAG,
    LAUNCH_STATUS,
    LIMIT,
    NOW,
    SEEN,
    STATUS_REQUEST,
    STOP,
    STOPPED,
    TEST,
    TRAP,
    TRAPPED,
    TURN_SHIFT,
    TURNS,
    WORD,
)
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
)
from tensorwasm.ptx.templates import instruction, launch_field


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
