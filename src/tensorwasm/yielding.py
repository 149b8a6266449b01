"""Threads that run for long leave time for others, so that an event loop beside them runs without delay.

*The processor.* Linux lets a waking thread preempt a running one before its slice ends only if its own slice is shorter
and it has had less than its share. By default all slices are equal, so an event loop waits 3 ms for a guest that
computes. Threads that run guests therefore ask for long slices. After each request an event loop has also had more than
its share for as long as that took, which is checked only at the next system tick, 4 ms later. Threads that run guests
have a tenth of its weight (nice 10), so that debt shrinks to a tenth.

*The GIL.* Each call of a host function takes the GIL and releases it. A waiting thread is woken each time, but by the
time it runs the guest has the GIL again, and it never waits long enough at once to request it, as it would after a
switch interval. So a guest that only calls the host would keep all others out. Its thread sleeps briefly now and then,
right after a host call.

Source: Linux 6.12, sched_setattr(2) and kernel/sched/fair.c (PREEMPT_SHORT), earlier ones take it and do nothing;
CPython, Python/ceval_gil.h.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
import threading
import time
from collections.abc import Mapping
from typing import Final

SLICE_NS: Final = 20_000_000
"""Length of a guest's slice; Linux's own is 3 ms, and 100 ms the longest that it takes."""

NICE: Final = 10
"""Added to the niceness of a guest's thread. With more, one that holds the GIL would wait for others."""

EVERY_NS: Final = 500_000
"""How long a guest may call the host until it sleeps."""

MOMENT_S: Final = 20e-6
"""How long it does; the system makes about 80 us of it, which a thread needs to wake up on another processor."""

_NICEST: Final = 19
_of_thread: Final = threading.local()

_CALLS: Final[Mapping[str, int]] = {"x86_64": 314, "aarch64": 274}
"""The number of sched_setattr by machine: the C library has no function for it."""

_ATTRIBUTES: Final = struct.Struct("=IIQiIQQQ")
"""sched_attr: size, policy, flags, nice, priority, runtime (of a plain thread its slice), deadline, period."""


def lower_priority(slice_ns: int = SLICE_NS, nice: int = NICE, thread: int = 0) -> bool:
    """Give a thread slices of 0.1 to 100 ms and less weight, 0 for the calling one; return whether that was accepted.

    ``nice`` is added to the niceness of the process's first thread, so that an inherited one is not lowered twice; the
    sum is at most 19. Cannot be undone without privileges.
    """
    number = _CALLS.get(platform.machine()) if sys.platform == "linux" else None
    if number is None:
        return False
    try:
        policy, before = os.sched_getscheduler(thread), os.getpriority(os.PRIO_PROCESS, thread)
        lowered = max(before, min(os.getpriority(os.PRIO_PROCESS, os.getpid()) + nice, _NICEST))
    except OSError:  # a sandbox around this process lets it ask no such thing
        return False
    if policy != os.SCHED_OTHER:
        return False
    attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, policy, 0, lowered, 0, slice_ns, 0, 0)
    return bool(ctypes.CDLL(None).syscall(number, thread, attributes, 0) == 0)


def begin_yielding() -> None:
    """Lower the calling thread's priority, and make `yield_gil` sleep on it from now on."""
    lower_priority()
    _of_thread.due_ns = 0


def yield_gil_on_foreign_thread() -> None:
    """Do what `yield_gil` does, on another library's thread, which never called `begin_yielding`."""
    if not hasattr(_of_thread, "due_ns"):
        _of_thread.due_ns = 0
    yield_gil()


def yield_gil() -> None:
    """Sleep briefly if it is due, on a thread that has called `begin_yielding`."""
    due_ns = getattr(_of_thread, "due_ns", None)
    if due_ns is not None and time.monotonic_ns() >= due_ns:
        if due_ns:
            time.sleep(MOMENT_S)
        _of_thread.due_ns = time.monotonic_ns() + EVERY_NS
