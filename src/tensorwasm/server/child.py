"""The server's process: ``python -m tensorwasm.server.child PARENT PIPE``, started by the supervisor.

It loads the server, reads its order from standard input, which may come much later, and writes two bytes to the pipe:
one when it serves, one when it is ready.

Exit codes: 0 it was told to stop; 2 or 4 what it was told makes no sense; 1 anything else.

Source: Linux man-pages, prctl(2) PR_SET_PDEATHSIG.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
from functools import partial
from typing import Final

from tensorwasm.errors import TensorWasmError
from tensorwasm.server.supervisor import Order

_PR_SET_PDEATHSIG: Final = 1


def main(arguments: list[str]) -> int:
    """Serve, and return the exit code."""
    parent, pipe = map(int, arguments)
    os.set_inheritable(pipe, False)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # until the server stops on it: an import would end with a traceback
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there is a log that it says has been moved
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})  # the supervisor had it wait
    if not _end_with(parent):
        return 1
    form = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format=form)
    from tensorwasm.server.starting import run  # noqa: PLC0415 - 0.5 s, for nothing if the parent is gone

    text = _take_order()
    if not text:
        return 1
    order = Order.from_json(text)
    try:
        run(order, partial(os.write, pipe, b"1"))
    except TensorWasmError as error:
        sys.stderr.write(f"error: {error.kind}: {error.message}\n")
        return error.exit_code
    return 0


def _take_order() -> str:
    """Wait for what standard input says, and leave nothing there; nothing is said to one that is not needed."""
    with open(0, encoding="utf-8", closefd=False) as waiting:
        text = waiting.read()
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return text


def _end_with(parent: int) -> bool:
    """Have this process told to stop when its parent ends; return False if it has ended already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    return os.getppid() == parent


if __name__ == "__main__":
    code = main(sys.argv[1:])
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)  # threads of the server that still wait for Python would wait for ever
