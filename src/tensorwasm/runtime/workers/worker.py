"""`Worker`: one worker of an executor, whose processes may be replaced.

A supervising thread starts the process, holds the conversation with it and replaces it. Other threads leave their
requests in a queue and give them to the process themselves (`Worker.serve`), and leave orders in another one, for which
they wake it. A request that was given to a process is never given to another, because it may have had effects; waiting
requests go on to the next one.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from tensorwasm.errors import CapacityExhausted, DeviceFault, DeviceUnavailable, TensorWasmError
from tensorwasm.gpu.limits.turns import TurnOrder
from tensorwasm.gpu.resources.guarded_compiler import KernelJob, KernelTarget
from tensorwasm.runtime.workers.broker_client import call_elsewhere
from tensorwasm.runtime.workers.conversation.conversation import Conversation
from tensorwasm.runtime.workers.conversation.flight import Flight
from tensorwasm.runtime.workers.conversation.flight_queue import FlightQueue
from tensorwasm.runtime.workers.conversation.loop_reader import LoopReader
from tensorwasm.runtime.workers.frames import Asked, AskFrame, FailedFrame, PlanAskFrame, ReadyFrame, UnfitFrame
from tensorwasm.runtime.workers.lifecycle import Lifecycle, State
from tensorwasm.runtime.workers.options import Notices, WorkerOptions, WorkerStatistics
from tensorwasm.runtime.workers.outcomes import rebuild_device, rebuild_error, rebuild_target
from tensorwasm.runtime.workers.process import Ending, Process, WorkerProcess
from tensorwasm.runtime.workers.template import make_environment
from tensorwasm.values import DeviceInfo

_log = logging.getLogger(__name__)

_UNHEARD: Final = Notices()
Connector = Callable[[], WorkerProcess]


class Worker:
    """One worker. Every public method may be called from any thread.

    Args:
        number: for people and for placement.
        options: how its processes are made.
        tenant: whose alone it is, None for any tenant's. Where tenants share a worker, no driver compiles PTX in it:
            its compiler is known to crash, which would end the other tenants' calls.
        notices: to its owner.
        connector: connects to a process that a broker has started, or raises `TensorWasmError`; None starts processes.
        reader: has an event loop read what processes say, None for the supervising thread.
    """

    def __init__(
        self,
        number: int,
        options: WorkerOptions,
        tenant: str | None = None,
        notices: Notices = _UNHEARD,
        connector: Connector | None = None,
        reader: LoopReader | None = None,
    ) -> None:
        self.number = number
        self.tenant = tenant
        self._options = options
        self._notices = notices
        self._connector = connector
        self._reader = reader
        self.lifecycle = Lifecycle(options.backoff)
        self._lock = threading.Lock()
        self._waiting = FlightQueue()
        self._orders: deque[Callable[[Conversation | None], object]] = deque()
        self._joining: list[socket.socket] = []
        self._talk: Conversation | None = None
        self._pid: int | None = None
        self._info: DeviceInfo | None = None
        self._target: KernelTarget | None = None
        self._answered = self._starts = 0
        self._last_end = self._sickness = ""
        self._drained_by_s = math.inf
        self._unfit: UnfitFrame | None = None
        self._waker, self._woken = socket.socketpair()
        self._waker.setblocking(False)
        self._woken.setblocking(False)
        self._thread = threading.Thread(target=self._keep, name=f"tensorwasm-worker-{number}", daemon=True)
        self._thread.start()

    @property
    def load(self) -> int:
        """Requests it has, waiting ones included."""
        talk = self._talk
        return len(self._waiting) + (len(talk.flights) if talk is not None else 0)

    @property
    def held_bytes(self) -> int:
        """Device memory charged to its tenants, as of the last heartbeat."""
        talk = self._talk
        return sum(device for device, _ in talk.charges.values()) if talk is not None else 0

    def held_by(self, tenant: str) -> int:
        """Return the device memory charged to a tenant, as of the last heartbeat."""
        talk = self._talk
        return talk.charges.get(tenant, (0, 0))[0] if talk is not None else 0

    def submit(self, flight: Flight) -> None:
        """Take a request, which `begin` gives to the process; raise as `refusal`, or `CapacityExhausted`."""
        with self._lock:
            if not self.lifecycle.takes:
                raise self.refusal()
            if self.load >= self._options.requests:
                raise CapacityExhausted(
                    f"worker {self.number} on {self._options.device} holds {self._options.requests} requests, which is "
                    "as many as WorkerOptions.requests lets it; try again when some have ended"
                )
            self._waiting.put(flight)

    def begin(self) -> None:
        """Give the process what was taken: at once, or on an event loop's thread at its next turn if it has others."""
        if self._reader is not None and self._reader.here and self._talk is not None and self._talk.flights:
            self._reader.soon(self.serve)
        else:
            self.serve()

    def serve(self) -> None:
        """Give the process what waits for it, unless another thread is just doing that."""
        while self._waiting:
            talk = self._talk
            if talk is None or not talk.open or self.lifecycle.state is not State.READY:
                self.wake()
                return
            if not talk.turn.acquire(blocking=False):
                return  # whose turn it is does this next
            try:
                if talk.has_gone():
                    self.wake()
                    return
                self._waiting.give(talk.send)
                talk.flush()
            finally:
                talk.turn.release()

    def cancel(self, flight: Flight) -> None:
        """End a request whose outcome is not wanted any more."""

        def order(talk: Conversation | None) -> None:
            if not self._waiting.remove(flight) and talk is not None:
                talk.cancel(flight, stop=True)

        self._order(order)

    def hush(self, flight: Flight) -> None:
        """Send no more of a request's output."""
        self._order(lambda talk: talk.cancel(flight, stop=False) if talk is not None else None)

    def credit(self, flight: Flight, parts: int) -> None:
        """Send so many more parts of a request's output."""
        self._order(lambda talk: talk.credit(flight, parts) if talk is not None else None)

    def order(self, order: TurnOrder) -> None:
        """Tell the process whose turn on the device it is, unless a broker does."""
        if self._connector is None:
            self._order(lambda talk: talk.order(order) if talk is not None else None)

    def connect(self, link: socket.socket) -> None:
        """Give the process, or the next one, the connection of a front; this end is closed. Raises as `refusal`."""
        with self._lock:
            if not self.lifecycle.takes:
                raise self.refusal()
            self._orders.append(partial(self._join, link))
        self.wake()

    def _join(self, link: socket.socket, talk: Conversation | None) -> None:
        if talk is None or self.lifecycle.state is State.DRAINING:
            self._joining.append(link)  # for the next process, if one follows
        else:
            talk.admit(link)

    def drain(self, limit_s: float, *, replace: bool = False) -> None:
        """Let it finish what it has within the limit, and leave, or be replaced; returns at once."""
        self._order(lambda _: self._begin_drain(limit_s, replace=replace))

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait until it is gone for good; return whether it is."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def refusal(self) -> TensorWasmError:
        """Return why it takes no more requests."""
        if self.lifecycle.state is not State.FAILED:
            return CapacityExhausted(f"worker {self.number} is leaving")
        if self._unfit is not None:
            return rebuild_error(FailedFrame(1, self._unfit.kind, self._unfit.message))
        return DeviceUnavailable(
            f"worker {self.number} on {self._options.device} ended {self._options.backoff.idle_ends} times in a row "
            f"without a request, and is given up; at last it {self._last_end}"
        )

    def statistics(self) -> WorkerStatistics:
        """Return a snapshot."""
        talk = self._talk
        return WorkerStatistics(
            number=self.number,
            device=self._options.device,
            tenant=self.tenant,
            state=self.lifecycle.state,
            pid=self._pid,
            info=self._info,
            waiting=len(self._waiting),
            running=len(talk.flights) if talk is not None else 0,
            answered=self._answered + (talk.answered if talk is not None else 0),
            starts=self._starts,
            last_end=self._last_end,
            charges=tuple((name, *held) for name, held in sorted((talk.charges if talk is not None else {}).items())),
        )

    def _order(self, order: Callable[[Conversation | None], object]) -> None:
        with self._lock:
            self._orders.append(order)
        self.wake()

    def wake(self) -> None:
        """Have the supervising thread look after the process. From any thread."""
        with self._lock, contextlib.suppress(OSError):  # full: it is awake; closed: it is gone
            self._waker.send(b"\0")

    # From here on everything is the keeper's.

    def _keep(self) -> None:
        try:
            while not self.lifecycle.over:
                self._rest()
                if not self.lifecycle.over:
                    self._live()
        finally:
            self._leave()

    def _rest(self) -> None:
        """Wait until the next process may be started, or none is wanted any more."""
        while True:
            self._obey(None)
            if self.lifecycle.state is State.DRAINING:
                self.lifecycle.ended(blamed=True)
            now_s = time.monotonic()
            wake_at_s = min(self.lifecycle.starts_at_s, self._waiting.expire(now_s))
            if self.lifecycle.over or now_s >= self.lifecycle.starts_at_s:
                return
            self._pause(wake_at_s - now_s)

    def _pause(self, longest_s: float) -> None:
        """Wait until there is something to do."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ)
            selector.select(max(0.0, longest_s))
        with contextlib.suppress(BlockingIOError):
            self._woken.recv(4096)

    def _live(self) -> None:
        """Start a process and talk to it until it has ended."""
        options, self._sickness, self._unfit = self._options, "", None
        try:
            process = self._open()
        except TensorWasmError as error:
            self._conclude((), Ending(f"did not start: {error.message}", blamed=False))
            return
        if process is None:
            return
        asks = self._notices.compile is not None and options.isolation == "guarded"
        setup = None if self._connector else options.setup(asks=asks, jit=self.tenant is not None)
        self._starts += 1
        self._talk = talk = Conversation(process, setup, self, self._woken, options.patience, self._reader)
        while self._joining:
            talk.admit(self._joining.pop())
        ending = talk.hold()
        self._pid, self._talk = None, None
        self._notices.wish({})
        self._answered += talk.answered
        self._conclude(tuple(talk.flights.values()), ending)

    def _open(self) -> WorkerProcess | None:
        """Return a process to talk to, None if none is wanted any more."""
        if self._connector is not None:
            return self._dial(self._connector)
        return Process.spawn(self._options.program, make_environment(os.environ, self._options.pipes))

    def _dial(self, connector: Connector) -> WorkerProcess | None:
        """Connect on another thread, because a broker may take its time: deadlines and orders are kept meanwhile."""
        connected = call_elsewhere(connector, self.wake)
        while not connected.done():
            now_s = time.monotonic()
            self._pause(self._waiting.expire(now_s) - now_s)
            self._obey(None)
            if self.lifecycle.state is State.DRAINING:
                connected.add_done_callback(lambda done: done.exception() or done.result().end())
                return None
        return connected.result()

    def ready(self, info: ReadyFrame, pid: int) -> None:
        """Note that the process takes requests. For the conversation."""
        self._info, self._target, self._pid = rebuild_device(info), rebuild_target(info), pid
        if self._target is not None:
            self._notices.know(self._target)
        if self.lifecycle.state is State.STARTING:
            self.lifecycle.ready()

    def sick(self, message: str) -> None:
        """Note that the process has lost its device: another follows it. For the conversation."""
        self._sickness = message
        _log.warning("worker %d on %s lost its device: %s", self.number, self._options.device, message)
        if self._talk is not None:
            self._tell_fault(self._talk.flights.values())
        self._begin_drain(self._options.patience.drain_s, replace=True)

    def found_long(self, tenant: str) -> None:
        """Note that kernels of a tenant run long. For the conversation."""
        self._notices.long_work(tenant)

    def wish(self, tenants: Mapping[str, int]) -> None:
        """Note who keeps the device busy. For the conversation."""
        self._notices.wish(tenants)

    def end_turn(self, number: int, *, late: bool) -> None:
        """Note that the process has ended a turn, or what ran on from it. For the conversation."""
        self._notices.end_turn(number, late)

    def want(self, talk: Conversation, frame: Asked, data: bytes) -> None:
        """Have a kernel compiled or a plan made that the process wants. For the conversation."""

        def done(outcome: bytes | TensorWasmError) -> None:
            self._order(lambda current: talk.answer(frame.ask, outcome) if current is talk else None)

        if isinstance(frame, PlanAskFrame) and self._notices.plan is not None:
            self._notices.plan(frame.tenant, data, done)
        elif isinstance(frame, AskFrame) and self._notices.compile is not None and (target := self._target) is not None:
            job = KernelJob(frame.tenant, data, frame.entry, frame.architecture, frame.width, target)
            self._notices.compile(job, done)
        else:
            talk.answer(frame.ask, CapacityExhausted("nothing is compiled for this worker"))

    def _tell_fault(self, flights: Iterable[Flight]) -> None:
        if tenants := frozenset(flight.request.tenant for flight in flights if flight.request.is_native):
            self._notices.fault(tenants)

    def attend(self, talk: Conversation, now_s: float) -> float | None:
        """Do what is due; return when something is due again. For the conversation."""
        self._obey(talk)
        expires_at_s = self._waiting.expire(now_s)
        draining = self.lifecycle.state is State.DRAINING
        late = draining and now_s >= self._drained_by_s
        if talk.introduced and not late and not (draining and self.lifecycle.replacing):
            self._waiting.give(talk.send)
        if not draining:
            return expires_at_s
        if late or not (talk.flights or (self._waiting and not self.lifecycle.replacing)):
            talk.stop()
            return expires_at_s
        return min(self._drained_by_s, expires_at_s)

    def _obey(self, talk: Conversation | None) -> None:
        while self._orders:
            self._orders.popleft()(talk)

    def _begin_drain(self, limit_s: float, *, replace: bool) -> None:
        with self._lock:
            if self.lifecycle.over or (replace and self.lifecycle.state is State.DRAINING):
                return
            self.lifecycle.drain(replace=replace)
            self._drained_by_s = time.monotonic() + limit_s

    def _conclude(self, flights: Sequence[Flight], ending: Ending) -> None:
        """End what the process did not answer, and decide what follows."""
        wanted = self.lifecycle.state is State.DRAINING and not self.lifecycle.replacing
        what = f"lost its device ({self._sickness})" if self._sickness else ending.text
        if not wanted:
            if self._connector is None or what != self._last_end:  # a broker that is away is asked often
                _log.warning("worker %d on %s %s", self.number, self._options.device, what)
            self._last_end = what
            if not ending.orphan:
                self._tell_fault(flights)
        self._unfit = ending.unfit
        self.lifecycle.ended(blamed=ending.blamed, unfit=ending.unfit is not None)
        for flight in flights:
            fault = DeviceFault(f"worker {self.number} on {self._options.device} {what}")
            flight.end(CapacityExhausted("the worker left before the request had ended") if wanted else fault)

    def _leave(self) -> None:
        """End what still waits; nothing is accepted any more."""
        with self._lock:  # what was accepted before is in the queue now
            pass
        self._obey(None)
        with self._lock:
            self._waker.close()
            self._woken.close()
        for link in self._joining:
            link.close()
        self._waiting.give(lambda flight: flight.end(self.refusal()))
