"""What time tells: whether a region is faster elsewhere or in the guest, and when a guest is to poll again.

Runs are grouped by region and by the power of two of their work, which is an estimate of the accesses to memory. A
group begins elsewhere. Once that was measured, the region runs in the guest and is measured there too, unless it is
clear what comes of it; then the faster place is kept, and the other one is tried again, ever more seldom. The guest's
time for an access lies between two bounds, so that neither a region that takes the guest long nor one that is over
before a thread has started is tried in the wrong place.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from tensorwasm.offload.polling import BUDGET, FIRST_BUDGET

TARGET_NS: Final = 20_000_000
"""Between two polls, unless the whole budget takes less."""
LEAST_BUDGET: Final = 1 << 16
"""Some 20 us, or 6 ms."""
LEAST_NS: Final = 0.05
"""The guest takes no less for an access, if the work of a nest is right: it runs on one core."""
MOST_NS: Final = 20.0
"""The guest takes no more, but where each access misses all caches."""
ELSEWHERE_RUNS: Final = 2
"""Runs elsewhere before some in the guest; the first one is slower."""
GUEST_RUNS: Final = 2
"""Runs in the guest before places are compared: one alone may be slow by chance."""
WORTH: Final = 0.9
"""A place other than the guest is the faster one if it takes so much of its time, or less."""
FIRST_PATIENCE: Final = 64
MOST_PATIENCE: Final = 4096
"""Runs of a group before the slower place is tried again: doubled each time that it is the slower one still."""


class RunPlace(Enum):
    """Where a region is to run."""

    ELSEWHERE = "elsewhere"
    GUEST = "in the guest"
    MEASURED_GUEST = "in the guest, and its time is to be told"


@dataclass(slots=True)
class _Timing:
    runs: int = 0
    ns: float = 0.0  # for one access

    def note(self, ns: float) -> None:
        """Take a new time: at once if it is less, slowly if it is more."""
        self.ns = ns if not self.runs else min(ns, (3 * self.ns + ns) / 4)
        self.runs += 1


@dataclass(slots=True)
class _Group:
    elsewhere: _Timing = field(default_factory=_Timing)
    guest: _Timing = field(default_factory=_Timing)
    waited: int = 0  # decisions since the slower place was tried
    patience: int = FIRST_PATIENCE

    def choose(self, least_ns: float) -> RunPlace:
        if self.elsewhere.runs < ELSEWHERE_RUNS:
            return RunPlace.ELSEWHERE
        if self.guest.runs < GUEST_RUNS:
            if self.elsewhere.ns < least_ns:
                return RunPlace.ELSEWHERE
            return RunPlace.GUEST if self.elsewhere.ns > MOST_NS else RunPlace.MEASURED_GUEST
        is_faster = self.elsewhere.ns <= WORTH * self.guest.ns
        self.waited += 1
        if self.waited > self.patience:
            self.waited = 0
            self.patience = min(2 * self.patience, MOST_PATIENCE)
            return RunPlace.MEASURED_GUEST if is_faster else RunPlace.ELSEWHERE
        return RunPlace.ELSEWHERE if is_faster else RunPlace.GUEST


class RegionCosts:
    """What the runs of a module's regions took, for one kind of place. Thread-safe.

    Args:
        start_ns: what a run elsewhere takes at least; less where that was measured.
        least_ns: the guest takes no less for an access. It is not tried for what takes less elsewhere; 0 where no run
            can be so much faster that one in the guest is felt, because the work of a nest is an estimate.
    """

    def __init__(self, start_ns: float, least_ns: float = LEAST_NS) -> None:
        self._start_ns = start_ns
        self._least_ns = least_ns
        self._lock = threading.Lock()
        self._groups: dict[tuple[int, int], _Group] = {}

    def choose(self, region: int, work: int) -> RunPlace:
        """Return where a run of a region is to go."""
        with self._lock:
            if work * MOST_NS < self._start_ns:
                return RunPlace.GUEST
            return self._group(region, work).choose(self._least_ns)

    def note_elsewhere(self, region: int, work: int, taken_ns: int) -> None:
        """Take the time of a run elsewhere."""
        with self._lock:
            self._start_ns = min(self._start_ns, taken_ns)
            self._group(region, work).elsewhere.note(taken_ns / max(work, 1))

    def note_guest(self, region: int, work: int, taken_ns: int) -> None:
        """Take the time of a run in the guest."""
        with self._lock:
            self._group(region, work).guest.note(taken_ns / max(work, 1))

    def _group(self, region: int, work: int) -> _Group:
        return self._groups.setdefault((region, work.bit_length()), _Group())


class PollPace:
    """How many instructions an instance may run until it polls again, so that polls come in time.

    An instruction takes a third of a nanosecond, or a hundred if it misses all caches, and short functions count for
    less than they do. So a budget follows from what the one before has taken. Used by one thread at a time.
    """

    def __init__(self) -> None:
        self._budget = FIRST_BUDGET
        self._polled_ns = time.monotonic_ns()

    def next(self) -> int:
        """Return the next budget."""
        now_ns = time.monotonic_ns()
        taken_ns, self._polled_ns = max(now_ns - self._polled_ns, 1), now_ns
        self._budget = min(BUDGET, max(LEAST_BUDGET, self._budget * TARGET_NS // taken_ns))
        return self._budget
