"""What was read lately, in memory: found right once, never read or hashed again."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import Final, TypeAlias

Key: TypeAlias = tuple[str, str]
"""A tenant, and the key of bytes of its own: two tenants have nothing in common here either."""

MAX_SHARE: Final = 4
"""An artifact longer than the capacity's part by this number would push out too much else."""


class Recent:
    """At most so many bytes of artifacts; what was not read for longest goes first. Thread-safe.

    Several threads that miss the same at once read it once.

    Args:
        capacity_bytes: 0 keeps nothing.
    """

    def __init__(self, capacity_bytes: int) -> None:
        """Begin with nothing."""
        self._capacity_bytes = capacity_bytes
        self._held_bytes = 0
        self._views: OrderedDict[Key, memoryview] = OrderedDict()
        self._reading: dict[Key, Future[memoryview]] = {}
        self._lock = threading.Lock()

    def read(self, key: Key, read: Callable[[], memoryview]) -> memoryview:
        """Return what is kept, or what is read now; who comes meanwhile waits for that, and gets the same or its error.

        Args:
            key: of what is wanted.
            read: returns it. It is called without a lock.
        """
        with self._lock:
            if (view := self._views.get(key)) is not None:
                self._views.move_to_end(key)
                return view[:]  # of its own: a caller may release it
            reading = self._reading.get(key)
            if reading is None:
                mine = self._reading[key] = Future()
        if reading is None:
            return self._read_first(key, read, mine)
        try:
            return reading.result()[:]
        except CancelledError:  # who read it was interrupted, which is not this caller's affair
            return self.read(key, read)

    def _read_first(self, key: Key, read: Callable[[], memoryview], mine: Future[memoryview]) -> memoryview:
        try:
            view = read()
        except BaseException as error:
            self._settle(key)
            if isinstance(error, Exception):
                mine.set_exception(error)
            else:
                mine.cancel()
            raise
        self._settle(key, view)
        mine.set_result(view)
        return view[:]

    def _settle(self, key: Key, view: memoryview | None = None) -> None:
        with self._lock:
            del self._reading[key]
            if view is not None:
                self._keep(key, view)

    def _keep(self, key: Key, view: memoryview) -> None:
        if view.nbytes * MAX_SHARE > self._capacity_bytes:
            return
        self._views[key] = view
        self._held_bytes += view.nbytes
        while self._held_bytes > self._capacity_bytes:
            _, oldest = self._views.popitem(last=False)
            self._held_bytes -= oldest.nbytes

    def drop(self, key: Key) -> None:
        """Forget what is kept under a key, if anything is."""
        with self._lock:
            if (view := self._views.pop(key, None)) is not None:
                self._held_bytes -= view.nbytes
