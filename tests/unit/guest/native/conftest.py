"""A guest that hands its arguments on to the imports, compiled functions linked to them, and their fallbacks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from wasmtime import wat2wasm

from fakes.pads import CallbackDriver, HandPad
from tensorwasm.guest.engine.engine import Engine, EngineConfig
from tensorwasm.guest.engine.module import compile_module
from tensorwasm.guest.imports.host_function import HostFunction
from tensorwasm.guest.native.session_layouts import take_layout
from tensorwasm.guest.native.structures import Entry
from tensorwasm.guest.sandbox.instance import Instance
from tensorwasm.guest.sandbox.linker import Linker
from tensorwasm.values import Limits, Region

numba = pytest.importorskip("numba")

from tensorwasm.guest.native import compiled  # noqa: E402 - it imports Numba

MODULE = "native"
FALLBACK = -99
FINISH = -98


@dataclass
class Calls:
    """Calls that went to Python: name and parameters of fallbacks, names of what was to be finished."""

    fallbacks: list[tuple[Any, ...]] = field(default_factory=list)
    finished: int = 0

    def fallback(self, name: str) -> Callable[..., int]:
        def body(_call: Any, *params: int) -> int:
            self.fallbacks.append((name, *params))
            return FALLBACK

        return body

    def finish(self, _call: Any) -> int:
        self.finished += 1
        return FINISH


@dataclass
class Bench:
    """A sandbox on one layout."""

    instance: Instance
    hand: HandPad
    calls: Calls

    @property
    def layout(self) -> Any:
        return self.hand.layout

    @property
    def driver(self) -> CallbackDriver:
        return self.hand.driver

    @property
    def memory(self) -> Region:
        return Region(self.instance.memory.address, self.instance.memory.size_bytes, host=True)

    def reset(self) -> None:
        self.hand.reset()
        self.calls.fallbacks.clear()
        self.calls.finished = 0
        self.driver.context = 0xC0_FFEE
        self.driver.kernel = lambda _values: None

    def reach(self, size_bytes: int | None = None) -> Region | None:
        """Let the device reach that much of the memory, all of it by default."""
        memory = self.memory
        size_bytes = memory.size_bytes if size_bytes is None else size_bytes
        self.layout.reach_at, self.layout.reach_bytes = memory.address, size_bytes
        return Region(memory.address, size_bytes, host=True) if size_bytes else None

    def call(self, name: str, *args: int) -> int:
        (answer,) = self.instance.call(name, args)
        return answer

    def went_native(self) -> bool:
        return not self.calls.fallbacks and not self.calls.finished


def _wat(pages: int) -> str:
    imports, exports = [], []
    for name, source in compiled.SOURCES.items():
        params = " ".join(f"(param {kind})" for kind in source.params)
        gets = " ".join(f"(local.get {index})" for index in range(len(source.params)))
        imports.append(f'(import "{MODULE}" "{name}" (func ${name} {params} (result i32)))')
        exports.append(f'(func (export "{name}") {params} (result i32) (call ${name} {gets}))')
    return f'(module {"".join(imports)} (memory (export "memory") {pages}) {"".join(exports)})'


@pytest.fixture(scope="session")
def entries() -> dict[str, Entry]:
    folder = compiled.open_cache()
    return {
        name: Entry(compiled.compile_function(source.function, folder).address, source.params)
        for name, source in compiled.SOURCES.items()
    }


@pytest.fixture(scope="session")
def make_bench(entries) -> Iterator[Callable[[int], Bench]]:
    """Return a function: pages of memory to a bench; what was asked for before is made once."""
    engine = Engine.shared(EngineConfig(slots=64))
    made: dict[int, Bench] = {}

    def make(pages: int = 16) -> Bench:
        if pages not in made:
            made[pages] = _make(engine, entries, pages)
        made[pages].reset()
        return made[pages]

    yield make
    for bench in made.values():
        bench.instance.close()


def _make(engine: Engine, entries: dict[str, Entry], pages: int) -> Bench:
    calls = Calls()
    functions = [
        HostFunction(MODULE, name, entry.params, ("i32",), calls.fallback(name)) for name, entry in entries.items()
    ]
    native = {
        (MODULE, name): Entry(entry.address, entry.params, calls.finish if compiled.SOURCES[name].starts else None)
        for name, entry in entries.items()
    }
    module = compile_module(engine, bytes(wat2wasm(_wat(pages))), Limits(memory_bytes=1 << 32))
    layout = take_layout()
    prepared = Linker(engine, functions, native=native).prepare(module)
    instance = Instance(prepared, limits=Limits(memory_bytes=1 << 32), layout=layout)
    assert instance.memory.size_bytes == pages << 16
    return Bench(instance, HandPad(layout, CallbackDriver()), calls)


@pytest.fixture
def bench(make_bench) -> Bench:
    return make_bench(16)
