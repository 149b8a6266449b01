"""What a reactor runs: a job of somebody's, how far its guest has come, and how many there are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tensorwasm.guest.imports.suspension import Signal, Steps, Turn
from tensorwasm.guest.sandbox.fiber import Fiber
from tensorwasm.guest.sandbox.oneshot_fiber import OneShotFiber
from tensorwasm.guest.sandbox.suspended_call import WaitingFunction

Sandbox = Fiber | OneShotFiber
"""One that runs as a fiber."""


class Job(Protocol):
    """What somebody wants a reactor to run. Its methods are called once each; what they raise is logged."""

    @property
    def blocks(self) -> bool:
        """Whether `finish` may wait, so that it is called on another thread."""

    @property
    def roams(self) -> bool:
        """Whether any thread may run the guest; one with a GPU session stays with the reactor."""

    @property
    def light(self) -> bool:
        """Whether everything that the guest does is short, or a timer can end it: it may keep the GIL for a slice."""

    @property
    def lingers(self) -> bool:
        """Whether `finish` may wait for long, so that the thread is to be its own; asked if it blocks."""

    def begin(self) -> Sandbox:
        """Return the sandbox; called on the reactor's thread, or on the one that is to run the guest if any may."""

    def finish(self, fiber: Sandbox | None, error: BaseException | None) -> bool:
        """Take the outcome and close the sandbox.

        Args:
            fiber: what `begin` returned, None if that raised.
            error: how the call ended, None if it returned.

        Returns:
            Whether nothing but the reactor may still reach the sandbox's pad.
        """


class Task:
    """A job on a reactor. Opaque to everybody else.

    Attributes:
        fiber: the sandbox, once it is made.
        error: how the call ended; the first one counts.
        steps: of the host function that the guest waits for, and that function.
        signal: what the guest waits for, if that is a notification.
        notified_at: address that a device will be told, 0 while none will be; it outlives the guest.
        asleep: number of the timer that ends a sleep, 0 without.
        turn: what the guest waits for, if that is its turn.
        long: it is known to take long.
        limit_ns: when it last had a timer to give up on its turn, on the monotonic clock.
        timed: it has a timer for its deadline.
        working: another thread takes a step.
        away: another thread runs the guest.
        over: the guest will not run again.
        gone: its sandbox is closed, and nothing but a notification may still reach its pad.
    """

    __slots__ = (
        "asleep",
        "away",
        "error",
        "fiber",
        "gone",
        "job",
        "limit_ns",
        "long",
        "notified_at",
        "over",
        "signal",
        "steps",
        "timed",
        "turn",
        "working",
    )

    def __init__(self, job: Job, *, long: bool = False) -> None:
        self.job = job
        self.long = long
        self.fiber: Sandbox | None = None
        self.error: BaseException | None = None
        self.steps: tuple[WaitingFunction, Steps] | None = None
        self.signal: Signal | None = None
        self.notified_at = 0
        self.asleep = 0
        self.turn: Turn | None = None
        self.limit_ns: int | None = None
        self.timed = False
        self.working = False
        self.away = False
        self.over = False
        self.gone = False


@dataclass(frozen=True, slots=True)
class FiberStatistics:
    """A snapshot of a reactor.

    Attributes:
        running: guests that can go on.
        waiting: guests that wait: for a device, a time, their turn, or work on another thread.
        on_device: those of them that a device will notify, or will be asked to when there is room.
        in_line: those of them that wait for their turn.
        wakes: how often the reactor's thread was woken.
        polls: how often a guest was run.
        notifications: how often a device told that a guest's work had ended.
        orphans: pads that wait for a notification which outlives their guests.
        away: guests that run on other threads, or wait for their turn there; they are running too.
    """

    running: int = 0
    waiting: int = 0
    on_device: int = 0
    in_line: int = 0
    wakes: int = 0
    polls: int = 0
    notifications: int = 0
    orphans: int = 0
    away: int = 0
