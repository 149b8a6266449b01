"""A request on its way through a worker: what comes back, and how much of it at a time."""

import threading

import pytest

from tensorwasm.errors import DeviceFault, InvokeTimeout
from tensorwasm.runtime.executor.request import Request
from tensorwasm.runtime.invoke.invocation import PendingInvocation
from tensorwasm.runtime.workers.child.parent_link import OutputWindow
from tensorwasm.runtime.workers.conversation.flight import Flight
from tensorwasm.runtime.workers.frames import WINDOW, BrokenFrame, DoneFrame, OutputFrame
from tensorwasm.values import NEVER, Deadline

SOON_S = 60.0
DONE = DoneFrame(1, "main", (-3,), ("i32",), 0, 0.0, None, False, False)


class Worker:
    """Notes what a flight wants of its worker."""

    def __init__(self):
        self.credits, self.hushed, self.told = [], 0, threading.Condition()

    def cancel(self, flight):
        raise AssertionError

    def hush(self, flight):
        with self.told:
            self.hushed += 1
            self.told.notify_all()

    def credit(self, flight, parts):
        with self.told:
            self.credits.append(parts)
            self.told.notify_all()

    def wait_for(self, holds):
        with self.told:
            assert self.told.wait_for(holds, SOON_S)


def part(number):
    return OutputFrame(1, "chunk", b"%d" % number)


def test_a_worker_that_sends_more_than_it_was_asked_for_breaks_the_protocol():
    go_on = threading.Event()
    flight = Flight(1, Request(b""), lambda *_: go_on.wait(SOON_S), Worker(), PendingInvocation())
    for number in range(WINDOW):
        flight.take(part(number))
    with pytest.raises(BrokenFrame, match="asked for"):
        flight.take(part(WINDOW))
    go_on.set()


def test_parts_taken_are_credited_so_any_number_arrives():
    worker, heard = Worker(), []
    flight = Flight(1, Request(b""), lambda _, data: heard.append(data) or True, worker, PendingInvocation())
    sent = 10 * WINDOW
    for number in range(sent):
        worker.wait_for(lambda number=number: number < WINDOW + sum(worker.credits))
        flight.take(part(number))
    worker.wait_for(lambda: sum(worker.credits) == sent)
    assert heard == [b"%d" % number for number in range(sent)]
    assert max(worker.credits) <= WINDOW


@pytest.mark.parametrize("answer", [False, None, ValueError])
def test_a_listener_that_wants_no_more_is_reported_to_the_worker_at_once(answer):
    def listen(*_):
        if answer is ValueError:
            raise ValueError
        return answer

    worker = Worker()
    flight = Flight(1, Request(b""), listen, worker, PendingInvocation())
    flight.take(part(0))
    worker.wait_for(lambda: worker.hushed)
    assert not flight.take(part(1))
    assert (worker.hushed, worker.credits) == (1, [])


def test_an_error_of_a_listener_is_the_outcome_even_if_the_guest_then_ends_itself():
    """A guest whose deadline passes while nobody takes what it sent may hear of that first, and return."""

    def listen(*_):
        raise InvokeTimeout("the deadline passed")

    worker = Worker()
    flight = Flight(1, Request(b""), listen, worker, PendingInvocation())
    flight.take(part(0))
    worker.wait_for(lambda: worker.hushed)
    flight.finish(DONE)
    assert isinstance(flight.ticket.exception(SOON_S), InvokeTimeout)


def test_the_end_of_a_guest_precedes_a_later_error_of_a_listener():
    def listen(*_):
        raise InvokeTimeout("the deadline passed")

    worker = Worker()
    flight = Flight(1, Request(b""), listen, worker, PendingInvocation())
    flight.take(part(0))
    worker.wait_for(lambda: worker.hushed)
    flight.end(DeviceFault("a worker was killed"))
    assert isinstance(flight.ticket.exception(SOON_S), DeviceFault)


def test_a_window_lets_so_many_through_and_then_as_many_as_were_taken():
    window = OutputWindow(NEVER)
    assert all(window.take() for _ in range(WINDOW))
    window.add(2)
    assert window.take()
    assert window.take()
    waits = threading.Thread(target=lambda: answers.append(window.take()), daemon=True)
    answers = []
    waits.start()
    window.close()
    waits.join(SOON_S)
    assert answers == [False]
    assert not window.take()


def test_a_window_ends_who_waits_at_the_deadline():
    window = OutputWindow(Deadline.after(0.02))
    for _ in range(WINDOW):
        window.take()
    with pytest.raises(InvokeTimeout):
        window.take()
