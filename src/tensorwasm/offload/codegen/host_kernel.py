"""A kernel as a function for the host's threads: each takes its share of the outermost parallel loops.

The innermost parallel loop's iterations are the lanes of vectors. Where the thread's body has a loop of its own,
several iterations of the parallel loop around it run side by side, so that what they read in common is read once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from tensorwasm.offload.codegen.assembly import Assembly, SsaValue, literal
from tensorwasm.offload.codegen.host_threads import NAN, STOP
from tensorwasm.offload.codegen.kernel_shape import PART_FIRST, PART_LAST, KernelShape, sequential_loops
from tensorwasm.offload.codegen.linear import mentions
from tensorwasm.offload.codegen.lower import ThreadWriter
from tensorwasm.offload.codegen.values import LaneScope, extended
from tensorwasm.offload.nest import accesses_of, whiles_of
from tensorwasm.offload.program import Block, For, Kernel, NestProgram

ROWS: Final = 4
"""Iterations side by side."""
MAX_SIDE_BY_SIDE: Final = 200
"""Values and effects of a kernel, for iterations to run side by side."""
VECTORS: Final = 2
"""Vectors of the host's that the lanes of a value take."""
FAR_LANES: Final = 16
"""Most lanes where an access of theirs is not to neighbours: each is an access of its own."""
DEPTH: Final = 128
"""Turns of a loop in the thread for a strip's rows in turn, so that what they read in common stays in the cache."""
PIECES: Final = 8
"""Of each thread, where the work of iterations differs."""

Range = tuple[SsaValue, SsaValue]
Write = Callable[[SsaValue, int], None]


class HostKernelWriter:
    """Writes one kernel.

    Args:
        program: what the kernel is of.
        kernel: what to write.
        parameters: of the function, as they are written, but for those that all kernels have.
        variables: the variables of host loops around the kernel.
        vector_bytes: of the host's widest vectors.
    """

    def __init__(
        self,
        program: NestProgram,
        kernel: Kernel,
        parameters: str,
        variables: Mapping[str, SsaValue],
        vector_bytes: int,
    ) -> None:
        self._parameters = parameters
        self._plan = KernelShape(program, kernel, gpu=False)
        self._asm = Assembly()
        self._body = ThreadWriter(self._asm, "", program, self._plan, self._poll)
        self._scope = LaneScope(variables, self._plan.lanes)
        self._has_loops = any(sequential_loops(self._plan.body))
        self._is_innermost = not self._has_loops and not any(
            any(whiles_of(iteration.effects)) for iteration in self._plan.iterations.values()
        )
        self._rows = ROWS if self._has_loops and self._plan.size <= MAX_SIDE_BY_SIDE else 1
        self._has_cells = any(storage.private for storage in program.cells)
        self._lanes = self._lanes_for(vector_bytes)

    def text(self, name: str) -> str:
        """Return the function of a name."""
        asm, plan = self._asm, self._plan
        asm.write(f"%stop = getelementptr i8, ptr %shared, i64 {STOP}")
        if plan.loops:
            self._shares = self._split()
            self._level(0, self._scope)
        else:
            with asm.when(asm.compute("icmp eq i64 %thread, 0", "i1")):
                self._body.body([self._scope], plan.body)
        asm.jump("stopped")
        asm.start("stopped")
        with asm.when(self._body.has_nan()):
            flag = asm.compute(f"getelementptr i8, ptr %shared, i64 {NAN}", "ptr")
            asm.write(f"store atomic i64 1, {flag.typed} monotonic, align 8")
        asm.write("ret void")
        head = f"define internal void @{name}({self._parameters})"
        return f"{head} noinline nounwind {{\n{asm.text()}\n}}\n"

    def _lanes_for(self, vector_bytes: int) -> int:
        """Return how many iterations are lanes at once."""
        if self._plan.lanes is None:
            return 1
        iterations = self._plan.iterations.values()
        sizes = [use.size_bytes * it.copies for it in iterations for use in accesses_of(it.effects)]
        lanes = max(1, VECTORS * vector_bytes // max(sizes, default=vector_bytes))
        return min(lanes, FAR_LANES) if self._plan.has_far else lanes

    def _poll(self) -> None:
        """Leave the function if the threads are to stop."""
        stop = self._asm.compute("load volatile i64, ptr %stop, align 8", "i64")
        go = self._asm.fresh("go")
        self._asm.branch(self._body.values.condition(stop), "stopped", go)
        self._asm.start(go)

    # ------------------------------------------------------------------------------------------- shares

    def _split(self) -> list[tuple[SsaValue, SsaValue]]:
        """Return which share of how many a thread has, of the outermost loop and of the one in it.

        The outermost loop is shared if it has iterations enough for all threads, else the one in it.
        """
        thread, threads = SsaValue("%thread", "i64"), SsaValue("%threads", "i64")
        outer, zero, one = self._plan.loops[0], literal("i64", 0), literal("i64", 1)
        inner = self._plan.loops[1] if len(self._plan.loops) > 1 else None
        if inner is None or any(mentions(bound, outer.variable) for bound in (inner.first, inner.last)):
            return [(thread, threads), (zero, one)]
        asm = self._asm
        first, last = self._bounds(0, self._scope)
        wanted = asm.compute(f"mul i64 %threads, {2 * outer.step * (self._rows if self._tiled(0) else 1)}", "i64")
        span = asm.compute(f"sub {last.typed}, {first.name}", "i64")
        enough = asm.compute(f"icmp sge {span.typed}, {wanted.name}", "i1").typed

        def chosen(one: SsaValue, other: SsaValue) -> SsaValue:
            return asm.compute(f"select {enough}, {one.typed}, {other.typed}", "i64")

        return [(chosen(thread, zero), chosen(threads, one)), (chosen(zero, thread), chosen(one, threads))]

    def _bounds(self, level: int, scope: LaneScope) -> Range:
        loop = self._plan.loops[level]
        return self._body.values.expression(loop.first, scope), self._body.values.expression(loop.last, scope)

    @contextmanager
    def _range(self, level: int, scope: LaneScope, unit: int) -> Iterator[Range]:
        """Write what runs for the iterations of a loop that are the thread's, in pieces of whole units."""
        asm, loop = self._asm, self._plan.loops[level]
        first, last = self._bounds(level, scope)
        if level >= len(self._shares) or self._shares[level][1].name == "1":
            with asm.when(asm.compute(f"icmp sle {first.typed}, {last.name}", "i1")):
                yield first, last
            return
        inner = self._plan.loops[level + 1 :]
        uneven = any(mentions(bound, loop.variable) for each in inner for bound in (each.first, each.last))
        share, shares = self._shares[level]
        with asm.when(asm.compute(f"icmp sle {first.typed}, {last.name}", "i1")):
            turns = self._scaled("sdiv", self._of("sub", last, first), loop.step)
            pieces = self._scaled("mul", shares, PIECES if uneven else 1)
            length = self._of("sdiv", turns, pieces)
            length = self._scaled("mul", self._scaled("add", self._scaled("sdiv", length, unit), 1), unit)
            begin, ahead = self._of("mul", share, length), self._of("mul", shares, length)
            with asm.loop(begin, turns, ahead) as piece:
                end = self._scaled("sub", self._of("add", piece, length), 1)
                end = asm.compute(f"call i64 @llvm.smin.i64({end.typed}, {turns.typed})", "i64")
                low, high = (self._of("add", first, self._scaled("mul", at, loop.step)) for at in (piece, end))
                yield low, high

    def _of(self, operator: str, one: SsaValue, other: SsaValue) -> SsaValue:
        return self._asm.compute(f"{operator} {one.typed}, {other.name}", "i64")

    def _scaled(self, operator: str, value: SsaValue, number: int) -> SsaValue:
        return self._of(operator, value, literal("i64", number))

    # ------------------------------------------------------------------------------------------- loops

    def _tiled(self, level: int) -> bool:
        """Return whether iterations of a loop run side by side, with all strips of the one in it."""
        loops = self._plan.loops
        if self._rows == 1 or self._plan.lanes is None or level != len(loops) - 2:
            return False
        return not any(mentions(bound, loops[level].variable) for bound in (loops[-1].first, loops[-1].last))

    def _level(self, level: int, scope: LaneScope) -> None:
        loop = self._plan.loops[level]
        if self._tiled(level):
            self._tile(level, scope)
        elif level == len(self._plan.loops) - 1:
            with self._range(level, scope, self._lanes) as ends:
                self._strips(level, ends, self._lanes, lambda at, count: self._one(scope, level, at, count))
        else:
            with self._range(level, scope, 1) as (first, last), self._body.turns(first, last, loop.step) as variable:
                self._level(level + 1, extended(scope, loop.variable, variable))

    def _one(self, scope: LaneScope, level: int, at: SsaValue, count: int) -> None:
        self._body.body([extended(scope, self._plan.loops[level].variable, at, count=count)], self._plan.body)

    def _tile(self, level: int, scope: LaneScope) -> None:
        """Write the last two loops: strips of the inner one, and in each all rows of the outer one."""
        lane, deep = self._plan.loops[-1], self._deep_loop()
        with self._range(level, scope, self._rows) as rows, self._range(level + 1, scope, self._lanes) as lanes:

            def strip(at: SsaValue, count: int) -> None:
                inner = extended(scope, lane.variable, at, count=count)
                if deep is None:
                    self._all_rows(level, inner, rows, self._plan.body)
                else:
                    self._in_parts(level, inner, rows, deep)

            self._strips(level + 1, lanes, self._lanes, strip)

    def _deep_loop(self) -> For | None:
        """Return the loop that is all that a thread does, if it keeps its state in memory between turns."""
        loop = self._plan.body[0]
        if len(self._plan.body) > 1 or not isinstance(loop, For) or not self._plan.kept.get(id(loop)):
            return None
        around = [each.variable for each in self._plan.loops[-2:]]
        if self._has_cells or any(mentions(bound, name) for bound in (loop.first, loop.last) for name in around):
            return None
        return loop

    def _in_parts(self, level: int, scope: LaneScope, rows: Range, deep: For) -> None:
        """Write some turns of the thread's loop for all rows, then the next ones."""
        asm = self._asm
        first, last = (self._body.values.expression(bound, scope) for bound in (deep.first, deep.last))
        part = self._plan.part_of(deep)
        with (
            asm.when(asm.compute(f"icmp sle {first.typed}, {last.name}", "i1")),
            self._body.turns(first, last, deep.step * DEPTH) as begin,
        ):
            end = self._scaled("add", begin, deep.step * (DEPTH - 1))
            end = asm.compute(f"call i64 @llvm.smin.i64({end.typed}, {last.typed})", "i64")
            inner = extended(extended(scope, PART_FIRST, begin), PART_LAST, end)
            self._all_rows(level, inner, rows, (part,))

    def _all_rows(self, level: int, scope: LaneScope, rows: Range, block: Block) -> None:
        row = self._plan.loops[level]

        def write(first: SsaValue, count: int) -> None:
            each = [self._scaled("add", first, row.step * number) if number else first for number in range(count)]
            scopes = [extended(scope, row.variable, at, row=number) for number, at in enumerate(each)]
            self._body.body(scopes, block)

        self._strips(level, rows, self._rows, write)

    def _strips(self, level: int, ends: Range, width: int, write: Write) -> None:
        """Write iterations in strips of a width, and what is left one by one."""
        asm, (first, last), step = self._asm, ends, self._plan.loops[level].step
        if width > 1:
            whole = self._scaled("sub", last, (width - 1) * step)
            with (
                asm.when(asm.compute(f"icmp sle {first.typed}, {whole.name}", "i1")),
                self._body.turns(first, whole, width * step, innermost=self._is_innermost) as variable,
            ):
                write(variable, width)
            turns = self._scaled("add", self._scaled("sdiv", self._of("sub", last, first), step), 1)
            done = self._scaled("mul", self._scaled("sdiv", turns, width), width * step)
            first = self._of("add", first, done)
        with (
            asm.when(asm.compute(f"icmp sle {first.typed}, {last.name}", "i1")),
            self._body.turns(first, last, step, innermost=self._is_innermost) as variable,
        ):
            write(variable, 1)
