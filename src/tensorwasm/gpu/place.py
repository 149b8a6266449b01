"""One session's place at the gate."""

from __future__ import annotations

from tensorwasm.errors import LimitError
from tensorwasm.gpu.quota import Gate
from tensorwasm.gpu.sheet import Sheet
from tensorwasm.values import Deadline


class Place:
    """A place at the gate, held from before a launch's arguments are read until the streams have drained.

    With compiled code it is kept longer, between launches, until somebody else needs it or the guest's call ends.

    Args:
        gate: of the process.
        sheet: says whether work is pending, and tells compiled code of the place.

    Attributes:
        rejected: how often there was none.
    """

    __slots__ = ("_gate", "_needed", "_sheet", "rejected")

    def __init__(self, gate: Gate, sheet: Sheet) -> None:
        self._gate = gate
        self._sheet = sheet
        self._needed = False
        self.rejected = 0

    def take(self, deadline: Deadline) -> None:
        """Have the place until `settle`, waiting for one if need be.

        Raises:
            CapacityExhausted: none came free in time.
        """
        # Said before the gate looks: it will not take the place back any more.
        self._needed = True
        try:
            self._gate.enter(deadline, self)
        except BaseException as error:
            self._needed = False
            self.rejected += isinstance(error, LimitError)
            raise
        self._sheet.placed = True

    def offer(self) -> None:
        """Have a place for compiled code to find, if there is a free one; whoever needs it may have it back."""
        self._needed = True  # as in `take`
        if self._gate.offer(self):
            self._sheet.placed = True
        self._needed = False

    def renew(self) -> None:
        """Have a place for another guest of the session to find, if there is a free one."""
        self.rejected = 0
        if not self._sheet.placed:
            self.offer()

    def settle(self) -> None:
        """Give the place back unless work is pending; with compiled code keep it until somebody else needs it."""
        self._needed = False
        if not self._sheet.pending and self._sheet.pad is None:
            self.leave()

    def leave(self) -> None:
        """Give the place back."""
        self._needed = False
        if self._sheet.placed:
            self._sheet.placed = False
            self._gate.leave(self)

    def keep(self) -> None:
        """Have the place for ever: work that never ends is on the GPU."""
        self._needed = True

    def vacate(self) -> bool:
        """See `tensorwasm.gpu.quota.Holder`."""
        if self._needed or self._sheet.pending:
            return False
        self._sheet.placed = False
        return True
