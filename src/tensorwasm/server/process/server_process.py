"""`ServerProcess`: one process of the server, as its supervisor sees it.

It runs in a session of its own, so that it gets a terminal's signals once, from the supervisor.

Source: Linux man-pages, setsid(2), waitpid(2), pipe(7).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import Final

from tensorwasm.server.process.options import ServeOptions

PROGRAM: Final = ("-m", "tensorwasm.server.process.child")

LOADED: Final = b"0"
"""Report of a process that has loaded the server. The next two are `REPORT`: it serves, and it is ready."""

REPORT: Final = b"1"


class ServerProcess:
    """A process that loads the server, and serves once it gets its options.

    Args:
        environment: of the process.
        inherited: descriptors of which its options name those that it uses.

    Attributes:
        reports: the pipe of its reports; None once it has closed it.
        code: how it ended, as `subprocess` says it; None while it runs.
        loaded: it has loaded the server.
        serves: it takes requests.
        ready: everything that requests need is loaded.
    """

    def __init__(self, environment: Mapping[str, str], inherited: tuple[int, ...]) -> None:
        self.reports: int | None = None
        self.code: int | None = None
        self.loaded = self.serves = self.ready = False
        read, write = os.pipe()
        os.set_blocking(read, False)
        started = False
        # It inherits the blocked SIGHUP until it has a handler: without one the signal would kill it.
        masked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module, without a shell
                [sys.executable, *PROGRAM, *map(str, (os.getpid(), write, *inherited))],
                env=dict(environment),
                stdin=subprocess.PIPE,
                start_new_session=True,
                pass_fds=(write, *inherited),
            )
            self.reports, started = read, True
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, masked)
            os.close(write)
            if not started:
                os.close(read)

    @property
    def pid(self) -> int:
        """Its process number."""
        return self._process.pid

    def send(self, options: ServeOptions) -> None:
        """Let it serve; does nothing if it has died."""
        assert self._process.stdin is not None  # noqa: S101 - a pipe, as requested above
        with contextlib.suppress(BrokenPipeError), self._process.stdin as pipe:
            pipe.write(options.to_json().encode())

    def look(self) -> None:
        """Read its reports, and whether it has ended."""
        self.code = self._process.poll()  # first: then all its reports are in the pipe
        while self.reports is not None:
            try:
                found = os.read(self.reports, 16)
            except BlockingIOError:
                break
            if not found:
                os.close(self.reports)
                self.reports = None
            self.loaded = self.loaded or bool(found)
            for _ in range(found.count(REPORT)):
                self.serves, self.ready = True, self.serves

    def signal(self, number: int) -> None:
        """Send it a signal; does nothing if it has ended."""
        self._process.send_signal(number)

    def close(self) -> None:
        """Kill it, unless it has ended. Blocks for as long as the kernel takes."""
        self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        if self.reports is not None:
            os.close(self.reports)
            self.reports = None
