"""How much of a device each tenant may hold: one account a tenant, charged together with the process's ledger.

This is the first of two locks on device memory: it decides before the device is asked. The second is the device's own,
a pool with a cap (`tensorwasm.gpu.memory.suballocator`). Host memory that a device reaches is a line of its own in the
same account.
"""

from __future__ import annotations

import re
import threading
import weakref
from dataclasses import dataclass, field
from enum import Enum, auto
from types import TracebackType
from typing import Final, Self

from tensorwasm.errors import InternalError, InvalidArgs, QuotaExceeded
from tensorwasm.gpu.device.limits import MAX_PROCESS_DEVICE_BYTES
from tensorwasm.gpu.limits.quota import PROCESS_LEDGER, MemoryLedger

DEFAULT_TENANT: Final = "default"
MAX_CAP_BYTES: Final = 1 << 63
_TENANT: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True, slots=True)
class AccountStatistics:
    """A snapshot of an account.

    Attributes:
        tenant: whose.
        registered: False while an unregistered account waits for what is charged to it.
        max_bytes: device memory that may be charged.
        max_pinned_bytes: pinned host memory that may be charged.
        device_bytes: device memory charged now.
        allocations: live allocations charged now.
        pinned_bytes: pinned host memory charged now.
        peak_bytes: most device memory ever charged at a time.
        peak_pinned_bytes: most pinned host memory ever charged at a time.
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


class _State(Enum):
    RESERVED = auto()
    COMMITTED = auto()
    RELEASED = auto()


@dataclass(slots=True, eq=False)
class _Line:
    """One cap and what is charged against it, every change under its own lock.

    Attributes:
        what: the memory's name, for people.
        max_bytes: the cap.
        ledger: charged inside the same step, None for host memory.
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

    def count_refusal(self) -> None:
        with self.lock:
            self.refusals += 1

    def set_cap(self, max_bytes: int | None) -> None:
        """Change the cap, None leaving it as it is, and admit again."""
        with self.lock:
            self.open = True
            if max_bytes is not None:
                self.max_bytes = max_bytes

    def shut(self) -> None:
        with self.lock:
            self.open = False


class Reservation:
    """Memory that is charged to an account until it is released. Safe from any thread.

    As a context manager it is released at the end of the ``with`` unless it was committed there.

    Attributes:
        size_bytes: charged for it.
        allocations: likewise.
    """

    __slots__ = ("_line", "_state", "allocations", "size_bytes")

    def __init__(self, line: _Line, size_bytes: int, allocations: int) -> None:
        line.charge(size_bytes, allocations)
        self.size_bytes = size_bytes
        self.allocations = allocations
        self._line = line
        self._state = _State.RESERVED

    def commit(self) -> None:
        """Say that the memory is there now: it stays charged until `release`.

        Raises:
            InternalError: it was committed or released before.
        """
        with self._line.lock:
            if self._state is not _State.RESERVED:
                raise InternalError(f"a reservation that is {self._state.name.lower()} cannot be committed")
            self._state = _State.COMMITTED

    def release(self) -> None:
        """Refund it, committed or not.

        Raises:
            InternalError: it was released before; nothing is refunded twice.
        """
        with self._line.lock:
            if self._state is _State.RELEASED:
                raise InternalError("a reservation is released once")
            self._state = _State.RELEASED
            self._line.refund(self.size_bytes, self.allocations)

    def __enter__(self) -> Self:
        """Return the reservation."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Release what was neither committed nor released."""
        with self._line.lock:
            if self._state is _State.RESERVED:
                self._state = _State.RELEASED
                self._line.refund(self.size_bytes, self.allocations)


class Account:
    """One tenant's memory on one device. Safe from any thread; nothing here waits for a device.

    Accounts come from `Accounts.register`.

    Args:
        tenant: whose, valid.
        max_bytes: cap on device memory.
        max_pinned_bytes: cap on pinned host memory.
        ledger: charged along for device memory.
    """

    __slots__ = ("__weakref__", "_device", "_pinned", "tenant")

    def __init__(self, tenant: str, max_bytes: int, max_pinned_bytes: int, ledger: MemoryLedger) -> None:
        self.tenant = tenant
        self._device = _Line("GPU memory", max_bytes, ledger)
        self._pinned = _Line("pinned memory", max_pinned_bytes, None)

    @property
    def max_bytes(self) -> int:
        """Cap on device memory."""
        return self._device.max_bytes

    @property
    def registered(self) -> bool:
        """Whether anything new is admitted."""
        return self._device.open

    @property
    def charged(self) -> bool:
        """Whether anything is charged."""
        lines = (self._device, self._pinned)
        return any(line.charged_bytes or line.allocations for line in lines)

    def reserve(self, size_bytes: int, allocations: int = 1) -> Reservation:
        """Charge device memory, here and in the process's ledger, before it is allocated.

        Raises:
            QuotaExceeded: over the tenant's cap or a limit of the process, or the tenant is not registered any more;
                nothing is charged.
            InvalidArgs: a negative size.
        """
        return Reservation(self._device, size_bytes, allocations)

    def reserve_pinned(self, size_bytes: int) -> Reservation:
        """Charge host memory before a device is made to reach it.

        Raises:
            QuotaExceeded: over the tenant's cap, or the tenant is not registered any more; nothing is charged.
            InvalidArgs: a negative size.
        """
        return Reservation(self._pinned, size_bytes, 0)

    def count_refusal(self) -> None:
        """Count a refusal that was not this account's own: the device's, or for want of one whole piece."""
        self._device.count_refusal()

    def admit(self, max_bytes: int | None, max_pinned_bytes: int | None) -> None:
        """Set the caps, None leaving one as it is; what is charged stays, even where it is more than the new cap."""
        self._device.set_cap(max_bytes)
        self._pinned.set_cap(max_pinned_bytes)

    def shut(self) -> None:
        """Admit nothing new until `admit`."""
        self._device.shut()
        self._pinned.shut()

    def statistics(self) -> AccountStatistics:
        """Return a snapshot: each line is exact in itself."""
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
    """The accounts of all tenants on one device. Safe from any thread.

    The tenant ``default`` is there from the start, with the process's own caps. A tenant has one account: it is the
    same one again after `unregister` for as long as anything is charged to it or anybody holds it, so that nobody gets
    a fresh quota by leaving and coming back.

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
        _check(tenant, max_bytes, max_pinned_bytes)
        with self._lock:
            self._forget_drained()
            account = self._known.get(tenant)
            if account is None:
                pinned_bytes = MAX_PROCESS_DEVICE_BYTES if max_pinned_bytes is None else max_pinned_bytes
                account = self._known[tenant] = Account(tenant, max_bytes, pinned_bytes, self._ledger)
            else:
                account.admit(max_bytes, max_pinned_bytes)
            self._kept[tenant] = account
            return account

    def unregister(self, tenant: str) -> None:
        """Admit nothing more for a tenant; what is charged stays charged until it is released.

        Raises:
            InvalidArgs: no such tenant.
        """
        with self._lock:
            self._registered(tenant).shut()
            self._forget_drained()

    def account(self, tenant: str) -> Account:
        """Return a registered tenant's account.

        Raises:
            InvalidArgs: no such tenant.
        """
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
        """Let go of accounts that left and have nothing charged; whoever still holds one keeps it known."""
        for tenant, account in list(self._kept.items()):
            if not account.registered and not account.charged:
                del self._kept[tenant]


def check_tenant(tenant: str) -> None:
    """See that there can be a tenant of a name.

    Raises:
        InvalidArgs: there cannot.
    """
    if not _TENANT.fullmatch(tenant):
        raise InvalidArgs(f"a tenant is 1 to 64 characters of A-Z a-z 0-9 . _ -, not {tenant[:64]!r}")


def _check(tenant: str, max_bytes: int, max_pinned_bytes: int | None) -> None:
    check_tenant(tenant)
    for cap_bytes in (max_bytes, max_pinned_bytes or 0):
        if not 0 <= cap_bytes <= MAX_CAP_BYTES:
            raise InvalidArgs(f"a cap is 0 to {MAX_CAP_BYTES} bytes, not {cap_bytes}")
