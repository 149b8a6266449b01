"""While compiled code is being loaded, Python does its work: what is submitted has threads, and afterwards fibers."""

import asyncio
import functools
import threading
import time

import pytest
from wasmtime import wat2wasm

from tensorwasm.guest.native import loading
from tensorwasm.runtime import Runtime

pytestmark = pytest.mark.skipif(not loading.may_have_fibers(), reason="NO FIBERS: they need Linux and Numba")
PURE = bytes(
    wat2wasm("""(module
  (func (export "add") (param i32 i32) (result i32) local.get 0 local.get 1 i32.add)
  (func (export "spin") (loop br 0)))""")
)
SOON_S = 60.0


@pytest.fixture
def early(monkeypatch):
    """A runtime in a process whose compiled code is being made, and a function that has it made and loaded."""
    compiling, compiled = threading.Event(), threading.Event()

    def fill():
        compiling.set()
        assert compiled.wait(SOON_S)

    monkeypatch.setattr(loading, "_fill_cache", fill)
    work = threading.Thread(target=loading.begin_loading())

    def finish():
        compiled.set()
        work.join(2 * SOON_S)
        assert not loading.is_loading()

    with Runtime("emulator") as runtime:
        assert loading.is_loading()  # from here on, before any thread has begun
        work.start()
        try:
            assert compiling.wait(SOON_S)
            yield runtime, finish
        finally:
            finish()


def test_calls_do_not_wait_for_compiled_code_and_use_it_once_loaded(early):
    runtime, finish = early
    function = runtime.load(PURE)
    assert function.submit("add", (1, 2)).result(SOON_S).values == (3,)
    assert function.invoke("add", (2, 2)).values == (4,)
    assert asyncio.run(function.invoke_async("add", (3, 2))).values == (5,)
    (before,) = function.dispatch.plans.values()
    assert runtime.fibers.statistics().polls == 0
    finish()
    assert not function.dispatch.plans, "its sandboxes would do without compiled code for ever"
    assert function.submit("add", (4, 2)).result(SOON_S).values == (6,)
    assert function.invoke("add", (5, 2)).values == (7,)
    (after,) = function.dispatch.plans.values()
    assert after is not before
    assert runtime.fibers.statistics().polls >= 1  # a slice that ended early is one more


def test_an_event_loop_makes_short_calls_itself_and_ends_long_ones_meanwhile(early):
    runtime, _ = early
    function = runtime.load(PURE)
    function.engine.require_ticker()
    ends_s = time.monotonic() + SOON_S
    while (found := function.dispatch.begin_pure("add", (1, 2), "default")) is None:
        assert time.monotonic() < ends_s, "another process has had the processor all the time"
    assert found.values == (3,)
    assert function.dispatch.begin_pure("spin", (), "default") is None


def test_what_is_to_be_done_once_loaded_is_done_then_and_once(early):
    _, finish = early
    done = []
    later = functools.partial(done.append, "then")
    for _ in range(2):
        loading.once_loaded(later)
    assert done == []
    finish()
    assert done == ["then"]
    loading.once_loaded(later)
    assert done == ["then", "then"]
