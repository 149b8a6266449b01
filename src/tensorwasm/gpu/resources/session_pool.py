"""Sessions whose guests have ended well, kept for the next guests of the same kind.

A session that was made as good as new saves a fresh sandbox most of what its grant costs: a stream, a place at the
gate, a slot for windows, and the kernels that the guest before it has loaded.
"""

from __future__ import annotations

import threading
from typing import Final, Protocol

MAX_PARKED: Final = 16
"""Sessions that are kept for a device: each has a slot of the staging ring, and up to a place at the gate."""


class ParkedSession(Protocol):
    """A session."""

    def close(self) -> None:
        """Release everything."""


class SessionPool:
    """The parked sessions of one device. Safe from any thread. Whoever takes a session out has it alone.

    Args:
        most: kept at a time; beyond, the one that was parked first is closed.
    """

    def __init__(self, most: int = MAX_PARKED) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._parked: dict[ParkedSession, None] = {}
        self._closed = False

    def __len__(self) -> int:
        """Return how many are parked."""
        return len(self._parked)

    def put(self, session: ParkedSession) -> None:
        """Park a session that is as good as new; it may be closed from now on, until `take`."""
        self._parked[session] = None
        if self._closed:
            self.drop_all()
        elif len(self._parked) > self._most:
            self.drop()

    def take(self, session: ParkedSession) -> bool:
        """Return whether the session is still parked, and the caller's from now on."""
        return self._parked.pop(session, self) is None

    def drop(self) -> bool:
        """Close the session that was parked first; return whether there was one."""
        with self._lock:
            first = next(iter(list(self._parked)), None)
            if first is None or not self.take(first):
                return first is not None
        first.close()
        return True

    def drop_all(self) -> None:
        """Close all."""
        while self.drop():
            pass

    def close(self) -> None:
        """Close all, and whatever is parked later."""
        self._closed = True
        self.drop_all()
