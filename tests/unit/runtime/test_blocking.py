"""Calls on the thread that makes them, ended by another."""

import threading

import pytest
from wasmtime import wat2wasm

from tensorwasm import Limits, Runtime
from tensorwasm.errors import GuestTrap
from tensorwasm.runtime.invoke.full import run_full
from tensorwasm.runtime.invoke.invocation import make_call

SPINS = '(module (func (export "begin") {begin}) (func (export "spin") (loop (br 0))) (func (export "main")) {start})'
FOREVER = "(loop (br 0))"


@pytest.fixture(scope="module")
def runtime():
    with Runtime("emulator", limits=Limits(wall_s=20)) as runtime:
        yield runtime


def load(runtime, begin="", start=""):
    return runtime.load(bytes(wat2wasm(SPINS.format(begin=begin, start=start))))


def end_soon(function, export):
    """Return how a call ended that is ended once it is known how."""
    threads = []

    def announce(end):
        threads.append(threading.Timer(0.05, end))
        threads[-1].start()

    with pytest.raises(GuestTrap) as ended:
        run_full(make_call(function, export, ()), announce=announce)
    assert len(threads) == 1
    return ended.value.trap


def test_a_call_can_be_ended(runtime):
    assert end_soon(load(runtime), "spin") == "cancelled"


def test_a_start_function_can_be_ended(runtime):
    function = load(runtime, start=f"(func $s {FOREVER}) (start $s)")
    assert end_soon(function, "main") == "cancelled"


def test_an_initialiser_can_be_ended(runtime):
    function = load(runtime, begin=FOREVER)
    function.warm(0, initialiser="begin")
    assert end_soon(function, "main") == "cancelled"


def test_a_call_in_a_warm_sandbox_can_be_ended(runtime):
    function = load(runtime, start="(func $s) (start $s)")
    function.warm(1)
    ends, waiting = threading.Event(), runtime.warm.statistics
    while not waiting().warm:
        assert not ends.wait(0.005)
    assert end_soon(function, "spin") == "cancelled"
    assert waiting().hits == 1


def test_work_that_is_ended_before_it_begins_never_runs(runtime):
    function = load(runtime, start=f"(func $s {FOREVER}) (start $s)")
    with pytest.raises(GuestTrap) as ended:
        run_full(make_call(function, "main", ()), announce=lambda end: end())
    assert ended.value.trap == "cancelled"
