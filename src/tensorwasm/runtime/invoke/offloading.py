"""How loops of a module run elsewhere: its form with guards, and the plans and places behind these.

Imported for functions that are offloaded only: what loads machine code takes long to import.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tensorwasm import settings
from tensorwasm.errors import GuestTrap, TensorWasmError
from tensorwasm.guest.engine.traps import CANCELLED
from tensorwasm.guest.imports.offload.device_target import DeviceTarget
from tensorwasm.guest.imports.offload.guards import OffloadService, make_guards
from tensorwasm.guest.imports.offload.host_target import HostTarget
from tensorwasm.guest.imports.offload.recording import RegionStatistics, SpanLog
from tensorwasm.guest.imports.offload.shadow import ShadowSampler
from tensorwasm.offload.codegen.host import LoadedProgram, host_processor
from tensorwasm.offload.codegen.sizes import LoadedCodes, MadePlan, ReadyPlan
from tensorwasm.offload.costs import RegionCosts
from tensorwasm.offload.plan_cache import PlanCache, PlanKey, PlanRefusal
from tensorwasm.runtime.invoke.device_access import end_session, open_session
from tensorwasm.runtime.offload.plan_job import PlanJob
from tensorwasm.values import Deadline

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from tensorwasm.gpu.session import Session
    from tensorwasm.gpu.shared_device import SharedDevice
    from tensorwasm.offload.codegen.nvptx import GpuCode
    from tensorwasm.offload.module import CutModule
    from tensorwasm.runtime.offload.compiler import OffloadCompiler
    from tensorwasm.values import MemoryKind, OffloadMath, OffloadMode

_Code = TypeVar("_Code")
_NEWEST_ARCHITECTURE: Final = (9, 0)
"""Newest compute capability that code is made for; newer devices run it too."""
_HOST_START_NS: Final = 20_000
_DEVICE_START_NS: Final = 50_000
"""What a run on threads, or on a device, takes at least."""
_LOAD_S: Final = 60.0
"""What loading the kernels of a plan may take."""


class Offloading:
    """The regions of one module, and what is known of them. Thread-safe.

    Attributes:
        cut: the module with guards, and its loops.
        wasm: the module with guards, which polls; empty if its code is not changed.
        regions: those with a guard, by their numbers.
        guards: its guards and what it polls, as host functions.
        statistics: of each region, all ended calls together.
        math: whether sums and products of floats may be added up in another order.
        spans: where spans of time of calls are recorded, one call after the other; None to record nothing.
        watched: what regions use in place of a session if someone measures; they then run there whatever it costs.
    """

    def __init__(
        self, compiler: OffloadCompiler, cut: CutModule, tenant: str, module: bytes, math: OffloadMath, *, waits: bool
    ) -> None:
        """Have plans of a tenant's module, by its hash, made; calls wait for them if ``waits``."""
        self.math = math
        self.cut = cut
        self.regions = cut.regions
        self.wasm = cut.wasm
        self.guards = make_guards(self.regions)
        self.statistics = [RegionStatistics() for _ in self.regions]
        self.spans: SpanLog | None = None
        self.watched: Callable[[Session], Session] | None = None
        self._compiler = compiler
        compiler.urgent |= waits
        self._tenant = tenant
        self._waits = waits
        records = compiler.records(tenant, cut)
        self._sampler = ShadowSampler(module, len(self.regions), settings.current().offload_shadow, records)
        self._lock = threading.Lock()
        self._host_plans = self._plans(host_processor(), LoadedProgram)
        self._device_plans: dict[tuple[int, int], PlanCache[MadePlan, ReadyPlan[GpuCode]]] = {}
        self._host_costs = RegionCosts(_HOST_START_NS, least_ns=0.0)
        self._device_costs = RegionCosts(_DEVICE_START_NS)

    @contextmanager
    def serving(
        self, mode: OffloadMode, share: Callable[[], SharedDevice], tenant: str, deadline: Deadline, *, registers: bool
    ) -> Iterator[OffloadService[Any]]:
        """Yield what guards do for one instance; count it when the instance has ended.

        Args:
            mode: where regions run, if that is anywhere.
            share: opens the device.
            tenant: whose account device memory is charged to, and whose share of the host's threads is used.
            deadline: of the call.
            registers: whether the guest's pages may be registered with the device: no other session does so.
        """
        if mode == "cpu" or (mode == "auto" and share().info.kind != "cuda"):
            service: AbstractContextManager[OffloadService[Any]] = nullcontext(self._host_service(tenant))
        else:
            service = self._device_service(share(), tenant, deadline, "pinned" if registers else "staged")
        with service as serving:
            try:
                yield serving
            except GuestTrap as trap:
                if trap.trap != CANCELLED:  # elsewhere the region ended well
                    serving.compare((), None)
                raise
            finally:
                if self.spans is not None:
                    self.spans.abandon_guest()
                with self._lock:
                    for total, mine in zip(self.statistics, serving.statistics, strict=True):
                        total.add(mine)

    def _plans(
        self, target: tuple[int, int] | str, load: Callable[[Any], _Code]
    ) -> PlanCache[MadePlan, ReadyPlan[_Code]]:
        codes = LoadedCodes(load)
        return PlanCache(partial(self._request, target, codes), codes.ready, waits=self._waits)

    def _host_service(self, tenant: str) -> OffloadService[ReadyPlan[LoadedProgram]]:
        target = HostTarget(tenant, self.spans)
        return OffloadService(self.regions, self._host_plans, target, self._sampler, self._host_costs, spans=self.spans)

    @contextmanager
    def _device_service(
        self, shared: SharedDevice, tenant: str, deadline: Deadline, memory: MemoryKind
    ) -> Iterator[OffloadService[ReadyPlan[GpuCode]]]:
        architecture = min(shared.info.compute_capability, _NEWEST_ARCHITECTURE)
        with self._lock:
            plans = self._device_plans.get(architecture)
            if plans is None:
                plans = self._plans(architecture, partial(_load_kernels, shared, tenant))
                self._device_plans[architecture] = plans

        def open_one() -> Session:
            session = open_session(shared, tenant, memory, with_layout=False)
            session.enter(deadline)
            return session if self.watched is None else self.watched(session)

        is_measured = shared.info.kind == "cuda" and self.watched is None  # the emulator is not for speed
        costs = self._device_costs if is_measured else None
        target = DeviceTarget(open_one, end_session, self.spans)
        try:
            yield OffloadService(self.regions, plans, target, self._sampler, costs, target.end, self.spans)
        finally:
            target.end()

    def planned(self) -> list[PlanKey]:
        """Return for what plans for the host were asked for, in that order."""
        return self._host_plans.keys()

    def _request(
        self, target: tuple[int, int] | str, codes: LoadedCodes[Any], key: PlanKey
    ) -> Future[MadePlan | PlanRefusal] | None:
        region = self.cut.lone[key.region]
        known, relaxed = codes.known(), self.math == "relaxed"
        job = PlanJob(self._tenant, region, key.integers, key.memory_bytes, target, known, relaxed)
        return self._compiler.request(job)


def _load_kernels(shared: SharedDevice, tenant: str, code: GpuCode) -> GpuCode:
    """Have a plan's kernels assembled and loaded before its first run, which then takes them from the device's cache.

    What cannot be loaded now the run will meet, and decline.
    """
    entries = [*(kernel.entry for kernel in code.kernels.values()), *([code.results] if code.results else [])]
    with suppress(TensorWasmError):
        session = open_session(shared, tenant, "staged", with_layout=False)
        try:
            deadline = Deadline.after(_LOAD_S)
            for entry in entries:
                session.kernels.load(code.ptx.encode(), entry, deadline)
        finally:
            end_session(session)
    return code
