"""Threads that take turns at reading: what is handled, in which order, and by whom while a call takes long."""

from __future__ import annotations

import os
import socket
import sys
import threading

import pytest

from tensorwasm.runtime.workers.child.crew import Crew
from tensorwasm.yielding import NICE

if sys.platform == "win32":
    pytest.skip("workers need Linux or macOS", allow_module_level=True)

LIMIT_S = 60.0


class Handler:
    """Handles bytes: ``h`` is a call that is held up until `go`, ``b`` a bug, all others short calls."""

    def __init__(self):
        self.crew = Crew(self.handle, self.flush, self.note)
        self.stalls = []
        self.go = threading.Event()
        self.changed = threading.Condition()
        self.handled, self.sent, self.left, self.leading = [], b"", [], 0
        self.held = []
        self.ours, self.theirs = socket.socketpair()
        self.crew.add(self.theirs, lambda: [bytes([each]) for each in self.theirs.recv(1 << 16)])
        self.crew.start()

    def handle(self, item):
        if item == b"b":
            raise RuntimeError("a bug")
        mark = self.crew.enter(item.decode("latin-1"))
        if item == b"h":
            self.held.append(threading.get_native_id())
            assert self.go.wait(LIMIT_S)
        leads = self.crew.leave(mark)
        with self.changed:
            (self.handled if leads else self.left).append((item, threading.get_ident()))
            self.changed.notify_all()

    def note(self, whose):
        self.stalls.append((whose, threading.get_ident()))

    def flush(self):
        with self.changed:
            self.sent = b"".join(item for item, _ in self.handled)
            self.changed.notify_all()

    def wait(self, holds):
        with self.changed:
            assert self.changed.wait_for(holds, LIMIT_S)


@pytest.fixture
def handler():
    made = Handler()
    yield made
    made.go.set()  # its threads are daemons, and read nothing more
    made.theirs.close()
    made.ours.close()


def test_short_calls_are_made_in_order_on_one_thread_and_all_are_sent(handler):
    said = bytes(range(1, 60))
    handler.ours.sendall(said)
    handler.wait(lambda: handler.sent == said)
    assert len({thread for _, thread in handler.handled}) == 1
    assert not handler.left


@pytest.mark.skipif(sys.platform != "linux", reason="threads have a priority of their own on Linux")
def test_a_call_that_takes_long_has_less_weight_than_those_who_go_on(handler):
    handler.ours.sendall(b"h4h5")
    handler.wait(lambda: handler.sent == b"45")
    usual = os.getpriority(os.PRIO_PROCESS, os.getpid())
    expected = min(usual + NICE, 19)
    assert [os.getpriority(os.PRIO_PROCESS, each) for each in handler.held] == [expected, expected]
    own = {each.native_id for each in threading.enumerate() if each.name == "tensorwasm-crew"} - {*handler.held}
    assert {os.getpriority(os.PRIO_PROCESS, each) for each in own} == {usual}


@pytest.mark.parametrize("before", [b"", b"123"])
def test_a_call_that_takes_long_delays_neither_others_nor_the_answers_before_it(handler, before):
    handler.ours.sendall(before + b"h456")
    handler.wait(lambda: handler.sent == before + b"456")
    handler.ours.sendall(b"78")
    handler.wait(lambda: handler.sent == before + b"45678")
    assert not handler.left
    handler.go.set()
    handler.wait(lambda: handler.left)
    (item, thread), *_ = handler.left
    assert item == b"h"
    (leader,) = {each for _, each in handler.handled[len(before) :]}
    assert thread != leader
    assert handler.stalls == [("h", leader)]
    handler.ours.sendall(b"9")
    handler.wait(lambda: handler.sent == before + b"456789")


def test_any_number_of_calls_may_take_long_at_once(handler):
    handler.ours.sendall(b"hhhhh1")
    handler.wait(lambda: handler.sent == b"1")
    handler.go.set()
    handler.wait(lambda: len(handler.left) == 5)
    assert len({thread for _, thread in handler.left}) == 5


def test_a_watcher_that_sleeps_is_woken_by_the_next_call(handler):
    handler.ours.sendall(b"1")
    while not handler.crew._asleep:
        pass
    handler.ours.sendall(b"h2")
    handler.wait(lambda: handler.sent == b"12")


def test_a_bug_costs_its_item_alone(handler):
    handler.ours.sendall(b"1b2")
    handler.wait(lambda: handler.sent == b"12")
