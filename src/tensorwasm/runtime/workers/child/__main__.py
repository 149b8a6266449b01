"""The worker process: ``python -m tensorwasm.runtime.workers.child LINK HANDOVER``, the numbers of two descriptors.

It owns one device and makes the calls that its parent sends over the first socket, and those of the fronts whose
connections come over the second one. It holds no key and no database. It ends with its parent: when the first socket
closes, and on Linux by a signal of the kernel's too.

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
from itertools import chain
from typing import Final, NoReturn

from tensorwasm.errors import TensorWasmError
from tensorwasm.gc_pause import collect_seldom
from tensorwasm.guest.native.loading import begin_loading
from tensorwasm.runtime.api.runtime import Runtime
from tensorwasm.runtime.workers.child.parent_compiler import ParentCompiler
from tensorwasm.runtime.workers.child.parent_link import ParentLink
from tensorwasm.runtime.workers.child.server import WorkerServer
from tensorwasm.runtime.workers.frames import (
    PROTOCOL,
    BrokenFrame,
    SetupFrame,
    UnfitFrame,
    WorkerFrame,
)
from tensorwasm.runtime.workers.outcomes import clean, describe_device
from tensorwasm.values import SmPlacement

_PR_SET_PDEATHSIG: Final = 1

_CREDENTIALS: Final = struct.Struct("3i")

_log = logging.getLogger(__name__)


def main(arguments: list[str] | None = None) -> int:
    """Serve the parent until it stops this or ends; return the exit code."""
    link, handover = (socket.socket(fileno=int(each)) for each in (sys.argv[1:] if arguments is None else arguments))
    for each in (link, handover):
        each.set_inheritable(False)
    _confine(link)
    link_to_parent = ParentLink(link)
    frames = _read_first(link_to_parent)
    setup = next(frames, None)
    if not isinstance(setup, SetupFrame) or setup.protocol != PROTOCOL:
        return 2
    compiler = ParentCompiler(link_to_parent) if setup.asks else None
    loader = threading.Thread(target=begin_loading(), name="tensorwasm-loading")
    loader.start()  # beside the device, which takes longer to open
    try:
        place = SmPlacement(*setup.place) if setup.place is not None else None
        runtime = Runtime(
            setup.device,
            multiprocessors=setup.multiprocessors,
            place=place,
            jit=setup.jit,
            isolation=setup.isolation,
        )
        ready = describe_device(runtime.open_device())
    except TensorWasmError as error:
        link_to_parent.send(UnfitFrame(error.kind, clean(error.message)))
        return 0
    if compiler is not None:
        runtime.share().compile_with(compiler)
    loader.join()
    runtime.fibers.open()
    collect_seldom()  # with all that was loaded: what is loaded later is looked at again and again
    link_to_parent.send(ready)
    server = WorkerServer(runtime, setup.places, ready, setup.beat_s)
    if setup.isolation == "guarded":
        runtime.share().watch_long_work(server.note_long_work)
        server.keep_turns(runtime.share().gate)
    server.serve(link_to_parent, compiler, handover, frames)
    return 0


def _read_first(link: ParentLink) -> Iterator[WorkerFrame]:
    """Return what the parent says first, a frame or more; nothing if it has gone."""
    while (frames := link.read(wait=True)) is not None:
        first = next(frames, None)
        if first is not None:
            return chain((first,), frames)
    return iter(())


def _confine(link: socket.socket) -> None:
    """Write no core file, which would hold guests' memory, and end with the parent.

    The kernel sends its signal when the parent's thread that started and watches this process ends. A parent that ended
    earlier is detected by the number of the current one.
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
    """Serve, and end the process without exit handlers: a kernel that never ends would block the driver's."""
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
