"""The alarm that ends a guest's first slice."""

from __future__ import annotations

import gc
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorwasm.errors import TickerNotRunning
from tensorwasm.guest.engine.engine import Engine, EngineConfig
from tensorwasm.guest.engine.ticker import timer_library
from tensorwasm.guest.reactor import preemption_timer
from tensorwasm.guest.reactor.preemption_timer import SLICE_NS, PreemptionTimer

pytestmark = pytest.mark.skipif(timer_library() is None, reason="POSIX timers are Linux's")


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine.shared(EngineConfig(slots=2))


@given(st.lists(st.tuples(st.integers(0, 3 * SLICE_NS), st.booleans()), max_size=50))
def test_the_timer_fires_between_half_a_slice_and_a_slice_after_each_set(engine, steps):
    made, now_ns, fires_ns = PreemptionTimer(engine.address, SLICE_NS), 10**12, 0

    def set_time(_timer: Any, _flags: int, spec: Any, _old: None) -> None:
        nonlocal fires_ns
        fires_ns = now_ns + spec._obj.first_ns if spec._obj.first_ns else 0

    made._set_time = set_time
    for idle_ns, ends in steps:
        now_ns += idle_ns
        made.set(now_ns)
        assert SLICE_NS // 2 <= fires_ns - now_ns <= SLICE_NS
        if ends:
            made.rest()


def test_the_timer_does_not_fire_for_rare_guests(engine):
    made, calls = PreemptionTimer(engine.address, SLICE_NS), []
    made._set_time = lambda _timer, _flags, spec, _old: calls.append(spec._obj.first_ns)
    for now_ns in (10**12, 2 * 10**12, 2 * 10**12 + 1000, 2 * 10**12 + 2000):
        made.set(now_ns)
        made.rest()
    assert calls == [SLICE_NS, 0, SLICE_NS, 0, SLICE_NS]


def test_each_thread_has_one_of_its_own_which_ends_with_it(engine):
    mine, theirs = preemption_timer.find_timer(engine), []
    thread = threading.Thread(target=lambda: theirs.append(id(preemption_timer.find_timer(engine))))
    thread.start()
    thread.join()
    gc.collect()
    assert mine is preemption_timer.find_timer(engine)
    assert theirs != [id(mine)]


def test_without_timers_a_slice_is_a_tick(monkeypatch):
    def refuse(*_: object) -> None:
        raise TickerNotRunning("no timer")

    monkeypatch.setattr(preemption_timer, "PreemptionTimer", refuse)
    runs: list[bool] = []
    fiber: Any = SimpleNamespace(
        state=SimpleNamespace(engine=SimpleNamespace(address=1), check=lambda: None),
        run=lambda briefly: bool(runs.append(briefly)),
        waits=False,
        long=False,
    )
    ticks = iter(range(0, 10 * SLICE_NS, SLICE_NS // 2))
    assert not preemption_timer.run_first_slice(fiber, clock_ns=lambda: next(ticks))
    assert (runs, fiber.long) == ([False], True)
    preemption_timer._of_thread.timers.pop((1, SLICE_NS))
