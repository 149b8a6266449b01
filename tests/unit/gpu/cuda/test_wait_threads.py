import threading

import pytest

from tensorwasm.gpu.cuda.streams.device_streams import WaitThreads


@pytest.fixture
def waiters():
    made = WaitThreads()
    yield made
    made.close()


def test_the_result_is_returned(waiters):
    assert waiters.wait(lambda: 7, 10.0) == 7


def test_a_wait_that_takes_too_long_is_given_up_and_its_thread_comes_back_later(waiters):
    gate = threading.Event()
    assert waiters.wait(lambda: gate.wait() and 0, 0.001) is None
    gate.set()
    assert waiters.wait(lambda: 3, 10.0) == 3


def test_an_exception_is_raised_where_the_wait_was_asked_for(waiters):
    with pytest.raises(ZeroDivisionError):
        waiters.wait(lambda: 1 // 0, 10.0)


def test_one_thread_serves_waits_that_follow_one_another(waiters):
    threads = {waiters.wait(threading.get_ident, 10.0) for _ in range(50)}
    assert len(threads) == 1


def test_waits_at_once_do_not_hold_each_other_up(waiters):
    meeting = threading.Barrier(8)
    answers = []
    callers = [threading.Thread(target=lambda: answers.append(waiters.wait(meeting.wait, 10.0))) for _ in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert sorted(answers) == list(range(8))


def test_closing_leaves_no_thread():
    before = set(threading.enumerate())
    made = WaitThreads()
    made.wait(lambda: 0, 10.0)
    made.close()
    assert set(threading.enumerate()) <= before
