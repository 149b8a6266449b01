"""One small engine for all tests of the room, and a way to make sandboxes that are always closed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from wasmtime import wat2wasm

from tensorwasm.guest.engine.engine import Engine, EngineConfig
from tensorwasm.guest.engine.module import compile_module
from tensorwasm.guest.sandbox.instance import Instance
from tensorwasm.guest.sandbox.linker import Linker


@pytest.fixture(scope="session")
def engine() -> Engine:
    return Engine.shared(EngineConfig(slots=64))


@pytest.fixture(scope="session")
def wat() -> Callable[[str], bytes]:
    """Return a function from WAT text to a binary module."""
    return lambda text: bytes(wat2wasm(text))


@pytest.fixture
def spawn(engine: Engine) -> Iterator[Callable[..., Instance]]:
    """Return a function: WAT text (or bytes) and host functions to a sandbox."""
    made: list[Instance] = []

    def make(wat: str | bytes, *functions: Any, **options: Any) -> Instance:
        wasm = bytes(wat2wasm(wat)) if isinstance(wat, str) else wat
        prepared = Linker(engine, functions).prepare(compile_module(engine, wasm))
        made.append(Instance(prepared, **options))
        return made[-1]

    yield make
    for instance in made:
        instance.close()
