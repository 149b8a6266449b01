"""One-shot calls inline on an event loop's thread: within a slice, or not at all."""

import itertools
import threading
import time

import pytest
from wasmtime import wat2wasm

from tensorwasm import Runtime
from tensorwasm.errors import GuestTrap, InvalidArgs, InvokeTimeout, MissingExport
from tensorwasm.runtime.invoke import inline

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
    function.dispatch.prepare_pure()
    function.invoke("add", (1, 1))
    return function


@pytest.fixture(autouse=True)
def rested(monkeypatch):
    """No test is held up by the guest of another."""
    monkeypatch.setattr(inline, "_of_thread", threading.local())


def run(function, export, *args):
    """Call inline, again where another process had the processor meanwhile."""
    for _ in range(1000):
        found = function.dispatch.begin_pure(export, args, "default")
        if found is not None:
            return found
        function.long = False
        inline._of_thread.budget = inline.SliceBudget()
    raise AssertionError("no inline call in a thousand")


def test_an_inline_call_has_the_outcome_of_any_call(pure):
    inlined, invoked = run(pure, "add", 2, 3), pure.invoke("add", (2, 3))
    assert inlined._replace(elapsed_s=0.0) == invoked._replace(elapsed_s=0.0)


def test_every_sandbox_is_a_fresh_one(pure):
    assert {run(pure, "count").values for _ in range(20)} == {(1,)}


def test_errors_are_those_of_any_call(pure):
    for export, args, error in (("trap", (), GuestTrap), ("nothing", (), MissingExport), ("add", (1,), InvalidArgs)):
        with pytest.raises(error):
            run(pure, export, *args)


def test_a_guest_that_takes_too_long_is_ended_and_leaves_the_thread_alone_for_a_while(pure):
    for _ in range(1000):  # one that is made to wait for a processor is not judged by that
        inline.slice_budget()._free_ns = 0  # nor does it leave the loop alone, as more lost time than is to spare does
        began_ns = time.monotonic_ns()
        assert pure.dispatch.begin_pure("spin", (), "default") is None
        assert time.monotonic_ns() - began_ns >= inline.ONE_SHOT_NS
        if pure.long:
            break
    assert pure.long
    assert pure.dispatch.begin_pure("add", (2, 3), "default") is None
    pure.long = False
    inline.slice_budget()._free_ns = time.monotonic_ns() + 3600 * 10**9
    assert pure.dispatch.begin_pure("add", (2, 3), "default") is None


class Plan:
    """A call that is ended, or ends, as often as that is said."""

    def __init__(self, *ends):
        self.ends = list(ends)

    def invoke_pure(self, *_):
        if self.ends.pop(0) if len(self.ends) > 1 else self.ends[0]:
            raise InvokeTimeout("it was ended")
        return "done"


def test_a_short_guest_that_was_ended_is_called_again_and_costs_the_others_nothing(pure):
    """Found on a busy machine: one late call in a hundred sent 16 clients' calls where they waited half a second."""
    spent_ns = itertools.count(step=inline.ONE_SHOT_NS)
    budget = inline.SliceBudget(spent_ns=lambda: next(spent_ns))
    for _ in range(inline.SHORT_CALLS):
        assert budget.run_one_shot(pure, Plan(False), ()) == "done"
    for _ in range(10):
        assert budget.run_one_shot(pure, Plan(True, False), ()) == "done"
        assert (budget._free_ns, pure.late, pure.long) == (0, 0, False)
        for _ in range(inline.SHORT_CALLS):
            budget.run_one_shot(pure, Plan(False), ())
    pure.short = inline.SHORT_CALLS + 5
    assert budget.run_one_shot(pure, Plan(True), ()) is None, "once, not for ever"
    assert budget._free_ns > 0
    assert pure.late == 1


def test_a_module_is_long_only_if_several_calls_in_a_row_were_ended(pure):
    """Found under full load: time that the machine did not give counted, and all calls went where nobody had time."""
    spent_ns = itertools.count(step=inline.ONE_SHOT_NS)
    budget = inline.SliceBudget(spent_ns=lambda: next(spent_ns))
    for _ in range(3):
        for _ in range(inline.LATE_CALLS - 1):
            assert budget.run_one_shot(pure, Plan(True), ()) is None
            assert not pure.long
        assert budget.run_one_shot(pure, Plan(False), ()) == "done"
    for _ in range(inline.LATE_CALLS):
        budget.run_one_shot(pure, Plan(True), ())
    assert pure.long


def test_only_guests_without_imports_that_a_timer_can_end_run_inline(runtime):
    for module, export in ((IMPORTS, "main"), (BIG, "fill")):
        function = runtime.load(module)
        assert not function.pure
        assert function.dispatch.begin_pure(export, (), "default") is None


def test_an_inline_call_that_was_ended_does_not_change_the_outcome(pure):
    n = 200_000_000  # long enough for a timer that is late
    assert pure.dispatch.begin_pure("sum", (n,), "default") is None
    assert pure.submit("sum", (n,)).result(60).values == (n * (n + 1) // 2,)
