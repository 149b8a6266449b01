"""`OffloadCompiler`: makes cut modules and plans on threads and in processes of its own, and keeps them signed.

A module is cut and compiled again as one of its tenant's compilations. Plans are made by a `PlanService`. All of it
lies in the folder of compiled kernels, signed, under hashes of all that it depends on, so it is made once for a tenant
on a machine.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from tensorwasm.artifacts.hashing import blake3
from tensorwasm.runtime.deploy.deployer import Deployer, StopHook
from tensorwasm.runtime.offload.tenant_threads import TenantThreads

if TYPE_CHECKING:
    from tensorwasm.offload.module import CutModule
    from tensorwasm.runtime.offload.plan_job import PlanJob, PlanOutcome
    from tensorwasm.runtime.offload.plan_service import PlanService, PlanSource

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
        self._plans: PlanService[Any] | None = None
        self._closed = False
        self.urgent = False

    @property
    def plans(self) -> PlanService[Any]:
        """Has plans made; opened on first use."""
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
        return self.plans.request(job)

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

    def close(self) -> None:
        """End what is being made, and the processes. Idempotent."""
        with self._lock:
            self._closed = True
            plans = self._plans
        if plans is not None:
            plans.close()
        self._modules.close()

    def _open_plans(self) -> PlanService[Any]:
        from tensorwasm.runtime.deploy.kernel_folder import open_kernel_folder  # noqa: PLC0415 - slow to import
        from tensorwasm.runtime.offload import plan_service  # noqa: PLC0415 - the same

        source = self._source
        if source is None:
            program = self._program or plan_service.PROGRAM
            source = plan_service.PlanProcesses(self._deployer.hold, program, lambda: self.urgent)
        return plan_service.PlanService(source, open_kernel_folder(), _read)


def _read(outcome: PlanOutcome | None) -> object:
    from tensorwasm.offload.plan_cache import NOT_READY  # noqa: PLC0415 - slow to import

    return NOT_READY if outcome is None else outcome.read()
