"""``wasi:scheduler/host``: how much time a call has left. Its compiled form is in `guest.native.scheduler`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from tensorwasm.guest.imports.abi import UNBOUNDED_MS, YIELD_NEAR_MS, YieldVerdict
from tensorwasm.guest.imports.host_function import HostCall

_MILLISECOND_NS: Final = 1_000_000


def yield_(call: HostCall) -> int:
    """Return a `YieldVerdict`."""
    left_ns = _remaining_ns(call)
    if left_ns is None:
        return YieldVerdict.CONTINUE
    if left_ns <= 0:
        return YieldVerdict.STOP
    return YieldVerdict.DEADLINE_NEAR if left_ns < YIELD_NEAR_MS * _MILLISECOND_NS else YieldVerdict.CONTINUE


def deadline_remaining_ms(call: HostCall) -> int:
    """Return whole milliseconds left, as the signed number that a Wasm i32 is."""
    left_ns = _remaining_ns(call)
    if left_ns is None:
        return _signed(UNBOUNDED_MS)
    return _signed(min(max(left_ns, 0) // _MILLISECOND_NS, UNBOUNDED_MS - 1))


def _remaining_ns(call: HostCall) -> int | None:
    """Return nanoseconds left, negative after the deadline, None without one; integers, as in the compiled form."""
    at_ns = call.deadline.at_ns
    return None if at_ns is None else at_ns - time.monotonic_ns()


def _signed(value: int) -> int:
    return value - (1 << 32) if value >> 31 else value


BODIES: Final[dict[str, Callable[..., int]]] = {
    "yield": yield_,
    "deadline-remaining-ms": deadline_remaining_ms,
}
"""Bodies by import field."""
