"""The quickest way into a function, on an event loop's thread: a visit, which cannot be suspended, only ended.

It is for modules that import nothing. What their guests do nobody sees but by their results, so one that takes too long
is ended and called anew in another way, and that was all. It costs half of what a fiber does.

A guest gets a quarter of a millisecond, or what is left until the alarm of those before it, two at most. After one that
used that up the thread begins none in this way for nine times as long, as `tensorwasm.runtime.loop` has it for those
that begin as fibers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from tensorwasm.errors import InvokeTimeout
from tensorwasm.guest.native.loading import load_visit
from tensorwasm.guest.reactor.preemption_timer import LEAST_NS, find_alarm
from tensorwasm.runtime.loop import REST, place
from tensorwasm.runtime.request import NOTHING
from tensorwasm.runtime.route import find_route
from tensorwasm.values import Deadline

if TYPE_CHECKING:
    from tensorwasm.runtime.function import Function
    from tensorwasm.runtime.invocation import Invocation

SPRINT_NS: Final = LEAST_NS
"""What a guest may have: an alarm never goes off before that, so that it ends the guest when it does."""

ALARM_NS: Final = 2_000_000
"""When the alarm goes off at the latest. Setting it costs as much as a sprint: it serves all that begin until then."""

_of_thread: Final = threading.local()


def prepare_sprint(function: Function) -> None:
    """Load the compiled code that the first sprint would wait for. Blocks for as long."""
    if function.pure:
        load_visit()


def sprint(function: Function, export: str | None, args: Sequence[object], tenant: str) -> Invocation | None:
    """Call a function on this thread, if it can be called unnoticed and the thread has time.

    Args:
        function: what to call.
        export: as in `tensorwasm.runtime.Function.invoke`.
        args: likewise.
        tenant: likewise.

    Returns:
        What came of it; None if it has to be called in another way. `Function.long` is set if that is because its guest
        had the processor for too long.

    Raises:
        TensorWasmError: what `tensorwasm.runtime.Function.invoke` raises, but `InvokeTimeout`.
    """
    if function.long or not function.pure:
        return None
    alarm, now_ns = find_alarm(function.engine, ALARM_NS), time.monotonic_ns()
    if alarm is None or now_ns < getattr(_of_thread, "free_ns", 0) or not place().free:
        return None
    route = find_route(function, export, NOTHING, tenant, None)
    if route is None:
        return None
    alarm.set(now_ns)
    before_ns = time.thread_time_ns()
    try:
        return route.invoke(args, b"", None, Deadline(now_ns + SPRINT_NS))
    except InvokeTimeout:
        spent_ns = time.thread_time_ns() - before_ns
        if spent_ns >= SPRINT_NS // 2:  # else others had the processor, which says nothing of this guest
            function.long = True
            _of_thread.free_ns = time.monotonic_ns() + REST * spent_ns
        return None
    finally:
        alarm.rest()
