"""`PendingInvocation`: the outcome of a call to come, how to end the call before, and how to await it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Literal

from tensorwasm.errors import GuestTrap
from tensorwasm.runtime.deploy.stop_hook import StopHook
from tensorwasm.runtime.invoke.invocation import Invocation

if TYPE_CHECKING:
    import asyncio

OutputName = Literal["stdout", "stderr", "chunk"]
Listener = Callable[[OutputName, bytes], bool]
"""Takes output as it is written, one ``emit-chunk`` a time, and returns whether anyone still listens."""


class PendingInvocation(Future[Invocation]):
    """The outcome of a call to come. Any thread may use it.

    `result` raises what ended the call; `errors.TensorWasmError.retryable` says whether to try again.

    Attributes:
        hook: stops the call; for what runs it.
        spent_ns: how long the guest has run, waits and other guests' turns apart; None unless that was measured.
    """

    def __init__(self, hook: StopHook | None = None) -> None:
        super().__init__()
        self.hook = hook or StopHook()
        self.spent_ns: int | None = None

    def cancel(self) -> bool:
        """End without an outcome, and have the call stopped as soon as it can be; False if there is an outcome."""
        if self.cancelled() or not super().cancel():
            return self.cancelled()
        with suppress(RuntimeError):  # two threads cancelled it at once
            self.set_running_or_notify_cancel()
        self.hook.stop()
        return True

    def stop(self) -> None:
        """Have the call stopped as soon as it can be; the outcome is what comes of that."""
        self.hook.stop()

    def stop_with(self, stop: Callable[[], object]) -> None:
        """Set what stops the call; it is called at once if the call is to be stopped already."""
        self.hook.stop_with(stop)
        if self.done():  # the guest refers to this: what refers to the guest would keep both
            self.hook.forget()

    def settle(self, outcome: Invocation | BaseException) -> None:
        """Set the outcome; of several the first counts, a cancellation among them."""
        self.hook.forget()
        try:
            if isinstance(outcome, BaseException):
                self.set_exception(outcome)
            else:
                self.set_result(outcome)
        except InvalidStateError:
            return


async def await_outcome(pending: Future[Invocation]) -> Invocation:
    """Wait for an outcome in an event loop. When the caller's task is cancelled, or goes with its loop, so is the call.

    Raises:
        TensorWasmError: what ended the call.
    """
    import asyncio  # noqa: PLC0415 - half of what importing this package costs, for those who have it already

    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Invocation] = loop.create_future()
    pending.add_done_callback(partial(_hand_over, loop, answer))
    try:
        return await answer
    finally:
        pending.cancel()


async def locate_trap(error: BaseException | None) -> None:
    """Look up the source lines of a trap on another thread than the event loop's, unless that was done."""
    import asyncio  # noqa: PLC0415 - as above

    if isinstance(error, GuestTrap) and error.find_lines is not None:
        await asyncio.to_thread(getattr, error, "backtrace")


def _hand_over(loop: asyncio.AbstractEventLoop, answer: asyncio.Future[Invocation], done: Future[Invocation]) -> None:
    with suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(_resolve, answer, done)


def _resolve(answer: asyncio.Future[Invocation], done: Future[Invocation]) -> None:
    if answer.done():
        return
    if done.cancelled():
        answer.cancel()
    elif (error := done.exception()) is not None:
        answer.set_exception(error)
    else:
        answer.set_result(done.result())
