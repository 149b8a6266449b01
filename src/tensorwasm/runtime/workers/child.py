"""The worker process: ``python -m tensorwasm.runtime.workers.child FD``.

It owns one device and makes the calls that its parent asks for, over the one descriptor it inherited. It holds no key
and no database. It ends with its parent: when the socket does, and on Linux by a signal of the kernel's too.

Source: Linux man-pages, prctl(2) PR_SET_PDEATHSIG, unix(7) SO_PEERCRED, getrlimit(2) RLIMIT_CORE.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import socket
import struct
import sys
import threading
from collections.abc import Iterator
from typing import Final, NoReturn

from tensorwasm.errors import TensorWasmError
from tensorwasm.runtime.api.runtime import Runtime
from tensorwasm.runtime.executor.local import LocalExecutor
from tensorwasm.runtime.workers.counter import Counter
from tensorwasm.runtime.workers.frames import (
    PROTOCOL,
    BrokenFrame,
    Frame,
    Setup,
    Stop,
    Unfit,
)
from tensorwasm.runtime.workers.introduction import introduce
from tensorwasm.runtime.workers.outcomes import clean
from tensorwasm.runtime.workers.parent_link import ParentLink
from tensorwasm.values import SmPlacement

_PR_SET_PDEATHSIG: Final = 1

_CREDENTIALS: Final = struct.Struct("3i")

_log = logging.getLogger(__name__)


def main(arguments: list[str] | None = None) -> int:
    """Be a worker until the parent says or goes; return the exit code."""
    (descriptor,) = sys.argv[1:] if arguments is None else arguments
    link = socket.socket(fileno=int(descriptor))
    link.set_inheritable(False)
    _confine(link)
    line = ParentLink(link)
    frames = line.receive()
    setup = next(frames, None)
    if not isinstance(setup, Setup) or setup.protocol != PROTOCOL:
        return 2
    try:
        place = SmPlacement(*setup.place) if setup.place is not None else None
        runtime = Runtime(setup.device, multiprocessors=setup.multiprocessors, place=place, jit=setup.jit)
        info = runtime.device
    except TensorWasmError as error:
        line.send(Unfit(error.kind, clean(error.message)))
        return 0
    line.send(introduce(info))
    _serve(line, frames, runtime, setup)
    return 0


def _serve(line: ParentLink, frames: Iterator[Frame], runtime: Runtime, setup: Setup) -> None:
    counter = Counter(line, LocalExecutor(runtime, setup.places), runtime)
    stopped = threading.Event()
    beats = threading.Thread(target=counter.beat, args=(setup.beat_s, stopped), name="tensorwasm-beat", daemon=True)
    beats.start()
    for frame in frames:
        if isinstance(frame, Stop):
            break
        counter.take(frame)
    stopped.set()


def _confine(link: socket.socket) -> None:
    """Write no core file, which would hold guests' memory, and end with the parent.

    The kernel's signal comes when the parent's thread that started this process ends, which is the one that watches it.
    A parent that ended before the signal was asked for is seen by the number of the one there is now.
    """
    import resource  # noqa: PLC0415 - there are no workers where there is no such module

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    maker, user, _ = _CREDENTIALS.unpack(link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    if maker != os.getppid() or user != os.getuid():
        raise BrokenFrame("the process at the other end did not start this one")


def run() -> NoReturn:
    """Be a worker, and end the process, without exit handlers: a kernel that never ends would hold the driver's."""
    logging.basicConfig(level=logging.WARNING)
    code = 1
    try:
        code = main()
    except (OSError, BrokenFrame) as error:
        _log.error("the parent has gone, or does not keep to the protocol: %s", error)
    except Exception:  # noqa: BLE001 - the process's last word, whatever it is about
        _log.exception("a bug of the worker's")
    finally:
        logging.shutdown()
        os._exit(code)


if __name__ == "__main__":
    run()
