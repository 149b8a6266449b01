"""Numbers for things, so that compiled code holds no address that could be forged."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import Final, TypeVar

_STEP: Final = 16  # so that no handle is mistaken for an index

Thing = TypeVar("Thing")


class Handles:
    """A table of handles; a handle is never used twice. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._things: dict[int, object] = {}
        self._numbers: dict[Hashable, int] = {}
        self._next = _STEP

    def of(self, thing: Hashable) -> int:
        """Return the handle of a thing, always the same."""
        with self._lock:
            handle = self._numbers.get(thing)
            if handle is None:
                handle, self._next = self._next, self._next + _STEP
                self._numbers[thing] = handle
                self._things[handle] = thing
            return handle

    def find(self, handle: int, kind: type[Thing]) -> Thing | None:
        """Return a thing, or None if the handle is none of this kind."""
        found = self._things.get(handle)
        return found if isinstance(found, kind) else None

    def drop(self, thing: Hashable) -> None:
        """Forget a thing."""
        with self._lock:
            handle = self._numbers.pop(thing, None)
            if handle is not None:
                del self._things[handle]
