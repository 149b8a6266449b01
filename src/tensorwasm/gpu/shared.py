"""A device for many sessions at a time."""

from __future__ import annotations

import logging
from typing import Self

from tensorwasm.gpu.accounts import DEFAULT_TENANT, Accounts
from tensorwasm.gpu.commons import Commons
from tensorwasm.gpu.device import Device
from tensorwasm.gpu.limits import SessionLimits
from tensorwasm.gpu.pad import PadLayout
from tensorwasm.gpu.quota import PROCESS_GATE, Gate
from tensorwasm.gpu.session import Session
from tensorwasm.values import DeviceInfo, MemoryKind

_log = logging.getLogger(__name__)


class SharedDevice:
    """What all sessions on one device share, and where sessions come from. Safe from any thread.

    Args:
        device: outlives it; whoever opened it closes it afterwards.
        accounts: of the device's tenants; None brings a set in which there is only ``default``.
        gate: entered while work is on the device.
    """

    def __init__(self, device: Device, accounts: Accounts | None = None, gate: Gate = PROCESS_GATE) -> None:
        self._commons = Commons(device, accounts, gate)

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
        pad: PadLayout | None = None,
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
