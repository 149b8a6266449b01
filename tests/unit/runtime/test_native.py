"""Functions whose host functions are compiled give what Python gives, on the emulator."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from tensorwasm import Runtime, settings
from tensorwasm.errors import CapacityExhausted, InvalidArgs
from tensorwasm.gpu.emulator.streams.native import EmulatedNative
from tensorwasm.guest.native import session_layouts
from tensorwasm.runtime.deploy.form import Form, engine_of

EXAMPLES = Path(__file__).parents[3] / "examples"
NAMES = ("vector_add", "saxpy", "reduction", "histogram", "graph", "streams")


@pytest.fixture
def choose(monkeypatch):
    """Return a function that makes the setting TENSOR_WASM_NATIVE."""

    def make(mode: str) -> None:
        changed = dataclasses.replace(settings.current(), native=mode)
        monkeypatch.setattr(settings, "current", lambda: changed)

    return make


@pytest.fixture
def native_calls(monkeypatch):
    """Return a list that gets the name of each driver function that compiled code calls."""
    calls: list[str] = []

    def note(name):
        real = getattr(EmulatedNative, name)

        def call(self, *args):
            calls.append(name)
            return real(self, *args)

        monkeypatch.setattr(EmulatedNative, name, call)

    for name in ("_launch_kernel", "_graph_launch", "_memcpy_htod_async"):
        note(name)
    return calls


def outcome(name: str, memory: str):
    with Runtime(device="emulator") as runtime:
        function = runtime.load(EXAMPLES / name / f"{name}.wasm")
        done = function.invoke(grants={"cuda"}, memory_kind=memory)
    return done.values, done.exit_code, done.stdout, done.gpu.kernels_launched, done.gpu.replays


@pytest.mark.parametrize("memory", ["auto", "pinned"])
@pytest.mark.parametrize("name", NAMES)
def test_examples_give_the_same_both_ways(name, memory, choose, native_calls):
    choose("off")
    by_python = outcome(name, memory)
    assert native_calls == []
    assert by_python[3] > 0
    choose("on")
    assert outcome(name, memory) == by_python


def test_a_graph_is_replayed_by_compiled_code(choose, native_calls):
    choose("on")
    outcome("graph", "pinned")
    assert "_graph_launch" in native_calls


def test_the_emulator_is_pythons_unless_it_is_asked_for(choose, native_calls):
    choose("auto")
    outcome("graph", "pinned")
    assert native_calls == []


def test_a_run_without_a_gpu_never_imports_numba():
    script = f"""
import sys
from tensorwasm import Runtime
with Runtime(device="emulator") as runtime:
    function = runtime.load({str(EXAMPLES / "vector_add" / "vector_add.wasm")!r})
    function.invoke()
assert not {{"numba", "llvmlite"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, env={"TENSOR_WASM_NATIVE": "on"})


def test_a_sandbox_that_is_refused_gives_its_pad_back(choose):
    choose("on")
    with Runtime("emulator", slots=1) as runtime:
        function = runtime.load(EXAMPLES / "vector_add" / "vector_add.wasm")
        assert function.invoke(grants={"cuda"}).exit_code == 0
        engine = engine_of(Form(native=True), runtime._engine)
        assert engine.config.resident_bytes > runtime._engine.config.resident_bytes
        engine.reserve_slot()
        kept = len(session_layouts._free) + len(session_layouts._bare)
        for _ in range(3):
            with pytest.raises(CapacityExhausted):
                function.invoke(grants={"cuda"})
            with pytest.raises(InvalidArgs):
                function.invoke(grants={"cuda"}, tenant="nobody")
        engine.release_slot()
        assert len(session_layouts._free) + len(session_layouts._bare) == kept
