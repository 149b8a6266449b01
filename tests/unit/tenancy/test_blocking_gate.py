"""The fair gate for threads: turns, bounds and waiters that are stopped."""

import itertools
import threading
import time
from concurrent.futures import CancelledError

import pytest

from tensorwasm.errors import RateLimited
from tensorwasm.runtime.deploy.deployer import StopHook
from tensorwasm.tenancy import blocking_gate
from tensorwasm.tenancy.blocking_gate import BlockingGate


def until(true):
    while not true():
        time.sleep(0)


def test_waiters_get_their_turns_by_weight_and_leave_nothing(monkeypatch):
    monkeypatch.setattr(blocking_gate.time, "monotonic", itertools.count().__next__)  # each turn takes a second
    gate, had, begin, threads = BlockingGate(1), [], threading.Event(), []

    def work(tenant, weight):
        with gate.hold(tenant, weight, 1.0):
            had.append(tenant)

    def first():
        with gate.hold("first"):
            begin.wait()

    threads.append(threading.Thread(target=first))
    threads[0].start()
    until(lambda: gate.statistics().free == 0)
    for tenant, weight in [("light", 1.0)] * 4 + [("heavy", 3.0)] * 4:
        threads.append(threading.Thread(target=work, args=(tenant, weight)))
        threads[-1].start()
        until(lambda: gate.statistics().waiting == len(threads) - 1)
    begin.set()
    for thread in threads:
        thread.join()
    assert sorted(had) == ["heavy"] * 4 + ["light"] * 4
    assert had[:5].count("heavy") >= 3
    assert (gate.statistics().free, gate.statistics().waiting, gate.statistics().tenants) == (1, 0, 0)


def test_a_stopped_waiter_is_cancelled_and_takes_no_turn():
    gate, work, seen = BlockingGate(1), StopHook(), []

    def wait():
        with pytest.raises(CancelledError), gate.hold("a", stop=work):
            seen.append("held")  # pragma: no cover - it is not had
        seen.append("stopped")

    with gate.hold("b"):
        waiting = threading.Thread(target=wait)
        waiting.start()
        until(lambda: gate.statistics().waiting == 1)
        work.stop()
        waiting.join()
    with gate.hold("c"):
        seen.append("another")
    assert seen == ["stopped", "another"]


def test_one_that_was_stopped_before_it_waits_is_cancelled():
    gate, work = BlockingGate(1), StopHook()
    work.stop()
    with gate.hold("b"), pytest.raises(CancelledError), gate.hold("a", stop=work):
        pass  # pragma: no cover - it is not had
    assert gate.statistics().waiting == 0


def test_a_tenant_with_too_many_waiters_is_refused_and_others_are_not():
    gate, end, threads = BlockingGate(1, queue_per_tenant=1), threading.Event(), []

    def work(tenant):
        with gate.hold(tenant):
            end.wait()

    for tenant in ("a", "a", "b"):
        threads.append(threading.Thread(target=work, args=(tenant,)))
        threads[-1].start()
        until(lambda: gate.statistics().waiting == len(threads) - 1)
    with pytest.raises(RateLimited), gate.hold("a"):
        pass  # pragma: no cover - it is not had
    end.set()
    for thread in threads:
        thread.join()
    assert gate.statistics().free == 1
