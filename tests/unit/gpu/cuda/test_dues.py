"""The deadlines of a stream's work, against a list of them all."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from tensorwasm.gpu.cuda import dues as module
from tensorwasm.gpu.cuda.dues import Dues, later
from tensorwasm.values import NEVER, Deadline

DEADLINES = st.one_of(st.none(), st.integers(0, 9))
STEPS = st.lists(st.tuples(st.sampled_from(["add", "begin", "given", "mark", "end"]), DEADLINES), max_size=60)


def value(deadline: Deadline | None) -> float:
    if deadline is None:
        return -1
    return math.inf if deadline.at_ns is None else deadline.at_ns


@given(STEPS)
def test_the_latest_deadline_counts_until_its_work_was_seen_to_end(steps):
    dues, work, marks, under_way = Dues(), [], [], []
    for step, at_ns in steps:
        if step == "add":
            dues.add(Deadline(at_ns))
            work.append(Deadline(at_ns))
        elif step == "begin":
            under_way.append(dues.begin(Deadline(at_ns)))
            work.append(Deadline(at_ns))
        elif step == "given" and under_way:
            dues.given(under_way.pop(0))
        elif step == "mark":
            marks.append(dues.mark())
            assert marks[-1] == (under_way[0] - 1 if under_way else len(work))
        elif step == "end" and marks:
            seen = marks.pop(0)
            dues.end(seen)
            work[:seen] = [None] * seen
        assert value(dues.latest) == max(map(value, work), default=-1)
        assert dues.outlast(Deadline(at_ns)) == (value(dues.latest) > value(Deadline(at_ns)))


def test_falling_deadlines_take_bounded_room():
    dues = Dues()
    for at_ns in range(10_000, 0, -1):
        dues.add(Deadline(at_ns))
    assert dues.latest == Deadline(10_000)
    assert len(dues._latest) <= module._MOST
    dues.end(dues.mark() - 1)
    assert value(dues.latest) >= 1, "not kept apart any more, it counts as a later one"
    dues.end(dues.mark())
    assert dues.latest is None


def test_no_deadline_is_later_than_any_deadline():
    assert later(NEVER, Deadline(1)) == later(Deadline(1), NEVER) == NEVER
    assert later(Deadline(2), Deadline(1)) == later(Deadline(1), Deadline(2)) == Deadline(2)
