"""`FiberRunner`: the reactor of a runtime, or a few threads where there are no fibers.

Calls whose loops run elsewhere have threads of their own (`FiberRunner.keep`): what runs their loops waits for them.

Without Numba, or on another system than Linux, submitted invocations run on a few threads, which is logged once. Fewer
can wait at once, and cancelling one that runs does not end it. The same holds while compiled code is being loaded.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, Protocol, TypeVar, cast

from tensorwasm import settings
from tensorwasm.errors import InternalError
from tensorwasm.guest.native.loading import is_loading, load_suspension_code
from tensorwasm.guest.reactor.reactor import Reactor
from tensorwasm.guest.reactor.task import FiberStatistics
from tensorwasm.guest.sandbox import stack

THREADS: Final = 32
"""Invocations that run at a time where there are no fibers."""

_FROM_GUEST: Final = "a host function of a guest that was submitted tried to submit another"


class EndingThreads(Protocol):
    """Threads that run calls."""

    def end(self) -> None:
        """Stop the calls that run."""

    def close(self) -> None:
        """Wait until every call has ended, and release the threads."""


_Outcome = TypeVar("_Outcome")
_Ending = TypeVar("_Ending", bound=EndingThreads)


class FiberRunner:
    """Runs the submitted invocations of a runtime; nothing is started before the first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reactor: Reactor | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._kept: dict[type, EndingThreads] = {}
        self._early = False
        self._closed = False

    def open(self) -> Reactor | None:
        """Return the reactor, started now if it was not; None where there are no fibers.

        Its threads inherit the caller's scheduling weight. Raises `InternalError` if the runtime is closed, or for a
        guest.
        """
        if stack.THREAD.fiber:
            raise InternalError(_FROM_GUEST)
        with self._lock:
            if self._closed:
                raise InternalError("the runtime is closed")
            if self._reactor is None and (self._threads is None or self._early):
                self._early = is_loading()  # read first: if loading ends in between, the code is looked up again
                code = load_suspension_code()
                if code is None:
                    self._threads = self._threads or ThreadPoolExecutor(
                        THREADS, thread_name_prefix="tensorwasm-submitted"
                    )
                else:
                    self._reactor = Reactor(code, settings.current().guest_threads or os.cpu_count() or 1)
            return self._reactor

    def run_on_thread(self, call: Callable[[], _Outcome]) -> Future[_Outcome]:
        """Run a call on a thread, where `open` returned None; raise `InternalError` if the runtime is closed."""
        with self._lock:
            if self._closed or self._threads is None:
                raise InternalError("the runtime is closed")
            return self._threads.submit(call)

    def keep(self, kind: type[_Ending]) -> _Ending:
        """Return threads of a class, made once, which are ended and closed with this; raises as `open`."""
        if stack.THREAD.fiber:
            raise InternalError(_FROM_GUEST)
        with self._lock:
            if self._closed:
                raise InternalError("the runtime is closed")
            if kind not in self._kept:
                self._kept[kind] = kind()
            return cast("_Ending", self._kept[kind])

    def statistics(self) -> FiberStatistics:
        """Return a snapshot of the reactor; zeros where there are no fibers."""
        reactor = self._reactor
        return reactor.statistics() if reactor is not None else FiberStatistics()

    def close(self) -> None:
        """End every invocation and wait until all have ended. Idempotent."""
        with self._lock:
            self._closed = True
            reactor, threads = self._reactor, self._threads
        for kept in self._kept.values():
            kept.end()
            kept.close()
        if reactor is not None:
            reactor.close()
        if threads is not None:
            threads.shutdown(cancel_futures=True)
