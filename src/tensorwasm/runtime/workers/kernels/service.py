"""`KernelService`: compiles the kernels of guarded workers, in processes of its own, and keeps them on the disk.

A worker has neither a key nor the time: what is kept is signed, and guarding holds its interpreter while others' guests
wait. Two compiler processes, kept warm: one for kernels that are compiled quickly, which ends those that are not, and
one for these and for whatever their tenants bring in the next minute. Tenants take turns in both.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from tensorwasm import settings
from tensorwasm.errors import CapacityExhausted, InternalError, InvokeTimeout, KernelTooLarge, TensorWasmError
from tensorwasm.gpu.limits.tenant_queue import TenantQueue
from tensorwasm.gpu.resources.guarded_compiler import KernelJob, KernelTarget
from tensorwasm.gpu.resources.kernel_store import KernelStore, decode
from tensorwasm.guest.engine.job_process import BrokenProcess, JobProcess, Late
from tensorwasm.ptx.guarded import Width
from tensorwasm.runtime.workers.kernels.child import MAX_ANSWER_BYTES, Answer, CompileJob
from tensorwasm.runtime.workers.kernels.room import PREPARED, PREPARED_EACH, WAITING, WAITING_EACH, Room
from tensorwasm.runtime.workers.outcomes import rebuild_error
from tensorwasm.runtime.workers.template import make_environment

PROGRAM: Final = ("-m", "tensorwasm.runtime.workers.kernels.child")

_START_S: Final = 20.0
"""What a process gets to start, on top of its first kernel."""
_MARGIN_S: Final = 2.0
"""What a process gets beyond a kernel's limit, within which it ends ptxas itself and answers."""

QUICK_S: Final = 3.0
"""What a kernel gets beside those of all tenants; a hundred times what most take."""
SLOW_S: Final = 60.0
"""What it gets beside others that took too long."""
SLOW_FOR_S: Final = 60.0
"""For how long a tenant of one brings its kernels there."""
Outcome = bytes | TensorWasmError
"""A compiled kernel as `tensorwasm.gpu.resources.kernel_store.encode` has it, or why there is none."""
Done = Callable[[Outcome], object]

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


@dataclass(slots=True)
class _Lane:
    """One compiler process and what waits for it."""

    limit_s: float
    waiting: TenantQueue[KernelJob] = field(default_factory=TenantQueue)
    thread: threading.Thread | None = None
    compiler: CompilerProcess | None = None


class EarlyKernel(NamedTuple):
    """A kernel to compile before its first call; fields as in `KernelJob`."""

    tenant: str
    text: bytes
    entry: str
    width: Width


class KernelService:
    """Compiles kernels, each once at a time. Thread-safe; nothing but `close` waits.

    Args:
        store: keeps compiled kernels between processes; None keeps none.
        program: what Python runs as a compiler.
    """

    def __init__(self, store: KernelStore | None, program: Sequence[str] = PROGRAM) -> None:
        self._store = store
        self._program = program
        self._changed = threading.Condition()
        self._lanes = (_Lane(QUICK_S), _Lane(SLOW_S))
        self._wanted: dict[bytes, list[Done]] = {}
        self._room = Room(WAITING_EACH, WAITING)
        self._slow_until_s: dict[str, float] = {}
        self._early: TenantQueue[EarlyKernel] = TenantQueue()
        self._early_room = Room(PREPARED_EACH, PREPARED)
        self._target: KernelTarget | None = None
        self._closed = False
        self.prepared = 0  # kernels compiled before anybody asked for them

    def submit(self, job: KernelJob, done: Done) -> None:
        """Have a kernel compiled, or taken from the store; `done` is called once, perhaps now, from any thread.

        It gets errors of `tensorwasm.gpu.resources.guarded_compiler.KernelCompiler.compile`; it may not wait or raise.
        """
        name = job.name
        with self._changed:
            if name in self._wanted:
                self._wanted[name].append(done)
                return
            refusal = self._admit(job)
            if not refusal:
                self._forget_early(EarlyKernel(job.tenant, job.text, job.entry, job.width))
                self._wanted[name] = [done]
                self._enter(self._lanes[self._is_slow(job.tenant)], job)
        if refusal:
            done(CapacityExhausted(refusal))

    def prepare(self, kernel: EarlyKernel) -> bool:
        """Have a kernel compiled before anybody asks for it, so that it is kept by then; return whether it waits now.

        It is compiled when no slow kernel waits, within what quick ones get, for the device whose worker was ready
        last. Who submits it meanwhile does not wait for that.
        """
        with self._changed:
            if self._closed or self._store is None:
                return False
            if not self._early.put(kernel.tenant, kernel):
                return True
            if not self._early_room.enter(kernel.tenant, len(kernel.text)):
                self._early.remove(kernel.tenant, kernel)
                return False
            self._run(self._lanes[-1])
            return True

    def know(self, target: KernelTarget) -> None:
        """Set the device that kernels are compiled for before their first call."""
        with self._changed:
            self._target = target
            self._changed.notify_all()

    def close(self) -> None:
        """End what runs and refuse what waits. Idempotent; waits for the processes to be gone."""
        with self._changed:
            self._closed = True
            wanted, self._wanted = self._wanted, {}
            for lane in self._lanes:
                if lane.compiler is not None:
                    lane.compiler.kill()  # so that its thread, which owns it, waits for it no longer
            self._changed.notify_all()
        for lane in self._lanes:
            if lane.thread is not None:
                lane.thread.join()
        for done in [each for waiting in wanted.values() for each in waiting]:
            done(CapacityExhausted("the service stops"))

    def _admit(self, job: KernelJob) -> str:
        """Count a kernel that is to wait; return why it may not, empty if it may."""
        if self._closed:
            return "the service stops"
        if not self._room.enter(job.tenant, len(job.text)):
            return "too many kernels wait to be compiled; try again when some are"
        return ""

    def _is_slow(self, tenant: str) -> bool:
        until_s = self._slow_until_s.get(tenant, 0.0)
        if time.monotonic() >= until_s:
            self._slow_until_s.pop(tenant, None)
            return False
        return True

    def _enter(self, lane: _Lane, job: KernelJob) -> None:
        lane.waiting.put(job.tenant, job)
        self._run(lane)

    def _run(self, lane: _Lane) -> None:
        if lane.thread is None:
            lane.thread = threading.Thread(
                target=self._serve, args=(lane,), name="tensorwasm-kernel-compiler", daemon=True
            )
            lane.thread.start()
        self._changed.notify_all()

    def _forget_early(self, kernel: EarlyKernel) -> None:
        if self._early.remove(kernel.tenant, kernel):
            self._early_room.leave(kernel.tenant, len(kernel.text))

    # ------------------------------------------------------------------------------ on the threads of the lanes

    def _serve(self, lane: _Lane) -> None:
        """Compile until closed; the process ends with this thread."""
        while (found := self._next(lane)) is not None:
            job, early = found
            if not early or self._begin_early(job):
                self._work(lane, job, early=early)
        self._drop(lane)

    def _work(self, lane: _Lane, job: KernelJob, *, early: bool) -> None:
        """Find or compile a kernel, and answer those who wait for it."""
        outcome: Outcome | None = None
        quick = early or lane is self._lanes[0]
        limit_s = self._lanes[0 if quick else -1].limit_s
        try:
            outcome = self._find(job)
            if outcome is None:
                outcome = self._keep(job, self._compiler(lane).compile(job, limit_s))
                self.prepared += early
        except Late:
            if not self._put_off(job, quick=quick):
                outcome = KernelTooLarge(f"the kernel was not guarded and compiled within {limit_s:g} s")
        except TensorWasmError as error:
            outcome = error
        except Exception:  # noqa: BLE001 - a bug: those who wait for the kernel get an answer
            _log.exception("a kernel was not compiled")
            outcome = InternalError("a kernel was not compiled")
        if lane.compiler is not None and not lane.compiler.fit:
            self._drop(lane)
        if outcome is not None:
            self._settle(job, outcome)

    def _compiler(self, lane: _Lane) -> CompilerProcess:
        with self._changed:
            if self._closed:
                raise CapacityExhausted("the service stops")
            if lane.compiler is None:
                lane.compiler = CompilerProcess(self._program)
            return lane.compiler

    def _drop(self, lane: _Lane) -> None:
        with self._changed:
            compiler, lane.compiler = lane.compiler, None
        if compiler is not None:
            compiler.end()

    def _next(self, lane: _Lane) -> tuple[KernelJob, bool] | None:
        """Return what is to be compiled next, and whether nobody has asked for it; None once closed."""
        with self._changed:
            while not self._closed:
                if (job := lane.waiting.take()) is not None:
                    return job, False
                if lane is self._lanes[-1] and (job := self._take_early()) is not None:
                    return job, True
                self._changed.wait()
        return None

    def _take_early(self) -> KernelJob | None:
        target = self._target
        if target is None or (kernel := self._early.take()) is None:
            return None
        self._early_room.leave(kernel.tenant, len(kernel.text))
        architecture = settings.current().cuda_arch or target.compute_capability
        return KernelJob(kernel.tenant, kernel.text, kernel.entry, architecture, kernel.width, target)

    def _begin_early(self, job: KernelJob) -> bool:
        """Begin a kernel that nobody had asked for; return False if somebody has, or there is no room for it."""
        name = job.name
        with self._changed:
            if name in self._wanted or self._admit(job):
                return False
            self._wanted[name] = []
            return True

    def _find(self, job: KernelJob) -> bytes | None:
        data = None if self._store is None else self._store.get(job.name)
        return data if data is not None and decode(data) is not None else None

    def _keep(self, job: KernelJob, data: bytes) -> bytes:
        if decode(data) is None:
            raise InternalError("the kernel compiler answered what is no kernel")
        if self._store is not None:
            self._store.put(job.name, data)
        return data

    def _put_off(self, job: KernelJob, *, quick: bool) -> bool:
        """Have a kernel compiled beside the slow ones that was late; return False if it was, or nobody waits for it."""
        with self._changed:
            if not self._wanted.get(job.name):
                return False
            self._slow_until_s[job.tenant] = time.monotonic() + SLOW_FOR_S
            if quick:
                self._enter(self._lanes[-1], job)
            return quick

    def _settle(self, job: KernelJob, outcome: Outcome) -> None:
        with self._changed:
            waiting = self._wanted.pop(job.name, [])
            self._room.leave(job.tenant, len(job.text))
        for done in waiting:
            done(outcome)
