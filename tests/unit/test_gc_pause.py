"""The collector of cycles pauses for one block at a time, and is on again afterwards."""

import gc
import subprocess
import sys
import threading

import pytest

from tensorwasm.gc_pause import gc_paused


@pytest.fixture(autouse=True)
def enabled():
    before = gc.isenabled()
    gc.enable()
    yield
    (gc.enable if before else gc.disable)()


def test_collection_is_off_inside_and_on_afterwards_even_after_an_error():
    found = []

    def fail():
        with gc_paused():
            found.append(gc.isenabled())
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert found == [False]
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off():
    gc.disable()
    with gc_paused():
        assert not gc.isenabled()
    assert not gc.isenabled()


def test_a_block_that_begins_inside_another_does_not_make_the_pause_longer():
    entered, may_end = threading.Event(), threading.Event()

    def second():
        with gc_paused():
            entered.set()
            may_end.wait(10)

    thread = threading.Thread(target=second)
    with gc_paused():
        thread.start()
        assert entered.wait(10)
    assert gc.isenabled()
    may_end.set()
    thread.join()
    assert gc.isenabled()
    with gc_paused():
        assert not gc.isenabled()


def test_a_process_that_serves_never_visits_again_what_it_had():
    child = """
import gc, weakref
from tensorwasm.gc_pause import collect_seldom
class Node: pass
def cycle():
    node = Node(); node.own = node
    return weakref.ref(node)
before, usual = cycle(), gc.get_threshold()
kept = Node(); kept.own = kept; late = weakref.ref(kept)
collect_seldom()
assert before() is None
del kept
after = cycle()
gc.collect()
assert after() is None and late() is not None
assert all(now > then for now, then in zip(gc.get_threshold(), usual, strict=True))
"""
    subprocess.run([sys.executable, "-c", child], check=True, timeout=60)
