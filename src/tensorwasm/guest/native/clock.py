"""The compiled scheduler: ``yield`` and ``deadline-remaining-ms``. Their twins are in `guest.imports.scheduler`."""

from __future__ import annotations

from tensorwasm.guest.native.checks import call_twin, compiled, find_context, find_pad, now_ns, preset
from tensorwasm.guest.native.intrinsics import load_u64, store_u64
from tensorwasm.guest.native.layout import (
    GO_ON,
    MILLISECOND_NS,
    NEAR,
    NO_DEADLINE_NS,
    ONE,
    PAD,
    STOPPED,
    UNBOUNDED_MS,
    YIELD_NEAR_NS,
    ZERO,
)


@compiled
def remaining_ns(env: int, pad: int) -> int:
    """Return how much time the call has left; all bits without a deadline."""
    deadline_ns = load_u64(pad + PAD.deadline_ns)
    if deadline_ns == NO_DEADLINE_NS:
        return NO_DEADLINE_NS
    now = now_ns(env, pad)
    return deadline_ns - now if now < deadline_ns else ZERO


def yield_(env: int, caller: int, cells: int, count: int) -> int:
    """Answer how the guest should go on."""
    first = preset(cells, STOPPED)
    pad = find_pad(env, find_context(env, caller))
    if load_u64(pad + PAD.scratch) == ZERO:
        return call_twin(env, caller, cells, count, first)
    left = remaining_ns(env, pad)
    verdict = GO_ON
    if left == ZERO:
        verdict = STOPPED
    elif left < YIELD_NEAR_NS:
        verdict = NEAR
    store_u64(cells, verdict)
    return ZERO


def deadline_remaining_ms(env: int, caller: int, cells: int, count: int) -> int:
    """Answer how many whole milliseconds are left."""
    first = preset(cells, ZERO)
    pad = find_pad(env, find_context(env, caller))
    if load_u64(pad + PAD.scratch) == ZERO:
        return call_twin(env, caller, cells, count, first)
    left = remaining_ns(env, pad)
    answer = UNBOUNDED_MS
    if left != NO_DEADLINE_NS:
        answer = min(left // MILLISECOND_NS, UNBOUNDED_MS - ONE)
    store_u64(cells, answer)
    return ZERO
