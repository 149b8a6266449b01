"""Reads a guarded kernel and accepts or refuses it; see `tensorwasm.ptx.verifier`.

Source: PTX ISA 4 to 6, 9.7, 11.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tensorwasm.errors import UnsupportedPtx
from tensorwasm.ptx import guarded as rules
from tensorwasm.ptx import templates
from tensorwasm.ptx.guarded import Arrays, Width
from tensorwasm.ptx.layout import variable_bytes
from tensorwasm.ptx.model import Directive, Function, Instruction, Int, Module, Variable
from tensorwasm.ptx.parser import parse
from tensorwasm.ptx.templates.polls import epilogue, look
from tensorwasm.ptx.verifier.confinement import check_confinement
from tensorwasm.ptx.verifier.convergence import WARP_LANES, TooManyBlocks, hazards, waits
from tensorwasm.ptx.verifier.costs import (
    MAX_QUICK,
    ForwardWork,
    branch_targets,
    ends_run,
    function_cost,
    is_quick,
    sums,
)
from tensorwasm.ptx.verifier.kernel import KernelFacts, ReadFunction
from tensorwasm.ptx.verifier.parameters import check_parameters
from tensorwasm.ptx.verifier.reading import prologue, read_function
from tensorwasm.ptx.verifier.turns import Turns, find_turns
from tensorwasm.values import NEVER, Deadline, Dim3
from tensorwasm.watch import Watch


@dataclass(frozen=True, slots=True)
class Verified:
    """What a launch of an accepted kernel has to ensure.

    Attributes:
        entry: name of the kernel.
        arrays: memory of a launch: where shared memory is dynamic, it is a multiple of 16 bytes, at least
            `least_shared_bytes` and more than `Arrays.shared_reserve_bytes`.
        least_shared_bytes: where accesses at known places end.
        param_aligns: bytes that the value of each of the program's parameters is a multiple of.
        whole_rows: whether the rows of a block, along x, have to be whole warps, unless there is one row.
        whole_warps: whether a block has to be whole warps, for instructions that whole warps execute.
        width: ``wide`` if the launch parameter says how large the window is, otherwise its first 4 GiB are all.
    """

    entry: str
    arrays: Arrays
    least_shared_bytes: int
    param_aligns: tuple[int, ...]
    whole_rows: bool
    whole_warps: bool
    width: Width = "narrow"

    def takes(self, block: Dim3) -> bool:
        """Return whether a launch may have blocks of a size."""
        x, y, z = block
        return not (self.whole_rows and x % WARP_LANES and y * z > 1) and not (
            self.whole_warps and x * y * z % WARP_LANES
        )


def verify(text: str, shared_base: int = rules.SHARED_BASE, deadline: Deadline = NEVER) -> Verified:
    """Accept a text that ptxas is to be given, or refuse it.

    Args:
        text: of one kernel and its functions, as the guard wrote it.
        shared_base: address of the first variable in shared memory on the device.
        deadline: when to stop.

    Raises:
        UnsupportedPtx: it is not certain that the kernel stays in its window and stops; with the line of the text.
        MalformedPtx: the text is not PTX.
        InvokeTimeout: the deadline passed.
    """
    watch = Watch(deadline, "while the guarded kernel was verified")
    module = parse(text, deadline)
    if module.address_size != 64 or not all(word.startswith("sm_") for word in module.target):
        raise UnsupportedPtx("not verified: the module's header")
    functions = list(module.functions())
    entries = [each for each in functions if each.entry]
    if len(entries) != 1 or any(isinstance(item, Directive) for item in module.items):
        raise UnsupportedPtx("not verified: a guarded module has one kernel and no directives")
    entry, names = entries[0], frozenset(each.name for each in functions)
    kernel = KernelFacts(_arrays(module, entry), shared_base, watch, _width(entry), names)
    for function in functions:
        _check_function(function, kernel)
    aligns = tuple(param.pointer[1] if param.pointer is not None else 1 for param in entry.params[:-1])
    whole = kernel.whole_rows, kernel.whole_warps
    return Verified(entry.name, kernel.arrays, kernel.least_shared_bytes, aligns, *whole, kernel.width)


def _width(entry: Function) -> Width:
    """Return which form the whole text has to have, by the launch parameter of the kernel."""
    for width, param in rules.LAUNCH_PARAMS.items():
        if entry.params[-1:] == (param,):
            return width
    raise UnsupportedPtx(f"not verified: the last parameter of {entry.name} is not the launch's", *entry.position)


def _arrays(module: Module, entry: Function) -> Arrays:
    """Return the kernel's arrays as they are declared, and what its text subtracts from the size of shared memory."""
    made = Arrays()
    for variable in module.variables():
        size = variable_bytes(variable)
        plain = replace(variable, initializer=())
        shared = Variable("shared", "b8", rules.SHARED, align=rules.SHARED_ALIGN, shape=(size,))
        if size and variable == shared and size % 16 == 0 and size <= rules.MAX_STATIC_SHARED_BYTES:
            made = replace(made, shared_bytes=size)
        elif variable == replace(shared, shape=(0,), linkage=("extern",)):
            made = replace(made, dynamic=True)
        elif plain == Variable("const", "b8", rules.CONST, align=16, shape=(size,)) and _is_array(size):
            made = replace(made, const_bytes=size)
        else:
            raise UnsupportedPtx(f"not verified: the variable {variable.name}", *variable.position)
    if made.dynamic and made.shared_bytes:
        raise UnsupportedPtx("not verified: two arrays in shared memory")
    for statement in entry.body or ():
        match statement:
            case Variable("local"):
                size = variable_bytes(statement)
                if statement != Variable("local", "b8", rules.LOCAL, align=16, shape=(size,)) or not _is_array(size):
                    raise UnsupportedPtx("not verified: the array in local memory", *statement.position)
                made = replace(made, local_bytes=size)
            case Instruction("sub", operands=(rules.SHARED_TOP, _, Int(value))) if made.dynamic:
                made = replace(made, shared_reserve_bytes=value)
    if not 0 <= made.shared_reserve_bytes <= rules.MAX_STATIC_SHARED_BYTES or made.shared_reserve_bytes % 16:
        raise UnsupportedPtx("not verified: the reserve of shared memory")
    return made


def _is_array(size_bytes: int) -> bool:
    return 16 <= size_bytes <= rules.MAX_LOCAL_BYTES and size_bytes & (size_bytes - 1) == 0


def _check_function(function: Function, kernel: KernelFacts) -> None:
    """Accept a function, whose callees have been accepted, or refuse it."""
    read = read_function(function, kernel)
    read.turns = _turns(read, kernel)
    work, polled = function_cost(function, read.body, kernel.costs, read.turns.more, loops=bool(read.polls))
    polled = polled or function.entry
    body = list(function.body or ())
    head = prologue(read, kernel, polled=polled)
    start = next(at for at, each in enumerate(body) if not isinstance(each, Variable))
    if body[start : start + len(head)] != head:
        read.refuse("the deadline is not checked at the beginning", function)
    if function.entry and templates.checks_late(kernel.arrays) and not _checks_deadline(read):
        read.refuse("the deadline is not checked at the beginning", function)
    check_confinement(read, kernel)
    check_parameters(read, kernel)
    _check_work(read, kernel)
    _check_convergence(read, kernel)
    looks = look(kernel.arrays, kernel.shared_base) if function.entry else ()
    if body[read.end :] != epilogue(read.polls, looks=looks, stops=polled, traps=read.traps):
        read.refuse("the end is not that of a guarded function", function)
    kernel.costs[function.name] = work
    kernel.functions[function.name] = function
    if any(waits(each, kernel.syncing) for each in read.body):
        kernel.syncing.add(function.name)
    kernel.whole_warps |= any(
        isinstance(each, Instruction) and each.opcode in rules.WHOLE_WARP_ONLY for each in read.body
    )


def _checks_deadline(read: ReadFunction) -> bool:
    """Return whether a kernel checks the deadline before it does anything that takes time."""
    return 0 <= read.checked <= MAX_QUICK and all(map(is_quick, read.body[: read.checked]))


def _turns(read: ReadFunction, kernel: KernelFacts) -> Turns:
    """Return the loops of a function whose turns are bounded, and that count no work themselves."""
    counting = {*read.charges, *read.counted, *(each.at for each in read.payments.values())}
    work = sums(read.body, kernel.costs)
    return find_turns(read.function, read.body, read.lists, work, kernel.watch, leaving=read.leaving, counting=counting)


def _check_work(read: ReadFunction, kernel: KernelFacts) -> None:
    """Check that every way through a function counts its work often enough."""
    turns = read.turns
    assert turns is not None  # noqa: S101 - found before
    total = sums(read.body, kernel.costs, turns.more)
    forward = ForwardWork(kernel.costs, read.lists)
    paid_at = {each.at: each.whole for each in read.payments.values()}
    for at, statement in enumerate(read.body):
        kernel.watch.step()
        charged = read.charges.get(at, 0)
        branch = isinstance(statement, Instruction) and statement.opcode in ("bra", "brx")
        if charged and not branch:
            forward.counted(charged)
        before = forward.amount
        forward.add(statement)
        forward.amount += paid_at.get(at, 0) + turns.more.get(at, 0)
        if isinstance(statement, Instruction) and branch and at not in turns.loops:
            labels = [name for name in branch_targets(statement, read.lists) if read.labels.get(name, at + 1) <= at]
            if labels:
                first = min(read.labels[name] for name in labels)
                paid = _paid(read, at, labels) if statement.opcode == "bra" else charged
                if paid < min(total[at + 1] - total[first], rules.FUEL):
                    read.refuse("a way backward does not count its work", statement)
            if charged:
                forward.counted(charged)
        if forward.amount > rules.FUEL and (before or at in turns.more):
            read.refuse("too much work between two polls", statement)


def _paid(read: ReadFunction, at: int, labels: list[str]) -> int:
    """Return the work that is counted for each turn of a loop that a branch closes."""
    counter = read.counted.get(at)
    if counter is not None:
        return min((each.amount for each in read.payments.values() if each.counter == counter), default=0)
    payment = read.payments.get(labels[0])
    if payment is None:
        return read.charges.get(at, 0)
    run = read.body[read.labels[labels[0]] + 1 : payment.at]
    straight = not any(map(ends_run, run))
    return payment.amount if straight else 0


def _check_convergence(read: ReadFunction, kernel: KernelFacts) -> None:
    """Check that the threads of a warp cannot wait for each other at different places."""
    function = read.function
    checked = {at for at, name in read.agreed.items() if _is_decided_by(read, at, name)}
    params = {each.name for each in function.params} if function.entry else {rules.LAUNCH}
    found: list[int] = []
    try:
        for rows in (False, True):
            found = hazards(
                read.body,
                read.lists,
                kernel.syncing,
                checked,
                params,
                kernel.watch,
                entry=function.entry,
                rows=rows,
                leaving=read.leaving,
            )
            if not found:
                kernel.whole_rows |= rows
                return
    except TooManyBlocks:
        read.refuse("too many branches between barriers", function)
    read.refuse("threads of a warp may wait for each other for ever", read.body[found[0]])


def _is_decided_by(read: ReadFunction, at: int, predicate: str) -> bool:
    """Return whether nothing but a predicate decides where a statement leads."""
    statement = read.body[at] if at < len(read.body) else None
    guard = statement.guard if isinstance(statement, Instruction) and statement.opcode != "brx" else None
    return guard is not None and guard.predicate.name == predicate
