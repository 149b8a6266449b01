"""The template, from which the server's processes are forked: ``python -m tensorwasm.server.process.template ...``.

Its arguments are the supervisor's process, a socket to it, and the descriptors that servers inherit. It imports the
server, reports `LOADED`, and then does what the supervisor asks: a fork, or to load compiled code, too, so that what is
forked later has that. It runs no thread and no event loop and opens nothing: a fork has a copy of all that was
loaded, and nothing that is shared with others.

What is forked becomes a child of the supervisor: its parent, which the template forks, ends at once, and the supervisor
adopts the orphans of its descendants. It closes those of the inherited descriptors that its options do not name, and
writes a byte to its pipe when it serves, and one when it is ready. Where processes cannot be adopted, the template
itself becomes the first process that is asked for.

Exit codes: 0 stopped by a signal; 2 invalid options or settings; 4 the database is another server's, or there
is no such device; 1 anything else.

Source: Linux man-pages, fork(2), prctl(2) PR_SET_PDEATHSIG, PR_SET_NAME and PR_SET_TIMERSLACK, unix(7) SCM_RIGHTS.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import signal
import socket
import sys
from contextlib import suppress
from functools import partial
from typing import Final

from tensorwasm.errors import TensorWasmError
from tensorwasm.server.process.options import ServeOptions
from tensorwasm.server.process.server_process import COMPLETE, FORKS, LENGTH_BYTES, LOADED, REPORT

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NAME: Final = 15
_PR_SET_TIMERSLACK: Final = 29
_SLACK_NS: Final = 1000
"""How late a wait may end. By default it is 50 µs, more than `tensorwasm.server.serving.SWITCH_S`."""


def main(arguments: list[str]) -> int:
    """Fork processes until the supervisor needs none any more; return the exit code, in each of them its own."""
    supervisor, control, *inherited = map(int, arguments)
    for each in (control, *inherited):
        os.set_inheritable(each, False)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # until a server handles it: an import would print a traceback
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there is an audit log to reopen
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})  # the supervisor had blocked it
    if not _name("template", signal.SIGKILL, supervisor):
        return 1
    form = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format=form)
    gc.disable()  # imported objects stay alive: collections meanwhile would free nothing
    from tensorwasm.server.process import starting  # noqa: PLC0415 - most of a second, needless if it is gone

    gc.freeze()  # a collection in a fork would copy the pages of all that it visits
    with socket.socket(fileno=control) as asked:
        asked.sendall(LOADED)
        found = _wait_for_fork(asked)
    if found is None:
        return 0
    options, pipe = found
    if not _name(options.role, signal.SIGUSR1, supervisor):
        return 1
    if FORKS:
        os.setsid()
    gc.enable()
    for each in set(inherited) - options.descriptors:
        os.close(each)
    try:
        starting.run(options, partial(_report, pipe))
    except TensorWasmError as error:
        sys.stderr.write(f"error: {error.kind}: {error.message}\n")
        return error.exit_code
    return 0


def _wait_for_fork(asked: socket.socket) -> tuple[ServeOptions, int] | None:
    """Do what is asked; return options and pipe in each forked process, and None once the supervisor is gone."""
    while True:
        head, pipes, _flags, _address = socket.recv_fds(asked, LENGTH_BYTES, 1)
        if not head:
            return None
        text = asked.recv(int.from_bytes(head), socket.MSG_WAITALL)
        if text == COMPLETE:
            _load_compiled()
            continue
        (pipe,) = pipes
        os.set_inheritable(pipe, False)
        if not FORKS:
            os.write(pipe, b"%d\n" % os.getpid())
            return ServeOptions.from_json(text.decode()), pipe
        try:
            if _fork(pipe):
                return ServeOptions.from_json(text.decode()), pipe
        except OSError as error:
            sys.stderr.write(f"no process can be started: {error.strerror}\n")
        os.close(pipe)


def _load_compiled() -> None:
    """Load compiled code, unless it would have to be made first, and hand its objects to the forks uncollected."""
    from tensorwasm.guest.native.loading import load_kept  # noqa: PLC0415 - imported by now

    load_kept()
    gc.freeze()


def _fork(pipe: int) -> bool:
    """Fork a process that the supervisor adopts, and write its number to its pipe; return true in that process.

    It goes on once it is adopted: until then the supervisor could neither wait for it nor signal its end to it.

    Raises:
        OSError: no process can be started.
    """
    (told, tell), (adopted, adopt) = os.pipe(), os.pipe()
    try:
        between = os.fork()
        if not between:
            return _fork_again(tell, adopted, adopt)
        os.waitpid(between, 0)
        os.close(tell)
        tell = -1
        number = os.read(told, 32)
        if not number:
            return False
        try:
            os.write(pipe, number + b"\n")
        except BrokenPipeError:  # the supervisor does not want it any more
            os.kill(int(number), signal.SIGKILL)
        else:
            os.write(adopt, REPORT)
        return False
    finally:
        for each in (told, tell, adopted, adopt):
            if each >= 0:
                os.close(each)


def _fork_again(tell: int, adopted: int, adopt: int) -> bool:
    """Fork a process, tell its number, and end; return true in that process once it is adopted."""
    try:
        forked = os.fork()
        if not forked:
            os.close(adopt)
            if os.read(adopted, 1) != REPORT:  # the template has died
                os._exit(1)
            os.dup2(adopted, adopt)  # `_fork` closes both
            return True
        os.write(tell, b"%d" % forked)
    except OSError as error:
        sys.stderr.write(f"no process can be started: {error.strerror}\n")
    os._exit(0)


def _name(role: str, number: signal.Signals, supervisor: int) -> bool:
    """Name this process, and have it signalled when the supervisor ends; return whether that lives."""
    if sys.platform == "linux":
        prctl = ctypes.CDLL(None).prctl
        prctl(_PR_SET_NAME, f"tw-{role}".encode(), 0, 0, 0)
        prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)  # until the server handles it, it ends the process
        prctl(_PR_SET_TIMERSLACK, _SLACK_NS, 0, 0, 0)  # and of the threads that are started later
    return os.getppid() == supervisor


def _report(pipe: int) -> None:
    with suppress(BrokenPipeError):  # the supervisor has died, and the signal that says so is on its way
        os.write(pipe, REPORT)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)  # threads of the server that still wait for the GIL would wait for ever
