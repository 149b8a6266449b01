"""Threads that run guests for long leave room for others: an event loop beside them has its turn at once.

*The processor.* Linux lets a thread that wakes up take the processor from one that runs before its slice is over only
if its own slice is shorter and it has had less than its share so far. All slices are of the same length unless
something else is asked for: an event loop that has one chunk to send waits for 3 ms beside a guest that calculates.
Guests' threads have long ones. And after each request an event loop has had more than its share for as long again as
that took, which nothing looks at before the next tick of the system's clock, 4 ms later. Guests' threads have a tenth
of its weight (nice 10), so it owes them a tenth of that.

*The interpreter.* Each call of a host function takes the GIL and gives it back. Whoever waits for it is woken each
time, and by the time that he runs the guest has it again; nor does he ever wait for long enough in one go to ask for
it, as he would after a switch interval. So a guest that does nothing but call the host would keep everybody else out.
On such a thread it sleeps for a moment now and then, when it has just called.

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
"""What is added to the process's niceness for a guest's thread. More, and one that has the GIL stays behind others."""

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


def lower_priority(slice_ns: int = SLICE_NS, nice: int = NICE) -> bool:
    """Have the calling thread run in slices so long, with less weight; return whether the system took it.

    Args:
        slice_ns: from 100,000 to 100,000,000.
        nice: added to that of the process's first thread, so that a thread which inherits less weight than that one has
            is not lowered twice. Without privileges it cannot be taken back; 19 is the most that it becomes.
    """
    number = _CALLS.get(platform.machine()) if sys.platform == "linux" else None
    if number is None:
        return False
    try:
        policy, before = os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)
        lowered = max(before, min(os.getpriority(os.PRIO_PROCESS, os.getpid()) + nice, _NICEST))
    except OSError:  # a sandbox around this process lets it ask no such thing
        return False
    if policy != os.SCHED_OTHER:
        return False
    attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, policy, 0, lowered, 0, slice_ns, 0, 0)
    return bool(ctypes.CDLL(None).syscall(number, 0, attributes, 0) == 0)


def be_courteous() -> None:
    """Have the calling thread, which runs guests beside others, leave them room from now on."""
    lower_priority()
    _of_thread.due_ns = 0


def give_way_from_now_on() -> None:
    """Do what `give_way` does, on a thread that is another library's and was never told to be courteous."""
    if not hasattr(_of_thread, "due_ns"):
        _of_thread.due_ns = 0
    give_way()


def give_way() -> None:
    """Sleep for a moment if it is time to, on a thread that leaves others room."""
    due_ns = getattr(_of_thread, "due_ns", None)
    if due_ns is None:
        return
    if time.monotonic_ns() >= due_ns:
        if due_ns:
            time.sleep(MOMENT_S)
        _of_thread.due_ns = time.monotonic_ns() + EVERY_NS
