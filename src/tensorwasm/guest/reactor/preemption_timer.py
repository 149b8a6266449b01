"""A timer for one slice: a guest yields earlier than at the engine's next tick.

The engine's ticks are 10 ms apart, because each costs a thread of the C library; a guest that begins on an event loop's
thread must not hold it that long. So that thread sets a timer, which does what a tick does. Setting it reprograms a
hardware clock, microseconds on a virtual machine: a timer also serves the guests that begin while half of its slice is
left, and is reset at a guest's end only where guests are rare. The longer the slice, the more guests it serves.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from tensorwasm.errors import TickerNotRunning
from tensorwasm.guest.engine.ticker import TimerSpec, make_timer, timer_library

if TYPE_CHECKING:
    from tensorwasm.guest.engine.engine import Engine
    from tensorwasm.guest.reactor.task import Sandbox

SLICE_NS: Final = 500_000
"""Longest first run of a guest, apart from a timer's lateness."""

LEAST_NS: Final = SLICE_NS // 2
"""Shortest time between a guest's begin and the timer."""

LATE_SLICES: Final = 2
"""Slices after which a late timer is not the reason."""

_NS: Final = 1_000_000_000
_of_thread: Final = threading.local()


class PreemptionTimer:
    """Advances an engine's epoch once. For one thread; does nothing in a forked child, which runs no guest.

    Attributes:
        busy: guests follow each other closely, so that `rest` does nothing.
    """

    def __init__(self, engine: int, slice_ns: int) -> None:
        """Make the timer, not set, of the engine at an address, which must never be freed.

        ``slice_ns`` is the longest run of a guest, more than `LEAST_NS`. Raises `TickerNotRunning` if the system has no
        such timers, or refused one.
        """
        library = self._library = timer_library()
        if library is None:
            raise TickerNotRunning("no timer for a guest's slice on this system")
        self._process = os.getpid()
        self._timer = make_timer(engine, library)
        self._set_time = library.timer_settime
        self._at = TimerSpec(0, 0, *divmod(slice_ns, _NS))
        self._never = TimerSpec(0, 0, 0, 0)
        self._slice_ns = slice_ns
        self._asked_ns = self._fires_ns = 0
        self.busy = False

    def __del__(self) -> None:
        library, timer = self._library, getattr(self, "_timer", None)
        if library is not None and timer is not None and self._process == os.getpid():
            library.timer_delete(timer)

    def set(self, now_ns: int) -> None:
        """Fire between `LEAST_NS` and a slice from now, a time on the monotonic clock."""
        self.busy = now_ns - self._asked_ns < self._slice_ns
        self._asked_ns = now_ns
        if self._fires_ns - now_ns < LEAST_NS:
            self._set_time(self._timer, 0, ctypes.byref(self._at), None)
            self._fires_ns = now_ns + self._slice_ns

    def rest(self) -> None:
        """Note the guest's end: the timer need not fire, unless guests follow each other closely."""
        if not self.busy:
            self._set_time(self._timer, 0, ctypes.byref(self._never), None)
            self._fires_ns = 0


def find_timer(engine: Engine, slice_ns: int = SLICE_NS) -> PreemptionTimer | None:
    """Return the calling thread's timer for an engine and a slice, None where the system has none."""
    key = engine.address, slice_ns
    try:
        timers: dict[tuple[int, int], PreemptionTimer | None] = _of_thread.timers
    except AttributeError:
        timers = _of_thread.timers = {}
    if key not in timers:
        timers[key] = None
        with suppress(TickerNotRunning):
            timers[key] = PreemptionTimer(*key)
    return timers[key]


def run_first_slice(
    fiber: Sandbox, *, briefly: bool = False, clock_ns: Callable[[], int] = time.thread_time_ns
) -> bool:
    """Run a guest until it waits, has ended or has had a slice; in that case it is marked `Fiber.long`.

    So is one that ended or trapped after twice as long: straight code between two checks of the clock, or a microsecond
    for each page touched first, may exceed a slice.

    Args:
        fiber: the guest.
        briefly: as for `Fiber.run`.
        clock_ns: measures the slice; the thread's own time excludes waits for a processor.
    """
    timer, began_ns = find_timer(fiber.state.engine), clock_ns()
    try:
        while True:
            if timer is not None:
                timer.set(time.monotonic_ns())
            if fiber.run(briefly=briefly):
                return True
            if fiber.waits:
                return False
            fiber.state.check()
            # A tick of the engine, or another thread's timer, may come too early.
            if clock_ns() - began_ns >= SLICE_NS // 2:
                break
    finally:
        if timer is not None:
            timer.rest()
        if clock_ns() - began_ns > LATE_SLICES * SLICE_NS:
            fiber.long = True
    fiber.long = True
    return False
