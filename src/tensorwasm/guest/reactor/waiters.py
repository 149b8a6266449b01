"""What guests of a reactor wait for: the steps of host functions, taken off the fiber until there is an answer.

Steps that wait for a device are resumed by the device's own notification (`tensorwasm.guest.reactor.gpu_completions`),
those that stand in line by whoever makes room (`tensorwasm.guest.reactor.gate_waiters`), sleeps by a timer; work that
takes long is left to others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tensorwasm.guest.imports.suspension import Signal, Sleep, Turn, Wait, Work
from tensorwasm.guest.reactor.blocking_pool import BlockingPool
from tensorwasm.guest.reactor.gate_waiters import GateWaiters
from tensorwasm.guest.reactor.gpu_completions import GpuCompletions
from tensorwasm.guest.reactor.task import Sandbox, Task
from tensorwasm.guest.reactor.timers import Timers
from tensorwasm.guest.sandbox.state import as_raised


class FiberWaiters:
    """Takes steps for guests that are suspended. For the reactor's thread only.

    Attributes:
        signals: those that wait for a device.
        turns: those that stand in line.
    """

    __slots__ = ("_call", "_end", "_errands", "_finish", "_go_on", "_starters", "_timers", "signals", "turns")

    def __init__(
        self,
        timers: Timers,
        errands: BlockingPool,
        complete: int,
        *,
        call: Callable[[Callable[[], None]], None],
        go_on: Callable[[Task], None],
        end: Callable[[Task, BaseException | None], None],
        finish: Callable[[Task], None],
    ) -> None:
        """Begin with nobody.

        Args:
            timers: of the reactor.
            errands: does what takes long.
            complete: as in `tensorwasm.guest.reactor.gpu_completions.GpuCompletions`.
            call: has a function called on the reactor's thread; for any thread.
            go_on: runs a guest whose host function has answered.
            end: ends a guest.
            finish: closes the sandbox of a guest that ended while another thread worked for it.
        """
        self._timers = timers
        self._errands = errands
        self._call = call
        self._go_on = go_on
        self._end = end
        self._finish = finish
        self.signals = GpuCompletions(call, timers, self.step, complete)
        self.turns = GateWaiters(call, timers, self.step)
        self._starters: Mapping[type, Callable[[Task, Any], bool]] = {
            Signal: self.signals.start,
            Sleep: self._sleep,
            Turn: self.turns.start,
            Work: self._work,
        }

    def start(self, task: Task, fiber: Sandbox) -> None:
        """Take the first steps of the host function that a guest waits for."""
        try:
            task.steps = fiber.steps()
        except BaseException as error:  # noqa: BLE001 - it reaches whoever wants the outcome
            self._end(task, error)
            return
        self.step(task, None)

    def step(self, task: Task, value: Any, error: BaseException | None = None) -> None:
        """Take steps until one has to wait, or the host function has answered or failed."""
        fiber, steps = task.fiber, task.steps
        if fiber is None or steps is None or task.over:
            return
        function, generator = steps
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
        """Let a guest go on whose device has notified it, unless it waits for that no more."""
        if not task.over and task.signal is not None:
            task.signal = None
            self.step(task, True)

    def wake(self, task: Task) -> None:
        """Let a guest go on that has slept for long enough."""
        task.asleep = 0
        self.step(task, None)

    def end(self, task: Task) -> None:
        """Have a guest that has ended wait for nothing."""
        self.turns.end(task)
        self.signals.end(task)

    def _sleep(self, task: Task, wait: Sleep) -> bool:
        task.asleep = self._timers.add_in(wait.seconds, task)
        return True

    def _work(self, task: Task, wait: Work) -> bool:
        task.working = True
        self._errands.work(partial(self._do, task, wait))
        return True

    def _do(self, task: Task, wait: Work) -> None:
        """Do a guest's work, on a thread that is not the reactor's."""
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
