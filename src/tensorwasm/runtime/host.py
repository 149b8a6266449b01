"""What a function needs of the runtime that loaded it, and a runtime with the limits of one module."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tensorwasm.gpu.shared_device import SharedDevice
    from tensorwasm.guest.engine.module import CompiledModule
    from tensorwasm.guest.sandbox.linker import Prepared
    from tensorwasm.runtime.background import Background
    from tensorwasm.runtime.form import Form
    from tensorwasm.runtime.runtime import Runtime
    from tensorwasm.runtime.warm import WarmPool
    from tensorwasm.values import Limits


class Host(Protocol):
    """What a function needs of the runtime that loaded it."""

    limits: Limits

    @property
    def device_reason(self) -> str:
        """Why this device was taken."""

    @property
    def background(self) -> Background:
        """Where submitted invocations run."""

    @property
    def warm(self) -> WarmPool:
        """Keeps what is warm."""

    def share(self) -> SharedDevice:
        """Return the device, opened now if it was not, as sessions share it."""

    def prepare(self, wasm: bytes, module: CompiledModule, form: Form) -> Prepared | None:
        """Compile and link a module for a form, None where there are no compiled host functions."""


@dataclass(slots=True)
class Deployment:
    """A runtime, as the functions of one module know it.

    Attributes:
        runtime: the runtime.
        limits: the module's own.
        tenant: whose the module is.
    """

    runtime: Runtime
    limits: Limits
    tenant: str

    @property
    def device_reason(self) -> str:
        """See `Host`."""
        return self.runtime.device_reason

    @property
    def background(self) -> Background:
        """See `Host`."""
        return self.runtime.background

    @property
    def warm(self) -> WarmPool:
        """See `Host`."""
        return self.runtime.warm

    def share(self) -> SharedDevice:
        """See `Host`."""
        return self.runtime.share()

    def prepare(self, wasm: bytes, module: CompiledModule, form: Form) -> Prepared | None:
        """See `Host`."""
        return self.runtime.prepare(wasm, module, form, self.tenant)
