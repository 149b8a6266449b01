"""A device for many sessions at a time."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Self

from tensorwasm.gpu.device.limits import SessionLimits
from tensorwasm.gpu.device.port import Device, DeviceStatistics
from tensorwasm.gpu.limits.accounts import DEFAULT_TENANT, Accounts, AccountStatistics
from tensorwasm.gpu.limits.quota import PROCESS_GATE, Gate
from tensorwasm.gpu.native.layout import SessionLayout
from tensorwasm.gpu.resources.device_resources import DeviceResources
from tensorwasm.gpu.session import Session
from tensorwasm.values import DeviceInfo, MemoryKind

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SharedStatistics:
    """A snapshot of a device and what its sessions share.

    Attributes:
        kernels_held: loaded kernels that sessions hold together.
        kernels_idle: loaded kernels that are kept for whoever brings their text again.
        slots_idle: slots for small windows that nobody has; 0 until the first is taken.
        sessions_parked: sessions that wait for their next guests.
        places_in_use: places at the gate that are taken, by sessions of the process's other devices too.
        accounts: of tenants that are registered or still charged, by name.
        device: what the device holds.
    """

    kernels_held: int
    kernels_idle: int
    slots_idle: int
    sessions_parked: int
    places_in_use: int
    accounts: tuple[AccountStatistics, ...]
    device: DeviceStatistics


class SharedDevice:
    """What all sessions on one device share, and where sessions come from. Safe from any thread.

    Args:
        device: outlives it; whoever opened it closes it afterwards.
        accounts: of the device's tenants; None brings a set in which there is only ``default``.
        gate: entered while work is on the device.
    """

    def __init__(self, device: Device, accounts: Accounts | None = None, gate: Gate = PROCESS_GATE) -> None:
        self._commons = DeviceResources(device, accounts, gate, device.info.max_streams)

    @property
    def device(self) -> Device:
        """The device."""
        return self._commons.device

    @property
    def info(self) -> DeviceInfo:
        """What the device is."""
        return self._commons.device.info

    @property
    def accounts(self) -> Accounts:
        """The accounts of the device's tenants."""
        return self._commons.accounts

    def open_session(
        self,
        tenant: str = DEFAULT_TENANT,
        limits: SessionLimits | None = None,
        architecture: tuple[int, int] | None = None,
        memory_kind: MemoryKind = "auto",
        pad: SessionLayout | None = None,
    ) -> Session:
        """Return a session; see `Session` for the arguments. Close it before this.

        Raises:
            InvalidArgs: no such tenant is registered.
        """
        commons = self._commons
        return Session(
            commons.device,
            limits,
            architecture=architecture,
            commons=commons,
            tenant=tenant,
            memory_kind=memory_kind,
            pad=pad,
        )

    def statistics(self) -> SharedStatistics:
        """Return a snapshot: each figure is exact in itself."""
        commons = self._commons
        return SharedStatistics(
            kernels_held=commons.kernels.held,
            kernels_idle=commons.kernels.idle,
            slots_idle=commons.ring.idle,
            sessions_parked=len(commons.parking),
            places_in_use=commons.gate.in_use,
            accounts=commons.accounts.statistics(),
            device=commons.device.statistics(),
        )

    def close(self) -> None:
        """Release what no session holds any more. Idempotent; raises nothing: what the device fails at is logged.

        What an abandoned session can still reach stays for as long as the process.
        """
        failures = self._commons.close()
        if failures:
            _log.error("a device failed to release %d things that sessions shared: %s", len(failures), failures[0])

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()
