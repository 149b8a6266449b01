"""Where host functions run that a suspended guest waits for: never on its fiber."""

from __future__ import annotations

import sys

import pytest
from wasmtime import wat2wasm

from tensorwasm.guest.engine.module import compile_module

pytest.importorskip("numba")

from fakes.fibers import HOST, FakeJob
from tensorwasm.guest.engine.engine import Engine, EngineConfig
from tensorwasm.guest.imports.host_function import HostFunction
from tensorwasm.guest.imports.suspension import BlockingCall, DeviceWait, Sleep
from tensorwasm.guest.native.compiled import make_suspension_code
from tensorwasm.guest.reactor.reactor import Reactor
from tensorwasm.guest.sandbox import stack
from tensorwasm.guest.sandbox.fiber import Fiber
from tensorwasm.guest.sandbox.linker import Linker

SOON_S = 20.0
GUEST = """(module (import "host" "wait" (func $wait (param i32) (result i32)))
  (func (export "go") (param i32) (result i32) (call $wait (call $wait (local.get 0))))
  (func $start (drop (call $wait (i32.const 1)))) (start $start))"""


class Witness:
    """Notes on whose stack Python runs."""

    def __init__(self) -> None:
        self.on_fiber: list[bool] = []

    def look(self) -> int:
        frame, codes = sys._getframe(), set()
        while frame is not None:
            codes.add(frame.f_code)
            frame = frame.f_back
        self.on_fiber.append(Fiber._advance.__code__ in codes or stack.THREAD.fiber)
        return 1

    def body(self, _call, value):
        return value + self.look()

    def steps(self, _call, value):
        self.look()
        yield Sleep(0.0)
        self.look()
        yield DeviceWait(lambda _function, _argument: bool(self.look() - 1), lambda: False)
        self.look()
        return value + (yield BlockingCall(self.look))


@pytest.mark.parametrize("in_steps", [False, True])
@pytest.mark.rule("12-python")
def test_no_python_is_on_a_fiber_while_its_guest_waits(in_steps):
    witness, code, engine = Witness(), make_suspension_code(), Engine.shared(EngineConfig(slots=8, fibers=True))
    steps = witness.steps if in_steps else None
    function = HostFunction(HOST, "wait", ("i32",), ("i32",), witness.body, waits=True, steps=steps)
    prepared = Linker(engine, (function,), code=code).prepare(compile_module(engine, bytes(wat2wasm(GUEST))))
    reactor, job = Reactor(code), FakeJob(prepared, "go", (40,))
    reactor.spawn(job)
    assert job.future.result(SOON_S) == [42]
    reactor.close()
    assert witness.on_fiber == [False] * (15 if in_steps else 3)
