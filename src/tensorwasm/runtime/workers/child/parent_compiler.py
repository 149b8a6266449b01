"""The worker's side of compiling guarded kernels: it asks the parent, which has kept them, or has them compiled."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from functools import partial
from itertools import count

from tensorwasm.errors import CapacityExhausted, InternalError, InvokeTimeout, MalformedPtx, TensorWasmError
from tensorwasm.gpu.resources.guarded_compiler import KernelJob
from tensorwasm.gpu.resources.kernel_store import StoredKernel, decode
from tensorwasm.runtime.workers.child.parent_link import ParentLink
from tensorwasm.runtime.workers.conversation.outbox import split
from tensorwasm.runtime.workers.frames import AskFrame, AskPartFrame
from tensorwasm.runtime.workers.kernels.room import ASKS, ASKS_EACH, Room
from tensorwasm.values import Deadline


class ParentCompiler:
    """Has kernels compiled by the parent; see `tensorwasm.gpu.resources.guarded_compiler.KernelCompiler`."""

    def __init__(self, link: ParentLink) -> None:
        self._link = link
        self._room = Room(ASKS_EACH, ASKS)
        self._numbers = count(1)
        self._changed = threading.Condition()
        self._asked: dict[int, tuple[KernelJob, Future[bytes]]] = {}

    def compile(self, job: KernelJob, deadline: Deadline) -> StoredKernel:
        """See `KernelCompiler.compile`."""
        if not job.text:  # it would have no part, and the parent takes an ask without any for a broken process
            raise MalformedPtx("the PTX is empty")
        answer: Future[bytes] = Future()
        with self._changed:
            # A tenant with many new kernels waits for its own answers, and leaves room for the kernels of others.
            fits = partial(self._room.enter, job.tenant, len(job.text))
            if not self._changed.wait_for(fits, min(deadline.remaining_s(), threading.TIMEOUT_MAX)):
                raise InvokeTimeout("the deadline passed while other kernels were compiled")
            number = next(self._numbers)
            self._asked[number] = job, answer
        try:
            size_bytes = len(job.text)
            self._link.send(AskFrame(number, job.tenant, job.entry, job.architecture, job.width, size_bytes))
            for part in split(job.text):
                self._link.send(AskPartFrame(number, part))
            data = answer.result(min(deadline.remaining_s(), threading.TIMEOUT_MAX))
        except TimeoutError:  # its place is free again once it is answered
            raise InvokeTimeout("the deadline passed while the kernel was compiled") from None
        except OSError:
            raise CapacityExhausted("the process that compiles kernels has gone") from None
        kernel = decode(data)
        if kernel is None:
            raise InternalError("the parent answered what is no kernel")
        return kernel

    def answer(self, ask: int, outcome: bytes | TensorWasmError) -> None:
        """Take the parent's answer."""
        with self._changed:
            asked = self._asked.pop(ask, None)
            if asked is None:
                return
            job, waiting = asked
            self._room.leave(job.tenant, len(job.text))
            self._changed.notify_all()
        if isinstance(outcome, bytes):
            waiting.set_result(outcome)
        else:
            waiting.set_exception(outcome)
