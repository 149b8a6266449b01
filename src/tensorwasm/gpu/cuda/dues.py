"""When the work of a stream must have stopped: the latest deadline of all that was not seen to end."""

from __future__ import annotations

import math
import threading
from collections import deque
from typing import Final

from tensorwasm.values import NEVER, Deadline

_MOST: Final = 64
"""Deadlines that are told apart; of more, the last two are taken for the later of them."""


class Dues:
    """The deadlines of a stream's work, which ends in the order in which it was given. Safe from any thread.

    Several sessions may share the stream. Work that is given first must have ended before what is behind it can, so of
    two deadlines the earlier one counts only while it belongs to the later work.
    """

    __slots__ = ("_ended", "_given", "_giving", "_latest", "_lock")

    def __init__(self) -> None:
        """Know of no work."""
        self._lock = threading.Lock()
        self._given = self._ended = 0
        self._giving: set[int] = set()
        self._latest: deque[tuple[int, float]] = deque()  # numbers rise, deadlines fall

    @property
    def latest(self) -> Deadline | None:
        """The latest deadline of work that was not seen to end; None without such work."""
        with self._lock:
            if not self._latest:
                return None
            at_ns = self._latest[0][1]
            return NEVER if at_ns == math.inf else Deadline(int(at_ns))

    @property
    def ended(self) -> int:
        """How much work was seen to end; while that stays the same, it is the same work that has not."""
        return self._ended

    def outlast(self, deadline: Deadline) -> bool:
        """Return whether known work may take longer than until a deadline."""
        latest = self.latest
        return latest is not None and later(latest, deadline) != deadline

    def begin(self, deadline: Deadline) -> int:
        """Know of work before the driver has it; return a number for `given`."""
        at_ns = math.inf if deadline.at_ns is None else deadline.at_ns
        with self._lock:
            self._given += 1
            entries = self._latest
            while entries and entries[-1][1] <= at_ns:
                entries.pop()
            if len(entries) >= _MOST:
                at_ns = entries.pop()[1]
            entries.append((self._given, at_ns))
            self._giving.add(self._given)
            return self._given

    def given(self, number: int) -> None:
        """Say that the driver has the work, or has refused it."""
        with self._lock:
            self._giving.discard(number)

    def add(self, deadline: Deadline) -> None:
        """Know of work that the driver has."""
        self.given(self.begin(deadline))

    def mark(self) -> int:
        """Return a number for `end`: what the stream is asked next speaks of all work up to it."""
        with self._lock:
            return min(self._giving) - 1 if self._giving else self._given

    def holds(self, mark: int) -> bool:
        """Return whether work up to a mark was not seen to end."""
        with self._lock:
            return self._ended < mark

    def end(self, mark: int) -> None:
        """Forget the work up to a mark: it has been seen to end."""
        with self._lock:
            self._ended = max(self._ended, mark)
            while self._latest and self._latest[0][0] <= mark:
                self._latest.popleft()


def later(one: Deadline, other: Deadline) -> Deadline:
    """Return whichever of two deadlines comes last; no deadline never comes."""
    if one.at_ns is None or other.at_ns is None:
        return NEVER
    return one if one.at_ns > other.at_ns else other
