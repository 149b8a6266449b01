"""`Work`: how a call is stopped that may not have begun."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Work:
    """How a call is stopped, once that is known, and whether it is to be. Thread-safe.

    Attributes:
        stopped: it is to be.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stop: Callable[[], object] | None = None
        self.stopped = False

    def stop(self) -> None:
        """Stop the call, now or as soon as it is known how."""
        with self._lock:
            self.stopped, stop = True, self._stop
        if stop is not None:
            stop()

    def forget(self) -> None:
        """Keep nothing of a call that has ended: tickets are kept for as long as somebody likes."""
        with self._lock:
            self._stop = None

    def stop_with(self, stop: Callable[[], object]) -> None:
        """Say how the call is stopped."""
        with self._lock:
            self._stop = stop
        if self.stopped:
            stop()
