from __future__ import annotations

import ctypes
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("numba")

from tensorwasm.gpu.native.layout import Wait
from tensorwasm.guest.native.waiting import make_code
from tensorwasm.guest.reactor.completion_queue import CompletionQueue

CODE = make_code()
COMPLETE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(CODE.complete)
PADS = 1000


def notify(inbox: CompletionQueue, waits: list[Wait]) -> None:
    for wait in waits:
        wait.queue = inbox.address
        COMPLETE(ctypes.addressof(wait))


def collect(inbox: CompletionQueue, count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        inbox.wait(20.0)
        found += inbox.take()
    return found


@settings(max_examples=20)
@given(threads=st.integers(1, 8), late=st.booleans())
def test_every_notification_arrives_exactly_once_whoever_sends_it(threads, late):
    inbox, waits = CompletionQueue(CODE), [Wait() for _ in range(PADS)]
    senders = [threading.Thread(target=notify, args=(inbox, waits[at::threads])) for at in range(threads)]
    for sender in senders:
        sender.start()
    if late:
        for sender in senders:
            sender.join()
    found = collect(inbox, PADS)
    for sender in senders:
        sender.join()
    assert sorted(found) == sorted(map(ctypes.addressof, waits))
    assert 1 <= inbox.wakes <= PADS
    assert list(inbox.take()) == []
    inbox.close(0)


def test_many_notifications_are_one_wake_and_come_in_order():
    inbox, waits = CompletionQueue(CODE), [Wait() for _ in range(PADS)]
    notify(inbox, waits)
    inbox.wait(20.0)
    assert list(inbox.take()) == [ctypes.addressof(wait) for wait in waits]
    inbox.wait(0)
    assert inbox.wakes == 1
    inbox.close(0)


def test_a_wake_is_not_lost_between_two_waits():
    inbox = CompletionQueue(CODE)
    inbox.wake()
    inbox.wake()
    inbox.wait(20.0)
    inbox.wait(0)
    assert inbox.wakes == 1
    inbox.close(0)


def test_a_late_writer_wakes_whoever_has_the_inbox_next_and_nobody_elses_descriptor():
    inbox = CompletionQueue(CODE)
    inbox.close(0)
    inbox.wake()
    again = CompletionQueue.open(CODE)
    assert again is inbox
    again.wait(20.0)
    assert list(again.take()) == []
    again.close(0)


def test_what_comes_after_the_end_reaches_a_mailbox_that_is_still_there():
    inbox, wait = CompletionQueue(CODE), Wait()
    inbox.close(1)
    assert CompletionQueue.open(CODE) is not inbox
    notify(inbox, [wait])
    assert list(inbox.take()) == [ctypes.addressof(wait)]


@pytest.mark.parametrize("seconds", [0.0, 1e7, 1e18, float("inf"), None])
def test_any_time_can_be_waited_for(seconds):
    inbox = CompletionQueue(CODE)
    inbox.wake()
    inbox.wait(seconds)
    assert inbox.wakes == 1
    inbox.close(0)
