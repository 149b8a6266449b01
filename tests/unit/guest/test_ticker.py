from __future__ import annotations

import os
import sys
import threading

import pytest

from tensorwasm.errors import InvokeTimeout, TickerNotRunning
from tensorwasm.guest.engine import ticker as tickers
from tensorwasm.guest.engine.engine import Engine, EngineConfig
from tensorwasm.guest.engine.module import compile_module
from tensorwasm.guest.sandbox.instance import Instance
from tensorwasm.guest.sandbox.linker import Linker
from tensorwasm.values import Deadline


@pytest.fixture(scope="module")
def own_engine():
    """An engine whose ticker may be broken."""
    return Engine(EngineConfig(slots=2))


@pytest.fixture
def stopped(own_engine):
    """The same engine with its ticker stopped, and a new one afterwards."""
    own_engine.ticker.stop()
    yield own_engine
    own_engine.ticker = tickers.start(own_engine.address, own_engine.config.tick_s)


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
            own_engine.ticker = tickers.start(own_engine.address, own_engine.config.tick_s)


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
