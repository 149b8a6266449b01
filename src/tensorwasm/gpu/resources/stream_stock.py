"""Streams and events that a device keeps for the next session: a stream costs the driver some 10 us to make."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

from tensorwasm.errors import QuotaExceeded, TensorWasmError
from tensorwasm.gpu.device.port import Stream, attempt

_Item = TypeVar("_Item")


class Stock(Generic[_Item]):
    """Things of a device that are kept for reuse. Thread-safe. Methods raise what making or destroying one raises.

    Args:
        make: makes one.
        destroy: releases one.
        most: kept at a time.
    """

    def __init__(self, make: Callable[[], _Item], destroy: Callable[[_Item], None], most: int) -> None:
        self._make = make
        self._destroy = destroy
        self._most = most
        self._idle: list[_Item] = []

    def take(self) -> _Item:
        """Return one that was given back, or a new one."""
        try:
            return self._idle.pop()
        except IndexError:
            return self._make()

    def give(self, item: _Item) -> None:
        """Give back one that nothing uses any more; it is destroyed if there are enough."""
        if len(self._idle) < self._most:
            self._idle.append(item)
        else:
            self._destroy(item)

    def discard(self, item: _Item) -> None:
        """Destroy one that must not be used again."""
        self._destroy(item)

    def close(self) -> list[Exception]:
        """Destroy what is kept; return what the device raised."""
        idle, self._idle = self._idle, []
        return [error for item in idle for error in attempt(self._destroy, item)]


class StreamStock(Stock[Stream]):
    """The streams of a device, lent to sessions.

    A device with a fixed number of streams has all made here, at once, because a driver may make no further one while a
    kernel runs. When all are in use, sessions share them, and their work runs in turn.

    Args:
        make: makes a stream.
        destroy: releases one.
        most_idle: kept at a time, for a device with any number.
        most: streams in all; 0 for any number.
    """

    def __init__(
        self, make: Callable[[], Stream], destroy: Callable[[Stream], None], most_idle: int, most: int = 0
    ) -> None:
        super().__init__(make, destroy, max(most_idle, most))
        self._alive = 0
        self._lock = threading.Lock()
        self._users: dict[int, int] = {}
        self._announcers: dict[int, list[Callable[[], None]]] = {}
        self._condemned: set[int] = set()
        self._lent: deque[Stream] = deque()
        with suppress(TensorWasmError):  # those made are enough; with none at all, `take` raises
            for _ in range(most):
                self._idle.append(make())
                self._alive += 1
        self._limit = self._alive or most

    def take(self, *, alone: bool = False) -> Stream:
        """Return an idle stream, or a new one, or one that other sessions use too, unless it is to be used alone.

        Raises:
            QuotaExceeded: all are in use, and it is to be used alone.
        """
        with self._lock:
            if self._idle:
                return self._lend(self._idle.pop(), alone)
            if self._limit and self._alive >= self._limit:
                if alone or not self._lent:
                    raise QuotaExceeded(f"all {self._limit} streams of the device are in use")
                self._lent.rotate(-1)
                self._users[id(self._lent[0])] += 1
                return self._lent[0]
            self._alive += 1
        try:
            stream = self._make()  # without the lock: a driver may take its time
        except BaseException:
            with self._lock:
                self._alive -= 1
            raise
        with self._lock:
            return self._lend(stream, alone)

    def give(self, stream: Stream, *, condemned: bool = False) -> None:
        """Give back a drained stream; one that is condemned is destroyed when its last user has left."""
        key = id(stream)
        with self._lock:
            self._users[key] -= 1
            if condemned:
                self._condemned.add(key)
            if stream in self._lent and (condemned or not self._users[key]):
                self._lent.remove(stream)
            if self._users[key]:
                return
            del self._users[key]
            if key not in self._condemned and len(self._idle) < self._most:
                self._idle.append(stream)
                return
            self._condemned.discard(key)
            self._alive -= 1
        self._destroy(stream)

    def discard(self, stream: Stream) -> None:
        """Give back a stream that must not be used again."""
        self.give(stream, condemned=True)

    @property
    def fixed(self) -> bool:
        """Whether the device has a fixed number of streams."""
        return self._limit > 0

    def shared(self, stream: Stream) -> bool:
        """Return whether a stream that was taken has several users."""
        return self._users[id(stream)] > 1

    def join(self, stream: Stream, announce: Callable[[], None]) -> None:
        """Register, until `part`, what informs the device of a user's work before others wait behind it."""
        if self._limit:
            with self._lock:
                self._announcers.setdefault(id(stream), []).append(announce)

    def part(self, stream: Stream, announce: Callable[[], None]) -> None:
        """Undo `join`."""
        if self._limit:
            with self._lock:
                self._announcers[id(stream)].remove(announce)
                if not self._announcers[id(stream)]:
                    del self._announcers[id(stream)]

    def announce(self, stream: Stream) -> None:
        """Inform the device of all users' work on a stream: its deadlines count for those that wait behind it."""
        with self._lock:
            announcers = tuple(self._announcers.get(id(stream), ()))
        for announce in announcers:
            announce()

    def _lend(self, stream: Stream, alone: bool) -> Stream:  # noqa: FBT001 - two callers, above
        self._users[id(stream)] = 1
        if self._limit and not alone:
            self._lent.append(stream)
        return stream
