import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorwasm.artifacts.sealed import BLOCK_BYTES
from tensorwasm.artifacts.sealed.threads import MAX_THREADS, count_threads, map_in_order


@given(st.lists(st.integers(), max_size=40), st.integers(1, 5))
def test_results_come_in_order(items, threads):
    assert list(map_in_order(lambda n: n * 2, items, threads)) == [n * 2 for n in items]


def test_an_error_ends_the_rest():
    done = []
    gate = threading.Barrier(2, timeout=10)

    def work(n):
        if n < 2:
            gate.wait()
        if n == 0:
            raise KeyError(n)
        done.append(n)

    with pytest.raises(KeyError):
        list(map_in_order(work, range(1000), 2))
    assert len(done) < 100


def test_threads_are_bounded():
    assert [count_threads(n, 1 << 30) for n in (-1, 0, 1, 3, 10**9)] == [1, 1, 1, 3, MAX_THREADS]
    assert 1 <= count_threads(None, 1 << 30) <= MAX_THREADS
    assert count_threads(3, BLOCK_BYTES) == 1
