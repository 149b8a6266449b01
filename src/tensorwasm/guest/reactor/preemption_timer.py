"""A clock for one slice: it has a guest yield earlier than at the engine's next tick.

The engine's ticks are 10 ms apart, because each costs a thread of the C library's. An event loop must not be held that
long by a guest that begins on its thread. So the thread sets an alarm when a guest begins, and when it goes off it does
what a tick does; the engine's other guests look at their clocks a little earlier for it, no more. Setting it costs a
reprogrammed clock, microseconds on a virtual machine. So one that is set serves the guests that begin soon after too,
as long as half a slice is left of it, and only where guests are rare it is taken back when the guest has ended. The
longer an alarm may be late, the more guests it serves: `find_alarm` takes how long.
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
"""Longest that a guest runs at first, but for the time that a timer is late."""

LEAST_NS: Final = SLICE_NS // 2
"""Shortest that a guest runs before an alarm goes off."""

LATE_SLICES: Final = 2
"""Slices after which it was no timer that was late."""

_NS: Final = 1_000_000_000
_of_thread: Final = threading.local()


class PreemptionTimer:
    """A timer that advances an engine's epoch once. For one thread; its timer goes with the last reference.

    In a forked child it does nothing; there no guest runs either.
    """

    __slots__ = (
        "_asked_ns",
        "_at",
        "_busy",
        "_fires_ns",
        "_library",
        "_never",
        "_process",
        "_set_time",
        "_slice_ns",
        "_timer",
    )

    def __init__(self, engine: int, slice_ns: int) -> None:
        """Make the timer, not set.

        Args:
            engine: address of the engine, which must never be freed.
            slice_ns: longest that a guest is to run, more than `LEAST_NS`.

        Raises:
            TickerNotRunning: the system has no such timers, or refused one.
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
        self._busy = False

    def __del__(self) -> None:
        library, timer = self._library, getattr(self, "_timer", None)
        if library is not None and timer is not None and self._process == os.getpid():
            library.timer_delete(timer)

    def set(self, now_ns: int) -> None:
        """Have it go off between `LEAST_NS` and a slice from now.

        Args:
            now_ns: the time, on the monotonic clock.
        """
        self._busy = now_ns - self._asked_ns < self._slice_ns
        self._asked_ns = now_ns
        if self._fires_ns - now_ns < LEAST_NS:
            self._set_time(self._timer, 0, ctypes.byref(self._at), None)
            self._fires_ns = now_ns + self._slice_ns

    def rest(self) -> None:
        """Say that the guest runs no more: unless others follow each other closely, it need not go off."""
        if not self._busy:
            self._set_time(self._timer, 0, ctypes.byref(self._never), None)
            self._fires_ns = 0


def find_alarm(engine: Engine, slice_ns: int = SLICE_NS) -> PreemptionTimer | None:
    """Return the calling thread's alarm for an engine and slices so long, None where the system has no timer for it."""
    key = engine.address, slice_ns
    try:
        alarms: dict[tuple[int, int], PreemptionTimer | None] = _of_thread.alarms
    except AttributeError:
        alarms = _of_thread.alarms = {}
    if key not in alarms:
        alarms[key] = None
        with suppress(TickerNotRunning):
            alarms[key] = PreemptionTimer(*key)
    return alarms[key]


def run_first_slice(
    fiber: Sandbox, *, briefly: bool = False, clock_ns: Callable[[], int] = time.thread_time_ns
) -> bool:
    """Do what `Fiber.run` does, until the guest waits, has ended or has had a slice; then it is `Fiber.long`.

    It is so too if it has ended, or trapped, after twice as long: between two looks at the clock a guest gets as far as
    its code goes straight on, and every page that it is the first to touch costs it a microsecond.

    Args:
        fiber: the guest.
        briefly: as for `Fiber.run`.
        clock_ns: what the slice is measured with. The thread's own time is no shorter for a guest that was made to wait
            for a processor.

    Raises:
        TensorWasmError: how the call ended, if not well.
    """
    alarm, began_ns = find_alarm(fiber.state.engine), clock_ns()
    try:
        while True:
            if alarm is not None:
                alarm.set(time.monotonic_ns())
            if fiber.run(briefly=briefly):
                return True
            if fiber.waits:
                return False
            fiber.state.check()
            if clock_ns() - began_ns >= SLICE_NS // 2:  # a tick of the engine's, or another's alarm, may come too early
                break
    finally:
        if alarm is not None:
            alarm.rest()
        if clock_ns() - began_ns > LATE_SLICES * SLICE_NS:
            fiber.long = True
    fiber.long = True
    return False
