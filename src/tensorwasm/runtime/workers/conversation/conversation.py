"""`Conversation`: a parent's or a front's connection to one worker process, from its start to its end.

One thread holds it, and keeps its times. Others may serve it too, one at a time (`Conversation.turn`): a thread that
has a request sends it itself, and an event loop reads the answers to its own. So no thread is woken for a call.
Whatever the process does, it ends with an `Ending` and every descriptor closed, a process that this one has started
gone and reaped; what the process was asked and did not answer is left to the caller.
"""

from __future__ import annotations

import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final

from tensorwasm.errors import CapacityExhausted, DeviceFault, DeviceLost, TensorWasmError
from tensorwasm.gpu.limits.turns import TurnOrder
from tensorwasm.runtime.workers.conversation.flight import ConversationClock, Flight
from tensorwasm.runtime.workers.conversation.known_targets import KnownTargets
from tensorwasm.runtime.workers.conversation.loop_reader import LoopReader
from tensorwasm.runtime.workers.conversation.outbox import Outbox
from tensorwasm.runtime.workers.conversation.owner import Owner
from tensorwasm.runtime.workers.frames import (
    PROTOCOL,
    Asked,
    AskFrame,
    AskPartFrame,
    BeatFrame,
    BrokenFrame,
    CancelFrame,
    CreditFrame,
    DoneFrame,
    FailedFrame,
    LongWorkFrame,
    OutputFrame,
    PlanAskFrame,
    ReadyFrame,
    SetupFrame,
    SickFrame,
    StopFrame,
    TurnEndFrame,
    TurnFrame,
    UnfitFrame,
    WishFrame,
    WorkerFrame,
)
from tensorwasm.runtime.workers.kernels.asks import KernelAsks
from tensorwasm.runtime.workers.outcomes import clean
from tensorwasm.runtime.workers.process import Ending, Patience, WorkerProcess, describe_exit
from tensorwasm.runtime.workers.wire import FROM_WORKER, Splitter

_READ_BYTES: Final = 64 << 10  # more would be a mapping of its own for each read
_KEPT_ERRORS_BYTES: Final = 4 << 10
_EXIT_S: Final = 1.0
_LOOK_S: Final = 1.0  # how often the times are looked at: requests that other threads have sent have some, too
_TO_PARENT: Final = (UnfitFrame, WishFrame, TurnEndFrame, AskFrame, AskPartFrame)
"""What no front is told: it compiles no kernels and gives no turns."""

_log = logging.getLogger(__name__)


class Conversation:
    """The talk with one process.

    Args:
        process: just started, or just connected to.
        setup: what it is to be; None if its parent has said so.
        owner: told what happens, and asked what to do.
        waker: a descriptor that is readable when the owner has something to do.
        patience: how long the process gets.
        reader: has an event loop read what the process says; None for the thread that holds the conversation.

    Attributes:
        flights: what the process was asked and has not answered, by number.
        charges: device and pinned bytes by tenant, as of the last heartbeat.
        answered: requests answered.
        turn: held by the thread that serves this now. Who releases it calls `Owner.serve`.
        introduced: whether the process has said that it is ready.
        shared: whether it was given connections of fronts. What it then says of tenants whose calls are theirs is not
            verified: it can have kernels compiled and turns given in their names.
    """

    def __init__(
        self,
        process: WorkerProcess,
        setup: SetupFrame | None,
        owner: Owner,
        waker: socket.socket,
        patience: Patience,
        reader: LoopReader | None = None,
    ) -> None:
        self.turn = threading.Lock()
        self.flights: dict[int, Flight] = {}
        self.charges: dict[str, tuple[int, int]] = {}
        self.answered = self._beats = 0
        self._process = process
        self._front = setup is None
        self._owner = owner
        self._waker = waker
        self._outbox = Outbox()
        self._splitter = Splitter(FROM_WORKER)
        self._known = KnownTargets()
        self._tenants: set[str] = set()
        self._asks = KernelAsks()
        self._errors = bytearray()
        self.introduced = self.shared = False
        self._sick = ""
        self._unfit: UnfitFrame | None = None
        self._ending: str | None = None
        self._clock = ConversationClock(patience, self.flights)
        self._stopping = False
        self._read_at_s = 0.0
        if setup is not None:
            self._outbox.add(setup)
        self._watched = reader is not None and reader.watch(process.link, self._read_there)

    def send(self, flight: Flight) -> None:
        """Give the process a request."""
        flight.begin()
        self.flights[flight.number] = flight
        self._tenants.add(flight.request.tenant)
        frame = None if self._outbox.lazy else self._known.find(flight)
        if frame is not None:
            self._outbox.add(frame)
        else:
            self._outbox.put(self._known.describe(flight))

    def flush(self) -> None:
        """Send what the socket takes now. Whose turn it is may call this."""
        try:
            self._outbox.flush(self._process.link)
        except OSError:  # it has gone; what it had said is still read, to the end
            self._outbox = Outbox()
        if not self._outbox.empty:
            self._owner.wake()  # to wait until the socket takes more

    def cancel(self, flight: Flight, *, stop: bool) -> None:
        """Tell the process that nobody takes a request's output any more, nor waits for it if it is to stop."""
        if flight.number in self.flights:
            self._outbox.add(CancelFrame(flight.number, stop))

    def credit(self, flight: Flight, parts: int) -> None:
        """Tell the process that so many parts of a request's output were taken."""
        if flight.number in self.flights:
            self._outbox.add(CreditFrame(flight.number, parts))

    def order(self, order: TurnOrder) -> None:
        """Tell the process whose turn on the device it is."""
        self._outbox.add(TurnFrame(order.contested, order.number, order.tenant or None, order.length_ns))

    def admit(self, link: socket.socket) -> None:
        """Hand the process the connection of a front; this end is closed."""
        self.shared = True
        self._process.admit(link)

    def answer(self, ask: int, outcome: bytes | TensorWasmError) -> None:
        """Tell the process the kernel or the plan that it has asked for, or why there is none."""
        self._outbox.put(self._tell_kernel(ask, outcome))

    def _tell_kernel(self, ask: int, outcome: bytes | TensorWasmError) -> Iterator[WorkerFrame]:
        """Yield the frames of an answer; the ask counts until they are sent, because a process may not read them."""
        yield from self._known.describe_kernel(ask, outcome)
        self._asks.close(ask)

    def stop(self) -> None:
        """Have the process leave."""
        if not self._stopping:
            self._stopping = True
            self._outbox.add(StopFrame())
            self._clock.stop(introduced=self.introduced)

    def hold(self) -> Ending:
        """Talk until the process has ended; it is gone when this returns."""
        with selectors.DefaultSelector() as selector:
            if self._process.errors is not None:
                selector.register(self._process.errors, selectors.EVENT_READ, self._keep_errors)
            selector.register(self._waker, selectors.EVENT_READ, self._wake)
            while self._ending is None:
                with self.turn:
                    wait_s = self._attend(selector)
                self._owner.serve()
                if self._ending is None:
                    for key, events in selector.select(wait_s):
                        handler: Callable[[selectors.BaseSelector, int], None] = key.data
                        with self.turn:
                            handler(selector, events)
        with self.turn:  # who serves it just now comes to an end first, and nobody begins any more
            pass
        return self._end()

    @property
    def open(self) -> bool:
        """Whether the process takes requests, as far as is known. Changes only while somebody has the turn."""
        return self.introduced and self._ending is None

    def has_gone(self) -> bool:
        """Return whether the process has gone, which the thread that reads may not know yet. For whose turn it is."""
        try:
            return not self.open or not self._process.link.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def _attend(self, selector: selectors.BaseSelector) -> float:
        """Do what is to be done now; return for how long there will be nothing."""
        now_s = time.monotonic()
        wake_at_s = self._owner.attend(self, now_s)
        if self._watched and now_s - self._read_at_s >= _LOOK_S:  # an event loop may be late, or stand still
            self._read()
        self._ending = self._clock.verdict(now_s) if self._ending is None else self._ending
        if self._ending is not None:
            return 0.0
        self.flush()
        wanted = (0 if self._watched else selectors.EVENT_READ) | (0 if self._outbox.empty else selectors.EVENT_WRITE)
        self._listen(selector, wanted)
        times = [self._clock.rings_at_s(), now_s + _LOOK_S, *([] if wake_at_s is None else [wake_at_s])]
        return max(0.0, min(times) - now_s)

    def _listen(self, selector: selectors.BaseSelector, wanted: int) -> None:
        """Have the selector look for what is wanted of the connection."""
        link = self._process.link
        known = link in selector.get_map()
        if not wanted and known:
            selector.unregister(link)
        elif wanted and known:
            selector.modify(link, wanted, self._exchange)
        elif wanted:
            selector.register(link, wanted, self._exchange)

    def _read_there(self) -> bool:
        """Read what the process has said, on an event loop's thread; return False once the conversation has ended."""
        if self._ending is None:
            with self.turn:
                if self._ending is None:
                    self._read()
            self._owner.serve()
            if self._ending is not None:
                self._owner.wake()
        return self._ending is None

    def _exchange(self, _: selectors.BaseSelector, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self.flush()
        if events & selectors.EVENT_READ and self._ending is None:
            self._read()

    def _read(self) -> None:
        self._read_at_s = time.monotonic()
        try:
            data = self._process.link.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._ending = ""
        try:
            for frame in self._splitter.feed(data):
                self._take(frame)
        except BrokenFrame as error:
            self._ending = f"broke the protocol ({clean(str(error))})"

    def _wake(self, _: selectors.BaseSelector, _events: int) -> None:
        try:
            self._waker.recv(_READ_BYTES)
        except BlockingIOError:
            return

    def _keep_errors(self, selector: selectors.BaseSelector, _: int) -> None:
        errors = self._process.errors
        if errors is None:
            return
        data = errors.read(_READ_BYTES)
        if data == b"":
            selector.unregister(errors)
        self._errors += data or b""
        del self._errors[:-_KEPT_ERRORS_BYTES]

    def _take(self, frame: WorkerFrame) -> None:
        if not self.introduced and not isinstance(frame, ReadyFrame | UnfitFrame):
            raise BrokenFrame(f"a {type(frame).__name__} before it was ready")
        if self._front and isinstance(frame, _TO_PARENT):
            raise BrokenFrame(f"a {type(frame).__name__}, which is for its parent")
        _HANDLERS[type(frame)](self, frame)

    def _take_ready(self, frame: ReadyFrame) -> None:
        if self.introduced or frame.protocol != PROTOCOL:
            raise BrokenFrame("ready twice, or of another release")
        self.introduced = True
        self._clock.beat()
        self._owner.ready(frame, self._process.pid or frame.pid)

    def _take_unfit(self, frame: UnfitFrame) -> None:
        if self.introduced:
            raise BrokenFrame("unfit after it was ready")
        self._unfit = frame
        self._ending = f"has no device: {clean(frame.message)}"

    def _take_beat(self, frame: BeatFrame) -> None:
        if frame.number != self._beats + 1:
            raise BrokenFrame(f"heartbeat {frame.number} after {self._beats}")
        for charge in frame.charges:
            self._require_known(charge.tenant)
        self._beats = frame.number
        self.charges = {charge.tenant: (charge.device_bytes, charge.pinned_bytes) for charge in frame.charges}
        self._clock.beat()

    def _take_long_work(self, frame: LongWorkFrame) -> None:
        self._require_known(frame.tenant)
        self._owner.found_long(frame.tenant)

    def _take_wish(self, frame: WishFrame) -> None:
        for tenant in frame.tenants:
            self._require_known(tenant)
        self._owner.wish(frame.tenants)

    def _take_turn_end(self, frame: TurnEndFrame) -> None:
        self._owner.end_turn(frame.number, late=frame.late)

    def _take_ask(self, frame: Asked) -> None:
        self._require_known(frame.tenant)
        self._asks.open(frame)

    def _take_ask_part(self, frame: AskPartFrame) -> None:
        if (whole := self._asks.fill(frame)) is None:
            return
        calls = (flight.request.tenant for flight in self.flights.values())
        if self.shared or isinstance(whole[0], PlanAskFrame) or whole[0].tenant in calls:  # plans are made beside calls
            self._owner.want(self, *whole)
        else:
            self.answer(frame.ask, CapacityExhausted("the call that wanted the kernel has ended"))

    def _require_known(self, tenant: str) -> None:
        if tenant not in self._tenants and not self.shared:
            raise BrokenFrame(f"work of the tenant {tenant[:64]!r}, who has asked nothing of it")

    def _take_output(self, frame: OutputFrame) -> None:
        self._flight(frame.request).take(frame)  # once nobody takes it, the process was told so

    def _take_done(self, frame: DoneFrame) -> None:
        self._flight(frame.request).finish(frame)
        self._close(frame.request)

    def _take_failed(self, frame: FailedFrame) -> None:
        flight = self._flight(frame.request)
        if self._sick and frame.kind == DeviceLost.kind:
            flight.end(DeviceFault(clean(frame.message)))
        else:
            flight.fail(frame)
        self._close(frame.request)

    def _take_sick(self, frame: SickFrame) -> None:
        if not self._sick:
            self._sick = clean(frame.message) or "the device is lost"
            self._owner.sick(self._sick)

    def _flight(self, number: int) -> Flight:
        flight = self.flights.get(number)
        if flight is None:
            raise BrokenFrame(f"an answer to the request {number}, which it does not have")
        return flight

    def _close(self, number: int) -> None:
        del self.flights[number]
        self.answered += 1

    def _end(self) -> Ending:
        self._process.wait(_EXIT_S if not self._ending else 0.0)
        if self._watched:  # the loop's descriptor of it ends, too
            with suppress(OSError):
                self._process.link.shutdown(socket.SHUT_RDWR)
        orphan, status = self._process.orphan, self._process.end()
        text = self._ending or describe_exit(status)
        if self._errors and status:
            said = clean(self._errors.decode("utf-8", "replace"))
            _log.warning("worker process %s %s; it had written: %s", self._process.pid, text, said)
        self.charges = {}
        return Ending(text, bool(self.flights or self.answered or self.shared), self._unfit, orphan)


_HANDLERS: Final[dict[type[WorkerFrame], Callable[[Conversation, Any], None]]] = {
    ReadyFrame: Conversation._take_ready,  # noqa: SLF001 - the table of the class above
    UnfitFrame: Conversation._take_unfit,  # noqa: SLF001
    BeatFrame: Conversation._take_beat,  # noqa: SLF001
    OutputFrame: Conversation._take_output,  # noqa: SLF001
    DoneFrame: Conversation._take_done,  # noqa: SLF001
    FailedFrame: Conversation._take_failed,  # noqa: SLF001
    SickFrame: Conversation._take_sick,  # noqa: SLF001
    LongWorkFrame: Conversation._take_long_work,  # noqa: SLF001
    WishFrame: Conversation._take_wish,  # noqa: SLF001
    TurnEndFrame: Conversation._take_turn_end,  # noqa: SLF001
    AskFrame: Conversation._take_ask,  # noqa: SLF001
    PlanAskFrame: Conversation._take_ask,  # noqa: SLF001
    AskPartFrame: Conversation._take_ask_part,  # noqa: SLF001
}
