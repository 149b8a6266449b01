"""`Submission`: the outcome of an invocation that was submitted, and the way to end it before."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import TYPE_CHECKING

from tensorwasm.runtime.invocation import Invocation

if TYPE_CHECKING:
    from tensorwasm.guest.reactor.task import Task


class Submission(Future[Invocation]):
    """The outcome of an invocation that was submitted. `cancel` ends the guest, before it starts and while it runs.

    Attributes:
        spent_ns: how long the guest has run, waits and other guests' turns apart; None until it has ended.
    """

    def __init__(self) -> None:
        super().__init__()
        self.spent_ns: int | None = None
        self._turn = threading.Lock()
        self._told = self._settled = False
        self._stop: Callable[[Task], object] | None = None
        self._task: Task | None = None

    def cancel(self) -> bool:
        """End the guest, wherever it is; its sandbox is closed soon after. Returns False once there is an outcome."""
        if not super().cancel():
            return False
        with self._turn:
            told, self._told = self._told, True
        if not told:
            self.set_running_or_notify_cancel()
            stop, task = self._stop, self._task
            if stop is not None and task is not None:
                stop(task)
        return True

    def stop_with(self, stop: Callable[[Task], object], task: Task) -> None:
        """Say how the guest is ended."""
        self._stop, self._task = stop, task
        if self._told:
            stop(task)
        if self._settled:
            self._task = None

    def settle(self, outcome: Invocation | BaseException) -> None:
        """Set the outcome, unless it was cancelled.

        The guest refers to this, so this forgets it: the collector would have to find that out.
        """
        self._settled, self._task = True, None
        try:
            if isinstance(outcome, BaseException):
                self.set_exception(outcome)
            else:
                self.set_result(outcome)
        except InvalidStateError:
            return
