"""`Window`: how much of a call's output a worker may send before somebody takes it."""

from __future__ import annotations

import math
import threading

from tensorwasm.errors import InvokeTimeout
from tensorwasm.runtime.workers.frames import WINDOW
from tensorwasm.values import Deadline


class Window:
    """Parts that may be sent. Thread-safe.

    Args:
        deadline: when a guest that waits for room is ended.
    """

    def __init__(self, deadline: Deadline) -> None:
        self._deadline = deadline
        self._room = threading.Semaphore(WINDOW)
        self._closed = False

    def take(self) -> bool:
        """Wait until a part may be sent; return whether anybody still takes it.

        Raises:
            InvokeTimeout: the deadline passed meanwhile.
        """
        left_s = self._deadline.remaining_s()
        if not self._room.acquire(timeout=None if math.isinf(left_s) else left_s) and not self._closed:
            raise InvokeTimeout("the deadline passed while nobody took what the guest had written")
        if self._closed:
            self._room.release()  # nor does the next one wait
        return not self._closed

    def add(self, parts: int) -> None:
        """Let so many more be sent."""
        self._room.release(parts)

    def close(self) -> None:
        """Say that nobody takes any more."""
        self._closed = True
        self._room.release()
