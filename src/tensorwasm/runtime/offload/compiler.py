"""`OffloadCompiler`: makes cut modules and plans on threads and in processes of its own, and keeps them signed.

A module is cut and compiled again as one of its tenant's compilations. Plans are made as
`tensorwasm.runtime.offload.plan_service` has it. All of it lies in the folder of compiled kernels, signed, under hashes
of all that it depends on, so it is made once for a tenant on a machine.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from tensorwasm.artifacts.hashing import blake3
from tensorwasm.errors import CapacityExhausted, InvalidArgs
from tensorwasm.runtime.deploy.deployer import Deployer, StopHook
from tensorwasm.runtime.offload.tenant_threads import TenantThreads

if TYPE_CHECKING:
    from tensorwasm.offload.module import CutModule
    from tensorwasm.runtime.offload.mismatches import MismatchRecords
    from tensorwasm.runtime.offload.plan_job import PlanJob
    from tensorwasm.runtime.offload.plan_service import PlanFinder, PlanSource

_Made = TypeVar("_Made")


class OffloadCompiler:
    """Makes cut modules and plans. Thread-safe; nothing but `cut` and `close` waits.

    What it imports it imports when it is needed: a deploy is not answered before this is made.

    Args:
        deployer: whose capacity compilations share.
        source: makes plans; None has it done in processes of its own.
        program: what Python runs as such a process; None runs ours.

    Attributes:
        urgent: whether processes for plans that are started later keep this one's priority, because calls wait for
            them.
    """

    def __init__(
        self, deployer: Deployer, source: PlanSource | None = None, program: Sequence[str] | None = None
    ) -> None:
        self._deployer = deployer
        self._source = source
        self._program = program
        self._lock = threading.Lock()
        self._modules = TenantThreads("tensorwasm-cutting")
        self._threads = TenantThreads("tensorwasm-plans", self._rest)
        self._wanted: dict[bytes, Future[Any]] = {}
        self._plans: PlanFinder | None = None
        self._closed = False
        self.urgent = False

    @property
    def plans(self) -> PlanFinder:
        """Finds and makes plans; opened on first use."""
        with self._lock:
            if self._plans is None:
                self._plans = self._open_plans()
                if self._closed:
                    self._plans.close()
            return self._plans

    def request(self, job: PlanJob) -> Future[Any] | None:
        """Have a plan made, or taken from the disk: a `MadePlan` for its target or a `PlanRefusal`.

        Returns None if too much waits; `NOT_READY` comes if it cannot be made now, and may be later.
        """
        name = job.name
        with self._lock:
            if (wanted := self._wanted.get(name)) is not None:
                return wanted
            requested = self._threads.submit(job.tenant, partial(self._find, job))
            if requested is None:
                return None
            self._wanted[name] = requested
        requested.add_done_callback(lambda _: self._forget(name))
        return requested

    def answer(self, tenant: str, job: bytes) -> Future[bytes] | None:
        """Do the same for another process, which may lie: a `PlanJob` and its `PlanOutcome` as bytes.

        Returns None if too much waits. Errors are `CapacityExhausted` if it cannot be made now, and `InvalidArgs` for
        what is no job of the tenant.
        """
        return self._threads.submit(tenant, partial(self._answer, tenant, job))

    def begin(self, tenant: str, task: Callable[[StopHook], _Made]) -> Future[_Made] | None:
        """Have a module prepared in its tenant's turn; closing stops what is being done. None if too much waits."""
        return self._modules.submit(tenant, task)

    def cut(self, wasm: bytes, tenant: str, work: StopHook | None = None) -> CutModule:
        """Return a module with guards, from the disk if it was cut before. Blocks; raises as `Deployer.cut` does."""
        from tensorwasm.gpu.resources.kernel_store import name_of  # noqa: PLC0415 - slow to import
        from tensorwasm.offload.module import CutModule  # noqa: PLC0415 - the same
        from tensorwasm.runtime.deploy.kernel_folder import open_kernel_folder  # noqa: PLC0415 - the same
        from tensorwasm.runtime.offload.plan_job import code_digest, decode, encode  # noqa: PLC0415 - the same

        store = open_kernel_folder()
        name = name_of("cut", code_digest(), tenant, blake3(wasm))
        data = None if store is None else store.get(name)
        found = None if data is None else decode(data)
        if not isinstance(found, CutModule):
            found = self._deployer.cut(wasm, tenant, work)
            if store is not None:
                store.put(name, encode(found))
        return found

    def records(self, tenant: str, cut: CutModule) -> MismatchRecords:
        """Return the records of a tenant's module, on the disk."""
        from tensorwasm.runtime.deploy.kernel_folder import open_kernel_folder  # noqa: PLC0415 - slow to import
        from tensorwasm.runtime.offload.mismatches import MismatchRecords  # noqa: PLC0415 - the same

        return MismatchRecords(open_kernel_folder(), tenant, cut.lone)

    def close(self) -> None:
        """End what is being made, and the processes. Idempotent."""
        with self._lock:
            self._closed = True
            plans = self._plans
        if plans is not None:
            plans.close()
        self._threads.close()
        self._modules.close()

    def _forget(self, name: bytes) -> None:
        with self._lock:
            self._wanted.pop(name, None)

    # ------------------------------------------------------------------------------------------- on the threads

    def _find(self, job: PlanJob, stop: StopHook) -> object:
        from tensorwasm.offload.plan_cache import NOT_READY  # noqa: PLC0415 - slow to import

        found = self.plans.find(job, stop)
        return NOT_READY if found is None else found.read()

    def _answer(self, tenant: str, data: bytes, stop: StopHook) -> bytes:
        from tensorwasm.runtime.offload.plan_job import pack, read_job  # noqa: PLC0415 - slow to import

        job = read_job(data)
        if job.tenant != tenant:
            raise InvalidArgs("a plan of another tenant")
        found = self.plans.find(job, stop)
        if found is None:
            raise CapacityExhausted("the plan cannot be made now")
        return pack(found)

    def _rest(self) -> None:
        with self._lock:
            plans = self._plans
        if plans is not None:
            plans.rest()

    def _open_plans(self) -> PlanFinder:
        from tensorwasm.runtime.deploy.kernel_folder import open_kernel_folder  # noqa: PLC0415 - slow to import
        from tensorwasm.runtime.offload import plan_service  # noqa: PLC0415 - the same

        source = self._source
        if source is None:
            program = self._program or plan_service.PROGRAM
            source = plan_service.PlanProcesses(self._deployer.hold, program, lambda: self.urgent)
        return plan_service.PlanFinder(source, open_kernel_folder())
