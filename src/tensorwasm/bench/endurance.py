"""Fresh sandboxes at a steady rate on one core, for long: what the process holds must not grow."""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from tensorwasm.bench.figures import Figure
from tensorwasm.bench.process import Holdings

RATE: Final = 1000
LOOKS: Final = 40
"""How often what the process holds is read, the same time apart."""

_RATE_BAR: Final = 0.999 * RATE  # the clock of the last look
_RESIDENT_BAR_KIB: Final = 128.0
"""What the allocators of Python and of wasmtime may differ by from one look to another; 60,000 sandboxes that each
left eight bytes would leave four times as much."""


def endure(start: Callable[[], object], seconds: float) -> Iterator[Figure]:
    """Yield how fast sandboxes were made, and how much more there was of everything in the end.

    Args:
        start: makes a sandbox and ends it.
        seconds: how long.
    """
    with _one_core():
        for _ in range(RATE):  # whatever is made once
            start()
        gc.collect()
        rate, looks = _run(start, seconds)
    fifth = max(1, len(looks) // 5)
    early, late = looks[fifth : 2 * fifth] or looks[:1], looks[-fifth:]

    def grown(count: Callable[[Holdings], float]) -> float:
        return statistics.median(map(count, late)) - statistics.median(map(count, early))

    made = round(rate * seconds)
    yield Figure(f"fresh sandboxes per second, {seconds:g} s", "", rate, 0.0, made, bar=_RATE_BAR, sense="at least")
    yield Figure(
        "resident memory gained meanwhile", "KiB", grown(lambda look: look.resident_bytes) / 1024, 0.0,
        len(looks), bar=_RESIDENT_BAR_KIB,
    )  # fmt: skip
    yield Figure("descriptors gained", "", grown(lambda look: look.descriptors), 0.0, len(looks), bar=0.0)
    yield Figure("mappings gained", "", grown(lambda look: look.mappings), 0.0, len(looks), bar=0.0)


def _run(start: Callable[[], object], seconds: float) -> tuple[float, list[Holdings]]:
    """Return the rate that was reached, never more than `RATE`, and what was held at each look."""
    count = max(LOOKS, round(RATE * seconds))
    looks, began = [Holdings.read()], time.perf_counter()
    for number in range(1, count + 1):
        start()
        if number * LOOKS // count > (number - 1) * LOOKS // count:
            looks.append(Holdings.read())
        early_s = began + number / RATE - time.perf_counter()
        if early_s > 0:
            time.sleep(early_s)
    return count / (time.perf_counter() - began), looks


@contextmanager
def _one_core() -> Iterator[None]:
    """Keep this thread on one core."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
