"""What time it is, in the two ways that there are; tests bring clocks of their own."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Clock:
    """Two clocks.

    Attributes:
        unix_ms: milliseconds since 1970, which may be set, and differ between machines.
        monotonic_s: seconds since some time, which only go on.
    """

    unix_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    monotonic_s: Callable[[], float] = time.monotonic


SYSTEM: Final = Clock()
"""The machine's."""
