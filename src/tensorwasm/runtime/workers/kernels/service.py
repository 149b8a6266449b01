"""`KernelService`: compiles the kernels of guarded workers, in processes of its own, and keeps them on the disk.

A worker has neither a key nor the time: what is kept is signed, and guarding holds its interpreter while others' guests
wait. Two compiler processes, kept warm: one for kernels that are compiled quickly, which ends those that are not, and
one for these and for whatever their tenants bring in the next minute. Tenants take turns in both.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from tensorwasm.errors import CapacityExhausted, InternalError, KernelTooLarge, TensorWasmError
from tensorwasm.gpu.resources.guarded_compiler import KernelJob
from tensorwasm.gpu.resources.kernel_store import KernelStore, decode
from tensorwasm.runtime.workers.kernels.compiler_process import PROGRAM, CompilerProcess, Late
from tensorwasm.runtime.workers.kernels.room import WAITING, WAITING_EACH, Room

QUICK_S: Final = 3.0
"""What a kernel gets beside those of all tenants; a hundred times what most take."""
SLOW_S: Final = 60.0
"""What it gets beside others that took too long."""
SLOW_FOR_S: Final = 60.0
"""For how long a tenant of one brings its kernels there."""
Outcome = bytes | TensorWasmError
"""A compiled kernel as `tensorwasm.gpu.resources.kernel_store.encode` has it, or why there is none."""
Done = Callable[[Outcome], object]

_log: Final = logging.getLogger(__name__)


@dataclass(slots=True)
class _Lane:
    """One compiler process and what waits for it, by tenant in the order of their turns."""

    limit_s: float
    waiting: OrderedDict[str, deque[KernelJob]] = field(default_factory=OrderedDict)
    thread: threading.Thread | None = None
    compiler: CompilerProcess | None = None

    def put(self, job: KernelJob) -> None:
        self.waiting.setdefault(job.tenant, deque()).append(job)

    def take(self) -> KernelJob | None:
        """Return the next job: the first one of the tenant whose turn it is."""
        if not self.waiting:
            return None
        tenant, jobs = self.waiting.popitem(last=False)
        job = jobs.popleft()
        if jobs:
            self.waiting[tenant] = jobs
        return job


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
        self._closed = False

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
                self._wanted[name] = [done]
                self._enter(self._lanes[self._is_slow(job.tenant)], job)
        if refusal:
            done(CapacityExhausted(refusal))

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
        lane.put(job)
        if lane.thread is None:
            lane.thread = threading.Thread(
                target=self._serve, args=(lane,), name="tensorwasm-kernel-compiler", daemon=True
            )
            lane.thread.start()
        self._changed.notify_all()

    # ------------------------------------------------------------------------------ on the threads of the lanes

    def _serve(self, lane: _Lane) -> None:
        """Compile until closed; the process ends with this thread."""
        while (job := self._next(lane)) is not None:
            outcome: Outcome | None = None
            try:
                outcome = self._find(job) or self._keep(job, self._compiler(lane).compile(job, lane.limit_s))
            except Late:
                if not self._put_off(lane, job):
                    outcome = KernelTooLarge(f"the kernel was not guarded and compiled within {lane.limit_s:g} s")
            except TensorWasmError as error:
                outcome = error
            except Exception:  # noqa: BLE001 - a bug: those who wait for the kernel get an answer
                _log.exception("a kernel was not compiled")
                outcome = InternalError("a kernel was not compiled")
            if lane.compiler is not None and not lane.compiler.fit:
                self._drop(lane)
            if outcome is not None:
                self._settle(job, outcome)
        self._drop(lane)

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

    def _next(self, lane: _Lane) -> KernelJob | None:
        with self._changed:
            while not self._closed:
                if (job := lane.take()) is not None:
                    return job
                self._changed.wait()
        return None

    def _find(self, job: KernelJob) -> bytes | None:
        data = None if self._store is None else self._store.get(job.name)
        return data if data is not None and decode(data) is not None else None

    def _keep(self, job: KernelJob, data: bytes) -> bytes:
        if decode(data) is None:
            raise InternalError("the kernel compiler answered what is no kernel")
        if self._store is not None:
            self._store.put(job.name, data)
        return data

    def _put_off(self, lane: _Lane, job: KernelJob) -> bool:
        """Have a kernel that was not compiled in time compiled beside the slow ones; return False if it was there."""
        with self._changed:
            self._slow_until_s[job.tenant] = time.monotonic() + SLOW_FOR_S
            if lane is self._lanes[0]:
                self._enter(self._lanes[1], job)
            return lane is self._lanes[0]

    def _settle(self, job: KernelJob, outcome: Outcome) -> None:
        with self._changed:
            waiting = self._wanted.pop(job.name, [])
            self._room.leave(job.tenant, len(job.text))
        for done in waiting:
            done(outcome)
