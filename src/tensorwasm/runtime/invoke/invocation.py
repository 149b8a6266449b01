"""What comes of a call: `Invocation`, and `PendingInvocation` for one that has not ended yet."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from tensorwasm.errors import GuestTrap
from tensorwasm.guest.engine import codec
from tensorwasm.runtime.deploy.deployer import StopHook

if TYPE_CHECKING:
    import asyncio

    from tensorwasm.gpu.session import SessionStatistics

FLOATS: Final = frozenset({"f32", "f64"})

OutputName = Literal["stdout", "stderr", "chunk"]
Listener = Callable[[OutputName, bytes], bool]
"""Takes output as it is written, one ``emit-chunk`` a time, and returns whether its client still reads."""


class Invocation(NamedTuple):
    """What came of one call."""

    export: str  # the function called
    values: tuple[codec.Number, ...]  # its results, integers exact, floats as Python has them
    result_types: tuple[str, ...]  # their Wasm types
    exit_code: int  # what the guest passed to ``proc_exit``; 0 if it simply returned
    stdout: bytes  # what it wrote, unless a sink took it
    stderr: bytes  # the same for standard error
    chunks: tuple[bytes, ...]  # what it sent with ``emit-chunk``, unless a sink took it
    elapsed_s: float  # wall-clock seconds of instantiation and call
    gpu: SessionStatistics | None  # what it held on the device when the call had ended, None without the grant
    # It wrote more than ``limits.output_bytes``: the rest of standard output failed in the guest.
    stdout_truncated: bool = False
    stderr_truncated: bool = False  # the same for standard error

    @property
    def truncated(self) -> tuple[str, ...]:
        """Names of the streams that were cut: ``stdout``, ``stderr``, both or none."""
        flags = (("stdout", self.stdout_truncated), ("stderr", self.stderr_truncated))
        return tuple(name for name, cut in flags if cut)

    def to_json(self) -> str:
        """Return the results as a JSON array; NaN and infinities as strings, integers with all their digits."""
        if FLOATS.isdisjoint(self.result_types):
            return str(list(self.values))  # half of the time
        return codec.render(self.result_types, self.values)


class PendingInvocation(Future[Invocation]):
    """The future outcome of a call. Thread-safe.

    `result` raises what ended the call; `errors.TensorWasmError.retryable` says whether to try again.
    """

    def __init__(self) -> None:
        super().__init__()
        self.hook = StopHook()  # stops the call; for what runs it
        # How long the guest has run, without waits and other guests' turns; None unless it was measured.
        self.spent_ns: int | None = None

    def cancel(self) -> bool:
        """End without an outcome, and stop the call as soon as possible; False if there is an outcome."""
        if self.cancelled() or not super().cancel():
            return self.cancelled()
        with suppress(RuntimeError):  # two threads cancelled it at once
            self.set_running_or_notify_cancel()
        self.hook.stop()
        return True

    def stop(self) -> None:
        """Stop the call as soon as possible; the outcome is what comes of that."""
        self.hook.stop()

    def stop_with(self, stop: Callable[[], object]) -> None:
        """Set what stops the call; it is called at once if the call was stopped already."""
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
    """Wait for an outcome in an event loop, or its error. Cancelling the task cancels the call."""
    import asyncio  # noqa: PLC0415 - half of this package's import time, which event loops have spent already

    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Invocation] = loop.create_future()
    pending.add_done_callback(partial(_hand_over, loop, answer))
    try:
        return await answer
    finally:
        pending.cancel()


async def locate_trap(error: BaseException | None) -> None:
    """Look up a trap's source lines, unless that was done, on another thread than the event loop's."""
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
