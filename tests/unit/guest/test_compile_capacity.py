"""The memory that all compilations of a process share: `tensorwasm.guest.engine.compile_capacity`."""

import threading
import time
from concurrent.futures import CancelledError

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorwasm.guest.engine import compile_capacity
from tensorwasm.guest.engine.compile_capacity import LEAST_BYTES, CompileCapacity, Share, shared_capacity, slot_count
from tensorwasm.runtime.deploy.deployer import StopHook


def until(true):
    while not true():
        time.sleep(0)


@settings(max_examples=30, deadline=None)
@given(sizes=st.lists(st.integers(0, 100), min_size=1, max_size=12), slots=st.integers(1, 4))
def test_compilations_never_hold_more_than_the_capacity_and_all_run(sizes, slots):
    capacity, lock, held, most = CompileCapacity(100, slots), threading.Lock(), [], []

    def work(size):
        with capacity.hold(size):
            with lock:
                held.append(size)
                most.append((sum(held), len(held)))
            with lock:
                held.remove(size)

    threads = [threading.Thread(target=work, args=(size,)) for size in sizes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(most) == len(sizes)
    assert max(size for size, _ in most) <= 100
    assert max(count for _, count in most) <= slots


def test_a_compilation_stopped_while_waiting_does_not_block_others():
    capacity, stopped, seen = CompileCapacity(100, 4), StopHook(), []

    def wait():
        with pytest.raises(CancelledError), capacity.hold(100, stop=stopped):
            seen.append("held")  # pragma: no cover - it is not had
        seen.append("stopped")

    with capacity.hold(50):
        waiting = threading.Thread(target=wait)
        waiting.start()
        stopped.stop()
        waiting.join()
        with capacity.hold(50):
            seen.append("another")
    assert seen == ["stopped", "another"]


@settings(max_examples=20, deadline=None)
@given(flood=st.integers(1, 12), processors=st.integers(1, 8), large=st.integers(1, 100))
def test_a_tenants_queue_does_not_delay_the_first_compilation_of_another(flood, processors, large):
    capacity, end, threads = CompileCapacity(1000, slot_count(processors)), threading.Event(), []

    def work():
        with capacity.hold(large, Share("many")):
            end.wait()

    for _ in range(flood):
        threads.append(threading.Thread(target=work))
        threads[-1].start()
    until(lambda: capacity.gate.statistics().waiting == flood - min(flood, slot_count(processors) // 2))
    with capacity.hold(100, Share("one")):
        end.set()
    for thread in threads:
        thread.join()


def test_of_those_that_wait_for_memory_the_tenant_with_the_least_goes_first():
    capacity, end, seen, threads = CompileCapacity(100, 8), threading.Event(), [], []

    def work(tenant, size):
        with capacity.hold(size, Share(tenant)):
            seen.append((tenant, size))
            end.wait()

    for tenant, size in (("many", 60), ("many", 80), ("one", 40)):
        threads.append(threading.Thread(target=work, args=(tenant, size)))
        threads[-1].start()
        until(lambda: len(seen) + len(capacity._waiting) == len(threads))
    until(lambda: len(seen) == 2)
    assert seen == [("many", 60), ("one", 40)]
    end.set()
    for thread in threads:
        thread.join()
    assert seen[2:] == [("many", 80)]
    assert capacity._held == {}


def test_capacity_is_returned_on_every_exit():
    capacity = CompileCapacity(100, 1)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError), capacity.hold(100):
            raise ZeroDivisionError
    with capacity.hold(100):
        pass


def test_a_process_has_one_compile_capacity():
    assert shared_capacity(None, 2) is shared_capacity(None, 2)
    assert shared_capacity(None, 2).whole_bytes >= LEAST_BYTES
    assert shared_capacity(1 << 20, 2).whole_bytes == 1 << 20


def test_concurrent_first_callers_get_the_same_capacity(monkeypatch):
    """A case of 2026-11-22: each of four got a capacity of its own, so more compiled at a time than slots."""
    slots, found, threads = 1_000_001, [], []  # a capacity that no other test asks for

    def ask():
        found.append(shared_capacity(None, slots))

    def limit():
        if not threads:  # while one finds out how large the capacity is, another asks
            threads.append(threading.Thread(target=ask))
            threads[0].start()
            threads[0].join(0.2)
        return 1 << 40

    monkeypatch.setattr(compile_capacity.machine_memory, "limit_bytes", limit)
    ask()
    threads[0].join()
    assert found[0] is found[1]
