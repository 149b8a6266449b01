"""The compiled scheduler: ``yield`` and ``deadline-remaining-ms``. Their fallbacks are in `guest.imports.call`."""

from __future__ import annotations

from tensorwasm.guest.native.checks import answer, begin, call_fallback, compiled, now_ns
from tensorwasm.guest.native.intrinsics import load_u64
from tensorwasm.guest.native.layout import (
    MILLISECOND_NS,
    NO_DEADLINE_NS,
    ONE,
    SESSION,
    UNBOUNDED_MS,
    VERDICT,
    YIELD_NEAR_NS,
    ZERO,
)


@compiled
def remaining_ns(env: int, session: int) -> int:
    """Return how much time the call has left; all bits without a deadline."""
    deadline_ns = load_u64(session + SESSION.deadline_ns)
    if deadline_ns == NO_DEADLINE_NS:
        return NO_DEADLINE_NS
    now = now_ns(env, session)
    return deadline_ns - now if now < deadline_ns else ZERO


def yield_(env: int, caller: int, cells: int, count: int) -> int:
    """Answer a `YieldVerdict`."""
    first, _, session = begin(env, caller, cells, VERDICT.STOP)
    if load_u64(session + SESSION.scratch) == ZERO:
        return call_fallback(env, caller, cells, count, first)
    left = remaining_ns(env, session)
    if left == ZERO:
        return answer(cells, VERDICT.STOP)
    return answer(cells, VERDICT.DEADLINE_NEAR if left < YIELD_NEAR_NS else VERDICT.CONTINUE)


def deadline_remaining_ms(env: int, caller: int, cells: int, count: int) -> int:
    """Answer whole milliseconds left."""
    first, _, session = begin(env, caller, cells, ZERO)
    if load_u64(session + SESSION.scratch) == ZERO:
        return call_fallback(env, caller, cells, count, first)
    left = remaining_ns(env, session)
    if left == NO_DEADLINE_NS:
        return answer(cells, UNBOUNDED_MS)
    return answer(cells, min(left // MILLISECOND_NS, UNBOUNDED_MS - ONE))
