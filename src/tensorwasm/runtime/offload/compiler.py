"""`OffloadCompiler`: makes cut modules and plans on threads and in processes of its own, and keeps them signed.

A module is cut and compiled again as one of its tenant's compilations. Plans are made one after the other, tenants in
turns, in a fork of one process (`tensorwasm.runtime.offload.plan_process`), within limits: what crashes it, or takes
too much, costs that plan. All of it lies in the folder of compiled kernels, signed, under hashes of all that it depends
on, so it is made once for a tenant on a machine.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tensorwasm.artifacts.hashing import blake3
from tensorwasm.errors import CapacityExhausted, RateLimited
from tensorwasm.gpu.limits.tenant_queue import TenantQueue
from tensorwasm.gpu.resources.kernel_store import name_of
from tensorwasm.guest.engine.child_process import ChildResponse, describe, kept_variables
from tensorwasm.guest.engine.job_process import BrokenProcess, JobProcess, Late
from tensorwasm.offload.codegen.sizes import MadePlan
from tensorwasm.offload.declined import DeclineReason
from tensorwasm.offload.module import CutModule
from tensorwasm.offload.plan_cache import NOT_READY, PlanRefusal
from tensorwasm.runtime.deploy.deployer import Deployer, StopHook
from tensorwasm.runtime.deploy.kernel_folder import open_kernel_folder
from tensorwasm.runtime.offload.plan_job import MAX_ANSWER_BYTES, PLAN, PlanJob, code_digest, decode, encode
from tensorwasm.values import MIB
from tensorwasm.yielding import lower_priority

if TYPE_CHECKING:
    from tensorwasm.gpu.resources.kernel_store import KernelStore

PROGRAM: Final = ("-m", "tensorwasm.runtime.offload.plan_process")
MEMORY_BYTES: Final = 1024 * MIB
"""Address space for a plan."""
CPU_S: Final = 10
"""Seconds of a processor for a plan."""
WALL_S: Final = 120.0
"""What a plan may take by the clock, on a machine that has other work, the start of the process included."""

_VARIABLES: Final = ("LD_LIBRARY_PATH", "PYTHONPATH", "SYSTEMROOT", "TENSOR_WASM_NATIVE")
_PASSING: Final = frozenset({DeclineReason.FAULT, DeclineReason.CRASH, DeclineReason.OUT_OF_TIME})
"""Refusals that another process may not meet."""

MOST_EACH: Final = 64
"""Tasks of one tenant that wait on a thread."""
MOST: Final = 1024
"""Tasks that wait on one."""

_Made = TypeVar("_Made")
_Result = TypeVar("_Result")
_log: Final = logging.getLogger(__name__)


class OffloadCompiler:
    """Makes cut modules and plans. Thread-safe; nothing but `cut` and `close` waits.

    Args:
        deployer: whose capacity compilations share.
        program: what Python runs as the process that makes plans.

    Attributes:
        made: plans and refusals that a process has made.
        compiled: plans of these whose code was not known.
        kept: those that were found on the disk.
        urgent: whether a process that is started for plans keeps this one's priority, because calls wait for them.
    """

    def __init__(self, deployer: Deployer, program: Sequence[str] = PROGRAM) -> None:
        self._deployer = deployer
        self._program = program
        self._lock = threading.Lock()
        self._plans = TenantThread("tensorwasm-plans", self._drop_process)
        self._modules = TenantThread("tensorwasm-cutting")
        self._wanted: dict[bytes, Future[Any]] = {}
        self._stops: set[StopHook] = set()
        self._process: JobProcess | None = None
        self._closed = False
        self.made = 0
        self.compiled = 0
        self.kept = 0
        self.urgent = False

    def request(self, job: PlanJob) -> Future[Any] | None:
        """Have a plan made, or taken from the disk: a `MadePlan` for its target or a `PlanRefusal`.

        Returns None if too much waits; `NOT_READY` comes if it cannot be made now, and may be later.
        """
        name = job.name
        with self._lock:
            if (wanted := self._wanted.get(name)) is not None:
                return wanted
            requested = self._plans.submit(job.tenant, partial(self._find, name, job))
            if requested is None:
                return None
            self._wanted[name] = requested
        requested.add_done_callback(lambda _: self._forget(name))
        return requested

    def begin(self, tenant: str, task: Callable[[StopHook], _Made]) -> Future[_Made] | None:
        """Have a module prepared in its tenant's turn; closing stops what is being done. None if too much waits."""
        return self._modules.submit(tenant, partial(self._stoppable, task))

    def cut(self, wasm: bytes, tenant: str, work: StopHook | None = None) -> CutModule:
        """Return a module with guards, from the disk if it was cut before. Blocks; raises as `Deployer.cut` does."""
        name = name_of("cut", code_digest(), tenant, blake3(wasm))
        found = self._read(name)
        if not isinstance(found, CutModule):
            found = self._deployer.cut(wasm, tenant, work)
            self._keep(name, found)
        return found

    def close(self) -> None:
        """End what is being made, and the process. Idempotent."""
        with self._lock:
            self._closed = True
            stops = list(self._stops)
            if self._process is not None:
                self._process.kill()  # so that its thread, which owns it, waits for it no longer
        for stop in stops:
            stop.stop()
        self._plans.close()
        self._modules.close()

    # ------------------------------------------------------------------------------------------- on the threads

    def _stoppable(self, task: Callable[[StopHook], _Made]) -> _Made:
        stop = StopHook()
        with self._lock:
            if self._closed:
                raise CancelledError
            self._stops.add(stop)
        try:
            return task(stop)
        finally:
            with self._lock:
                self._stops.discard(stop)

    def _find(self, name: bytes, job: PlanJob) -> object:
        found = self._complete(job, self._read(name))
        if found is not None:
            self.kept += 1
            return found
        try:
            found = self._stoppable(partial(self._make, job))
        except (CancelledError, CapacityExhausted, RateLimited):
            return NOT_READY
        self.made += 1
        if isinstance(found, MadePlan):
            if found.code is not None:
                self.compiled += 1
                self._keep(job.code_name(found.fingerprint), found.code)
            self._keep(name, replace(found, code=None))
        elif not isinstance(found, PlanRefusal) or found.reason not in _PASSING:
            self._keep(name, found)
        return found

    def _complete(self, job: PlanJob, found: object) -> object:
        """Return what was kept, plans with their code unless that is known; None if there is nothing, or no code."""
        if not isinstance(found, MadePlan) or found.fingerprint in job.known:
            return found
        code = self._read(job.code_name(found.fingerprint))
        return None if code is None else replace(found, code=code)

    def _make(self, job: PlanJob, stop: StopHook) -> object:
        with self._deployer.hold(job.tenant, MEMORY_BYTES, stop):
            process = self._open_process()
            try:
                answer = process.ask(encode(job), WALL_S)
                return self._read_answer(answer, process.complaint)
            except Late:
                return PlanRefusal(DeclineReason.OUT_OF_TIME)
            except BrokenProcess as error:
                if self._closed:
                    raise CancelledError from None
                return PlanRefusal(DeclineReason.CRASH, str(error))
            finally:
                if not process.fit:
                    self._drop_process()

    def _read_answer(self, answer: bytes, said: bytes) -> object:
        if answer.startswith(PLAN):
            if said:
                _log.error("the process that makes plans says: %s", said.decode("utf-8", "replace"))
            return decode(answer[1:])
        ended = ChildResponse(complaint=bytearray(said), status=int(answer[1:]))
        if ended.out_of_time:
            return PlanRefusal(DeclineReason.OUT_OF_TIME)
        if ended.out_of_memory:
            return PlanRefusal(DeclineReason.OUT_OF_MEMORY)
        _log.warning("the process that makes plans %s: %s", describe(ended.status), said.decode("utf-8", "replace"))
        return PlanRefusal(DeclineReason.CRASH, describe(ended.status))

    def _open_process(self) -> JobProcess:
        with self._lock:
            if self._closed:
                raise CancelledError
            if self._process is None:
                arguments = [*self._program, "urgent" if self.urgent else "patient", str(MEMORY_BYTES), str(CPU_S)]
                variables = kept_variables(_VARIABLES)
                self._process = JobProcess(arguments, variables, MAX_ANSWER_BYTES, complains=True)
            return self._process

    def _drop_process(self) -> None:
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.end()

    def _forget(self, name: bytes) -> None:
        with self._lock:
            self._wanted.pop(name, None)

    # ------------------------------------------------------------------------------------------- the disk

    @cached_property
    def _store(self) -> KernelStore | None:
        return open_kernel_folder()

    def _read(self, name: bytes) -> object:
        data = None if self._store is None else self._store.get(name)
        return None if data is None else decode(data)

    def _keep(self, name: bytes, made: object) -> None:
        if self._store is not None:
            self._store.put(name, encode(made))


class TenantThread:
    """A thread for tasks, which starts with the first one. Thread-safe; nothing but `close` waits.

    Args:
        name: of the thread.
        at_rest: called on the thread when there was nothing to do for so many seconds, and at its end.
    """

    def __init__(self, name: str, at_rest: Callable[[], object] = lambda: None, rest_s: float = 60.0) -> None:
        self._name = name
        self._at_rest = at_rest
        self._rest_s = rest_s
        self._changed = threading.Condition()
        self._waiting: TenantQueue[tuple[Future[Any], Callable[[], Any]]] = TenantQueue()
        self._counts: Counter[str] = Counter()
        self._thread: threading.Thread | None = None
        self._closed = False

    def submit(self, tenant: str, task: Callable[[], _Result]) -> Future[_Result] | None:
        """Have a task done; return its outcome, None if too much waits. Closing cancels what has not begun."""
        future: Future[_Result] = Future()
        with self._changed:
            if self._closed:
                future.cancel()
                return future
            if self._counts[tenant] >= MOST_EACH or self._counts.total() >= MOST:
                return None
            self._counts[tenant] += 1
            self._waiting.put(tenant, (future, task))
            future.add_done_callback(lambda _: self._leave(tenant))
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
                self._thread.start()
            self._changed.notify_all()
        return future

    def close(self) -> None:
        """Cancel what waits, and wait for what is being done. Idempotent."""
        with self._changed:
            self._closed = True
            dropped = []
            while (each := self._waiting.take()) is not None:
                dropped.append(each[0])
            self._changed.notify_all()
        for future in dropped:
            future.cancel()
        if self._thread is not None:
            self._thread.join()

    def _leave(self, tenant: str) -> None:
        with self._changed:
            self._counts[tenant] -= 1
            if not self._counts[tenant]:
                del self._counts[tenant]

    def _serve(self) -> None:
        lower_priority()
        while (found := self._next()) is not None:
            future, task = found
            if future.set_running_or_notify_cancel():
                try:
                    outcome = task()
                except BaseException as error:  # noqa: BLE001 - it is the task's outcome
                    future.set_exception(error)
                else:
                    future.set_result(outcome)
            del found, future, task  # they may be large, and the next task may come late
        self._at_rest()

    def _next(self) -> tuple[Future[Any], Callable[[], Any]] | None:
        with self._changed:
            while not self._closed:
                if (found := self._waiting.take()) is not None:
                    return found
                if not self._changed.wait(self._rest_s):
                    self._at_rest()
        return None
