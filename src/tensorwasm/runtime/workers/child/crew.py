"""`Crew`: threads of which one at a time, the leader, reads all connections and makes short calls itself.

So a call is read, made and answered on one thread. The leader may be held up by a guest, a kernel or the driver.
Another thread, the watcher, looks every `TICK_S` while calls are made: if the leader is in the same call as before, the
watcher takes the lead, a new watcher follows it, and the thread that was held up leaves once its call has ended. So a
call delays others by two ticks at most, whatever it does.
"""

from __future__ import annotations

import logging
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, Generic, TypeVar

from tensorwasm.yielding import lower_priority

TICK_S: Final = 0.002
_IDLE_TICKS: Final = 100
_BATCH: Final = 4
"""Items after which answers are sent, though more items wait."""

_Item = TypeVar("_Item")
_log: Final = logging.getLogger(__name__)


class Crew(Generic[_Item]):
    """Reads sources and handles the items that come of them, in their order.

    Args:
        handle: handles an item, on the leader's thread. What may take long is done between `enter` and `leave`, or on
            another thread.
        flush: sends what `handle` has left to be sent; never waits. On the leader's thread.
        held_up: told whose call took so long that another thread took the lead, on that thread.

    Attributes:
        watched: whether a call may take long: another thread would take the lead.
    """

    def __init__(
        self, handle: Callable[[_Item], object], flush: Callable[[], object], held_up: Callable[[str], object]
    ) -> None:
        self._handle = handle
        self._flush = flush
        self._held_up = held_up
        self._selector = selectors.DefaultSelector()
        self._items: deque[_Item] = deque()
        self._lock = threading.Lock()
        self._leader: object = None
        self._thread = 0  # the leader's, for the system
        self._calls = 0  # begun
        self._running = 0  # number of the leader's call, 0 if it is in none
        self._whose = ""
        self.watched = False
        self._asleep = False
        self._awake = threading.Event()

    def add(self, source: socket.socket, read: Callable[[], Iterable[_Item]]) -> None:
        """Have a source read whenever there is something to read. On the leader's thread, or before `start`."""
        self._selector.register(source, selectors.EVENT_READ, read)

    def remove(self, source: socket.socket) -> None:
        """Read a source no more, if it was read. On the leader's thread."""
        if source in self._selector.get_map():
            self._selector.unregister(source)

    def start(self, items: Iterable[_Item] = ()) -> None:
        """Begin, with items that were read before."""
        self._items.extend(items)
        self._leader = mark = object()
        self._hire()
        threading.Thread(target=self._lead, args=(mark,), name="tensorwasm-crew", daemon=True).start()

    def enter(self, whose: str) -> object:
        """Note that the leader begins somebody's call; return what `leave` needs."""
        self._calls += 1
        self._whose = whose
        self._running = self._calls
        if self._asleep:
            self._asleep = False
            self._awake.set()
        return self._leader

    def leave(self, mark: object) -> bool:
        """Note that a call has ended; return whether its thread still leads. If not, it handles nothing more."""
        with self._lock:
            if self._leader is not mark:
                return False
            self._running = 0
            return True

    def _lead(self, mark: object) -> None:
        handled, self._thread = 0, threading.get_native_id()
        while self._leader is mark:
            try:
                if not self._items:
                    self._flush()
                    for key, _ in self._selector.select():
                        self._items.extend(key.data())
                    continue
                self._handle(self._items.popleft())
                handled += 1
                if handled % _BATCH == 0 and self._leader is mark:
                    self._flush()
            except Exception:  # noqa: BLE001 - a bug must not leave all connections unread
                _log.exception("a bug of the worker's")

    def _hire(self) -> None:
        """Start a watcher. Without one, no call may take long."""
        try:
            threading.Thread(target=self._watch, name="tensorwasm-crew", daemon=True).start()
            self.watched = True
        except RuntimeError as error:
            self.watched = False
            _log.error("no thread to watch calls: %s", error)

    def _watch(self) -> None:
        """Take the lead once the leader is in one call for longer than a tick."""
        last = calls = ticks = 0
        while True:
            time.sleep(TICK_S)
            with self._lock:
                if last and self._running == last:
                    lower_priority(thread=self._thread)  # it computes from now on; it cannot leave before this ends
                    self._leader = mark = object()
                    self._running, whose = 0, self._whose
                    break
                last = self._running
            ticks = 0 if calls != self._calls or last else ticks + 1
            calls = self._calls
            if ticks >= _IDLE_TICKS:
                self._sleep(calls)
        self._hire()
        self._held_up(whose)
        self._lead(mark)

    def _sleep(self, calls: int) -> None:
        """Wait until another call begins."""
        self._awake.clear()
        self._asleep = True
        if self._calls == calls:  # else one has begun meanwhile, and may not have seen that this sleeps
            self._awake.wait()
        self._asleep = False
