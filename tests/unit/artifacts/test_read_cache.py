import threading

import pytest

from tensorwasm.artifacts.caches import ReadCache


def read(recent, name, data=b"x" * 10):
    """Return whether something had to be read."""
    asked = []

    def load():
        asked.append(name)
        return memoryview(data)

    assert recent.read(("t", name), load) == data
    return bool(asked)


def test_the_least_recently_read_goes_first():
    recent = ReadCache(40)
    assert [read(recent, name) for name in "abcd"] == [True] * 4
    assert not read(recent, "a")
    assert read(recent, "e")
    assert [read(recent, name) for name in "acde"] == [False] * 4
    assert read(recent, "b")


def test_data_over_the_limit_is_not_kept_and_evicts_nothing():
    recent = ReadCache(40)
    read(recent, "a")
    assert read(recent, "large", b"y" * 11)
    assert read(recent, "large", b"y" * 11)
    assert not read(recent, "a")


def test_without_room_everything_is_read_each_time():
    recent = ReadCache(0)
    assert read(recent, "a")
    assert read(recent, "a")


def test_evicted_data_is_read_again_and_frees_space():
    recent = ReadCache(40)
    for name in "abcd":
        read(recent, name)
    recent.drop(("t", "b"))
    recent.drop(("t", "b"))
    read(recent, "e")
    assert not read(recent, "a")
    assert read(recent, "b")


def test_a_view_that_a_caller_releases_is_its_own():
    recent = ReadCache(40)
    recent.read(("t", "a"), lambda: memoryview(b"abc")).release()
    assert recent.read(("t", "a"), lambda: pytest.fail("read again")) == b"abc"


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_threads_that_want_the_same_read_it_once(error):
    """Whoever comes second waits; an error is everybody's, an interruption only its own thread's."""
    recent = ReadCache(40)
    inside, go_on = threading.Event(), threading.Event()
    results, loads = [], []

    def load():
        loads.append(1)
        if len(loads) == 1:
            inside.set()
            go_on.wait(10)
            if error:
                raise error
        return memoryview(b"abc")

    def want():
        try:
            results.append(bytes(recent.read(("t", "a"), load)))
        except BaseException as caught:  # noqa: BLE001 - an interruption too
            results.append(type(caught))

    first = threading.Thread(target=want)
    first.start()
    assert inside.wait(10)
    others = [threading.Thread(target=want) for _ in range(3)]
    for thread in others:
        thread.start()
    go_on.set()
    for thread in (first, *others):
        thread.join()
    good = results.count(b"abc")
    if error is None:
        assert (results, loads) == ([b"abc"] * 4, [1])
    elif error is KeyboardInterrupt:
        assert (good, results.count(error)) == (3, 1)
    else:
        assert results.count(error) >= 1
        assert good + results.count(error) == 4
    assert recent._reading == {}
