"""The clock by which a running guest can be stopped.

Guests check an epoch counter at every loop and call. On Linux a POSIX timer advances it whose notify function is
wasmtime's own increment, so neither Python code nor the GIL is needed. Elsewhere a Python thread does: guests run
without the GIL, so it gets its turn.

Engines are never freed (`tensorwasm.guest.engine.engine`), so a tick cannot reach a freed one, and no ticker has to be
stopped at exit.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from typing import Final

from tensorwasm.errors import TickerNotRunning
from tensorwasm.guest.engine import capi

_CLOCK_MONOTONIC: Final = 1
_SIGEV_THREAD: Final = 2


class _SigEvent(ctypes.Structure):
    """``struct sigevent`` of the 64-bit Linux ABI, 64 bytes."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signo", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("function", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("padding", ctypes.c_ubyte * 32),
    )


class TimerSpec(ctypes.Structure):
    """``struct itimerspec``: period, then time to the first tick."""

    _fields_ = (
        ("period_s", ctypes.c_int64),
        ("period_ns", ctypes.c_int64),
        ("first_s", ctypes.c_int64),
        ("first_ns", ctypes.c_int64),
    )


_running: Final[list[PosixTicker]] = []
"""Tickers whose timers this process has. They are as few as engines, and never freed."""


def _note_fork() -> None:
    """A forked child has no timers."""
    for each in _running:
        each.running = False
    _running.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


def make_timer(engine: int, libc: ctypes.CDLL) -> ctypes.c_void_p:
    """Return a timer, not set, that advances an engine's epoch on a thread of the C library's.

    The engine's address must stay valid for ever. Raises `TickerNotRunning` if the kernel refuses a timer.
    """
    timer = ctypes.c_void_p()
    event = _SigEvent(value=engine, notify=_SIGEV_THREAD, function=capi.address_of("wasmtime_engine_increment_epoch"))
    if libc.timer_create(_CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(timer)):
        raise TickerNotRunning(f"no timer for deadlines: {os.strerror(ctypes.get_errno())}")
    return timer


class PosixTicker:
    """A POSIX timer that calls ``wasmtime_engine_increment_epoch``.

    Attributes:
        running: whether ticks arrive in this process: False after `stop`, and in a forked child.
    """

    __slots__ = ("_libc", "_timer", "running")

    def __init__(self, engine: int, tick_s: float, libc: ctypes.CDLL) -> None:
        """Start ticking every ``tick_s`` seconds; other arguments and errors are those of `make_timer`."""
        self._libc = libc
        self.running = False
        self._timer = timer = make_timer(engine, libc)
        seconds, nanoseconds = divmod(round(tick_s * 1e9), 1_000_000_000)
        spec = TimerSpec(seconds, nanoseconds, seconds, nanoseconds)
        if libc.timer_settime(timer, 0, ctypes.byref(spec), None):
            raise TickerNotRunning(f"the timer for deadlines cannot be set: {os.strerror(ctypes.get_errno())}")
        self.running = True
        _running.append(self)

    def stop(self) -> None:
        """Delete the timer. Idempotent."""
        if self.running:
            self.running = False
            _running.remove(self)
            self._libc.timer_delete(self._timer)


class ThreadTicker:
    """A daemon thread, for systems without POSIX timers."""

    __slots__ = ("_stopped", "_thread")

    def __init__(self, engine: int, tick_s: float) -> None:
        """Start ticking, every ``tick_s`` seconds."""
        self._stopped = threading.Event()
        self._thread = threading.Thread(
            target=self._tick, args=(engine, tick_s), name="tensorwasm-epoch-ticker", daemon=True
        )
        self._thread.start()

    def _tick(self, engine: int, tick_s: float) -> None:
        increment = capi.bind("wasmtime_engine_increment_epoch")
        while not self._stopped.wait(tick_s):
            increment(engine)

    @property
    def running(self) -> bool:
        """Whether the thread is alive."""
        return self._thread.is_alive() and not self._stopped.is_set()

    def stop(self) -> None:
        """Stop the thread and wait for it. Idempotent."""
        self._stopped.set()
        self._thread.join()


def start(engine: int, tick_s: float) -> PosixTicker | ThreadTicker:
    """Start a timer, or a thread on systems without timers. Arguments and errors are those of `PosixTicker`."""
    libc = timer_library()
    return ThreadTicker(engine, tick_s) if libc is None else PosixTicker(engine, tick_s, libc)


def timer_library() -> ctypes.CDLL | None:
    """Return the C library with POSIX timers, bound to keep the GIL; None where it has none."""
    if sys.platform != "linux":
        return None
    # The C library since glibc 2.34 and in musl; before, librt.
    for name in (None, "librt.so.1"):
        try:
            library = ctypes.PyDLL(name, use_errno=True)
            library.timer_create.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
            library.timer_settime.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
            library.timer_delete.argtypes = [ctypes.c_void_p]
        except (OSError, AttributeError):
            continue
        return library
    return None
