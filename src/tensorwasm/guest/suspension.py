"""How a guest's call into the host suspends its fiber: what compiled code leaves behind, and what is waited for.

A host function that may wait is an asynchronous function to wasmtime. Its entry is compiled
(`tensorwasm.guest.native.waiting`): it copies the parameters into the sandbox's pad and returns, and wasmtime suspends
the fiber. So no Python frame is ever on a fiber that is suspended. The reactor (`tensorwasm.guest.fibers`) then runs
the function's `Steps` off the fiber, and lets the guest go on with their answer.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Generator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

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
        count: parameters.
        result: kind of the result, a ``wasmtime_valkind_t``.
        fast: address of the compiled host function ``(env, caller, cells, count) -> trap`` to try first, or 0.
        fast_env: its ``env``, whose twin and finish are `tensorwasm.guest.native.waiting`'s, which only take notes.
        ready: address of the continuation.
        caller_context: ``wasmtime_caller_context``, and so on.
    """

    _fields_ = tuple(
        (name, _u64)
        for name in (
            "function",
            "count",
            "result",
            "fast",
            "fast_env",
            "ready",
            "caller_context",
            "context_get_data",
            "caller_export_get",
            "memory_data",
            "memory_data_size",
            "memory_name",
        )
    )


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
            whether it will be called, once, on any thread, perhaps already; if not, there is nothing to wait for.
    """

    start: Callable[[int, int], bool]


@dataclass(frozen=True, slots=True)
class Sleep:
    """Wait for a time.

    Attributes:
        seconds: how long, 0 or more.
    """

    seconds: float


@dataclass(frozen=True, slots=True)
class Work:
    """Wait for something that takes long or blocks, done on another thread.

    Attributes:
        function: what to do; what it returns or raises reaches the steps.
    """

    function: Callable[[], Any]


Wait = Signal | Sleep | Work
Answer = int | float | None
Steps = Generator[Wait, Any, Answer]
"""A host function that waits: it yields what it waits for, gets what came of it, and returns the answer."""
