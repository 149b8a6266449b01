import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorwasm.errors import DeviceLost, InternalError, InvalidHandle, InvokeTimeout, KernelFault, LaunchRefused
from tensorwasm.gpu.emulator.streams.queues import DEPTH, THREADS, BackgroundThreads, Mark, QueuedWork, Queues
from tensorwasm.values import NEVER, Deadline

SOON = Deadline.after


def act(function):
    """Return an action that runs a function of the deadline it is given."""
    return lambda _ranges, deadline: function(deadline)


def note(list_, what):
    return act(lambda _: list_.append(what))


def fail(error):
    def function(_):
        raise error

    return act(function)


@pytest.fixture
def queues():
    return Queues()


def test_nothing_runs_before_a_thread_waits(queues):
    stream, said = queues.open(), []
    queues.give(stream, QueuedWork(note(said, 1)))
    assert said == []
    assert not queues.reached(queues.mark(stream))
    queues.run_to(queues.mark(stream), NEVER)
    assert said == [1]
    assert queues.reached(queues.mark(stream))


def test_a_wait_runs_no_more_than_it_needs(queues):
    first, second, said = queues.open(), queues.open(), []
    queues.give(first, QueuedWork(note(said, "a")))
    mark = queues.mark(first)
    queues.give(first, QueuedWork(note(said, "later")))
    queues.give(second, QueuedWork(mark.run, after=mark))
    queues.give(second, QueuedWork(note(said, "b")))
    queues.run_to(queues.mark(second), NEVER)
    assert said == ["a", "b"]


def test_a_long_chain_of_waits_needs_no_recursion(queues):
    streams, said = [queues.open(), queues.open()], []
    for index in range(5000):
        stream, other = streams[index % 2], streams[1 - index % 2]
        mark = queues.mark(other)
        queues.give(stream, QueuedWork(mark.run, after=mark))
        queues.give(stream, QueuedWork(note(said, index)))
    queues.run_to(queues.mark(streams[1]), NEVER)
    assert said == list(range(5000))


@given(st.lists(st.tuples(st.integers(0, 3), st.sets(st.integers(0, 30)), st.booleans()), max_size=31))
def test_work_runs_after_all_that_it_follows(steps):
    queues, said, marks, needs = Queues(), [], [], []
    streams = [queues.open() for _ in range(4)]
    for index, (number, after, wait) in enumerate(steps):
        earlier = [one for one in after if one < index]
        for one in earlier:
            queues.give(streams[number], QueuedWork(marks[one].run, after=marks[one]))
        marks.append(queues.give(streams[number], QueuedWork(note(said, index))))
        needs.append({*earlier, *(one for one in range(index) if steps[one][0] == number)})
        if wait:
            queues.run_to(marks[index], NEVER)
    for stream in reversed(streams):
        queues.run_to(queues.mark(stream), NEVER)
    assert sorted(said) == list(range(len(steps)))
    place = {index: at for at, index in enumerate(said)}
    assert all(place[one] < place[index] for index, ones in enumerate(needs) for one in ones)


def test_a_stream_that_is_given_too_much_runs_the_oldest_first(queues):
    stream, said = queues.open(), []
    for index in range(DEPTH + 10):
        queues.give(stream, QueuedWork(note(said, index)))
        assert len(stream.queue) <= DEPTH
    assert said == list(range(10))
    queues.give(stream, QueuedWork(fail(KernelFault("it broke"))))
    for _ in range(DEPTH):
        queues.give(stream, QueuedWork(note(said, -1)))
    with pytest.raises(KernelFault, match="it broke"):
        queues.give(stream, QueuedWork(note(said, -1)))
    assert said == list(range(DEPTH + 10))


def test_a_failure_ends_the_stream_and_all_that_wait_for_it(queues):
    first, second, said = queues.open(), queues.open(), []
    queues.give(first, QueuedWork(note(said, 1)))
    before = queues.mark(first)
    queues.give(first, QueuedWork(fail(KernelFault("it broke"))))
    queues.give(first, QueuedWork(note(said, 2)))
    mark = queues.mark(first)
    queues.give(second, QueuedWork(mark.run, after=mark))
    queues.give(second, QueuedWork(note(said, 3)))
    for stream in (second, first, second):
        with pytest.raises(KernelFault, match="it broke"):
            queues.run_to(queues.mark(stream), NEVER)
        with pytest.raises(KernelFault, match="it broke"):
            queues.give(stream, QueuedWork(note(said, 4)))
    assert said == [1]
    assert queues.reached(before)
    queues.run_to(before, NEVER)


def test_work_that_is_always_done_is_done_once_whether_the_stream_fails_or_is_closed(queues):
    for end in (fail(KernelFault("it broke")), None):
        stream, said = queues.open(), []
        queues.give(stream, QueuedWork(end or note(said, "never")))
        queues.give(stream, QueuedWork(note(said, "never")))
        queues.give(stream, QueuedWork(note(said, "always"), always=True))
        if end:
            with pytest.raises(KernelFault):
                queues.run_to(queues.mark(stream), NEVER)
        queues.close(stream)
        assert said == ["always"]


def test_a_closed_stream_is_gone_and_waits_for_its_marks_fail(queues):
    stream = queues.open()
    mark = queues.give(stream, QueuedWork(note([], 1)))
    queues.close(stream)
    assert len(queues.streams) == 0
    with pytest.raises(InvalidHandle):
        queues.streams.require(stream)
    with pytest.raises(DeviceLost):
        queues.run_to(mark, NEVER)


def test_the_earlier_deadline_counts(queues):
    stream, seen = queues.open(), []
    early, late = SOON(10), SOON(20)
    for given_, waited, expected in ((early, late, early), (late, early, early), (NEVER, late, late)):
        queues.give(stream, QueuedWork(act(seen.append), deadline=given_))
        queues.run_to(queues.mark(stream), waited)
        assert seen[-1] == expected


def test_an_exception_that_is_no_error_of_ours_reaches_the_thread_that_ran_it_and_ends_the_stream(queues):
    for error in (KeyboardInterrupt(), MemoryError()):
        stream = queues.open()
        queues.give(stream, QueuedWork(fail(error)))
        mark = queues.mark(stream)
        with pytest.raises(type(error)):
            queues.run_to(mark, NEVER)
        with pytest.raises(InternalError, match="broke off"):
            queues.run_to(mark, NEVER)


def test_a_thread_waits_for_what_another_one_is_running(queues):
    stream, begun, go = queues.open(), threading.Event(), threading.Event()
    queues.give(stream, QueuedWork(act(lambda _: (begun.set(), go.wait(20)))))
    mark = queues.mark(stream)
    thread = threading.Thread(target=queues.run_to, args=(mark, NEVER))
    thread.start()
    assert begun.wait(20)
    with pytest.raises(InvokeTimeout):
        queues.run_to(mark, SOON(0.01))
    assert not queues.reached(mark)
    go.set()
    queues.run_to(mark, SOON(20))
    thread.join()


def test_streams_run_side_by_side(queues):
    meeting = threading.Barrier(2, timeout=20)
    marks = [queues.give(queues.open(), QueuedWork(act(lambda _: meeting.wait()))) for _ in range(2)]
    thread = threading.Thread(target=queues.run_to, args=(marks[0], NEVER))
    thread.start()
    queues.run_to(marks[1], NEVER)
    thread.join()
    assert all(queues.reached(mark) for mark in marks)


def test_recording_takes_what_can_be_replayed_and_nothing_else(queues):
    stream, other = queues.open(), queues.open()
    queues.begin_recording(stream)
    action = note([], 1)
    queues.give(stream, QueuedWork(action))
    for refused in (
        lambda: queues.mark(stream),
        lambda: queues.begin_recording(stream),
        lambda: queues.give(stream, QueuedWork(action, always=True)),
        lambda: queues.give(stream, QueuedWork(queues.mark(other).run, after=queues.mark(other))),
        lambda: queues.end_recording(other),
    ):
        with pytest.raises(LaunchRefused):
            refused()
    assert queues.end_recording(stream) == (action,)
    assert stream.idle


def test_many_threads_on_the_same_streams_run_everything_once_and_in_order(queues):
    streams, said = [queues.open() for _ in range(3)], []
    marks = []
    for index in range(300):
        stream = streams[index % 3]
        if index % 5 == 0:
            mark = queues.mark(streams[(index + 1) % 3])
            queues.give(stream, QueuedWork(mark.run, after=mark))
        marks.append(queues.give(stream, QueuedWork(note(said, index))))
    threads = [
        threading.Thread(target=lambda n=n: [queues.run_to(mark, NEVER) for mark in marks[n::8]]) for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(said) == list(range(300))
    for number in range(3):
        assert [index for index in said if index % 3 == number] == list(range(number, 300, 3))


# --------------------------------------------------------------------------------------------------- background


def test_the_background_runs_what_it_is_asked_for_once(queues):
    background, said, done = BackgroundThreads(queues), [], threading.Event()
    stream = queues.open()
    queues.give(stream, QueuedWork(note(said, 1)))
    mark = queues.give(stream, QueuedWork(act(lambda _: done.set())))
    for _ in range(3):
        background.request(mark)
    assert done.wait(20)
    queues.run_to(mark, SOON(20))
    assert said == [1]


def test_one_stream_takes_one_thread_however_often_it_is_asked_for(queues):
    background, go, done = BackgroundThreads(queues), threading.Event(), threading.Event()
    slow, quick = queues.open(), queues.open()
    for _ in range(3 * THREADS):
        background.request(queues.give(slow, QueuedWork(act(lambda _: go.wait(20)))))
    background.request(queues.give(quick, QueuedWork(act(lambda _: done.set()))))
    assert done.wait(20)
    go.set()
    queues.run_to(queues.mark(slow), SOON(20))


def test_a_failure_in_the_background_reaches_the_next_wait_and_stops_no_other_stream(queues):
    background, done = BackgroundThreads(queues), threading.Event()
    for error in (KernelFault("it broke"), ValueError("a bug")):
        bad = queues.open()
        background.request(queues.give(bad, QueuedWork(fail(error))))
        with pytest.raises((KernelFault, InternalError)):
            list(iter(lambda: queues.reached(Mark(bad, 1)), True))  # noqa: B023 - it is over before the next turn
    background.request(queues.give(queues.open(), QueuedWork(act(lambda _: done.set()))))
    assert done.wait(20)


def test_there_are_no_more_threads_than_there_may_be_and_none_when_there_is_nothing_to_do(queues):
    background, go = BackgroundThreads(queues), threading.Event()
    streams = [queues.open() for _ in range(3 * THREADS)]
    counts = []
    for stream in streams:
        background.request(
            queues.give(stream, QueuedWork(act(lambda _: (go.wait(20), counts.append(background._threads)))))
        )
    go.set()
    for stream in streams:
        queues.run_to(queues.mark(stream), SOON(20))
    assert max(counts) <= THREADS
    deadline = SOON(20)
    while background._threads and not deadline.expired():
        pass
    assert background._threads == 0
