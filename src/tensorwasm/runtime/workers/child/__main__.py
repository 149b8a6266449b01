"""The worker process, and its template: ``python -m tensorwasm.runtime.workers.child ASKED``, a descriptor's number.

It owns one device and makes the calls that its parent sends over one socket, its link, and those of the fronts whose
connections come over a second one. It holds no key and no database. It ends with its parent, when the link closes, and
is killed when the parent or the template ends.
"""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Iterator
from itertools import chain

from tensorwasm.errors import TensorWasmError
from tensorwasm.gc_pause import collect_seldom
from tensorwasm.guest.native.loading import begin_loading
from tensorwasm.runtime.api.runtime import Runtime
from tensorwasm.runtime.workers.child.fork_server import load_all, run
from tensorwasm.runtime.workers.child.parent_compiler import ParentCompiler
from tensorwasm.runtime.workers.child.parent_link import ParentLink
from tensorwasm.runtime.workers.child.server import WorkerServer
from tensorwasm.runtime.workers.frames import (
    PROTOCOL,
    SetupFrame,
    UnfitFrame,
    WorkerFrame,
)
from tensorwasm.runtime.workers.outcomes import clean, describe_device
from tensorwasm.values import SmPlacement


def work(link: socket.socket, handover: socket.socket) -> int:
    """Serve the parent until it stops this or ends; return the exit code."""
    link_to_parent = ParentLink(link)
    frames = _read_first(link_to_parent)
    setup = next(frames, None)
    if not isinstance(setup, SetupFrame) or setup.protocol != PROTOCOL:
        return 2
    compiler = ParentCompiler(link_to_parent)
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
    if setup.asks:
        runtime.share().compile_with(compiler)
    runtime.plan_with(compiler)
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


if __name__ == "__main__":
    run(work, [*map(int, sys.argv[1:])], load_all)
