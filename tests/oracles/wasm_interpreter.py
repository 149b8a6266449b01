"""A plain interpreter of Wasm without SIMD, which records what a part of a function does when it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

from oracles.wasm_numeric import ARITY, NUMERIC, Trapped, to_signed
from tensorwasm.offload.nest import LOAD_BYTES, STORE_BYTES
from tensorwasm.wasm.instructions import Instruction
from tensorwasm.wasm.module import Module, decode

PAGE_BYTES = 1 << 16
MAX_VISITS = 3

Part = tuple[int, int, int]
"""Index of a function in the module, that of the first of its instructions, and that after the last."""


class StepsExhausted(Exception):
    """A run took more instructions than it was given."""


def load(memory: bytearray, opcode: str, address: int) -> int:
    """Return the bits that a load at an address reads.

    Raises:
        Trapped: it is out of bounds.
    """
    size_bytes = LOAD_BYTES[opcode]
    if not 0 <= address <= len(memory) - size_bytes:
        raise Trapped("out of bounds memory access")
    bits = int.from_bytes(memory[address : address + size_bytes], "little")
    if opcode.endswith("_s"):
        bits = to_signed(bits, 8 * size_bytes) & ((1 << int(opcode[1:3])) - 1)
    return bits


def store(memory: bytearray, opcode: str, address: int, bits: int) -> None:
    """Write the low bits of a value.

    Raises:
        Trapped: it is out of bounds.
    """
    size_bytes = STORE_BYTES[opcode]
    if not 0 <= address <= len(memory) - size_bytes:
        raise Trapped("out of bounds memory access")
    memory[address : address + size_bytes] = (bits & ((1 << 8 * size_bytes) - 1)).to_bytes(size_bytes, "little")


@dataclass
class Visit:
    """What one run of a part saw and left; ``left_at`` is the instruction that followed, or None if it trapped."""

    part: Part
    locals_before: list[int]
    memory_before: bytes
    globals_before: list[int]
    locals_after: list[int] = field(default_factory=list)
    memory_after: bytes = b""
    left_at: int | None = None


@dataclass
class _Function:
    code: list[Instruction]
    parameters: int
    results: int
    locals: int
    ends: dict[int, int]
    """For each block, loop and if, its end."""
    otherwise: dict[int, int]
    """For each if with one, its else."""


@dataclass
class _Label:
    target: int
    arity: int
    height: int
    is_loop: bool


class Interpreter:
    """An instance; imported functions do nothing.

    Attributes:
        visits: for each part, what its first runs did.
        replacements: by part, what to do in its place, which says whether it was done; if not, the part runs.
    """

    def __init__(self, wasm: bytes, parts: tuple[Part, ...] = (), max_steps: int = 2_000_000) -> None:
        self.module, self.functions = _decoded(wasm)
        self.steps_left = max_steps
        self.memory = bytearray(PAGE_BYTES * sum(memory.minimum for memory in self.module.memories))
        self.globals = [self._constant(item.init) for item in self.module.globals]
        self.imported = len(self.module.imported("func"))
        self.visits: dict[Part, list[Visit]] = {part: [] for part in parts}
        self.replacements: dict[Part, Callable[[Interpreter, list[int]], bool]] = {}
        self._starts: dict[tuple[int, int], list[Part]] = {}
        for part in sorted(parts, key=lambda part: -part[2]):  # those around others come first
            self._starts.setdefault(part[:2], []).append(part)
        for segment in self.module.data:
            if segment.mode == "active":
                at = self._constant(segment.offset)
                self.memory[at : at + len(segment.data)] = segment.data
        self.table: dict[int, int] = {}
        for element in self.module.elements:
            if element.mode == "active":
                for at, item in enumerate(element.items, self._constant(element.offset)):
                    self.table[at] = item if isinstance(item, int) else item[0][1]

    def _constant(self, expression: tuple[Instruction, ...]) -> int:
        ((name, value),) = expression
        return self.globals[value] if name == "global.get" else value & ((1 << int(name[1:3])) - 1)

    def call_export(self, name: str, *arguments: int) -> list[int]:
        """Call an export with bits, and return bits.

        Raises:
            StepsExhausted: it takes too many steps.
            Trapped: it traps.
        """
        return self.call(self.index_of(name), list(arguments))

    def signature(self, name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the types of an export's parameters and results."""
        form = self.module.types[self.module.functions[self.index_of(name) - self.imported]]
        return form.params, form.results

    def index_of(self, name: str) -> int:
        """Return the index of an exported function."""
        (index,) = [item.index for item in self.module.exports if item.name == name and item.kind == "func"]
        return index

    def call(self, index: int, arguments: list[int]) -> list[int]:
        """Call a function by its index; errors are those of `call_export`."""
        if index < self.imported:
            return []
        function = self.functions[index - self.imported]
        frame = _Frame(self, index, function, arguments + [0] * function.locals)
        return frame.run()


class _Frame:
    def __init__(self, owner: Interpreter, index: int, function: _Function, values: list[int]) -> None:
        self.owner, self.index, self.function, self.locals = owner, index, function, values
        self.stack: list[int] = []
        self.labels = [_Label(len(function.code), function.results, 0, is_loop=False)]
        self.at = 0
        self.active: list[Visit] = []

    def run(self) -> list[int]:
        code, owner = self.function.code, self.owner
        while self.at < len(code):
            if (self.active or (self.index, self.at) in owner._starts) and self._watch():
                continue
            instruction = code[self.at]
            owner.steps_left -= 1
            if owner.steps_left < 0:
                raise StepsExhausted
            self.at += 1
            name = instruction[0]
            numeric = NUMERIC.get(name)
            if numeric is not None:
                first = len(self.stack) - ARITY[name]
                self.stack[first:] = [numeric(*self.stack[first:])]
            elif name in LOAD_BYTES:
                self.stack.append(load(owner.memory, name, self.stack.pop() + instruction[1][1]))
            elif name in STORE_BYTES:
                bits = self.stack.pop()
                store(owner.memory, name, self.stack.pop() + instruction[1][1], bits)
            else:
                getattr(self, f"_do_{name.replace('.', '_')}")(*instruction[1:])
        self._watch()
        return self.stack[len(self.stack) - self.function.results :]

    def _watch(self) -> bool:
        """Record what parts do, and return whether one was replaced."""
        for visit in [visit for visit in self.active if not visit.part[1] <= self.at < visit.part[2]]:
            self.active.remove(visit)
            visit.left_at, visit.locals_after = self.at, list(self.locals)
            visit.memory_after = bytes(self.owner.memory)
        for part in self.owner._starts.get((self.index, self.at), ()):
            if len(self.owner.visits[part]) < MAX_VISITS and all(visit.part != part for visit in self.active):
                visit = Visit(part, list(self.locals), bytes(self.owner.memory), list(self.owner.globals))
                self.owner.visits[part].append(visit)
                self.active.append(visit)
            replacement = self.owner.replacements.get(part)
            if replacement and replacement(self.owner, self.locals):
                self.at = part[2]
                return True
        return False

    # ---------------------------------------------------------------------------------------------------------- control

    def _arity(self, block: str | int | None) -> tuple[int, int]:
        if isinstance(block, int):
            form = self.owner.module.types[block]
            return len(form.params), len(form.results)
        return 0, int(block is not None)

    def _enter(self, block: str | int | None, *, is_loop: bool) -> None:
        parameters, results = self._arity(block)
        target = self.at if is_loop else self.function.ends[self.at - 1] + 1
        height = len(self.stack) - parameters
        self.labels.append(_Label(target, parameters if is_loop else results, height, is_loop))

    def _do_block(self, block: str | int | None) -> None:
        self._enter(block, is_loop=False)

    def _do_loop(self, block: str | int | None) -> None:
        self._enter(block, is_loop=True)

    def _do_if(self, block: str | int | None) -> None:
        at, taken = self.at - 1, self.stack.pop()
        self._enter(block, is_loop=False)
        if not taken:
            self.at = self.function.otherwise[at] + 1 if at in self.function.otherwise else self.function.ends[at]

    def _do_else(self) -> None:
        self.at = self.labels[-1].target - 1

    def _do_end(self) -> None:
        self.labels.pop()

    def _do_br(self, depth: int) -> None:
        label = self.labels[-1 - depth]
        self.stack[label.height :] = self.stack[len(self.stack) - label.arity :]
        del self.labels[len(self.labels) - depth - (not label.is_loop) :]
        self.at = label.target

    def _do_br_if(self, depth: int) -> None:
        if self.stack.pop():
            self._do_br(depth)

    def _do_br_table(self, labels: tuple[int, ...]) -> None:
        self._do_br(labels[min(self.stack.pop(), len(labels) - 1)])

    def _do_return(self) -> None:
        self._do_br(len(self.labels) - 1)

    def _do_call(self, index: int) -> None:
        parameters = self._signature(index)
        first = len(self.stack) - parameters
        arguments = self.stack[first:]
        del self.stack[first:]
        self.stack += self.owner.call(index, arguments)

    def _do_call_indirect(self, _type: int, _table: int) -> None:
        found = self.owner.table.get(self.stack.pop())
        if found is None:
            raise Trapped("undefined element")
        self._do_call(found)

    def _signature(self, index: int) -> int:
        if index >= self.owner.imported:
            return self.owner.functions[index - self.owner.imported].parameters
        return len(self.owner.module.types[self.owner.module.imported("func")[index].type].params)

    def _do_unreachable(self) -> None:
        raise Trapped("unreachable")

    def _do_nop(self) -> None:
        pass

    # ------------------------------------------------------------------------------------------------ values and memory

    def _do_drop(self) -> None:
        self.stack.pop()

    def _do_select(self, _types: object = None) -> None:
        condition, second = self.stack.pop(), self.stack.pop()
        if not condition:
            self.stack[-1] = second

    _do_select_t = _do_select

    def _do_i32_const(self, value: int) -> None:
        self.stack.append(value & 0xFFFFFFFF)

    def _do_i64_const(self, value: int) -> None:
        self.stack.append(value & ((1 << 64) - 1))

    def _do_f32_const(self, bits: int) -> None:
        self.stack.append(bits)

    _do_f64_const = _do_f32_const

    def _do_local_get(self, index: int) -> None:
        self.stack.append(self.locals[index])

    def _do_local_set(self, index: int) -> None:
        self.locals[index] = self.stack.pop()

    def _do_local_tee(self, index: int) -> None:
        self.locals[index] = self.stack[-1]

    def _do_global_get(self, index: int) -> None:
        self.stack.append(self.owner.globals[index])

    def _do_global_set(self, index: int) -> None:
        self.owner.globals[index] = self.stack.pop()

    def _do_memory_size(self, _memory: int) -> None:
        self.stack.append(len(self.owner.memory) // PAGE_BYTES)

    def _do_memory_grow(self, _memory: int) -> None:
        pages = self.stack.pop()
        self._do_memory_size(0)
        self.owner.memory += bytes(PAGE_BYTES * pages)

    def _do_memory_fill(self, _memory: int) -> None:
        size_bytes, byte, at = self.stack.pop(), self.stack.pop(), self.stack.pop()
        if at + size_bytes > len(self.owner.memory):
            raise Trapped("out of bounds memory access")
        self.owner.memory[at : at + size_bytes] = bytes([byte & 0xFF]) * size_bytes

    def _do_memory_copy(self, _to: int, _from: int) -> None:
        size_bytes, source, at = self.stack.pop(), self.stack.pop(), self.stack.pop()
        if max(source, at) + size_bytes > len(self.owner.memory):
            raise Trapped("out of bounds memory access")
        self.owner.memory[at : at + size_bytes] = self.owner.memory[source : source + size_bytes]


@lru_cache(8)
def _decoded(wasm: bytes) -> tuple[Module, list[_Function]]:
    module = decode(wasm)
    return module, [_function(module, index) for index in range(len(module.bodies))]


def _function(module: Module, index: int) -> _Function:
    body, form = module.bodies[index], module.types[module.functions[index]]
    code = body.instructions()
    ends: dict[int, int] = {}
    otherwise: dict[int, int] = {}
    open_: list[int] = []
    for at, (name, *_) in enumerate(code):
        if name in {"block", "loop", "if"}:
            open_.append(at)
        elif name == "else":
            otherwise[open_[-1]] = at
        elif name == "end":
            ends[open_.pop()] = at
    count = sum(number for number, _ in body.local_runs())
    return _Function(code, len(form.params), len(form.results), count, ends, otherwise)
