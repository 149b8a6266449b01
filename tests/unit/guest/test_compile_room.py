"""The memory that all compilations of a process share: `tensorwasm.guest.engine.compile_capacity`."""

import threading
from concurrent.futures import CancelledError

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorwasm.guest.engine import compile_capacity
from tensorwasm.guest.engine.compile_capacity import LEAST_BYTES, CompileCapacity, shared_room
from tensorwasm.runtime.deploy.stop_hook import StopHook


@settings(max_examples=30, deadline=None)
@given(sizes=st.lists(st.integers(0, 100), min_size=1, max_size=12), places=st.integers(1, 4))
def test_what_is_held_never_passes_the_whole_and_all_get_their_turn(sizes, places):
    room, lock, held, most = CompileCapacity(100, places), threading.Lock(), [], []

    def work(size):
        with room.hold(size):
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
    assert max(count for _, count in most) <= places


def test_one_that_is_stopped_while_it_waits_leaves_the_line_to_others():
    room, stopped, seen = CompileCapacity(100, 4), StopHook(), []

    def wait():
        with pytest.raises(CancelledError), room.hold(100, stopped):
            seen.append("held")  # pragma: no cover - it is not had
        seen.append("stopped")

    with room.hold(50):
        waiting = threading.Thread(target=wait)
        waiting.start()
        stopped.stop()
        waiting.join()
        with room.hold(50):
            seen.append("another")
    assert seen == ["stopped", "another"]


def test_what_was_held_is_free_again_whatever_happens():
    room = CompileCapacity(100, 1)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError), room.hold(100):
            raise ZeroDivisionError
    with room.hold(100):
        pass


def test_a_process_has_one_room():
    assert shared_room(None, 2) is shared_room(None, 2)
    assert shared_room(None, 2).whole_bytes >= LEAST_BYTES
    assert shared_room(1 << 20, 2).whole_bytes == 1 << 20


def test_threads_that_ask_first_at_the_same_time_get_the_same_room(monkeypatch):
    """A case of 2026-11-22: each of four got a room of its own, and more compiled at a time than there are places."""
    places, found, threads = 1_000_001, [], []  # a room that no other test asks for

    def ask():
        found.append(shared_room(None, places))

    def limit():
        if not threads:  # while one finds out how large the room is, another asks
            threads.append(threading.Thread(target=ask))
            threads[0].start()
            threads[0].join(0.2)
        return 1 << 40

    monkeypatch.setattr(compile_capacity.machine_memory, "limit_bytes", limit)
    ask()
    threads[0].join()
    assert found[0] is found[1]
