"""The clock by which a running guest can be stopped.

Guests check an epoch counter at every loop and call. On Linux a POSIX timer advances it whose notify function is
wasmtime's own increment, so neither Python code nor the GIL is needed. Elsewhere a Python thread does: guests run
without the GIL, so it gets its turn.

Each tick wakes a processor and starts a thread, 0.1 ms of a virtual machine's time, so that an engine without a sandbox
does not tick: a thread of Python's looks each second, and ends when no timer of the process is set.

Engines are never freed (`tensorwasm.guest.engine.engine`), so a tick cannot reach a freed one, and no ticker has to be
stopped at exit.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
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


LOOK_S: Final = 1.0
"""Between two looks for engines without a sandbox."""

_running: Final[list[PosixTicker]] = []
"""Tickers whose timers this process has. They are as few as engines, and never freed."""
_setting: Final = threading.Lock()
"""Held while a timer is set, or set to rest."""
_looking: Final = threading.Event()
"""Set while a thread looks which timers may rest."""


def _note_fork() -> None:
    """A forked child has no timers."""
    for each in _running:
        each.running = each.ticking = False
    _running.clear()
    _looking.clear()


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
        running: whether ticks arrive in this process when they are needed: False after `stop`, and in a forked child.
        ticking: whether they arrive now. False at first, and when the engine has been found without a sandbox.
    """

    __slots__ = ("_is_idle", "_libc", "_period", "_timer", "running", "ticking")

    def __init__(self, engine: int, tick_s: float, is_idle: Callable[[], bool], libc: ctypes.CDLL) -> None:
        """Make the timer of an engine, which ticks every ``tick_s`` seconds from `resume` on.

        ``is_idle`` tells whether the engine has no sandbox. Other arguments and errors are those of `make_timer`.
        """
        self._is_idle = is_idle
        self._libc = libc
        self.running = self.ticking = False
        self._timer = make_timer(engine, libc)
        seconds, nanoseconds = divmod(round(tick_s * 1e9), 1_000_000_000)
        self._period = TimerSpec(seconds, nanoseconds, seconds, nanoseconds)
        self.running = True
        _running.append(self)

    def resume(self) -> None:
        """Tick, for a sandbox that `is_idle` knows of by now. Raises `TickerNotRunning` if no ticks can arrive."""
        _check(running=self.running)
        with _setting:
            if self.ticking:
                return
            if self._libc.timer_settime(self._timer, 0, ctypes.byref(self._period), None):
                raise TickerNotRunning(f"the timer for deadlines cannot be set: {os.strerror(ctypes.get_errno())}")
            self.ticking = True
            if not _looking.is_set():
                with suppress(RuntimeError):  # no thread can be started: it ticks on until one can
                    threading.Thread(target=_let_rest, name="tensorwasm-ticks", daemon=True).start()
                    _looking.set()

    def rest(self) -> None:
        """Tick no more if the engine has no sandbox. `_setting` is held."""
        self.ticking = False  # first: who makes a sandbox from now on resumes
        if self._is_idle():
            self._libc.timer_settime(self._timer, 0, ctypes.byref(TimerSpec(0, 0, 0, 0)), None)
        else:
            self.ticking = True

    def stop(self) -> None:
        """Delete the timer. Idempotent."""
        with _setting:
            if self.running:
                self.running = self.ticking = False
                _running.remove(self)
                self._libc.timer_delete(self._timer)


def _let_rest() -> None:
    """Let timers of engines without a sandbox rest, until all do."""
    while True:
        time.sleep(LOOK_S)
        with _setting:
            ticking = [each for each in _running if each.ticking]
            if not ticking:
                _looking.clear()
                return
            for each in ticking:
                each.rest()


def _check(*, running: bool) -> None:
    if not running:
        raise TickerNotRunning("the epoch ticker is not running (stopped, or this is a forked process): use spawn")


class ThreadTicker:
    """A daemon thread, for systems without POSIX timers. It ticks all the time."""

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

    ticking = running

    def resume(self) -> None:
        """See `PosixTicker.resume`."""
        _check(running=self.running)

    def stop(self) -> None:
        """Stop the thread and wait for it. Idempotent."""
        self._stopped.set()
        self._thread.join()


def make(engine: int, tick_s: float, is_idle: Callable[[], bool]) -> PosixTicker | ThreadTicker:
    """Return a timer, or a thread on systems without timers. Arguments and errors are those of `PosixTicker`."""
    libc = timer_library()
    return ThreadTicker(engine, tick_s) if libc is None else PosixTicker(engine, tick_s, is_idle, libc)


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
