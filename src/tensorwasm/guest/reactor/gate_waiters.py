"""Guests of a reactor that wait for their turn: told by whoever makes room, or by a timer that it is too late."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tensorwasm.guest.imports.suspension import Turn
from tensorwasm.guest.reactor.task import Task
from tensorwasm.guest.reactor.timers import Timers


class GateWaiters:
    """Has guests stand in line. For the reactor's thread only.

    Args:
        call: has a function called on the reactor's thread; for any thread.
        timers: of the reactor.
        step: lets a guest's steps go on with a value or an error.
    """

    __slots__ = ("_call", "_step", "_timers")

    def __init__(
        self, call: Callable[[Callable[[], None]], None], timers: Timers, step: Callable[[Task, Any, Any], None]
    ) -> None:
        self._call = call
        self._timers = timers
        self._step = step

    def start(self, task: Task, wait: Turn) -> bool:
        """Have a guest stand in line; return whether it has to wait. Raises what that line does."""
        task.turn = wait
        waits = False
        try:
            waits = wait.line.join(partial(self._call, partial(self._arrive, task, wait)), wait.until)
        finally:
            if not waits:
                task.turn = None
        # The time is the same for all that a guest's call waits for: it needs no second timer.
        if waits and wait.until.at_ns is not None and wait.until.at_ns != task.limit_ns:
            task.limit_ns = wait.until.at_ns
            self._timers.add(task.limit_ns, task)
        return waits

    def check(self, task: Task) -> None:
        """Let a guest that has stood in line for too long go on without, unless its turn has come just now."""
        wait = task.turn
        if wait is None or not wait.until.expired():
            return
        task.turn = None
        error: Exception | None = None
        try:
            wait.line.give_up()
        except Exception as raised:  # noqa: BLE001 - the steps decide what it means
            error = raised
        self._step(task, None, error)

    def end(self, task: Task) -> None:
        """Have a guest that has ended leave the line."""
        wait, task.turn = task.turn, None
        if wait is not None:
            wait.line.abandon()
        if task.limit_ns is not None:
            self._timers.count_stale()

    def _arrive(self, task: Task, wait: Turn) -> None:
        if task.turn is wait:  # and not another one, since it gave this one up as its turn came
            task.turn = None
            self._step(task, None, None)
