"""`Worker`: a place where a process serves requests. Processes come and go; the place stays and keeps what waits.

A thread of its own, the keeper, starts the process, talks to it and replaces it, one after the other. Everything about
the process is the keeper's alone; what others want of the worker waits in two queues until the keeper is woken.

A request that was given to a process is never given to another: it may have had effects. Only those that still waited
go on to the next one.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tensorwasm.errors import CapacityExhausted, DeviceFault, DeviceUnavailable, InvokeTimeout, TensorWasmError
from tensorwasm.runtime.executor.local import PLACES
from tensorwasm.runtime.workers.conversation import Conversation, Ending, Patience
from tensorwasm.runtime.workers.flight import Flight
from tensorwasm.runtime.workers.frames import PROTOCOL, Failed, Ready, Setup, Unfit
from tensorwasm.runtime.workers.introduction import read_introduction
from tensorwasm.runtime.workers.lifecycle import Backoff, Lifecycle, State
from tensorwasm.runtime.workers.outcomes import rebuild_error
from tensorwasm.runtime.workers.process import PROGRAM, Process, make_environment
from tensorwasm.values import DeviceInfo, SmPlacement

_LONGEST_WAIT_S: Final = 3600.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """What a worker's processes are.

    Attributes:
        device: ``emulator`` or ``cuda:N``.
        multiprocessors: share of the device's, None for all.
        place: where the share lies among those of the device's other workers; None for wherever.
        pipes: folder of the MPS daemon that they join, None to join none.
        places: calls without a device at a time.
        requests: most that the worker holds, those that wait for a place or for its process included; one more is
            refused as `CapacityExhausted`.
        patience: how long a process gets.
        backoff: how it is started again.
        program: what Python runs.
    """

    device: str = "emulator"
    multiprocessors: int | None = None
    place: SmPlacement | None = None
    pipes: str | None = None
    places: int = PLACES
    requests: int = 256
    patience: Patience = Patience()  # noqa: RUF009 - immutable
    backoff: Backoff = Backoff()  # noqa: RUF009 - immutable
    program: Sequence[str] = PROGRAM


@dataclass(frozen=True, slots=True)
class WorkerStatistics:
    """A snapshot of a worker.

    Attributes:
        number: the worker's.
        device: what was asked for.
        tenant: whose alone it is, None if anybody's.
        state: where it is.
        pid: its process, None if there is none.
        info: its process's device, None until one was ready.
        waiting: requests that no process was given yet.
        running: requests that its process has.
        answered: requests that processes have answered.
        starts: processes started.
        last_end: how the last process ended that was not told to, empty if none has.
        charges: device and pinned bytes of tenants, by name.
    """

    number: int
    device: str
    tenant: str | None
    state: State
    pid: int | None
    info: DeviceInfo | None
    waiting: int
    running: int
    answered: int
    starts: int
    last_end: str
    charges: tuple[tuple[str, int, int], ...]


class Worker:
    """One worker. Every public method may be called from any thread.

    Args:
        number: for people and for placement.
        options: what its processes are.
        tenant: whose alone it is, None for anybody's. Where tenants share a worker, no driver compiles PTX in it: its
            compiler is known to crash, and what one tenant wrote would end the calls of the others.
    """

    def __init__(self, number: int, options: WorkerOptions, tenant: str | None = None) -> None:
        self.number = number
        self.tenant = tenant
        self._options = options
        self._lifecycle = Lifecycle(options.backoff)
        self._lock = threading.Lock()
        self._waiting: deque[Flight] = deque()
        self._orders: deque[Callable[[Conversation | None], object]] = deque()
        self._talk: Conversation | None = None
        self._pid: int | None = None
        self._info: DeviceInfo | None = None
        self._answered = 0
        self._starts = 0
        self._last_end = ""
        self._drained_by_s = math.inf
        self._sickness = ""
        self._unfit: Unfit | None = None
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
        """Device memory its tenants are charged for, as of the last heartbeat."""
        talk = self._talk
        return sum(device for device, _ in talk.charges.values()) if talk is not None else 0

    @property
    def takes(self) -> bool:
        """Whether it takes requests."""
        return self._lifecycle.takes

    @property
    def state(self) -> State:
        """Where it is."""
        return self._lifecycle.state

    @property
    def last_end(self) -> str:
        """How the last process ended that was not told to; empty if none has."""
        return self._last_end

    def submit(self, flight: Flight) -> None:
        """Take a request.

        Raises:
            CapacityExhausted: it holds too many, or is on its way out.
            DeviceUnavailable: it was given up.
        """
        with self._lock:
            if not self._lifecycle.takes:
                raise self.refusal()
            if self.load >= self._options.requests:
                raise CapacityExhausted(
                    f"worker {self.number} on {self._options.device} holds {self._options.requests} requests, which is "
                    "as many as WorkerOptions.requests lets it; try again when some have ended"
                )
            self._waiting.append(flight)
        self._wake()

    def cancel(self, flight: Flight) -> None:
        """End a request that nobody waits for."""

        def order(talk: Conversation | None) -> None:
            with self._lock:
                waits = flight in self._waiting
                if waits:
                    self._waiting.remove(flight)
            if not waits and talk is not None:
                talk.cancel(flight, stop=True)

        self._order(order)

    def hush(self, flight: Flight) -> None:
        """Have nothing more sent of a request's output."""
        self._order(lambda talk: talk.cancel(flight, stop=False) if talk is not None else None)

    def credit(self, flight: Flight, parts: int) -> None:
        """Have so many more parts sent of a request's output."""
        self._order(lambda talk: talk.credit(flight, parts) if talk is not None else None)

    def drain(self, limit_s: float, *, replace: bool = False) -> None:
        """Have it finish what it has, and leave; returns at once. One that has no process just now leaves at once.

        Args:
            limit_s: seconds after which what is not finished is ended.
            replace: another process is to follow.
        """

        def order(_: Conversation | None) -> None:
            self._begin_drain(limit_s, replace=replace)

        self._order(order)

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait until it is gone for good; return whether it is."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def refusal(self) -> TensorWasmError:
        """Return why no request is taken any more."""
        if self._lifecycle.state is not State.FAILED:
            return CapacityExhausted(f"worker {self.number} is leaving")
        if self._unfit is not None:
            return rebuild_error(Failed(1, self._unfit.kind, self._unfit.message))
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
            state=self._lifecycle.state,
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
        self._wake()

    def _wake(self) -> None:
        try:
            self._waker.send(b"\0")
        except OSError:  # full: it is awake; closed: it is gone
            return

    # From here on everything is the keeper's.

    def _keep(self) -> None:
        try:
            while not self._lifecycle.over:
                self._rest()
                if not self._lifecycle.over:
                    self._live()
        finally:
            self._leave()

    def _rest(self) -> None:
        """Wait until the next process may be started, or none is wanted any more."""
        while True:
            self._obey(None)
            if self._lifecycle.state is State.DRAINING:
                self._lifecycle.ended(blamed=True)
            now_s = time.monotonic()
            wake_at_s = min(self._lifecycle.starts_at_s, self._expire(now_s))
            if self._lifecycle.over or now_s >= self._lifecycle.starts_at_s:
                return
            select.select([self._woken], [], [], max(0.0, wake_at_s - now_s))
            drop(self._woken)

    def _live(self) -> None:
        """Start a process and talk to it until it has ended."""
        options, self._sickness, self._unfit = self._options, "", None
        self._starts += 1
        try:
            process = Process.spawn(options.program, make_environment(os.environ, options.pipes))
        except DeviceUnavailable as error:
            self._conclude((), Ending(f"did not start: {error.message}", blamed=False))
            return
        setup = self._set_up()
        self._pid = process.pid
        self._talk = talk = Conversation(process, setup, self, self._woken, options.patience)
        ending = talk.hold()
        self._pid, self._talk = None, None
        self._answered += talk.answered
        self._conclude(tuple(talk.flights.values()), ending)

    def _set_up(self) -> Setup:
        options = self._options
        return Setup(
            protocol=PROTOCOL,
            device=options.device,
            multiprocessors=options.multiprocessors,
            place=(options.place.unit, options.place.before) if options.place is not None else None,
            jit=self.tenant is not None,
            places=options.places,
            beat_s=options.patience.beat_s,
        )

    def ready(self, info: Ready) -> None:
        """The process takes requests. For the conversation."""
        self._info = read_introduction(info)
        if self._lifecycle.state is State.STARTING:
            self._lifecycle.ready()

    def sick(self, message: str) -> None:
        """The process has lost its device: it answers what it can, and another follows. For the conversation."""
        self._sickness = message
        _log.warning("worker %d on %s lost its device: %s", self.number, self._options.device, message)
        self._begin_drain(self._options.patience.drain_s, replace=True)

    def attend(self, talk: Conversation, now_s: float) -> float | None:
        """Do what is to be done; return when there will be something again. For the conversation."""
        self._obey(talk)
        expires_at_s = self._expire(now_s)
        draining = self._lifecycle.state is State.DRAINING
        late = draining and now_s >= self._drained_by_s
        if talk.introduced and not late and not (draining and self._lifecycle.replacing):
            with self._lock:
                while self._waiting:
                    talk.send(self._waiting.popleft())
        if not draining:
            return expires_at_s
        if late or not (talk.flights or (self._waiting and not self._lifecycle.replacing)):
            talk.stop()
            return expires_at_s
        return min(self._drained_by_s, expires_at_s)

    def _obey(self, talk: Conversation | None) -> None:
        while self._orders:
            self._orders.popleft()(talk)

    def _begin_drain(self, limit_s: float, *, replace: bool) -> None:
        with self._lock:
            if self._lifecycle.over or (replace and self._lifecycle.state is State.DRAINING):
                return
            self._lifecycle.drain(replace=replace)
            self._drained_by_s = time.monotonic() + limit_s

    def _expire(self, now_s: float) -> float:
        """End the waiting requests whose time is up; return when the next one's is."""
        with self._lock:
            gone = [flight for flight in self._waiting if flight.deadline.expired()]
            for flight in gone:
                self._waiting.remove(flight)
            left_s = min((flight.deadline.remaining_s() for flight in self._waiting), default=math.inf)
        for flight in gone:
            flight.end(InvokeTimeout("the deadline passed before a worker process was ready"))
        return now_s + min(left_s, _LONGEST_WAIT_S)

    def _conclude(self, flights: Sequence[Flight], ending: Ending) -> None:
        """End what the process did not answer, and decide what follows."""
        wanted = self._lifecycle.state is State.DRAINING and not self._lifecycle.replacing
        what = f"lost its device ({self._sickness})" if self._sickness else ending.text
        if not wanted:
            self._last_end = what
            _log.warning("worker %d on %s %s", self.number, self._options.device, what)
        self._unfit = ending.unfit
        self._lifecycle.ended(blamed=ending.blamed, unfit=ending.unfit is not None)
        for flight in flights:
            if wanted:
                flight.end(CapacityExhausted("the worker left before the request had ended"))
            else:
                flight.end(DeviceFault(f"worker {self.number} on {self._options.device} {what}"))

    def _leave(self) -> None:
        """End what still waits; nothing comes in any more."""
        with self._lock:
            refused = self._empty()
            self._orders.clear()
            self._waker.close()
            self._woken.close()
        for flight in refused:
            flight.end(self.refusal())

    def _empty(self) -> list[Flight]:
        waiting, self._waiting = list(self._waiting), deque()
        return waiting


def drop(link: socket.socket) -> None:
    """Take what waits on a socket, and forget it."""
    with contextlib.suppress(BlockingIOError):
        link.recv(4096)
