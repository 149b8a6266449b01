"""Loops whose bodies are vector instructions, as modules; `run_vectors` says what wasmtime makes of one.

Memory has the inputs of each iteration from 0, and what it writes from `OUT`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st
from wasmtime import Instance, Store
from wasmtime import Module as CompiledModule

from loops import ENGINE
from tensorwasm.wasm.definitions import CodeEntry
from tensorwasm.wasm.instructions import Instruction
from tensorwasm.wasm.module import Module, encode
from tensorwasm.wasm.opcodes import BY_NAME
from tensorwasm.wasm.preamble import Export
from tensorwasm.wasm.types import FuncType, MemoryType

TURNS = 9
INPUTS = 3
OUT = 1 << 12
CARRIED = 1 << 15
VECTORS = range(5, 10)
"""Locals: the first three are inputs, the last one is carried from one iteration to the next."""

_POINTER, _SCALARS = 0, {"i32": 1, "i64": 2, "f32": 3, "f64": 4}
_TYPED = [(2, "i32"), (1, "i64"), (1, "f32"), (1, "f64"), (5, "v128")]

SUPPORTED = sorted(
    name
    for name in BY_NAME
    if ("x" in name.partition(".")[0] or name.startswith("v128.")) and "relaxed" not in name and "swizzle" not in name
)
"""All vector instructions that a region may have."""


@dataclass(frozen=True)
class VectorLoop:
    """A loop over inputs.

    Attributes:
        code: of an iteration.
        values: some of those that it is given, over and over.
    """

    code: tuple[Instruction, ...]
    values: tuple[bytes, ...]

    @property
    def memory(self) -> bytes:
        """Memory before it."""
        inputs = b"".join([self.values[at * 7 % len(self.values)] for at in range(INPUTS * TURNS + 1)])
        return inputs.ljust(CARRIED, b"\0") + self.values[0].ljust((1 << 16) - CARRIED, b"\0")

    @property
    def module(self) -> Module:
        """A module with the loop as ``run``, which then stores what is carried."""
        carried = VECTORS[-1]
        loads = [
            (("local.get", _POINTER), ("v128.load", (0, 16 * number, 0)), ("local.set", local))
            for number, local in enumerate(VECTORS[:INPUTS])
        ]
        body = (
            *(("i32.const", CARRIED), ("v128.load", (0, 0, 0)), ("local.set", carried), ("loop", None)),
            *(step for load in loads for step in load),
            *self.code,
            *(("local.get", _POINTER), ("i32.const", 16 * INPUTS), ("i32.add",), ("local.tee", _POINTER)),
            *(("i32.const", 16 * INPUTS * TURNS), ("i32.ne",), ("br_if", 0), ("end",)),
            *(("i32.const", CARRIED), ("local.get", carried), ("v128.store", (0, 0, 0))),
        )
        return Module(
            types=(FuncType((), ()),),
            functions=(0,),
            memories=(MemoryType(1, 1),),
            exports=(Export("run", "func", 0), Export("memory", "memory", 0)),
            bodies=(CodeEntry.build(_TYPED, body),),
        )


def run_vectors(loop: VectorLoop) -> bytes:
    """Return memory after a loop in wasmtime."""
    store = Store(ENGINE)
    exports = Instance(store, CompiledModule(ENGINE, encode(loop.module)), []).exports(store)
    exports["memory"].write(store, loop.memory)
    exports["run"](store)
    return bytes(exports["memory"].read(store))


SLOTS = 16 * INPUTS * 32 // 16
"""Places for vectors that an iteration writes."""


def stored(local: int, slot: int) -> tuple[Instruction, ...]:
    """Return what writes a vector to one of an iteration's places."""
    return (*_place(), ("local.get", local), ("v128.store", (0, OUT + 16 * slot, 0)))


def _place() -> tuple[Instruction, ...]:
    return (("local.get", _POINTER), ("i32.const", 5), ("i32.shl",))


def signature(name: str) -> tuple[tuple[str, ...], str | None]:
    """Return the operands and the result of a vector instruction; ``at`` is an address."""
    lanes, _, operation = name.partition(".")
    scalar = lanes.partition("x")[0] if lanes[:2] not in {"i8", "i1"} else "i32"
    if operation.startswith(("load", "store")):
        operands = ("at", "v128") if "store" in operation or "lane" in operation else ("at",)
        return operands, None if "store" in operation else "v128"
    if operation.startswith("extract_lane"):
        return ("v128",), scalar
    if operation in {"replace_lane", "splat"}:
        return (*(("v128",) if operation != "splat" else ()), scalar), "v128"
    if operation in {"any_true", "all_true", "bitmask"}:
        return ("v128",), "i32"
    if operation in {"shl", "shr_s", "shr_u"}:
        return ("v128", "i32"), "v128"
    return ("v128",) * _count(name, operation), "v128"


def _count(name: str, operation: str) -> int:
    one = ("abs", "neg", "not", "sqrt", "ceil", "floor", "trunc", "nearest", "popcnt", "ext", "convert", "demote")
    if operation == "bitselect":
        return 3
    if operation.startswith(("extmul", "extract")):
        return 2
    return 0 if operation == "const" else 1 if operation.startswith((*one, "promote")) else 2


def immediates(name: str, draw: st.DrawFn) -> Instruction:
    """Return an instruction with immediates that are drawn."""
    lanes, _, operation = name.partition(".")
    found: list[object] = []
    if operation.startswith(("load", "store")):
        found.append((0, draw(st.integers(0, 7)) + (OUT if "store" in operation else 0), 0))
    if "_lane" in operation:
        bits = int("".join([each for each in operation.partition("_")[0] if each.isdigit()]) or 0)
        count = 128 // bits if bits else int(lanes.partition("x")[2])
        found.append(draw(st.integers(0, count - 1)))
    if name == "v128.const":
        found.append(draw(st.one_of(st.sampled_from([bytes(16), b"\xff" * 16]), st.binary(min_size=16, max_size=16))))
    if name == "i8x16.shuffle":
        found.append(bytes(draw(orders())))
    return (name, *found)


@st.composite
def orders(draw: st.DrawFn) -> list[int]:
    size = draw(st.sampled_from((1, 2, 4, 8)))
    pieces = draw(st.lists(st.integers(0, 32 // size - 1), min_size=16 // size, max_size=16 // size))
    return [piece * size + at for piece in pieces for at in range(size)]


@st.composite
def steps(draw: st.DrawFn, name: str, slot: int, results: Sequence[int]) -> tuple[Instruction, ...]:
    """Draw an instruction between locals, and a store of its result."""
    operands, result = signature(name)
    code: list[Instruction] = []
    for kind in operands:
        if kind == "v128":
            code.append(("local.get", draw(st.sampled_from(VECTORS))))
        elif kind == "at":
            code += _place() if ".store" in name else (("local.get", _POINTER),)
        else:
            code.append(("local.get", _SCALARS[kind]))
    code.append(immediates(name, draw))
    if result is not None and result != "v128":
        code += (("local.set", _SCALARS[result]),)
        code += (*_place(), ("local.get", _SCALARS[result]), (f"{result}.store", (0, OUT + 16 * slot, 0)))
    elif result:
        local = draw(st.sampled_from(results))
        code += (("local.set", local), *stored(local, slot))
    return tuple(code)


_NUMBERS = st.one_of(
    st.binary(min_size=16, max_size=16),
    st.lists(st.floats(-100, 100), min_size=2, max_size=2).map(lambda numbers: struct.pack("<2d", *numbers)),
    st.lists(st.sampled_from((0.0, -0.0, 1.5, -2.5, 1e9, -1e30, float("inf"))), min_size=4, max_size=4).map(
        lambda numbers: struct.pack("<4f", *numbers)
    ),
    st.lists(st.sampled_from((0, 1, 127, 128, 255, 0x7FFF, 0x8000, 0xFFFF)), min_size=8, max_size=8).map(
        lambda numbers: struct.pack("<8H", *numbers)
    ),
)


@st.composite
def _perhaps(draw: st.DrawFn, code: st.SearchStrategy[tuple[Instruction, ...]]) -> tuple[Instruction, ...]:
    """Draw code that runs always, where the counter or data says so, or until then; or a choice between vectors."""
    first, *others = [draw(st.sampled_from(VECTORS)) for _ in range(3)]
    numbers = draw(st.sampled_from(((("local.get", _POINTER), ("i32.const", 144), ("i32.lt_u",)), (("local.get", 1),))))
    match draw(st.sampled_from(("always", "always", "if", "block", "select"))):
        case "if":
            other = (("local.get", others[0]), ("local.tee", first), ("drop",))
            return (*numbers, ("if", None), *draw(code), ("else",), *other, ("end",))
        case "block":
            return (("block", None), *numbers, ("br_if", 0), *draw(code), ("end",))
        case "select":
            chosen = tuple([("local.get", each) for each in others])
            return (*draw(code), *chosen, *numbers, ("select_t", ("v128",)), ("local.set", first))
    return draw(code)


@st.composite
def vector_loops(draw: st.DrawFn, names: tuple[str, ...], most: int) -> VectorLoop:
    """Draw a loop of some instructions, one after the other between the same locals."""
    chosen = draw(st.lists(st.sampled_from(names), min_size=1, max_size=most))
    code = [step for slot, name in enumerate(chosen) for step in draw(_perhaps(steps(name, slot, VECTORS)))]
    return VectorLoop(tuple(code), tuple(draw(st.lists(_NUMBERS, min_size=4, max_size=8))))


@st.composite
def all_of(draw: st.DrawFn, names: tuple[str, ...]) -> VectorLoop:
    """Draw a loop that has each of some instructions once, on what it loads."""
    code = [step for slot, name in enumerate(names[:SLOTS]) for step in draw(steps(name, slot, VECTORS[INPUTS:-1]))]
    return VectorLoop(tuple(code), tuple(draw(st.lists(_NUMBERS, min_size=4, max_size=8))))
