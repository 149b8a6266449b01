"""`Flight`: one request that a worker runs, and what has come of it; `ConversationClock`: until when it must end."""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import astuple
from functools import partial
from typing import Final, Protocol

from tensorwasm.errors import DeviceLost, GuestError, TensorWasmError
from tensorwasm.runtime.executor.request import Request
from tensorwasm.runtime.invoke.invocation import Invocation, Listener, OutputName
from tensorwasm.runtime.workers.frames import (
    WINDOW,
    BrokenFrame,
    DoneFrame,
    FailedFrame,
    InvokeFrame,
    OutputFrame,
    TargetFrame,
)
from tensorwasm.runtime.workers.outcomes import rebuild_error, rebuild_result
from tensorwasm.runtime.workers.process import Patience
from tensorwasm.values import MIB, Deadline

OVERDUE_S: Final = 60.0
"""What a worker gets past a request's time to answer it; then it is taken to hang."""

_CHUNKS_BYTES: Final = 64 * MIB
_CREDITED_AT_ONCE: Final = WINDOW // 4
_log = logging.getLogger(__name__)


class Carrier(Protocol):
    """The worker that a request is with. Any thread may call it."""

    def cancel(self, flight: Flight) -> None:
        """End a request that nobody waits for."""

    def hush(self, flight: Flight) -> None:
        """Send no more of a request's output: nobody takes any."""

    def credit(self, flight: Flight, parts: int) -> None:
        """Send so many more parts of a request's output: as many were taken."""


class Ticket(Protocol):
    """Who waits for a request's outcome. Any thread may call it."""

    def stop_with(self, stop: Callable[[], object]) -> None:
        """Set what ends the request if nobody waits any more."""

    def settle(self, outcome: Invocation | BaseException) -> None:
        """Set the outcome; of several the first counts."""


class Flight:
    """One request. Who serves its worker's conversation alone uses it once it was handed over.

    Args:
        number: the request's, never used twice.
        request: what to call.
        listener: takes the output, None to collect it.
        carrier: the worker.
        ticket: gets the outcome.
        ended: told the outcome before the ticket, and whether or not anybody waits for it.

    Attributes:
        number: as given.
        request: as given.
        ticket: as given.
        deadline: when the request must have ended.
        overdue_at_s: when, on the monotonic clock, a worker that was given the request has failed to answer it.
    """

    __slots__ = ("_delivery", "_ended", "_output", "deadline", "number", "overdue_at_s", "request", "ticket")

    def __init__(
        self,
        number: int,
        request: Request,
        listener: Listener | None,
        carrier: Carrier,
        ticket: Ticket,
        ended: Callable[[Invocation | BaseException], object] | None = None,
    ) -> None:
        self.number = number
        self.request = request
        self.ticket = ticket
        self._ended = ended
        ticket.stop_with(partial(carrier.cancel, self))
        self.deadline = Deadline.after(request.deadline_s)
        self.overdue_at_s = math.inf
        self._delivery: Delivery | None = None
        if listener is not None:
            self._delivery = Delivery(listener, partial(carrier.credit, self), partial(carrier.hush, self))
        self._output: _Output | None = None  # most calls have none

    @property
    def streams(self) -> bool:
        """Whether somebody listens."""
        return self._delivery is not None

    def begin(self) -> None:
        """Note that a worker is given the request now."""
        self.overdue_at_s = time.monotonic() + min(self.deadline.remaining_s(), self.request.limits.wall_s) + OVERDUE_S

    def frame(self, target: int, stdin: int | None = None, given: int | None = None) -> InvokeFrame:
        """Return the request as a worker is told it, what it calls and its bytes by their numbers."""
        return make_invoke(self.request, self.number, target, stdin, given, self._left_s(), stream=self.streams)

    def take(self, output: OutputFrame) -> bool:
        """Take a part of the output; return False if nobody takes any.

        Raises:
            BrokenFrame: more than the guest could have written, or than was asked for.
        """
        if self._output is None:
            self._output = _Output(self.request.limits.output_bytes)
        self._output.charge(output)
        if self._delivery is not None:
            return self._delivery.put(output.name, output.data)
        self._output.keep(output)
        return True

    def finish(self, done: DoneFrame) -> None:
        """End with a result.

        Raises:
            BrokenFrame: it is no result of this request; the ticket has no outcome yet.
        """
        self._settle(rebuild_result(done, self.request.export, *self._taken()))

    def fail(self, failed: FailedFrame) -> None:
        """End with the error that a worker answered."""
        self.end(rebuild_error(failed))

    def end(self, error: TensorWasmError) -> None:
        """End with an error."""
        if isinstance(error, GuestError | DeviceLost):
            error.stdout, error.stderr, _ = self._taken()
        self._settle(error)

    def _taken(self) -> tuple[bytes, bytes, tuple[bytes, ...]]:
        """Return standard output, standard error and the chunks."""
        return _NONE if self._output is None else self._output.taken()

    def _settle(self, outcome: Invocation | TensorWasmError) -> None:
        delivery = self._delivery
        if self._ended is not None:
            self._ended(outcome)
        if delivery is None:
            self.ticket.settle(outcome)
            return

        def settle() -> None:
            """What the listener raised ended a guest that returned after it, as it does where guests run here."""
            ended_well = isinstance(outcome, Invocation)
            self.ticket.settle(delivery.failure if ended_well and delivery.failure else outcome)

        delivery.end(settle)

    def _left_s(self) -> float | None:
        return None if self.deadline.at_ns is None else self.deadline.remaining_s()


_NONE: Final = b"", b"", ()


class _Output:
    """What a guest wrote, and how much more it may write of each kind."""

    def __init__(self, output_bytes: int) -> None:
        self._left_bytes = {"stdout": output_bytes, "stderr": output_bytes, "chunk": _CHUNKS_BYTES}
        self._written = {"stdout": bytearray(), "stderr": bytearray()}
        self._chunks: list[bytes] = []

    def charge(self, output: OutputFrame) -> None:
        """Count a part, or raise `BrokenFrame` if it is more than the guest could have written."""
        self._left_bytes[output.name] -= len(output.data)
        if self._left_bytes[output.name] < 0:
            raise BrokenFrame(f"more {output.name} than a guest may write")

    def keep(self, output: OutputFrame) -> None:
        """Keep a part that nobody listens to."""
        if output.name == "chunk":
            self._chunks.append(output.data)
        else:
            self._written[output.name] += output.data

    def taken(self) -> tuple[bytes, bytes, tuple[bytes, ...]]:
        """Return standard output, standard error and the chunks."""
        return bytes(self._written["stdout"]), bytes(self._written["stderr"]), tuple(self._chunks)


class Delivery:
    """Calls a listener on a thread of its own, in order, so that a slow one keeps nobody else waiting.

    What waits is bounded: a worker sends no more parts than it has credit for, and gets more as parts are taken.

    Args:
        listener: takes the parts.
        credit: told how many parts were taken since it was last told.
        hush: told once that the listener wants no more.

    Attributes:
        failure: what the listener raised, if that is one of ours.
    """

    def __init__(self, listener: Listener, credit: Callable[[int], object], hush: Callable[[], object]) -> None:
        self._listener = listener
        self._credit = credit
        self._hush = hush
        self._waiting: queue.SimpleQueue[tuple[OutputName, bytes] | Callable[[], object]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._listening = True
        self.failure: TensorWasmError | None = None
        self._put = self._taken = self._credited = 0

    def put(self, name: OutputName, data: bytes) -> bool:
        """Have a part taken; return False once the listener wants no more.

        Raises:
            BrokenFrame: a part for which there is no credit.
        """
        if self._listening:
            self._put += 1
            if self._put - self._credited > WINDOW:
                raise BrokenFrame("more output than was asked for")
            self._waiting.put((name, data))
            self._start()
        return self._listening

    def end(self, last: Callable[[], object]) -> None:
        """Have a function called after the last part."""
        if self._thread is None:
            last()
        else:
            self._waiting.put(last)

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="tensorwasm-listener", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while not callable(item := self._waiting.get()):
            if self._listening:
                self._hand_over(*item)
        item()

    def _hand_over(self, name: OutputName, data: bytes) -> None:
        try:
            self._listening = self._listener(name, data)
        except TensorWasmError as error:
            self._listening, self.failure = False, error
        except Exception:  # noqa: BLE001 - a bug of the listener's, which the log has; the guest goes on unheard
            _log.exception("a listener failed, and listens no more")
            self._listening = False
        self._taken += 1
        due = self._taken - self._credited
        if not self._listening:
            self._hush()
        elif due >= _CREDITED_AT_ONCE:
            self._credited += due  # before the worker hears of it
            self._credit(due)


def target_key(request: Request) -> Hashable:
    """Return what a request has in common with others of the same target."""
    return (
        request.tenant,
        request.module,
        request.name,
        request.grants,
        request.limits,
        request.memory_kind,
        request.weight,
        request.offload,
        request.offload_math,
    )


def make_target(request: Request, target: int, module: int) -> TargetFrame:
    """Return what a request has in common with others as a frame, its module by the number of its blob."""
    memory_bytes, table_elements, module_bytes, stack_bytes, wall_s, output_bytes, stdin_bytes = astuple(request.limits)
    return TargetFrame(
        target=target,
        module=module,
        name=request.name,
        cuda=request.grants.cuda,
        weight=request.weight,
        directories=tuple((each.host_path, each.guest_path, each.writable) for each in request.grants.directories),
        tenant=request.tenant,
        limits=(memory_bytes, table_elements, module_bytes, stack_bytes, float(wall_s), output_bytes, stdin_bytes),
        memory_kind=request.memory_kind,
        offload=request.offload,
        offload_math=request.offload_math,
    )


def make_invoke(
    request: Request,
    number: int,
    target: int,
    stdin: int | None,
    given: int | None,
    left_s: float | None,
    *,
    stream: bool,
) -> InvokeFrame:
    """Return what is a request's own as a frame."""
    return InvokeFrame(
        number,
        target,
        request.export,
        tuple(request.args),
        left_s,
        request.gpu_bytes,
        stream,
        tuple(request.argv) if request.argv is not None else None,
        tuple(request.env),
        stdin,
        given,
    )


class ConversationClock:
    """The times of one conversation: of the process itself, and of each request that it has, by number."""

    def __init__(self, patience: Patience, flights: Mapping[int, Flight]) -> None:
        self._patience = patience
        self._flights = flights
        self._stopping = False
        self._ends_at_s = time.monotonic() + patience.start_s
        self._late = f"was not ready within {patience.start_s:g} s"

    def beat(self) -> None:
        """Note that the process lives."""
        if not self._stopping:
            self._ends_at_s = time.monotonic() + self._patience.silent_s
            self._late = f"sent no heartbeat for {self._patience.silent_s:g} s"

    def stop(self, *, introduced: bool) -> None:
        """Note that the process is to leave: at once if it never was ready."""
        self._stopping = True
        self._ends_at_s = time.monotonic() + (self._patience.stop_s if introduced else 0.0)
        self._late = "did not leave"

    def rings_at_s(self) -> float:
        """Return when the next time is over."""
        return min((self._ends_at_s, *self._overdue()))

    def verdict(self, now_s: float) -> str | None:
        """Return what the process has failed to do by now, for people; None if it is in time."""
        if now_s >= self._ends_at_s:
            return self._late
        if any(now_s >= at_s for at_s in self._overdue()):
            return "did not end a request that had long been over"
        return None

    def _overdue(self) -> Iterator[float]:
        return (flight.overdue_at_s for flight in self._flights.values())
