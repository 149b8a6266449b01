"""Machine code for the host, of a whole program: one function that each of its threads calls.

The code is an object file, so that it can be kept; `LoadedProgram` is one in memory that can be called.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from llvmlite import binding as llvm

from tensorwasm.offload.codegen.arguments import ProgramArguments, arguments_of
from tensorwasm.offload.codegen.assembly import Assembly, SsaValue, literal, spelled
from tensorwasm.offload.codegen.host_kernel import HostKernelWriter
from tensorwasm.offload.codegen.host_threads import MEET, NAN
from tensorwasm.offload.codegen.kernel_shape import KernelShape
from tensorwasm.offload.codegen.linear import MAX_DEPTH
from tensorwasm.offload.codegen.lower import ThreadWriter
from tensorwasm.offload.codegen.values import LaneScope, ValueWriter
from tensorwasm.offload.declined import Declined, DeclineReason
from tensorwasm.offload.program import HostLoop, Kernel, NestProgram

MAX_TEXT_BYTES: Final = 1 << 19
"""Of a program in LLVM's language, of which a second compiles about as much."""
ENTRY: Final = "run"
SLOT_BYTES: Final = 8
_VECTORS: Final = (("avx512f", 64), ("avx", 32))


@dataclass(frozen=True, slots=True)
class HostCode:
    """Machine code of a program.

    Attributes:
        object_file: its bytes; its function is `ENTRY`, which is given the program's arguments and then its sizes, each
            in a slot; results are slots behind these.
    """

    object_file: bytes


class LoadedProgram:
    """Machine code that is loaded; it stays until this is collected."""

    def __init__(self, code: HostCode) -> None:
        machine = _machine()
        empty = llvm.parse_assembly("")
        empty.triple = machine.triple
        self._engine = llvm.create_mcjit_compiler(empty, machine)
        self._engine.add_object_file(llvm.object_file.ObjectFileRef.from_data(code.object_file))
        self._engine.finalize_object()
        address = self._engine.get_function_address(ENTRY)
        prototype = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
        self.call = prototype(address)


def _machine() -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_default_triple()
    features = llvm.get_host_cpu_features().flatten()
    # Code and constants may be loaded far apart, between the reservations of linear memories: addresses of 64 bits.
    return target.create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=features, opt=3, reloc="static", codemodel="large"
    )


def host_processor() -> str:
    """Return what code for this machine depends on, in LLVM's words."""
    return f"{llvm.get_host_cpu_name()} {llvm.get_host_cpu_features().flatten()}"


def compile_for_host(program: NestProgram) -> HostCode:
    """Return a program's machine code for this machine.

    Raises:
        Declined: it has what no code is made for, or is too large.
    """
    features = llvm.get_host_cpu_features()
    vector_bytes = next((size for name, size in _VECTORS if features.get(name)), 16)
    arguments = arguments_of(program)
    module = llvm.parse_assembly(_ProgramWriter(program, arguments, vector_bytes).text())
    machine = _machine()
    module.triple, module.data_layout = machine.triple, str(machine.target_data)
    module.verify()
    options = llvm.create_pipeline_tuning_options(3)
    options.loop_vectorization = options.slp_vectorization = True
    passes = llvm.create_pass_builder(machine, options)
    passes.getModulePassManager().run(module, passes)
    return HostCode(machine.emit_object(module))


class _ProgramWriter:
    """Writes the function that a thread calls, and its kernels."""

    def __init__(self, program: NestProgram, arguments: ProgramArguments, vector_bytes: int) -> None:
        self._program = program
        self._arguments = arguments
        self._vector_bytes = vector_bytes
        self._asm = Assembly()
        self._values = ValueWriter(self._asm, "")
        self._kernels: list[str] = []

    def text(self) -> str:
        asm = self._asm
        passed = self._read_slots()
        self._steps(self._program.steps, self._read_sizes(), passed, 0)
        if self._arguments.results:
            with asm.when(asm.compute("icmp eq i64 %thread, 0", "i1")):
                self._write_results()
        asm.write("ret i64 1")
        asm.start("stopped")
        asm.write("ret i64 0")
        run = f"define i64 @{ENTRY}(ptr %slots, i64 %thread, i64 %threads, ptr %shared) nounwind {{\n{asm.text()}\n}}\n"
        return "\n".join([MEET, *self._kernels, run])

    def _read_slots(self) -> list[str]:
        """Return the arguments as they are passed on to kernels."""
        kinds = [parameter.split()[0] for parameter in self._arguments.parameters()]
        names = [parameter.split()[-1] for parameter in self._arguments.parameters()]
        for number, (kind, name) in enumerate(zip(kinds, names, strict=True)):
            at = self._slot(number)
            self._asm.write(f"{name} = load {kind}, ptr {at}, align 4")
        return [f"{kind} {name}" for kind, name in zip(kinds, names, strict=True)]

    def _read_sizes(self) -> dict[str, SsaValue]:
        first = len(self._arguments.parameters())
        return {
            name: self._asm.compute(f"load i64, ptr {self._slot(first + number)}, align 4", "i64")
            for number, name in enumerate(self._program.sizes)
        }

    def _slot(self, number: int) -> str:
        return self._asm.compute(f"getelementptr i8, ptr %slots, i64 {SLOT_BYTES * number}", "ptr").name

    def _steps(
        self, steps: tuple[HostLoop | Kernel, ...], variables: Mapping[str, SsaValue], passed: list[str], depth: int
    ) -> None:
        if depth > MAX_DEPTH:
            raise Declined(DeclineReason.TOO_LARGE, f"loops on the host are nested more than {MAX_DEPTH} deep")
        for step in steps:
            if isinstance(step, Kernel):
                self._call(step, variables, passed)
                continue
            scope = LaneScope(variables)
            first, last = (self._values.expression(bound, scope) for bound in (step.first, step.last))
            with self._asm.loop(first, last, literal("i64", 1)) as variable:
                self._steps(step.body, {**variables, step.variable: variable}, passed, depth + 1)

    def _call(self, kernel: Kernel, variables: Mapping[str, SsaValue], passed: list[str]) -> None:
        """Write a kernel, its call, and the wait for all threads."""
        number = len(self._kernels)
        inner = {name: SsaValue(f"%h{at}", "i64") for at, name in enumerate(variables)}
        threads = ["i64 %thread", "i64 %threads", "ptr %shared"]
        known = [*self._arguments.parameters(), *(value.typed for value in inner.values()), *threads]
        writer = HostKernelWriter(self._program, kernel, ", ".join(known), inner, self._vector_bytes)
        self._kernels.append(writer.text(f"kernel{number}"))
        if sum(map(len, self._kernels)) > MAX_TEXT_BYTES:
            raise Declined(DeclineReason.TOO_LARGE, f"its code has more than {MAX_TEXT_BYTES} bytes")
        given = ", ".join([*passed, *(value.typed for value in variables.values()), *threads])
        self._asm.write(f"call void @kernel{number}({given})")
        stopped = self._asm.compute("call i1 @meet(i64 %threads, ptr %shared)", "i1")
        go = self._asm.fresh("go")
        self._asm.branch(stopped, "stopped", go)
        self._asm.start(go)

    def _write_results(self) -> None:
        asm, plan = self._asm, KernelShape(self._program, Kernel(0, ()), gpu=False)
        body = ThreadWriter(asm, "", self._program, plan)
        first = len(self._arguments.parameters()) + len(self._program.sizes)
        for number, (local, kind) in enumerate(self._arguments.results):
            value = body.result(self._program.nest.results[local], LaneScope({}))
            asm.write(f"store {spelled(kind)} {value.name}, ptr {self._slot(first + number)}, align 8")
        with asm.when(body.has_nan()):
            flag = asm.compute(f"getelementptr i8, ptr %shared, i64 {NAN}", "ptr")
            asm.write(f"store atomic i64 1, {flag.typed} monotonic, align 8")
