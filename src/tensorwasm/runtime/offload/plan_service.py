"""`PlanProcesses`: makes plans in processes of its own; `PlanFinder`: keeps plans.

isl and LLVM work on what an untrusted module gives them, so plans are made in forks
(`tensorwasm.runtime.offload.plan_process`), within limits: what crashes one, or takes too much, costs that plan.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from tensorwasm.errors import CapacityExhausted, RateLimited
from tensorwasm.guest.engine.child_process import ChildResponse, describe, kept_variables
from tensorwasm.guest.engine.job_process import BrokenProcess, JobProcess, Late
from tensorwasm.offload.declined import DeclineReason
from tensorwasm.offload.plan_cache import PlanRefusal
from tensorwasm.runtime.offload.plan_job import MAX_ANSWER_BYTES, PLAN, PlanJob, PlanOutcome, pack, read_outcome
from tensorwasm.values import MIB

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from tensorwasm.gpu.resources.kernel_store import KernelStore
    from tensorwasm.runtime.deploy.deployer import StopHook

PROGRAM: Final = ("-m", "tensorwasm.runtime.offload.plan_process")
MEMORY_BYTES: Final = 1024 * MIB
"""Address space for a plan."""
CPU_S: Final = 10
"""Seconds of a processor for a plan."""
WALL_S: Final = 120.0
"""What a plan may take by the clock, on a machine that has other work, the start of the process included."""

_VARIABLES: Final = ("LD_LIBRARY_PATH", "PYTHONPATH", "SYSTEMROOT", "TENSOR_WASM_NATIVE")
_log: Final = logging.getLogger(__name__)


class PlanSource(Protocol):
    """Makes plans. Thread-safe."""

    def make(self, job: PlanJob, stop: StopHook) -> PlanOutcome:
        """Return a plan, or why there is none. Blocks.

        Raises:
            CapacityExhausted: it cannot be made now, and may be later; `RateLimited` and `CancelledError` alike.
        """

    def rest(self) -> None:
        """End what the calling thread keeps for its next plans."""

    def close(self) -> None:
        """End what is being made. Idempotent."""


class PlanFinder:
    """Takes plans from the disk, or has them made and keeps them. Thread-safe.

    Args:
        source: makes them; closed with this.
        store: where they are kept; None for nowhere.

    Attributes:
        made: plans and refusals that the source has made.
        compiled: plans of these whose code was not known.
        kept: those that were found on the disk.
    """

    def __init__(self, source: PlanSource, store: KernelStore | None) -> None:
        self._source = source
        self._store = store
        self.rest = source.rest
        self.close = source.close
        self.made = 0
        self.compiled = 0
        self.kept = 0

    def find(self, job: PlanJob, stop: StopHook) -> PlanOutcome | None:
        """Return a plan, or why there is none; None if there may be one later. Blocks."""
        name = job.name
        found = self._read(name, job)
        if found is not None:
            self.kept += 1
            return found
        try:
            found = self._source.make(job, stop)
        except (CancelledError, CapacityExhausted, RateLimited):
            return None
        self.made += 1
        self.compiled += found.code is not None
        if self._store is not None and not found.passing:
            if found.code is not None:
                self._store.put(job.code_name(found.fingerprint), found.code)
            self._store.put(name, pack(msgspec.structs.replace(found, code=None, analysed_ns=0, compiled_ns=0)))
        return found

    def _read(self, name: bytes, job: PlanJob) -> PlanOutcome | None:
        """Return what was kept, plans with their code unless that is known; None if there is nothing, or no code."""
        data = None if self._store is None else self._store.get(name)
        if data is None or self._store is None:
            return None
        found = read_outcome(data)
        if not found.fingerprint or found.fingerprint in job.known:
            return found
        code = self._store.get(job.code_name(found.fingerprint))
        return None if code is None else msgspec.structs.replace(found, code=code)


class PlanProcesses:
    """Makes plans in forks of processes; see `PlanSource`.

    Args:
        hold: holds a tenant's share of the capacity for compilations, with so much memory.
        program: what Python runs as such a process.
        is_urgent: returns whether one that is started keeps this one's priority, because calls wait for plans.
    """

    def __init__(
        self,
        hold: Callable[[str, int, StopHook], AbstractContextManager[None]],
        program: Sequence[str] = PROGRAM,
        is_urgent: Callable[[], bool] = lambda: False,
    ) -> None:
        self._hold = hold
        self._program = program
        self._is_urgent = is_urgent
        self._lock = threading.Lock()
        self._processes: dict[int, JobProcess] = {}  # by their threads
        self._closed = False

    def make(self, job: PlanJob, stop: StopHook) -> PlanOutcome:
        """See `PlanSource.make`."""
        with self._hold(job.tenant, MEMORY_BYTES, stop):
            process = self._open()
            try:
                answer = process.ask(pack(job), WALL_S)
                return _read_answer(answer, process.complaint)
            except Late:
                return PlanOutcome.of(PlanRefusal(DeclineReason.OUT_OF_TIME))
            except BrokenProcess as error:
                if self._closed:
                    raise CancelledError from None
                return PlanOutcome.of(PlanRefusal(DeclineReason.CRASH, str(error)))
            finally:
                if not process.fit:
                    self.rest()

    def rest(self) -> None:
        """End the calling thread's process."""
        with self._lock:
            process = self._processes.pop(threading.get_ident(), None)
        if process is not None:
            process.end()

    def close(self) -> None:
        """Kill the processes, so that their threads, which own them, wait for them no longer. Idempotent."""
        with self._lock:
            self._closed = True
            for process in self._processes.values():
                process.kill()

    def _open(self) -> JobProcess:
        with self._lock:
            if self._closed:
                raise CancelledError
            process = self._processes.get(threading.get_ident())
            if process is None:
                how = "urgent" if self._is_urgent() else "patient"
                arguments = [*self._program, how, str(MEMORY_BYTES), str(CPU_S)]
                process = JobProcess(arguments, kept_variables(_VARIABLES), MAX_ANSWER_BYTES, complains=True)
                self._processes[threading.get_ident()] = process
            return process


def _read_answer(answer: bytes, said: bytes) -> PlanOutcome:
    if answer.startswith(PLAN):
        if said:
            _log.error("a process that makes plans says: %s", said.decode("utf-8", "replace"))
        try:
            return read_outcome(answer[len(PLAN) :])
        except msgspec.MsgspecError as error:
            return PlanOutcome.of(PlanRefusal(DeclineReason.CRASH, str(error)))
    ended = ChildResponse(complaint=bytearray(said), status=int(answer[1:]))
    if ended.out_of_time:
        return PlanOutcome.of(PlanRefusal(DeclineReason.OUT_OF_TIME))
    if ended.out_of_memory:
        return PlanOutcome.of(PlanRefusal(DeclineReason.OUT_OF_MEMORY))
    _log.warning("a process that makes plans %s: %s", describe(ended.status), said.decode("utf-8", "replace"))
    return PlanOutcome.of(PlanRefusal(DeclineReason.CRASH, describe(ended.status)))
