"""How much work may wait in the driver's queues: of sessions on fibers, and of sessions of guarded kernels.

A driver takes work until a queue of its own is full; the next call into it then blocks, with no deadline, until a
kernel ends. Guests that run as fibers share one thread, so none of them may cause that. And what waits in the queues
has to begin before it can stop, so guarded kernels of all sessions together are gone soon after their deadlines only if
they are few. So the pending work of sessions is bounded, for each and for all together:

- A session on a fiber holds a share, worth `PIECES` pieces of work, and waits in a queue if none is free, as at the
  gate. One that has a thread has as much without asking: there are few such threads.
- It may borrow more, in lumps: a tenant half of all that is left, a session half of what is left to its tenant. What a
  session does not use is lent to another that needs it.
- What is larger than that is given alone: when nothing else of the session is pending, and in few sessions at a time.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, ParamSpec, TypeVar

from tensorwasm.errors import CapacityExhausted
from tensorwasm.gpu.limits.gate import Gate
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
LENT_LUMPS: Final = 4 * QUEUED_LUMPS
"""Lent to all. What one tenant may have of them, and one session with a place besides (`GUARDED_PIECES`), is gone some
60 ms after its deadline, measured on an H200 with 64 sessions."""
LARGE_PLACES: Final = 3
"""One tenant has one at most: three have to keep them with work without an end before large work of others waits."""
_NO_SHARE: Final = "others' work filled the queues of the GPU until there was no time left"
_NO_LARGE_PLACE: Final = (
    "large launches, copies or graphs kept the GPU until there was no time left: smaller ones need not wait"
)
_P = ParamSpec("_P")
_R = TypeVar("_R")


class QueueCapacity:
    """The queue capacity of one device. Thread-safe.

    Args:
        shares: sessions on fibers that may have work pending at a time.
        lumps: lent at a time.

    Attributes:
        gate: to the shares.
        large: to the places for what is larger than a session's credits.
        lumps: that could be lent now.
    """

    def __init__(self, shares: int = SHARES, lumps: int = LENT_LUMPS) -> None:
        # One lock for all three: garbage that is collected under it may be a session, whose end takes the others.
        self._lock = threading.RLock()
        self.gate = Gate(shares, lock=self._lock)
        self.large = Gate(LARGE_PLACES, each=1, lock=self._lock)
        self.lumps = lumps
        self._of_fibers = QUEUED_LUMPS
        self._of_tenants: Counter[tuple[str, bool]] = Counter()
        self._borrowers: dict[QueueCredits, None] = {}

    def lend(self, borrower: QueueCredits, least: int) -> None:
        """Lend as many lumps as the session may have, if these are so many at least."""
        with self._lock:
            if least > self._room(borrower):
                self._reclaim(borrower, least)
            if least <= (room := self._room(borrower)):
                self._move(borrower, room)

    def take_back(self, borrower: QueueCredits) -> None:
        """Take back what was lent to a session."""
        with self._lock:
            self._move(borrower, -borrower.lumps)

    def _reclaim(self, borrower: QueueCredits, least: int) -> None:
        """Have sessions return what they do not use, if the borrower has room for enough then."""
        returned = []
        for each in tuple(self._borrowers):
            if each is not borrower and (lumps := min(each.unused(), each.lumps)):
                self._move(each, -lumps)
                returned.append((each, lumps))
        enough = least <= self._room(borrower)
        for each, lumps in returned:
            if not each.left and (not enough or each.uses_more()):  # it may have given work meanwhile
                self._move(each, lumps)

    def _room(self, borrower: QueueCredits) -> int:
        """Return how many more lumps a session may have: half of what its tenant may have more."""
        tenant, own = borrower.tenant, borrower.lumps
        on_fibers = self._of_tenants[tenant, False]
        room = self._half(self.lumps, on_fibers + self._of_tenants[tenant, True])
        if borrower.waits:
            return self._half(room, own)
        return max(min(room, self._half(self._of_fibers, on_fibers), FIBER_LUMPS - own), 0)

    @staticmethod
    def _half(free: int, own: int) -> int:
        """Return how much more there is for one who leaves as much as he has."""
        return max((free + own) // 2 - own, 0)

    def _move(self, borrower: QueueCredits, lumps: int) -> None:
        self.lumps -= lumps
        if not borrower.waits:
            self._of_fibers -= lumps
        of_tenant = borrower.tenant, borrower.waits
        self._of_tenants[of_tenant] += lumps
        if not self._of_tenants[of_tenant]:
            del self._of_tenants[of_tenant]
        borrower.resize(borrower.lumps + lumps)
        if borrower.lumps:
            self._borrowers[borrower] = None
        else:
            self._borrowers.pop(borrower, None)


class _NoSession:
    """In place of the credits of a session that has ended."""

    kept = False


class QueuePlace:
    """One session's place at a gate; what a fiber waits for.

    Args:
        gate: of the device.
        owner: the session's credits; while they are kept, so is the place.
        idle: returns whether the session has nothing on the device.
        lost: called when the place was taken back or given back.
        refusal: the message if none came free in time.

    Attributes:
        held: whether the session has it.
    """

    __slots__ = ("_gate", "_idle", "_lost", "_owner", "_refused", "held", "tenant")

    def __init__(
        self, gate: Gate, owner: QueueCredits, idle: Callable[[], bool], lost: Callable[[], object], refusal: str
    ) -> None:
        self.tenant = owner.tenant
        self.held = False
        self._gate = gate
        self._owner: QueueCredits | _NoSession = owner
        self._idle = idle
        self._lost = lost
        self._refused = refusal

    def take(self, *, asking: bool = True) -> bool:
        """Take the place while the credits are kept; return whether the session has it. Never waits."""
        if not self.held and (self._gate.request if asking else self._gate.offer)(self):
            self.held = True
        return self.held

    def enter(self, deadline: Deadline) -> None:
        """Take the place, and wait for it; the credits are kept from now on. Raises as `Gate.enter`."""
        self._attempt(self._gate.enter, deadline, self)
        self.take()

    def leave(self) -> None:
        """Give the place back, also one that came and was not taken."""
        self.held = False
        self._gate.leave(self)
        self._lost()

    def forget(self) -> None:
        """Refer to the session no more, which has ended: the two would be left to the cyclic collector."""
        self._owner, self._lost = _NoSession(), bool

    def suspend(self) -> None:
        """See `Holder`. No tenant is held at these gates."""

    def release_if_idle(self) -> bool:
        """See `Holder`. What is pending then has ended, and is counted as ended when the guest asks."""
        if self._owner.kept or not self._idle() or self._owner.kept:
            return False
        self.held = False
        self._lost()
        return True

    # ------------------------------------------------------------------------------------ without a thread

    def join(self, notify: Callable[[], object], until: Deadline) -> bool:
        """Queue for the place, for a `QueueCredits.take` to find; see `tensorwasm.gpu.limits.gate.Gate.join`."""
        return self._attempt(self._gate.join, self, notify, until)

    def give_up(self) -> None:
        """Leave the queue; a place that came before stays for a `QueueCredits.take` to find. See `Gate.give_up`."""
        self._attempt(self._gate.give_up, self)

    def abandon(self) -> None:
        """Leave the queue; if the place came before, give it back."""
        self._owner.kept = False
        if not self.held:
            self._gate.leave(self)

    def _attempt(self, wait: Callable[_P, _R], *args: _P.args, **named: _P.kwargs) -> _R:
        self._owner.kept = True  # before the place comes, so that it is not taken back before it is used
        try:
            return wait(*args, **named)
        except BaseException as error:
            self._owner.kept = False
            if isinstance(error, CapacityExhausted):
                raise CapacityExhausted(self._refused) from error
            raise


class QueueCredits:
    """What one session may have pending.

    A session that has a thread, and kernels without a guard, may have any amount pending.

    Args:
        capacity: of the device.
        layout: has the count of pending work, and tells compiled code how much may be.
        idle: returns whether the session has nothing on the device.
        tenant: whose session it is.
        guarded: whether the session's kernels are guarded.

    Attributes:
        kept: whether nothing that the session has may be taken back now, since it is about to use it.
        large: its place for what is larger than its credits.
        left: whether the session has ended.
        lumps: that it has borrowed.
        queue: the place that the session has to queue for since `take` returned False; None if it has to wait for work
            of its own.
        share: its place among the sessions on fibers.
        waits: whether the guest has a thread that may wait, and needs no share.
    """

    __slots__ = (
        *("_bounded", "_capacity", "_idle", "_layout", "_seen", "_used"),
        *("kept", "large", "left", "lumps", "queue", "share", "tenant", "waits"),
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
        self.kept = self.left = self._used = False
        self.lumps = self._seen = 0
        self.waits, self._bounded = True, guarded
        self._capacity = capacity
        self._idle = idle
        self._layout = layout
        self.share = QueuePlace(capacity.gate, self, idle, partial(capacity.take_back, self), _NO_SHARE)
        self.large = QueuePlace(capacity.large, self, idle, bool, _NO_LARGE_PLACE)
        self.queue: QueuePlace | None = None
        if guarded:
            self.resize(0)

    def bound(self) -> None:
        """Let the session have nothing pending from now on without a share, since its guest must not wait."""
        self._bounded, self.waits = True, False
        self.resize(0)

    def offer(self) -> None:
        """Take what is free, for compiled code to find; it may be taken back."""
        if not self.waits:
            self.kept = True
            self.share.take(asking=False)
            self.resize(self.lumps)
            self.kept = False
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
        waited, self.queue = self.queue, None
        self.kept = True  # before anybody looks whether something can be taken back
        self.kept = self._find_room(pieces)
        if waited is self.large and not self.large.held:
            self.large.leave()  # it came, and is not needed any more
        return self.kept

    def await_room(self, pieces: int, waits: Iterable[Callable[[], object]], deadline: Deadline) -> None:
        """Wait on the guest's thread, after `take` found no room, until it may find some.

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
                break
        else:
            self._layout.count_wait(self.large.enter, deadline)
        self.kept = False  # nothing is kept while a permit is waited for, whose holders may wait for a place

    def given(self) -> None:
        """Note that what there was room for is pending, or was refused."""
        self.kept = False
        self._used = self.large.held and self._layout.pending > 0

    def settle(self) -> None:
        """Give the large place back once what it was for has ended."""
        if self._used and self.large.held and not (self.kept or self._layout.pending):
            self._used = False
            self.large.leave()

    def leave(self) -> None:
        """Give everything back, also what came and was not taken: nothing is pending, and nothing will be."""
        if self._bounded:
            self.large.leave()
            self.share.leave()
            self.left = True
        self.large.forget()
        self.share.forget()

    # ------------------------------------------------------------------------------------ for the capacity

    def unused(self) -> int:
        """Return how many lumps the session does not need now."""
        self._seen = self._layout.pending
        if self.kept:
            return 0
        used = 0 if self._idle() else -(-(self._seen - PIECES) // LUMP_PIECES)
        return max(self.lumps - max(used, 0), 0)

    def uses_more(self) -> bool:
        """Return whether the session may need more than `unused` said."""
        return self.kept or self._layout.pending > self._seen

    def resize(self, lumps: int) -> None:
        """Set how much is borrowed."""
        self.lumps = lumps
        self._layout.most_pending = PIECES + lumps * LUMP_PIECES if self.share.held or self.waits else 0

    def _find_room(self, pieces: int) -> bool:
        if self.fits(pieces):
            return True
        if not self.waits:
            if not self.share.take():
                self.queue = self.share
                return False
            self.resize(self.lumps)
        lacking = self._layout.pending + pieces - self._layout.most_pending
        if lacking > 0:
            self._capacity.lend(self, -(-lacking // LUMP_PIECES))
        if self.fits(pieces):
            return True
        if self._layout.pending:
            return False
        if self.large.take():
            self._capacity.take_back(self)
            return True
        self.queue = self.large
        return False
