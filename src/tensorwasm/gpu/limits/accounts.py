"""How much of a device each tenant may hold: one account a tenant, charged together with the process's ledger.

An account decides before the device is asked. Device memory has a second limit, the device's own: a pool with a cap
(`tensorwasm.gpu.memory.suballocator`). Host memory that a device reaches is charged separately in the same account.
"""

from __future__ import annotations

import re
import threading
import weakref
from dataclasses import dataclass, field
from typing import Final, Literal, Self

from tensorwasm.errors import InternalError, InvalidArgs, QuotaExceeded
from tensorwasm.gpu.device.limits import MAX_PROCESS_ALLOCATIONS, MAX_PROCESS_DEVICE_BYTES

DEFAULT_TENANT: Final = "default"
MAX_CAP_BYTES: Final = 1 << 63
_TENANT: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True, slots=True)
class MemoryLedgerStatistics:
    """Live allocations and their bytes."""

    allocations: int
    device_bytes: int


class MemoryLedger:
    """Counts device memory over many sessions, up to a number of bytes and of allocations. Thread-safe."""

    def __init__(
        self, max_bytes: int = MAX_PROCESS_DEVICE_BYTES, max_allocations: int = MAX_PROCESS_ALLOCATIONS
    ) -> None:
        self._max_bytes = max_bytes
        self._max_allocations = max_allocations
        self._bytes = self._allocations = 0
        self._lock = threading.Lock()

    def reserve(self, size_bytes: int, allocations: int = 1) -> None:
        """Charge memory before it is allocated.

        Raises:
            QuotaExceeded: over a limit; nothing is charged.
        """
        with self._lock:
            if self._bytes + size_bytes > self._max_bytes:
                raise QuotaExceeded(f"{size_bytes} bytes more would exceed this process's {self._max_bytes} bytes")
            if self._allocations + allocations > self._max_allocations:
                raise QuotaExceeded(f"this process already holds {self._allocations} device allocations")
            self._bytes += size_bytes
            self._allocations += allocations

    def release(self, size_bytes: int, allocations: int = 1) -> None:
        """Refund exactly what one `reserve` charged."""
        with self._lock:
            self._bytes -= size_bytes
            self._allocations -= allocations

    def statistics(self) -> MemoryLedgerStatistics:
        """Return what is charged now."""
        with self._lock:
            return MemoryLedgerStatistics(self._allocations, self._bytes)


PROCESS_LEDGER: Final = MemoryLedger()


@dataclass(frozen=True, slots=True)
class AccountStatistics:
    """A snapshot of an account: caps, what is charged now, and the most ever charged at a time.

    Attributes:
        registered: False while an unregistered account waits for what is charged to it.
        refusals: requests refused since the account was opened.
    """

    tenant: str
    registered: bool
    max_bytes: int
    max_pinned_bytes: int
    device_bytes: int = 0
    allocations: int = 0
    pinned_bytes: int = 0
    peak_bytes: int = 0
    peak_pinned_bytes: int = 0
    refusals: int = 0


@dataclass(slots=True, eq=False)
class _CappedMemory:
    """One cap and what is charged against it, every change under its own lock.

    Attributes:
        what: the memory's name in messages.
        max_bytes: the cap.
        ledger: charged in the same step, None for host memory.
        open: whether anything new is admitted.
    """

    what: str
    max_bytes: int
    ledger: MemoryLedger | None
    open: bool = True
    charged_bytes: int = 0
    allocations: int = 0
    peak_bytes: int = 0
    refusals: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def charge(self, size_bytes: int, allocations: int) -> None:
        if size_bytes < 0 or allocations < 0:
            raise InvalidArgs(f"{size_bytes} bytes in {allocations} allocations cannot be reserved")
        with self.lock:
            charged_bytes = self.charged_bytes + size_bytes
            if not self.open or charged_bytes > self.max_bytes:
                self.refusals += 1
                raise QuotaExceeded(
                    f"{size_bytes} bytes more would exceed the tenant's {self.max_bytes} bytes of {self.what}"
                    if self.open
                    else "the tenant is not registered any more"
                )
            if self.ledger is not None:
                # Its lock inside ours: a refusal there leaves both as they were, and ours cannot refuse any more.
                try:
                    self.ledger.reserve(size_bytes, allocations)
                except QuotaExceeded:
                    self.refusals += 1
                    raise
            self.charged_bytes = charged_bytes
            self.allocations += allocations
            self.peak_bytes = max(self.peak_bytes, charged_bytes)

    def refund(self, size_bytes: int, allocations: int) -> None:
        """Take back one charge; the caller holds the lock."""
        self.charged_bytes -= size_bytes
        self.allocations -= allocations
        if self.ledger is not None:
            self.ledger.release(size_bytes, allocations)


class Reservation:
    """Memory that is charged to an account until it is released. Thread-safe.

    As a context manager it is released at the end of the ``with`` unless it was committed there.
    """

    __slots__ = ("_memory", "_state", "allocations", "size_bytes")

    def __init__(self, memory: _CappedMemory, size_bytes: int, allocations: int) -> None:
        memory.charge(size_bytes, allocations)
        self.size_bytes = size_bytes
        self.allocations = allocations
        self._memory = memory
        self._state: Literal["reserved", "committed", "released"] = "reserved"

    def commit(self) -> None:
        """Keep the memory charged until `release`: it is allocated now."""
        with self._memory.lock:
            if self._state != "reserved":
                raise InternalError(f"a reservation that is {self._state} cannot be committed")
            self._state = "committed"

    def release(self) -> None:
        """Refund it once, committed or not."""
        with self._memory.lock:
            if self._state == "released":
                raise InternalError("a reservation is released once")
            self._refund()

    def __enter__(self) -> Self:
        """Return the reservation."""
        return self

    def __exit__(self, *_: object) -> None:
        """Release what was neither committed nor released."""
        with self._memory.lock:
            if self._state == "reserved":
                self._refund()

    def _refund(self) -> None:
        self._state = "released"
        self._memory.refund(self.size_bytes, self.allocations)


class Account:
    """One tenant's memory on one device. Thread-safe; never waits for a device.

    Caps are on device memory, which is charged to the process's ledger too, and on pinned host memory.
    """

    __slots__ = ("__weakref__", "_device", "_pinned", "tenant")

    def __init__(self, tenant: str, max_bytes: int, max_pinned_bytes: int, ledger: MemoryLedger) -> None:
        self.tenant = tenant
        self._device = _CappedMemory("GPU memory", max_bytes, ledger)
        self._pinned = _CappedMemory("pinned memory", max_pinned_bytes, None)

    @property
    def max_bytes(self) -> int:
        """Cap on device memory."""
        return self._device.max_bytes

    @property
    def registered(self) -> bool:
        """Whether reservations are accepted."""
        return self._device.open

    def stands(self, max_bytes: int) -> bool:
        """Return whether reservations are accepted, under that cap on device memory."""
        return self._device.open and self._device.max_bytes == max_bytes

    @property
    def charged(self) -> bool:
        """Whether anything is charged."""
        return any(kind.charged_bytes or kind.allocations for kind in (self._device, self._pinned))

    def reserve(self, size_bytes: int, allocations: int = 1) -> Reservation:
        """Charge device memory, here and in the process's ledger, before it is allocated.

        Raises:
            QuotaExceeded: over the tenant's cap or a limit of the process, or the tenant is not registered any more.
            InvalidArgs: a negative size.
        """
        return Reservation(self._device, size_bytes, allocations)

    def reserve_pinned(self, size_bytes: int) -> Reservation:
        """Charge host memory before it is registered with a device; raises as `reserve`."""
        return Reservation(self._pinned, size_bytes, 0)

    def count_refusal(self) -> None:
        """Count a refusal that was not this account's own: the device's, or for want of one whole piece."""
        with self._device.lock:
            self._device.refusals += 1

    def open(self, max_bytes: int | None, max_pinned_bytes: int | None) -> None:
        """Accept reservations under these caps; None leaves one as it is.

        What is charged stays, even where it is more than the new cap.
        """
        for memory, cap_bytes in ((self._device, max_bytes), (self._pinned, max_pinned_bytes)):
            with memory.lock:
                memory.open = True
                memory.max_bytes = memory.max_bytes if cap_bytes is None else cap_bytes

    def close(self) -> None:
        """Refuse reservations until `open`."""
        for memory in (self._device, self._pinned):
            with memory.lock:
                memory.open = False

    def statistics(self) -> AccountStatistics:
        """Return a snapshot: the figures of each kind of memory are consistent."""
        device, pinned = self._device, self._pinned
        with device.lock, pinned.lock:
            return AccountStatistics(
                tenant=self.tenant,
                registered=device.open,
                max_bytes=device.max_bytes,
                max_pinned_bytes=pinned.max_bytes,
                device_bytes=device.charged_bytes,
                allocations=device.allocations,
                pinned_bytes=pinned.charged_bytes,
                peak_bytes=device.peak_bytes,
                peak_pinned_bytes=pinned.peak_bytes,
                refusals=device.refusals + pinned.refusals,
            )


class Accounts:
    """The accounts of all tenants on one device. Thread-safe.

    The tenant ``default`` is there from the start, with the process's own caps. A tenant has one account: after
    `unregister` it is the same one again for as long as anything is charged to it or refers to it, so that a tenant
    gets no fresh quota by leaving and coming back.

    Args:
        ledger: charged along with every account; the process's own unless a test brings one.
    """

    def __init__(self, ledger: MemoryLedger = PROCESS_LEDGER) -> None:
        self._ledger = ledger
        self._lock = threading.Lock()
        self._kept: dict[str, Account] = {}
        self._known: weakref.WeakValueDictionary[str, Account] = weakref.WeakValueDictionary()
        self.register(DEFAULT_TENANT, MAX_PROCESS_DEVICE_BYTES)

    def register(self, tenant: str, max_bytes: int, max_pinned_bytes: int | None = None) -> Account:
        """Return the tenant's account, opening one or changing the caps of the one there is.

        Args:
            tenant: 1 to 64 characters of ``[A-Za-z0-9._-]``.
            max_bytes: cap on device memory, 0 to 2**63.
            max_pinned_bytes: cap on pinned host memory, likewise; None keeps what it is, at first the process's
                64 GiB.

        Raises:
            InvalidArgs: no such tenant can be, or a cap is out of range.
        """
        check_tenant(tenant)
        for cap_bytes in (max_bytes, max_pinned_bytes or 0):
            if not 0 <= cap_bytes <= MAX_CAP_BYTES:
                raise InvalidArgs(f"a cap is 0 to {MAX_CAP_BYTES} bytes, not {cap_bytes}")
        with self._lock:
            self._forget_drained()
            account = self._known.get(tenant)
            if account is None:
                account = self._known[tenant] = Account(tenant, 0, MAX_PROCESS_DEVICE_BYTES, self._ledger)
            account.open(max_bytes, max_pinned_bytes)
            self._kept[tenant] = account
            return account

    def unregister(self, tenant: str) -> None:
        """Refuse further reservations of a tenant; what is charged stays charged until it is released."""
        with self._lock:
            self._registered(tenant).close()
            self._forget_drained()

    def account(self, tenant: str) -> Account:
        """Return a registered tenant's account; raises `InvalidArgs` for any other."""
        with self._lock:
            return self._registered(tenant)

    def statistics(self) -> tuple[AccountStatistics, ...]:
        """Return a snapshot of every account that is registered or still charged, by tenant."""
        with self._lock:
            self._forget_drained()
            return tuple(account.statistics() for _, account in sorted(self._kept.items()))

    def _registered(self, tenant: str) -> Account:
        account = self._kept.get(tenant)
        if account is None or not account.registered:
            raise InvalidArgs(f"no tenant {tenant[:64]!r} is registered")
        return account

    def _forget_drained(self) -> None:
        """Drop accounts that left and have nothing charged; one that is still referred to stays known."""
        for tenant, account in list(self._kept.items()):
            if not account.registered and not account.charged:
                del self._kept[tenant]


def check_tenant(tenant: str) -> None:
    """Check a tenant's name; raises `InvalidArgs`."""
    if not _TENANT.fullmatch(tenant):
        raise InvalidArgs(f"a tenant is 1 to 64 characters of A-Z a-z 0-9 . _ -, not {tenant[:64]!r}")
