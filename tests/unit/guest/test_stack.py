from __future__ import annotations

import sys
import threading

import pytest

from tensorwasm.errors import CapacityExhausted, GuestTrap
from tensorwasm.guest.engine.engine import Engine, EngineConfig
from tensorwasm.guest.engine.module import compile_module
from tensorwasm.guest.imports.host_function import HostFunction
from tensorwasm.guest.sandbox.instance import Instance
from tensorwasm.guest.sandbox.linker import Linker

DEEP = '(module (import "h" "f" (func $f)) (func $go (export "go") (call $f) (call $go)))'


def on_thread(stack_bytes: int, work) -> list[object]:
    """Run ``work`` on a thread with a stack of that size; return its outcome."""
    outcome: list[object] = []

    def run() -> None:
        try:
            outcome.append(work())
        except Exception as error:  # noqa: BLE001 - the outcome is what is judged
            outcome.append(error)

    before = threading.stack_size(stack_bytes)
    try:
        thread = threading.Thread(target=run)
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join()
    return outcome


@pytest.fixture
def instance(engine, wat):
    linker = Linker(engine, [HostFunction("h", "f", (), (), lambda _call: None)])
    with Instance(linker.prepare(compile_module(engine, wat(DEEP)))) as made:
        yield made


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a thread's stack")
def test_a_thread_with_too_little_stack_is_refused_instead_of_crashing(instance):
    [error] = on_thread(256 << 10, lambda: instance.call("go"))
    assert isinstance(error, CapacityExhausted)
    assert "this thread has a stack of 256 KiB" in error.message


def test_a_guest_may_call_the_host_at_the_bottom_of_its_stack(instance):
    [error] = on_thread(1 << 20, lambda: instance.call("go"))
    assert isinstance(error, GuestTrap)
    assert error.trap == "stack_overflow"


def test_the_stack_limit_decides_how_deep_a_guest_goes(wat):
    depths = []
    for stack_bytes in (64 << 10, 1 << 20):
        engine = Engine.shared(EngineConfig(slots=2, stack_bytes=stack_bytes))
        text = """(module (global (export "depth") (mut i32) (i32.const 0)) (func $go (export "go")
                    (global.set 0 (i32.add (global.get 0) (i32.const 1))) (call $go))
                    (func (export "depth_of") (result i32) (global.get 0)))"""
        with Instance(Linker(engine).prepare(compile_module(engine, wat(text)))) as deep:
            with pytest.raises(GuestTrap):
                deep.call("go")
            depths += deep.call("depth_of")
    assert 8 < depths[1] / depths[0] < 32
