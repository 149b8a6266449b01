"""One session's permit at the gate on concurrent GPU work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from tensorwasm.errors import LimitError
from tensorwasm.gpu.limits.gate import Gate
from tensorwasm.gpu.native.layout_writer import SessionLayoutWriter
from tensorwasm.values import Deadline

_R = TypeVar("_R")


class NoPermit(Exception):
    """There is no permit now, and the caller does not wait on its thread. All is as before: to be tried again."""


class IdleQuestion(Protocol):
    """Asks whether a session has nothing on its device any more."""

    def __call__(self) -> bool:
        """Return whether; False also if it was asked a short time ago."""

    def at_once(self) -> bool:
        """Return whether, however often this is asked."""


class GatePermit:
    """A permit, held from before a launch's arguments are read until the streams have drained.

    With compiled code it is kept longer, between launches, until another session needs it or the guest's call ends.

    A guest that holds no thread while it waits does its work with `attempt`; if there is no permit, it joins the queue,
    and attempts the same again once notified. The session's lock is held, except for `join`, `give_up` and `abandon`:
    they are called while the guest is suspended.

    Args:
        gate: of the process.
        layout: has the count of pending work, and shows compiled code the permit.
        idle: asks whether the session has nothing on the device.
        tenant: whose session it is.

    Attributes:
        rejected: how often there was none.
    """

    __slots__ = ("_gate", "_idle", "_layout", "_needed", "_patient", "rejected", "tenant")

    def __init__(self, gate: Gate, layout: SessionLayoutWriter, idle: IdleQuestion, tenant: str) -> None:
        self.tenant = tenant
        self._gate = gate
        self._idle = idle
        self._layout = layout
        self._needed = False
        self._patient = True
        self.rejected = 0

    def take(self, deadline: Deadline) -> None:
        """Take the permit until `settle`; raises as `Gate.enter`, and `NoPermit` instead of waiting in an `attempt`."""
        # Set before the gate looks, so that it does not take the permit back any more.
        self._needed = True
        try:
            self._enter(deadline)
        except BaseException as error:
            self._refuse(error)
            raise
        self._layout.placed = True

    def offer(self) -> None:
        """Take a free permit, if there is one, for compiled code to find; the gate may take it back."""
        self._needed = True  # as in `take`
        if self._gate.offer(self):
            self._layout.placed = True
        self._needed = False

    def renew(self) -> None:
        """Prepare for another guest of the session."""
        self.rejected = 0
        if not self._layout.placed:
            self.offer()

    def settle(self) -> None:
        """Give the permit back unless work is pending; with compiled code keep it until another session needs it."""
        self._needed = False
        if not self._layout.pending and self._layout.layout is None:
            self.leave()

    def leave(self) -> None:
        """Give the permit back, also one that came by `join` and was not taken."""
        came, self._needed = self._needed, False
        if came or self._layout.placed:
            self._layout.placed = False
            self._gate.leave(self)

    def keep(self) -> None:
        """Keep the permit for good: work that never ends is on the GPU."""
        self._needed = True

    def suspend(self) -> None:
        """See `tensorwasm.gpu.limits.gate.Holder`."""
        self._layout.placed = False

    def runs(self) -> bool:
        """Return whether the session has work on the device now. Any thread may ask."""
        return self._layout.pending > 0 and not self._idle.at_once()

    def given(self) -> tuple[int, int, int]:
        """Return what grows whenever compiled code gives work."""
        return self._layout.traffic

    def release_if_idle(self) -> bool:
        """See `tensorwasm.gpu.limits.gate.Holder`."""
        if self._needed or not self._idle():
            return False
        self._layout.placed = False
        return True

    # ------------------------------------------------------------------------------------ without a thread

    def attempt(self, work: Callable[[], _R]) -> _R:
        """Do what may take the permit, without waiting for it.

        Raises:
            NoPermit: there is none now, and nothing has been done.
        """
        self._patient = False
        try:
            return work()
        finally:
            self._patient = True
            if not self._layout.placed:  # one that came by `join` was not taken after all
                self.abandon()

    def join(self, notify: Callable[[], object], until: Deadline) -> bool:
        """Queue for a permit, for an `attempt` to find; see `tensorwasm.gpu.limits.gate.Gate.join`."""
        self._needed = True  # as in `take`
        try:
            return self._gate.join(self, notify, until)
        except BaseException as error:
            self._refuse(error)
            raise

    def give_up(self) -> None:
        """Leave the queue; a permit that came before stays for an `attempt` to find. See `Gate.give_up`."""
        try:
            self._gate.give_up(self)
        except LimitError as error:
            self._refuse(error)
            raise

    def abandon(self) -> None:
        """Leave the queue; if the permit came before, give it back."""
        self._needed = False
        self._gate.leave(self)

    def _enter(self, deadline: Deadline) -> None:
        if self._patient:
            self._gate.enter(deadline, self)
        elif not self._gate.request(self):
            raise NoPermit

    def _refuse(self, error: BaseException) -> None:
        self.rejected += isinstance(error, LimitError)
        if not self._layout.placed:
            self.abandon()
