"""Long work that the clock may end: loops over what a guest wrote look at it now and then.

Nothing else bounds them in time. Work in proportion to a text is still tens of seconds of it for the longest text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final, TypeVar

from tensorwasm.errors import InvokeTimeout
from tensorwasm.values import NEVER, Deadline

STRIDE: Final = 64
"""Steps between two looks: few enough that a step may take a millisecond, enough to make the clock's price vanish."""

_Item = TypeVar("_Item")


class Watch:
    """Ends one piece of work once its deadline has passed.

    Every loop over what a guest wrote goes `over` it or counts a `step`. A text can nest short loops as well as it can
    make long ones, so that either way the first turn looks.

    Args:
        deadline: when the work must have stopped.
        work: what it is, as the error says it.
    """

    __slots__ = ("_deadline", "_left", "_work")

    def __init__(self, deadline: Deadline, work: str) -> None:
        """Begin the work; the first step looks at the clock."""
        self._deadline = deadline
        self._work = work
        self._left = 0

    def look(self) -> None:
        """Look at the clock now.

        Raises:
            InvokeTimeout: the deadline has passed.
        """
        if self._deadline.expired():
            raise InvokeTimeout(f"the deadline passed {self._work}")

    def step(self) -> None:
        """Count a step, of whatever loop; look at the clock at the first one and then every `STRIDE`.

        Raises:
            InvokeTimeout: the deadline has passed.
        """
        self._left -= 1
        if self._left < 0:
            self._left = STRIDE - 1
            self.look()

    def over(self, items: Iterable[_Item]) -> Iterator[_Item]:
        """Yield the items; look at the clock before the first one and then every `STRIDE`.

        Raises:
            InvokeTimeout: the deadline has passed.
        """
        waiting = iter(items)
        for item in waiting:
            self.look()
            yield item
            yield from islice(waiting, STRIDE - 1)


UNLIMITED: Final = Watch(NEVER, "")
"""Ends nothing. May be shared: its count means nothing."""
