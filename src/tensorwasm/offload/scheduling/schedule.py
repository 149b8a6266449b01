"""A parallel order of statements: which run in one kernel, over which axes, and what the host repeats.

Threads run the iterations that are theirs in the order of the nest, so that only axes that no dependence crosses are
sought, and no schedule has to be solved for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from tensorwasm.offload.declined import Declined, DeclineReason
from tensorwasm.offload.scheduling.axes import Axis, axes, fixed_dimensions, monotone_axes, within
from tensorwasm.offload.scheduling.dependences import Dependence
from tensorwasm.offload.scheduling.model import StatementModel

LAUNCH_COST: Final = 50
"""In iterations of a loop in a thread: about 5 µs."""

MAX_GRID: Final = 3

MAX_TRIALS: Final = 200
"""Of orders that are worked out for a nest."""


@dataclass(frozen=True, slots=True)
class PlannedKernel:
    """Statements that are launched at once, one thread for each combination of the values of the grid's axes."""

    statements: tuple[StatementModel, ...]
    hosts: tuple[Axis, ...]
    grid: tuple[Axis, ...]

    @property
    def cost(self) -> int:
        """Of the longest thread, and the launch."""
        fixed = (*self.hosts, *self.grid)
        return LAUNCH_COST + sum(each.iterations(fixed_dimensions(each, fixed)) for each in self.statements)

    @property
    def parallel(self) -> bool:
        """More than one thread."""
        return bool(self.grid)


@dataclass(frozen=True, slots=True)
class PlannedLoop:
    """What the host does for each value of an axis, in order; ``hosts`` are the axes of the loops around it."""

    axis: Axis
    hosts: tuple[Axis, ...]
    steps: tuple[PlannedLoop | PlannedKernel, ...]

    @property
    def cost(self) -> int:
        """Of all of it."""
        return self.axis.extent * sum(step.cost for step in self.steps)

    @property
    def parallel(self) -> bool:
        """A kernel in it is."""
        return any(step.parallel for step in self.steps)

    @property
    def statements(self) -> tuple[StatementModel, ...]:
        """All that run in it."""
        return tuple(each for step in self.steps for each in step.statements)


Step = PlannedLoop | PlannedKernel


def schedule(
    statements: Sequence[StatementModel],
    dependences: Sequence[Dependence],
    origins: Mapping[int, int] = MappingProxyType({}),
) -> tuple[Step, ...]:
    """An order that is parallel where one is found, and that of the nest elsewhere.

    Args:
        statements: what is to run.
        dependences: among them.
        origins: for each statement that is a part of one, by their numbers, what it is a part of. Parts are not put
            into one kernel: its threads would differ in what they do.

    Raises:
        Declined: it takes too many trials to find.
    """
    return _Trials(origins).arranged(tuple(statements), tuple(dependences), ())


def left_to_one_thread(steps: Iterable[Step]) -> int:
    """How many iterations of statements single threads run one after another."""
    total = 0
    for step in steps:
        if isinstance(step, PlannedLoop):
            total += step.axis.extent * left_to_one_thread(step.steps)
        elif not step.grid:
            total += step.cost - LAUNCH_COST
    return total


def sequential(steps: Iterable[Step]) -> set[StatementModel]:
    """The statements that one thread runs."""
    return {statement for kernel in kernels_in(steps) if not kernel.parallel for statement in kernel.statements}


def crowded(steps: Iterable[Step]) -> set[StatementModel]:
    """The statements of kernels of one thread, and of those of which a thread runs two loops in each other or more."""
    return {
        statement
        for kernel in kernels_in(steps)
        if not kernel.parallel or any(_loops_in_thread(each, kernel) > 1 for each in kernel.statements)
        for statement in kernel.statements
    }


def _loops_in_thread(statement: StatementModel, kernel: PlannedKernel) -> int:
    return len(statement.counters) - len(fixed_dimensions(statement, (*kernel.hosts, *kernel.grid)))


def kernels_in(steps: Iterable[Step]) -> Iterator[PlannedKernel]:
    """All kernels, in order."""
    for step in steps:
        if isinstance(step, PlannedLoop):
            yield from kernels_in(step.steps)
        else:
            yield step


class _Trials:
    """The search for an order, under a limit."""

    def __init__(self, origins: Mapping[int, int]) -> None:
        self._origins = origins
        self._left = MAX_TRIALS

    def arranged(
        self, statements: tuple[StatementModel, ...], dependences: tuple[Dependence, ...], hosts: tuple[Axis, ...]
    ) -> tuple[Step, ...]:
        """Kernels and loops in order, inside of loops of the host."""
        self._left -= 1
        if self._left < 0:
            raise Declined(DeclineReason.TOO_LARGE, "orders to try")
        kernels: list[PlannedKernel] = []
        for component in strong_components(statements, dependences):
            self._place(kernels, PlannedKernel(component, hosts, _grid(component, dependences, hosts)), dependences)
        placed, kernels = kernels, []
        for kernel in placed:  # once more, for those that lost axes after others were put beside them
            self._place(kernels, kernel, dependences)
        return _joined(step for kernel in kernels for step in self._peeled(kernel, dependences))

    def _place(self, kernels: list[PlannedKernel], new: PlannedKernel, dependences: tuple[Dependence, ...]) -> None:
        """Fuse a component with a kernel that may run it, where that costs no time, or put it last.

        What does not depend on one another is fused only if that keeps all axes: something that does may come later.
        """
        before = {each.source for each in dependences if each.target in new.statements}
        related = [not before.isdisjoint(kernel.statements) for kernel in kernels]
        for index in range(max((at for at, is_related in enumerate(related) if is_related), default=0), len(kernels)):
            old = kernels[index]
            statements = tuple(sorted((*old.statements, *new.statements), key=lambda each: each.order))
            fused = PlannedKernel(statements, new.hosts, _grid(statements, dependences, new.hosts))
            keeps_axes = len(fused.grid) >= max(len(old.grid), len(new.grid))
            if self._are_parts(old, new):
                continue
            if old.grid and fused.grid and (related[index] or keeps_axes) and fused.cost <= old.cost + new.cost:
                kernels[index] = fused
                return
        kernels.append(new)

    def _are_parts(self, old: PlannedKernel, new: PlannedKernel) -> bool:
        origins = [{self._origins.get(each.number) for each in kernel.statements} - {None} for kernel in (old, new)]
        return not origins[0].isdisjoint(origins[1])

    def _peeled(self, kernel: PlannedKernel, dependences: tuple[Dependence, ...]) -> tuple[Step, ...]:
        """The kernel itself if it is parallel or nothing in it is; else a loop of the host around what is in it.

        The outermost loop is tried first, and others only if that leaves something sequential.
        """
        best: PlannedLoop | None = None
        if not kernel.grid:
            inside = within(dependences, kernel.statements)
            for axis in monotone_axes(kernel.statements, inside, kernel.hosts):
                remaining = tuple(left for each in inside if (left := axis.uncarried(each)) is not None)
                loop = PlannedLoop(
                    axis, kernel.hosts, self.arranged(kernel.statements, remaining, (*kernel.hosts, axis))
                )
                if loop.parallel and (best is None or loop.cost < best.cost):
                    best = loop
                if best is not None and _all_parallel(best):
                    break
        return (kernel,) if best is None else (best,)


def _all_parallel(step: Step) -> bool:
    if isinstance(step, PlannedKernel):
        return step.parallel
    return all(_all_parallel(each) for each in step.steps)


def _joined(steps: Iterable[Step]) -> tuple[Step, ...]:
    """The steps with neighbouring kernels of one thread as one."""
    joined: list[Step] = []
    for step in steps:
        last = joined[-1] if joined else None
        if isinstance(step, PlannedKernel) and isinstance(last, PlannedKernel) and not (step.grid or last.grid):
            statements = tuple(sorted((*last.statements, *step.statements), key=lambda each: each.order))
            joined[-1] = PlannedKernel(statements, step.hosts, ())
        else:
            joined.append(step)
    return tuple(joined)


def _grid(
    statements: tuple[StatementModel, ...], dependences: tuple[Dependence, ...], hosts: tuple[Axis, ...]
) -> tuple[Axis, ...]:
    """Axes for a grid; the last is the one along which most accesses move least, for neighbouring threads."""
    found = axes(statements, within(dependences, statements), hosts)
    if not found:
        return ()
    last = max(range(len(found)), key=lambda index: (_closeness(statements, found, index), index))
    others = [axis for index, axis in enumerate(found) if index != last]
    widest = sorted(others, key=lambda axis: axis.extent, reverse=True)[: MAX_GRID - 1]
    return (*(axis for axis in others if axis in widest), found[last])


def _closeness(statements: tuple[StatementModel, ...], found: list[Axis], index: int) -> int:
    """How many accesses move least along an axis, of those that move along it at all."""
    votes = 0
    for statement in statements:
        runs = statement.iterations()
        for footprint in statement.footprints:
            strides = [abs(footprint.row[axis.dimension(statement)]) for axis in found]
            if isinstance(footprint.region, int) and strides[index]:
                votes += runs * (strides[index] == min(stride for stride in strides if stride))
    return votes


def strong_components(
    statements: Sequence[StatementModel], dependences: Sequence[Dependence]
) -> list[tuple[StatementModel, ...]]:
    """Sets of statements that depend on one another, earliest first; in the order of the nest if there is a choice."""
    reached = {each: _reached(each, statements, dependences) for each in statements}
    pending = []
    placed: set[StatementModel] = set()
    for statement in statements:
        if statement not in placed:
            component = tuple(
                other
                for other in statements
                if other is statement or (other in reached[statement] and statement in reached[other])
            )
            placed |= set(component)
            pending.append(component)
    ordered = []
    while pending:
        ready = next(
            each for each in pending if not any(each[0] in reached[other[0]] for other in pending if other is not each)
        )
        pending.remove(ready)
        ordered.append(ready)
    return ordered


def _reached(
    statement: StatementModel, statements: Sequence[StatementModel], dependences: Sequence[Dependence]
) -> set[StatementModel]:
    """The statements that depend on one, directly or not."""
    among = set(statements)
    reached: set[StatementModel] = set()
    pending = [statement]
    while pending:
        source = pending.pop()
        new = {each.target for each in dependences if each.source is source and each.target in among} - reached
        reached |= new
        pending += new
    return reached
