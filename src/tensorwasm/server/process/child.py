"""A process of the server: ``python -m tensorwasm.server.process.child PARENT PIPE DESCRIPTOR...``.

The supervisor starts it. It loads the server, reads its options from standard input, which may arrive much later, and
closes those of the inherited descriptors that they do not name. To the pipe it writes a byte when it has loaded, one
when it serves, and one when it is ready.

Exit codes: 0 stopped by a signal; 2 invalid options or settings; 4 the database is another server's, or there
is no such device; 1 anything else.

Source: Linux man-pages, prctl(2) PR_SET_PDEATHSIG, PR_SET_TIMERSLACK.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import signal
import sys
from contextlib import suppress
from functools import partial
from typing import Final

from tensorwasm.errors import TensorWasmError
from tensorwasm.server.process.options import ServeOptions
from tensorwasm.server.process.server_process import LOADED, REPORT

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_TIMERSLACK: Final = 29
_SLACK_NS: Final = 1000
"""How late a wait may end. By default it is 50 µs, more than `tensorwasm.server.serving.SWITCH_S`."""


def main(arguments: list[str]) -> int:
    """Serve, and return the exit code."""
    parent, pipe, *inherited = map(int, arguments)
    for each in (pipe, *inherited):
        os.set_inheritable(each, False)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # until the server handles it: an import would print a traceback
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there is an audit log to reopen
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})  # the supervisor had blocked it
    if sys.platform == "linux":  # the signal to leave; until the server handles it, it ends the process
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGUSR1, 0, 0, 0)
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, _SLACK_NS, 0, 0, 0)  # and of the threads that are started later
    if os.getppid() != parent:  # it had ended before
        return 1
    form = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format=form)
    gc.disable()  # imported objects stay alive: collections meanwhile would free nothing
    from tensorwasm.server.process.starting import run  # noqa: PLC0415 - most of a second, needless if it is gone

    gc.enable()
    os.write(pipe, LOADED)
    text = _read_options()
    if not text:
        return 1
    options = ServeOptions.from_json(text)
    for each in set(inherited) - options.descriptors:
        os.close(each)
    try:
        run(options, partial(_report, pipe))
    except TensorWasmError as error:
        sys.stderr.write(f"error: {error.kind}: {error.message}\n")
        return error.exit_code
    return 0


def _report(pipe: int) -> None:
    with suppress(BrokenPipeError):  # the supervisor has died, and the signal that says so is on its way
        os.write(pipe, REPORT)


def _read_options() -> str:
    """Read standard input to its end, and redirect it to the null device; empty if this process is not needed."""
    with open(0, encoding="utf-8", closefd=False) as waiting:
        text = waiting.read()
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return text


if __name__ == "__main__":
    code = main(sys.argv[1:])
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)  # threads of the server that still wait for the GIL would wait for ever
