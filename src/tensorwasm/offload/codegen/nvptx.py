"""PTX of a program: an entry for each kernel, whose threads are the iterations of its innermost parallel loops."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import reduce
from typing import Final

from llvmlite import binding as llvm

from tensorwasm.offload.codegen.arguments import ProgramArguments, arguments_of
from tensorwasm.offload.codegen.assembly import Assembly, SsaValue, literal, spelled
from tensorwasm.offload.codegen.blocking import LONE, Tile
from tensorwasm.offload.codegen.kernel_shape import KernelShape
from tensorwasm.offload.codegen.linear import MAX_DEPTH, evaluated
from tensorwasm.offload.codegen.lower import ThreadWriter
from tensorwasm.offload.codegen.values import LaneScope, extended
from tensorwasm.offload.declined import Declined, DeclineReason
from tensorwasm.offload.program import For, HostLoop, Kernel, NestProgram
from tensorwasm.values import Dim3, LaunchConfig

MAX_KERNELS: Final = 64
"""Of a program."""
MAX_PTX_BYTES: Final = 1 << 20
BLOCK_THREADS: Final = 256
ROW_THREADS: Final = 32
"""Threads of a block along x, where it has more than one dimension."""
MANY_BLOCKS: Final = 256
"""As many as keep a GPU busy."""
MAX_BLOCKS: Final = ((1 << 31) - 1, 65535, 65535)
_TRIPLE: Final = "nvptx64-nvidia-cuda"
_SPACE: Final = " addrspace(1)"
_AXES: Final = "xyz"
_RESULTS: Final = "results"
_ROUNDED: Final = re.compile(r"^\s*(?:@!?%p\d+\s+)?(?:add|sub|mul|div|sqrt)\.(?!rn\.)[\w.]*f(?:32|64)", re.MULTILINE)
# ptxas 13.0 converts a register to an integer, instead of storing its low bits, if a floating-point instruction set it.
_PLAIN_STORE: Final = re.compile(
    r"^\t(st\.(?:volatile\.)?global\.b(8|16|32))(\s+\[[^\]]*\]), (%rd?\d+);$", re.MULTILINE
)
_NARROW_VECTOR: Final = re.compile(
    r"^.*\bst\.\S*\.v\d\.b(?:(?:8|16|32)\s.*\{[^}]*%rd|(?:8|16)\s.*\{[^}]*%r\d).*$", re.MULTILINE
)
_HOST_VARIABLE: Final = re.compile(r"%h(\d+)\b")
_LOW: Final = "%low"
_REFUSED: Final = re.compile(r"\b(?:fma|mad\.(?:rn\.)?f\d+|call|depot)\b|\.(?:ftz|approx|local)\b|__local_depot")


@dataclass(frozen=True, slots=True)
class GpuKernel:
    """One entry of a program's PTX.

    Its parameters are those of `ProgramArguments` in their order, 8 bytes for a pointer; then the program's sizes and
    the variables of the host loops around it, 8 bytes each; then the address of a u32 that becomes 1 if a NaN was seen
    whose bits are unknown.

    Attributes:
        variables: names of these variables, in order.
        used: those that the kernel or its grid depends on.
        loops: what blocks and threads are iterations of, outermost first: the last one of x. They have no bodies.
        tile: how many iterations a thread does.
    """

    entry: str
    variables: tuple[str, ...]
    loops: tuple[For, ...]
    tile: Tile = LONE
    used: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class GpuCode:
    """PTX of a program.

    Attributes:
        ptx: the text.
        kernels: its entries, by the numbers of the program's kernels.
        results: an entry for one thread that runs last, if the nest has results: before the flag, its parameters end
            with the address of 8 bytes for each result.
    """

    ptx: str
    kernels: Mapping[int, GpuKernel]
    results: str | None


def compile_for_gpu(program: NestProgram, architecture: tuple[int, int]) -> GpuCode:
    """Return a program's PTX for a compute capability.

    Raises:
        Declined: it has what no code is made for, or is too large.
    """
    arguments = arguments_of(program)
    found = _kernels(program)
    if len(found) > MAX_KERNELS:
        raise Declined(DeclineReason.TOO_LARGE, f"it has more than {MAX_KERNELS} kernels")
    functions, kernels = [], {}
    for kernel, variables in found:
        plan = KernelShape(program, kernel, gpu=True)
        grid = tuple(replace(loop, body=()) for loop in plan.loops[-len(_AXES) :])
        entry = GpuKernel(f"kernel{kernel.number}", variables, grid, plan.tile)
        writer = _KernelWriter(program, arguments, plan, entry)
        functions.append(writer.text())
        kernels[kernel.number] = replace(entry, used=writer.used)
    results = _RESULTS if arguments.results else None
    if results is not None:
        functions.append(_results(program, arguments))
    return GpuCode(_assembled("\n".join(functions), architecture), kernels, results)


def grid_of(kernel: GpuKernel, variables: Mapping[str, int]) -> LaunchConfig | None:
    """Return the geometry of a launch, for values of the variables around the kernel; None if it has no iteration.

    Raises:
        Declined: it has more iterations than a grid has threads.
    """
    bounds = {name: (value, value) for name, value in variables.items()}
    counts = []
    for loop in kernel.loops:
        (first, _), (_, last) = (evaluated(bound, bounds.__getitem__) for bound in (loop.first, loop.last))
        if last < first:
            return None
        bounds[loop.variable] = first, last
        counts.append((last - first) // loop.step + 1)
    block, grid = [1, 1, 1], [1, 1, 1]
    for axis, count in enumerate(reversed(counts)):
        threads = -(-count // (kernel.tile.columns, kernel.tile.rows, 1)[axis])
        room = BLOCK_THREADS // (block[0] * block[1])
        if axis == 0:
            room = ROW_THREADS if len(counts) > 1 else _line_threads(threads)
        block[axis] = min(room, 1 << (threads - 1).bit_length())
        grid[axis] = -(-threads // block[axis])
        if grid[axis] > MAX_BLOCKS[axis]:
            raise Declined(DeclineReason.TOO_LARGE, f"a kernel has {count} iterations along {_AXES[axis]}")
    return LaunchConfig(_dim3(grid), _dim3(block))


def _line_threads(threads: int) -> int:
    """Return how many threads of one row are in a block: the fewer there are, the more blocks share them."""
    block = ROW_THREADS
    while block < BLOCK_THREADS and threads > 2 * block * MANY_BLOCKS:
        block *= 2
    return block


def _dim3(sizes: list[int]) -> Dim3:
    x, y, z = sizes
    return x, y, z


def _kernels(program: NestProgram) -> list[tuple[Kernel, tuple[str, ...]]]:
    """Return the kernels in order, each with the program's sizes and the variables of the host loops around it."""
    found: list[tuple[Kernel, tuple[str, ...]]] = []

    def walk(steps: tuple[HostLoop | Kernel, ...], variables: tuple[str, ...]) -> None:
        if len(variables) > MAX_DEPTH:
            raise Declined(DeclineReason.TOO_LARGE, f"loops on the host are nested more than {MAX_DEPTH} deep")
        for step in steps:
            if isinstance(step, Kernel):
                found.append((step, variables))
            else:
                walk(step.body, (*variables, step.variable))

    walk(program.steps, tuple(program.sizes))
    return found


class _KernelWriter:
    """Writes one entry."""

    def __init__(self, program: NestProgram, arguments: ProgramArguments, plan: KernelShape, kernel: GpuKernel) -> None:
        self._kernel = kernel
        self._plan = plan
        self._asm = Assembly()
        self._body = ThreadWriter(self._asm, _SPACE, program, plan)
        flag = f"ptr{_SPACE} noalias %flag"
        variables = [f"i64 %h{number}" for number in range(len(kernel.variables))]
        self._parameters = [*arguments.parameters(_SPACE), *variables, flag]

    @property
    def used(self) -> frozenset[str]:
        """The variables of the host that the text contains."""
        written = set(_HOST_VARIABLE.findall(self._asm.text()))
        return frozenset(name for number, name in enumerate(self._kernel.variables) if str(number) in written)

    def text(self) -> str:
        variables = {name: SsaValue(f"%h{number}", "i64") for number, name in enumerate(self._kernel.variables)}
        self._level(0, LaneScope(variables))
        # With room for registers for all loads of an unrolled loop, rather than for more threads.
        least_blocks = 1 if self._plan.copies else None if self._plan.tile == LONE else 2
        return _entry(self._kernel.entry, self._parameters, self._asm, self._body, least_blocks)

    def _level(self, level: int, scope: LaneScope) -> None:
        loops = self._plan.loops
        if level == len(loops):
            self._iteration(scope)
            return
        if level == len(loops) - 2 and self._plan.tile != LONE:
            self._tile(scope)
            return
        loop, asm = loops[level], self._asm
        first, last = (self._body.values.expression(bound, scope) for bound in (loop.first, loop.last))
        axis = len(loops) - 1 - level
        if axis >= len(_AXES):
            with asm.loop(first, last, literal("i64", loop.step)) as variable:
                self._level(level + 1, extended(scope, loop.variable, variable))
            return
        variable = self._sum(first, self._index(_AXES[axis]), loop.step)
        with asm.when(asm.compute(f"icmp sle {variable.typed}, {last.name}", "i1")):
            self._level(level + 1, extended(scope, loop.variable, variable))

    def _iteration(self, scope: LaneScope) -> None:
        """Write one iteration of all parallel loops, if the guards hold."""
        with ExitStack() as stack:
            for guard in self._plan.guards:
                stack.enter_context(
                    self._asm.when(self._body.values.condition(self._body.values.expression(guard, scope)))
                )
            self._body.body([scope], self._plan.body)

    def _tile(self, scope: LaneScope) -> None:
        """Write the iterations of a tile side by side; where some of them are none, in another way."""
        (outer, inner), asm, values = self._plan.loops[-2:], self._asm, self._body.values
        last_row, first = (values.expression(bound, scope) for bound in (outer.last, inner.first))
        rows, columns, width = self._corner(scope, first)
        near = [rows[0], *(self._bound("smin", row, last_row) for row in rows[1:])]
        lasts = [values.expression(inner.last, extended(scope, outer.variable, row)) for row in near]
        begun = [self._at_most(columns[0], last) for last in lasts]
        with asm.when(self._both(self._at_most(rows[0], last_row), self._reduced("or", begun))):
            scopes = self._pairs(scope, rows, columns)
            whole = [self._at_most(rows[-1], last_row), *(self._at_most(columns[-1], last) for last in lasts)]
            with asm.either(self._reduced("and", [*whole, *self._guards(scopes)])) as otherwise:
                self._body.body(scopes, self._plan.body)
                otherwise()
                self._part_of_tile(scope, (rows, near, lasts), (first, columns), last_row, width)

    def _part_of_tile(
        self,
        scope: LaneScope,
        rows: tuple[list[SsaValue], list[SsaValue], list[SsaValue]],
        columns: tuple[SsaValue, list[SsaValue]],
        last_row: SsaValue,
        width: SsaValue,
    ) -> None:
        """Write a tile of which some iterations are none.

        The nearest row and the nearest column take the place of those beyond the end. Loads that move along one of them
        only are then those of some iteration, and everything else depends on whether the iteration is one. Rows without
        any iteration have no such loads: the iterations of a tile that has one of these run one after another.

        Args:
            scope: around both loops.
            rows: those of the tile, the nearest rows to these, and the last column of each nearest row.
            columns: the first of all, and those of the tile.
            last_row: the last of all.
            width: of a block.
        """
        (outside, near, lasts), (first, inside) = rows, columns
        last = reduce(lambda one, other: self._bound("smax", one, other), lasts)
        within = [self._bound("smin", column, last) for column in inside]
        scopes = self._pairs(scope, near, within)
        active = [
            self._both(self._at_most(row, last_row), self._at_most(column, end))
            for row, end in zip(outside, lasts, strict=True)
            for column in inside
        ]
        known = [self._at_most(first, end) for end in lasts]
        known += self._guards([*scopes, *self._pairs(scope, near, [first])])
        with self._asm.either(self._reduced("and", known)) as otherwise:
            pairs = zip(scopes, active, strict=True)
            self._body.body([replace(each, active=bit) for each, bit in pairs], self._plan.body)
            otherwise()
            self._in_turn(scope, outside, inside, last_row, width)

    def _pairs(self, scope: LaneScope, rows: list[SsaValue], columns: list[SsaValue]) -> list[LaneScope]:
        outer, inner = self._plan.loops[-2:]
        around = [extended(scope, outer.variable, row) for row in rows]
        scopes = [extended(each, inner.variable, column) for each in around for column in columns]
        return [replace(each, row=number) for number, each in enumerate(scopes)]

    def _corner(self, scope: LaneScope, first: SsaValue) -> tuple[list[SsaValue], list[SsaValue], SsaValue]:
        """Return the values of both counters in a tile whose columns begin at a value, and the width of a block."""
        (outer, inner), tile = self._plan.loops[-2:], self._plan.tile
        first_row = self._body.values.expression(outer.first, scope)
        top = self._sum(first_row, self._index("y"), tile.rows * outer.step)
        rows = [self._sum(top, literal("i64", number), outer.step) for number in range(tile.rows)]
        width, left = self._wide("ntid", "x"), self._index("x", tile.columns)
        places = [self._sum(left, width, number) for number in range(tile.columns)]
        return rows, [self._sum(first, place, inner.step) for place in places], width

    def _in_turn(
        self, scope: LaneScope, rows: list[SsaValue], columns: list[SsaValue], last_row: SsaValue, width: SsaValue
    ) -> None:
        (outer, inner), asm = self._plan.loops[-2:], self._asm
        step = asm.compute(f"mul {width.typed}, {inner.step}", "i64")
        with asm.loop(rows[0], self._bound("smin", rows[-1], last_row), literal("i64", outer.step)) as row:
            last = self._body.values.expression(inner.last, extended(scope, outer.variable, row))
            with asm.loop(columns[0], self._bound("smin", columns[-1], last), step) as column:
                self._iteration(self._pairs(scope, [row], [column])[0])

    def _guards(self, scopes: list[LaneScope]) -> list[SsaValue]:
        values = self._body.values
        return [values.condition(values.expression(guard, each)) for each in scopes for guard in self._plan.guards]

    def _reduced(self, operator: str, bits: list[SsaValue]) -> SsaValue:
        return reduce(lambda one, other: self._asm.compute(f"{operator} {one.typed}, {other.name}", "i1"), bits)

    def _sum(self, first: SsaValue, count: SsaValue, step: int) -> SsaValue:
        """Return what is some steps beyond a value."""
        ahead = self._asm.compute(f"mul {count.typed}, {step}", "i64")
        return self._asm.compute(f"add {ahead.typed}, {first.name}", "i64")

    def _at_most(self, value: SsaValue, limit: SsaValue) -> SsaValue:
        return self._asm.compute(f"icmp sle {value.typed}, {limit.name}", "i1")

    def _both(self, one: SsaValue, other: SsaValue) -> SsaValue:
        return self._asm.compute(f"and {one.typed}, {other.name}", "i1")

    def _bound(self, choice: str, one: SsaValue, other: SsaValue) -> SsaValue:
        return self._asm.compute(f"call i64 @llvm.{choice}.i64({one.typed}, {other.typed})", "i64")

    def _index(self, axis: str, blocks: int = 1) -> SsaValue:
        """Return the number of the thread in the grid along an axis, of whose blocks each counts as several."""
        block, threads, thread = (self._wide(name, axis) for name in ("ctaid", "ntid", "tid"))
        before = self._asm.compute(f"mul {block.typed}, {threads.name}", "i64")
        return self._sum(thread, before, blocks)

    def _wide(self, name: str, axis: str) -> SsaValue:
        """Return one of the numbers that a thread knows of its place."""
        value = self._asm.compute(f"call i32 @llvm.nvvm.read.ptx.sreg.{name}.{axis}()", "i32")
        return self._asm.compute(f"zext {value.typed} to i64", "i64")


def _results(program: NestProgram, arguments: ProgramArguments) -> str:
    asm = Assembly()
    body = ThreadWriter(asm, _SPACE, program, KernelShape(program, Kernel(0, ()), gpu=True))
    for number, (local, kind) in enumerate(arguments.results):
        value = body.result(program.nest.results[local], LaneScope({}))
        at = asm.compute(f"getelementptr i8, ptr{_SPACE} %results, i64 {8 * number}", f"ptr{_SPACE}")
        asm.write(f"store {spelled(kind)} {value.name}, {at.typed}, align 8")
    parameters = [f"ptr{_SPACE} noalias %results", f"ptr{_SPACE} noalias %flag"]
    return _entry(_RESULTS, [*arguments.parameters(_SPACE), *parameters], asm, body)


def _entry(name: str, parameters: list[str], asm: Assembly, body: ThreadWriter, least_blocks: int | None = None) -> str:
    with asm.when(body.has_nan()):
        asm.write(f"store volatile i32 1, ptr{_SPACE} %flag, align 4")
    asm.write("ret void")
    attributes = f'"nvvm.maxntid"="{BLOCK_THREADS}"'
    if least_blocks is not None:
        attributes += f' "nvvm.minctasm"="{least_blocks}"'
    return f"define ptx_kernel void @{name}({', '.join(parameters)}) {attributes} {{\n{asm.text()}\n}}\n"


def _assembled(text: str, architecture: tuple[int, int]) -> str:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(_TRIPLE).create_target_machine(cpu="sm_{}{}".format(*architecture), opt=3)
    module = llvm.parse_assembly(text)
    module.triple, module.data_layout = _TRIPLE, str(machine.target_data)
    module.verify()
    options = llvm.create_pipeline_tuning_options(3)
    passes = llvm.create_pass_builder(machine, options)
    passes.getModulePassManager().run(module, passes)
    ptx = _with_whole_stores(machine.emit_assembly(module))
    if len(ptx) > MAX_PTX_BYTES:
        raise Declined(DeclineReason.TOO_LARGE, f"its PTX has more than {MAX_PTX_BYTES} bytes")
    if found := _REFUSED.search(ptx) or _ROUNDED.search(ptx):
        raise Declined(DeclineReason.NO_MACHINE_CODE, f"the compiler wrote {found[0].strip()}")
    return ptx


def _with_whole_stores(ptx: str) -> str:
    """Have stores of a part of a register go through one that an instruction on integers sets.

    Raises:
        Declined: a vector of such parts is stored.
    """

    def through_integers(found: re.Match[str]) -> str:
        store, bits, place, register = found.groups()
        if register.startswith("%rd"):
            low = f"\tcvt.u32.u64 \t{_LOW}, {register};\n"
        elif bits != "32":
            low = f"\tand.b32 \t{_LOW}, {register}, {(1 << int(bits)) - 1};\n"
        else:
            return found[0]
        return f"{low}\t{store}{place}, {_LOW};"

    if found := _NARROW_VECTOR.search(ptx):
        raise Declined(DeclineReason.NO_MACHINE_CODE, f"the compiler wrote {found[0].strip()}")
    whole = _PLAIN_STORE.sub(through_integers, ptx)
    return ptx if whole == ptx else whole.replace("\n{\n", f"\n{{\n\t.reg .b32 \t{_LOW};\n")
