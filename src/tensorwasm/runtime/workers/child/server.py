"""`WorkerServer`: what a worker process does for all processes that are connected to it.

One of them has started it, the *parent*: it compiles kernels, gives turns on the device, and ends the process. Others
are *fronts*: each has a connection for its own calls, which ends with it, and the worker goes on.
"""

from __future__ import annotations

import logging
import math
import socket
import struct
import sys
import threading
import time
from typing import TYPE_CHECKING, Final

from tensorwasm.errors import CallerError, GuestError, HostError, LimitError
from tensorwasm.gpu.device.port import Stream
from tensorwasm.gpu.limits.gate import Gate
from tensorwasm.gpu.limits.turns import TurnKeeper, TurnOrder
from tensorwasm.runtime.executor.local import LocalExecutor
from tensorwasm.runtime.workers.child.counter import Counter
from tensorwasm.runtime.workers.child.parent_compiler import ParentCompiler
from tensorwasm.runtime.workers.child.parent_link import ParentLink
from tensorwasm.runtime.workers.frames import (
    BrokenFrame,
    LongWorkFrame,
    ReadyFrame,
    StopFrame,
    TurnEndFrame,
    WishFrame,
)
from tensorwasm.runtime.workers.outcomes import clean

if TYPE_CHECKING:
    from tensorwasm.runtime.api.runtime import Runtime

_TELL_S: Final = 1.0
_STALLED_S: Final = 5
"""A front that takes nothing for so long is cut off: what its calls hold is others', too."""
_TIMEVAL: Final = struct.Struct("ll")

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
        self._runtime = runtime
        self._ready = ready
        self._beat_s = beat_s
        self._lock = threading.Lock()
        self._fewer = threading.Condition(self._lock)
        self._counters: tuple[Counter, ...] = ()
        self._told_s: dict[str, float] = {}
        self._wishing = threading.Lock()
        self._weights: dict[str, int] = {}
        self._busy: frozenset[str] = frozenset()
        self._keeper: TurnKeeper | None = None
        self._parent: Counter | None = None
        self._sickness = ""
        self._idle: Stream | None = None

    def open_parent(self, line: ParentLink, compiler: ParentCompiler | None) -> Counter:
        """Return the parent's counter; its frames are the caller's to read."""
        self._parent = self._open(line, compiler, front=False)
        return self._parent

    def keep_turns(self, gate: Gate) -> None:
        """Have tenants who keep the device busy wait at its gate for the turns that the parent gives them."""
        self._keeper = TurnKeeper(gate, self)
        self._keeper.start()

    def admit(self, handover: socket.socket) -> None:
        """Serve every front whose connection the parent hands over, until there will be no more. Blocks."""
        while True:
            data, descriptors, _, _ = socket.recv_fds(handover, 1, 1)
            if not data:
                return
            for each in descriptors:
                self._begin(socket.socket(fileno=each))

    def _begin(self, link: socket.socket) -> None:
        link.set_inheritable(False)
        try:
            threading.Thread(target=self._serve, args=(link,), name="tensorwasm-front", daemon=True).start()
        except RuntimeError as error:
            link.close()
            _log.error("a front is not served: %s", error)

    def _open(self, line: ParentLink, compiler: ParentCompiler | None, *, front: bool) -> Counter:
        counter = Counter(line, self, compiler, front=front)
        with self._lock:
            self._counters = (*self._counters, counter)
        return counter

    def _close(self, counter: Counter) -> None:
        with self._lock:
            self._counters = tuple(each for each in self._counters if each is not counter)
            self._fewer.notify_all()
        counter.close()

    def finish(self) -> None:
        """Wait until the fronts have gone if the device is lost: they were told, and take their calls' outcomes first.

        The parent ends a process that takes too long.
        """
        with self._fewer:
            self._fewer.wait_for(lambda: not self._sickness or len(self._counters) < 2)

    def _serve(self, link: socket.socket) -> None:
        """Serve a front until it goes, has what it sends refused, or takes nothing."""
        if sys.platform != "win32":
            link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEVAL.pack(_STALLED_S, 0))
        line, stopped = ParentLink(link), threading.Event()
        counter = self._open(line, None, front=True)
        try:
            line.send(self._ready)
            if self._sickness:
                counter.tell_sickness(self._sickness)
            counter.start_beat(self._beat_s, stopped)
            for frame in line.receive():
                if isinstance(frame, StopFrame):
                    break
                counter.take(frame)
        except (OSError, BrokenFrame) as error:
            _log.warning("a front has gone, or does not keep to the protocol: %s", error)
        except Exception:  # noqa: BLE001 - a bug, or no thread for a call: it costs this front its connection
            _log.exception("a front is not served any more")
        finally:
            stopped.set()
            line.close()
            self._close(counter)

    def obey(self, order: TurnOrder) -> None:
        """Have the parent's order for turns kept. Without a keeper it was meant for the process before this one."""
        if self._keeper is not None:
            self._keeper.obey(order)

    def note_weight(self, tenant: str, weight: int) -> None:
        """Note a tenant's weight, as of a call."""
        if self._weights.get(tenant) != weight:
            with self._wishing:
                self._weights[tenant] = weight
                if tenant in self._busy:
                    self._tell_wish()

    def wish(self, tenants: frozenset[str]) -> None:
        """See `tensorwasm.gpu.limits.turns.TurnListener`."""
        with self._wishing:
            self._busy = tenants
            self._tell_wish()

    def _tell_wish(self) -> None:
        if self._parent is not None:
            self._parent.tell(WishFrame({tenant: self._weights.get(tenant, 1) for tenant in sorted(self._busy)}))

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
                counter.soon(counter.tell, LongWorkFrame(tenant))

    def look_after_device(self, teller: Counter) -> str:
        """Find out whether the device still answers, by a stream that has no work; if not, tell everybody, once.

        The counter that asks has told its process before this returns.

        Returns:
            Why it does not; empty if it does.
        """
        try:
            device = self._runtime.open_device()
            with self._lock:
                stream = self._idle = self._idle or device.open_stream()
            device.ended(stream)
        except (HostError, GuestError) as error:
            with self._lock:
                self._sickness = self._sickness or clean(error.message)
            for counter in self._counters:
                if counter is not teller:
                    counter.soon(counter.tell_sickness, self._sickness)
            teller.tell_sickness(self._sickness)
        except (CallerError, LimitError):
            return ""  # the device is full, not lost
        return self._sickness
