"""`Deployment`: a runtime as a module sees it that has limits or a tenant of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tensorwasm.runtime.deploy.deployer import StopHook
from tensorwasm.runtime.deploy.form import Form
from tensorwasm.runtime.warm import WarmPool
from tensorwasm.values import Limits

if TYPE_CHECKING:
    from tensorwasm.gpu.shared_device import SharedDevice
    from tensorwasm.guest.engine.module import CompiledModule
    from tensorwasm.guest.sandbox.linker import LinkedModule
    from tensorwasm.guest.saved.instrumented import InstrumentedModule
    from tensorwasm.runtime.invoke.fiber_runner import FiberRunner
    from tensorwasm.runtime.offload.compiler import OffloadCompiler


class TenantRuntime(Protocol):
    """What a runtime does for any tenant; see `tensorwasm.runtime.invoke.deployed_module.Host`."""

    @property
    def device_reason(self) -> str:
        """Why this device was taken."""

    @property
    def fibers(self) -> FiberRunner:
        """Runs submitted invocations."""

    @property
    def offload_compiler(self) -> OffloadCompiler:
        """Cuts modules, and makes plans of their loops."""

    def prepare(
        self, wasm: bytes, module: CompiledModule, form: Form, work: StopHook | None, tenant: str
    ) -> LinkedModule | None:
        """Compile and link a tenant's module for a form."""

    def instrument(self, wasm: bytes, tenant: str) -> InstrumentedModule:
        """Return the forms of a tenant's module whose instances are saved."""


@dataclass(slots=True)
class Deployment:
    """The runtime with one module's own limits and tenant; see `Host`."""

    runtime: TenantRuntime
    limits: Limits
    tenant: str
    warm: WarmPool
    share: Callable[[], SharedDevice]

    @property
    def device_reason(self) -> str:
        """Why this device was taken."""
        return self.runtime.device_reason

    @property
    def fibers(self) -> FiberRunner:
        """Runs submitted invocations."""
        return self.runtime.fibers

    @property
    def offload_compiler(self) -> OffloadCompiler:
        """Cuts modules, and makes plans of their loops."""
        return self.runtime.offload_compiler

    def prepare(
        self, wasm: bytes, module: CompiledModule, form: Form, work: StopHook | None = None
    ) -> LinkedModule | None:
        """Compile and link a module for a form."""
        return self.runtime.prepare(wasm, module, form, work, self.tenant)

    def instrument(self, wasm: bytes) -> InstrumentedModule:
        """Return the forms of a module whose instances are saved."""
        return self.runtime.instrument(wasm, self.tenant)
