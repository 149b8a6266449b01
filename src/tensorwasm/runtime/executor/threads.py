"""`Threads`: calls, each on a thread of its own, which it may hold for as long as its listener makes it wait."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from tensorwasm.errors import CapacityExhausted, GuestTrap
from tensorwasm.guest.engine.yielding import begin_yielding
from tensorwasm.runtime.invoke.full import Announce
from tensorwasm.runtime.invoke.invocation import Invocation
from tensorwasm.runtime.invoke.pending import PendingInvocation

THREADS: Final = 256

StoppableCall = Callable[[Announce], Invocation]
"""Makes a call on the thread that it is called on, given what takes the way to stop it."""


class Threads:
    """Runs calls on threads, started when they are needed. Any thread may use it.

    Args:
        threads: most calls at a time; more wait.
    """

    def __init__(self, threads: int = THREADS) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="tensorwasm-call", initializer=begin_yielding)
        self._running: set[PendingInvocation] = set()

    def submit(self, call: StoppableCall, pending: PendingInvocation | None = None) -> PendingInvocation:
        """Make a call; return at once. Cancelling ends its guest at its next loop or call.

        Args:
            call: makes it.
            pending: gets the outcome; None for a new one.

        Raises:
            CapacityExhausted: the system has no thread left, or this is closed; the outcome is cancelled.
        """
        pending = pending or PendingInvocation()
        self._running.add(pending)
        pending.add_done_callback(lambda _: self._running.discard(pending))
        try:
            self._pool.submit(run_call, call, pending)
        except RuntimeError as error:
            pending.cancel()
            raise CapacityExhausted(f"no thread for the call: {error}") from None
        return pending

    def end(self) -> None:
        """Stop what runs. A guest that its listener makes wait ends once the listener lets it go on."""
        for pending in tuple(self._running):
            pending.stop()

    def close(self) -> None:
        """Let what was taken end, and release the threads."""
        self._pool.shutdown()


def run_call(call: StoppableCall, pending: PendingInvocation) -> None:
    """Make a call on this thread, and settle its outcome."""
    if pending.hook.stopped:
        pending.settle(GuestTrap("the call was stopped before it began", "cancelled"))
        return
    try:
        pending.settle(call(pending.stop_with))
    except GuestTrap as error:
        _ = error.backtrace  # its lines are looked up here, and not on the thread that takes the outcome
        pending.settle(error)
    except Exception as error:  # noqa: BLE001 - it is the call's outcome
        pending.settle(error)
