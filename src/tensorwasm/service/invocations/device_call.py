"""`DeviceCall`: a call in a worker process that was begun at once, and needs no task until it has an outcome."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from contextlib import suppress
from functools import partial
from typing import Any

from tensorwasm.runtime.invoke.invocation import Invocation

Outcome = Invocation | BaseException


class DeviceCall:
    """One call, made on an event loop's thread: a `tensorwasm.runtime.workers.conversation.flight.Ticket`.

    Its owner gets the outcome by `then`, or awaits it. Either way the outcome comes on the loop's thread.

    Args:
        function_id: of the function that is called.
        finish: gives back what the call holds and counts its usage, once, given the outcome; None for a call that was
            closed before it had one.
    """

    __slots__ = ("_finish", "_loop", "_outcome", "_stop", "_tell", "_thread", "function_id")

    def __init__(self, function_id: str, finish: Callable[[Outcome | None], object]) -> None:
        self.function_id = function_id
        self._finish: Callable[[Outcome | None], object] | None = finish
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._stop: Callable[[], object] | None = None
        self._tell: Callable[[Outcome], object] | None = None
        self._outcome: Outcome | None = None

    def stop_with(self, stop: Callable[[], object]) -> None:
        """Set what ends the guest."""
        self._stop = stop

    def settle(self, outcome: Outcome) -> None:
        """Set the outcome, on any thread; of several the first counts, and none does once this is closed."""
        if threading.get_ident() == self._thread:
            self._end(outcome)
            return
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._end, outcome)

    def _end(self, outcome: Outcome) -> None:
        finish, self._finish = self._finish, None
        if finish is None:
            return
        finish(outcome)
        tell, self._tell, self._stop = self._tell, None, None
        if tell is not None:
            tell(outcome)
        else:
            self._outcome = outcome

    def then(self, tell: Callable[[Outcome], object]) -> None:
        """Have a function called with the outcome: at once if there is one, never once this is closed."""
        if self._outcome is not None:
            tell(self._outcome)
        else:
            self._tell = tell

    def close(self) -> None:
        """End the guest of a call without an outcome: nobody waits for it any more."""
        finish, self._finish = self._finish, None
        if finish is None:
            return
        stop, self._stop, self._tell = self._stop, None, None
        finish(None)
        if stop is not None:
            stop()

    def __await__(self) -> Generator[Any, None, Invocation]:
        """Wait for the outcome, or raise its error. Cancelling the task closes the call."""
        answer: asyncio.Future[Invocation] = self._loop.create_future()
        self.then(partial(_resolve, answer))
        try:
            return (yield from answer)
        finally:
            self.close()


def _resolve(answer: asyncio.Future[Invocation], outcome: Outcome) -> None:
    if answer.done():
        return
    if isinstance(outcome, BaseException):
        answer.set_exception(outcome)
    else:
        answer.set_result(outcome)
