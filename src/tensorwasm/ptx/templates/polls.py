"""Templates of work that is counted, of polls, and of the ways in which threads stop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tensorwasm.ptx.guarded import (
    AGAIN,
    FLAG_STOPPED,
    FLAG_TOLD,
    FUEL,
    FUEL_USED,
    GO,
    LAUNCH_DEADLINE,
    LAUNCH_FLAG,
    LAUNCH_STATUS,
    LIMIT,
    LOOK,
    LOOK_NS,
    NEXT,
    NOW,
    SEEN,
    STATUS_REQUEST,
    STOP,
    STOPPED,
    TEST,
    TRAP,
    TRAPPED,
    UNTIL,
    WORD,
    Arrays,
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
from tensorwasm.ptx.templates import elsewhere, has_shared, instruction, launch_field


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


def epilogue(polls: Sequence[Poll], *, looks: Sequence[Statement], stops: bool, traps: bool) -> list[Statement]:
    """Return how the body of a guarded function ends: what its polls branch to, and the ways to stop.

    Args:
        polls: of the function.
        looks: what `look` returns for a kernel; empty for a function.
        stops: whether the prologue branches to `STOP`.
        traps: whether anything branches to `TRAP`.
    """
    made: list[Statement] = []
    for number, poll in enumerate(polls):
        made += [Label(poll_label(number)), instruction("mov.u32", poll.fuel, Int(0)), *_asked_to_stop(poll.back)]
        if poll.leaves:
            made += _leave(poll, number)
        else:
            made += [instruction("bra", Name(STOP), when=TEST), instruction("bra", Name(poll.back))]
    made += looks
    stops = stops or bool(looks) or not all(poll.leaves for poll in polls)
    for label, wanted, code in ((STOP, stops, STOPPED), (TRAP, traps, TRAPPED)):
        if wanted:
            made += [Label(label), *_tell(code), instruction("exit")]
    return made


def look(arrays: Arrays, shared_base: int) -> list[Statement]:
    """Return where a kernel whose blocks begin late looks whether to stop, or finds shared memory elsewhere."""
    moved = [*elsewhere(shared_base), instruction("bra", Name(STOP), when=TEST)] if has_shared(arrays) else []
    return [
        Label(LOOK),
        *moved,
        *_asked_to_stop(GO),
        instruction("bra", Name(STOP), when=TEST),
        instruction("bra", Name(GO)),
    ]


def _leave(poll: Poll, number: int) -> list[Statement]:
    """Return how a thread that has to stop leaves its loop; its fuel stays used up."""
    return [
        Instruction("bra", (), (Name(poll.back),), Guard(TEST, negated=True)),
        *_tell(STOPPED),
        instruction("mov.u32", poll.fuel, Int(FUEL)),
        instruction("bra", Name(left_label(number))),
    ]


def _tell(code: int) -> list[Statement]:
    """Return what tells the session's threads to stop and the host why, unless another thread was seen to have done it.

    Stores to memory of the host are slow: of the blocks of a large grid only the first ones make them. The load may
    come from the first-level cache, since a thread that sees too little only tells it again.
    """
    return [
        instruction("ld.param.u64", LIMIT, launch_field(LAUNCH_FLAG)),
        instruction("ld.relaxed.cta.global.u32", SEEN, Address(LIMIT, FLAG_TOLD)),
        instruction("setp.eq.u32", TEST, SEEN, Int(0)),
        instruction("mov.u32", SEEN, Int(code)),
        instruction("mov.u64", UNTIL, Int(FLAG_STOPPED)),
        instruction("st.volatile.global.u32", Address(LIMIT, FLAG_TOLD), SEEN, when=TEST),
        instruction("st.volatile.global.u64", Address(LIMIT), UNTIL, when=TEST),
        instruction("ld.param.u64", LIMIT, launch_field(LAUNCH_STATUS)),
        instruction("st.volatile.global.u32", Address(LIMIT), SEEN, when=TEST),
    ]


def _asked_to_stop(back: str) -> list[Statement]:
    """Return a branch to ``back`` if it is too early to look, and then what finds out whether to stop.

    `TEST` says whether the thread has to stop; `SEEN` and `WORD` are overwritten. The host does not write the flag: a
    copy to the device may wait behind the very kernels that are to stop. Of all threads for which it is time, the one
    that moves the flag on looks at the host's word. The first of a warp tries it, and all of the warp read what it has
    left, so that they go on together.
    """
    return [
        instruction("mov.u64", NOW, Name("%globaltimer")),
        instruction("ld.param.u64", LIMIT, launch_field(LAUNCH_FLAG)),
        instruction("ld.volatile.global.u64", UNTIL, Address(LIMIT)),
        instruction("ld.param.u64", NEXT, launch_field(LAUNCH_DEADLINE)),
        instruction("setp.le.u64", TEST, NOW, UNTIL),
        instruction("setp.le.and.u64", TEST, NOW, NEXT, TEST),
        instruction("bra", Name(back), when=TEST),
        instruction("activemask.b32", SEEN),
        instruction("mov.u32", WORD, Name("%lanemask_lt")),
        instruction("and.b32", SEEN, SEEN, WORD),
        instruction("setp.eq.u32", TEST, SEEN, Int(0)),
        instruction("setp.ne.and.u64", TEST, UNTIL, Int(FLAG_STOPPED), TEST),
        instruction("add.u64", NEXT, NOW, Int(LOOK_NS)),
        instruction("atom.global.cas.b64", NEXT, Address(LIMIT), UNTIL, NEXT, when=TEST),
        instruction("setp.eq.and.u64", TEST, NEXT, UNTIL, TEST),
        instruction("mov.u32", SEEN, Int(0)),
        instruction("ld.param.u64", NEXT, launch_field(LAUNCH_STATUS)),
        instruction("ld.volatile.global.u32", SEEN, Address(NEXT, STATUS_REQUEST), when=TEST),
        instruction("setp.ne.u32", TEST, SEEN, Int(0)),
        instruction("mov.u64", NEXT, Int(FLAG_STOPPED)),
        instruction("st.volatile.global.u64", Address(LIMIT), NEXT, when=TEST),
        instruction("ld.volatile.global.u64", UNTIL, Address(LIMIT)),
        instruction("ld.param.u64", NEXT, launch_field(LAUNCH_DEADLINE)),
        instruction("setp.gt.u64", TEST, NOW, NEXT),
        instruction("setp.eq.or.u64", TEST, UNTIL, Int(FLAG_STOPPED), TEST),
    ]
