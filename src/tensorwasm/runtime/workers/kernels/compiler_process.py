"""`CompilerProcess`: the parent's side of one process that compiles kernels. What it answers is decoded with limits."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Final

import msgspec

from tensorwasm.errors import InternalError, InvokeTimeout, KernelTooLarge
from tensorwasm.gpu.resources.guarded_compiler import KernelJob
from tensorwasm.guest.engine.job_process import BrokenProcess, JobProcess, Late
from tensorwasm.runtime.workers.kernels.child import MAX_ANSWER_BYTES, Answer, CompileJob
from tensorwasm.runtime.workers.outcomes import rebuild_error
from tensorwasm.runtime.workers.template import make_environment

PROGRAM: Final = ("-m", "tensorwasm.runtime.workers.kernels.child")

_START_S: Final = 20.0
"""What a process gets to start, on top of its first kernel."""
_MARGIN_S: Final = 2.0
"""What a process gets beyond a kernel's limit, within which it ends ptxas itself and answers."""

_answers: Final = msgspec.msgpack.Decoder(Answer)
_log: Final = logging.getLogger(__name__)


class CompilerProcess(JobProcess):
    """A compiler process, and its ptxas; for one thread, with which it ends.

    Raises:
        CapacityExhausted: it cannot be started.
    """

    def __init__(self, program: Sequence[str]) -> None:
        super().__init__(program, make_environment(os.environ, None), MAX_ANSWER_BYTES)
        self._grace_s = _START_S

    def compile(self, job: KernelJob, limit_s: float) -> bytes:
        """Return a compiled kernel, or raise why there is none.

        Raises:
            Late: it did not end in time.
        """
        data = msgspec.msgpack.encode(CompileJob(job, limit_s))
        try:
            answer = _answers.decode(self.ask(data, limit_s + _MARGIN_S + self._grace_s))
        except (msgspec.MsgspecError, BrokenProcess) as error:
            _log.warning("the process that compiles kernels has gone, or does not keep to the protocol: %s", error)
            raise KernelTooLarge("the process that guards and compiles kernels ended on this one") from None
        self._grace_s = 0.0
        if answer.kernel is not None:
            return answer.kernel
        if answer.failure is None:
            raise InternalError("the kernel compiler has no answer")
        if answer.failure.kind == InvokeTimeout.kind:
            raise Late
        raise rebuild_error(answer.failure)
