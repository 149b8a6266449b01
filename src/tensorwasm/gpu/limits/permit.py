"""One session's place at the gate."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tensorwasm.errors import LimitError
from tensorwasm.gpu.limits.quota import Gate
from tensorwasm.gpu.native.layout_writer import SessionLayoutWriter
from tensorwasm.values import Deadline

_R = TypeVar("_R")


class NoPermit(Exception):
    """There is no place now, and whoever asked does not wait on its thread. All is as before: to be tried again."""


class GatePermit:
    """A place at the gate, held from before a launch's arguments are read until the streams have drained.

    With compiled code it is kept longer, between launches, until somebody else needs it or the guest's call ends.

    A guest that holds no thread while it waits does its work with `attempt`; if there is no place, it stands in line
    with `join`, and attempts the same again once it was told. The session takes turns; `join`, `give_up` and `abandon`
    are for whoever runs the guest, which waits meanwhile.

    Args:
        gate: of the process.
        sheet: says whether work is pending, and tells compiled code of the place.
        idle: says whether the session has nothing on the device.

    Attributes:
        rejected: how often there was none.
    """

    __slots__ = ("_gate", "_idle", "_needed", "_patient", "_sheet", "rejected")

    def __init__(self, gate: Gate, sheet: SessionLayoutWriter, idle: Callable[[], bool]) -> None:
        self._gate = gate
        self._idle = idle
        self._sheet = sheet
        self._needed = False
        self._patient = True
        self.rejected = 0

    def take(self, deadline: Deadline) -> None:
        """Have the place until `settle`, waiting for one if need be, but not in an `attempt`.

        Raises:
            CapacityExhausted: none came free in time.
            NoPlace: there is none now.
        """
        # Said before the gate looks: it will not take the place back any more.
        self._needed = True
        try:
            self._enter(deadline)
        except BaseException as error:
            self._refuse(error)
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
        """Give the place back, also one that came by `join` and was not taken."""
        came, self._needed = self._needed, False
        if came or self._sheet.placed:
            self._sheet.placed = False
            self._gate.leave(self)

    def keep(self) -> None:
        """Have the place for ever: work that never ends is on the GPU."""
        self._needed = True

    def vacate(self) -> bool:
        """See `tensorwasm.gpu.limits.quota.Holder`."""
        if self._needed or not self._idle():
            return False
        self._sheet.placed = False
        return True

    # ------------------------------------------------------------------------------------ without a thread

    def attempt(self, work: Callable[[], _R]) -> _R:
        """Do what may take the place, without waiting for it.

        Raises:
            NoPlace: there is none now, and nothing has been done.
        """
        self._patient = False
        try:
            return work()
        finally:
            self._patient = True
            if not self._sheet.placed:  # one that came by `join` was not taken after all
                self.abandon()

    def join(self, tell: Callable[[], object], until: Deadline) -> bool:
        """Stand in line for a place, for an `attempt` to find; see `tensorwasm.gpu.limits.quota.Gate.join`.

        Raises:
            CapacityExhausted: there is no time to wait.
        """
        self._needed = True  # as in `take`
        try:
            return self._gate.join(self, tell, until)
        except BaseException as error:
            self._refuse(error)
            raise

    def give_up(self) -> None:
        """Leave the line; if the place came before, it stays for an `attempt` to find.

        Raises:
            CapacityExhausted: it did not come.
        """
        try:
            self._gate.give_up(self)
        except LimitError as error:
            self._refuse(error)
            raise

    def abandon(self) -> None:
        """Leave the line; if the place came before, give it back."""
        self._needed = False
        self._gate.leave(self)

    def _enter(self, deadline: Deadline) -> None:
        if self._patient:
            self._gate.enter(deadline, self)
        elif not self._gate.request(self):
            raise NoPermit

    def _refuse(self, error: BaseException) -> None:
        self.rejected += isinstance(error, LimitError)
        if not self._sheet.placed:
            self.abandon()
