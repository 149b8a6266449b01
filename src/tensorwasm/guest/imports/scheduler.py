"""``wasi:scheduler/host``: how much time a call has left."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from tensorwasm.guest.hostfunc import HostCall
from tensorwasm.guest.imports.abi import UNBOUNDED_MS, YIELD_NEAR_MS, YieldVerdict


def yield_(call: HostCall) -> int:
    """Return a `YieldVerdict`."""
    remaining_s = call.deadline.remaining_s()
    if remaining_s <= 0:
        return YieldVerdict.STOP
    return YieldVerdict.DEADLINE_NEAR if remaining_s * 1000 < YIELD_NEAR_MS else YieldVerdict.CONTINUE


def deadline_remaining_ms(call: HostCall) -> int:
    """Return whole milliseconds left, as the signed number that a Wasm i32 is."""
    remaining_s = call.deadline.remaining_s()
    if math.isinf(remaining_s):
        return _signed(UNBOUNDED_MS)
    return _signed(min(int(remaining_s * 1000), UNBOUNDED_MS - 1))


def _signed(value: int) -> int:
    return value - (1 << 32) if value >> 31 else value


BODIES: Final[dict[str, Callable[..., int]]] = {
    "yield": yield_,
    "deadline-remaining-ms": deadline_remaining_ms,
}
"""Bodies by import field."""
