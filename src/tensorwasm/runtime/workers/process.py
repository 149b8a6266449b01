"""Starting a worker process and ending it.

Parent and worker talk over an unnamed pair of connected sockets: there is no file whose mode must be right, and no
other process can connect. Over a second one the parent hands the worker the connections of fronts (`child/server.py`).
Of both, the worker gets its end and nothing else.

The process is forked from a template (`tensorwasm.runtime.workers.template`), never from this one, with an environment,
a session and a process group of its own. The template ends it, and tells over a third pair how it ended.

Source: Linux man-pages, socketpair(2), setsid(2), killpg(3), pidfd_open(2), unix(7) SCM_RIGHTS.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Final, Protocol

from tensorwasm.errors import DeviceUnavailable
from tensorwasm.runtime.workers.frames import UnfitFrame
from tensorwasm.runtime.workers.template import FORKS, fork_worker

_REAP_S: Final = 10.0
_REPORT_BYTES: Final = 64


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a process gets for what, in seconds.

    Attributes:
        start_s: from its start until it is ready; compiling host functions for the first time takes ten.
        beat_s: between two of its heartbeats.
        silent_s: without any before it is taken to hang.
        drain_s: to finish what it has once its device is lost.
        stop_s: to leave.
    """

    start_s: float = 120.0
    beat_s: float = 1.0
    silent_s: float = 15.0
    drain_s: float = 5.0
    stop_s: float = 2.0


@dataclass(frozen=True, slots=True)
class Ending:
    """How a process ended.

    Attributes:
        text: for people; ``was killed by SIGKILL``, ``sent no heartbeat for 15 s``.
        blamed: it had requests, or had answered some.
        unfit: what it said of its device, None if it did not.
        orphan: as of `WorkerProcess`: no request of its is the cause.
    """

    text: str
    blamed: bool
    unfit: UnfitFrame | None = None
    orphan: bool = False


class WorkerProcess(Protocol):
    """A worker process to talk to.

    Attributes:
        link: this end of the connection, non-blocking.
        errors: the process's standard error, non-blocking; None if another process has started it.
    """

    link: socket.socket
    errors: IO[bytes] | None

    @property
    def pid(self) -> int | None:
        """The process's number, None if it does not exist yet or another process has started it."""

    @property
    def orphan(self) -> bool:
        """Whether the process has ended with the one that had started or forked it, known after `wait`."""

    def admit(self, link: socket.socket) -> None:
        """Hand the process the connection of a front. The process has it then, and the caller no more."""

    def wait(self, limit_s: float) -> None:
        """Wait a moment for a process that is about to end by itself."""

    def end(self) -> int | None:
        """End the process, or the connection to one that another process has started, and release everything.

        Returns:
            The exit status, None if it is not known.
        """


class ForkedChild:
    """A process that a template was asked for, as its reports say; see `tensorwasm.runtime.workers.child.fork_server`.

    Args:
        reports: the socket of them, which ends the process when it is shut down.

    Attributes:
        status: how it ended, as `subprocess` says it; None while that is not known.
        gone: there is nothing left to report: it has ended, with all its group, or its template has.
    """

    def __init__(self, reports: socket.socket) -> None:
        self._reports = reports
        self._pid: int | None = None
        self.status: int | None = None
        self.gone = False

    @property
    def pid(self) -> int | None:
        """Its number; None before it is forked."""
        if self._pid is None:
            self._listen(0.0)
        return self._pid

    def wait(self, limit_s: float) -> None:
        """Wait until it has ended."""
        ends_s = time.monotonic() + limit_s
        while self.status is None and self._listen(ends_s - time.monotonic()):
            pass

    def end(self) -> int | None:
        """Kill it and its group; return its exit status, None if it was never forked, or ended with its template."""
        if self.pid is None and self.status is None:  # the template, which may only load, forks it no more
            self._reports.close()
            return None
        with contextlib.suppress(OSError):
            self._reports.shutdown(socket.SHUT_WR)
        ends_s = time.monotonic() + _REAP_S
        while self._listen(ends_s - time.monotonic()):
            pass
        self._reports.close()
        return self.status if self.gone else -signal.SIGKILL  # or in a driver's call that does not return

    def _listen(self, limit_s: float) -> bool:
        """Take the next report; return False if there is none within the limit."""
        poll = select.poll()  # select() takes no descriptor over 1,023
        poll.register(self._reports, select.POLLIN)
        if self.gone or not poll.poll(max(0.0, limit_s) * 1e3):
            return False
        try:
            report = self._reports.recv(_REPORT_BYTES)
        except OSError:
            report = b""
        if report.startswith(b"p"):
            self._pid = int(report[1:])
        elif report:
            self.status = int(report[1:])
        self.gone = not report
        return not self.gone


class SpawnedChild:
    """A process that this one has started itself, where nothing is forked."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self._popen = popen
        self.pid: int | None = popen.pid
        self.status: int | None = 0
        self.gone = False

    def wait(self, limit_s: float) -> None:
        """Wait until it has ended; it is not reaped before `end`, which ends it in any case."""

    def end(self) -> int | None:
        """Kill it and its group; return its exit status."""
        # The leader is not reaped yet, so its number, which is the group's, is still its own.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        try:
            return self._popen.wait(_REAP_S)
        except subprocess.TimeoutExpired:
            return -signal.SIGKILL


@dataclass(slots=True)
class Process:
    """A worker process that this one has started; see `WorkerProcess`."""

    link: socket.socket
    errors: IO[bytes] | None
    _handover: socket.socket
    _child: ForkedChild | SpawnedChild

    @classmethod
    def spawn(cls, program: Sequence[str], environment: Mapping[str, str]) -> Process:
        """Start a process, which on Linux ends with this one; `DeviceUnavailable` if that fails."""
        if sys.platform == "win32":
            raise DeviceUnavailable("worker processes need Linux or macOS")
        (ours, link), (fronts, handover), (said, errors) = socket.socketpair(), socket.socketpair(), os.pipe()
        try:
            start = _fork if FORKS else _spawn
            child = start(program, environment, (link.fileno(), handover.fileno(), errors))
        except BaseException:
            ours.close()
            fronts.close()
            os.close(said)
            raise
        finally:
            link.close()
            handover.close()
            os.close(errors)
        ours.setblocking(False)
        fronts.setblocking(False)
        os.set_blocking(said, False)
        return cls(ours, os.fdopen(said, "rb"), fronts, child)

    @property
    def pid(self) -> int | None:
        """See `WorkerProcess.pid`."""
        return self._child.pid

    @property
    def orphan(self) -> bool:
        """See `WorkerProcess`: its template has ended, and it with that."""
        return self._child.gone and self._child.status is None

    def admit(self, link: socket.socket) -> None:
        """See `WorkerProcess.admit`. A process that has gone, or takes none, ends the connection."""
        with link, contextlib.suppress(OSError):
            socket.send_fds(self._handover, [b"\0"], [link.fileno()])

    def end(self) -> int | None:
        """Kill the process and its children, and release everything; return its exit status.

        Until this returns, the system gives the number of the process, or of its group, to no other.
        """
        try:
            return self._child.end()
        finally:
            self.link.close()
            self._handover.close()
            if self.errors is not None:
                self.errors.close()

    def wait(self, limit_s: float) -> None:
        """Wait a moment for a process that is about to end by itself, on Linux."""
        self._child.wait(limit_s)


def _fork(program: Sequence[str], environment: Mapping[str, str], descriptors: Sequence[int]) -> ForkedChild:
    """Have a process forked, with its link, handover and standard error."""
    reports, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    owner = os.pidfd_open(os.getpid())
    try:
        fork_worker(program, environment, [*descriptors, theirs.fileno(), owner])
    except BaseException:
        reports.close()
        raise
    finally:
        theirs.close()
        os.close(owner)
    return ForkedChild(reports)


def _spawn(program: Sequence[str], environment: Mapping[str, str], descriptors: Sequence[int]) -> SpawnedChild:
    """Start a process, likewise."""
    *inherited, errors = descriptors
    try:
        popen = subprocess.Popen(  # noqa: S603 - our own interpreter and module, without a shell
            [sys.executable, "-P", *program, *map(str, inherited)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env=dict(environment),
            pass_fds=inherited,
            start_new_session=True,
        )
    except OSError as error:
        raise DeviceUnavailable(f"no worker process can be started: {error.strerror}") from None
    return SpawnedChild(popen)


def describe_exit(status: int | None) -> str:
    """Return how a process ended, for people: ``was killed by SIGSEGV``, ``exited with code 1``."""
    if status is None:
        return "has gone"
    if status >= 0:
        return f"exited with code {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"
