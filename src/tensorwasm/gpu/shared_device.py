"""A device for many sessions at a time."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from tensorwasm.errors import DeviceUnavailable
from tensorwasm.gpu.device.limits import SessionLimits
from tensorwasm.gpu.device.port import Device, DeviceStatistics
from tensorwasm.gpu.limits.accounts import DEFAULT_TENANT, Accounts, AccountStatistics
from tensorwasm.gpu.limits.gate import PROCESS_GATE, Gate
from tensorwasm.gpu.native.layout import SessionLayout
from tensorwasm.gpu.resources.device_resources import DeviceResources
from tensorwasm.gpu.resources.guarded_compiler import KernelCompiler, LocalCompiler
from tensorwasm.gpu.session import Session
from tensorwasm.values import DeviceInfo, MemoryKind

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SharedStatistics:
    """A snapshot of a device and what its sessions share.

    Attributes:
        kernels_held: loaded kernels that sessions hold.
        kernels_idle: loaded kernels that no session holds, kept for reuse.
        slots_idle: free slots for small windows; 0 until the first is taken.
        sessions_parked: sessions in the pool.
        places_in_use: permits taken at the gate, by sessions of the process's other devices too.
        accounts: of tenants that are registered or still charged, by name.
    """

    kernels_held: int
    kernels_idle: int
    slots_idle: int
    sessions_parked: int
    places_in_use: int
    accounts: tuple[AccountStatistics, ...]
    device: DeviceStatistics


class SharedDevice:
    """What all sessions on one device share, and where sessions come from. Thread-safe.

    Args:
        device: outlives this object; its opener closes it afterwards.
        accounts: of the device's tenants; None brings a set in which there is only ``default``.
        gate: entered while work is on the device.
        guarded: whether kernels are guarded, so that sessions of several tenants can share the device. An attribute,
            too.
        checked: whether guarded kernels check their accesses (`tensorwasm.ptx.checked`).
        compiler: of guarded kernels; None takes one in this process that keeps nothing, where the device needs one.
        limits: of sessions that are opened without limits of their own; None for the defaults.

    Raises:
        DeviceUnavailable: kernels are to be guarded, and the device has no windows to confine them to.
    """

    def __init__(
        self,
        device: Device,
        accounts: Accounts | None = None,
        gate: Gate = PROCESS_GATE,
        *,
        guarded: bool = False,
        compiler: KernelCompiler | None = None,
        checked: bool = False,
        limits: SessionLimits | None = None,
    ) -> None:
        if guarded and not device.windows.available:
            raise DeviceUnavailable(
                "tenants are to share this GPU, and its driver has no windows of addresses to keep them apart: use "
                "isolation='process', or a newer driver on Linux"
            )
        streams = device.info.max_streams
        if guarded and compiler is None and device.assembler:
            compiler = LocalCompiler(device, None)
        self._resources = DeviceResources(
            device, accounts, gate, streams, guarded=guarded, compiler=compiler, checked=checked
        )
        self.device = device
        self.guarded = guarded
        self._limits = limits
        self.accounts = self._resources.accounts

    def watch_long_work(self, notice: Callable[[str], object]) -> None:
        """Have a function called with each tenant whose kernels were found to run long; see `LongWork`."""
        self._resources.long_work.notice = notice

    def compile_with(self, compiler: KernelCompiler) -> None:
        """Have guarded kernels compiled by this one from now on, where the device takes compiled ones."""
        if self.device.assembler:
            self._resources.kernels.compiler = compiler

    @property
    def gate(self) -> Gate:
        """The gate that all work for the device passes."""
        return self._resources.gate

    @property
    def info(self) -> DeviceInfo:
        """What the device is."""
        return self.device.info

    def open_session(
        self,
        tenant: str = DEFAULT_TENANT,
        limits: SessionLimits | None = None,
        architecture: tuple[int, int] | None = None,
        memory_kind: MemoryKind = "auto",
        layout: SessionLayout | None = None,
    ) -> Session:
        """Return a session of a registered tenant; see `Session` for the arguments. Close it before this."""
        return Session(
            self.device,
            limits or self._limits,
            architecture=architecture,
            resources=self._resources,
            tenant=tenant,
            memory_kind=memory_kind,
            layout=layout,
        )

    def statistics(self) -> SharedStatistics:
        """Return a snapshot: each figure by itself is exact."""
        resources = self._resources
        return SharedStatistics(
            kernels_held=resources.kernels.held,
            kernels_idle=resources.kernels.idle,
            slots_idle=resources.ring.idle,
            sessions_parked=len(resources.session_pool),
            places_in_use=resources.gate.in_use,
            accounts=resources.accounts.statistics(),
            device=resources.device.statistics(),
        )

    def close(self) -> None:
        """Release what no session holds any more. Idempotent; raises nothing: failures are logged.

        What an abandoned session can still reach stays for as long as the process.
        """
        failures = self._resources.close()
        if failures:
            _log.error("a device failed to release %d things that sessions shared: %s", len(failures), failures[0])

    def __enter__(self) -> Self:
        """Return the shared device."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()
