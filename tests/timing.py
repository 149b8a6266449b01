"""Bounds on what work costs, which a busy machine does not break.

Whatever else is on the machine, in this process or in the collector's books only ever adds to what work costs: so the
least of a few tries is judged, and the collector, which would look at what thousands of tests left, waits.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Final

TRIES: Final = 3


def cost_s(work: Callable[[], object]) -> float:
    """Return the processor time of all threads, in seconds, that work takes."""
    gc.collect()
    gc.disable()
    began_s = time.process_time()
    try:
        work()
        return time.process_time() - began_s
    finally:
        gc.enable()


def costs_less(bound_s: float, work: Callable[[], object]) -> bool:
    """Return whether work takes less processor time than this in one of a few tries."""
    return any(cost_s(work) < bound_s for _ in range(TRIES))
