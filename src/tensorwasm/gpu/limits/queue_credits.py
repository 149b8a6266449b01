"""How much work may wait in the driver's queues for guests whose thread must not wait there.

A driver takes work until a queue of its own is full; the next call into it then blocks, with no deadline, until a
kernel ends. Guests that run as fibers share one thread, so none of them may cause that: the pending work of their
sessions is bounded, for each and for all together. A session that submits work holds a share, worth `PIECES` pieces of
work, and may borrow more in lumps; one that finds no share waits in a queue, as at the gate.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Final

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
LUMPS: Final = 8
"""Most that a session borrows: 256 pieces in all keep any GPU busy for as long as it takes to ask for more."""
SHARES: Final = QUEUES * QUEUE_PIECES // 4 // PIECES
"""Shares are worth a quarter of what the queues take together, and as much is lent. Half stays free: streams are not
used evenly, and notifications and guests with threads of their own take room too."""
LENT_LUMPS: Final = QUEUES * QUEUE_PIECES // 4 // LUMP_PIECES


class QueueCapacity:
    """The queue capacity of one device. Thread-safe.

    Args:
        shares: sessions that may have work pending at a time.
        lumps: lent at a time.

    Attributes:
        gate: to the shares.
        lumps: that could be lent now.
    """

    def __init__(self, shares: int = SHARES, lumps: int = LENT_LUMPS) -> None:
        self.gate = Gate(shares)
        self.lumps = lumps
        self._lock = threading.Lock()

    def lend(self) -> bool:
        """Lend a lump, if there is one."""
        with self._lock:
            if not self.lumps:
                return False
            self.lumps -= 1
            return True

    def take_back(self, lumps: int) -> None:
        """Take back what was lent."""
        with self._lock:
            self.lumps += lumps


class QueueCredits:
    """One session's share; until `bound` it may have any amount pending. Called as `GatePermit` is.

    Args:
        capacity: of the device.
        layout: has the count of pending work, and tells compiled code how much may be.
        idle: returns whether the session has nothing on the device.
        tenant: whose session it is.

    Attributes:
        held: whether the session has its share.
    """

    __slots__ = ("_bounded", "_capacity", "_idle", "_layout", "_lumps", "_needed", "held", "tenant")

    def __init__(
        self, capacity: QueueCapacity, layout: SessionLayoutWriter, idle: Callable[[], bool], tenant: str
    ) -> None:
        self.tenant = tenant
        self._capacity = capacity
        self._idle = idle
        self._layout = layout
        self._bounded = self._needed = self.held = False
        self._lumps = 0

    def bound(self) -> None:
        """Allow nothing to be pending from now on but within the share."""
        self._bounded = True
        self._layout.most_pending = 0

    def offer(self) -> None:
        """Take a free share, if there is one, for compiled code to find; the gate may take it back."""
        if self._bounded and not self.held:
            self._change(self._capacity.gate.offer, lambda: None)

    def fits(self, pieces: int) -> bool:
        """Return whether so much more may be pending."""
        return not self._bounded or self._layout.pending + pieces <= self._layout.most_pending

    def take(self, pieces: int) -> bool:
        """Make room for so much more; what is larger than any share has room when nothing else is pending.

        Returns:
            Whether there is room. If not, and no share is `held`, the session can queue for one; else wait for work.
        """
        return self._change(self._capacity.gate.request, partial(self._borrow, pieces)) and (
            self.fits(pieces) or not self._layout.pending
        )

    def settle(self) -> None:
        """Give back what was borrowed once nothing is pending, if others may need it."""
        if self._lumps and not self._layout.pending and self._capacity.lumps < LENT_LUMPS // 2:
            self._change(self._capacity.gate.offer, self._give_lumps)

    def leave(self) -> None:
        """Give the share back, also one that came and was not taken: nothing is pending, and nothing will be."""
        if self._bounded:
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

    def _change(self, ask: Callable[[Holder], bool], change: Callable[[], None]) -> bool:
        """Take the share and change what it is worth; return whether it could be taken."""
        # Set before the gate looks, so that it does not take the share back meanwhile.
        self._needed = True
        try:
            if not ask(self):
                return False
            change()
            self.held = True
            self._layout.most_pending = PIECES + self._lumps * LUMP_PIECES
        finally:
            self._needed = False
        return True

    def _borrow(self, pieces: int) -> None:
        while (
            self._layout.pending + pieces > PIECES + self._lumps * LUMP_PIECES
            and self._lumps < LUMPS
            and self._capacity.lend()
        ):
            self._lumps += 1

    def _forget(self) -> None:
        self._give_lumps()
        self.held = False
        self._layout.most_pending = 0

    def _give_lumps(self) -> None:
        lumps, self._lumps = self._lumps, 0
        self._capacity.take_back(lumps)
