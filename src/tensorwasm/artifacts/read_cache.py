"""Recently read artifacts in memory: verified once, not read or hashed again."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import Final, TypeAlias

BlobKey: TypeAlias = tuple[str, str]
"""A tenant and a key of its own: tenants share nothing here either."""

MAX_SHARE: Final = 4
"""An artifact longer than the capacity divided by this is not kept: it would displace too much else."""


class ReadCache:
    """Artifacts up to a total length; the least recently read go first. Thread-safe.

    Threads that miss the same artifact at once read it once.
    """

    def __init__(self, capacity_bytes: int) -> None:
        """Begin empty; a capacity of 0 keeps nothing."""
        self._capacity_bytes = capacity_bytes
        self._held_bytes = 0
        self._views: OrderedDict[BlobKey, memoryview] = OrderedDict()
        self._reading: dict[BlobKey, Future[memoryview]] = {}
        self._lock = threading.Lock()

    def read(self, key: BlobKey, read: Callable[[], memoryview]) -> memoryview:
        """Return the cached view, or the result of ``read``, which is called without a lock.

        A caller that finds a read in progress waits for it, and gets its result or its error.
        """
        with self._lock:
            if (view := self._views.get(key)) is not None:
                self._views.move_to_end(key)
                return view[:]  # a view of its own: a caller may release it
            reading = self._reading.get(key)
            if reading is None:
                mine = self._reading[key] = Future()
        if reading is None:
            return self._read_first(key, read, mine)
        try:
            return reading.result()[:]
        except CancelledError:  # the reading thread was interrupted, which does not concern this caller
            return self.read(key, read)

    def _read_first(self, key: BlobKey, read: Callable[[], memoryview], mine: Future[memoryview]) -> memoryview:
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

    def _settle(self, key: BlobKey, view: memoryview | None = None) -> None:
        """End a read, and keep what was read unless it is too long."""
        with self._lock:
            del self._reading[key]
            if view is None or view.nbytes * MAX_SHARE > self._capacity_bytes:
                return
            self._views[key] = view
            self._held_bytes += view.nbytes
            while self._held_bytes > self._capacity_bytes:
                _, oldest = self._views.popitem(last=False)
                self._held_bytes -= oldest.nbytes

    def drop(self, key: BlobKey) -> None:
        """Remove a key, if it is there."""
        with self._lock:
            if (view := self._views.pop(key, None)) is not None:
                self._held_bytes -= view.nbytes
