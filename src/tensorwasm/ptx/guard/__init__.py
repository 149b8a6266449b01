"""The guard: rewrites a kernel so that it can share a GPU context with kernels of other tenants.

What it writes is described by `tensorwasm.ptx.guarded` and read again by `tensorwasm.ptx.verifier`, which alone is
trusted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Final

from tensorwasm.errors import UnsupportedPtx
from tensorwasm.ptx.flow import components, signature
from tensorwasm.ptx.guard.agreements import Narrow, add_agreements, add_presence
from tensorwasm.ptx.guard.arrays import DataImage, VariableMap, callees, place_variables
from tensorwasm.ptx.guard.fences import Fenced, fence
from tensorwasm.ptx.guard.flat import FlatFunction, flatten
from tensorwasm.ptx.guard.growth import Growth
from tensorwasm.ptx.guard.lower import Context, lower
from tensorwasm.ptx.guard.masks import widen_masks
from tensorwasm.ptx.guard.pointers import number_functions, resolve_pointers
from tensorwasm.ptx.guard.polls import Charged, add_charges
from tensorwasm.ptx.guarded import (
    CONST,
    FAMILIES,
    LAUNCH,
    LAUNCH_PARAMS,
    LEAST_VERSION,
    LOCAL,
    MAX_ACCESS_BYTES,
    REGISTERS,
    SHARED,
    SHARED_ALIGN,
    SHARED_BASE,
    TRAP,
    Arrays,
    Width,
)
from tensorwasm.ptx.model import Directive, Function, Instruction, Int, Module, Name, Statement, TargetList, Variable
from tensorwasm.ptx.templates import checks_late, program_registers, prologue, time_check
from tensorwasm.ptx.templates.polls import epilogue, look
from tensorwasm.ptx.verifier.alignment import aligned_registers
from tensorwasm.ptx.verifier.convergence import TooManyBlocks, varying_registers, waits
from tensorwasm.ptx.verifier.costs import MAX_QUICK, ends_run, function_cost, is_quick, sums
from tensorwasm.ptx.verifier.ranges import MOST_STEPS
from tensorwasm.ptx.verifier.turns import find_turns
from tensorwasm.values import NEVER, Deadline
from tensorwasm.watch import Watch

__all__ = ["DataImage", "Guarded", "guard"]

_KEPT_DIRECTIVES: Final = frozenset({"maxntid", "reqntid", "minnctapersm", "maxnreg"})
_DROPPED_DIRECTIVES: Final = frozenset({"noreturn", "pragma"})


@dataclass(frozen=True, slots=True)
class Guarded:
    """A kernel as the guard has written it.

    Attributes:
        module: the kernel and its functions, in the form of `tensorwasm.ptx.guarded`.
        arrays: what the verifier finds in the text, too.
        program_shared_bytes: static shared memory of the program, where `Arrays.dynamic`: a launch has that, what it
            asks for itself, and `Arrays.shared_reserve_bytes`.
        data: variables of the module.
    """

    module: Module
    arrays: Arrays
    program_shared_bytes: int
    data: DataImage


def guard(
    module: Module, shared_base: int = SHARED_BASE, deadline: Deadline = NEVER, width: Width = "narrow"
) -> Guarded:
    """Rewrite a module of one kernel, as `tensorwasm.ptx.extract` returns it.

    Args:
        module: what the kernel reaches; nothing else.
        shared_base: address of the first variable in shared memory.
        deadline: when to stop.
        width: of the windows that it is for.

    Raises:
        UnsupportedPtx: a form that cannot be confined, by its name and line.
        InvokeTimeout: the deadline passed.
    """
    watch = Watch(deadline, "while the kernel was guarded")
    if module.address_size != 64:
        raise UnsupportedPtx("addresses of 32 bits")
    for item in module.items:
        if isinstance(item, Directive) and item.name == "alias":
            raise UnsupportedPtx(".alias", *item.position)
    bodies = [each for each in module.functions() if each.body is not None]
    growth = Growth()
    flats = [flatten(each, growth, watch) for each in bodies]
    numbers = number_functions(module, flats)
    for flat in flats:
        resolve_pointers(flat, numbers, watch)
        widen_masks(flat, watch)
    flats = _callers_first(flats, watch)
    places = place_variables(module.variables(), flats, numbers.numbers, watch)
    context = _context(module, flats, places, shared_base, width)
    lowered = [lower(flat, context, watch) for flat in flats]
    params = _pointer_aligns(module, bodies, deadline)
    written = [
        fence(flat, low, context, aligned_registers(low.body, params if flat.function.entry else {}, watch), watch)
        for flat, low in zip(flats, lowered, strict=True)
    ]
    arrays = _arrays(places, context, written)
    _agree(flats, written, watch)
    costs: dict[str, int] = {}
    made: list[Function] = []
    for flat, body in reversed(list(zip(flats, written, strict=True))):
        made.append(_assemble(flat, body, replace(context, arrays=arrays), costs, params, watch))
    items: list[Function | Variable | Directive] = [*_module_variables(arrays, places), *made]
    kept = tuple(word for word in module.target if word.startswith("sm_"))
    return Guarded(
        Module(max(module.version, LEAST_VERSION), kept, 64, tuple(items)), arrays, places.shared_bytes, places.data
    )


def _agree(flats: list[FlatFunction], written: list[Fenced], watch: Watch) -> None:
    """Add the checks that the threads of warps agree to all functions."""
    syncing, narrow = set[str](), set[str]()
    for flat, body in reversed(list(zip(flats, written, strict=True))):
        here = Narrow(flat.narrow, narrow)
        body.body, body.staying = add_agreements(flat.function, body.body, syncing, here, watch)
        if any(waits(each, syncing) for each in body.body):
            syncing.add(flat.function.name)
        if here.without(body.body) is not None:
            narrow.add(flat.function.name)


def _callers_first(flats: list[FlatFunction], watch: Watch) -> list[FlatFunction]:
    """Return functions so that each comes before those that it calls; recursion is refused."""
    numbers = {flat.function.name: number for number, flat in enumerate(flats)}
    calls = [[numbers[name] for name in callees(flat) if name in numbers] for flat in flats]
    ordered: list[FlatFunction] = []
    for component in components(calls, range(len(calls)), watch):
        first = flats[component[0]]
        if len(component) > 1 or component[0] in calls[component[0]]:
            raise UnsupportedPtx(f"{first.function.name} is recursive", *first.function.position)
        ordered.append(first)
    return ordered[::-1]


def _context(module: Module, flats: list[FlatFunction], places: VariableMap, shared_base: int, width: Width) -> Context:
    converted: set[str] = set()
    spaces: set[str] = set()
    for flat in flats:
        for each in flat.body:
            if isinstance(each, Instruction):
                words = {word.partition("::")[0] for word in each.modifiers}
                spaces |= words
                if each.opcode == "cvta" and "to" not in words:
                    converted |= words
    shared_bytes = 0
    if not places.dynamic and (places.shared_bytes or "shared" in spaces):
        shared_bytes = 16  # the exact size is known when all accesses are
    arrays = Arrays(shared_bytes, places.dynamic, 0, places.local_bytes, places.const_bytes)
    functions = {each.name: each for each in module.functions()}
    generic = tuple(space for space in ("shared", "local") if space in converted)
    return Context(places, functions, arrays, shared_base, generic, width)


def _arrays(places: VariableMap, context: Context, written: list[Fenced]) -> Arrays:
    reserve_bytes = -(-max((body.reserve_bytes for body in written), default=0) // 16) * 16
    if context.arrays.dynamic:
        return replace(context.arrays, shared_reserve_bytes=reserve_bytes)
    if not context.arrays.shared_bytes:
        return context.arrays
    end = max(places.shared_bytes + reserve_bytes, 16)
    return replace(context.arrays, shared_bytes=-(-end // 16) * 16)


def _module_variables(arrays: Arrays, places: VariableMap) -> list[Variable]:
    made: list[Variable] = []
    if arrays.const_bytes:
        values = tuple(map(Int, places.const_image.ljust(arrays.const_bytes, b"\0")))
        made.append(Variable("const", "b8", CONST, align=16, shape=(arrays.const_bytes,), initializer=values))
    if arrays.dynamic:
        made.append(Variable("shared", "b8", SHARED, align=SHARED_ALIGN, shape=(0,), linkage=("extern",)))
    elif arrays.shared_bytes:
        made.append(Variable("shared", "b8", SHARED, align=SHARED_ALIGN, shape=(arrays.shared_bytes,)))
    return made


def _pointer_aligns(module: Module, bodies: list[Function], deadline: Deadline) -> dict[str, int]:
    """Return what launches ensure of the parameters that the kernel uses as pointers: bytes they are multiples of."""
    entry = next(each for each in bodies if each.entry)
    params = signature(module, entry.name, deadline).params
    return {param.name: min(param.access_align_bytes, MAX_ACCESS_BYTES) for param in params if param.pointer}


def _assemble(
    flat: FlatFunction,
    body: Fenced,
    context: Context,
    costs: dict[str, int],
    aligns: dict[str, int],
    watch: Watch,
) -> Function:
    """Return a function of its parts, and note its cost."""
    function, arrays, width = flat.function, context.arrays, context.width
    if not _ends(body.body):  # what stands behind is the guard's
        body.body.append(Instruction("ret"))
    charged, polled = _charged(flat, body, costs, watch)
    if function.entry and checks_late(arrays):
        quick = len(list(takewhile(is_quick, body.body[:MAX_QUICK])))
        charged.body[quick:quick] = time_check(arrays, context.shared_base)
    statements = add_presence(charged.body)
    head: list[Statement] = [*program_registers(flat.registers), *REGISTERS[width]]
    counts = {prefix: body.counts.get(prefix[-1], charged.counters) for prefix in FAMILIES}
    head += [Variable("reg", kind, each, count=counts[each]) for each, kind in FAMILIES.items() if counts[each]]
    if function.entry and arrays.local_bytes:
        head.append(Variable("local", "b8", LOCAL, align=16, shape=(arrays.local_bytes,)))
    head += prologue(
        flat.registers,
        counts,
        function.returns,
        entry=function.entry,
        polled=polled,
        arrays=arrays,
        shared_base=context.shared_base,
        width=width,
    )
    looks = look(arrays, context.shared_base) if function.entry else ()
    end = epilogue(charged.polls, looks=looks, stops=polled, traps=_traps(statements))
    linkage = ("visible",) if function.entry else ()
    return Function(
        function.entry,
        function.name,
        (*(_aligned(param, aligns) if function.entry else param for param in function.params), LAUNCH_PARAMS[width]),
        function.returns,
        linkage,
        _kept_directives(function),
        (*head, *statements, *end),
        function.position,
    )


def _kept_directives(function: Function) -> tuple[Directive, ...]:
    for directive in function.directives:
        if directive.name not in _KEPT_DIRECTIVES and directive.name not in _DROPPED_DIRECTIVES:
            raise UnsupportedPtx(f".{directive.name}", *directive.position)
    return tuple(each for each in function.directives if each.name in _KEPT_DIRECTIVES)


def _charged(flat: FlatFunction, body: Fenced, costs: dict[str, int], watch: Watch) -> tuple[Charged, bool]:
    """Return a function that counts its work, and whether it reads the clock when it begins; note its cost."""
    function, statements = flat.function, body.body
    lists = {each.label: each.targets for each in statements if isinstance(each, TargetList)}
    turns = find_turns(function, statements, lists, sums(statements, costs), watch, most_steps=MOST_STEPS // 2)
    varying = _varying(function, statements, watch)
    made = add_charges(statements, costs, flat.register, varying, body.staying, turns)
    costs[function.name], polled = function_cost(function, statements, costs, turns.more, loops=bool(made.polls))
    return made, polled or function.entry


def _aligned(param: Variable, aligns: dict[str, int]) -> Variable:
    align = aligns.get(param.name, 0)
    return replace(param, pointer=("", align) if align else None, linkage=())


def _varying(function: Function, body: list[Statement], watch: Watch) -> set[str] | None:
    """Return the registers whose values may differ between the threads of a warp, None if it takes too long to tell."""
    lists = {each.label: each.targets for each in body if isinstance(each, TargetList)}
    params = {LAUNCH, *(each.name for each in function.params)} if function.entry else {LAUNCH}
    try:
        return varying_registers(body, lists, params, watch, entry=function.entry)
    except TooManyBlocks:
        return None


def _traps(body: list[Statement]) -> bool:
    trap = (Name(TRAP),)
    return any(isinstance(each, Instruction) and each.opcode == "bra" and each.operands == trap for each in body)


def _ends(statements: list[Statement]) -> bool:
    last = statements[-1] if statements else None
    return isinstance(last, Instruction) and last.guard is None and ends_run(last)
