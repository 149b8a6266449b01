"""How loops of a module run elsewhere: its form with guards, and the plans and places behind these.

Imported for functions that are offloaded only: what makes plans and machine code takes long to import.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from tensorwasm.guest.imports.offload import device_target, host_target
from tensorwasm.guest.imports.offload.guards import INTEGERS, OffloadService, RegionStatistics, make_guards
from tensorwasm.offload.analysis.build import RegionCode, build_nest, read_region
from tensorwasm.offload.module import cut_module
from tensorwasm.offload.plan_cache import PlanCache, PlanKey
from tensorwasm.offload.scheduling.plan import plan
from tensorwasm.runtime.invoke.device_access import end_session, open_session

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensorwasm.gpu.session import Session
    from tensorwasm.gpu.shared_device import SharedDevice
    from tensorwasm.offload.codegen.host import HostPlan, LoadedProgram
    from tensorwasm.offload.codegen.nvptx import GpuCode
    from tensorwasm.offload.codegen.sizes import SharedCodes
    from tensorwasm.offload.program import NestProgram
    from tensorwasm.values import Deadline, OffloadMode

_NEWEST_ARCHITECTURE: Final = (9, 0)
"""Newest compute capability that code is made for; newer devices run it too."""


class Offloading:
    """The regions of one module, and what is known of them. Thread-safe.

    Attributes:
        wasm: the module with guards; empty if it has no regions.
        guards: its guards, as host functions.
        statistics: of each region, all ended calls together.
    """

    def __init__(self, wasm: bytes) -> None:
        """Cut the regions out of a module."""
        self.cut = cut_module(wasm)
        self.regions = self.cut.regions
        self.wasm = self.cut.wasm
        self.guards = make_guards(self.regions)
        self.statistics = [RegionStatistics() for _ in self.regions]
        self._codes: dict[int, RegionCode] = {}
        self._lock = threading.Lock()
        self._host_plans: PlanCache[HostPlan] = PlanCache(partial(self._plan_for_host, host_target.host_codes()))
        self._device_plans: dict[tuple[int, int], PlanCache[device_target.DevicePlan]] = {}

    @contextmanager
    def serving(
        self, mode: OffloadMode, share: Callable[[], SharedDevice], tenant: str, deadline: Deadline
    ) -> Iterator[OffloadService[Any]]:
        """Yield what guards do for one instance; count it when the instance has ended.

        Args:
            mode: where regions run, if that is anywhere.
            share: opens the device.
            tenant: whose account device memory is charged to.
            deadline: of the call.
        """
        if mode == "cpu" or (mode == "auto" and share().info.kind != "cuda"):
            service: AbstractContextManager[OffloadService[Any]] = nullcontext(self._host_service())
        else:
            service = self._device_service(share(), tenant, deadline)
        with service as serving:
            try:
                yield serving
            finally:
                with self._lock:
                    for total, mine in zip(self.statistics, serving.statistics, strict=True):
                        total.add(mine)

    def _host_service(self) -> OffloadService[HostPlan]:
        return OffloadService(self.regions, self._host_plans, host_target.HostTarget())

    @contextmanager
    def _device_service(
        self, shared: SharedDevice, tenant: str, deadline: Deadline
    ) -> Iterator[OffloadService[device_target.DevicePlan]]:
        architecture = min(shared.info.compute_capability, _NEWEST_ARCHITECTURE)
        with self._lock:
            plans = self._device_plans.get(architecture)
            if plans is None:
                plans = PlanCache(partial(self._plan_for_device, device_target.device_codes(architecture)))
                self._device_plans[architecture] = plans
        with ExitStack() as stack:

            def open_one() -> Session:
                session = open_session(shared, tenant, "staged", with_layout=False)
                stack.callback(end_session, session)
                session.enter(deadline)
                return session

            yield OffloadService(self.regions, plans, device_target.DeviceTarget(open_one))

    def program(self, key: PlanKey) -> NestProgram:
        """Return how a region runs in parallel; raise `Declined` if it cannot."""
        region = self.regions[key.region]
        given = iter(key.integers)
        integers = {local: next(given) for local, kind in region.inputs if kind in INTEGERS}
        global_values = {number: next(given) for number, _ in region.globals}
        return plan(build_nest(self._code(key.region), integers, global_values), key.memory_bytes)

    def _code(self, number: int) -> RegionCode:
        code = self._codes.get(number)
        if code is None:
            code = self._codes[number] = read_region(self.cut.original, self.regions[number])
        return code

    def _plan_for_host(self, codes: SharedCodes[LoadedProgram], key: PlanKey) -> HostPlan:
        return host_target.prepare_for_host(self.program(key), codes)

    def _plan_for_device(self, codes: SharedCodes[GpuCode], key: PlanKey) -> device_target.DevicePlan:
        return device_target.prepare_for_device(self.program(key), codes)
