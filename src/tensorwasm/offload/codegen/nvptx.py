"""PTX of a program: an entry for each kernel, whose threads are the iterations of its innermost parallel loops."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from llvmlite import binding as llvm

from tensorwasm.offload.codegen.arguments import ProgramArguments, arguments_of
from tensorwasm.offload.codegen.assembly import Assembly, SsaValue, literal, spelled
from tensorwasm.offload.codegen.kernel_shape import KernelShape
from tensorwasm.offload.codegen.linear import MAX_DEPTH, evaluated
from tensorwasm.offload.codegen.lower import ThreadWriter, extended
from tensorwasm.offload.codegen.values import LaneScope
from tensorwasm.offload.declined import Declined, DeclineReason
from tensorwasm.offload.program import For, HostLoop, Kernel, NestProgram
from tensorwasm.values import Dim3, LaunchConfig

MAX_KERNELS: Final = 64
"""Of a program."""
MAX_PTX_BYTES: Final = 1 << 20
BLOCK_THREADS: Final = 256
ROW_THREADS: Final = 32
"""Threads of a block along x, where it has more than one dimension."""
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
        loops: what blocks and threads are iterations of, outermost first: the last one of x. They have no bodies.
    """

    entry: str
    variables: tuple[str, ...]
    loops: tuple[For, ...]


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
        entry = GpuKernel(f"kernel{kernel.number}", variables, grid)
        kernels[kernel.number] = entry
        functions.append(_KernelWriter(program, arguments, plan, entry).text())
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
        room = ROW_THREADS if axis == 0 and len(counts) > 1 else BLOCK_THREADS // (block[0] * block[1])
        block[axis] = min(room, 1 << (count - 1).bit_length())
        grid[axis] = -(-count // block[axis])
        if grid[axis] > MAX_BLOCKS[axis]:
            raise Declined(DeclineReason.TOO_LARGE, f"a kernel has {count} iterations along {_AXES[axis]}")
    return LaunchConfig(_dim3(grid), _dim3(block))


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

    def text(self) -> str:
        variables = {name: SsaValue(f"%h{number}", "i64") for number, name in enumerate(self._kernel.variables)}
        self._level(0, LaneScope(variables))
        return _entry(self._kernel.entry, self._parameters, self._asm, self._body)

    def _level(self, level: int, scope: LaneScope) -> None:
        loops = self._plan.loops
        if level == len(loops):
            self._body.body([scope], self._plan.body)
            return
        loop, asm = loops[level], self._asm
        first, last = (self._body.values.expression(bound, scope) for bound in (loop.first, loop.last))
        axis = len(loops) - 1 - level
        if axis >= len(_AXES):
            with asm.loop(first, last, literal("i64", loop.step)) as variable:
                self._level(level + 1, extended(scope, loop.variable, variable))
            return
        ahead = asm.compute(f"mul i64 {self._index(_AXES[axis]).name}, {loop.step}", "i64")
        variable = asm.compute(f"add {ahead.typed}, {first.name}", "i64")
        with asm.when(asm.compute(f"icmp sle {variable.typed}, {last.name}", "i1")):
            self._level(level + 1, extended(scope, loop.variable, variable))

    def _index(self, axis: str) -> SsaValue:
        """Return the number of the thread in the grid along an axis."""
        block, threads, thread = (
            self._asm.compute(f"call i32 @llvm.nvvm.read.ptx.sreg.{name}.{axis}()", "i32")
            for name in ("ctaid", "ntid", "tid")
        )
        wide = [self._asm.compute(f"zext {each.typed} to i64", "i64") for each in (block, threads, thread)]
        before = self._asm.compute(f"mul {wide[0].typed}, {wide[1].name}", "i64")
        return self._asm.compute(f"add {before.typed}, {wide[2].name}", "i64")


def _results(program: NestProgram, arguments: ProgramArguments) -> str:
    asm = Assembly()
    body = ThreadWriter(asm, _SPACE, program, KernelShape(program, Kernel(0, ()), gpu=True))
    for number, (local, kind) in enumerate(arguments.results):
        value = body.result(program.nest.results[local], LaneScope({}))
        at = asm.compute(f"getelementptr i8, ptr{_SPACE} %results, i64 {8 * number}", f"ptr{_SPACE}")
        asm.write(f"store {spelled(kind)} {value.name}, {at.typed}, align 8")
    parameters = [f"ptr{_SPACE} noalias %results", f"ptr{_SPACE} noalias %flag"]
    return _entry(_RESULTS, [*arguments.parameters(_SPACE), *parameters], asm, body)


def _entry(name: str, parameters: list[str], asm: Assembly, body: ThreadWriter) -> str:
    with asm.when(body.has_nan()):
        asm.write(f"store volatile i32 1, ptr{_SPACE} %flag, align 4")
    asm.write("ret void")
    return f"define ptx_kernel void @{name}({', '.join(parameters)}) {{\n{asm.text()}\n}}\n"


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
