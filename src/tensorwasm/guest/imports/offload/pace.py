"""`PollPace`: how many instructions an instance may run until it polls again, so that polls come in time.

An instruction takes a third of a nanosecond, or a hundred if it misses all caches, and short functions count for less
than they do (`tensorwasm.offload.polling`). So a budget follows from what the one before has taken.
"""

from __future__ import annotations

import time
from typing import Final

from tensorwasm.offload.polling import BUDGET, FIRST_BUDGET

TARGET_NS: Final = 20_000_000
"""Between two polls, unless the whole budget takes less."""
LEAST_BUDGET: Final = 1 << 16
"""Some 20 us, or 6 ms."""


class PollPace:
    """The pace of one instance, from its start on. Used by one thread at a time."""

    def __init__(self) -> None:
        self._budget = FIRST_BUDGET
        self._polled_ns = time.monotonic_ns()

    def next(self) -> int:
        """Return the next budget."""
        now_ns = time.monotonic_ns()
        taken_ns, self._polled_ns = max(now_ns - self._polled_ns, 1), now_ns
        self._budget = min(BUDGET, max(LEAST_BUDGET, self._budget * TARGET_NS // taken_ns))
        return self._budget
