"""`WorkerServer`: what a worker process does for all processes that are connected to it.

One of them has started it, the *parent*: it compiles kernels, gives turns on the device, and ends the process. Others
are *fronts*: each has a connection for its own calls, which ends with it, and the worker goes on. One crew of threads
reads all connections (`tensorwasm.runtime.workers.child.crew`).
"""

from __future__ import annotations

import logging
import math
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from tensorwasm.errors import CallerError, GuestError, HostError, LimitError
from tensorwasm.gpu.device.port import Device, Stream
from tensorwasm.gpu.limits.gate import Gate
from tensorwasm.gpu.limits.turns import TurnKeeper, TurnOrder
from tensorwasm.runtime.executor.local import LocalExecutor
from tensorwasm.runtime.workers.child.counter import Counter
from tensorwasm.runtime.workers.child.crew import Crew
from tensorwasm.runtime.workers.child.parent_compiler import ParentCompiler
from tensorwasm.runtime.workers.child.parent_link import ParentLink
from tensorwasm.runtime.workers.child.stalls import Stalls
from tensorwasm.runtime.workers.frames import (
    BrokenFrame,
    LongWorkFrame,
    ReadyFrame,
    StopFrame,
    TurnEndFrame,
    WishFrame,
    WorkerFrame,
)
from tensorwasm.runtime.workers.outcomes import clean

if TYPE_CHECKING:
    from tensorwasm.runtime.api.runtime import Runtime

_TELL_S: Final = 1.0
_STALLED_S: Final = 5
"""A front that takes nothing for so long is cut off: what its calls hold is others', too."""
_TIMEVAL: Final = struct.Struct("ll")

_End = BrokenFrame | OSError | None
_Item = tuple[Counter, WorkerFrame | _End]
"""A frame of a connection, or how the connection has ended: None if the other side has gone."""

_log = logging.getLogger(__name__)


class WorkerServer:
    """Serves a parent and any number of fronts, on one device. Thread-safe.

    Args:
        runtime: whose device is looked after.
        places: calls at a time.
        ready: what every front is told first.
        beat_s: seconds between heartbeats, on every connection.
    """

    def __init__(self, runtime: Runtime, places: int, ready: ReadyFrame, beat_s: float) -> None:
        self.executor = LocalExecutor(runtime, places)
        self.crew: Crew[_Item] = Crew(self._handle, self._flush, self._note_stall)
        self.stalls = Stalls()
        self._ended: Future[None] = Future()
        self._runtime = runtime
        self._ready = ready
        self._beat_s = beat_s
        self._lock = threading.Lock()
        self._fewer = threading.Condition(self._lock)
        self._counters: tuple[Counter, ...] = ()
        self._told_s: dict[str, float] = {}
        self._wishing = threading.Lock()
        self.weights: dict[str, int] = {}
        self._busy: frozenset[str] = frozenset()
        self._keeper: TurnKeeper | None = None
        self._parent: Counter | None = None
        self._sickness = ""
        self._idle: tuple[Device, Stream] | None = None

    def serve(
        self,
        line: ParentLink,
        compiler: ParentCompiler | None,
        handover: socket.socket,
        frames: Iterable[WorkerFrame] = (),
    ) -> None:
        """Serve the parent and every front whose connection it hands over, until it stops this or goes. Blocks.

        Args:
            line: the parent's connection, which has been told that this is ready.
            compiler: gets the kernels that the parent answers.
            handover: brings the connections of fronts.
            frames: what the parent has said already.

        Raises:
            BrokenFrame: it does not keep to the protocol.
            OSError: its connection is broken.
        """
        self._parent = parent = self._open(line, compiler, front=False)
        self.crew.add(handover, partial(self._admit, handover))
        self.crew.start((parent, each) for each in frames)
        self._ended.result()
        with self._fewer:  # the fronts were told that the device is lost, and take their calls' outcomes first
            self._fewer.wait_for(lambda: not self._sickness or len(self._counters) < 2)

    def keep_turns(self, gate: Gate) -> None:
        """Have tenants who keep the device busy wait at its gate for the turns that the parent gives them."""
        self._keeper = TurnKeeper(gate, self)
        self._keeper.start()

    def _admit(self, handover: socket.socket) -> Iterable[_Item]:
        """Begin to serve the fronts that have come."""
        try:
            data, descriptors, _, _ = socket.recv_fds(handover, 1, 1, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return ()
        if not data:
            self.crew.remove(handover)
        for each in descriptors:
            self._begin(socket.socket(fileno=each))
        return ()

    def _begin(self, link: socket.socket) -> None:
        link.set_inheritable(False)
        if sys.platform != "win32":
            link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEVAL.pack(_STALLED_S, 0))
        line = ParentLink(link)
        counter = self._open(line, None, front=True)
        try:
            line.send(self._ready)
            if self._sickness:
                counter.tell_sickness(self._sickness)
        except OSError as error:
            self._cut(counter, error)

    def _open(self, line: ParentLink, compiler: ParentCompiler | None, *, front: bool) -> Counter:
        counter = Counter(line, self, compiler, front=front)
        with self._lock:
            self._counters = (*self._counters, counter)
        self.crew.add(line.socket, partial(self._read, counter))
        counter.start_beat(self._beat_s)
        return counter

    def _read(self, counter: Counter) -> Iterator[_Item]:
        """Yield what has come on a connection."""
        try:
            frames = counter.line.read()
            if frames is None:
                yield counter, None
                return
            for frame in frames:
                yield counter, frame
        except (BrokenFrame, OSError) as error:
            yield counter, error

    def _handle(self, item: _Item) -> None:
        """Do what a frame says, or end what its connection has asked for."""
        counter, said = item
        if counter.closed:
            return
        try:
            if isinstance(said, WorkerFrame) and not isinstance(said, StopFrame):
                counter.take(said)
            else:
                self._cut(counter, None if isinstance(said, StopFrame) else said)
        except (BrokenFrame, OSError) as error:
            self._cut(counter, error)
        except Exception as error:  # noqa: BLE001 - a bug, or no thread for a call: it costs the connection
            _log.exception("a connection is not served any more")
            self._cut(counter, BrokenFrame(str(error)))

    def _cut(self, counter: Counter, end: _End) -> None:
        """End a connection; the parent's end is this one's."""
        self.crew.remove(counter.line.socket)
        if counter is self._parent:
            counter.closed = True
            with suppress(InvalidStateError):
                if end is None:
                    self._ended.set_result(None)
                else:
                    self._ended.set_exception(end)
            return
        if end is not None:
            _log.warning("a front has gone, or does not keep to the protocol: %s", end)
        counter.close()
        with self._lock:
            self._counters = tuple(each for each in self._counters if each is not counter)
            self._fewer.notify_all()
        counter.line.close()

    def _note_stall(self, tenant: str) -> None:
        self.stalls.note(tenant, time.monotonic())

    def _flush(self) -> None:
        """Send the outcomes of short calls, once it is known whether their device still answers."""
        waiting = [counter for counter in self._counters if counter.finished]
        if waiting:
            sickness = self.look_after_device(waiting[0])
            for counter in waiting:
                counter.flush(sickness)

    def obey(self, order: TurnOrder) -> None:
        """Have the parent's order for turns kept. Without a keeper it was meant for the process before this one."""
        if self._keeper is not None:
            self._keeper.obey(order)

    def note_weight(self, tenant: str, weight: int) -> None:
        """Note a tenant's weight, as of a call."""
        with self._wishing:
            self.weights[tenant] = weight
            if tenant in self._busy:
                self._tell_wish()

    def wish(self, tenants: frozenset[str]) -> None:
        """See `tensorwasm.gpu.limits.turns.TurnListener`."""
        with self._wishing:
            self._busy = tenants
            self._tell_wish()

    def _tell_wish(self) -> None:
        if self._parent is not None:
            self._parent.tell(WishFrame({tenant: self.weights.get(tenant, 1) for tenant in sorted(self._busy)}))

    def end_turn(self, number: int, *, late: bool) -> None:
        """See `tensorwasm.gpu.limits.turns.TurnListener`."""
        if self._parent is not None:
            self._parent.tell(TurnEndFrame(number, late))

    def note_long_work(self, tenant: str) -> None:
        """Have those told whose calls a tenant's are that its kernels run long, once a second. Never waits."""
        now_s = time.monotonic()
        with self._lock:
            if now_s - self._told_s.get(tenant, -math.inf) < _TELL_S:
                return
            self._told_s[tenant] = now_s
        for counter in self._counters:
            if tenant in counter.tenants:
                counter.tell(LongWorkFrame(tenant))

    def _open_idle(self) -> tuple[Device, Stream]:
        device = self._runtime.open_device()
        with self._lock:
            self._idle = self._idle or (device, device.open_stream())
        return self._idle

    def look_after_device(self, teller: Counter) -> str:
        """Find out whether the device still answers, by a stream that has no work; if not, tell everybody, once.

        The counter that asks has told its process before this returns.

        Returns:
            Why it does not; empty if it does.
        """
        try:
            device, stream = self._idle or self._open_idle()
            device.ended(stream)
        except (HostError, GuestError) as error:
            with self._lock:
                self._sickness = self._sickness or clean(error.message)
            for counter in self._counters:
                if counter is not teller:
                    counter.tell_sickness(self._sickness)
            teller.tell_sickness(self._sickness)
        except (CallerError, LimitError):
            return ""  # the device is full, not lost
        return self._sickness
