"""Guards: the host functions in front of regions, and what they do for one instance.

A guard that declines gives everything back as it was, and the region runs as WebAssembly.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar, cast

from tensorwasm.errors import InternalError
from tensorwasm.guest.imports.host_function import HostCall, HostFunction, ValType
from tensorwasm.guest.imports.offload import SERVICE
from tensorwasm.guest.imports.offload.recording import RegionStatistics, SpanLog
from tensorwasm.guest.imports.offload.shadow import KeptRanges, ShadowRun, ShadowSampler
from tensorwasm.offload.analysis.regions import LoopRegion
from tensorwasm.offload.codegen.sizes import ReadyPlan
from tensorwasm.offload.costs import PollPace, RegionCosts, RunPlace
from tensorwasm.offload.cut import COMPARED, INTERFACE, LONG, OFF, ON, guard_name, guard_signature
from tensorwasm.offload.declined import Declined, DeclineReason
from tensorwasm.offload.plan_cache import NOT_READY, PlanCache, PlanKey, PlanRefusal
from tensorwasm.offload.polling import BUDGET, POLL
from tensorwasm.values import MOST_MISMATCHES, Deadline, OffloadUse

if TYPE_CHECKING:
    from tensorwasm.gpu.session import SessionStatistics
    from tensorwasm.guest.memory.linear_memory import GuestMemory

INTEGERS: Final = frozenset({"i32", "i64"})
"""Types of inputs that a plan holds for one value of."""
MOST_NANS: Final = 3
"""Runs of a plan that end with a NaN, before the plan is not used any more."""

MOST_DECLINES: Final = 256
DECLINES_FOR_ONE: Final = 16
"""A guard is off for the rest of an instance after so many declines, and so many more for each region that it ran."""
ASK_EVERY_NS: Final = 500_000
"""Beyond `MOST_DECLINES` a guard may be called so often while code is made: that costs one percent of the time."""

DECLINES_FOR_SLOW: Final = 16
"""A run that is not worth it counts as so many declines."""

_DIFFERED: Final = PlanRefusal(DeclineReason.DIFFERED)
_BUSY: Final = PlanRefusal(DeclineReason.BUSY)
_NOT_WORTH: Final = PlanRefusal(DeclineReason.NOT_WORTH)
_BITS: Final[Mapping[str, int]] = {"i32": 32, "f32": 32, "i64": 64, "f64": 64}

_Types = tuple[ValType, ...]
_Plan = TypeVar("_Plan", bound=ReadyPlan[Any])
_Plan_contra = TypeVar("_Plan_contra", contravariant=True)


class OffloadTarget(Protocol[_Plan_contra]):
    """Where plans of one instance run."""

    moved_bytes: int
    """Copied to and from the place, in all runs."""

    def run(
        self, plan: _Plan_contra, inputs: Mapping[int, int], call: HostCall, kept: KeptRanges | None = None
    ) -> Mapping[int, int]:
        """Run a plan on the memory of a guest; return the bits of the region's outputs, by local.

        Args:
            plan: what to run.
            inputs: the bits of the region's inputs, by local.
            call: the guest's.
            kept: takes what would be written instead of the memory.

        Raises:
            Declined: it did not run; the memory is as it was.
            InvokeTimeout: the deadline has passed; what the memory holds is open.
        """

    def stop(self) -> None:
        """Stop kernels that run; called on any thread."""

    def statistics(self) -> SessionStatistics | None:
        """Return what was used of a device, None for nothing."""


class OffloadService(Generic[_Plan]):
    """The guards' work for one instance. Used by one thread at a time.

    Args:
        regions: of the module.
        plans: of the regions.
        target: where they run.
        sampler: says which runs are compared.
        costs: say which runs are worth it; without them all are.

    Attributes:
        statistics: of each region.
        pace: says when the guest polls.
        mismatches: evidence of each run that differed.
        is_busy: returns whether work that the guest has begun may reach its memory: then all regions run in the guest.
        stop: stops kernels that run; for any thread.
        device_statistics: returns what was used of a device, None for nothing.
        drain: called before the instance's memory goes; returns whether the target reaches it no more. None if it does
            so in calls only.
        spans: where spans of time are recorded, those of declined regions too; None to record nothing.
    """

    def __init__(
        self,
        regions: Sequence[LoopRegion],
        plans: PlanCache[Any, _Plan],
        target: OffloadTarget[_Plan],
        sampler: ShadowSampler,
        costs: RegionCosts | None = None,
        drain: Callable[[], bool] | None = None,
        spans: SpanLog | None = None,
    ) -> None:
        self.drain = drain
        self._spans = spans
        self.statistics = [RegionStatistics() for _ in regions]
        self._regions = regions
        self._plans = plans
        self.pace = PollPace()
        self._target = target
        self._sampler = sampler
        self._shadow: ShadowRun | None = None
        self.mismatches: list[str] = []
        self.is_busy: Callable[[], bool] | None = None
        self.stop = target.stop
        self.device_statistics = target.statistics
        self._costs = costs
        self._measured: dict[int, tuple[int, int]] = {}  # work and beginning of runs in the guest, by region
        self._nans: Counter[PlanKey] = Counter()
        self._left = [MOST_DECLINES for _ in regions]  # declines of each guard until it is off
        self._asked: Counter[int] = Counter()  # how often each was called while its code was being made
        self._first_asked_ns: dict[int, int] = {}
        self._around = _around(regions)
        self._pending: set[int] = set()  # regions whose plans were not ready when they were last asked for

    def is_off(self, number: int) -> bool:
        """Return whether the guard of a region need not be called any more: it nearly always declines."""
        return self._left[number] <= 0 or self._sampler.is_off(number)

    def state(self, number: int) -> int:
        """Return what a guard says of its region besides whether it has run: `ON`, `OFF`, `COMPARED` or `LONG`."""
        if self.compares(number) or number in self._measured or self._is_watched(number):
            return COMPARED
        if self.is_off(number):
            return OFF
        is_timed = self._costs is not None and self._costs.choose(number, 0) is RunPlace.GUEST
        return LONG if is_timed else ON

    def compares(self, number: int) -> bool:
        """Return whether a region runs in the guest, to be compared."""
        return self._shadow is not None and self._shadow.number == number

    def _is_watched(self, number: int) -> bool:
        return self._spans is not None and self._spans.is_in_guest(number)

    def compare(self, values: Sequence[int], memory: GuestMemory | None) -> None:
        """Compare a region that has run in the guest with the same elsewhere.

        Args:
            values: bits of its inputs, among them its outputs, and globals.
            memory: the guest's, None if the region has trapped.
        """
        shadow, self._shadow = self._shadow, None
        if shadow is None:
            return
        outputs = [] if memory is None else _outputs(shadow.region, values)
        evidence = shadow.evidence(self._sampler, outputs, memory)
        if evidence:
            self._sampler.switch_off(shadow.number, evidence)
            self.mismatches.append(evidence)

    def use(self) -> OffloadUse:
        """Return what became of all regions together."""
        total = RegionStatistics()
        for each in self.statistics:
            total.add(each)
        declined: Counter[str] = Counter()
        for refusal, count in total.declined.items():
            declined[refusal.reason.name.lower()] += count
        return OffloadUse(
            total.taken,
            total.compared,
            total.taken_s,
            total.moved_bytes,
            tuple(sorted(declined.items())),
            tuple(self.mismatches[:MOST_MISMATCHES]),
        )

    def has_ended(self, number: int) -> bool:
        """Return whether a guard is called at the end of a run in the guest that is measured, which ends with that."""
        measured, watched = self._measured.pop(number, None), self._is_watched(number)
        if measured is not None and self._costs is not None:
            work, began_ns = measured
            self._costs.note_guest(number, work, time.perf_counter_ns() - began_ns)
        if self._spans is not None and watched:
            self._spans.leave_guest()
        return measured is not None or watched

    def run(self, number: int, values: Sequence[int], call: HostCall) -> list[int] | None:
        """Run a region in another place; return the bits of its outputs, None if it is to run as it is.

        Args:
            number: of the region.
            values: bits of its inputs and globals. All bits are those of signed numbers.
            call: the guest's.
        """
        refused = self._refusal(number)
        if refused is not None:
            self._decline(number, refused)
            return None
        began_ns = time.perf_counter_ns()
        key = PlanKey(number, _integers(self._regions[number], values), call.memory.size_bytes)
        plan = self._find(key, call.deadline)
        found_ns = time.perf_counter_ns()
        self.statistics[number].planned_s += (found_ns - began_ns) * 1e-9
        if self._spans is not None:
            self._spans.add_plan(number, began_ns, found_ns, plan)
        if isinstance(plan, PlanRefusal):
            self._count_decline(number, plan, began_ns)
            self._decline(number, plan)
            return None
        if self._is_faster_here(number, self._work(plan)):
            self._decline(number, _NOT_WORTH)
            return None
        return self._run_elsewhere(key, plan, values, call)

    def _work(self, plan: _Plan) -> int:
        return 0 if self._costs is None else plan.program.arguments.work

    def _run_elsewhere(self, key: PlanKey, plan: _Plan, values: Sequence[int], call: HostCall) -> list[int] | None:
        number, began_ns = key.region, time.perf_counter_ns()
        region, statistics = self._regions[number], self.statistics[number]
        if self._spans is not None:
            self._spans.region = number
        moved_bytes = self._target.moved_bytes
        kept: KeptRanges | None = [] if self._sampler.is_due(number) else None
        try:
            results = self._target.run(plan, _inputs(region, values), call, kept)
        except Declined as declined:
            self._note(key, PlanRefusal(declined.reason, declined.detail))
            return None
        if kept is not None:
            statistics.compared += 1
            if self._spans is not None:
                self._spans.enter_guest(number, "compared")
            self._shadow = ShadowRun(number, key, region, values, _outputs(region, values, results), kept)
            return None
        statistics.taken += 1
        self._left[number] += DECLINES_FOR_ONE
        taken_ns = time.perf_counter_ns() - began_ns
        if self._costs is not None:
            self._costs.note_elsewhere(number, self._work(plan), taken_ns)
        statistics.taken_s += taken_ns * 1e-9
        statistics.moved_bytes += self._target.moved_bytes - moved_bytes
        return _outputs(region, values, results)

    def _refusal(self, number: int) -> PlanRefusal | None:
        """Return why a region is not looked at now."""
        around = self._around[number]
        if self._sampler.is_off(number) or (around is not None and self._sampler.is_off(around)):
            return _DIFFERED
        if self._shadow is not None:  # nothing in a region that is compared runs elsewhere
            return NOT_READY
        return _BUSY if self.is_busy is not None and self.is_busy() else None

    def _find(self, key: PlanKey, deadline: Deadline) -> _Plan | PlanRefusal:
        """Return a plan of a region; none is asked for while that of the region around it is made."""
        around = self._around[key.region]
        if around is not None and around in self._pending and not self.is_off(around):
            return NOT_READY
        plan = self._plans.find(key, deadline)
        if plan is NOT_READY:
            self._pending.add(key.region)
        else:
            self._pending.discard(key.region)
        return plan

    def _count_decline(self, number: int, refusal: PlanRefusal, now_ns: int) -> None:
        """Bring a guard nearer to being off; asking for what is being made does so only as far as it costs much."""
        if refusal is NOT_READY:
            self._asked[number] += 1
            first_ns = self._first_asked_ns.setdefault(number, now_ns)
            if self._asked[number] <= MOST_DECLINES + (now_ns - first_ns) // ASK_EVERY_NS:
                return
        self._left[number] -= 1

    def _is_faster_here(self, number: int, work: int) -> bool:
        place = RunPlace.ELSEWHERE if self._costs is None else self._costs.choose(number, work)
        if place is RunPlace.ELSEWHERE:
            return False
        if place is RunPlace.MEASURED_GUEST:
            self._measured[number] = work, time.perf_counter_ns()
        else:
            self._left[number] -= DECLINES_FOR_SLOW
        return True

    def _note(self, key: PlanKey, refusal: PlanRefusal) -> None:
        """Count a run that was declined, and remember it unless the next one may be taken."""
        self._decline(key.region, refusal)
        if refusal.reason is DeclineReason.NOT_A_NUMBER:
            self._nans[key] += 1
            if self._nans[key] < MOST_NANS:
                return
        self._plans.refuse(key, refusal)

    def _decline(self, number: int, refusal: PlanRefusal) -> None:
        """Count a region that runs as it is."""
        self.statistics[number].declined[refusal] += 1
        if self._spans is not None:
            self._spans.enter_guest(number, refusal.words)


def _around(regions: Sequence[LoopRegion]) -> list[int | None]:
    """Return for each region the number of the one that it is in, which comes before it; None if there is none."""
    found: list[int | None] = []
    outer: int | None = None
    for number, region in enumerate(regions):
        if outer is not None and (regions[outer].function, regions[outer].end) < (region.function, region.end):
            outer = None
        found.append(outer)
        if region.parts > 1:
            outer = number
    return found


def _integers(region: LoopRegion, values: Sequence[int]) -> tuple[int, ...]:
    pairs = zip((*region.inputs, *region.globals), values, strict=True)
    return tuple([value & ((1 << _BITS[kind]) - 1) for (_, kind), value in pairs if kind in INTEGERS])


def _inputs(region: LoopRegion, values: Sequence[int]) -> dict[int, int]:
    pairs = zip(region.inputs, values[: len(region.inputs)], strict=True)
    return {local: value & ((1 << _BITS[kind]) - 1) for (local, kind), value in pairs}


def _outputs(region: LoopRegion, values: Sequence[int], results: Mapping[int, int] = MappingProxyType({})) -> list[int]:
    """Return the bits of a region's outputs, which are those of its inputs where there is no result."""
    places = {local: place for place, (local, _) in enumerate(region.inputs)}
    return [
        _signed(results[local], _BITS[kind]) if local in results else values[places[local]]
        for local, kind in region.outputs
    ]


def _signed(bits: int, width: int) -> int:
    return bits - (1 << width) if bits >> (width - 1) else bits


def make_guards(regions: Sequence[LoopRegion]) -> tuple[HostFunction, ...]:
    """Return the guards of a module's regions, and what its code polls."""
    return (*(_make_guard(number, region) for number, region in enumerate(regions)), _POLL)


def _poll(call: HostCall) -> int:
    call.check()
    service = call.service(SERVICE)
    return service.pace.next() if isinstance(service, OffloadService) else BUDGET


_POLL: Final = HostFunction(INTERFACE, POLL, (), ("i32",), _poll)


def _make_guard(number: int, region: LoopRegion) -> HostFunction:
    signature = guard_signature(region)
    places = {local: place for place, (local, _) in enumerate(region.inputs)}
    returned = [places[local] for local, _ in region.outputs]

    def guard(call: HostCall, *values: int) -> tuple[int, ...]:
        service = call.service(SERVICE)
        if service is not None and not isinstance(service, OffloadService):
            raise InternalError("the service offload is not an OffloadService")
        given = [values[place] for place in returned]
        if service is None:
            return (0, OFF, *given)
        if service.compares(number):
            service.compare(values, call.memory)
            service.has_ended(number)
            return (1, service.state(number), *given)
        if service.has_ended(number):
            return (1, service.state(number), *given)
        results = service.run(number, values, call)
        if results is None:
            return (0, service.state(number), *given)
        return (1, service.state(number), *results)

    params, results = cast("_Types", signature.params), cast("_Types", signature.results)
    return HostFunction(INTERFACE, guard_name(number), params, results, guard)
