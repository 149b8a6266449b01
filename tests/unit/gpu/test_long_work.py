"""Which tenants' work is found to be long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorwasm.gpu.limits.long_work import LONG_NS, LongWork


class Timeline:
    """Waits at given times."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.found: list[str] = []
        self.work = LongWork(lambda: self.now_ns)
        self.work.notice = self.found.append
        self._waits = {}

    def at(self, now_ns: int, *changes: str) -> None:
        """Begin (``+ann``) or end (``-ann``) tenants' waits at a time."""
        self.now_ns = now_ns
        for change in changes:
            name = change[1:]
            if change[0] == "+":
                self._waits.setdefault(name, []).append(self.work.begin(name))
            else:
                self.work.end(self._waits[name].pop(0))


@pytest.fixture
def timeline():
    return Timeline()


def test_a_wait_is_long_from_twenty_milliseconds_on(timeline):
    timeline.at(0, "+ann")
    timeline.at(LONG_NS - 1, "-ann", "+bob")
    timeline.at(2 * LONG_NS - 1, "-bob")
    assert timeline.found == ["bob"]


def test_who_waits_behind_another_is_not_blamed_for_it(timeline):
    timeline.at(0, "+ann")
    timeline.at(1, "+bob")
    timeline.at(50 * LONG_NS, "-bob")
    timeline.at(50 * LONG_NS + 1, "+bob")
    timeline.at(100 * LONG_NS, "-ann")
    timeline.at(100 * LONG_NS + 5, "-bob")
    assert timeline.found == ["ann"]


def test_who_runs_long_once_the_other_has_ended_is_found(timeline):
    timeline.at(0, "+ann", "+bob")
    timeline.at(5, "-ann")
    timeline.at(5 + LONG_NS, "-bob")
    assert timeline.found == ["bob"]


def test_sessions_of_one_tenant_do_not_hide_each_other(timeline):
    timeline.at(0, "+ann")
    timeline.at(1, "+ann")
    timeline.at(LONG_NS, "-ann")
    timeline.at(LONG_NS + 1, "-ann")
    assert timeline.found == ["ann", "ann"]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 3)), max_size=40))
def test_a_tenant_of_short_kernels_is_never_found_on_a_gpu_that_takes_turns(kernels):
    """Kernels run one after the other; those of `ann` take 1 ms or less, others' up to 30 ms."""
    timeline, ends_ns, now_ns, pending = Timeline(), 0, 0, []
    for after_ms, who in kernels:
        now_ns += after_ms * 1_000_000
        for end_ns, name in sorted(each for each in pending if each[0] <= now_ns):
            timeline.at(end_ns, f"-{name}")
        pending = [each for each in pending if each[0] > now_ns]
        name = "ann" if who == 0 else f"other{who}"
        timeline.at(now_ns, f"+{name}")
        ends_ns = max(ends_ns, now_ns) + (1_000_000 if who == 0 else who * 10_000_000)
        pending.append((ends_ns, name))
    for end_ns, name in sorted(pending):
        timeline.at(end_ns, f"-{name}")
    backlog = len(kernels) * 1_000_000 >= LONG_NS
    assert backlog or "ann" not in timeline.found
