"""`SliceBudget`: how long guests may run on an event loop's thread.

Most guests end within microseconds, and a thread would cost more than everything else. So an event loop's thread runs a
guest itself, for a slice of half a millisecond. It loses a tenth of its time at most to slices that were used up,
beside 20 ms at once; past that it begins no guest for a while. A function whose last guests ran long is not begun here.

A guest of a module without imports has no effect but its results. It gets a quarter of a millisecond without being a
fiber, at half of a fiber's cost; past that it is ended, and called anew elsewhere.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from tensorwasm.errors import InvokeTimeout
from tensorwasm.guest.reactor.preemption_timer import LEAST_NS, SLICE_NS, PreemptionTimer, find_timer, run_first_slice

if TYPE_CHECKING:
    from tensorwasm.guest.engine.engine import Engine
    from tensorwasm.guest.reactor.task import Sandbox
    from tensorwasm.runtime.invoke.deployed_module import DeployedModule
    from tensorwasm.runtime.invoke.invocation import Invocation
    from tensorwasm.runtime.invoke.one_shot import OneShotPlan

COOL_DOWN: Final = 9
"""Pause after an exhausted slice, as a multiple of it, once nothing is left of `SPARE_NS`."""

SPARE_NS: Final = 40 * SLICE_NS
"""What a loop may lose at once to exhausted slices, if it has lost nothing for `COOL_DOWN` times as long: a short guest
takes long now and then, and a pause after that would send all others elsewhere."""

LATE_CALLS: Final = 6
"""Calls of a module, one after the other, that are ended before it is marked as one that runs long. A virtual machine
counts time that it did not have: of a short guest, two in a row are ended every few seconds under full load."""

SHORT_CALLS: Final = 32
"""Calls of a module that end in time for each one that may be ended and made again at once: were it made elsewhere, it
would wait there for a processor, and what is lost by it would send the calls of others elsewhere, too."""

MOST_SHORT: Final = 8 * SHORT_CALLS
"""Most of them that count."""

LITTLE_NS: Final = SLICE_NS // 2
"""Below this, elapsed time is used and the CPU clock is not read."""

ONE_SHOT_NS: Final = LEAST_NS
"""Slice of a guest that is not a fiber. No timer fires earlier, so when one fires, the guest has had its slice."""

LATEST_NS: Final = 2_000_000
"""Longest delay of that timer. Setting it costs as much as such a call, so one setting serves all calls until then."""

_of_thread: Final = threading.local()


class SliceBudget:
    """The time that one thread has for guests that begin on it.

    A slice is measured by the thread's processor time, `spent_ns`: a thread that is not scheduled holds nothing up.
    """

    def __init__(
        self, now_ns: Callable[[], int] = time.monotonic_ns, spent_ns: Callable[[], int] = time.thread_time_ns
    ) -> None:
        self._now_ns = now_ns
        self._spent_ns = spent_ns
        self._free_ns = 0
        self._engine: Engine | None = None  # of the last call in one step, and the thread's timer for it
        self._alarm: PreemptionTimer | None = None

    @property
    def free(self) -> bool:
        """Whether a guest may begin here now."""
        return self._now_ns() >= self._free_ns

    def run(self, fiber: Sandbox) -> bool:
        """Run a guest for a slice, with the GIL held; return whether its call has ended, or raise how it failed."""
        fiber.state.check()
        slice_ns = self._stopwatch()
        try:
            return run_first_slice(fiber, briefly=True, clock_ns=slice_ns)
        finally:
            if fiber.long:
                self._lose(slice_ns())

    def run_one_shot(self, module: DeployedModule, plan: OneShotPlan, args: Sequence[object]) -> Invocation | None:
        """Make a call that may be ended and made anew elsewhere, if there is time for it now; else return None.

        A module of which `LATE_CALLS` are ended, one after the other, is marked as one that runs long. A call that was
        ended because other threads had the processor, or of a module whose calls are short, is made again.
        """
        if module.engine is not self._engine:
            self._engine, self._alarm = module.engine, find_timer(module.engine, LATEST_NS)
        alarm = self._alarm
        for _ in range(2):
            now_ns = self._now_ns()
            if alarm is None or now_ns < self._free_ns:
                return None
            alarm.set(now_ns)
            spare = module.short >= SHORT_CALLS
            before_ns = 0 if spare else self._spent_ns()  # a system call
            try:
                outcome = plan.invoke_pure(args, now_ns, now_ns + ONE_SHOT_NS)
            except InvokeTimeout:
                if spare:
                    module.short -= SHORT_CALLS
                elif (spent_ns := self._spent_ns() - before_ns) >= ONE_SHOT_NS // 2:
                    module.late += 1
                    module.long = module.late >= LATE_CALLS
                    self._lose(spent_ns)
                    return None
            else:
                module.late = 0
                if module.short < MOST_SHORT:
                    module.short += 1
                return outcome
            finally:
                if not alarm.busy:
                    alarm.rest()
        return None

    def _lose(self, lost_ns: int) -> None:
        """Note a slice that was used up."""
        least_ns = self._now_ns() - COOL_DOWN * SPARE_NS
        self._free_ns = max(self._free_ns, least_ns) + COOL_DOWN * lost_ns

    def _stopwatch(self) -> Callable[[], int]:
        """Return a function that reads the thread's processor time since now.

        Elapsed time bounds it from above, and costs less to read: it is returned while it is little.
        """
        now_ns, spent_ns = self._now_ns, self._spent_ns
        began_ns, before_ns = now_ns(), spent_ns()

        def read_ns() -> int:
            passed_ns = now_ns() - began_ns
            return passed_ns if passed_ns < LITTLE_NS else spent_ns() - before_ns

        return read_ns


def slice_budget() -> SliceBudget:
    """Return the calling thread's budget."""
    try:
        found: SliceBudget = _of_thread.budget
    except AttributeError:
        found = _of_thread.budget = SliceBudget()
    return found
