"""What is counted of regions, and the spans of a call's time that are recorded if someone asks for them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from tensorwasm.offload.codegen.sizes import ReadyPlan
from tensorwasm.offload.plan_cache import PlanRefusal

MOST_SPANS: Final = 20_000
"""Of a log; later ones count in its totals only."""


@dataclass(slots=True)
class RegionStatistics:
    """What became of one region's guard."""

    taken: int = 0
    declined: Counter[PlanRefusal] = field(default_factory=Counter)
    planned_s: float = 0.0  # to look for plans and to make them
    taken_s: float = 0.0  # of the runs that were taken
    moved_bytes: int = 0  # copied for them
    compared: int = 0  # runs that were made in the guest too

    def add(self, other: RegionStatistics) -> None:
        """Add another instance's."""
        self.taken += other.taken
        self.declined += other.declined
        self.planned_s += other.planned_s
        self.taken_s += other.taken_s
        self.moved_bytes += other.moved_bytes
        self.compared += other.compared


class SpanKind(Enum):
    """What happens in a span, and the unit of its amount."""

    PLAN = "plan making", ""
    COPY_IN = "copies in", "bytes"
    RUN = "kernels", "launches"
    COPY_OUT = "copies out", "bytes"
    GUEST = "region in the guest", ""

    def __init__(self, title: str, unit: str) -> None:
        self.title = title
        self.unit = unit


@dataclass(slots=True)
class OffloadSpan:
    """A part of a call's time that a region takes, on the clock of `time.perf_counter_ns`.

    Attributes:
        amount: in the kind's unit.
        detail: how a plan was made, or why the region runs in the guest.
        own_ns: its length without that of other spans in it.
    """

    kind: SpanKind
    region: int
    began_ns: int
    ended_ns: int
    amount: int = 0
    detail: str = ""
    own_ns: int = 0


@dataclass(slots=True)
class SpanTotal:
    """All spans of one kind and region."""

    count: int = 0
    own_ns: int = 0
    amount: int = 0


class SpanLog:
    """The spans of instances that do not run at the same time.

    Attributes:
        region: the one that runs, for spans of what runs it.
        spans: the first ones, by their ends.
        totals: of all spans.
    """

    def __init__(self) -> None:
        self.region = 0
        self.spans: list[OffloadSpan] = []
        self.totals: dict[tuple[SpanKind, int], SpanTotal] = {}
        self._open: list[OffloadSpan] = []  # regions that run in the guest, each in the one before it
        self._within: list[int] = []  # length of other spans in each

    def add(self, span: OffloadSpan) -> None:
        """Take a span that has ended; those in it have been taken before."""
        length_ns = span.ended_ns - span.began_ns
        if self._within:
            self._within[-1] += length_ns
        span.own_ns = span.own_ns or length_ns
        total = self.totals.setdefault((span.kind, span.region), SpanTotal())
        total.count += 1
        total.own_ns += span.own_ns
        total.amount += span.amount
        if len(self.spans) < MOST_SPANS:
            self.spans.append(span)

    @contextmanager
    def measure(self, kind: SpanKind) -> Iterator[OffloadSpan]:
        """Take the span of a block, of the region that runs; its amount can be set in the block."""
        now_ns = time.perf_counter_ns()
        span = OffloadSpan(kind, self.region, now_ns, now_ns)
        try:
            yield span
        finally:
            span.ended_ns = time.perf_counter_ns()
            self.add(span)

    def add_plan(self, region: int, began_ns: int, ended_ns: int, plan: ReadyPlan[Any] | PlanRefusal) -> None:
        """Take the span of the search for a plan, which was made then if that took as long as the making."""
        span = OffloadSpan(SpanKind.PLAN, region, began_ns, ended_ns)
        if isinstance(plan, PlanRefusal):
            span.detail = plan.words
        elif 0 < plan.analysed_ns + plan.compiled_ns <= ended_ns - began_ns:
            span.detail = f"isl {plan.analysed_ns / 1e6:.1f} ms, LLVM {plan.compiled_ns / 1e6:.1f} ms"
        self.add(span)

    def enter_guest(self, region: int, detail: str) -> None:
        """Begin the span of a region that runs in the guest."""
        now_ns = time.perf_counter_ns()
        self._open.append(OffloadSpan(SpanKind.GUEST, region, now_ns, now_ns, detail=detail))
        self._within.append(0)

    def is_in_guest(self, region: int) -> bool:
        """Return whether a region runs in the guest."""
        return any(span.region == region for span in self._open)

    def leave_guest(self) -> None:
        """End the span of the innermost region that runs in the guest."""
        span, within_ns = self._open.pop(), self._within.pop()
        span.ended_ns = time.perf_counter_ns()
        span.own_ns = span.ended_ns - span.began_ns - within_ns
        self.add(span)

    def abandon_guest(self) -> None:
        """Take what runs in the guest as ended there: the instance is gone."""
        while self._open:
            self.leave_guest()


def measured(log: SpanLog | None, kind: SpanKind) -> AbstractContextManager[OffloadSpan | None]:
    """Take the span of a block, if there is a log."""
    return nullcontext() if log is None else log.measure(kind)
