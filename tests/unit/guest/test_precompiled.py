"""Precompiled code: where it fits, where it does not, and that nobody brings any."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tensorwasm.guest.engine import precompiled
from tensorwasm.guest.engine.compiler import CompileLimits, Compiler
from tensorwasm.guest.engine.engine import Engine, EngineConfig, settings_of
from tensorwasm.guest.engine.module import compile_module
from tensorwasm.guest.sandbox.instance import Instance
from tensorwasm.guest.sandbox.linker import Linker
from tensorwasm.wasm import preamble

SUM = """(module (memory (export "memory") 1) (data (i32.const 0) "\\05")
  (func (export "f") (param i32) (result i32) (i32.add (local.get 0) (i32.load (i32.const 0)))))"""
CONFIGS = {
    "pool": EngineConfig(slots=8),
    "fibers": EngineConfig(slots=8, fibers=True),
    "stack": EngineConfig(slots=8, stack_bytes=1 << 20),
    "host": EngineConfig(slots=8, host_memory=True),
    "images": EngineConfig(slots=8, images=True),
}


def compile_for(name, wasm):
    return bytes(Compiler(CompileLimits()).compile(wasm, settings_of(CONFIGS[name]), "x"))


@pytest.mark.rule("6-uploaded")
def test_precompiled_code_begins_with_what_is_refused(engine, wat):
    assert precompiled.serialize(compile_module(engine, wat(SUM))).startswith(precompiled.MAGIC)
    assert not wat(SUM).startswith(precompiled.MAGIC)


@pytest.mark.parametrize("name", ["pool", "fibers", "stack"])
@pytest.mark.parametrize("mapped", [False, True])
def test_code_compiled_by_the_child_process_runs_here(name, mapped, wat, tmp_path):
    engine, wasm = Engine.shared(CONFIGS[name]), wat(SUM)
    code, declared = compile_for(name, wasm), preamble.scan(wasm)
    if mapped:
        path = tmp_path / "code"
        path.write_bytes(code + b"something behind it")
        handle = os.open(path, os.O_RDONLY)
        module = precompiled.load_file(engine, handle, declared, len(wasm))
        os.close(handle)
        path.unlink()
    else:
        module = precompiled.load_bytes(engine, code, declared, len(wasm))
    with Instance(Linker(engine).prepare(module)) as instance:
        assert instance.call("f", [2]) == [7]


@pytest.mark.parametrize("name", CONFIGS)
def test_the_process_makes_what_the_engine_itself_would(name, wat):
    engine, wasm = Engine.shared(CONFIGS[name]), wat(SUM)
    assert compile_for(name, wasm) == precompiled.serialize(compile_module(engine, wasm))


def test_a_fingerprint_is_of_what_shapes_code_and_of_nothing_else():
    seen = {name: precompiled.fingerprint(Engine.shared(config)) for name, config in CONFIGS.items()}
    assert len(seen["pool"]) == 32
    assert seen["pool"] == seen["fibers"] == seen["stack"]
    assert len({seen["pool"], seen["host"], seen["images"]}) == 3


def test_a_fingerprint_is_the_same_in_every_process(engine):
    script = (
        "from tensorwasm.guest.engine.engine import Engine, EngineConfig\n"
        "from tensorwasm.guest.engine.precompiled import fingerprint\n"
        "print(fingerprint(Engine.shared(EngineConfig(slots=8))).hex())"
    )
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert told.strip() == precompiled.fingerprint(engine).hex()


def test_code_for_another_engine_is_not_loaded(engine, wat, tmp_path):
    wasm = wat(SUM)
    declared = preamble.scan(wasm)
    for code in (compile_for("host", wasm), b"", b"\x7fELF", bytes(4096), wasm):
        assert precompiled.load_bytes(engine, code, declared, len(wasm)) is None
        path = tmp_path / "code"
        path.write_bytes(code)
        handle = os.open(path, os.O_RDONLY)
        assert precompiled.load_file(engine, handle, declared, len(wasm)) is None
        os.close(handle)
