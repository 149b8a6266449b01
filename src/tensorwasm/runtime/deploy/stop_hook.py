"""`StopHook`: how a call or a compilation is stopped that may not have begun."""

from __future__ import annotations

import threading
from collections.abc import Callable


class StopHook:
    """What stops a piece of work, once that is known, and whether it was stopped. Thread-safe."""

    __slots__ = ("_lock", "_stop", "stopped")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stop: Callable[[], object] | None = None
        self.stopped = False  # `stop` was called

    def stop(self) -> None:
        """Stop the work, now or as soon as `stop_with` is called."""
        with self._lock:
            self.stopped, stop = True, self._stop
        if stop is not None:
            stop()

    def stop_with(self, stop: Callable[[], object]) -> None:
        """Set what stops the work; it is called at once if the work was stopped already."""
        with self._lock:
            self._stop = stop
        if self.stopped:
            stop()

    def forget(self) -> None:
        """Drop what stops the work: it has ended, and its outcome may be kept for long."""
        with self._lock:
            self._stop = None
