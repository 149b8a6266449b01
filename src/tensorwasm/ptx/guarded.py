"""The form of guarded kernels: what the guard writes, the verifier accepts and the runtime provides at each launch.

A guarded kernel shares a GPU context with kernels of other tenants. Every address that it accesses is confined to its
session's window, to its own part of shared memory or to its own part of local memory, whatever it computes, and it
stops by itself after its deadline. `docs/subjects/guarded-kernels.md` has the threat model.

Names that begin with `RESERVED` belong to the guard. Families of its registers, by what they may hold:

- ``%tw_l<n>`` 32 bits of any value.
- ``%tw_a<n>`` an address in the window: ``mov.b64 %tw_a1, {%tw_l1, %tw_hi}``.
- ``%tw_s<n>`` an offset in shared memory that is below a bound.
- ``%tw_m<n>``, ``%tw_c<n>`` an address in the array in local or constant memory.
- ``%tw_i<n>`` an index below the length of a list of labels.
- ``%tw_n<n>`` how many turns of a loop are paid for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tensorwasm.ptx.layout import TYPE_BYTES
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

RESERVED: Final = ("%tw_", "__tw_")

WINDOW_BYTES: Final = 1 << 32
"""Bytes of a window: a multiple of them is where it begins."""
MAX_DISPLACEMENT_BYTES: Final = 8 << 20
"""Greatest distance of an access from a fenced address; the slack on both sides of a window is longer."""
SHARED_BASE: Final = 1024
"""Where ptxas puts the first variable in shared memory: behind what CUDA reserves (sm_80 and later)."""
SHARED_ALIGN: Final = 1024
MAX_STATIC_SHARED_BYTES: Final = 48 << 10
MAX_LOCAL_BYTES: Final = 32 << 10
"""Bytes of local memory of one thread: the driver reserves them for every thread that the GPU can hold."""
MAX_CONST_BYTES: Final = 32 << 10
MAX_DATA_BYTES: Final = 16 << 20
"""Bytes of a module's variables, of which each session has a copy."""
MAX_ACCESS_BYTES: Final = 16
MAX_FRAME_ALIGN: Final = 16

SHARED: Final = "__tw_shared"
LOCAL: Final = "__tw_local"
CONST: Final = "__tw_const"
LAUNCH: Final = "__tw_launch"
LAUNCH_BYTES: Final = 48
PASSED: Final = "__tw_pass_"
"""How the parameters of calls begin that hand the launch parameter over."""

LAUNCH_HIGH: Final = 0
"""Offset in the launch parameter: u32, the high half of the window's address."""
LAUNCH_DATA: Final = 4
"""u32: offset in the window of the variables of the kernel's module."""
LAUNCH_DEADLINE: Final = 8
"""u64: the value of ``%globaltimer`` after which the launch stops."""
LAUNCH_FLAG: Final = 16
"""u64: address of a u32 in device memory: the launch stops when it is not 0."""
LAUNCH_STATUS: Final = 24
"""u64: address of a u32 that the host can read: a thread that stops writes one of `STOPPED` and `TRAPPED`."""
LAUNCH_SHARED: Final = 32
"""u32: bytes of shared memory of the launch, a multiple of 16, where the kernel does not say them itself."""
LAUNCH_FRAME: Final = 36
"""u32: address of the kernel's array in local memory; only what a kernel passes to its functions has it."""
LAUNCH_DYNAMIC: Final = 40
"""u32: bytes of dynamic shared memory that the launch asked for; then 4 bytes that are not used."""

STOPPED: Final = 1
TRAPPED: Final = 2

WHOLE_WARP: Final = (1 << 32) - 1
"""The mask of all threads of a warp."""

OTHER_LANES: Final = frozenset({"shfl", "mma", "wmma", "ldmatrix", "stmatrix"})
"""Opcodes that read registers of other threads of the warp, whether these are there or not."""

FUEL: Final = 1 << 16
"""Work between two polls, in the units of `tensorwasm.ptx.verifier.costs`."""

AGAIN: Final = "__tw_again_"
STOP: Final = "__tw_stop"
TRAP: Final = "__tw_trap"

HIGH: Final = Name("%tw_hi")
DATA: Final = Name("%tw_data")
FRAME: Final = Name("%tw_frame")
CONSTS: Final = Name("%tw_consts")
SHARED_TOP: Final = Name("%tw_top")
FUEL_USED: Final = Name("%tw_fuel")
_TEST: Final = Name("%tw_q")
_NOW: Final = Name("%tw_now")
_LIMIT: Final = Name("%tw_limit")
_SEEN: Final = Name("%tw_seen")
_AT: Final = Name("%tw_at")
_STEP: Final = Name("%tw_step")
_WORD: Final = Name("%tw_word")
_SIZE: Final = Name("%tw_size")

REGISTERS: Final = (
    Variable("reg", "pred", _TEST.name),
    *(Variable("reg", "b32", each.name) for each in (HIGH, DATA, FRAME, SHARED_TOP, FUEL_USED)),
    *(Variable("reg", "b32", each.name) for each in (_SEEN, _AT, _STEP, _WORD, _SIZE)),
    *(Variable("reg", "b64", each.name) for each in (CONSTS, _NOW, _LIMIT)),
)
"""Registers of each function that the templates below use."""

ADDRESS, OFFSET, LOCAL_ADDRESS, CONST_ADDRESS, INDEX, COUNTER, ANY = (f"%tw_{letter}" for letter in "asmcinl")
FAMILIES: Final = {
    **dict.fromkeys((ADDRESS, CONST_ADDRESS), "b64"),
    **dict.fromkeys((OFFSET, LOCAL_ADDRESS, INDEX, COUNTER, ANY), "b32"),
}
"""Numbered registers of the guard, and their types."""
_FIRST_VALUES: Final[Mapping[str, Operand]] = {
    ADDRESS: Vector((FUEL_USED, HIGH)),
    OFFSET: Int(0),
    LOCAL_ADDRESS: FRAME,
    CONST_ADDRESS: CONSTS,
    INDEX: Int(0),
    COUNTER: Int(0),
    ANY: Int(0),
}
"""What registers hold that confine accesses until a fence writes them; `FUEL_USED` is 0 then."""

PROGRAM_FAMILIES: Final = {1: "%p", 8: "%c", 16: "%h", 32: "%r", 64: "%d", 128: "%q"}
"""Numbered registers for the program's values, by their bits: predicates, and untyped registers."""

LAUNCH_PARAM: Final = Variable("param", "b8", LAUNCH, align=8, shape=(LAUNCH_BYTES,))


@dataclass(frozen=True, slots=True)
class Arrays:
    """The arrays that hold a kernel's variables; its functions use them too.

    Attributes:
        shared_bytes: in shared memory, a multiple of 16; 0 if there is none or `dynamic`.
        dynamic: whether the launch says how large that array is.
        shared_reserve_bytes: what an access may reach beyond the greatest fenced offset, where it is `dynamic`.
        local_bytes: in local memory, 0 or a power of two from 16.
        const_bytes: in constant memory, 0 or a power of two from 16.
    """

    shared_bytes: int = 0
    dynamic: bool = False
    shared_reserve_bytes: int = 0
    local_bytes: int = 0
    const_bytes: int = 0


_ZEROS: Final = Vector((Int(0),) * 4)


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
    *,
    entry: bool,
    polled: bool,
    arrays: Arrays,
    shared_base: int,
) -> list[Statement]:
    """Return how the body of a guarded function begins: clear registers and memory, and check the deadline.

    Args:
        registers: the program's, by their bits.
        counts: registers of each of `FAMILIES`.
        entry: whether it is a kernel. The memory of a function has been cleared by the kernel.
        polled: whether the deadline is checked: by kernels, and by functions whose work has no small bound.
        arrays: of the kernel.
        shared_base: address of the array in shared memory.
    """
    made: list[Statement] = [
        _clear(bits, f"{PROGRAM_FAMILIES[bits]}{at}") for bits, count in registers.items() for at in range(count)
    ]
    made += [
        instruction("ld.param.u32", HIGH, launch_field(LAUNCH_HIGH)),
        instruction("ld.param.u32", DATA, launch_field(LAUNCH_DATA)),
        instruction("mov.u32", FUEL_USED, Int(0)),
    ]
    if arrays.const_bytes:
        made.append(instruction("mov.u64", CONSTS, Name(CONST)))
    if polled:
        made += _poll(flag=False)
    if arrays.local_bytes and not entry:
        made.append(instruction("ld.param.u32", FRAME, launch_field(LAUNCH_FRAME)))
    elif arrays.local_bytes:
        made.append(instruction("mov.u32", FRAME, Name(LOCAL)))
        made += [
            instruction("st.local.v4.b32", Address(Name(LOCAL), at), _ZEROS) for at in range(0, arrays.local_bytes, 16)
        ]
    if arrays.dynamic:
        made.append(instruction("ld.param.u32", _SIZE, launch_field(LAUNCH_SHARED)))
        made.append(instruction("sub.u32", SHARED_TOP, _SIZE, Int(arrays.shared_reserve_bytes)))
    for family, value in _FIRST_VALUES.items():
        word = "mov.b64" if FAMILIES[family] == "b64" else "mov.b32"
        made += [instruction(word, Name(f"{family}{at}"), value) for at in range(counts.get(family, 0))]
    if entry and (arrays.dynamic or arrays.shared_bytes):
        made += _clear_shared(_SIZE if arrays.dynamic else Int(arrays.shared_bytes), shared_base)
    return made


def register_bits(kind: str) -> int:
    """Return the bits of registers of a type; 1 for predicates."""
    return 1 if kind == "pred" else 8 * TYPE_BYTES[kind]


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


def _poll(*, flag: bool) -> list[Statement]:
    """Return the check of the deadline, and of the flag; `_SEEN` and `_TEST` are overwritten."""
    made = [
        instruction("mov.u64", _NOW, Name("%globaltimer")),
        instruction("ld.param.u64", _LIMIT, launch_field(LAUNCH_DEADLINE)),
        instruction("setp.gt.u64", _TEST, _NOW, _LIMIT),
        instruction("bra", Name(STOP), when=_TEST),
    ]
    if flag:
        made += [
            instruction("ld.param.u64", _LIMIT, launch_field(LAUNCH_FLAG)),
            instruction("ld.volatile.global.u32", _SEEN, Address(_LIMIT)),
            instruction("setp.ne.u32", _TEST, _SEEN, Int(0)),
            instruction("bra", Name(STOP), when=_TEST),
        ]
    return list(made)


def _clear_shared(size_bytes: Operand, base: int) -> list[Statement]:
    """Return a loop of all threads over shared memory, 16 bytes each in turn, and a barrier."""
    made: list[Statement] = [
        instruction("mov.u32", _AT, Name(SHARED)),
        instruction("setp.ne.u32", _TEST, _AT, Int(base)),
        instruction("bra", Name(STOP), when=_TEST),
        instruction("mov.u32", _AT, Name("%tid", "z")),
        instruction("mov.u32", _SEEN, Name("%ntid", "y")),
        instruction("mov.u32", _WORD, Name("%tid", "y")),
        instruction("mad.lo.u32", _AT, _AT, _SEEN, _WORD),
        instruction("mov.u32", _STEP, Name("%ntid", "x")),
        instruction("mov.u32", _WORD, Name("%tid", "x")),
        instruction("mad.lo.u32", _AT, _AT, _STEP, _WORD),
        instruction("shl.b32", _AT, _AT, Int(4)),
        instruction("mul.lo.u32", _STEP, _STEP, _SEEN),
        instruction("mov.u32", _WORD, Name("%ntid", "z")),
        instruction("mul.lo.u32", _STEP, _STEP, _WORD),
        instruction("shl.b32", _STEP, _STEP, Int(4)),
        Label("__tw_clear"),
        instruction("setp.ge.u32", _TEST, _AT, size_bytes),
        instruction("bra", Name("__tw_cleared"), when=_TEST),
        instruction("st.shared.v4.b32", Address(_AT, base), _ZEROS),
        instruction("add.u32", _AT, _AT, _STEP),
        instruction("bra", Name("__tw_clear")),
        Label("__tw_cleared"),
        instruction("bar.sync", Int(0)),
    ]
    return made


def hand_over(name: str, arrays: Arrays) -> list[Statement]:
    """Return what stands before a call: the launch parameter of this function becomes the argument ``name``."""
    made: list[Statement] = [Variable("param", "b8", name, align=8, shape=(LAUNCH_BYTES,))]
    for at in (*range(0, LAUNCH_SHARED, 8), LAUNCH_DYNAMIC):
        made.append(instruction("ld.param.b64", _NOW, launch_field(at)))
        made.append(instruction("st.param.b64", Address(Name(name), at), _NOW))
    made.append(instruction("ld.param.b32", _SEEN, launch_field(LAUNCH_SHARED)))
    made.append(instruction("st.param.b32", Address(Name(name), LAUNCH_SHARED), _SEEN))
    frame = FRAME if arrays.local_bytes else FUEL_USED
    made.append(instruction("st.param.b32", Address(Name(name), LAUNCH_FRAME), frame))
    return made


def agreement(predicate: Name) -> list[Statement]:
    """Return the check that all threads of the warp have the same value of a predicate; otherwise the launch ends."""
    return [
        instruction("vote.sync.uni.pred", _TEST, predicate, Int(WHOLE_WARP)),
        Instruction("bra", (), (Name(TRAP),), Guard(_TEST, negated=True)),
    ]


def presence() -> list[Statement]:
    """Return the check that no thread of the warp has exited; otherwise the launch ends.

    It stands before instructions that read registers of other threads: those of a thread that has exited may hold what
    another kernel has left there.
    """
    return [
        instruction("setp.eq.u32", _TEST, Int(0), Int(0)),
        instruction("vote.sync.ballot.b32", _SEEN, _TEST, Int(WHOLE_WARP)),
        instruction("setp.ne.u32", _TEST, _SEEN, Int(WHOLE_WARP)),
        instruction("bra", Name(TRAP), when=_TEST),
    ]


def charge(cost: int, number: int) -> list[Statement]:
    """Return what counts work in straight code, and polls when the fuel is used up."""
    return [
        instruction("add.u32", FUEL_USED, FUEL_USED, Int(cost)),
        instruction("setp.ge.u32", _TEST, FUEL_USED, Int(FUEL)),
        instruction("bra", Name(poll_label(number)), when=_TEST),
        Label(back_label(number)),
    ]


def charged_branch(branch: Instruction, cost: int, number: int) -> list[Statement]:
    """Return a branch backward that counts the work of its loop and leaves the loop to poll.

    The poll returns to the branch's label. A loop without another branch stays one block for the compiler.
    """
    target, when = branch.operands[0], branch.guard
    count = instruction("add.u32", FUEL_USED, FUEL_USED, Int(cost))
    taken = instruction("bra", target, when=_TEST)
    poll = Instruction("bra", (), (Name(poll_label(number)),), when)
    if when is None:
        return [count, instruction("setp.lt.u32", _TEST, FUEL_USED, Int(FUEL)), taken, poll]
    wanted: Operand = Not(when.predicate) if when.negated else when.predicate
    return [count, instruction("setp.lt.and.u32", _TEST, FUEL_USED, Int(FUEL), wanted), taken, poll]


def pay_turns(counter: Name, turns: Name, most: int, amount: int) -> list[Statement]:
    """Return what stands before a counted loop: take some turns, at most ``most``, and count the work of all of them.

    The work of one turn more is counted, for the way back to here. A poll that is due is behind the loop: if one were
    here, ptxas would not unroll it.
    """
    return [
        instruction("min.u32", counter, turns, Int(most)),
        instruction("mad.lo.u32", FUEL_USED, counter, Int(amount), FUEL_USED),
        instruction("add.u32", FUEL_USED, FUEL_USED, Int(amount)),
    ]


def counted_branch(branch: Instruction, counter: Name, loop: int, number: int) -> list[Statement]:
    """Return the branch backward of a loop whose turns are paid for, which leads to the payment for more."""
    return [
        instruction("sub.u32", counter, counter, Int(1)),
        instruction("setp.gt.s32", _TEST, counter, Int(0)),
        instruction("bra", branch.operands[0], when=_TEST),
        *charge(0, number)[1:],
        Instruction("bra", (), (Name(again_label(loop)),), branch.guard),
        instruction("mov.u32", counter, Int(0)),  # so that it never wraps, however often this is passed
    ]


def again_label(loop: int) -> str:
    """Return the label before the payment of a loop's turns."""
    return f"{AGAIN}{loop}"


def poll_label(number: int) -> str:
    """Return the label of a poll."""
    return f"__tw_poll_{number}"


def back_label(number: int) -> str:
    """Return the label where straight code goes on after a poll."""
    return f"__tw_back_{number}"


def epilogue(polls: Sequence[str], *, stops: bool, traps: bool) -> list[Statement]:
    """Return how the body of a guarded function ends: what its polls branch to, and the ways to stop.

    Args:
        polls: where each poll of the function returns to.
        stops: whether anything branches to `STOP`.
        traps: whether anything branches to `TRAP`.
    """
    made: list[Statement] = []
    for number, back in enumerate(polls):
        made.append(Label(poll_label(number)))
        made.append(instruction("mov.u32", FUEL_USED, Int(0)))
        made += _poll(flag=True)
        made.append(instruction("bra", Name(back)))
    for label, wanted, code in ((STOP, stops or bool(polls), STOPPED), (TRAP, traps, TRAPPED)):
        if wanted:
            made += [
                Label(label),
                instruction("ld.param.u64", _LIMIT, launch_field(LAUNCH_STATUS)),
                instruction("mov.u32", _SEEN, Int(code)),
                instruction("st.volatile.global.u32", Address(_LIMIT), _SEEN),
                instruction("exit"),
            ]
    return made
