"""One code for programs that differ in sizes: the numbers that depend on these become arguments of the code."""

from __future__ import annotations

import hashlib
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, TypeVar

from tensorwasm.offload.codegen.arguments import ProgramArguments, arguments_of, known_results
from tensorwasm.offload.codegen.iterations import Access, in_order, statements_of
from tensorwasm.offload.codegen.linear import MAX_DEPTH
from tensorwasm.offload.declined import Declined, DeclineReason
from tensorwasm.offload.nest import (
    Carried,
    Constant,
    Effect,
    Index,
    Input,
    Load,
    Operation,
    SetCell,
    Store,
    TurningScalar,
    Value,
    While,
    accesses_of,
    values_of,
)
from tensorwasm.offload.opcodes import WIDTH_BITS
from tensorwasm.offload.program import (
    Array,
    Block,
    CellStorage,
    Execute,
    Expression,
    For,
    HostLoop,
    If,
    Kernel,
    NestProgram,
)

LEAST_SIZE: Final = 16
"""Smaller numbers stay in the code: short loops are unrolled."""
MOST_SIZES: Final = 64
"""Of a program; further numbers stay in its code."""
MOST_CODES: Final = 256
"""Codes that are remembered; the one that was used longest ago is forgotten first."""

_COMPARES: Final = re.compile(r"i(?:32|64)\.(?:eq|ne|lt|gt|le|ge)(?:_[su])?")
VECTOR_BYTES: Final = 16
"""The most that an access of a GPU reads or writes, and is aligned to."""
_WORD: Final = 4

_Code = TypeVar("_Code")


@dataclass(frozen=True, slots=True, eq=False)
class SizedProgram:
    """What a run needs to know of a program, apart from its code.

    Attributes:
        steps: its kernels have no bodies.
        sizes: values of the variables in steps and code.
        known: results that are numbers, as bits by local.
    """

    steps: tuple[HostLoop | Kernel, ...]
    arguments: ProgramArguments
    sizes: Mapping[str, int]
    known: Mapping[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class MadePlan:
    """A program that is planned, for a target.

    Attributes:
        fingerprint: of the code.
        code: for the target; None if it is known already.
        analysed_ns: what it took to plan it; 0 for one that was kept.
        compiled_ns: what it took to make the code.
    """

    program: SizedProgram
    fingerprint: bytes
    code: Any
    analysed_ns: int = 0
    compiled_ns: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class ReadyPlan(Generic[_Code]):
    """A program, with code of it or of one that differs in sizes, and what it took to make both (`MadePlan`)."""

    program: SizedProgram
    code: _Code
    analysed_ns: int = 0
    compiled_ns: int = 0


def make_plan(
    program: NestProgram,
    compile_code: Callable[[NestProgram], object],
    known: Container[bytes],
    *,
    vectors: bool = False,
) -> MadePlan:
    """Compile a program unless the fingerprint of its code is known; raise `Declined` if it cannot be compiled.

    Args:
        program: the program.
        compile_code: makes its code.
        known: fingerprints of code that need not be made.
        vectors: the code depends on where arrays begin among `VECTOR_BYTES`, as a GPU's does.
    """
    sized = with_sizes(program, vectors=vectors)
    key = fingerprint(sized, vectors=vectors)
    code = None if key in known else compile_code(sized)
    return MadePlan(SizedProgram(_bare(sized.steps), arguments_of(sized), sized.sizes, known_results(sized)), key, code)


def _number_of(value: Value, *, is_compared: bool) -> int | None:
    if isinstance(value, Index) and not value.affine.terms:
        return value.affine.constant
    if not is_compared or not isinstance(value, Constant):
        return None
    return value.bits - (1 << WIDTH_BITS["i64"]) if value.bits >> (WIDTH_BITS["i64"] - 1) else value.bits


def _bare(steps: Sequence[HostLoop | Kernel]) -> tuple[HostLoop | Kernel, ...]:
    return tuple(
        replace(step, body=_bare(step.body)) if isinstance(step, HostLoop) else replace(step, body=()) for step in steps
    )


class LoadedCodes(Generic[_Code]):
    """Loaded code of a module's plans, by its fingerprint. Thread-safe.

    Args:
        load: makes code ready to run; may raise `Declined`.
    """

    def __init__(self, load: Callable[[Any], _Code]) -> None:
        self._load = load
        self._lock = threading.Lock()
        self._codes: OrderedDict[bytes, _Code] = OrderedDict()

    def known(self) -> frozenset[bytes]:
        """Return the fingerprints of what is there."""
        with self._lock:
            return frozenset(self._codes)

    def ready(self, made: MadePlan) -> ReadyPlan[_Code] | None:
        """Return a plan with its code; None if that was forgotten since it was known."""
        with self._lock:
            code = self._codes.get(made.fingerprint)
        if code is None:
            if made.code is None:
                return None
            code = self._load(made.code)
        with self._lock:
            self._codes[made.fingerprint] = code
            self._codes.move_to_end(made.fingerprint)
            if len(self._codes) > MOST_CODES:
                self._codes.popitem(last=False)
        return ReadyPlan(made.program, code, made.analysed_ns, made.compiled_ns)


def with_sizes(program: NestProgram, *, vectors: bool = False) -> NestProgram:
    """Return a program that does the same, with variables for larger numbers in bounds, conditions and cells' strides.

    Origins are those of first accesses, so that arrays that are run through from their end are alike too.

    Args:
        program: the program.
        vectors: origins of arrays of words are multiples of `VECTOR_BYTES`.

    Raises:
        Declined: it is nested too deep.
    """
    sizes = _Sizes(program.sizes)
    steps = tuple(sizes.step(step) for step in program.steps)
    cells = tuple(each if each.private else replace(each, strides=sizes.strides(each)) for each in program.cells)
    arrays = tuple(
        replace(each, origin=_origin(program, each, VECTOR_BYTES if vectors and each.granule_bytes >= _WORD else 1))
        for each in program.arrays
    )
    numbers = {**program.numbers, **sizes.numbers(program)}
    return replace(program, steps=steps, cells=cells, arrays=arrays, sizes=sizes.values, numbers=numbers)


def _origin(program: NestProgram, array: Array, align_bytes: int) -> int:
    """Return where the first access lies in its first iteration, or a little before; 0 if that is not in the array."""
    for statement, _ in statements_of(program.nest.body):
        for access in accesses_of(statement.effects):
            if program.array_of.get(access) == array.number:
                origin = access.pointer.constant + access.offset + program.wraps[access] - array.first
                return origin - origin % align_bytes if 0 <= origin < array.size_bytes else 0
    return 0


class _Sizes:
    """Replaces numbers, each by a variable of its own."""

    def __init__(self, known: Mapping[str, int]) -> None:
        self.values = dict(known)

    def step(self, step: HostLoop | Kernel, depth: int = 0) -> HostLoop | Kernel:
        """Return launches without larger numbers."""
        _check(depth)
        if isinstance(step, Kernel):
            return replace(step, body=self._block(step.body, depth + 1))
        first, last = self._expression(step.first, depth + 1), self._expression(step.last, depth + 1)
        return replace(step, first=first, last=last, body=tuple(self.step(each, depth + 1) for each in step.body))

    def _block(self, block: Block, depth: int) -> Block:
        _check(depth)
        return tuple(self._part(part, depth + 1) for part in block)

    def _part(self, part: For | If | Execute, depth: int) -> For | If | Execute:
        match part:
            case For():
                first, last = self._expression(part.first, depth), self._expression(part.last, depth)
                return replace(part, first=first, last=last, body=self._block(part.body, depth))
            case If():
                condition = self._expression(part.condition, depth)
                then, otherwise = self._block(part.then, depth), self._block(part.otherwise, depth)
                return replace(part, condition=condition, then=then, otherwise=otherwise)
        return part

    def strides(self, storage: CellStorage) -> tuple[int | str, ...]:
        """Return strides without larger numbers."""
        return tuple(self._number(stride) if isinstance(stride, int) else stride for stride in storage.strides)

    def numbers(self, program: NestProgram) -> dict[Value, str]:
        """Return variables for the larger numbers that values are or are compared with, one for each number.

        Values of results, which are computed outside the steps, have none.
        """
        effects = [effect for statement, _ in statements_of(program.nest.body) for effect in statement.effects]
        results = set(in_order(list(program.nest.results.values())))
        found: dict[Value, str] = {}
        names: dict[int, int | str] = {}
        for value in in_order(list(values_of(effects))):
            compared = value.operands if isinstance(value, Operation) and _COMPARES.fullmatch(value.opcode) else ()
            for each in (value, *compared):
                number = _number_of(each, is_compared=each is not value)
                if number is None or each in program.numbers or each in results:
                    continue
                if number not in names:
                    names[number] = self._number(number)
                name = names[number]
                found |= {each: name} if isinstance(name, str) else {}
        return found

    def _number(self, number: int) -> int | str:
        if abs(number) < LEAST_SIZE or len(self.values) == MOST_SIZES:
            return number
        name = f"size{len(self.values)}"
        self.values[name] = number
        return name

    def _expression(self, expression: Expression, depth: int) -> Expression:
        _check(depth)
        if isinstance(expression, int):
            return self._number(expression)
        if isinstance(expression, str) or expression.operator in {"mul", "floor_div", "mod"}:
            return expression  # factors are strides, and divisors are constants
        return replace(expression, operands=tuple(self._expression(each, depth + 1) for each in expression.operands))


def fingerprint(program: NestProgram, *, vectors: bool = False) -> bytes:
    """Return a hash of all that a program's code depends on, which the values of its sizes are not."""
    arrays = [
        (each.number, each.granule_bytes, _alignment(each, vectors=vectors), each.read, each.written)
        for each in program.arrays
    ]
    cells = [
        (each.cell.number, each.cell.type, each.cell.counters, None if each.private else each.strides)
        for each in program.cells
    ]
    described = _Described(program)
    described.parts += [program.steps, tuple(program.sizes), arrays, cells]
    for statement, counters in statements_of(program.nest.body):
        described.parts.append((statement.number, counters))
        for effect in statement.effects:
            described.effect(effect)
    for local, value in sorted(program.nest.results.items()):
        if not isinstance(value, Constant | Index):
            described.parts.append((local, value.type, described.value(value)))
    return hashlib.sha256("\n".join(map(repr, described.parts)).encode()).digest()


class _Described:
    """What effects and values of a program are, in an order in which values have numbers before they are used."""

    def __init__(self, program: NestProgram) -> None:
        self.parts: list[object] = []
        self._program = program
        self._origins = {array.number: array.first + array.origin for array in program.arrays}
        self._numbers: dict[Value, int] = {}
        self._scalars: dict[TurningScalar, int] = {}

    def effect(self, effect: Effect) -> None:
        match effect:
            case Load():
                self.parts.append(("load", self.value(effect)))
            case Store():
                self.parts.append((self._place(effect), self.value(effect.value)))
            case SetCell():
                self.parts.append(("cell", effect.cell.number, self.value(effect.value)))
            case While():
                self._turns(effect)

    def _turns(self, loop: While) -> None:
        before = [self.value(value) for value in (loop.entered, *loop.initial) if value is not None]
        self._scalars |= {scalar: len(self._scalars) + place for place, scalar in enumerate(loop.scalars)}
        scalars = [self._scalars[scalar] for scalar in loop.scalars]
        self.parts.append(
            ("while", loop.counter, loop.turns and loop.turns.terms, loop.entered is None, scalars, before)
        )
        for effect in loop.effects:
            self.effect(effect)
        self.parts.append(("again", self.value(loop.again), [self.value(value) for value in loop.after]))

    def value(self, root: Value) -> int:
        """Return the number of a value."""
        for value in in_order([root], self._numbers):
            self.parts.append((value.type, self._program.numbers.get(value) or self._told(value)))
            self._numbers[value] = len(self._numbers)
        return self._numbers[root]

    def _told(self, value: Value) -> object:
        match value:
            case Constant() | Input():
                return type(value), value.bits if isinstance(value, Constant) else value.local
            case Index():
                return value.affine
            case Carried():
                return "cell", value.cell.number, value.counters
            case TurningScalar():
                return "scalar", self._scalars[value]
            case Load():
                return self._place(value)
        return value.opcode, [self._numbers[operand] for operand in value.operands]

    def _place(self, access: Access) -> tuple[object, ...]:
        number = self._program.array_of.get(access)
        if number is None:  # of a statement that never runs
            return (access.opcode,)
        offset = access.pointer.constant + access.offset + self._program.wraps[access] - self._origins[number]
        return access.opcode, number, offset, access.pointer.terms


def _alignment(array: Array, *, vectors: bool) -> tuple[int, ...]:
    origin = array.first + array.origin
    plain = min(origin & -origin or array.granule_bytes, array.granule_bytes)
    return (plain, array.first % VECTOR_BYTES, array.origin % VECTOR_BYTES) if vectors else (plain,)


def _check(depth: int) -> None:
    if depth > MAX_DEPTH:
        raise Declined(DeclineReason.TOO_LARGE, f"loops or expressions are nested more than {MAX_DEPTH} deep")
