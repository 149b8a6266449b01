"""`ForkServer`: the template of worker processes, which forks one whenever it is asked to, and ends them.

It loads what workers need, once for all of them; it has one thread, opens no device and makes no calls. Each message on
its socket asks for one worker. It has the folder of the MPS daemon that the worker joins, and five descriptors: the
worker's `link`, `handover` and standard error, a socket for `reports`, and a pidfd of the worker's `owner`, which is
the process that asks.

The worker says its number there, ``p<number>``, and the fork server how it has ended, ``s<status>`` as `subprocess` has
it. A worker that its owner does not want any more, who shuts the socket down or has ended, is killed with its process
group, and only then is its number given back to the system; the socket is closed last.

Source: Linux man-pages, fork(2), setsid(2), waitid(2), pidfd_open(2), prctl(2) PR_SET_PDEATHSIG, unix(7) SO_PEERCRED
and SCM_RIGHTS, getrlimit(2) RLIMIT_CORE.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import select
import signal
import socket
import struct
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NoReturn

from tensorwasm.gpu.cuda.driver.mps import PIPES_VARIABLE
from tensorwasm.guest.native.loading import load_kept, numpy_without_threads
from tensorwasm.runtime.workers.frames import BrokenFrame

Work = Callable[[socket.socket, socket.socket], int]
"""What a worker does with its link and its handover; returns the exit code."""

_ERRORS: Final = 2
_DESCRIPTORS: Final = 5
_MESSAGE_BYTES: Final = 4096
_CREDENTIALS: Final = struct.Struct("3i")
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NAME: Final = 15
_PR_SET_TIMERSLACK: Final = 29
_SLACK_NS: Final = 1000
"""How late a wait of a worker may end, as of the server's processes."""

_log = logging.getLogger(__name__)


def run(work: Work, descriptors: Sequence[int], load: Callable[[], object]) -> NoReturn:
    """Be a fork server; elsewhere than on Linux, a worker.

    Args:
        work: the worker's.
        descriptors: the socket where it is asked, or the worker's two.
        load: loads what workers need; called before each fork, so that it may have to wait for the next.
    """
    import resource  # noqa: PLC0415 - there are no workers where there is no such module

    logging.basicConfig(level=logging.WARNING)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core file would hold guests' memory
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform != "linux":
        _work(work, *descriptors)
    _name("workers")
    asked = socket.socket(fileno=descriptors[0])
    asked.set_inheritable(False)
    maker, user, _ = _CREDENTIALS.unpack(asked.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    if maker != os.getppid() or user != os.getuid():
        raise BrokenFrame("the process at the other end did not start this one")
    ForkServer(asked, work, load).serve()
    os._exit(0)


def load_all() -> None:
    """Load what workers need, compiled code too if there is some, as objects that no collection visits in a fork."""
    gc.disable()  # what is loaded stays
    with numpy_without_threads():
        from tensorwasm.gpu.cuda import opening  # noqa: F401, PLC0415 - loads no driver
        from tensorwasm.gpu.emulator import device  # noqa: F401, PLC0415

    load_kept()
    gc.freeze()
    gc.enable()


@dataclass(slots=True)
class _Forked:
    """A worker: its number, and descriptors that say that it has ended, is not wanted, or has no owner any more."""

    pid: int
    ended: int
    reports: int
    owner: int
    unwanted: bool = False
    status: int | None = None


class ForkServer:
    """Forks workers on request; ends when the other end of its socket is closed and all its workers have ended.

    Args:
        asked: brings what is asked.
        work: see `run`.
        load: likewise.
    """

    def __init__(self, asked: socket.socket, work: Work, load: Callable[[], object]) -> None:
        self._asked, self._work, self._load = asked, work, load
        self._watched: dict[int, _Forked] = {}
        self._poller = select.poll()

    def serve(self) -> None:
        """Do what is asked, and look after the workers."""
        self._load()
        self._poller.register(self._asked, select.POLLIN)
        asking = True
        while asking or self._watched:
            for number, _ in self._poller.poll():
                if number != self._asked.fileno():
                    self._attend(number)
                elif not self._answer():
                    self._poller.unregister(self._asked)
                    asking = False

    def _answer(self) -> bool:
        """Fork the worker that the next message asks for; return False if the other end of the socket is closed."""
        pipes, descriptors, _, _ = socket.recv_fds(self._asked, _MESSAGE_BYTES, _DESCRIPTORS)
        if not pipes:
            return False
        if len(descriptors) == _DESCRIPTORS:
            self._load()
            if not _is_readable(descriptors[-2:]):  # or its owner does not want it any more, or has ended
                descriptors = self._fork(pipes.decode(), descriptors)
        for each in descriptors:
            os.close(each)
        return True

    def _fork(self, pipes: str, descriptors: list[int]) -> list[int]:
        """Fork a worker; return the descriptors that are not needed here."""
        link, handover, errors, reports, owner = descriptors
        template, pid = os.getpid(), -1
        try:
            pid = os.fork()
            if not pid:
                self._become_worker(template, pipes, descriptors)
            worker = _Forked(pid, os.pidfd_open(pid), reports, owner)
        except OSError as error:
            if pid > 0:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            with suppress(OSError):
                os.write(errors, f"no process can be forked: {error.strerror}".encode())
                os.write(reports, b"s1")
            return descriptors
        for each in (worker.ended, reports, owner):
            self._watched[each] = worker
            self._poller.register(each, select.POLLIN)
        return [link, handover, errors]

    def _become_worker(self, template: int, pipes: str, descriptors: list[int]) -> NoReturn:
        """Be a worker, in the forked process, with what is its own and nothing else."""
        link, handover, errors, reports, _ = descriptors
        os.setsid()
        _name("worker")
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != template:  # it had ended before
            os._exit(1)
        os.environ[PIPES_VARIABLE] = pipes
        os.dup2(errors, _ERRORS)
        with suppress(OSError):  # the owner has ended
            os.write(reports, b"p%d" % os.getpid())
        self._asked.detach()
        for each in {int(each) for each in os.listdir("/proc/self/fd")} - {0, 1, _ERRORS, link, handover}:  # noqa: PTH208
            with suppress(OSError):  # that of the list
                os.close(each)
        _work(self._work, link, handover)

    def _attend(self, number: int) -> None:
        """Do what is due as a worker has ended, or its owner wants it no more or has ended."""
        worker = self._watched.pop(number, None)
        if worker is None:  # done for another of its descriptors
            return
        self._poller.unregister(number)
        if number == worker.ended:
            worker.status = _read_status(worker.pid)
            with suppress(OSError):  # the owner has gone, or reads nothing
                os.write(worker.reports, b"s%d" % worker.status)
        elif not worker.unwanted:
            worker.unwanted = True
            os.kill(worker.pid, signal.SIGKILL)  # which may have no group of its own yet
            with suppress(ProcessLookupError, PermissionError):  # not reaped yet, so the number of the group is its own
                os.killpg(worker.pid, signal.SIGKILL)
        if worker.unwanted and worker.status is not None:
            os.waitpid(worker.pid, 0)
            self._forget(worker)

    def _forget(self, worker: _Forked) -> None:
        for each in (worker.ended, worker.owner, worker.reports):
            if self._watched.pop(each, None) is not None:
                self._poller.unregister(each)
            os.close(each)


def _is_readable(descriptors: Sequence[int]) -> bool:
    poll = select.poll()
    for each in descriptors:
        poll.register(each, select.POLLIN)
    return bool(poll.poll(0))


def _read_status(pid: int) -> int:
    """Return how a process ended, as `subprocess` says it; it keeps its number."""
    found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert found is not None  # noqa: S101 - this blocks
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status


def _work(work: Work, link: int, handover: int) -> NoReturn:
    """Do a worker's work, and end the process without exit handlers, which a kernel that never ends would block."""
    code = 1
    try:
        sockets = [socket.socket(fileno=each) for each in (link, handover)]
        for each in sockets:
            each.set_inheritable(False)
        code = work(*sockets)
    except (OSError, BrokenFrame) as error:
        _log.error("the parent has gone, or does not keep to the protocol: %s", error)
    except Exception:  # noqa: BLE001 - the process's last word, whatever it is about
        _log.exception("a bug of the worker's")
    finally:
        logging.shutdown()
        os._exit(code)


def _name(what: str) -> None:
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_NAME, f"tw-{what}".encode(), 0, 0, 0)
    prctl(_PR_SET_TIMERSLACK, _SLACK_NS, 0, 0, 0)
