"""The quickest way into a function: for guests that nobody sees, for a moment, and then another way."""

import threading
import time

import pytest
from wasmtime import wat2wasm

import tensorwasm.runtime.sprint
from tensorwasm import Runtime
from tensorwasm.errors import GuestTrap, InvalidArgs, MissingExport
from tensorwasm.runtime.sprint import SPRINT_NS, prepare_sprint, sprint

PURE = bytes(
    wat2wasm("""(module (memory (export "memory") 1) (global $n (mut i32) (i32.const 0))
  (func (export "add") (param i32 i32) (result i32) local.get 0 local.get 1 i32.add)
  (func (export "count") (result i32) (global.set $n (i32.add (global.get $n) (i32.const 1))) (global.get $n))
  (func (export "sum") (param $n i64) (result i64) (local $sum i64)
    (loop $again (local.set $sum (i64.add (local.get $sum) (local.get $n)))
      (br_if $again (i32.eqz (i64.eqz (local.tee $n (i64.sub (local.get $n) (i64.const 1)))))))
    (local.get $sum))
  (func (export "trap") unreachable)
  (func (export "spin") (loop br 0)))""")
)
IMPORTS = bytes(
    wat2wasm("""(module (import "wasi:tensor/host@0.1.0" "flush" (func $flush (result i32)))
  (func (export "main") (result i32) call $flush))""")
)
BIG = bytes(
    wat2wasm('(module (memory 100) (func (export "fill") (memory.fill (i32.const 0) (i32.const 1) (i32.const 9))))')
)


@pytest.fixture(scope="module")
def runtime():
    with Runtime("emulator") as runtime:
        yield runtime


@pytest.fixture
def pure(runtime):
    function = runtime.load(PURE, "pure")
    function.engine.require_ticker()
    prepare_sprint(function)
    function.invoke("add", (1, 1))
    return function


@pytest.fixture(autouse=True)
def rested(monkeypatch):
    """No test is held up by the guest of another."""
    monkeypatch.setattr(tensorwasm.runtime.sprint, "_of_thread", threading.local())


def run(function, export, *args):
    """Sprint, again where another process had the processor meanwhile."""
    for _ in range(1000):
        found = sprint(function, export, args, "default")
        if found is not None:
            return found
        function.long = False
        tensorwasm.runtime.sprint._of_thread.free_ns = 0
    raise AssertionError("no sprint in a thousand")


def test_what_comes_of_a_sprint_is_what_comes_of_any_call(pure):
    sprinted, invoked = run(pure, "add", 2, 3), pure.invoke("add", (2, 3))
    assert sprinted._replace(elapsed_s=0.0) == invoked._replace(elapsed_s=0.0)


def test_every_sandbox_is_a_fresh_one(pure):
    assert {run(pure, "count").values for _ in range(20)} == {(1,)}


def test_errors_are_those_of_any_call(pure):
    for export, args, error in (("trap", (), GuestTrap), ("nothing", (), MissingExport), ("add", (1,), InvalidArgs)):
        with pytest.raises(error):
            run(pure, export, *args)


def test_a_guest_that_takes_too_long_is_ended_and_leaves_the_thread_alone_for_a_while(pure):
    for _ in range(1000):  # one that is made to wait for a processor is not judged by that
        began_ns = time.monotonic_ns()
        assert sprint(pure, "spin", (), "default") is None
        assert time.monotonic_ns() - began_ns >= SPRINT_NS
        if pure.long:
            break
    assert pure.long
    assert sprint(pure, "add", (2, 3), "default") is None
    pure.long = False
    tensorwasm.runtime.sprint._of_thread.free_ns = time.monotonic_ns() + 3600 * 10**9
    assert sprint(pure, "add", (2, 3), "default") is None


def test_only_guests_that_nobody_sees_and_a_timer_can_end_sprint(runtime):
    for module, export in ((IMPORTS, "main"), (BIG, "fill")):
        function = runtime.load(module)
        assert not function.pure
        assert sprint(function, export, (), "default") is None


def test_a_sprint_that_was_ended_changes_nothing_of_what_comes_of_the_call(pure):
    n = 200_000_000  # long enough for a timer that is late
    assert sprint(pure, "sum", (n,), "default") is None
    assert pure.submit("sum", (n,)).result(60).values == (n * (n + 1) // 2,)
