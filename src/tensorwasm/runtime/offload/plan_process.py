"""The process that makes plans: ``python -m tensorwasm.runtime.offload.plan_process HOW BYTES CPU_S PARENT``.

If ``patient`` it steps back as compilers do, if ``urgent`` it keeps its parent's priority. It reads jobs from standard
input and answers each on standard output, until its input ends. isl and LLVM work on what an untrusted module gives
them, so each job is done in a fork, which is limited in memory and processor time, has neither a key nor the pipes to
the parent, and leaves nothing behind for the next tenant. An answer is `PLAN` and a `PlanOutcome`, or `FAILED` and the
fork's exit status.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from tensorwasm.guest.engine.compiler_process import UNLIMITED, confine, step_back
from tensorwasm.guest.engine.job_process import answer_jobs
from tensorwasm.guest.imports.offload.guards import INTEGERS
from tensorwasm.offload.analysis.build import build_nest, read_region
from tensorwasm.offload.analysis.regions import LoopRegion
from tensorwasm.offload.codegen.host import compile_for_host
from tensorwasm.offload.codegen.nvptx import GpuCode, compile_for_gpu
from tensorwasm.offload.codegen.sizes import make_plan
from tensorwasm.offload.declined import Declined, DeclineReason
from tensorwasm.offload.module import LoneRegion
from tensorwasm.offload.plan_cache import PlanRefusal
from tensorwasm.offload.program import NestProgram
from tensorwasm.offload.scheduling.plan import FUSED_SEQUENTIAL, plan
from tensorwasm.runtime.offload import MAX_JOB_BYTES
from tensorwasm.runtime.offload.plan_job import (
    FAILED,
    MAX_ANSWER_BYTES,
    PLAN,
    PlanJob,
    PlanOutcome,
    pack,
    read_job,
)
from tensorwasm.wasm.definitions import CodeEntry
from tensorwasm.wasm.instructions import Instruction
from tensorwasm.wasm.module import Module
from tensorwasm.wasm.module import decode as decode_module
from tensorwasm.wasm.module import encode as encode_module
from tensorwasm.wasm.types import FuncType

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import IO, NoReturn

_COMPLAINT_BYTES: Final = 64 << 10
_STANDARD_ERROR: Final = 2
_SAMPLE: Final[tuple[Instruction, ...]] = (
    ("loop", None),
    *(("local.get", 0), ("local.get", 0), ("f64.load", (3, 0, 0)), ("f64.store", (3, 0, 0))),
    *(("local.get", 0), ("i32.const", 8), ("i32.add",), ("local.tee", 0), ("local.get", 1), ("i32.ne",), ("br_if", 0)),
    ("end",),
)


def main(arguments: list[str], source: IO[bytes], sink: IO[bytes]) -> int:
    """Answer jobs until the input ends; return the exit code."""
    memory_bytes, cpu_s, parent = map(int, arguments[1:])
    if arguments[0] == "patient":
        step_back()
    confine(parent, memory_bytes, UNLIMITED, UNLIMITED)
    _warm_up()
    gc.freeze()
    return answer_jobs(source, sink, MAX_JOB_BYTES, partial(_answer, memory_bytes, cpu_s))


def _warm_up() -> None:
    """Fill what is computed once a process, so that no fork has to do it."""
    region = LoopRegion(0, 0, len(_SAMPLE) - 1, ((0, "i32"), (1, "i32")), (), (), 1)
    module = Module((FuncType(("i32", "i32"), ()),), functions=(0,), bodies=(CodeEntry.build((), _SAMPLE),))
    for target in ("", (9, 0)):
        make(PlanJob("", LoneRegion(encode_module(module), region), (0, 800), 1 << 16, target))


def _answer(memory_bytes: int, cpu_s: int, job: bytes) -> bytes:
    """Do a job in a fork."""
    os.ftruncate(_STANDARD_ERROR, 0)  # what an earlier one has said
    reading, writing = os.pipe()
    template = os.getpid()
    process = os.fork()
    if not process:
        os.close(reading)
        _do_and_end(job, writing, lambda: confine(template, memory_bytes, cpu_s, _COMPLAINT_BYTES))
    os.close(writing)
    with open(reading, "rb") as pipe:  # noqa: PTH123 - of a descriptor
        answer = pipe.read(MAX_ANSWER_BYTES)
    too_long = len(answer) == MAX_ANSWER_BYTES
    if too_long:  # it is not reaped yet, so the number is its own
        os.kill(process, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    return PLAN + answer if not (status or too_long) else FAILED + str(status).encode()


def _do_and_end(job: bytes, writing: int, limit: Callable[[], None]) -> NoReturn:
    status = 1
    try:
        os.close(0)
        os.close(1)
        limit()
        with open(writing, "wb") as pipe:
            pipe.write(pack(PlanOutcome.of(make(read_job(job)))))
        status = 0
    except BaseException:  # noqa: BLE001 - a fork does not go on as its template
        traceback.print_exc()
    finally:
        os._exit(status)


def make(job: PlanJob) -> object:
    """Return code for a plan's target, or a `PlanRefusal`; errors are written to standard error."""
    try:
        began_ns = time.perf_counter_ns()
        program = plan_region(job.region, job.integers, job.memory_bytes, relaxed=job.relaxed)
        planned_ns = time.perf_counter_ns()
        compile_code = compile_for_host if isinstance(job.target, str) else partial(_compile_for_gpu, job.target)
        made = make_plan(program, compile_code, job.known, vectors=not isinstance(job.target, str))
        compiled_ns = time.perf_counter_ns() - planned_ns
        return replace(made, analysed_ns=planned_ns - began_ns, compiled_ns=compiled_ns)
    except Declined as declined:
        return PlanRefusal(declined.reason, declined.detail)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - a fault of ours, which the loop does not notice
        traceback.print_exc()
        return PlanRefusal(DeclineReason.FAULT, type(error).__name__)


def plan_region(lone: LoneRegion, integers: Sequence[int], memory_bytes: int, *, relaxed: bool = False) -> NestProgram:
    """Return how a region runs in parallel; raise `Declined` if it cannot. Arguments are those of a `PlanJob`."""
    given = iter(integers)
    local_values = {local: next(given) for local, kind in lone.region.inputs if kind in INTEGERS}
    global_values = {number: next(given) for number, _ in lone.region.globals}
    code = read_region(decode_module(lone.wasm), lone.region)
    nest = build_nest(code, local_values, global_values)
    most = FUSED_SEQUENTIAL if lone.region.parts > 1 else None
    return plan(nest, memory_bytes, most_sequential=most, relaxed=relaxed)


def _compile_for_gpu(architecture: tuple[int, int], program: NestProgram) -> GpuCode:
    return compile_for_gpu(program, architecture)


if __name__ == "__main__":
    with suppress(BrokenPipeError, KeyboardInterrupt):
        sys.exit(main(sys.argv[1:], sys.stdin.buffer, sys.stdout.buffer))
