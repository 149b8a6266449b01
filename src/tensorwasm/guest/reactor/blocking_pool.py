"""Threads for a reactor's blocking calls, so that its own thread serves all guests."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from tensorwasm.guest.engine.yielding import begin_yielding

THREADS: Final = 8
"""Threads for blocking calls, and as many for closing sandboxes, which never queue behind waits for a GPU. Closing one
that may itself wait for other guests' work gets a thread of its own."""


class BlockingPool:
    """A few threads, each started when it is first needed. Safe from any thread."""

    def __init__(self) -> None:
        self._workers = ThreadPoolExecutor(THREADS, "tensorwasm-fibers", begin_yielding)
        self._closers = ThreadPoolExecutor(THREADS, "tensorwasm-fiber-ends", begin_yielding)

    def work(self, function: Callable[[], None]) -> None:
        """Call a function that a guest waits for."""
        _submit(self._workers, function)

    def end(self, function: Callable[[], None], *, alone: bool) -> None:
        """Call a function that closes a sandbox: ``alone`` on a thread of its own, if the system provides one."""
        if not (alone and _on_own_thread(function)):
            _submit(self._closers, function)

    def close(self) -> None:
        """Wait until all calls have ended."""
        self._workers.shutdown()
        self._closers.shutdown()


def _on_own_thread(function: Callable[[], None]) -> bool:
    try:
        threading.Thread(target=function, name="tensorwasm-fiber-late-end", daemon=True).start()
    except RuntimeError:  # the system has no thread left
        return False
    return True


def _submit(pool: ThreadPoolExecutor, function: Callable[[], None]) -> None:
    try:
        pool.submit(function)
    except RuntimeError:  # the interpreter is about to end and takes no more work
        function()
