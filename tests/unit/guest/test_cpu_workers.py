"""The workers, with guests whose slices are written down in advance."""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorwasm.guest.reactor import threads
from tensorwasm.guest.reactor.task import Task
from tensorwasm.guest.reactor.threads import NEWCOMERS, CpuWorkers

SOON_S = 20.0
HOW = ("ends", "waits", "raises", "is late")


class _LateError(Exception):
    pass


@dataclass(eq=False)
class FakeFiber:
    """A guest that wants so many slices, and then does what `how` says."""

    slices: int = 1
    how: str = "ends"
    log: list[Any] = field(default_factory=list)
    gate: threading.Event | None = None
    runs: int = 0
    waits: bool = False
    entered: int = 0
    _busy: threading.Lock = field(default_factory=threading.Lock)

    @property
    def state(self) -> Any:
        return SimpleNamespace(check=self._check)

    def enter_thread(self) -> None:
        self.entered = threading.get_ident()

    def run(self) -> bool:
        assert self._busy.acquire(blocking=False), "two threads run one guest"
        assert self.entered == threading.get_ident()
        try:
            if self.gate is not None:
                assert self.gate.wait(SOON_S)
            self.runs += 1
            self.log.append(self)
            last = self.runs == self.slices
            if last and self.how == "raises":
                raise _LateError
            self.waits = last and self.how == "waits"
            return last and self.how == "ends"
        finally:
            self._busy.release()

    def _check(self) -> None:
        if self.runs == self.slices and self.how == "is late":
            raise _LateError


@pytest.fixture(autouse=True)
def without_timers(monkeypatch):
    monkeypatch.setattr(threads, "run_first_slice", lambda fiber: fiber.run())


class Returns:
    """What a workers gave back."""

    def __init__(self) -> None:
        self.found: list[tuple[Task, bool, BaseException | None]] = []
        self.changed = threading.Condition()

    def __call__(self, task: Task, ended: bool, error: BaseException | None) -> None:  # noqa: FBT001 - as `Return`
        with self.changed:
            self.found.append((task, ended, error))
            self.changed.notify_all()

    def wait_for(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.found) >= count, SOON_S), self.found


def make(task: Task) -> FakeFiber:
    """Fail as a sandbox does that cannot be made; all but one of these guests have theirs."""
    assert task.fiber is None
    raise _LateError


def tasks_of(fibers: list[FakeFiber]) -> list[Task]:
    made = []
    for fiber in fibers:
        task = Task(None)  # type: ignore[arg-type]
        task.fiber = fiber  # type: ignore[assignment]
        made.append(task)
    return made


@given(st.lists(st.tuples(st.integers(1, 5), st.sampled_from(HOW)), max_size=30), st.integers(1, 3))
def test_every_guest_comes_back_once_after_all_its_slices_and_no_two_threads_run_it(wanted, threads):
    fibers, returns = [FakeFiber(*each) for each in wanted], Returns()
    workers = CpuWorkers(threads, returns, make)
    tasks = tasks_of(fibers)
    assert all(workers.take(task) for task in tasks)
    returns.wait_for(len(tasks))
    assert workers.guest_count == len(tasks)
    for _ in tasks:
        workers.guest_count -= 1
    workers.close()
    assert sorted(map(id, tasks)) == sorted(id(task) for task, _, _ in returns.found)
    for task, ended, error in returns.found:
        fiber: Any = task.fiber
        assert fiber.runs == fiber.slices
        assert ended == (fiber.how == "ends")
        assert isinstance(error, _LateError) == (fiber.how in {"raises", "is late"})
    assert (workers.guest_count, workers.turns <= sum(fiber.runs for fiber in fibers)) == (0, True)


def test_a_guest_that_has_been_ended_meanwhile_runs_no_more():
    returns, log, gate = Returns(), [], threading.Event()
    workers = CpuWorkers(1, returns, make)
    first, second = tasks_of([FakeFiber(1000, log=log, gate=gate), FakeFiber(log=log)])
    workers.take(first)
    workers.take(second)
    first.over = second.over = True
    gate.set()
    returns.wait_for(2)
    workers.close()
    assert len(log) <= 1
    assert all((ended, error) == (False, None) for _, ended, error in returns.found)


def test_new_guests_go_first_but_not_for_ever():
    returns, log, gate = Returns(), [], threading.Event()
    workers = CpuWorkers(1, returns, make)
    old = [FakeFiber(3, log=log, gate=gate), FakeFiber(3, log=log)]
    new = [FakeFiber(log=log) for _ in range(3 * NEWCOMERS)]
    for task in tasks_of([*old, *new]):
        workers.take(task)
    gate.set()
    returns.wait_for(len(old) + len(new))
    workers.close()
    places = [place for place, fiber in enumerate(log) if fiber in old]
    gaps = [later - earlier - 1 for earlier, later in itertools.pairwise(places)]
    assert max(gaps) == NEWCOMERS
    assert places[2] == NEWCOMERS  # the two old ones were new once


def test_without_threads_no_guest_is_taken(monkeypatch):
    def refuse(_thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    workers = CpuWorkers(2, Returns(), make)
    (task,) = tasks_of([FakeFiber()])
    assert not workers.take(task)
    assert workers.guest_count == 0
    workers.close()


def test_a_guest_that_has_no_sandbox_gets_it_on_the_thread_that_is_to_run_it_or_comes_back_with_the_error():
    returns, made = Returns(), []

    def open_one(task: Task) -> FakeFiber:
        made.append(threading.get_ident())
        task.fiber = fiber = FakeFiber()  # type: ignore[assignment]
        return fiber

    for maker, ended in ((open_one, True), (make, False)):
        workers = CpuWorkers(1, returns, maker)  # type: ignore[arg-type]
        assert workers.take(Task(None))  # type: ignore[arg-type]
        returns.wait_for(1)
        task, *how = returns.found.pop()
        assert how[0] is ended
        assert isinstance(how[1], _LateError) is not ended
        assert task.fiber is None or task.fiber.entered == made[0]
        workers.guest_count -= 1
        workers.close()
