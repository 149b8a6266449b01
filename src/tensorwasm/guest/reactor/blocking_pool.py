"""What a reactor leaves to other threads because it may take long, so that its own serves all guests."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from tensorwasm.guest.engine.yielding import begin_yielding

THREADS: Final = 8
"""Threads for work that takes long, and as many for ending guests, which never queue behind what waits for a GPU:
the end of a guest that may wait there for others' work has a thread of its own."""


class BlockingPool:
    """A few threads, each started when it is first needed. Safe from any thread."""

    __slots__ = ("_closers", "_workers")

    def __init__(self) -> None:
        self._workers = ThreadPoolExecutor(THREADS, thread_name_prefix="tensorwasm-fibers", initializer=begin_yielding)
        self._closers = ThreadPoolExecutor(
            THREADS, thread_name_prefix="tensorwasm-fiber-ends", initializer=begin_yielding
        )

    def work(self, function: Callable[[], None]) -> None:
        """Have a function called that a guest waits for."""
        _on_thread_of(self._workers, function)

    def end(self, function: Callable[[], None], *, alone: bool) -> None:
        """Have a function called that ends a guest.

        Args:
            function: the function.
            alone: it may wait for others, and has a thread of its own if the system gives one.
        """
        if not (alone and _on_own_thread(function)):
            _on_thread_of(self._closers, function)

    def close(self) -> None:
        """Wait until all is done."""
        self._workers.shutdown()
        self._closers.shutdown()


def _on_own_thread(function: Callable[[], None]) -> bool:
    """Return whether there is a thread for it."""
    try:
        threading.Thread(target=function, name="tensorwasm-fiber-late-end", daemon=True).start()
    except RuntimeError:  # the system has none
        return False
    return True


def _on_thread_of(pool: ThreadPoolExecutor, function: Callable[[], None]) -> None:
    try:
        pool.submit(function)
    except RuntimeError:  # the interpreter is about to end and takes no more work
        function()
