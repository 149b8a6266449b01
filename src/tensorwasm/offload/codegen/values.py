"""Values, loads and stores of a nest in LLVM's instructions, for one iteration or for several as lanes of vectors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from tensorwasm.offload.codegen.assembly import Assembly, SsaValue, literal, spelled, suffix
from tensorwasm.offload.codegen.iterations import Lanes
from tensorwasm.offload.codegen.linear import Linear, mentions
from tensorwasm.offload.declined import Declined, DeclineReason
from tensorwasm.offload.nest import Constant, Operation
from tensorwasm.offload.opcodes import DIVISIONS, ROWS, WIDTH_BITS
from tensorwasm.offload.program import Expression

_TESTS: Final[Mapping[str, str]] = {"eq": "icmp eq", "le": "icmp sle", "lt": "icmp slt"}
_CHOICES: Final[Mapping[str, str]] = {"min": "smin", "max": "smax"}


@dataclass(frozen=True, slots=True)
class LaneScope:
    """Where values are computed.

    Attributes:
        variables: the program's variables, as scalars; that of the lanes' loop is the first lane's.
        lanes: the loop of which several iterations are computed at once; None if there is one iteration.
        count: how many of its iterations.
        row: number of this iteration of the loops around it, of which several may be computed side by side.
        active: an i1, whether what is computed has an effect; None if it has.
    """

    variables: Mapping[str, SsaValue]
    lanes: Lanes | None = None
    count: int = 1
    row: int = 0
    active: SsaValue | None = None


def extended(
    scope: LaneScope, name: str, value: SsaValue, *, count: int | None = None, row: int | None = None
) -> LaneScope:
    """Return a scope with one variable more, and another count of lanes or number of the row if they are given."""
    variables = {**scope.variables, name: value}
    return replace(scope, variables=variables, count=count or scope.count, row=scope.row if row is None else row)


class Location(NamedTuple):
    """Where a load or a store goes.

    Attributes:
        pointer: what the offset is added to.
        offset_bytes: the first lane's.
        align_bytes: that the address has.
    """

    pointer: str
    offset_bytes: Linear
    align_bytes: int


class ValueWriter:
    """Writes instructions that compute; pointers are to an address space of LLVM's."""

    def __init__(self, asm: Assembly, space: str) -> None:
        self.asm = asm
        self._pointer = f"ptr{space}"

    # ------------------------------------------------------------------------------------------- integers

    def expression(self, expression: Expression, scope: LaneScope, lanes: int = 1) -> SsaValue:
        """Return the value of an expression: of the first lane as a scalar, or of all as a vector of i64."""
        if isinstance(expression, int):
            return literal("i64", expression, lanes)
        if lanes > 1 and not (scope.lanes and mentions(expression, scope.lanes.variable)):
            return self.asm.splat(self.expression(expression, scope), lanes)
        if isinstance(expression, str):
            value = scope.variables[expression]
            return value if lanes == 1 or scope.lanes is None else self._ramp(value, scope.lanes.step, lanes)
        return self._operator(
            expression.operator, [self.expression(operand, scope, lanes) for operand in expression.operands]
        )

    def condition(self, value: SsaValue) -> SsaValue:
        """Return an i1: whether an integer is not 0."""
        zero = literal(value.type, 0, value.lanes).name
        return self.asm.compute(f"icmp ne {value.typed}, {zero}", "i1", value.lanes)

    def form(self, form: Linear, scope: LaneScope, step: int | None = 0, lanes: int = 1) -> SsaValue:
        """Return the value of a form, of the first lane or of all.

        Args:
            form: what to compute.
            scope: where.
            step: what each lane is above the one before; None if that differs.
            lanes: 1 for a scalar, which is the first lane's.
        """
        if lanes > 1 and step is not None:
            return self._ramp(self.form(form, scope), step, lanes)
        total = literal("i64", form.constant, lanes)
        for atom, coefficient in sorted(form.terms, key=repr):
            part = self.expression(atom, scope, lanes)
            if coefficient != 1:
                part = self._binary("mul", part, literal("i64", coefficient, lanes))
            total = self._binary("add", part, total) if total.name != "0" else part
        return total

    def _ramp(self, first: SsaValue, step: int, lanes: int) -> SsaValue:
        """Return a vector of which each element is above the one before it by a step."""
        steps = ", ".join(f"i64 {step * lane}" for lane in range(lanes))
        return self._binary("add", self.asm.splat(first, lanes), SsaValue(f"<{steps}>", "i64", lanes))

    def _binary(self, operator: str, one: SsaValue, other: SsaValue) -> SsaValue:
        return self.asm.compute(f"{operator} {one.typed}, {other.name}", one.type, one.lanes)

    def _operator(self, operator: str, operands: list[SsaValue]) -> SsaValue:
        first, *others = operands
        lanes, whole = first.lanes, spelled("i64", first.lanes)
        if operator == "neg":
            return self._binary("sub", literal("i64", 0, lanes), first)
        if operator == "select":
            chosen = f"select {self.condition(first).typed}, {others[0].typed}, {others[1].typed}"
            return self.asm.compute(chosen, "i64", lanes)
        for other in others:
            if operator in {"floor_div", "mod"}:
                first = self._divided(operator, first, other)
            elif operator in _TESTS:
                bit = self.asm.compute(f"{_TESTS[operator]} {first.typed}, {other.name}", "i1", lanes)
                first = self.asm.compute(f"zext {bit.typed} to {whole}", "i64", lanes)
            elif operator in _CHOICES:
                name = f"@llvm.{_CHOICES[operator]}.{suffix('i64', lanes)}"
                first = self.asm.compute(f"call {whole} {name}({first.typed}, {other.typed})", "i64", lanes)
            else:
                first = self._binary(operator, first, other)
        return first

    def _divided(self, operator: str, value: SsaValue, divisor: SsaValue) -> SsaValue:
        """Return a quotient that is rounded down, or the remainder that belongs to it, which is not negative."""
        lanes, zero = value.lanes, literal("i64", 0, value.lanes)
        rest = self._binary("srem", value, divisor)
        below = self.asm.compute(f"icmp slt {rest.typed}, {zero.name}", "i1", lanes)
        if operator == "mod":
            added = self._binary("add", rest, divisor)
            return self.asm.compute(f"select {below.typed}, {added.typed}, {rest.typed}", "i64", lanes)
        borrow = self.asm.compute(f"sext {below.typed} to {spelled('i64', lanes)}", "i64", lanes)
        return self._binary("add", self._binary("sdiv", value, divisor), borrow)

    # ------------------------------------------------------------------------------------------- values

    def constant(self, value: Constant) -> SsaValue:
        """Return a number of the nest."""
        bits = SsaValue(str(value.bits), f"i{WIDTH_BITS[value.type]}")
        if value.type in {"i32", "i64"}:
            return bits
        return self.asm.compute(f"bitcast {bits.typed} to {spelled(value.type)}", value.type)

    def index(self, form: Linear, kind: str, scope: LaneScope, step: int | None, lanes: int) -> SsaValue:
        """Return an affine expression as a value of the nest."""
        varies = step != 0
        value = self.form(form, scope, step, lanes if varies else 1)
        if kind == "i64":
            return value
        return self.asm.compute(f"trunc {value.typed} to {spelled(kind, value.lanes)}", kind, value.lanes)

    def operation(self, value: Operation, operands: list[SsaValue]) -> SsaValue:
        """Return the result of an instruction.

        Raises:
            Declined: it is not one of `ROWS`, or may trap.
        """
        lanes = max(operand.lanes for operand in operands)
        operands = [self.asm.splat(operand, lanes) for operand in operands]
        if value.opcode.startswith("select"):
            return self._select(value, operands)
        row = ROWS.get(value.opcode)
        if row is None or row.operands != tuple(operand.type for operand in operands) or row.result != value.type:
            raise Declined(DeclineReason.NO_MACHINE_CODE, value.opcode)
        if value.opcode in DIVISIONS:
            _require_divisor(value)
        whole = spelled(value.type, lanes)
        words = {
            "t": whole,
            "s": spelled(operands[0].type, lanes),
            "n": suffix(value.type, lanes),
            "m": suffix(operands[0].type, lanes),
            "mask": literal(value.type, WIDTH_BITS[value.type] - 1, lanes).name,
            "zero": literal(operands[0].type, 0, lanes).name,
            **{kind: spelled(kind, lanes) for kind in ("i8", "i16", "i32")},
        }
        names = [operand.name for operand in operands]
        *before, last = row.lines
        for name, line in zip("ab", before, strict=False):
            words[name] = self.asm.compute(line.format(*names, **words), "i32").name
        result = self.asm.compute(last.format(*names, **words), row.narrow or row.result, lanes)
        return self.asm.compute(f"zext {result.typed} to {whole}", value.type, lanes) if row.narrow else result

    def _select(self, value: Operation, operands: list[SsaValue]) -> SsaValue:
        if [operand.type for operand in operands] != [value.type, value.type, "i32"]:
            raise Declined(DeclineReason.NO_MACHINE_CODE, value.opcode)
        then, otherwise, condition = operands
        chosen = f"select {self.condition(condition).typed}, {then.typed}, {otherwise.typed}"
        return self.asm.compute(chosen, value.type, then.lanes)

    # ------------------------------------------------------------------------------------------- memory

    def load(self, location: Location, kind: str, scope: LaneScope, step: int | None, lanes: int) -> SsaValue:
        """Return what lies in memory, a scalar if all lanes read the same place."""
        size_bytes = WIDTH_BITS[kind] // 8
        if lanes == 1 or step in {0, size_bytes}:
            return self._load(self._address(location, scope), kind, 1 if step == 0 else lanes, location.align_bytes)
        pointers = self._addresses(location, scope, step, lanes)
        return self.asm.gather([self._load(pointer, kind, 1, location.align_bytes) for pointer in pointers])

    def store(self, location: Location, value: SsaValue, scope: LaneScope, step: int | None, lanes: int) -> None:
        """Write to memory."""
        vector = self.asm.splat(value, lanes) if lanes > 1 else value
        if lanes == 1 or step == WIDTH_BITS[value.type] // 8:
            self._store(self._address(location, scope), vector, location.align_bytes)
            return
        for lane, pointer in enumerate(self._addresses(location, scope, step, lanes)):
            self._store(pointer, self.asm.element(vector, lane), location.align_bytes)

    def _load(self, pointer: SsaValue, kind: str, lanes: int, align_bytes: int) -> SsaValue:
        return self.asm.compute(f"load {spelled(kind, lanes)}, {pointer.typed}, align {align_bytes}", kind, lanes)

    def _store(self, pointer: SsaValue, value: SsaValue, align_bytes: int) -> None:
        self.asm.write(f"store {value.typed}, {pointer.typed}, align {align_bytes}")

    def _address(self, location: Location, scope: LaneScope) -> SsaValue:
        constant, rest = location.offset_bytes.constant, Linear(0, location.offset_bytes.terms)
        pointer = self._advanced(SsaValue(location.pointer, self._pointer), self.form(rest, scope))
        return self._advanced(pointer, literal("i64", constant)) if constant else pointer

    def _addresses(self, location: Location, scope: LaneScope, step: int | None, lanes: int) -> list[SsaValue]:
        base = SsaValue(location.pointer, self._pointer)
        if step is not None:
            first = self._address(location, scope)
            return [self._advanced(first, literal("i64", step * lane)) for lane in range(lanes)]
        offsets = self.form(location.offset_bytes, scope, None, lanes)
        return [self._advanced(base, self.asm.element(offsets, lane)) for lane in range(lanes)]

    def _advanced(self, pointer: SsaValue, offset: SsaValue) -> SsaValue:
        return self.asm.compute(f"getelementptr i8, {pointer.typed}, {offset.typed}", self._pointer)


def _require_divisor(value: Operation) -> None:
    divisor = value.operands[1]
    signed = value.opcode.endswith("_s")
    if (
        not isinstance(divisor, Constant)
        or divisor.bits == 0
        or (signed and divisor.bits + 1 == 1 << WIDTH_BITS[divisor.type])
    ):
        raise Declined(DeclineReason.NO_MACHINE_CODE, f"{value.opcode} by what may be 0 or -1")
