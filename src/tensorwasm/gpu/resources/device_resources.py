"""What all sessions on one device share: kernels, streams, events, staging slots, tenants' memory, pooled sessions."""

from __future__ import annotations

import ctypes
import logging
import threading
from dataclasses import dataclass
from typing import Final, Protocol

from tensorwasm.errors import CapacityExhausted
from tensorwasm.gpu.device.port import Device
from tensorwasm.gpu.device.protocols import Event
from tensorwasm.gpu.limits.accounts import Account, Accounts
from tensorwasm.gpu.limits.gate import PROCESS_GATE, Gate
from tensorwasm.gpu.limits.load_places import LoadPlaces
from tensorwasm.gpu.limits.long_work import LongWork
from tensorwasm.gpu.limits.queue_credits import QueueCapacity
from tensorwasm.gpu.memory.suballocator import Suballocator
from tensorwasm.gpu.native.layout import DriverTable, driver_table
from tensorwasm.gpu.resources.guarded_compiler import KernelCompiler
from tensorwasm.gpu.resources.kernel_cache import MAX_IDLE_GUARDED, MAX_IDLE_KERNELS, KernelCache
from tensorwasm.gpu.resources.session_windows import SessionWindows
from tensorwasm.gpu.resources.stream_stock import Stock, StreamStock
from tensorwasm.gpu.staging import Slot, StagingRing

MAX_IDLE_STREAMS: Final = 64
MAX_IDLE_EVENTS: Final = 256
MAX_PARKED: Final = 16
"""Pooled sessions of a device: each has a slot of the staging ring, and up to a permit at the gate."""

_log = logging.getLogger(__name__)


class PooledSession(Protocol):
    """A session."""

    def close(self) -> None:
        """Release everything."""


class SessionPool:
    """Renewed sessions of one device, kept for the next guests of the same kind. Thread-safe.

    One saves a fresh sandbox most of what its grant costs: a stream, a permit at the gate, a slot for windows, and the
    kernels that the guest before it has loaded.

    Args:
        most: kept at a time; beyond, the one that was put first is closed.
    """

    def __init__(self, most: int = MAX_PARKED) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._sessions: dict[PooledSession, None] = {}
        self._closed = False

    def __len__(self) -> int:
        """Return how many sessions are in the pool."""
        return len(self._sessions)

    def put(self, session: PooledSession) -> None:
        """Add a session that is as good as new; it may be closed from now on, until `take`."""
        self._sessions[session] = None
        if self._closed:
            self.close()
        elif len(self._sessions) > self._most:
            self.drop()

    def take(self, session: PooledSession) -> bool:
        """Return whether the session is still in the pool, and the caller's alone from now on."""
        return self._sessions.pop(session, self) is None

    def drop(self) -> bool:
        """Close the session that was put first; return whether there was one."""
        with self._lock:
            first = next(iter(list(self._sessions)), None)
            if first is None or not self.take(first):
                return first is not None
        first.close()
        return True

    def close(self) -> None:
        """Close all sessions, and any that is put later."""
        self._closed = True
        while self.drop():
            pass


@dataclass(slots=True, eq=False)
class TenantResources:
    """One tenant on one device: its name, its account, and what its buffers are cut from."""

    tenant: str
    account: Account
    suballocator: Suballocator


class DeviceResources:
    """What sessions share. Thread-safe.

    Args:
        device: outlives it.
        accounts: of the device's tenants; None brings those of a process with one tenant.
        gate: entered while work is on the device.
        streams: made at once and shared when all are in use; 0 makes any number, each when it is needed.
        guarded: whether kernels are guarded: then each session has a window, and tenants can share the device.
        compiler, checked: see `KernelCache`.

    Attributes:
        ring: slots for small windows.
        queue_capacity: for guests whose thread must not wait in the driver.
        windows: where sessions of guarded kernels are confined; None without a guard.
        long_work: finds tenants whose kernels run long.
        load_places: for loads of guests without a thread of their own.
    """

    def __init__(
        self,
        device: Device,
        accounts: Accounts | None = None,
        gate: Gate = PROCESS_GATE,
        streams: int = 0,
        *,
        guarded: bool = False,
        compiler: KernelCompiler | None = None,
        checked: bool = False,
    ) -> None:
        self.device = device
        self.accounts = accounts or Accounts()
        self.gate = gate
        idle = MAX_IDLE_GUARDED if guarded else MAX_IDLE_KERNELS
        self.kernels = KernelCache(device, idle, guarded=guarded, compiler=compiler, checked=checked)
        self.streams = StreamStock(device.open_stream, device.close_stream, MAX_IDLE_STREAMS, streams)
        self.events: Stock[Event] = Stock(device.events.open_event, device.events.close_event, MAX_IDLE_EVENTS)
        self.ring = StagingRing(device)
        self.session_pool = SessionPool()
        self.windows = SessionWindows(device, self.session_pool.drop) if guarded else None
        self.queue_capacity = QueueCapacity()
        self.long_work = LongWork()
        self.load_places = LoadPlaces()
        self._lock = threading.Lock()
        self._tenancies: dict[str, TenantResources] = {}
        self._driver: DriverTable | None = None

    def driver_at(self) -> int:
        """Return the address of the device's functions for compiled code, valid as long as this object."""
        if self._driver is None:
            table = driver_table(self.device.native.table)
            with self._lock:  # a second table would free the first, whose address layouts have
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
                memory = Suballocator(self.device.pools, account, spare=self._spare)
                known = self._tenancies[tenant] = TenantResources(tenant, account, memory)
            return known

    def take_slot(self, tenant: str) -> Slot:
        """Return a slot of the ring, from a pooled session if no other is free.

        Raises:
            CapacityExhausted: none is free, or the device does not reach such memory.
        """
        while True:
            try:
                return self.ring.take(tenant)
            except CapacityExhausted:
                if self.ring.refused or not self.session_pool.drop():
                    raise

    def close(self) -> list[Exception]:
        """Close pooled sessions and release what no session holds any more; return what the device raised.

        What an abandoned session can reach stays for as long as the process.
        """
        self.session_pool.close()
        failures = [] if self.windows is None else self.windows.close()
        failures += self.kernels.close() + self.ring.close() + self.streams.close() + self.events.close()
        with self._lock:
            tenancies, self._tenancies = list(self._tenancies.values()), {}
        for tenancy in tenancies:
            if tenancy.suballocator.statistics().allocations:
                _log.error("memory of tenant %s may still be reached: it stays allocated", tenancy.tenant)
            else:
                tenancy.suballocator.close()
        return failures

    def _spare(self) -> bool:
        """Have every tenant give back the memory that it keeps empty; return whether any had some."""
        return sum(tenancy.suballocator.trim() for tenancy in list(self._tenancies.values())) > 0
