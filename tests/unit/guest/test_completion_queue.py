from __future__ import annotations

import ctypes
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("numba")

from tensorwasm.gpu.native.layout import Wait
from tensorwasm.guest.native.compiled import make_suspension_code
from tensorwasm.guest.reactor.notifications import CompletionQueue

CODE = make_suspension_code()
COMPLETE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(CODE.complete)
PADS = 1000


def notify(queue: CompletionQueue, waits: list[Wait]) -> None:
    for wait in waits:
        wait.queue = queue.address
        COMPLETE(ctypes.addressof(wait))


def collect(queue: CompletionQueue, count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        queue.wait(20.0)
        found += queue.take()
    return found


@settings(max_examples=20)
@given(threads=st.integers(1, 8), late=st.booleans())
def test_every_notification_arrives_exactly_once_from_any_thread(threads, late):
    queue, waits = CompletionQueue(CODE), [Wait() for _ in range(PADS)]
    senders = [threading.Thread(target=notify, args=(queue, waits[at::threads])) for at in range(threads)]
    for sender in senders:
        sender.start()
    if late:
        for sender in senders:
            sender.join()
    found = collect(queue, PADS)
    for sender in senders:
        sender.join()
    assert sorted(found) == sorted(map(ctypes.addressof, waits))
    assert 1 <= queue.wakes <= PADS
    assert list(queue.take()) == []
    queue.close(0)


def test_many_notifications_are_one_wake_and_come_in_order():
    queue, waits = CompletionQueue(CODE), [Wait() for _ in range(PADS)]
    notify(queue, waits)
    queue.wait(20.0)
    assert list(queue.take()) == [ctypes.addressof(wait) for wait in waits]
    queue.wait(0)
    assert queue.wakes == 1
    queue.close(0)


def test_a_wake_is_not_lost_between_two_waits():
    queue = CompletionQueue(CODE)
    queue.wake()
    queue.wake()
    queue.wait(20.0)
    queue.wait(0)
    assert queue.wakes == 1
    queue.close(0)


def test_a_late_writer_wakes_only_the_queues_next_owner():
    queue = CompletionQueue(CODE)
    queue.close(0)
    queue.wake()
    again = CompletionQueue.open(CODE)
    assert again is queue
    again.wait(20.0)
    assert list(again.take()) == []
    again.close(0)


def test_a_late_notification_reaches_a_list_that_is_still_there():
    queue, wait = CompletionQueue(CODE), Wait()
    queue.close(1)
    assert CompletionQueue.open(CODE) is not queue
    notify(queue, [wait])
    assert list(queue.take()) == [ctypes.addressof(wait)]


@pytest.mark.parametrize("seconds", [0.0, 1e7, 1e18, float("inf"), None])
def test_any_time_can_be_waited_for(seconds):
    queue = CompletionQueue(CODE)
    queue.wake()
    queue.wait(seconds)
    assert queue.wakes == 1
    queue.close(0)
