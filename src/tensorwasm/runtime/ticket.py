"""`Ticket`: what an executor hands out for a request, and the listener that takes a guest's output as it is written."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import Literal

from tensorwasm.runtime.invocation import Invocation

OutputName = Literal["stdout", "stderr", "chunk"]
Listener = Callable[[OutputName, bytes], bool]
"""Takes output as it is written, one ``emit-chunk`` a time, and returns whether anyone still listens."""


class Ticket:
    """One request under way. Every ticket ends; any thread may use it.

    Args:
        stop: ends the work as soon as it can be ended. Must not block or raise.
    """

    __slots__ = ("_future", "_stop")

    def __init__(self, stop: Callable[[], object] = lambda: None) -> None:
        self._future: Future[Invocation] = Future()
        self._stop = stop

    def result(self, timeout_s: float | None = None) -> Invocation:
        """Wait for the outcome.

        Args:
            timeout_s: most seconds to wait; the request goes on. None waits for as long as it takes.

        Raises:
            TensorWasmError: what ended the request; `errors.TensorWasmError.retryable` says whether to try again.
            concurrent.futures.CancelledError: the ticket was cancelled.
            TimeoutError: there is no outcome yet.
        """
        return self._future.result(timeout_s)

    def error(self, timeout_s: float | None = None) -> BaseException | None:
        """Wait for the outcome; return what `result` would raise, None for a result.

        Raises:
            concurrent.futures.CancelledError: the ticket was cancelled.
            TimeoutError: there is no outcome yet.
        """
        return self._future.exception(timeout_s)

    def done(self) -> bool:
        """Return whether there is an outcome; never waits."""
        return self._future.done()

    def cancelled(self) -> bool:
        """Return whether the ticket was cancelled."""
        return self._future.cancelled()

    def cancel(self) -> bool:
        """End the ticket without an outcome, and the work as soon as it can be ended.

        Returns:
            False if there was an outcome already.
        """
        if self._future.done() or not self._future.cancel():
            return False
        self._stop()
        return True

    def stop(self) -> None:
        """End the work as soon as it can be ended; the outcome is what comes of that."""
        self._stop()

    def call_when_done(self, function: Callable[[Ticket], object]) -> None:
        """Have a function called once there is an outcome, at once if there is one; on any thread: keep it short."""
        self._future.add_done_callback(lambda _: function(self))

    def settle(self, outcome: Invocation | BaseException) -> None:
        """Give the ticket its outcome. For executors; of several outcomes the first counts."""
        try:
            if isinstance(outcome, BaseException):
                self._future.set_exception(outcome)
            else:
                self._future.set_result(outcome)
        except InvalidStateError:
            return
