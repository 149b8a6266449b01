from __future__ import annotations

import os
import sys
import threading
import time

import pytest

from tensorwasm.errors import InvokeTimeout, TickerNotRunning
from tensorwasm.guest.engine import ticker as tickers
from tensorwasm.guest.engine.engine import Engine, EngineConfig
from tensorwasm.guest.engine.module import compile_module
from tensorwasm.guest.sandbox.instance import Instance
from tensorwasm.guest.sandbox.linker import Linker
from tensorwasm.values import Deadline

SOON_S = 60.0


@pytest.fixture(scope="module")
def own_engine():
    """An engine whose ticker may be broken."""
    return Engine(EngineConfig(slots=2))


@pytest.fixture
def stopped(own_engine):
    """The same engine with its ticker stopped, and a new one afterwards."""
    own_engine.ticker.stop()
    yield own_engine
    own_engine.ticker = _make_ticker(own_engine)


def _make_ticker(engine):
    return tickers.make(engine.address, engine.config.tick_s, lambda: engine.free_slots == engine.config.slots)


def test_a_stopped_ticker_refuses_new_sandboxes_and_calls(own_engine, stopped, wat):
    prepared = Linker(own_engine).prepare(compile_module(own_engine, wat('(module (func (export "f")))')))
    with pytest.raises(TickerNotRunning):
        Instance(prepared)
    assert own_engine.free_slots == 2


def test_a_sandbox_made_before_the_ticker_stopped_is_not_called(own_engine, wat):
    prepared = Linker(own_engine).prepare(compile_module(own_engine, wat('(module (func (export "f")))')))
    with Instance(prepared) as instance:
        assert instance.call("f") == []
        own_engine.ticker.stop()
        try:
            with pytest.raises(TickerNotRunning):
                instance.call("f")
        finally:
            own_engine.ticker = _make_ticker(own_engine)


def test_stopping_twice_is_harmless(own_engine, stopped):
    stopped.ticker.stop()
    assert not stopped.ticker.running


@pytest.mark.skipif(sys.platform != "linux", reason="POSIX timers are Linux's")
@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_forked_child_has_no_ticker(own_engine):
    assert isinstance(own_engine.ticker, tickers.PosixTicker)
    assert own_engine.ticker.running
    child = os.fork()
    if not child:
        os._exit(own_engine.ticker.running)
    assert os.waitpid(child, 0)[1] == 0
    assert own_engine.ticker.running


def test_the_thread_ticker_stops_guests_too(own_engine, stopped, wat):
    stopped.ticker = tickers.ThreadTicker(stopped.address, 0.005)
    try:
        assert stopped.ticker.running
        prepared = Linker(stopped).prepare(compile_module(stopped, wat('(module (func (export "f") (loop (br 0))))')))
        with Instance(prepared) as instance, pytest.raises(InvokeTimeout):
            instance.call("f", deadline=Deadline.after(0.03))
    finally:
        stopped.ticker.stop()
    assert not stopped.ticker.running
    assert "tensorwasm-epoch-ticker" not in {thread.name for thread in threading.enumerate()}


@pytest.fixture
def spinning(own_engine, wat):
    """A module whose function never ends."""
    code = compile_module(own_engine, wat('(module (func (export "f") (loop (br 0))))'))
    return Linker(own_engine).prepare(code)


@pytest.fixture
def impatient(monkeypatch):
    """Looks for engines without a sandbox follow each other closely."""
    monkeypatch.setattr(tickers, "LOOK_S", 0.001)


def _wait_for_rest(engine):
    ends_s = time.monotonic() + SOON_S
    while engine.ticker.ticking:
        assert time.monotonic() < ends_s
        time.sleep(0.001)


@pytest.mark.skipif(sys.platform != "linux", reason="POSIX timers are Linux's")
def test_an_engine_ticks_while_it_has_a_sandbox(own_engine, impatient, spinning):
    for _ in range(2):
        _wait_for_rest(own_engine)
        with Instance(spinning) as instance:
            assert own_engine.ticker.ticking
            own_engine.ticker.rest()
            assert own_engine.ticker.ticking
            with pytest.raises(InvokeTimeout):
                instance.call("f", deadline=Deadline.after(0.03))
    assert own_engine.ticker.running


@pytest.mark.skipif(sys.platform != "linux", reason="POSIX timers are Linux's")
def test_whenever_a_ticker_rests_no_sandbox_goes_without_it(own_engine, impatient, spinning, monkeypatch):
    """Sandboxes begin just when it is looked whether there are any: each guest that never ends is ended."""
    monkeypatch.setattr(tickers, "LOOK_S", 0.0)
    for _ in range(100):
        with Instance(spinning) as instance, pytest.raises(InvokeTimeout):
            instance.call("f", deadline=Deadline.after(0.001))
    _wait_for_rest(own_engine)


@pytest.mark.skipif(sys.platform != "linux", reason="POSIX timers are Linux's")
def test_a_sandbox_that_gets_no_ticks_is_not_made(own_engine, stopped, spinning):
    with pytest.raises(TickerNotRunning):
        Instance(spinning)
    assert stopped.free_slots == stopped.config.slots


@pytest.mark.skipif(sys.platform != "linux", reason="POSIX timers are Linux's")
def test_where_no_thread_can_be_started_an_engine_ticks_on(own_engine, impatient, spinning, monkeypatch):
    _wait_for_rest(own_engine)

    def refuse(_thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        instance = Instance(spinning)
    with instance, pytest.raises(InvokeTimeout):
        instance.call("f", deadline=Deadline.after(0.001))
    assert own_engine.ticker.ticking
    own_engine.ticker.stop()
    own_engine.ticker = _make_ticker(own_engine)
    Instance(spinning).close()
    _wait_for_rest(own_engine)
