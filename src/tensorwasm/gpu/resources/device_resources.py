"""What all sessions on one device share: kernels, streams, events, slots for small windows, and tenants' memory."""

from __future__ import annotations

import ctypes
import logging
import threading
from collections.abc import Callable
from functools import cached_property
from typing import Final

from tensorwasm.errors import CapacityExhausted
from tensorwasm.gpu.device.port import Device
from tensorwasm.gpu.device.protocols import Event
from tensorwasm.gpu.limits.accounts import Account, Accounts
from tensorwasm.gpu.limits.queue_credits import QueueCapacity
from tensorwasm.gpu.limits.quota import PROCESS_GATE, Gate
from tensorwasm.gpu.memory.suballocator import Suballocator
from tensorwasm.gpu.native.layout import DriverTable, driver_table
from tensorwasm.gpu.resources.kernel_cache import KernelCache
from tensorwasm.gpu.resources.session_pool import SessionPool
from tensorwasm.gpu.resources.stream_stock import Stock, StreamStock
from tensorwasm.gpu.staging import Slot, StagingRing

MAX_IDLE_STREAMS: Final = 64
MAX_IDLE_EVENTS: Final = 256

_log = logging.getLogger(__name__)


class TenantResources:
    """One tenant on one device.

    Attributes:
        tenant: its name.
        account: charged.
        slab: its buffers are cut from; nothing is taken from the device until the first one.
    """

    __slots__ = ("account", "suballocator", "tenant")

    def __init__(self, tenant: str, account: Account, device: Device, spare: Callable[[], bool]) -> None:
        self.tenant = tenant
        self.account = account
        self.suballocator = Suballocator(device.pools, account, spare=spare)


class DeviceResources:
    """What sessions share. Safe from any thread.

    Args:
        device: outlives it.
        accounts: of the device's tenants; None brings those of a process with one tenant.
        gate: entered while work is on the device.
        streams: made at once and shared when all are in use; 0 makes any number, each when it is needed.

    Attributes:
        device: the device.
        accounts: likewise.
        gate: likewise.
        kernels: loaded once for a tenant's sandboxes.
        streams: drained ones.
        events: unused ones.
        ring: slots for small windows.
        parking: sessions that wait for their next guests.
        backlog: room for the work of guests whose thread must not wait in the driver.
    """

    def __init__(
        self, device: Device, accounts: Accounts | None = None, gate: Gate = PROCESS_GATE, streams: int = 0
    ) -> None:
        self.device = device
        self.accounts = accounts or Accounts()
        self.gate = gate
        self.kernels = KernelCache(device)
        self.streams = StreamStock(device.open_stream, device.close_stream, MAX_IDLE_STREAMS, streams)
        self.events: Stock[Event] = Stock(device.events.open_event, device.events.close_event, MAX_IDLE_EVENTS)
        self.ring = StagingRing(device)
        self.parking = SessionPool()
        self.backlog = QueueCapacity()
        self._lock = threading.Lock()
        self._tenancies: dict[str, TenantResources] = {}
        self._driver: DriverTable | None = None

    @cached_property
    def architecture(self) -> tuple[int, int]:
        """Compute capability of the device."""
        return self.device.info.compute_capability

    def driver_at(self) -> int:
        """Return the address of the device's functions for compiled code, which live as long as this."""
        if self._driver is None:
            table = driver_table(self.device.native.table)
            with self._lock:  # a second table would free the first, whose address pads have
                self._driver = self._driver or table
        return ctypes.addressof(self._driver)

    def tenancy(self, tenant: str) -> TenantResources:
        """Return a registered tenant's part of the device.

        Raises:
            InvalidArgs: no such tenant.
        """
        known = self._tenancies.get(tenant)
        if known is not None and known.account.registered:
            return known
        with self._lock:
            account = self.accounts.account(tenant)
            known = self._tenancies.get(tenant)
            if known is None:
                known = self._tenancies[tenant] = TenantResources(tenant, account, self.device, self._spare)
            return known

    def _spare(self) -> bool:
        """Have every tenant give back the memory that it keeps empty; return whether any had some."""
        return sum(tenancy.suballocator.trim() for tenancy in list(self._tenancies.values())) > 0

    def take_slot(self, tenant: str) -> Slot:
        """Return a slot of the ring, from a parked session if no other is free.

        Raises:
            CapacityExhausted: none is free, or the device does not reach such memory.
            DeviceLost: the device does not answer.
        """
        while True:
            try:
                return self.ring.take(tenant)
            except CapacityExhausted:
                if self.ring.refused or not self.parking.drop():
                    raise

    def close(self) -> list[Exception]:
        """Close parked sessions and release what no session holds any more; return what the device raised.

        What an abandoned session can reach stays for as long as the process.
        """
        self.parking.close()
        failures = self.kernels.close() + self.ring.close() + self.streams.close() + self.events.close()
        with self._lock:
            tenancies, self._tenancies = list(self._tenancies.values()), {}
        for tenancy in tenancies:
            if tenancy.suballocator.statistics().allocations:
                _log.error("memory of tenant %s may still be reached: it stays allocated", tenancy.tenant)
            else:
                tenancy.suballocator.close()
        return failures
