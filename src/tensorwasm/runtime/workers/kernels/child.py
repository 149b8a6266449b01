"""The kernel compiler's process: ``python -m tensorwasm.runtime.workers.kernels.child PARENT``.

It reads jobs from standard input and answers each on standard output, in MessagePack, until its input ends. Guarding,
verifying and ptxas get untrusted texts, so the process limits its memory, writes no core files, has a low priority and
no key. It ends with the thread that started it.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import IO, Final

import msgspec

from tensorwasm import settings
from tensorwasm.errors import DeviceUnavailable, KernelTooLarge, TensorWasmError
from tensorwasm.gpu.cuda.assembler import find_assembler
from tensorwasm.gpu.cuda.modules import KernelAssembler
from tensorwasm.gpu.device.limits import MAX_GUARDED_IMAGE_BYTES
from tensorwasm.gpu.resources.guarded_compiler import KernelJob, KernelTarget, compile_guarded
from tensorwasm.gpu.resources.kernel_store import encode
from tensorwasm.guest.engine.compiler_process import UNLIMITED, confine, step_back
from tensorwasm.guest.engine.job_process import answer_jobs
from tensorwasm.ptx import MAX_PTX_BYTES
from tensorwasm.runtime.workers.frames import FailedFrame
from tensorwasm.runtime.workers.outcomes import describe_error
from tensorwasm.values import MIB, Deadline

MAX_JOB_BYTES: Final = MAX_PTX_BYTES + (64 << 10)
MAX_ANSWER_BYTES: Final = MAX_GUARDED_IMAGE_BYTES + 4 * MIB
"""An image, and what launches need, variables of the module included."""

_MEMORY_BYTES: Final = 4 << 30


class CompileJob(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A kernel to compile, and the seconds that it may take."""

    kernel: KernelJob
    limit_s: float


class Answer(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A compiled kernel as `tensorwasm.gpu.resources.kernel_store.encode` has it, or why there is none."""

    kernel: bytes | None
    failure: FailedFrame | None


def main(arguments: list[str], source: IO[bytes], sink: IO[bytes]) -> int:
    """Answer jobs until the input ends; return the exit code."""
    step_back()
    if sys.platform == "linux":
        confine(int(arguments[0]), _MEMORY_BYTES, UNLIMITED, UNLIMITED)  # ptxas writes files, and limits itself
    jobs = msgspec.msgpack.Decoder(CompileJob)
    return answer_jobs(source, sink, MAX_JOB_BYTES, lambda job: msgspec.msgpack.encode(compile_job(jobs.decode(job))))


def compile_job(job: CompileJob) -> Answer:
    """Compile a kernel."""
    try:
        compiler = _open_compiler(job.kernel.target)
        stored = compile_guarded(job.kernel, compiler.compile_kernel, Deadline.after(job.limit_s))
        return Answer(encode(stored), None)
    except MemoryError:
        failure: TensorWasmError = KernelTooLarge("guarding the kernel takes more memory than it may have")
    except TensorWasmError as error:
        failure = error
    return Answer(None, describe_error(1, failure))


@cache
def _open_compiler(target: KernelTarget) -> KernelAssembler:
    """Return a compiler for a device, with the ptxas that the device's process has chosen.

    Raises:
        DeviceUnavailable: it is not here any more.
    """
    found = find_assembler(settings.current().ptxas, os.environ, lambda each: each.name == target.assembler)
    if found is None or found.name != target.assembler:
        raise DeviceUnavailable(f"{target.assembler} is not here any more: start the service again")
    # That it serves the device and its driver, the device's process has found out.
    found = replace(found, apart=False)  # who kills this process kills its ptxas, too
    return KernelAssembler(found, target.compute_capability, target.ptx_version, (found.release[0], 0))


if __name__ == "__main__":
    with suppress(BrokenPipeError, KeyboardInterrupt):
        sys.exit(main(sys.argv[1:], sys.stdin.buffer, sys.stdout.buffer))
