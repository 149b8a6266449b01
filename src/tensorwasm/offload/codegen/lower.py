"""What one thread of a kernel does, in LLVM's instructions: the same for the host's threads and for a GPU's."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from math import gcd
from typing import Final

from tensorwasm.offload.codegen.assembly import Assembly, SsaValue, literal, spelled, suffix
from tensorwasm.offload.codegen.iterations import Access, Iteration, in_order, turn_variable
from tensorwasm.offload.codegen.kernel_shape import KernelShape
from tensorwasm.offload.codegen.linear import Linear, linear, mentions
from tensorwasm.offload.codegen.nans import shown_operand
from tensorwasm.offload.codegen.promotion import KeptPlace
from tensorwasm.offload.codegen.sizes import VECTOR_BYTES
from tensorwasm.offload.codegen.values import LaneScope, Location, ValueWriter, extended
from tensorwasm.offload.declined import Declined, DeclineReason
from tensorwasm.offload.nest import (
    Carried,
    Cell,
    Constant,
    Index,
    Input,
    Load,
    Operation,
    SetCell,
    Store,
    TurningScalar,
    Value,
    While,
)
from tensorwasm.offload.opcodes import WIDTH_BITS
from tensorwasm.offload.program import Block, Execute, For, If, NestProgram

POLL_TURNS: Final = 4096
"""Turns of an innermost loop between two looks at whether to stop."""
FEWER: Final = 4
"""By what an unrolled loop's turns are fewer in the one behind it."""

_VECTORS: Final = frozenset({"f32", "f64"})
"""Types in memory of which LLVM may read or write two or four at once, where they are aligned to more than one."""


def memory_type(access: Access) -> str:
    """Return the type of what an access reads or writes in memory."""
    kind, _, name = access.opcode.partition(".")
    bits = re.search(r"\d+", name)
    return f"i{bits[0]}" if bits else kind


class ThreadWriter:
    """Writes what threads do, for one iteration of the parallel loops or for several side by side.

    Pointers are the parameters ``%a<n>`` of arrays and ``%c<n>`` of cells; ``%i<n>`` are inputs.

    Args:
        asm: where to.
        space: how the type of pointers to memory goes on, `` addrspace(1)`` on a GPU.
        program: what is written.
        plan: of the kernel.
        poll: writes a look at whether to stop, for loops in the thread; None if none is wanted.
    """

    def __init__(
        self, asm: Assembly, space: str, program: NestProgram, plan: KernelShape, poll: Callable[[], None] | None = None
    ) -> None:
        self.values = ValueWriter(asm, space)
        self._asm = asm
        self._program = program
        self._plan = plan
        self._poll = poll
        self._on_gpu = bool(space)
        self._arrays = {array.number: array for array in program.arrays}
        self._storage = {storage.cell: storage for storage in program.cells}
        self._private: dict[tuple[int, Cell], tuple[str, int]] = {}
        self._kept: dict[tuple[int, int, Linear], str] = {}
        self._scalars: dict[tuple[int, TurningScalar], str] = {}
        self._active: SsaValue | None = None  # lanes, in a loop of data
        self._nans: dict[int, str] = {}

    def body(self, rows: Sequence[LaneScope], block: Block) -> None:
        """Write what a thread does, for several iterations, which are its rows."""
        self._private.clear()
        for storage in self._program.cells:
            for scope in rows if storage.private else ():
                pointer = self._asm.allocate(storage.cell.type, scope.count)
                self._private[scope.row, storage.cell] = pointer, scope.count
                zero = SsaValue("zeroinitializer", storage.cell.type, scope.count)
                self._asm.set(pointer, zero)
        self._block(block, rows)

    def has_nan(self) -> SsaValue:
        """Return an i1: whether a NaN was seen whose bits are unknown."""
        found = SsaValue("false", "i1")
        for lanes, pointer in self._nans.items():
            bits = self._asm.read(pointer, "i1", lanes)
            if lanes > 1:
                bits = self._asm.compute(f"call i1 @llvm.vector.reduce.or.{suffix('i1', lanes)}({bits.typed})", "i1")
            found = self._asm.compute(f"or {found.typed}, {bits.name}", "i1")
        return found

    def result(self, value: Value, scope: LaneScope) -> SsaValue:
        """Return a value outside all statements, and observe it."""
        found = self._value(value, Iteration((), {}, 1, {}), scope, {})
        if value in self._plan.unknown:
            self._observe(found, scope)
        return found

    # ------------------------------------------------------------------------------------------- control

    def _block(self, block: Block, rows: Sequence[LaneScope]) -> None:
        for part in block:
            if isinstance(part, Execute):
                for scope in rows:
                    self._execute(self._plan.iterations[part], scope)
            elif len(rows) > 1 and self._differs(part, rows):
                for scope in rows:
                    self._part(part, [scope])
            else:
                self._part(part, rows)

    def _differs(self, part: For | If, rows: Sequence[LaneScope]) -> bool:
        """Return whether a bound or a condition is not the same for all rows."""
        controls = (part.first, part.last) if isinstance(part, For) else (part.condition,)
        one = rows[0].variables
        varying = [name for name, value in one.items() if any(value != row.variables[name] for row in rows[1:])]
        return any(mentions(control, name) for control in controls for name in varying)

    def _part(self, part: For | If, rows: Sequence[LaneScope]) -> None:
        if isinstance(part, If):
            condition = self.values.condition(self.values.expression(part.condition, rows[0]))
            with self._asm.when(condition):
                self._block(part.then, rows)
            if part.otherwise:
                negated = self._asm.compute(f"xor {condition.typed}, true", "i1")
                with self._asm.when(negated):
                    self._block(part.otherwise, rows)
            return
        first, last = (self.values.expression(bound, rows[0]) for bound in (part.first, part.last))
        with self._asm.when(self._asm.compute(f"icmp sle {first.typed}, {last.name}", "i1")):
            places = [(scope, place) for place in self._plan.kept.get(id(part), ()) for scope in rows]
            for scope, place in places:
                self._take(place, scope)
            self._turns(part, rows, first, last)
            for scope, place in places:
                self._give_back(place, scope)

    def _turns(self, part: For, rows: Sequence[LaneScope], first: SsaValue, last: SsaValue) -> None:
        """Write all turns of a loop that has one: many at a time as long as there are as many, and then fewer."""
        copies = self._plan.copies.get(id(part), 1)
        if copies == 1:
            innermost = not any(isinstance(inner, For | If) for inner in part.body)
            with self.turns(first, last, part.step, innermost=innermost) as variable:
                self._block(part.body, [extended(scope, part.variable, variable) for scope in rows])
            return
        asm = self._asm
        while copies:
            stride = copies * part.step
            behind = asm.compute(f"add {last.typed}, {part.step}", "i64")
            left = asm.compute(f"sub {behind.typed}, {first.name}", "i64")
            whole = asm.compute(f"udiv {left.typed}, {stride}", "i64")
            done = asm.compute(f"mul {whole.typed}, {stride}", "i64")
            end = asm.compute(f"add {done.typed}, {first.name}", "i64")
            final = asm.compute(f"sub {end.typed}, {stride}", "i64")
            with asm.loop(first, final, literal("i64", stride)) as begin:
                for number in range(copies):
                    variable = asm.compute(f"add {begin.typed}, {number * part.step}", "i64")
                    self._block(part.body, [extended(scope, part.variable, variable) for scope in rows])
            first, copies = end, copies // FEWER or int(copies > 1)

    @contextmanager
    def turns(self, first: SsaValue, last: SsaValue, step: int, *, innermost: bool = False) -> Iterator[SsaValue]:
        """Write a loop of at least one turn, with looks at whether to stop."""
        asm, each = self._asm, literal("i64", step)
        if self._poll is None or not innermost:
            with asm.repeat(first, last, each) as variable:
                if self._poll is not None:
                    self._poll()
                yield variable
            return
        with asm.repeat(first, last, literal("i64", step * POLL_TURNS)) as begin:
            self._poll()
            end = asm.compute(f"add {begin.typed}, {step * (POLL_TURNS - 1)}", "i64")
            end = asm.compute(f"call i64 @llvm.smin.i64({end.typed}, {last.typed})", "i64")
            with asm.repeat(begin, end, each) as variable:
                yield variable

    # ------------------------------------------------------------------------------------------- effects

    def _execute(self, iteration: Iteration, scope: LaneScope) -> None:
        known: dict[Value, SsaValue] = {}
        changes: list[tuple[SetCell, SsaValue]] = []
        for effect in iteration.effects:
            if isinstance(effect, Load):
                known[effect] = self._load(effect, iteration, scope)
                continue
            if isinstance(effect, While):
                self._turn(effect, iteration, scope, known)
                continue
            value = self._value(effect.value, iteration, scope, known)
            if isinstance(effect, SetCell):
                changes.append((effect, value))
            else:
                self._store(effect, value, iteration, scope)
        for change, value in changes:
            self._set_cell(change.cell, value, iteration, scope)

    def _turn(self, loop: While, iteration: Iteration, scope: LaneScope, known: dict[Value, SsaValue]) -> None:
        """Write a loop of data; lanes that are done wait for the others, and keep their scalars."""
        asm, lanes, around = self._asm, scope.count, self._active
        initial = [asm.splat(self._value(value, iteration, scope, known), lanes) for value in loop.initial]
        for scalar, value in zip(loop.scalars, initial, strict=True):
            self._scalars[scope.row, scalar] = asm.allocate(scalar.type, lanes)
            asm.set(self._scalars[scope.row, scalar], value)
        going = asm.splat(SsaValue("true", "i1"), lanes)
        if loop.entered is not None:
            going = asm.splat(self.values.condition(self._value(loop.entered, iteration, scope, known)), lanes)
        if around is not None:
            going = asm.compute(f"and {going.typed}, {around.name}", "i1", lanes)
        with asm.turns(going) as (turn, active, go_on):
            if self._poll is not None:
                due = asm.compute(f"and {turn.typed}, {POLL_TURNS - 1}", "i64")
                with asm.when(asm.compute(f"icmp eq {due.typed}, {POLL_TURNS - 1}", "i1")):
                    self._poll()
            inside, here = dict(known), extended(scope, turn_variable(loop), turn)
            self._active = active
            for effect in loop.effects:
                if isinstance(effect, Load):
                    inside[effect] = self._load(effect, iteration, here)
                else:
                    self._turn(effect, iteration, here, inside)
            again = asm.splat(self.values.condition(self._value(loop.again, iteration, here, inside)), lanes)
            after = [asm.splat(self._value(value, iteration, here, inside), lanes) for value in loop.after]
            self._active = around
            for scalar, value in zip(loop.scalars, after, strict=True):
                pointer = self._scalars[scope.row, scalar]
                old = asm.read(pointer, scalar.type, lanes)
                asm.set(pointer, asm.compute(f"select {active.typed}, {value.typed}, {old.typed}", scalar.type, lanes))
            go_on(asm.compute(f"and {active.typed}, {again.name}", "i1", lanes))

    def _load(self, load: Load, iteration: Iteration, scope: LaneScope) -> SsaValue:
        kept = self._kept.get((scope.row, self._program.array_of[load], iteration.addresses[load]))
        lanes = scope.count * iteration.copies
        if kept is not None:
            return self._asm.read(kept, load.type, lanes)
        location, step = self._location(load, iteration), self._step(iteration.addresses[load], scope, iteration.copies)
        kind = memory_type(load)
        value = self._if_there(kind, location, scope, lambda: self.values.load(location, kind, scope, step, lanes))
        if kind == load.type:
            return value
        extend = "sext" if load.opcode.endswith("_s") else "zext"
        return self._asm.compute(f"{extend} {value.typed} to {spelled(load.type, value.lanes)}", load.type, value.lanes)

    def _store(self, store: Store, value: SsaValue, iteration: Iteration, scope: LaneScope) -> None:
        kept = self._kept.get((scope.row, self._program.array_of[store], iteration.addresses[store]))
        lanes = scope.count * iteration.copies
        if kept is not None:
            self._asm.set(kept, self._asm.splat(value, lanes))
            return
        if store.value in self._plan.unknown:
            self._observe(value, scope)
        kind = memory_type(store)
        if kind != value.type:
            value = self._asm.compute(f"trunc {value.typed} to {spelled(kind, value.lanes)}", kind, value.lanes)
        step = self._step(iteration.addresses[store], scope, iteration.copies)
        with self._if_active(scope):
            self.values.store(self._location(store, iteration), value, scope, step, lanes)

    def _location(self, access: Access, iteration: Iteration) -> Location:
        return self._place(self._program.array_of[access], iteration.addresses[access], access)

    def _place(self, number: int, address: Linear, access: Access) -> Location:
        array, size_bytes = self._arrays[number], access.size_bytes
        # Where the array begins at a multiple of less, in memory that is itself aligned, accesses are aligned to less.
        origin = array.first + array.origin
        first_bytes = origin & -origin or size_bytes
        align_bytes = min(size_bytes, array.granule_bytes, first_bytes)
        if self._on_gpu and memory_type(access) in _VECTORS:
            factors = [factor for _, factor in address.terms]
            known = gcd(VECTOR_BYTES, array.first, array.origin, address.constant, *factors)
            align_bytes = max(align_bytes, known)
        return Location(f"%a{number}", address, align_bytes)

    def _step(self, form: Linear, scope: LaneScope, copies: int) -> int | None:
        """Return what a value grows by from lane to lane; None if that differs."""
        if scope.lanes is None:
            return 0
        stride = form.stride(scope.lanes.variable)
        return None if stride is None else stride * scope.lanes.step // copies

    # ------------------------------------------------------------------------------------------- kept places

    def _take(self, place: KeptPlace, scope: LaneScope) -> None:
        """Read a place into a variable, for the turns of a loop."""
        access, lanes = place.accesses[0], scope.count * place.copies
        kind = memory_type(access)
        pointer = self._asm.allocate(kind, lanes)
        location, step = self._place(place.array, place.address, access), self._kept_step(place, scope)
        with self._if_active(scope):
            value = self.values.load(location, kind, scope, step, lanes)
            self._asm.set(pointer, self._asm.splat(value, lanes))
        self._kept[scope.row, place.array, place.address] = pointer

    def _give_back(self, place: KeptPlace, scope: LaneScope) -> None:
        """Write a variable to its place, after the loop."""
        access, lanes = place.accesses[0], scope.count * place.copies
        pointer = self._kept.pop((scope.row, place.array, place.address))
        value = self._asm.read(pointer, memory_type(access), lanes)
        if any(isinstance(use, Store) and use.value in self._plan.unknown for use in place.accesses):
            self._observe(value, scope)
        location, step = self._place(place.array, place.address, access), self._kept_step(place, scope)
        with self._if_active(scope):
            self.values.store(location, value, scope, step, lanes)

    def _kept_step(self, place: KeptPlace, scope: LaneScope) -> int | None:
        return self._step(place.address, scope, place.copies)

    # ------------------------------------------------------------------------------------------- values

    def _value(self, root: Value, iteration: Iteration, scope: LaneScope, known: dict[Value, SsaValue]) -> SsaValue:
        """Return a value; those in ``known`` are there already, and it grows."""
        for value in in_order([root], known):
            if (number := self._program.numbers.get(value)) is not None:
                known[value] = self.values.index(linear(number), value.type, scope, 0, 1)
            else:
                known[value] = self._leaf(value, iteration, scope, known)
        return known[root]

    def _leaf(self, value: Value, iteration: Iteration, scope: LaneScope, known: Mapping[Value, SsaValue]) -> SsaValue:
        lanes = scope.count * iteration.copies
        match value:
            case Constant():
                return self.values.constant(value)
            case Input():
                return SsaValue(f"%i{value.local}", value.type)
            case Index():
                form = iteration.form(value.affine)
                step = self._step(form, scope, iteration.copies)
                return self.values.index(form, value.type, scope, step, lanes)
            case Carried():
                return self._carried(value, iteration, scope)
            case TurningScalar():
                return self._asm.read(self._scalars[scope.row, value], value.type, scope.count)
            case Operation():
                if (shown := shown_operand(value, self._plan.unknown)) is not None:
                    self._observe(known[shown], scope)
                return self.values.operation(value, [known[operand] for operand in value.operands])
            case Load():
                detail = "a value needs a load that its statement has not made yet"
                raise Declined(DeclineReason.NO_MACHINE_CODE, detail)

    def _carried(self, value: Carried, iteration: Iteration, scope: LaneScope) -> SsaValue:
        cell, lanes = value.cell, scope.count * iteration.copies
        if (private := self._private.get((scope.row, cell))) is not None:
            return self._asm.read(private[0], cell.type, private[1])
        location, step = self._cell(cell, value.counters, iteration, scope)
        return self._if_there(
            cell.type, location, scope, lambda: self.values.load(location, cell.type, scope, step, lanes)
        )

    def _set_cell(self, cell: Cell, value: SsaValue, iteration: Iteration, scope: LaneScope) -> None:
        if (private := self._private.get((scope.row, cell))) is not None:
            self._asm.set(private[0], self._asm.splat(value, private[1]))
            return
        location, step = self._cell(cell, cell.counters, iteration, scope)
        with self._if_active(scope):
            self.values.store(location, value, scope, step, scope.count * iteration.copies)

    def _cell(self, cell: Cell, at: Sequence[int], made: Iteration, scope: LaneScope) -> tuple[Location, int | None]:
        size_bytes = WIDTH_BITS[cell.type] // 8
        form = made.cell_offset(at, self._storage[cell].strides, size_bytes)
        return Location(f"%c{cell.number}", form, size_bytes), self._step(form, scope, made.copies)

    def _if_active(self, scope: LaneScope) -> AbstractContextManager[None]:
        return nullcontext() if scope.active is None else self._asm.when(scope.active)

    def _if_there(self, kind: str, place: Location, scope: LaneScope, load: Callable[[], SsaValue]) -> SsaValue:
        """Return what is loaded; 0 if only this iteration may load it, and it is none."""
        form = place.offset_bytes
        if scope.active is None or not all(form.mentions(loop.variable) for loop in self._plan.loops[-2:]):
            return load()
        pointer = self._asm.allocate(kind)
        with self._asm.when(scope.active):
            self._asm.set(pointer, load())
        return self._asm.read(pointer, kind)

    def _observe(self, value: SsaValue, scope: LaneScope) -> None:
        """Write down whether an element of a float is NaN."""
        if value.lanes not in self._nans:
            self._nans[value.lanes] = self._asm.allocate("i1", value.lanes)
        pointer = self._nans[value.lanes]
        seen = self._asm.read(pointer, "i1", value.lanes)
        found = self._asm.compute(f"fcmp uno {value.typed}, {value.name}", "i1", value.lanes)
        if self._active is not None and self._active.lanes == value.lanes:
            found = self._asm.compute(f"and {found.typed}, {self._active.name}", "i1", value.lanes)
        if scope.active is not None:
            found = self._asm.compute(f"and {found.typed}, {scope.active.name}", "i1")
        self._asm.set(pointer, self._asm.compute(f"or {seen.typed}, {found.name}", "i1", value.lanes))
