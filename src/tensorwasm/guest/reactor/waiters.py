"""Guests of a reactor that wait: the steps of host functions, run off the fiber until there is an answer.

A wait for a device ends with its notification (`tensorwasm.guest.reactor.notifications`), a wait in a queue when
another guest makes room or the time is over, a sleep with a timer, and a blocking call on another thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tensorwasm.guest.imports.suspension import BlockingCall, DeviceWait, QueueWait, Sleep, Wait
from tensorwasm.guest.reactor.notifications import GpuCompletions
from tensorwasm.guest.reactor.task import Sandbox, Task, Timers
from tensorwasm.guest.reactor.threads import BlockingPool
from tensorwasm.guest.sandbox.state import as_raised


class FiberWaiters:
    """Runs the steps of suspended guests. For the reactor's thread only."""

    def __init__(
        self,
        timers: Timers,
        blocking_pool: BlockingPool,
        complete: int,
        *,
        call: Callable[[Callable[[], None]], None],
        go_on: Callable[[Task], None],
        end: Callable[[Task, BaseException | None], None],
        finish: Callable[[Task], None],
    ) -> None:
        """Start with no guests.

        ``call`` and ``complete`` are as in `GpuCompletions`. ``go_on`` runs a guest whose host function has answered,
        ``end`` ends one, and ``finish`` closes the sandbox of one that ended during a blocking call.
        """
        self._timers = timers
        self._blocking_pool = blocking_pool
        self._call = call
        self._go_on = go_on
        self._end = end
        self._finish = finish
        self.devices = GpuCompletions(call, timers, self.step, complete)
        self._starters: Mapping[type, Callable[[Task, Any], bool]] = {
            DeviceWait: partial(self._await_device, self.devices.start),
            Sleep: self._sleep,
            QueueWait: partial(self._await_device, self._join),
            BlockingCall: self._work,
        }

    def start(self, task: Task, fiber: Sandbox) -> None:
        """Run the first steps of the host function that a guest waits for."""
        try:
            task.steps = fiber.steps()
        except BaseException as error:  # noqa: BLE001 - it reaches the caller as the outcome
            self._end(task, error)
            return
        self.step(task, None)

    def step(self, task: Task, value: Any, error: BaseException | None = None) -> None:
        """Run steps until one has to wait, or the host function has answered or failed."""
        fiber, steps = task.fiber, task.steps
        if fiber is None or steps is None or task.over:
            return
        function, generator = steps
        if task.waits_ns:
            fiber.count_device_wait(time.monotonic_ns() - task.waits_ns)
            task.waits_ns = 0
        try:
            while True:
                wait: Wait = generator.send(value) if error is None else generator.throw(error)
                value, error = False, None
                try:
                    if self._starters[type(wait)](task, wait):
                        return
                except Exception as raised:  # noqa: BLE001 - the steps decide what it means
                    error = raised
        except StopIteration as ended:
            function.answer(fiber.wait, ended.value)
        except BaseException as raised:  # noqa: BLE001 - it ends the guest's call
            self._end(task, as_raised(raised, function.label))
        task.steps = None
        self._go_on(task)

    def notify(self, task: Task) -> None:
        """Resume a guest whose device has notified it, unless it no longer waits for that."""
        if not task.over and task.signal is not None:
            task.signal = None
            self.step(task, True)

    def wake(self, task: Task) -> None:
        """Resume a guest whose sleep is over."""
        task.asleep = 0
        self.step(task, None)

    def check_turn(self, task: Task) -> None:
        """Resume a guest whose time in a queue is over, unless its turn has come just now."""
        wait = task.turn
        if wait is None or not wait.until.expired():
            return
        task.turn = None
        error: Exception | None = None
        try:
            wait.line.give_up()
        except Exception as raised:  # noqa: BLE001 - the steps decide what it means
            error = raised
        self.step(task, None, error)

    def end(self, task: Task) -> None:
        """End all waits of a guest that has ended."""
        wait, task.turn = task.turn, None
        if wait is not None:
            wait.line.abandon()
        if task.limit_ns is not None:
            self._timers.count_stale()
        self.devices.end(task)

    def _await_device(self, start: Callable[[Task, Any], bool], task: Task, wait: Wait) -> bool:
        """Begin a wait whose time counts as one for the device."""
        now_ns = time.monotonic_ns()
        waits = start(task, wait)
        if waits:
            task.waits_ns = now_ns
        return waits

    def _join(self, task: Task, wait: QueueWait) -> bool:
        """Queue a guest; return whether it has to wait. Raises what the queue does."""
        task.turn = wait
        waits = False
        try:
            waits = wait.line.join(partial(self._call, partial(self._take_turn, task, wait)), wait.until)
        finally:
            if not waits:
                task.turn = None
        # The limit is the same for every wait of one call: it needs no second timer.
        if waits and wait.until.at_ns is not None and wait.until.at_ns != task.limit_ns:
            task.limit_ns = wait.until.at_ns
            self._timers.add(task.limit_ns, task)
        return waits

    def _take_turn(self, task: Task, wait: QueueWait) -> None:
        if task.turn is wait:  # it may have given this one up just as its turn came
            task.turn = None
            self.step(task, None)

    def _sleep(self, task: Task, wait: Sleep) -> bool:
        task.asleep = self._timers.add_in(wait.seconds, task)
        return True

    def _work(self, task: Task, wait: BlockingCall) -> bool:
        task.working = True
        self._blocking_pool.work(partial(self._do, task, wait))
        return True

    def _do(self, task: Task, wait: BlockingCall) -> None:
        """Run a guest's blocking call, on a thread of the pool."""
        try:
            value = wait.function()
        except BaseException as raised:  # noqa: BLE001 - the steps decide what it means
            self._call(partial(self._done, task, None, raised))  # kept nowhere else: it would keep this frame
        else:
            self._call(partial(self._done, task, value, None))

    def _done(self, task: Task, value: Any, error: BaseException | None) -> None:
        task.working = False
        if task.over:
            self._finish(task)
        else:
            self.step(task, value, error)
