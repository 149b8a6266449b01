"""How much work may wait in the driver's queues for guests whose thread must not wait there.

A driver takes work until a queue of its own is full; the next call then waits in it, with no deadline, for a kernel to
end. Guests that run as fibers share one thread, so none of them may come to that: what their sessions have pending is
bounded, for each and for all together. A session that gives anything has a share, which is `PIECES` pieces of work, and
may be lent more; who finds no share stands in line, as at the gate.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Final

from tensorwasm.gpu.limits.quota import Gate, Holder
from tensorwasm.gpu.native.layout_writer import SessionLayoutWriter
from tensorwasm.values import Deadline

QUEUES: Final = 8
"""Queues of a driver that all streams are dealt out to, in turn. Source: CUDA_DEVICE_MAX_CONNECTIONS."""
QUEUE_PIECES: Final = 1024
"""Launches that one of them takes before the next call waits, seen on an H200."""
PIECES: Final = 8
"""What every share is worth."""
LUMP_PIECES: Final = 31
"""What is lent at a time."""
LUMPS: Final = 8
"""What a session is lent at most: 256 pieces in all keep any GPU busy for as long as it takes to ask for more."""
SHARES: Final = QUEUES * QUEUE_PIECES // 4 // PIECES
"""Shares are worth a quarter of what the queues take together, and as much is lent. Half stays free: streams are not
used evenly, and notifications and the guests with threads of their own take room too."""
LENT_LUMPS: Final = QUEUES * QUEUE_PIECES // 4 // LUMP_PIECES


class QueueCapacity:
    """The room of one device. Safe from any thread.

    Args:
        shares: sessions that may have work pending at a time.
        lumps: lent at a time.

    Attributes:
        gate: to the shares.
    """

    def __init__(self, shares: int = SHARES, lumps: int = LENT_LUMPS) -> None:
        self.gate = Gate(shares)
        self._lumps = lumps
        self._lock = threading.Lock()

    @property
    def lumps(self) -> int:
        """What could be lent now."""
        return self._lumps

    def lend(self) -> bool:
        """Lend a lump, if there is one."""
        with self._lock:
            if not self._lumps:
                return False
            self._lumps -= 1
            return True

    def take_back(self, lumps: int) -> None:
        """Take back what was lent."""
        with self._lock:
            self._lumps += lumps


class QueueCredits:
    """One session's share; until `bound` it may have any amount pending. The session takes turns.

    It stands in line for whoever runs the guest, which waits meanwhile: `join`, `give_up`, `abandon`.

    Args:
        backlog: of the device.
        sheet: says how much is pending, and tells compiled code how much may be.
        idle: says whether the session has nothing on the device.
    """

    __slots__ = ("_backlog", "_bounded", "_held", "_idle", "_lumps", "_needed", "_sheet")

    def __init__(self, backlog: QueueCapacity, sheet: SessionLayoutWriter, idle: Callable[[], bool]) -> None:
        self._backlog = backlog
        self._idle = idle
        self._sheet = sheet
        self._bounded = False
        self._held = False
        self._needed = False
        self._lumps = 0

    @property
    def held(self) -> bool:
        """Whether the session has its share."""
        return self._held

    def bound(self) -> None:
        """Have nothing pending from now on but within the share."""
        self._bounded = True
        self._sheet.most_pending = 0

    def offer(self) -> None:
        """Have a share for compiled code to find, if there is a free one; whoever needs it may have it back."""
        if self._bounded and not self._held:
            self._change(self._backlog.gate.offer, lambda: None)

    def fits(self, pieces: int) -> bool:
        """Return whether so much more may be pending."""
        return not self._bounded or self._sheet.pending + pieces <= self._sheet.most_pending

    def take(self, pieces: int) -> bool:
        """Have room for so much more; what is larger than any share has it when nothing else is pending.

        Returns:
            Whether there is room. If not, and no share is `held`, there is a line to stand in, else work to wait for.
        """
        return self._change(self._backlog.gate.request, partial(self._borrow, pieces)) and (
            self.fits(pieces) or not self._sheet.pending
        )

    def settle(self) -> None:
        """Give back what was lent once nothing is pending, where others may need it."""
        if self._lumps and not self._sheet.pending and self._backlog.lumps < LENT_LUMPS // 2:
            self._change(self._backlog.gate.offer, self._give_lumps)

    def leave(self) -> None:
        """Give the share back, also one that came and was not taken: nothing is pending, and nothing will be."""
        if self._bounded:
            self._backlog.gate.leave(self)  # first: nobody asks for it any more
            self._give_lumps()
            self._held = False
            self._sheet.most_pending = 0

    def vacate(self) -> bool:
        """See `Holder`. What is pending then has ended, and is counted off when the guest asks."""
        if self._needed or not self._idle():
            return False
        self._give_lumps()
        self._held = False
        self._sheet.most_pending = 0
        return True

    # ------------------------------------------------------------------------------------ without a thread

    def join(self, tell: Callable[[], object], until: Deadline) -> bool:
        """Stand in line for a share, for a `take` to find; see `tensorwasm.gpu.limits.quota.Gate.join`.

        Raises:
            CapacityExhausted: there is no time to wait.
        """
        return self._backlog.gate.join(self, tell, until)

    def give_up(self) -> None:
        """Leave the line; a share that came before stays for a `take` to find.

        Raises:
            CapacityExhausted: it did not come.
        """
        self._backlog.gate.give_up(self)

    def abandon(self) -> None:
        """Leave the line; if the share came before, give it back."""
        if not self._held:
            self._backlog.gate.leave(self)

    def _change(self, ask: Callable[[Holder], bool], change: Callable[[], None]) -> bool:
        """Have the share and change what it is worth, while nobody takes it back; return whether it could be had."""
        # Said before the gate looks: what it says then holds until this is over.
        self._needed = True
        try:
            if not ask(self):
                return False
            change()
            self._held = True
            self._sheet.most_pending = PIECES + self._lumps * LUMP_PIECES
        finally:
            self._needed = False
        return True

    def _borrow(self, pieces: int) -> None:
        while (
            self._sheet.pending + pieces > PIECES + self._lumps * LUMP_PIECES
            and self._lumps < LUMPS
            and self._backlog.lend()
        ):
            self._lumps += 1

    def _give_lumps(self) -> None:
        lumps, self._lumps = self._lumps, 0
        self._backlog.take_back(lumps)
