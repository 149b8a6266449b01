"""What is known of a kernel before its code is written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from tensorwasm.offload.codegen.blocking import LONE, Tile, choose_tile, unskewed, with_value
from tensorwasm.offload.codegen.iterations import Iteration, Iterations, Lanes, in_order
from tensorwasm.offload.codegen.linear import MAX_DEPTH, Linear, mentions
from tensorwasm.offload.codegen.nans import unknown_values
from tensorwasm.offload.codegen.promotion import executes, kept_places
from tensorwasm.offload.declined import Declined, DeclineReason
from tensorwasm.offload.nest import Load, values_of, whiles_of
from tensorwasm.offload.program import Block, Execute, Expression, For, If, Kernel, NestProgram

MAX_EXECUTES: Final = 256
"""Statements in a kernel."""
MAX_SIZE: Final = 2000
"""Values and effects in a kernel, which a compiler takes seconds for."""
MOST_COPIES: Final = 64
LOADS_AT_ONCE: Final = 64
VALUES_AT_ONCE: Final = 400
"""Of a turn of an unrolled loop."""
PART_FIRST: Final = "part.first"
PART_LAST: Final = "part.last"


class KernelShape:
    """What is known of a kernel before its code is written.

    Attributes:
        loops: its parallel loops, outermost first.
        guards: what else has to hold for an iteration of these.
        tile: how many iterations of these a thread does at once.
        body: what one thread does.
        lanes: the innermost parallel loop, if its iterations can be lanes.
        has_far: whether an access of the lanes is not to neighbours.
        iterations: of each of its statements.
        size: how many values and effects these have.
        copies: how many turns of an innermost loop are one of its unrolled form, by the loop in the thread.
        kept: places in memory that stay in registers, by the loop in the thread.
        unknown: the floats whose bits are unknown if they are NaN.
    """

    def __init__(self, program: NestProgram, kernel: Kernel, *, gpu: bool) -> None:
        self.loops: list[For] = []
        self.body = kernel.body
        while len(self.body) == 1 and isinstance(self.body[0], For) and self.body[0].parallel:
            self.loops.append(self.body[0])
            self.body = self.body[0].body
        self.guards: list[Expression] = []
        if sum(1 for _ in executes(self.body)) > MAX_EXECUTES:
            raise Declined(DeclineReason.TOO_LARGE, f"a kernel has more than {MAX_EXECUTES} statements")
        iterations = Iterations(program, self.loops)
        if gpu:
            self._unskew(iterations)
        listed = [*executes(self.body)]
        self.lanes = None if gpu else self._find_lanes()
        self.iterations = {execute: iterations.of(execute, self.lanes) for execute in listed}
        self.has_far = self.lanes is not None and self._count_far(self.lanes, listed)[1] > 0
        if self.lanes is not None and (self._is_scattered(self.lanes) or self._is_ragged(self.lanes)):
            self.lanes = None
            self.iterations = {execute: iterations.of(execute, None) for execute in listed}
        self._parts: list[For] = []
        self.size = sum(map(_size, self.iterations.values()))
        if self.size > MAX_SIZE:
            raise Declined(DeclineReason.TOO_LARGE, f"a kernel has more than {MAX_SIZE} values and effects")
        self.tile = self._tile() if gpu else LONE
        self.kept = {
            id(loop): kept_places(loop, self.iterations, program.array_of)
            for loop in sequential_loops(self.body)
            if not any(isinstance(part, For | If) for part in loop.body)
        }
        self.copies = self._copies() if gpu and len(self.loops) == 1 and not self._has_loops_of_data() else {}
        self.unknown = unknown_values(program, gpu=gpu)

    def _unskew(self, iterations: Iterations) -> None:
        """Count the outer one of two parallel loops by the sum of both, if fewer loads then move along both."""
        found = unskewed(*self.loops[-2:]) if len(self.loops) > 1 else None
        if found is None:
            return
        body = with_value(self.body, self.loops[-2].variable, found.replaced)
        loops = [found.outer, found.inner]
        if _count_both(body, loops, iterations) < _count_both(self.body, self.loops[-2:], iterations):
            self.loops[-2:] = loops
            self.guards.append(found.guard)
            self.body = body

    def _tile(self) -> Tile:
        if self._has_loops_of_data():
            return LONE
        iterations = [self.iterations[each] for each in executes(tuple(sequential_loops(self.body)))]
        return choose_tile(self.loops, _control(self.body), _load_addresses(iterations), self.size)

    def _has_loops_of_data(self) -> bool:
        return any(any(whiles_of(iteration.effects)) for iteration in self.iterations.values())

    def _copies(self) -> dict[int, int]:
        """Return copies of innermost loops that load enough at once where there may be few threads."""
        found = {}
        for loop in sequential_loops(self.body):
            if all(isinstance(part, Execute) for part in loop.body):
                listed = [self.iterations[each] for each in executes(loop.body)]
                moving = sum(address.mentions(loop.variable) for address in _load_addresses(listed))
                found[id(loop)] = _copies(max(moving, 1), sum(map(_size, listed)))
        return found

    def part_of(self, loop: For) -> For:
        """Return a loop that keeps what another one keeps, from the variable `PART_FIRST` to `PART_LAST`."""
        part = replace(loop, first=PART_FIRST, last=PART_LAST)
        self.kept[id(part)] = self.kept[id(loop)]
        self._parts.append(part)  # lives as long as its identity is a key
        return part

    def _find_lanes(self) -> Lanes | None:
        if not self.loops:
            return None
        loop = self.loops[-1]
        if any(mentions(expression, loop.variable) for expression in _control(self.body)):
            return None
        return Lanes(loop.variable, loop.step)

    def _is_ragged(self, lanes: Lanes) -> bool:
        """Return whether turns of a loop of data may be more for one lane than what addresses allow for another one."""
        loops = [(each, loop) for each in self.iterations.values() for loop in whiles_of(each.effects)]
        return any(
            each.turns is not None and iteration.form(each.turns).mentions(lanes.variable) for iteration, each in loops
        )

    def _is_scattered(self, lanes: Lanes) -> bool:
        """Return whether most accesses of the innermost loops are not to neighbours, for neighbouring lanes.

        LLVM then does better with a loop of the thread, whose turns may be neighbours.
        """
        near, far = self._count_far(lanes, executes(tuple(sequential_loops(self.body))))
        return far > near

    def _count_far(self, lanes: Lanes, listed: Iterable[Execute]) -> tuple[int, int]:
        """Return how many accesses are to neighbours, or to one place, for neighbouring lanes, and how many are not."""
        near = far = 0
        for iteration in (self.iterations[execute] for execute in listed):
            for access, address in iteration.addresses.items():
                stride = address.stride(lanes.variable)
                is_near = stride is not None and stride * lanes.step in {0, access.size_bytes * iteration.copies}
                near, far = near + is_near, far + (not is_near)
        return near, far


def _count_both(block: Block, loops: Sequence[For], iterations: Iterations) -> int:
    """Return how many loads in the loops of a block move along all of some parallel loops."""
    listed = [iterations.of(execute, None) for execute in executes(tuple(sequential_loops(block)))]
    return sum(all(address.mentions(loop.variable) for loop in loops) for address in _load_addresses(listed))


def _load_addresses(listed: Iterable[Iteration]) -> list[Linear]:
    return [place for each in listed for access, place in each.addresses.items() if isinstance(access, Load)]


def _copies(loads: int, values: int) -> int:
    """Return how many turns of a loop that has so many in each are one of its unrolled form; a power of two."""
    most = max(1, min(MOST_COPIES, LOADS_AT_ONCE // loads, VALUES_AT_ONCE // values))
    return 1 << (most.bit_length() - 1)


def _size(iteration: Iteration) -> int:
    return len(iteration.effects) + len(in_order(list(values_of(iteration.effects))))


def sequential_loops(block: Block, depth: int = 0) -> Iterator[For]:
    """Yield the loops in a block.

    Raises:
        Declined: it is too deep.
    """
    if depth > MAX_DEPTH:
        raise Declined(DeclineReason.TOO_LARGE, f"loops and conditions are nested more than {MAX_DEPTH} deep")
    for part in block:
        if isinstance(part, For):
            yield part
            yield from sequential_loops(part.body, depth + 1)
        elif isinstance(part, If):
            yield from sequential_loops((*part.then, *part.otherwise), depth + 1)


def _control(block: Block) -> Iterator[Expression]:
    """Yield the bounds and conditions in a block."""
    for part in block:
        if isinstance(part, For):
            yield from (part.first, part.last)
            yield from _control(part.body)
        elif isinstance(part, If):
            yield part.condition
            yield from _control((*part.then, *part.otherwise))
