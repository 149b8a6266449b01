"""First step of the guard: every access names its state space, and what cannot be confined is refused.

Addresses of variables become offsets in the arrays of `tensorwasm.ptx.guarded`, conversions of addresses become
arithmetic, traps and failed assertions become branches to the stop, calls hand the launch parameter over.

Source: PTX ISA 6.4 (Using Addresses), 9.7.9 (Data Movement and Conversion), 9.7.12 (Control Flow).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from tensorwasm.errors import UnsupportedPtx
from tensorwasm.ptx.guard.arrays import Place, VariableMap
from tensorwasm.ptx.guard.flat import FlatFunction
from tensorwasm.ptx.guard.registers import is_register
from tensorwasm.ptx.guard.taint import tainted
from tensorwasm.ptx.guarded import DATA, FRAME, HIGH, INDEX, LAUNCH_DYNAMIC, PASSED, TRAP, Arrays, Width
from tensorwasm.ptx.layout import address_spaces
from tensorwasm.ptx.model import (
    Address,
    Arguments,
    Function,
    Guard,
    Instruction,
    Int,
    Name,
    Offset,
    Operand,
    Statement,
    TargetList,
    Variable,
    Vector,
    names,
)
from tensorwasm.ptx.symbols import split_call
from tensorwasm.ptx.templates import hand_over, instruction, launch_field, zero_param
from tensorwasm.ptx.verifier.costs import ends_run
from tensorwasm.ptx.verifier.parameters import StoredParams
from tensorwasm.watch import Watch

_HINT: Final = re.compile(r"(?:L1|L2)::.*|level::.*|unified", re.ASCII)
_DROPPED: Final = frozenset({"prefetch", "prefetchu", "applypriority", "discard", "pmevent"})
_ASSERTIONS: Final = frozenset({"__assertfail", "__assert_fail", "abort"})
_SPELLINGS: Final = {"shared::cta": "shared", "param::func": "param", "param::entry": "param"}
_DYNAMIC: Final = Name("%dynamic_smem_size")
_BEFORE_SPACE: Final = frozenset(
    [
        "weak",
        "relaxed",
        "acquire",
        "release",
        "acq_rel",
        "volatile",
        "cta",
        "cluster",
        "gpu",
        "sys",
        "async",
        "sync",
        "aligned",
        "m8n8",
        "x1",
        "x2",
        "x4",
        "trans",
    ]
)
"""Modifiers that stand before the state space."""


@dataclass(frozen=True, slots=True)
class Context:
    """What the functions of a kernel share.

    Attributes:
        arrays: as known before the accesses are: neither size of static shared memory nor reserve.
        shared_base: address of the array in shared memory.
        generic_spaces: state spaces, other than global memory, that generic addresses are made of.
        width: of the kernel.
    """

    places: VariableMap
    functions: dict[str, Function]
    arrays: Arrays
    shared_base: int
    generic_spaces: tuple[str, ...]
    width: Width


@dataclass(slots=True)
class Lowered:
    """A function after this step; how many calls and bounded indices it has."""

    body: list[Statement] = field(default_factory=list)
    calls: int = 0
    indices: int = 0


def lower(flat: FlatFunction, context: Context, watch: Watch) -> Lowered:
    """Return the function with explicit state spaces.

    Raises:
        UnsupportedPtx: a form that cannot be confined, by its name.
        InvokeTimeout: the watch's deadline passed.
    """
    work = _Lowering(flat, context, watch)
    for statement in watch.over(flat.body):
        if not isinstance(statement, Instruction):
            work.out.append(statement)
        elif statement.opcode not in _DROPPED:
            try:
                work.instruction(statement)
            except UnsupportedPtx as error:
                raise UnsupportedPtx(error.message, *statement.position) from None
    return work.made


class _Lowering:
    def __init__(self, flat: FlatFunction, context: Context, watch: Watch) -> None:
        self.made = Lowered()
        self.out = self.made.body
        self._flat = flat
        self._context = context
        self._lists = {each.label: len(each.targets) for each in flat.body if isinstance(each, TargetList)}
        self._params = {each.name for each in (*flat.function.params, *flat.function.returns)}
        self._variables = {each.name: each for each in flat.body if isinstance(each, Variable)}
        self._params |= self._variables.keys()
        self._tainted = tainted(flat, watch) if context.generic_spaces else set[str]()

    def instruction(self, statement: Instruction) -> None:
        """Lower one instruction."""
        handle = _HANDLERS.get(statement.opcode)
        if handle is not None:
            handle(self, statement)
        elif any(isinstance(operand, Address) for operand in statement.operands):
            self.access(self._bounded_copy(_plain(statement)))
        else:
            self.out.append(statement)

    def _emit(self, mnemonic: str, *operands: Operand) -> None:
        self.out.append(instruction(mnemonic, *operands))

    def _temporary(self, bits: int = 64) -> Name:
        return self._flat.register(bits)

    # ------------------------------------------------------------------------------------------- accesses

    def _bounded_copy(self, statement: Instruction) -> Instruction:
        """Bound how much an asynchronous copy reads."""
        operands = statement.operands
        if statement.opcode != "cp" or len(operands) != 4 or not isinstance(operands[3], Name):
            return statement
        bounded = self._index(operands[3], operands[2])
        made = (*operands[:3], bounded)
        return Instruction("cp", statement.modifiers, made, statement.guard, statement.position)

    def _index(self, index: Operand, most: Operand) -> Name:
        bounded = Name(f"{INDEX}{self.made.indices}")
        self.made.indices += 1
        self._emit("min.u32", bounded, index, most)
        return bounded

    def access(self, statement: Instruction) -> None:
        """Give a load, store, copy or atomic operation its state spaces."""
        at = [index for index, operand in enumerate(statement.operands) if isinstance(operand, Address)]
        for index, space in zip(at, address_spaces(statement, len(at)), strict=False):
            address = statement.operands[index]
            assert isinstance(address, Address)  # noqa: S101 - chosen so
            if address.coordinates:
                raise UnsupportedPtx("textures and tensors")
            if space == "param" and not (isinstance(address.base, Name) and address.base.name in self._params):
                raise UnsupportedPtx("parameters at computed places")
            if space == "generic":
                self._generic(statement, index, address)
                return
        self.out.append(statement)

    def _generic(self, statement: Instruction, index: int, address: Address) -> None:
        base = address.base
        if statement.opcode in ("ldmatrix", "stmatrix") and isinstance(base, Name):
            pointer = self._temporary()
            self._to_space("shared", pointer, base)
            self._put(statement, index, "shared", Address(pointer, address.offset), statement.guard)
        elif isinstance(base, Name) and self.place(base) is not None:
            place = self.place(base)
            assert place is not None  # noqa: S101 - just asked
            self._put(statement, index, place.space, address, statement.guard)
        elif isinstance(base, Name) and base.name in self._tainted:
            self._each_space(statement, index, base, address.offset)
        else:
            self._put(statement, index, "global", address, statement.guard)

    def _each_space(self, statement: Instruction, index: int, base: Name, offset: int) -> None:
        """Write an access once for each state space that its generic address may be of."""
        whole, rest = base, self._temporary(1)
        if offset:
            whole = self._temporary()
            self._emit("add.s64", whole, base, Int(offset))
        if statement.guard is None:
            self._emit("setp.eq.u32", rest, Int(0), Int(0))
        else:
            self._emit("not.pred" if statement.guard.negated else "mov.pred", rest, statement.guard.predicate)
        for space in self._context.generic_spaces:
            inside, both, outside = (self._temporary(1) for _ in range(3))
            pointer = self._temporary()
            self._emit(f"isspacep.{space}", inside, whole)
            self._emit("and.pred", both, inside, rest)
            self._emit("not.pred", outside, inside)
            self._emit("and.pred", rest, rest, outside)
            self._to_space(space, pointer, whole)
            self._put(statement, index, space, Address(pointer), Guard(both))
        self._put(statement, index, "global", Address(whole), Guard(rest))

    def _put(self, statement: Instruction, index: int, space: str, address: Address, when: Guard | None) -> None:
        words = [word for word in statement.modifiers if space == "global" or word != "nc"]
        at = next((at for at, word in enumerate(words) if word not in _BEFORE_SPACE), len(words))
        operands = (*statement.operands[:index], address, *statement.operands[index + 1 :])
        made = Instruction(statement.opcode, (*words[:at], space, *words[at:]), operands, when, statement.position)
        self.out.append(made)

    # ------------------------------------------------------------------------------------------ addresses

    def place(self, base: Name) -> Place | None:
        """Return the place of a variable, None for a register."""
        if is_register(base.name):
            return None
        return self._context.places.find(self._flat.function.name, base.name)

    def _symbol(self, operand: Operand) -> tuple[Place, int] | None:
        """Return the place of a variable whose address an operand is, and the offset in it."""
        base = operand.base if isinstance(operand, Offset) else operand
        if not isinstance(base, Name) or base.component is not None:
            return None
        place = self.place(base)
        return None if place is None else (place, operand.offset if isinstance(operand, Offset) else 0)

    def _load_symbol(self, target: Operand, symbol: tuple[Place, int], bits: int) -> None:
        place, offset = symbol
        value = Int((place.offset + offset) & 0xFFFFFFFF)
        if place.space != "global":
            self._emit(f"mov.u{bits}", target, value)
            return
        low = self._temporary(32)
        self._emit("add.u32", low, DATA, value)
        self._emit("mov.b32", target, low) if bits == 32 else self._emit("mov.b64", target, Vector((low, HIGH)))

    def move(self, statement: Instruction) -> None:
        """Lower a move of a variable's address."""
        target = statement.operands[0]
        symbol = self._symbol(statement.operands[1]) if len(statement.operands) == 2 else None
        if symbol is None:
            named = {name for operand in statement.operands for name in names(operand)}
            if not named.isdisjoint(self._context.functions) or not named.isdisjoint(self._params):
                raise UnsupportedPtx("the address of a function or a parameter")
            if statement.operands[1:] == (_DYNAMIC,):
                statement = _guarded(instruction("ld.param.u32", target, launch_field(LAUNCH_DYNAMIC)), statement)
            self.out.append(statement)
            return
        bits = 64 if statement.modifiers[-1].endswith("64") else 32
        if statement.guard is None:
            self._load_symbol(target, symbol, bits)
        else:
            made = self._temporary()
            self._load_symbol(made, symbol, 64)
            word = "mov.b64" if bits == 64 else "cvt.u32.u64"
            self.out.append(_guarded(instruction(word, target, made), statement))

    def convert(self, statement: Instruction) -> None:
        """Lower a conversion between generic addresses and those of a state space."""
        words = [word.partition("::")[0] for word in statement.modifiers if word != "to"]
        space, back = words[0], "to" in statement.modifiers
        target, source = statement.operands
        if words[-1] != "u64":
            raise UnsupportedPtx("addresses of 32 bits")
        symbol = self._symbol(source)
        if symbol is not None:
            source = self._temporary()
            self._load_symbol(source, symbol, 64)
        made = source
        if space in ("shared", "local"):
            made = self._temporary()
            if back:
                self._to_space(space, made, source)
            else:
                self._emit("add.s64", made, source, self._start(space))
                self._emit(f"cvta.{space}.u64", made, made)
        elif space != "global":
            raise UnsupportedPtx(f"generic addresses of {space} memory")
        self.out.append(_guarded(instruction("mov.b64", target, made), statement))

    def _to_space(self, space: str, target: Name, source: Operand) -> None:
        """Convert a generic address to an offset in the kernel's array of a state space."""
        made = self._temporary()
        self._emit(f"cvta.to.{space}.u64", made, source)
        self._emit("sub.s64", target, made, self._start(space))

    def _start(self, space: str) -> Operand:
        if space == "shared":
            return Int(self._context.shared_base)
        start = self._temporary()
        self._emit("cvt.u64.u32", start, FRAME)
        return start

    # -------------------------------------------------------------------------------------------- control

    def branch(self, statement: Instruction) -> None:
        """Drop the promise that all threads go the same way."""
        modifiers = tuple(word for word in statement.modifiers if word != "uni")
        self.out.append(
            Instruction(statement.opcode, modifiers, statement.operands, statement.guard, statement.position)
        )

    def indexed_branch(self, statement: Instruction) -> None:
        """Bound the index of a branch through a list of labels."""
        index, targets = statement.operands
        assert isinstance(targets, Name)  # noqa: S101 - checked when it was parsed
        bounded = self._index(index, Int(self._lists[targets.name] - 1))
        self.out.append(Instruction("brx", ("idx",), (bounded, targets), statement.guard, statement.position))

    def trap(self, statement: Instruction) -> None:
        """Make a trap an orderly stop."""
        self.out.append(_guarded(instruction("bra", Name(TRAP)), statement))

    def call(self, statement: Instruction) -> None:
        """Hand the launch parameter to a function of the module."""
        at, taken, given = split_call(statement)
        callee = statement.operands[at]
        assert isinstance(callee, Name)  # noqa: S101 - as `split_call` says
        if callee.name in _ASSERTIONS:
            self.trap(statement)
            return
        function = self._context.functions.get(callee.name)
        if function is None or function.body is None:
            raise UnsupportedPtx("a call through a pointer" if function is None else f"the function {callee.name}")
        self._fill(given)
        name = f"{PASSED}{self.made.calls}"
        self.made.calls += 1
        self.out.extend(hand_over(name, self._context.arrays, self._context.width))
        arguments = Arguments((*given, Name(name)))
        operands = (Arguments(taken), callee, arguments) if taken else (callee, arguments)
        self.out.append(_guarded(Instruction("call", (), operands), statement))

    def _fill(self, given: tuple[Operand, ...]) -> None:
        """Store 0 in arguments of a call that may not be stored as a whole right before it, such as padding."""
        start = len(self.out)
        while start and not (ends_run(self.out[start - 1]) or _is_call(self.out[start - 1])):
            start -= 1
        stored, wanted = StoredParams(), {each.name for each in given if isinstance(each, Name)}
        run, self.out[start:] = self.out[start:], []
        for statement in run:
            stored.add(statement)
        for statement in run:
            self.out.append(statement)
            if isinstance(statement, Variable) and statement.name in wanted:
                wanted.discard(statement.name)
                if not stored.holds(statement):
                    cleared = zero_param(statement)
                    self._flat.growth.add(len(cleared))
                    self.out += cleared
        # What is declared further away may have been stored there: 0 would be wrong.
        if not all(stored.holds(self._variables[name]) for name in wanted if name in self._variables):
            raise UnsupportedPtx("an argument that is not stored right before the call")

    def policy(self, statement: Instruction) -> None:
        """Drop a cache policy; what would use it does not."""
        self._emit("mov.b64", statement.operands[0], Int(0))


def _is_call(statement: Statement) -> bool:
    return isinstance(statement, Instruction) and statement.opcode == "call"


def _guarded(made: Instruction, by: Instruction) -> Instruction:
    return Instruction(made.opcode, made.modifiers, made.operands, by.guard, by.position)


def _plain(statement: Instruction) -> Instruction:
    """Return an access without cache hints; the policy that one names is its last operand."""
    if "::" not in statement.mnemonic:
        return statement
    operands = statement.operands[:-1] if "L2::cache_hint" in statement.modifiers else statement.operands
    words = tuple(_SPELLINGS.get(word, word) for word in statement.modifiers if not _HINT.fullmatch(word))
    return Instruction(statement.opcode, words, operands, statement.guard, statement.position)


_HANDLERS: Final[dict[str, Callable[[_Lowering, Instruction], None]]] = {
    "mov": _Lowering.move,
    "cvta": _Lowering.convert,
    "bra": _Lowering.branch,
    "ret": _Lowering.branch,
    "brx": _Lowering.indexed_branch,
    "trap": _Lowering.trap,
    "call": _Lowering.call,
    "createpolicy": _Lowering.policy,
}
