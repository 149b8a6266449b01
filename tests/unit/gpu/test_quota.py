"""The ledger counts exactly; the gate waits no longer than it may."""

import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorwasm.errors import CapacityExhausted, QuotaExceeded
from tensorwasm.gpu.quota import Gate, Ledger, LedgerStatistics
from tensorwasm.values import Deadline


def test_the_ledger_grants_its_last_byte_and_no_more():
    ledger = Ledger(max_bytes=100, max_allocations=10)
    ledger.reserve(100)
    with pytest.raises(QuotaExceeded):
        ledger.reserve(1)
    assert ledger.statistics() == LedgerStatistics(1, 100)


def test_the_ledger_grants_its_last_allocation_and_no_more():
    ledger = Ledger(max_bytes=100, max_allocations=2)
    ledger.reserve(1)
    ledger.reserve(1)
    with pytest.raises(QuotaExceeded):
        ledger.reserve(1)
    ledger.reserve(1, allocations=0)
    assert ledger.statistics() == LedgerStatistics(2, 3)


@given(st.lists(st.integers(0, 60), max_size=30))
def test_refusals_charge_nothing_and_releases_refund_everything(sizes):
    ledger = Ledger(max_bytes=100, max_allocations=5)
    held = []
    for size in sizes:
        try:
            ledger.reserve(size)
        except QuotaExceeded:
            assert sum(held) + size > 100 or len(held) == 5
        else:
            held.append(size)
        assert ledger.statistics() == LedgerStatistics(len(held), sum(held))
    for size in held:
        ledger.release(size)
    assert ledger.statistics() == LedgerStatistics(0, 0)


def test_threads_never_overdraw_the_ledger():
    ledger = Ledger(max_bytes=50, max_allocations=1000)
    granted = []

    def reserve():
        for _ in range(20):
            try:
                ledger.reserve(1)
            except QuotaExceeded:
                continue
            granted.append(1)

    threads = [threading.Thread(target=reserve) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(granted) == 50
    assert ledger.statistics() == LedgerStatistics(50, 50)


def test_a_gate_without_places_refuses_at_once():
    gate = Gate(0)
    with pytest.raises(CapacityExhausted):
        gate.enter(Deadline())
    assert gate.in_use == 0


def test_a_free_place_is_taken_even_near_the_deadline():
    gate = Gate(1)
    gate.enter(Deadline(at_ns=0))
    assert gate.in_use == 1


@pytest.mark.parametrize("seconds", [0.0, 0.049])
def test_near_the_deadline_a_full_gate_refuses_without_waiting(seconds):
    gate = Gate(1)
    gate.enter(Deadline())
    began = time.monotonic()
    with pytest.raises(CapacityExhausted):
        gate.enter(Deadline.after(seconds))
    assert time.monotonic() - began < 0.049
    assert gate.in_use == 1


def test_a_wait_ends_50_ms_before_the_deadline():
    gate = Gate(1)
    gate.enter(Deadline())
    deadline = Deadline.after(0.2)
    with pytest.raises(CapacityExhausted):
        gate.enter(deadline)
    assert 0 < deadline.remaining_s() <= 0.05


@pytest.mark.parametrize("seconds", [None, 60.0, 1e15])
def test_a_place_that_comes_free_is_given_to_who_waits(seconds):
    deadline = Deadline.after(seconds)
    gate = Gate(1)
    gate.enter(Deadline())
    entered = threading.Event()

    def enter():
        gate.enter(deadline)
        entered.set()

    waiter = threading.Thread(target=enter, daemon=True)
    waiter.start()
    gate.leave()
    assert entered.wait(10)
    waiter.join()
    assert gate.in_use == 1
