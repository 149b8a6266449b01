"""The clocks that the service reads; tests pass clocks of their own."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Clock:
    """Wall clock, in milliseconds since 1970, which can be set; and a monotonic clock."""

    unix_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    monotonic_s: Callable[[], float] = time.monotonic


SYSTEM: Final = Clock()
"""The machine's clocks."""
