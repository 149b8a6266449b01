"""Deadlines of long loops over what a guest wrote, checked every few steps.

Nothing else bounds such work in time: work in proportion to a text takes tens of seconds for the longest text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final, TypeVar

from tensorwasm.errors import InvokeTimeout
from tensorwasm.values import NEVER, Deadline

STRIDE: Final = 64
"""Steps between two checks: few enough that a step may take a millisecond, enough to make a check's cost negligible."""

_Item = TypeVar("_Item")


class Watch:
    """Ends one piece of work with InvokeTimeout once its deadline has passed.

    Every loop over what a guest wrote goes `over` it or counts a `step`. The first turn of each loop checks, since a
    text can nest short loops as well as it can make long ones.
    """

    __slots__ = ("_deadline", "_left", "_work")

    def __init__(self, deadline: Deadline, work: str) -> None:
        """Begin work that the error calls ``work``; the first step checks the deadline."""
        self._deadline = deadline
        self._work = work
        self._left = 0

    def look(self) -> None:
        """Check the deadline now."""
        if self._deadline.expired():
            raise InvokeTimeout(f"the deadline passed {self._work}")

    def step(self) -> None:
        """Count a step, of any loop; check the deadline at the first one and then every `STRIDE`."""
        self._left -= 1
        if self._left < 0:
            self._left = STRIDE - 1
            self.look()

    def over(self, items: Iterable[_Item]) -> Iterator[_Item]:
        """Yield the items; check the deadline before the first one and then every `STRIDE`."""
        waiting = iter(items)
        for item in waiting:
            self.look()
            yield item
            yield from islice(waiting, STRIDE - 1)


UNLIMITED: Final = Watch(NEVER, "")
"""Ends nothing. It may be shared: its count means nothing."""
