"""`CallThreads`: calls on threads of their own, each of which can be stopped."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from tensorwasm.errors import CapacityExhausted, GuestTrap
from tensorwasm.runtime.invoke.invocation import Announce, Invocation, PendingInvocation
from tensorwasm.yielding import begin_yielding

THREADS: Final = 256

StoppableCall = Callable[[Announce], Invocation]
"""Makes a call on the thread that it is called on, given what takes the way to stop it."""


class CallThreads:
    """Runs calls on threads, started when they are needed, at most so many at a time; more wait. Thread-safe."""

    def __init__(self, threads: int = THREADS) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="tensorwasm-call", initializer=begin_yielding)
        self._running: set[PendingInvocation] = set()

    def submit(self, call: StoppableCall, pending: PendingInvocation | None = None) -> PendingInvocation:
        """Make a call; return at once. Cancelling ends its guest at its next loop or call.

        Raises `CapacityExhausted` if the system has no thread left, or this is closed; the outcome is cancelled.
        """
        pending = pending or PendingInvocation()
        self._running.add(pending)
        pending.add_done_callback(self._running.discard)  # not a function that holds it: cycles are seldom collected
        start_call(self._pool, pending, run_call, call, pending)
        return pending

    def end(self) -> None:
        """Stop the running calls. A guest whose listener blocks ends once the listener returns."""
        for pending in tuple(self._running):
            pending.stop()

    def close(self) -> None:
        """Wait until every call has ended, and release the threads."""
        self._pool.shutdown()


def start_call(
    pool: ThreadPoolExecutor, pending: PendingInvocation, function: Callable[..., None], *args: object
) -> None:
    """Call a function on a thread of a pool, which settles the outcome; raises as `CallThreads.submit`."""
    try:
        pool.submit(function, *args)
    except RuntimeError as error:
        pending.cancel()
        raise CapacityExhausted(f"no thread for the call: {error}") from None


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
