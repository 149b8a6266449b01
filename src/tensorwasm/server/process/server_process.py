"""`Template`, from which servers are forked, and `ServerProcess`, one of these, as the supervisor sees them.

Each runs in a session of its own, so that it gets a terminal's signals once, from the supervisor.

Source: Linux man-pages, setsid(2), waitpid(2), pipe(7), prctl(2) PR_SET_CHILD_SUBREAPER.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from tensorwasm.server.process.options import ServeOptions

PROGRAM: Final = ("-m", "tensorwasm.server.process.template")

FORKS: Final = sys.platform == "linux"
"""Whether a template forks processes, which the supervisor adopts; elsewhere it becomes one."""

LENGTH_BYTES: Final = 4
"""What is asked of a template begins with the length of the rest, in network order."""

COMPLETE: Final = b"complete"
"""Asks a template to load compiled code, too. Everything else that it is asked is the options of a process to fork."""

LOADED: Final = b"0"
"""What a template says when it has loaded the server."""

REPORT: Final = b"1"
"""Report of a process, behind its number and a line's end: the first says that it serves, the second that it is
ready."""

_PR_SET_CHILD_SUBREAPER: Final = 36


class ServerProcess:
    """A process that a template was asked for.

    Args:
        reports: the pipe of its reports.

    Attributes:
        reports: that pipe; None once it has closed it.
        pid: its process number; None before it exists.
        code: how it ended, as `subprocess` says it; None while it runs.
        serves: it takes requests.
        ready: everything that requests need is loaded.
    """

    def __init__(self, reports: int) -> None:
        self.reports: int | None = reports
        self.pid: int | None = None
        self.code: int | None = None
        self.serves = self.ready = False
        self._number = b""
        self._signals: list[int] = []

    def look(self) -> None:
        """Read its reports, and whether it has ended."""
        known = self.pid is not None
        self._wait(os.WNOHANG)  # first: then all its reports are in the pipe
        while self.reports is not None:
            try:
                found = os.read(self.reports, 64)
            except BlockingIOError:
                break
            if not found:
                os.close(self.reports)
                self.reports = None
                if self.pid is None:  # its template died before it was forked, or could not fork
                    self.code = 1
            self._take(found)
        if not known and self.pid is not None:
            self.look()  # the signal of its end may have come before its number

    def _take(self, found: bytes) -> None:
        if self.pid is None:
            number, end, found = (self._number + found).partition(b"\n")
            if not end:
                self._number = number
                return
            self.pid = int(number)
            for each in self._signals:
                self.signal(each)
        for _ in range(found.count(REPORT)):
            self.serves, self.ready = True, self.serves

    def signal(self, number: int) -> None:
        """Send it a signal, once it exists; does nothing if it has ended."""
        if self.pid is None:
            self._signals.append(number)
        elif self.code is None:
            os.kill(self.pid, number)  # it is not waited for yet, so the number is its own

    def close(self) -> None:
        """Kill it, unless it has ended. Blocks for as long as the kernel takes."""
        self.signal(signal.SIGKILL)
        self._wait(0)
        if self.reports is not None:
            os.close(self.reports)  # one that does not exist yet is killed when it cannot write its number
            self.reports = None

    def _wait(self, options: int) -> None:
        if self.pid is None or self.code is not None:
            return
        ended, status = os.waitpid(self.pid, options)
        if ended:
            self.code = os.waitstatus_to_exitcode(status)


class Template:
    """A process that loads the server and forks what serves.

    Args:
        environment: of all of them.
        inherited: descriptors that they inherit; options name those that a process uses.

    Attributes:
        loaded: it has loaded the server.

    Raises:
        OSError: no process can be started.
    """

    def __init__(self, environment: Mapping[str, str], inherited: tuple[int, ...]) -> None:
        self.loaded = self.used_up = False
        self._control, theirs = socket.socketpair()
        self._control.setblocking(False)
        # It inherits the blocked SIGHUP until it has a handler: without one the signal would kill it.
        masked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module, without a shell
                [sys.executable, *PROGRAM, *map(str, (os.getpid(), theirs.fileno(), *inherited))],
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                pass_fds=(theirs.fileno(), *inherited),
            )
        except BaseException:
            self._control.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, masked)
            theirs.close()

    @property
    def pid(self) -> int:
        """Its process number."""
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Whether it has ended; elsewhere than on Linux, also whether it has become a server."""
        return self.used_up or self._process.poll() is not None

    def fileno(self) -> int:
        """Return what there is to read from once it has loaded the server."""
        return self._control.fileno()

    def look(self) -> None:
        """Read whether it has loaded the server."""
        with contextlib.suppress(BlockingIOError, ConnectionError):
            self.loaded = bool(self._control.recv(16)) or self.loaded

    def fork(self, options: ServeOptions) -> ServerProcess:
        """Have a process forked, as soon as the server is loaded; raise OSError if the template cannot be asked."""
        read, write = os.pipe()
        try:
            os.set_blocking(read, False)
            self._ask(options.to_json().encode(), [write])
        except BaseException:
            os.close(read)
            raise
        finally:
            os.close(write)
        if not FORKS:
            self.used_up, self._process.returncode = True, 0  # who has the server's process waits for it
        return ServerProcess(read)

    def complete(self) -> None:
        """Have compiled code loaded, before the next process is forked."""
        with contextlib.suppress(OSError):  # it has ended
            self._ask(COMPLETE, [])

    def _ask(self, text: bytes, descriptors: list[int]) -> None:
        message = len(text).to_bytes(LENGTH_BYTES) + text
        if socket.send_fds(self._control, [message], descriptors) != len(message):
            raise BlockingIOError("the template takes nothing")  # and can be asked nothing any more

    def close(self) -> None:
        """End it, unless it has become a server. Blocks for as long as the kernel takes."""
        self._control.close()
        if not self.used_up:
            self._process.kill()
            self._process.wait()


@contextlib.contextmanager
def adopting_orphans() -> Iterator[None]:
    """Within the context, let descendants whose parent ends become children of this process."""
    if not FORKS:
        yield
        return
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def bury_orphans(known: Iterable[int]) -> None:
    """Let go of ended children other than the known ones, such as a worker whose server was killed."""
    theirs = set(known)
    with contextlib.suppress(ChildProcessError):
        while FORKS and (found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            if found.si_pid in theirs:
                return  # the others are let go of when it is
            os.waitpid(found.si_pid, os.WNOHANG)
