"""How a guest's call into the host suspends its fiber: what compiled code records, and what is waited for.

The compiled entry of an asynchronous host function (`tensorwasm.guest.native.waiting`) copies the parameters into the
session layout and returns, and wasmtime suspends the fiber: no Python frame is ever on a suspended fiber. The reactor
runs the function's `Steps` off the fiber, and resumes the guest with their answer.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Generator
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Any, Protocol, TypeVar

from tensorwasm.values import Deadline

_u64 = ctypes.c_uint64
_R = TypeVar("_R")


class SuspensionKind(IntEnum):
    """What a suspended guest waits for."""

    NOTHING = 0  # to run on: its time slice was over
    CALL = 1  # the whole host function
    FINISH = 2  # the end of work that a compiled host function has started


class Suspension(ctypes.Structure):
    """Constants of the compiled entry of one asynchronous host function.

    Attributes:
        function: number that is put into the session layout.
        result: kind of the result, a ``wasmtime_valkind_t``.
        environment: address of a `tensorwasm.guest.native.structures.Environment` whose fallback and finish only record
            that they were called.
        fast: address of the compiled host function to try first, which gets that environment, or 0.
        ready: address of the continuation.
        memory_name: address of the name of the exported memory.
    """

    _fields_ = tuple(
        (name, _u64)
        for name in ("function", "result", "environment", "fast", "ready", "caller_export_get", "memory_name")
    )


@dataclass(frozen=True, slots=True)
class SuspensionCode:
    """Addresses of the compiled functions of `tensorwasm.guest.native.waiting`."""

    suspend: int
    ready: int
    note_call: int
    note_finish: int
    complete: int
    take: int


class CompletionList(ctypes.Structure):
    """Where notifications arrive, from any thread.

    ``head`` is the `Wait` notified last, which links to the one before; 0 for none; exchanged atomically. The C
    function ``write`` writes the number ``one`` to the eventfd ``descriptor``.
    """

    _fields_ = tuple((name, _u64) for name in ("head", "write", "descriptor", "one"))


@dataclass(frozen=True, slots=True)
class DeviceWait:
    """Wait until native code calls a function.

    Attributes:
        start: called with the address of a C function ``void function(void *argument)`` and the argument. Returns, also
            to the steps, whether it will be called, once, on any thread, perhaps already.
        ended: polled during the wait. Returns whether there is nothing left to wait for; raises if the device has
            failed and may never notify.
    """

    start: Callable[[int, int], bool]
    ended: Callable[[], bool]


@dataclass(frozen=True, slots=True)
class Sleep:
    """Wait for a number of seconds, 0 or more."""

    seconds: float


class WaitQueue(Protocol):
    """A first-come first-served queue, as one waiter sees it. No method blocks."""

    def join(self, notify: Callable[[], object], until: Deadline) -> bool:
        """Queue up; return whether ``notify`` will be called, once, on any thread, perhaps already.

        If not, it is the waiter's turn. Raises what the steps get, if the queue is closed or ``until`` has passed.
        """

    def give_up(self) -> None:
        """Leave because the time is over. Raises what the steps get, unless the waiter's turn came before."""

    def abandon(self) -> None:
        """Leave because the guest has ended; a turn that came before passes to the next waiter."""


@dataclass(frozen=True, slots=True)
class QueueWait:
    """Wait for one's turn in a queue, at most until a deadline."""

    line: WaitQueue
    until: Deadline


@dataclass(frozen=True, slots=True)
class BlockingCall:
    """Wait for a function that blocks or takes long, run on another thread; the steps get its result or exception."""

    function: Callable[[], Any]


def elsewhere(body: Callable[..., _R], *params: object) -> Generator[BlockingCall, Any, _R]:
    """Wait for a function that blocks or takes long; return its result."""
    answer: _R = yield BlockingCall(partial(body, *params))
    return answer


Wait = DeviceWait | Sleep | QueueWait | BlockingCall
Answer = int | float | None
Steps = Generator[Wait, Any, Answer]
"""A host function that waits: it yields each wait, receives the wait's result, and returns the answer."""
