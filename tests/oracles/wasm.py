"""Judges for the Wasm room: wasmtime says what is valid and what text means, and runs what was edited."""

from __future__ import annotations

import atexit
import math
import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from wasmtime import Config, Engine, Instance, Store, Trap, WasmtimeError, wat2wasm
from wasmtime import Module as Compiled

from tensorwasm.wasm.instructions import Instruction
from tensorwasm.wasm.module import Module
from tensorwasm.wasm.opcodes import BY_NAME

_SHAPES = {"f32": ("<f", "<I", 23), "f64": ("<d", "<Q", 52)}
_SWAPPED = frozenset({"memory.init", "table.init", "call_indirect", "return_call_indirect"})
_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"|;;[^\n]*|\(;|;\)|[()]')


def _make_engine() -> Engine:
    """Return an engine that accepts every proposal that the binary format here knows, and no other."""
    config = Config()
    config.wasm_memory64 = True
    config.wasm_multi_memory = True
    config.wasm_tail_call = True
    config.wasm_relaxed_simd = True
    config.wasm_exceptions = True
    config.wasm_function_references = False
    config.wasm_gc = False
    config.wasm_threads = False
    engine = Engine(config)
    atexit.register(engine.close)
    return engine


ENGINE = _make_engine()


def fault_of(wasm: bytes) -> str | None:
    """Return what the engine has against a module, or None if it is valid."""
    try:
        Compiled.validate(ENGINE, wasm)
    except WasmtimeError as error:
        return str(error)
    return None


def to_wasm(text: str) -> bytes:
    return bytes(wat2wasm(text))


def module_texts(script: str) -> Iterator[str]:
    """Yield every module of a script of the spec's test suite that stands alone or inside an assertion."""
    for form in _forms(script):
        found = re.search(r"\(\s*module\b", form)
        if found:
            yield next(_forms(form[found.start() :]))


def _forms(script: str) -> Iterator[str]:
    depth = comments = start = 0
    for found in _TOKENS.finditer(script):
        token = found.group()
        if token in {"(;", ";)"}:
            comments += 1 if token == "(;" else -1
        elif comments or token not in {"(", ")"}:
            continue
        elif token == "(":
            start = found.start() if not depth else start
            depth += 1
        else:
            depth -= 1
            if not depth:
                yield script[start : found.end()]


def instruction_text(instruction: Instruction) -> str:
    """Say an instruction as the text format does."""
    name, *values = instruction
    kinds = BY_NAME[name].immediates
    if name in _SWAPPED:  # the text has the index that may be left out first
        values.reverse()
    if name in {"call_indirect", "return_call_indirect"}:
        return f"{name} {values[0]} (type {values[1]})"
    if name == "i8x16.shuffle":
        return f"{name} {' '.join(map(str, values[0]))}"
    words = [_immediate_text(kind, value) for kind, value in zip(kinds, values, strict=True)]
    return " ".join(["select" if name == "select_t" else name, *words])


def _immediate_text(kind: str, value: Any) -> str:
    match kind:
        case "f32" | "f64":
            return _float_text(kind, value)
        case "bytes16":
            return f"i8x16 {' '.join(map(str, value))}"
        case "memarg":
            align, offset, memory = value
            return f"{memory} offset={offset} align={1 << align}"
        case "block":
            if value is None:
                return ""
            return f"(type {value})" if isinstance(value, int) else f"(result {value})"
        case "labels":
            return " ".join(map(str, value))
        case "catches":
            return " ".join(f"({' '.join(str(part) for part in catch if part is not None)})" for catch in value)
        case "types":
            return f"(result {' '.join(value)})"
        case "reference":
            return value.removesuffix("ref")
    return str(value)


def _float_text(kind: str, bits: int) -> str:
    as_float, as_bits, mantissa_bits = _SHAPES[kind]
    raw = struct.pack(as_bits, bits)
    number = struct.unpack(as_float, raw)[0]
    if math.isnan(number):
        sign = "-" if raw[-1] & 0x80 else ""
        return f"{sign}nan:{bits & ((1 << mantissa_bits) - 1):#x}"
    return number.hex()


@dataclass(frozen=True)
class Observed:
    """What a run did: for each call a value or the name of its trap, then the memory and the numbers in globals."""

    calls: tuple[Any, ...]
    memory: bytes
    numbers: tuple[Any, ...]


class Running:
    """An instance that can be asked and looked at from outside."""

    def __init__(self, wasm: bytes) -> None:
        self.store = Store(ENGINE)
        self.instance = Instance(self.store, Compiled(ENGINE, wasm), [])
        self.exports = self.instance.exports(self.store)

    def call(self, name: str, *args: Any) -> Any:
        try:
            return self.exports[name](self.store, *args)
        except Trap as trap:
            return str(trap.trap_code)

    def memory(self) -> bytes:
        memory = self.exports["memory"]
        return bytes(memory.read(self.store, 0, memory.data_len(self.store)))

    def write(self, memory: bytes) -> None:
        self.exports["memory"].write(self.store, memory, 0)

    def value(self, name: str) -> Any:
        return self.exports[name].value(self.store)

    def observe(self, calls: Iterable[str], numbers: Iterable[str] = ()) -> Observed:
        results = tuple(self.call(name) for name in calls)
        return Observed(results, self.memory(), tuple(self.value(name) for name in numbers))


def without_places(module: Module) -> tuple[Any, ...]:
    """Return what a module means: an empty section that is left out moves the custom sections behind it."""
    fields = (name for name in Module.__dataclass_fields__ if name not in {"kept", "customs"})
    return (*(getattr(module, name) for name in fields), tuple((item.name, item.data) for item in module.customs))
