"""The end of a command that does not end by itself: past its deadline, or after an interrupt that nothing answers.

A guest that waits for its own standard input, or for a reader of its output, is inside a system call that neither a
deadline nor Python's handler of an interrupt reaches. Then the process ends around it, as a native program would.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

from tensorwasm.cli import INTERRUPTED
from tensorwasm.errors import InvokeTimeout

INTERRUPT_GRACE_S: Final = 0.25
"""What a command gets after an interrupt to end by itself."""
_SPEAKING_S: Final = 1.0
_WAKE_BYTES: Final = 64


@contextlib.contextmanager
def watched(wall_s: float, grace_s: float, release: Callable[[], object]) -> Iterator[None]:
    """End the process if what is inside does not end by itself. For the main thread.

    Args:
        wall_s: when it should have ended, in seconds from now.
        grace_s: what it gets past that.
        release: called before the process ends so.
    """
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    # A handler of Python's runs between two bytecodes, so not inside a guest that waits; this byte is written at once.
    before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
    arguments = (ours, time.monotonic() + wall_s + grace_s, wall_s, release)
    threading.Thread(target=_watch, args=arguments, name="tensorwasm-watchdog", daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        theirs.close()


def _watch(wake: socket.socket, ends_at_s: float, wall_s: float, release: Callable[[], object]) -> None:
    """Wait until the other end is closed; end the process at the deadline, or soon after an interrupt."""
    with wake:
        interrupted = False
        while True:
            left_s = INTERRUPT_GRACE_S if interrupted else ends_at_s - time.monotonic()
            wake.settimeout(min(max(left_s, 0.001), threading.TIMEOUT_MAX))
            try:
                numbers = wake.recv(_WAKE_BYTES)
            except TimeoutError:
                break
            if not numbers:
                return
            interrupted = interrupted or signal.SIGINT in numbers
    release()
    if interrupted:
        os._exit(INTERRUPTED)
    _end_late(wall_s)


def _end_late(wall_s: float) -> None:
    """End the process, come what may: a reader that has stopped reading, or gone, must not keep it alive."""
    speaker = threading.Thread(target=_say_stopped, args=(wall_s,), daemon=True)
    speaker.start()
    speaker.join(_SPEAKING_S)
    os._exit(InvokeTimeout.exit_code)


def _say_stopped(wall_s: float) -> None:
    with contextlib.suppress(OSError):
        sys.stderr.write(f"error: {InvokeTimeout.kind}: nothing ended within {wall_s:g} s; the process is stopped\n")
        sys.stderr.flush()
