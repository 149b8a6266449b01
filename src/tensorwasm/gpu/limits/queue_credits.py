"""How much work may wait in the driver's queues: of sessions on fibers, and of sessions of guarded kernels.

A driver takes work until a queue of its own is full; the next call into it then blocks, with no deadline, until a
kernel ends. Guests that run as fibers share one thread, so none of them may cause that. And what waits in the queues
has to begin before it can stop, so guarded kernels of all sessions together are gone soon after their deadlines only if
they are few. So the pending work of sessions is bounded, for each and for all together:

- A session on a fiber holds a share, worth `PIECES` pieces of work, and waits in a queue if none is free, as at the
  gate. One that has a thread has as much without asking: there are few such threads.
- It may borrow more, in lumps.
- What is larger than that is given alone: when nothing else of the session is pending, by one session at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from tensorwasm.errors import CapacityExhausted
from tensorwasm.gpu.limits.gate import Gate, Holder
from tensorwasm.gpu.native.layout_writer import SessionLayoutWriter
from tensorwasm.values import Deadline

QUEUES: Final = 8
"""Queues of a driver, to which it assigns streams round-robin. Source: CUDA_DEVICE_MAX_CONNECTIONS."""
QUEUE_PIECES: Final = 1024
"""Launches that one of them takes before the next call waits, measured on an H200."""
PIECES: Final = 8
"""Pieces of work of every share."""
LUMP_PIECES: Final = 31
"""Pieces of work of one lump."""
FIBER_LUMPS: Final = 8
"""Most that a session on a fiber borrows: 256 pieces in all keep any GPU busy for as long as it takes to ask for more,
and leave room in a queue."""
SHARES: Final = QUEUES * QUEUE_PIECES // 4 // PIECES
"""Shares are worth a quarter of what the queues take together, and as much is lent to fibers. Half stays free: streams
are not used evenly, and notifications and guests with threads of their own take room too."""
QUEUED_LUMPS: Final = QUEUES * QUEUE_PIECES // 4 // LUMP_PIECES
LENT_LUMPS: Final = 2 * QUEUED_LUMPS
"""Lent to all: these pieces, and those of one session with the large place (`GUARDED_PIECES`), are gone in some 50 ms
once they are to stop. Twice as many as fibers have keep a GPU busy while a thread that has given half of them waits."""

_NO_LARGE_PLACE: Final = (
    "large launches, copies or graphs of others kept the GPU until there was no time left: smaller ones need not wait"
)


class QueueCapacity:
    """The queue capacity of one device. Thread-safe.

    Args:
        shares: sessions on fibers that may have work pending at a time.
        lumps: lent at a time.

    Attributes:
        gate: to the shares.
        large: to the place of the one session that may give what is larger than its credits.
        lumps: that could be lent now.
    """

    def __init__(self, shares: int = SHARES, lumps: int = LENT_LUMPS) -> None:
        self.gate = Gate(shares)
        self.large = Gate(1, alternate=True)
        self.lumps = lumps
        self._of_fibers = QUEUED_LUMPS
        self._borrowers: dict[QueueCredits, None] = {}
        self._lock = threading.Lock()

    def lend(self, borrower: QueueCredits, least: int) -> None:
        """Lend as many lumps as the session may have, if these are so many at least.

        It leaves as many as it has. If there are too few, others return what they do not use.
        """
        with self._lock:
            if least > self._room(borrower):
                for each in tuple(self._borrowers):
                    if each is not borrower:
                        self._move(each, -each.unused())
            if least <= (room := self._room(borrower)):
                self._move(borrower, room)

    def take_back(self, borrower: QueueCredits) -> None:
        """Take back what was lent to a session."""
        with self._lock:
            self._move(borrower, -borrower.lumps)

    def _room(self, borrower: QueueCredits) -> int:
        room = (self.lumps + borrower.lumps) // 2 - borrower.lumps
        return max(room if borrower.waits else min(room, FIBER_LUMPS - borrower.lumps, self._of_fibers), 0)

    def _move(self, borrower: QueueCredits, lumps: int) -> None:
        self.lumps -= lumps
        if not borrower.waits:
            self._of_fibers -= lumps
        borrower.resize(borrower.lumps + lumps)
        if borrower.lumps:
            self._borrowers[borrower] = None
        else:
            self._borrowers.pop(borrower, None)


class LargePlace:
    """One session's place for what is larger than its credits; a `Holder`, and what a fiber waits for.

    It is kept while that is pending.

    Args:
        gate: of the device.
        idle: returns whether the session has nothing on the device.
        tenant: whose session it is.

    Attributes:
        held: whether the session has it.
    """

    __slots__ = ("_gate", "_idle", "_needed", "held", "tenant")

    def __init__(self, gate: Gate, idle: Callable[[], bool], tenant: str) -> None:
        self.tenant = tenant
        self._gate = gate
        self._idle = idle
        self._needed = self.held = False

    def take(self) -> bool:
        """Take the place until `given`, if it is free; return whether the session has it. Never waits."""
        # Set before the gate looks, so that it does not take the place back meanwhile.
        self._needed = True
        self._needed = self.held = self._gate.request(self)
        return self.held

    def enter(self, deadline: Deadline) -> None:
        """Take the place until `given`; wait for it. Raises as `Gate.enter`."""
        with self._waiting():
            self._gate.enter(deadline, self)
        self.held = True

    def given(self) -> None:
        """Note that what the place was taken for is pending or refused: it can be taken back once that has ended."""
        self._needed = False

    def leave(self) -> None:
        """Give the place back, also one that came and was not taken."""
        self._needed = self.held = False
        self._gate.leave(self)

    def suspend(self) -> None:
        """See `Holder`. Nothing to do: compiled code gives nothing that needs the place."""

    def release_if_idle(self) -> bool:
        """See `Holder`."""
        if self._needed or not self._idle():
            return False
        self.held = False
        return True

    # ------------------------------------------------------------------------------------ without a thread

    def join(self, notify: Callable[[], object], until: Deadline) -> bool:
        """Queue for the place, for a `take` to find; see `tensorwasm.gpu.limits.gate.Gate.join`."""
        with self._waiting():
            return self._gate.join(self, notify, until)

    def give_up(self) -> None:
        """Leave the queue; a place that came before stays for a `take` to find. See `Gate.give_up`."""
        with self._waiting():
            self._gate.give_up(self)

    def abandon(self) -> None:
        """Leave the queue; if the place came before, give it back."""
        self.leave()

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        self._needed = True  # as in `take`
        try:
            yield
        except BaseException as error:
            self._needed = False
            if isinstance(error, CapacityExhausted):
                raise CapacityExhausted(_NO_LARGE_PLACE) from error
            raise


class QueueCredits:
    """What one session may have pending. Called as `GatePermit` is; a `Holder` of its share.

    A session that has a thread, and kernels without a guard, may have any amount pending.

    Args:
        capacity: of the device.
        layout: has the count of pending work, and tells compiled code how much may be.
        idle: returns whether the session has nothing on the device.
        tenant: whose session it is.
        guarded: whether the session's kernels are guarded.

    Attributes:
        held: whether the session has its share.
        large: its place for what is larger than its credits.
        lumps: that it has borrowed.
        queue: what the session has to queue for since `take` returned False; None if for work of its own.
        waits: whether the guest has a thread that may wait, and needs no share.
    """

    __slots__ = (
        *("_bounded", "_capacity", "_idle", "_layout", "_needed"),
        *("held", "large", "lumps", "queue", "tenant", "waits"),
    )

    def __init__(
        self,
        capacity: QueueCapacity,
        layout: SessionLayoutWriter,
        idle: Callable[[], bool],
        tenant: str,
        *,
        guarded: bool = False,
    ) -> None:
        self.tenant = tenant
        self.large = LargePlace(capacity.large, idle, tenant)
        self.queue: QueueCredits | LargePlace | None = None
        self.waits, self._bounded = True, guarded
        self.lumps = 0
        self._capacity = capacity
        self._idle = idle
        self._layout = layout
        self._needed = self.held = False
        if guarded:
            self.resize(0)

    def bound(self) -> None:
        """Let the session have nothing pending from now on without a share, since its guest must not wait."""
        self._bounded, self.waits = True, False
        self.resize(0)

    def offer(self) -> None:
        """Take what is free, for compiled code to find; it may be taken back."""
        if not self.waits:
            self._needed = True  # as in `take`
            self._take_share(self._capacity.gate.offer)
            self._needed = False
        elif self._bounded:
            self._capacity.lend(self, 0)

    def fits(self, pieces: int) -> bool:
        """Return whether so much more may be pending."""
        return not self._bounded or self._layout.pending + pieces <= self._layout.most_pending

    def take(self, pieces: int) -> bool:
        """Make room for so much more, which is kept until `given`. Never waits.

        Returns:
            Whether there is room. If not, the session has to wait as `queue` says.
        """
        self.settle()
        self._needed, self.queue = True, None  # before anybody looks whether something can be taken back
        self._needed = self._find_room(pieces)
        return self._needed

    def await_room(self, pieces: int, waits: Iterable[Callable[[], object]], deadline: Deadline) -> None:
        """Make room on the guest's thread, after `take` found none; it is kept until `given`.

        Args:
            pieces: of work.
            waits: what waits for the session's own work, part after part.
            deadline: until when to wait for work of others.

        Raises:
            CapacityExhausted: there was no place for what is larger than the session's credits.
        """
        for wait in waits:
            wait()
            if self.take(pieces):
                return
        self.large.enter(deadline)

    def given(self) -> None:
        """Note that what there was room for is pending, or was refused."""
        self._needed = False
        self.large.given()

    def settle(self) -> None:
        """Give the large place back once what it was for has ended."""
        if self.large.held and not (self._needed or self._layout.pending):
            self.large.leave()

    def leave(self) -> None:
        """Give everything back, also what came and was not taken: nothing is pending, and nothing will be."""
        if self._bounded:
            self.large.leave()
            self._capacity.gate.leave(self)  # first, so that the gate does not ask for it any more
            self._forget()

    def suspend(self) -> None:
        """See `Holder`."""
        self._layout.most_pending = 0

    def release_if_idle(self) -> bool:
        """See `Holder`. What is pending then has ended, and is counted as ended when the guest asks."""
        if self._needed or not self._idle():
            return False
        self._forget()
        return True

    # ------------------------------------------------------------------------------------ for the capacity

    def unused(self) -> int:
        """Return how many lumps the session does not need now."""
        if self._needed:
            return 0
        used = 0 if self._idle() else -(-(self._layout.pending - PIECES) // LUMP_PIECES)
        return max(self.lumps - max(used, 0), 0)

    def resize(self, lumps: int) -> None:
        """Set how much is borrowed."""
        self.lumps = lumps
        self._layout.most_pending = PIECES + lumps * LUMP_PIECES if self.held or self.waits else 0

    # ------------------------------------------------------------------------------------ without a thread

    def join(self, notify: Callable[[], object], until: Deadline) -> bool:
        """Queue for a share, for a `take` to find; see `tensorwasm.gpu.limits.gate.Gate.join`."""
        return self._capacity.gate.join(self, notify, until)

    def give_up(self) -> None:
        """Leave the queue; a share that came before stays for a `take` to find. See `Gate.give_up`."""
        self._capacity.gate.give_up(self)

    def abandon(self) -> None:
        """Leave the queue; if the share came before, give it back."""
        if not self.held:
            self._capacity.gate.leave(self)

    def _find_room(self, pieces: int) -> bool:
        if self.fits(pieces):
            return True
        if not (self.waits or self._take_share(self._capacity.gate.request)):
            self.queue = self
            return False
        lacking = self._layout.pending + pieces - self._layout.most_pending
        if lacking > 0:
            self._capacity.lend(self, -(-lacking // LUMP_PIECES))
        if self.fits(pieces):
            return True
        if self._layout.pending:
            return False
        self.queue = None if self.large.take() else self.large
        return self.queue is None

    def _take_share(self, ask: Callable[[Holder], bool]) -> bool:
        if ask(self) and not self.held:
            self.held = True
            self.resize(self.lumps)
        return self.held

    def _forget(self) -> None:
        self.held = False
        self._capacity.take_back(self)
