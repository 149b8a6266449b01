"""The worker's side of guarded kernels and of plans: it asks the parent, which has kept them, or has them made."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from itertools import count

from tensorwasm.errors import CapacityExhausted, InternalError, InvokeTimeout, MalformedPtx, TensorWasmError
from tensorwasm.gpu.resources.guarded_compiler import KernelJob
from tensorwasm.gpu.resources.kernel_store import StoredKernel, decode
from tensorwasm.offload.declined import DeclineReason
from tensorwasm.offload.plan_cache import PlanRefusal
from tensorwasm.runtime.deploy.deployer import StopHook
from tensorwasm.runtime.offload import MAX_JOB_BYTES
from tensorwasm.runtime.offload.plan_job import PlanJob, PlanOutcome, pack, read_outcome
from tensorwasm.runtime.workers.child.parent_link import ParentLink
from tensorwasm.runtime.workers.conversation.outbox import split
from tensorwasm.runtime.workers.frames import AskFrame, AskPartFrame, PlanAskFrame
from tensorwasm.runtime.workers.kernels.room import ASKS, ASKS_EACH, PLANS, PLANS_EACH, Room
from tensorwasm.values import Deadline


class ParentCompiler:
    """Has kernels compiled and plans made by the parent.

    See `tensorwasm.gpu.resources.guarded_compiler.KernelCompiler` and `PlanSource`.
    """

    def __init__(self, link: ParentLink) -> None:
        self._link = link
        self._room = Room(ASKS_EACH, ASKS)
        self._numbers = count(1)
        self._changed = threading.Condition()
        self._plans = Room(PLANS_EACH, PLANS)
        self._asked: dict[int, tuple[Callable[[], object], Future[bytes]]] = {}

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
            self._asked[number] = partial(self._room.leave, job.tenant, len(job.text)), answer
        try:
            frame = AskFrame(number, job.tenant, job.entry, job.architecture, job.width, len(job.text))
            self._send(frame, job.text)
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
            leave, waiting = asked
            leave()
            self._changed.notify_all()
        if not waiting.set_running_or_notify_cancel():
            return
        if isinstance(outcome, bytes):
            waiting.set_result(outcome)
        else:
            waiting.set_exception(outcome)

    def make(self, job: PlanJob, stop: StopHook) -> PlanOutcome:
        """See `PlanSource.make`. The parent bounds how long that takes."""
        data = pack(job)
        if len(data) > MAX_JOB_BYTES:
            return PlanOutcome.of(PlanRefusal(DeclineReason.TOO_LARGE, "the region"))
        answer: Future[bytes] = Future()
        with self._changed:
            if not self._plans.enter(job.tenant, len(data)):
                raise CapacityExhausted("too many plans are being made")
            number = next(self._numbers)
            self._asked[number] = partial(self._plans.leave, job.tenant, len(data)), answer
        stop.stop_with(answer.cancel)
        try:
            self._send(PlanAskFrame(number, job.tenant, len(data)), data)
            return read_outcome(answer.result())
        except OSError:
            raise CapacityExhausted("the process that makes plans has gone") from None
        finally:
            stop.forget()

    def rest(self) -> None:
        """See `PlanSource.rest`."""

    def close(self) -> None:
        """See `PlanSource.close`: those who wait are stopped."""

    def _send(self, frame: AskFrame | PlanAskFrame, data: bytes) -> None:
        self._link.send(frame)
        for part in split(data):
            self._link.send(AskPartFrame(frame.ask, part))
