"""The corpus of loops in C: compiled to Wasm without a library, once per session, and run in wasmtime.

A line ``// run: name(arguments)`` of a file is a call that tests make, in a fresh instance after ``init()``.
"""

from __future__ import annotations

import ast
import atexit
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from wasmtime import Config, Engine, Func, FuncType, Instance, Module, Store, Trap, ValType

from oracles.wasm_numeric import to_bits

CORPUS = Path(__file__).parent / "corpus_loops"
LEVELS = ("-O1", "-O2", "-O3", "-Os")

_ZIG = (sys.executable, "-m", "ziglang")
_RUN = re.compile(r"^// run: (\w+)(\(.*\))$", re.MULTILINE)


@dataclass(frozen=True)
class Run:
    """A call of a function of the corpus."""

    file: str
    name: str
    arguments: tuple[float, ...]

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.arguments))})"

    @property
    def source(self) -> str:
        return (CORPUS / self.file).read_text()


def corpus() -> list[Run]:
    """Return every run of every file."""
    return [
        Run(path.name, name, ast.literal_eval(arguments.replace(")", ",)")))
        for path in sorted(CORPUS.glob("*.c"))
        for name, arguments in _RUN.findall(path.read_text())
    ]


@cache
def compile_c(source: str, level: str, *options: str) -> bytes:
    """Return the module of a C text; it exports what has ``export_name``, and its memory.

    Raises:
        CalledProcessError: the compiler refuses it; its words are on stderr.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        (path / "x.c").write_text(source)
        target = ("--target=wasm32-wasip1", "-w", "-I", str(CORPUS))
        subprocess.run([*_ZIG, "clang", *target, level, *options, "-c", "x.c", "-o", "x.o"], cwd=path, check=True)
        subprocess.run([*_ZIG, "wasm-ld", "--no-entry", "x.o", "-o", "x.wasm"], cwd=path, check=True)
        return (path / "x.wasm").read_bytes()


def as_bits(types: tuple[str, ...], values: tuple[float, ...]) -> list[int]:
    """Return the bits of numbers of some types."""
    return [
        to_bits(type_, value) if type_[0] == "f" else int(value) % (1 << int(type_[1:]))
        for type_, value in zip(types, values, strict=True)
    ]


def _make_engine() -> Engine:
    config = Config()
    config.cranelift_nan_canonicalization = True  # so that every run of a program has one result
    engine = Engine(config)
    atexit.register(engine.close)
    return engine


ENGINE = _make_engine()


@cache
def _compiled(wasm: bytes) -> Module:
    return Module(ENGINE, wasm)


def run_in_wasmtime(wasm: bytes, name: str | None = None, *arguments: float) -> tuple[float | str | None, bytes]:
    """Return what a function returns after ``init()`` in a fresh instance, or ``"trap"``, and the memory after it.

    Imported functions do nothing. Without a name, the memory is that after ``init()``.
    """
    store, module = Store(ENGINE), _compiled(wasm)
    ignore = Func(store, FuncType([ValType.i32()], []), lambda _number: None)
    exports = Instance(store, module, [ignore] * len(module.imports)).exports(store)
    exports["init"](store)
    try:
        result = exports[name](store, *arguments) if name else None
    except Trap:
        result = "trap"
    return result, bytes(exports["memory"].read(store))


@cache
def memory_after_init(wasm: bytes) -> bytes:
    return run_in_wasmtime(wasm)[1]
