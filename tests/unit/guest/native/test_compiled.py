"""What the compiler made of the host functions: nothing that can raise, and no arithmetic but on 64-bit integers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tensorwasm import settings
from tensorwasm.gpu.native import layout as shared
from tensorwasm.guest.imports import host_functions
from tensorwasm.guest.imports.abi import ARG_TAGS, CUDA_MODULE_0_1
from tensorwasm.guest.native import compiled, layout, oneshot, waiting
from tensorwasm.guest.native.arguments import value_bytes
from tensorwasm.guest.sandbox import wasi_stdio

FLOATS = re.compile(r"\b(float|double|half)\b|\bf(add|sub|mul|div|cmp)\b")


FUNCTIONS = {
    **{name: (source.function,) for name, source in compiled.SOURCES.items()},
    **{function.__name__: (function,) for function in compiled.CALLBACKS},
    **waiting.SIGNATURES,
    **{
        function.__name__: (function, compiled.ONE_ADDRESS)
        for function in (oneshot.run_oneshot, oneshot.run_oneshot_fiber)
    },
}
"""Everything that is compiled: a function, and its signature unless that is a host function's."""


@dataclass
class Compilation:
    """Everything, compiled anew: functions from a cache have no LLVM code.

    Attributes:
        cache: which was empty, and has all of it now.
        sources_s: what the host functions took.
        code: the LLVM code of each function.
    """

    cache: Path
    sources_s: float
    code: dict[str, str]


@pytest.fixture(scope="module")
def compilation(tmp_path_factory) -> Compilation:
    cache = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        changed = replace(settings.current(), cache=str(cache))
        patch.setattr(settings, "current", lambda: changed)
        folder = compiled.open_cache()
    assert folder.is_relative_to(cache)
    assert list(folder.iterdir()) == []
    made, took_s = {}, {}
    for name, (function, *signature) in FUNCTIONS.items():
        begun_s = time.perf_counter()
        made[name] = compiled.compile_function(function, folder, *signature)
        took_s[name] = time.perf_counter() - begun_s
    sources_s = sum(took_s[name] for name in compiled.SOURCES)
    return Compilation(cache, sources_s, {name: each.inspect_llvm() for name, each in made.items()})


@pytest.fixture
def code(compilation) -> dict[str, str]:
    return compilation.code


@pytest.mark.rule("1-raise", "1-integers", "1-addresses")
def test_every_function_that_is_compiled_is_looked_at(monkeypatch):
    seen = []
    monkeypatch.setattr(compiled, "compile_function", lambda function, *_: seen.append(function) or Compiled())
    compiled.make_entries()
    compiled.make_callbacks()
    compiled.make_oneshot()
    compiled.make_oneshot_fiber()
    compiled.make_suspension_code()
    assert {function for function, *_ in FUNCTIONS.values()} == set(seen)


class Compiled:
    address = 1


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.rule("1-integers")
def test_no_number_goes_through_a_float(code, name):
    assert not FLOATS.search(code[name])


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.rule("1-raise")
def test_nothing_can_raise(code, name):
    """An exception is a status that is not 0; Numba's wrapper would print it and answer 0, which is success."""
    bodies = re.findall(r"^define [^\n]* i32 @_ZN[^\n]*\{\n(.*?)^\}", code[name], re.MULTILINE | re.DOTALL)
    assert bodies
    for body in bodies:
        assert set(re.findall(r"^\s*ret (.*?)(?:,.*)?$", body, re.MULTILINE)) == {"i32 0"}
        assert "%excinfo" not in body


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.rule("1-addresses")
def test_no_address_of_this_process_is_a_constant(code, name):
    constants = {int(number) for number in re.findall(r"\bi64 (-?\d+)\b", code[name])}
    assert not [number for number in constants if (1 << 40) < number < (1 << 48)]


def test_every_table_has_a_mask():
    rows = (shared.KERNEL_ROWS, shared.BUFFER_ROWS, shared.STREAM_ROWS, shared.GRAPH_ROWS)
    masks = (layout.KERNEL_MASK, layout.BUFFER_MASK, layout.STREAM_MASK, layout.GRAPH_MASK)
    assert [int(mask) + 1 for mask in masks] == list(rows)


def test_every_tag_has_its_length():
    lengths = {row.tag: row.value_bytes for row in ARG_TAGS}
    assert [value_bytes(layout.ONE * tag) for tag in range(256)] == [lengths.get(tag, 0) for tag in range(256)]


def test_the_imports_that_are_compiled(entries):
    offered = {(function.module, function.name): function for function in (*host_functions(), *wasi_stdio.FUNCTIONS)}
    made = compiled.make_entries()
    assert set(made) <= set(offered)
    assert all(offered[key].params == entry.params for key, entry in made.items())
    assert {name for _, name in made} == set(compiled.SOURCES)
    missing = {(module, name) for module, name in offered if name in compiled.SOURCES} - set(made)
    assert missing == {(CUDA_MODULE_0_1, "wasi_cuda_launch")}
    assert {name for (_, name), entry in made.items() if entry.finish} == {
        "wasi_cuda_launch",
        "wasi_cuda_memcpy_h2d",
        "wasi_cuda_memcpy_d2h",
    }


def run(script: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


READY = """
    import time
    from tensorwasm.guest.imports import host_functions
    start = time.process_time()
    from tensorwasm.guest.native.loading import load_entries
    assert load_entries() is load_entries()
    assert load_entries()
    print(time.process_time() - start)
"""


def test_ready_in_half_a_second_once_compiled_and_in_ten_before(compilation):
    """The bars, in the process's own time, with room for a busy machine: one of six is quick enough."""
    environment = {"TENSOR_WASM_CACHE": str(compilation.cache), "HOME": str(compilation.cache)}
    assert compilation.sources_s < 10 * 3
    kept = set(compilation.cache.glob("native/*/*"))
    assert kept
    assert any(float(run(READY, **environment)) < 0.5 * 2 for _ in range(6))
    assert set(compilation.cache.glob("native/*/*")) == kept, "it was compiled again"


def test_without_numba_python_does_everything():
    seen = run(
        """
        import logging, sys
        logging.basicConfig(level=logging.WARNING, stream=sys.stdout)
        sys.modules["numba"] = None
        from tensorwasm.guest.native.loading import load_entries
        assert load_entries() == {} == load_entries()
        """
    )
    assert seen.count("Python does their work") == 1


def test_linking_does_not_import_numba():
    run(
        """
        import sys
        from tensorwasm.guest.engine.engine import Engine, EngineConfig
        from tensorwasm.guest.imports import host_functions
        from tensorwasm.guest.sandbox.linker import Linker
        Linker(Engine.shared(EngineConfig(slots=2)), host_functions())
        assert not {"numba", "llvmlite", "numpy"} & set(sys.modules), set(sys.modules)
        """
    )
