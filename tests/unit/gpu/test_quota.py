"""The ledger counts exactly; the gate hands places on in order, and is waited at no longer than one may."""

import random
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tensorwasm.gpu.limits.gate
from fakes.gate import Sitter
from tensorwasm.errors import CapacityExhausted, QuotaExceeded
from tensorwasm.gpu.limits.accounts import MemoryLedger, MemoryLedgerStatistics
from tensorwasm.gpu.limits.gate import Gate, patience
from tensorwasm.values import NEVER, Deadline

SOON_S = 20.0


def test_the_ledger_grants_its_last_byte_and_no_more():
    ledger = MemoryLedger(max_bytes=100, max_allocations=10)
    ledger.reserve(100)
    with pytest.raises(QuotaExceeded):
        ledger.reserve(1)
    assert ledger.statistics() == MemoryLedgerStatistics(1, 100)


def test_the_ledger_grants_its_last_allocation_and_no_more():
    ledger = MemoryLedger(max_bytes=100, max_allocations=2)
    ledger.reserve(1)
    ledger.reserve(1)
    with pytest.raises(QuotaExceeded):
        ledger.reserve(1)
    ledger.reserve(1, allocations=0)
    assert ledger.statistics() == MemoryLedgerStatistics(2, 3)


@given(st.lists(st.integers(0, 60), max_size=30))
def test_refusals_charge_nothing_and_releases_refund_everything(sizes):
    ledger = MemoryLedger(max_bytes=100, max_allocations=5)
    held = []
    for size in sizes:
        try:
            ledger.reserve(size)
        except QuotaExceeded:
            assert sum(held) + size > 100 or len(held) == 5
        else:
            held.append(size)
        assert ledger.statistics() == MemoryLedgerStatistics(len(held), sum(held))
    for size in held:
        ledger.release(size)
    assert ledger.statistics() == MemoryLedgerStatistics(0, 0)


def test_threads_never_overdraw_the_ledger():
    ledger = MemoryLedger(max_bytes=50, max_allocations=1000)
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
    assert ledger.statistics() == MemoryLedgerStatistics(50, 50)


# ------------------------------------------------------------------------------------------------------ gate


def full_gate(capacity=1, **options):
    """Return a gate and who holds its places."""
    gate = Gate(capacity, **options)
    sitters = [Sitter() for _ in range(capacity)]
    for sitter in sitters:
        gate.enter(NEVER, sitter)
    return gate, sitters


def no_asking(_gate):
    return True


def queue(gate, count):
    """Return those that now stand in line, and the list of those that were told."""
    told, waiters = [], [Sitter() for _ in range(count)]
    for waiter in waiters:
        assert gate.join(waiter, lambda waiter=waiter: told.append(waiter), NEVER)
    return waiters, told


def settle(arrived):
    ends = time.monotonic() + SOON_S
    while not arrived():
        assert time.monotonic() < ends
        threading.Event().wait(0.001)


def test_a_gate_without_permits_refuses_at_once():
    gate = Gate(0)
    for refused in (lambda: gate.enter(NEVER, Sitter()), lambda: gate.join(Sitter(), print, NEVER)):
        with pytest.raises(CapacityExhausted):
            refused()
    assert not gate.request(Sitter())
    assert not gate.offer(Sitter())
    assert (gate.in_use, gate.waiting) == (0, 0)


def test_a_free_permit_is_taken_even_near_the_deadline():
    gate = Gate(1)
    gate.enter(Deadline(at_ns=0), Sitter())
    assert gate.in_use == 1


@pytest.mark.parametrize("seconds", [0.0, 0.049])
def test_near_the_deadline_a_full_gate_refuses_without_waiting(seconds):
    gate, _ = full_gate()

    def enter() -> float:
        deadline = Deadline.after(seconds)
        began_s = time.monotonic()
        with pytest.raises(CapacityExhausted):
            gate.enter(deadline, Sitter())
        return time.monotonic() - began_s

    assert min(enter() for _ in range(3)) < 0.049
    assert (gate.in_use, gate.waiting) == (1, 0)


def test_a_wait_ends_before_the_deadline_is_near(monkeypatch):
    monkeypatch.setattr(tensorwasm.gpu.limits.gate, "DEADLINE_NEAR_S", SOON_S)
    gate, _ = full_gate()
    deadline = Deadline.after(SOON_S + 0.2)
    with pytest.raises(CapacityExhausted):
        gate.enter(deadline, Sitter())
    assert 0 < deadline.remaining_s() <= SOON_S
    assert gate.waiting == 0


def test_patience_is_over_50_ms_before_the_deadline():
    assert patience(NEVER) is NEVER
    assert patience(Deadline(at_ns=60_000_000)) == Deadline(at_ns=10_000_000)
    assert patience(Deadline(at_ns=0)).expired()


@pytest.mark.parametrize("seconds", [None, 60.0, 1e15])
def test_a_free_permit_goes_to_a_waiting_holder(seconds):
    gate, (sitter,) = full_gate()
    deadline, waiter = Deadline.after(seconds), Sitter()
    thread = threading.Thread(target=gate.enter, args=(deadline, waiter), daemon=True)
    thread.start()
    settle(lambda: gate.waiting == 1)
    gate.leave(sitter)
    thread.join(SOON_S)
    assert not thread.is_alive()
    assert gate.in_use == 1
    assert gate.request(waiter)


def test_permits_are_first_in_first_out_and_one_holder_is_notified():
    gate, sitters = full_gate(2)
    waiters, told = queue(gate, 3)
    for freed, waiter in zip([*sitters, waiters[0]], waiters, strict=True):
        assert waiter not in told
        gate.leave(freed)
        assert told[-1] is waiter
        assert gate.in_use == 2
    assert told == waiters


def test_no_holder_overtakes_the_queue():
    gate, _ = full_gate(start=no_asking)
    _, told = queue(gate, 1)
    idle = Sitter(idle=True)
    assert not gate.offer(idle)
    assert not gate.request(idle)
    assert gate.join(idle, lambda: told.append(idle), NEVER)
    with pytest.raises(CapacityExhausted):
        gate.enter(Deadline(at_ns=0), Sitter())
    assert (told, gate.waiting) == ([], 2)


def test_a_holder_keeps_its_permit_while_others_wait():
    gate, (sitter,) = full_gate(start=no_asking)
    queue(gate, 1)
    assert gate.offer(sitter)
    assert gate.request(sitter)
    assert not gate.join(sitter, print, NEVER)
    gate.enter(Deadline(at_ns=0), sitter)
    assert gate.in_use == 1


def test_giving_up_in_time_leaves_no_permit_and_too_late_keeps_it():
    gate, (sitter,) = full_gate()
    (early, late), told = queue(gate, 2)
    with pytest.raises(CapacityExhausted):
        gate.give_up(early)
    gate.leave(sitter)
    assert told == [late]
    gate.give_up(late)
    assert gate.request(late)
    gate.leave(late)
    assert gate.in_use == 0


def test_leaving_the_queue_costs_no_other_holder_a_permit():
    gate, (sitter,) = full_gate()
    (gone, stays), told = queue(gate, 2)
    gate.leave(gone)
    assert (told, gate.in_use, gate.waiting) == ([], 1, 1)
    gate.leave(sitter)
    gate.leave(gone)
    assert (told, gate.in_use, gate.waiting) == ([stays], 1, 0)


def test_an_idle_permit_is_taken_back_for_the_first_in_the_queue():
    gate, (sitter,) = full_gate()
    sitter.idle = True
    newcomer = Sitter()
    assert not gate.offer(newcomer)
    assert gate.request(newcomer)
    assert not gate.request(sitter)


def test_one_thread_asks_the_holders_and_ends_with_the_queue():
    def askers():
        return [thread for thread in threading.enumerate() if thread.name == "tensorwasm-gate" and thread not in before]

    before = threading.enumerate()
    gate, sitters = full_gate(3)
    assert not askers()
    waiters, told = queue(gate, 50)
    settle(lambda: sitters[2].asked > 2)
    assert len(askers()) == 1
    sitters[1].idle = True
    settle(lambda: told == waiters[:1])
    assert gate.in_use == 3
    for waiter in waiters[1:]:
        gate.leave(waiter)
    settle(lambda: not askers())
    queue(gate, 1)
    assert len(askers()) == 1
    gate.leave(sitters[0])
    settle(lambda: not askers())


def test_without_a_thread_permits_are_still_handed_over(monkeypatch):
    def refuse(_thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    gate, (sitter,) = full_gate()
    waiters, told = queue(gate, 1)
    gate.leave(sitter)
    assert told == waiters


def test_a_signal_that_ends_a_wait_leaves_the_queue(monkeypatch):
    gate, (sitter,) = full_gate(start=no_asking)

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Event, "wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        gate.enter(NEVER, Sitter())
    assert gate.waiting == 0
    gate.leave(sitter)
    assert gate.in_use == 0


def test_threads_and_callbacks_lose_no_permit_and_get_none_twice():
    gate, holding, most = Gate(3), [], []

    def work(number):
        choose, me = random.Random(number), Sitter()
        for _ in range(60):
            came = threading.Event()
            try:
                if choose.random() < 0.5:
                    gate.enter(Deadline.after(choose.choice([0.0505, 0.052, 60])), me)
                elif gate.join(me, came.set, NEVER) and not came.wait(choose.choice([0.0, 0.002, 60])):
                    gate.give_up(me)
            except CapacityExhausted:
                continue
            holding.append(me)
            most.append(len(holding))
            holding.remove(me)
            gate.leave(me)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON_S)
    assert not any(thread.is_alive() for thread in threads)
    assert max(most) <= 3
    assert (gate.in_use, gate.waiting) == (0, 0)
