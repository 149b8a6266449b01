"""How a guest's call into the host suspends its fiber: what compiled code leaves behind, and what is waited for.

A host function that may wait is an asynchronous function to wasmtime. Its entry is compiled
(`tensorwasm.guest.native.waiting`): it copies the parameters into the sandbox's pad and returns, and wasmtime suspends
the fiber. So no Python frame is ever on a fiber that is suspended. The reactor (`tensorwasm.guest.reactor.reactor`)
then runs the function's `Steps` off the fiber, and lets the guest go on with their answer.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Generator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Protocol

from tensorwasm.values import Deadline

_u64 = ctypes.c_uint64


class Kind(IntEnum):
    """What a suspended guest wants."""

    NOTHING = 0
    """To run on: its time slice was over."""
    CALL = 1
    """The host function, all of it."""
    FINISH = 2
    """The end of a host function whose work compiled code has started."""


class Suspension(ctypes.Structure):
    """What the compiled entry of one asynchronous host function has to know. Never changes once made.

    Attributes:
        function: the number that is put into the pad.
        result: kind of the result, a ``wasmtime_valkind_t``.
        environment: address of a `tensorwasm.guest.native.environment.Environment`, whose twin and finish only note
            that they were called.
        fast: address of the compiled host function to try first, which gets that environment, or 0.
        ready: address of the continuation.
        caller_export_get: ``wasmtime_caller_export_get``.
        memory_name: address of the name of the exported memory.
    """

    _fields_ = tuple(
        (name, _u64)
        for name in ("function", "result", "environment", "fast", "ready", "caller_export_get", "memory_name")
    )


@dataclass(frozen=True, slots=True)
class WaitingCode:
    """Addresses of the compiled functions of `tensorwasm.guest.native.waiting`."""

    suspend: int
    ready: int
    note_call: int
    note_finish: int
    complete: int
    take: int


class Mailbox(ctypes.Structure):
    """Where notifications arrive, from any thread.

    Attributes:
        head: the pad notified last, which points on to the one before; 0 for none. Exchanged atomically.
        write: address of the C library's ``write``.
        descriptor: of an eventfd.
        one: the number that is written to it.
    """

    _fields_ = tuple((name, _u64) for name in ("head", "write", "descriptor", "one"))


@dataclass(frozen=True, slots=True)
class Signal:
    """Wait until native code calls a function.

    Attributes:
        start: called with the address of a C function ``void function(void *argument)`` and the argument. Returns
            whether it will be called, once, on any thread, perhaps already; if not, there is nothing to wait for. The
            steps are told the same.
        ended: called now and then during the wait. Returns whether there is nothing to wait for any more. Raises if the
            function may never be called, because a device that has failed calls nobody; that ends the wait.
    """

    start: Callable[[int, int], bool]
    ended: Callable[[], bool]


@dataclass(frozen=True, slots=True)
class Sleep:
    """Wait for a time.

    Attributes:
        seconds: how long, 0 or more.
    """

    seconds: float


class Line(Protocol):
    """What is to be had one after the other, as one who wants it sees it. Nothing here waits."""

    def join(self, tell: Callable[[], object], until: Deadline) -> bool:
        """Stand in line; return whether ``tell`` will be called, once, on any thread, perhaps already.

        If not, it is one's turn already. Raises what the steps get, if nobody may wait or ``until`` has passed.
        """

    def give_up(self) -> None:
        """Leave the line because the time is over. Raises what the steps get, unless one's turn has come before."""

    def abandon(self) -> None:
        """Leave the line because the guest has ended; if one's turn has come before, it is given to the next."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Wait for one's turn.

    Attributes:
        line: where to stand.
        until: when to give up.
    """

    line: Line
    until: Deadline


@dataclass(frozen=True, slots=True)
class Work:
    """Wait for something that takes long or blocks, done on another thread.

    Attributes:
        function: what to do; what it returns or raises reaches the steps.
    """

    function: Callable[[], Any]


Wait = Signal | Sleep | Turn | Work
Answer = int | float | None
Steps = Generator[Wait, Any, Answer]
"""A host function that waits: it yields what it waits for, gets what came of it, and returns the answer."""
