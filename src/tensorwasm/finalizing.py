"""Does for finalisers, on a thread of its own, what takes locks or waits.

A finaliser runs wherever the garbage collector happens to begin, on a thread that may hold any lock. One that takes a
lock can wait for its own thread, or in a circle with another.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final

_log: Final = logging.getLogger(__name__)

_EXIT_S: Final = 5.0
"""How long the interpreter's end waits for what is left to do."""

_asked: Final[SimpleQueue[Callable[[], object] | None]] = SimpleQueue()
_starting: Final = threading.Lock()
_thread: threading.Thread | None = None


def prepare_finalizing() -> None:
    """Start the thread, unless it runs. To be called before there is anything that calls `finalize_later`.

    Where no thread can be started, the next call tries again, and what was asked for meanwhile waits until then.
    """
    global _thread  # noqa: PLW0603 - one thread for the process
    if _thread is not None and _thread.is_alive():
        return
    with _starting:
        if _thread is not None and _thread.is_alive():
            return
        thread = threading.Thread(target=_serve, name="tensorwasm-finalizing", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return
        _thread = thread
        atexit.unregister(_leave)  # a forked child has registered it before
        atexit.register(_leave)  # a thread that deletes a sandbox must not be ended by the interpreter's end


def finalize_later(end: Callable[[], object]) -> None:
    """Call a function soon, on a thread that holds no lock. For finalisers: takes no lock, and returns at once.

    What it raises is logged. After the interpreter's end has begun it may not be called any more.
    """
    _asked.put(end)


def _serve() -> None:
    while (end := _asked.get()) is not None:
        try:
            end()
        except Exception:  # noqa: BLE001 - its owner is gone, and the other calls are still to be made
            _log.exception("what was collected open could not be closed")
        del end  # or it would live until the next one


def _leave() -> None:
    _asked.put(None)
    if _thread is not None:
        _thread.join(_EXIT_S)
