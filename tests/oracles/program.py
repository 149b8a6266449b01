"""Runs a `NestProgram`, the threads of a kernel in any order, and finds what threads may not do, whatever the order."""

from __future__ import annotations

import operator
import random
from collections.abc import Iterator, Mapping
from functools import reduce

from oracles.nest import Instance, Machine, Trace, contains, evaluate, statements
from tensorwasm.offload.nest import Cell, Load, Statement, Store
from tensorwasm.offload.program import Array, Block, Execute, Expression, For, HostLoop, If, Kernel, NestProgram


class Violation(Exception):
    """A program breaks a rule of `NestProgram`."""


_MANY = -1
_OPERATORS = {
    "add": lambda *values: sum(values),
    "sub": operator.sub,
    "mul": lambda *values: reduce(operator.mul, values),
    "neg": operator.neg,
    "min": min,
    "max": max,
    "floor_div": operator.floordiv,
    "mod": operator.mod,
    "eq": lambda a, b: int(a == b),
    "le": lambda a, b: int(a <= b),
    "lt": lambda a, b: int(a < b),
    "and": lambda *values: int(all(values)),
    "or": lambda *values: int(any(values)),
    "select": lambda condition, then, otherwise: then if condition else otherwise,
}


def compute(expression: Expression, variables: Mapping[str, int]) -> int:
    if isinstance(expression, int):
        return expression
    if isinstance(expression, str):
        return variables[expression]
    operands = [compute(operand, variables) for operand in expression.operands]
    if expression.operator in {"floor_div", "mod"}:
        divisor = expression.operands[1]
        if not isinstance(divisor, int) or divisor < 1:
            raise Violation(f"{expression.operator} by {divisor}")
    value = _OPERATORS[expression.operator](*operands)
    if not -1 << 63 <= value < 1 << 63:
        raise Violation(f"{expression} is {value}")
    return value


class _Accesses:
    """Which thread of a kernel touched what."""

    def __init__(self) -> None:
        self.writer: dict[object, int] = {}
        self.reader: dict[object, int] = {}

    def read(self, thread: int, place: object) -> None:
        if self.writer.get(place, thread) != thread:
            raise Violation(f"threads {self.writer[place]} and {thread} write and read {place}")
        if self.reader.setdefault(place, thread) != thread:
            self.reader[place] = _MANY

    def write(self, thread: int, place: object) -> None:
        for others in (self.writer, self.reader):
            if others.get(place, thread) != thread:
                raise Violation(f"threads {others[place]} and {thread} access {place}, which {thread} writes")
        self.writer[place] = thread


class _Device(Machine):
    def __init__(self, program: NestProgram, values: Mapping[int, int], memory: bytearray, seed: int) -> None:
        super().__init__(program.nest, values, memory)
        self.program = program
        self.random = random.Random(seed)
        self.statements = {statement.number: (statement, around) for statement, around in statements(program.nest.body)}
        self.arrays = {array.number: array for array in program.arrays}
        self.storage = {storage.cell: storage for storage in program.cells}
        self.elements: dict[tuple[Cell, int], tuple[int, Instance]] = {}
        self.registers: dict[Cell, tuple[int, Instance]] = {}
        self.private_kernel: dict[Cell, int] = {}
        self.kernel, self.thread, self.accesses = -1, 0, _Accesses()

    # ----------------------------------------------------------------------------------------------------------- memory

    def address(self, access: Load | Store, counters: Mapping[int, int]) -> int:
        wrap = self.program.wraps[access]
        first = evaluate(access.pointer, counters) + wrap + access.offset
        if wrap % (1 << 32) or first != super().address(access, counters):
            raise Violation(f"{access.opcode} at {first}, which should be {super().address(access, counters)}")
        array = self.arrays[self.program.array_of[access]]
        last = first + access.size_bytes
        if not array.first <= first <= last <= array.first + array.size_bytes:
            raise Violation(f"{access.opcode} at {first} is outside of {array}")
        if (first - array.first) % array.granule_bytes or access.size_bytes % array.granule_bytes:
            raise Violation(f"{access.opcode} at {first} has not the granule of {array}")
        is_load = isinstance(access, Load)
        if not (array.read if is_load else array.written):
            raise Violation(f"{access.opcode} at {first} is not what {array} is for")
        note = self.accesses.read if is_load else self.accesses.write
        for place in range(first, last):
            note(self.thread, place)
        return first

    def _element(self, cell: Cell, at: tuple[int, ...]) -> tuple[Cell, int] | None:
        """Return the key of a cell in scratch memory, or None if it is private."""
        storage = self.storage[cell]
        if storage.private:
            if self.private_kernel.setdefault(cell, self.kernel) != self.kernel:
                raise Violation(f"private cell {cell.number} in kernels {self.private_kernel[cell]} and {self.kernel}")
            return None
        strides = [self.program.sizes.get(stride, stride) for stride in storage.strides]
        index = sum(value * stride for value, stride in zip(at, strides, strict=True))
        if not 0 <= index < storage.count:
            raise Violation(f"element {index} of {storage.count} of cell {cell.number}")
        return cell, index

    def get_cell(self, cell: Cell, at: tuple[int, ...]) -> tuple[int, Instance]:
        key = self._element(cell, at)
        if key is not None:
            self.accesses.read(self.thread, key)
        found = self.registers.get(cell) if key is None else self.elements.get(key)
        if found is None:
            raise Violation(f"cell {cell.number} is used before it is set")
        return found

    def set_cell(self, cell: Cell, at: tuple[int, ...], bits: int, by: Instance) -> None:
        key = self._element(cell, at)
        if key is None:
            self.registers[cell] = bits, by
        else:
            self.accesses.write(self.thread, key)
            self.elements[key] = bits, by

    # ------------------------------------------------------------------------------------------------------------ order

    def steps(self, steps: tuple[HostLoop | Kernel, ...], variables: dict[str, int]) -> None:
        for step in steps:
            if isinstance(step, HostLoop):
                for value in range(compute(step.first, variables), compute(step.last, variables) + 1):
                    self.steps(step.body, {**variables, step.variable: value})
                continue
            threads = list(_threads(step.body, variables))
            self.random.shuffle(threads)
            self.kernel, self.accesses = step.number, _Accesses()
            for self.thread, (body, inner) in enumerate(threads):
                self.registers = {}
                self.block(body, inner)
        self.accesses = _Accesses()

    def block(self, block: Block, variables: dict[str, int]) -> None:
        for item in block:
            match item:
                case For():
                    if item.parallel:
                        raise Violation(f"the parallel loop over {item.variable} is not of the grid")
                    for value in _values(item, variables):
                        self.block(item.body, {**variables, item.variable: value})
                case If():
                    self.block(item.then if compute(item.condition, variables) else item.otherwise, variables)
                case Execute():
                    self._execute(item, variables)

    def _execute(self, item: Execute, variables: dict[str, int]) -> None:
        statement, around = self.statements[item.statement]
        values = [compute(expression, variables) for expression in item.counters]
        counters = dict(zip(around, values, strict=True))
        if not contains(statement.domain, counters):
            raise Violation(f"statement {statement.number} is run for {counters}, which are not in its domain")
        self.execute(statement, counters)


def _values(loop: For, variables: Mapping[str, int]) -> range:
    if loop.step < 1:
        raise Violation(f"step {loop.step}")
    return range(compute(loop.first, variables), compute(loop.last, variables) + 1, loop.step)


def _threads(block: Block, variables: dict[str, int]) -> Iterator[tuple[Block, dict[str, int]]]:
    if len(block) == 1 and isinstance(block[0], For) and block[0].parallel:
        for value in _values(block[0], variables):
            yield from _threads(block[0].body, {**variables, block[0].variable: value})
    else:
        yield block, variables


def run_program(
    program: NestProgram, values: Mapping[int, int], memory: bytearray, in_order: Trace, seed: int = 0
) -> dict[int, int]:
    """Run a program over a memory; return what locals hold after it.

    Args:
        program: what to run.
        values: of live-in locals, as bits.
        memory: is changed.
        in_order: what the nest does in program order.
        seed: of the order of threads.

    Raises:
        Violation: an access is not in its array or races with one of another thread, a cell is used before it is set,
            statements are not those of the nest, a load or cell has its value from another one than in order, or an
            array is not filled that should be; what such an array holds at first is replaced.
    """
    _check_arrays(program.arrays, len(memory))
    for array in program.arrays:
        if array.filled:
            memory[array.first : array.first + array.size_bytes] = random.Random(seed).randbytes(array.size_bytes)
    device = _Device(program, values, memory, seed)
    device.steps(program.steps, dict(program.sizes))
    trace = device.trace
    effective = {number for number, (statement, _) in device.statements.items() if _has_effect(statement)}
    expected = sorted(instance for instance in in_order.executed if instance[0] in effective)
    executed = sorted(instance for instance in trace.executed if instance[0] in effective)
    if executed != expected:
        missing, more = set(expected) - set(executed), set(executed) - set(expected)
        raise Violation(f"statements missing: {sorted(missing)[:5]}, too many: {sorted(more)[:5]}, or some twice")
    results = device.results()
    for access, source in in_order.sources.items():
        instance, _ = access
        if (instance is None or instance[0] in effective) and trace.sources.get(access) != source:
            raise Violation(f"{access} has its value from {trace.sources.get(access)}, not from {source}")
    if trace.last != in_order.last:
        at = next(at for at, (a, b) in enumerate(zip(trace.last, in_order.last, strict=True)) if a != b)
        raise Violation(f"byte {at} is last written by {trace.last[at]}, not by {in_order.last[at]}")
    for array in program.arrays:
        if array.filled and None in trace.last[array.first : array.first + array.size_bytes]:
            raise Violation(f"{array} is not filled")
    return results


def _has_effect(statement: Statement) -> bool:
    """Return whether a statement does more than load, which nothing needs to be run for."""
    return any(not isinstance(effect, Load) for effect in statement.effects)


def _check_arrays(arrays: tuple[Array, ...], memory_bytes: int) -> None:
    end = 0
    for array in sorted(arrays, key=lambda array: array.first):
        if array.first < end or array.size_bytes < 1 or array.granule_bytes not in {1, 2, 4, 8, 16}:
            raise Violation(f"{array} overlaps another, is empty, or has no granule")
        end = array.first + array.size_bytes
    if end > memory_bytes:
        raise Violation("an array ends behind the memory")
