"""Quotas: how much a tenant may hold at a time, and use up in an hour; and `TenantPolicy`, the rules for a tenant.

What is held is given back (`Quotas.hold` and `QuotaHold.release`); what is used up is not (`Quotas.charge`), and counts
until an hour has passed over it. Thread-safe: one lock is held for a microsecond at most, and nothing blocks under it.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType, TracebackType
from typing import Final, Self

import msgspec

from tensorwasm.errors import CapacityExhausted, InternalError, InvalidArgs, QuotaExceeded
from tensorwasm.tenancy.accounts import HOUR_MS, SharedAccount, SharedAccounts, TenantAccount
from tensorwasm.tenancy.shared_table import SharedTable
from tensorwasm.values import MIB

HELD: Final[dict[str, str]] = {
    "instances": "instances alive at a time, those of idle sessions in memory too",
    "memory_bytes": "linear memory of its instances",
    "gpu_bytes": "device memory and pinned host memory",
    "artifact_bytes": "bytes stored: modules, sessions and snapshots; else TENSOR_WASM_ARTIFACTS_QUOTA holds",
    "streams": "streams and WebSockets open at a time",
    "requests": "requests in flight",
}
"""Quotas of what is held, with what each counts."""

HELD_NAMES: Final = frozenset(HELD)

BUDGETS: Final[dict[str, str]] = {
    "gpu_us_per_hour": "microseconds of GPU time within an hour",
    "launches_per_hour": "kernel launches within an hour",
}
"""Quotas of what is used up, with what each counts."""

QUOTAS: Final[dict[str, str]] = HELD | BUDGETS
"""All quotas; a tenant without a number for one has no such limit."""

RATES: Final[dict[str, str]] = {
    "qps": "requests a second of one token for the tenant; 0 lets only the burst through, ever",
    "burst": "requests of one token for the tenant at once; 0 for any number",
}
"""The parameters of a tenant's rate limit in `tensorwasm.tenancy.buckets`, with what each says."""

CAPS: Final[dict[str, str]] = QUOTAS | RATES
"""All numbers that can be set for a tenant."""

LEAST_MEMORY_BYTES: Final = 320 * MIB
"""Memory that a tenant may always hold if it is free: an instance of usual size, and idle sessions beside it."""

_LOOKS: Final = 2  # accounts checked for each new one: more than are added, so that idle ones are found
_UNLIMITED: Final = 1 << 80
MAX_LIMIT: Final = (1 << 63) - 1


def unix_ms() -> int:
    """Return the wall clock's time, in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class QuotaHold(msgspec.Struct, gc=False):
    """Amounts that a tenant holds until they are released; also a context manager that releases them.

    Made by `Quotas.hold`. (A struct, since making one costs half as much as making an object.)
    """

    _lock: threading.Lock
    _held: dict[str, int]
    _all: dict[str, int]
    _amounts: dict[str, int] | None
    _shared: SharedAccount | None = None

    @property
    def memory_bytes(self) -> int:
        """The part that is memory."""
        return (self._amounts or {}).get("memory_bytes", 0)

    def add(self, other: QuotaHold) -> None:
        """Move the amounts of another hold of the same tenant here; if this was released, release both and raise."""
        with self._lock:
            mine, more = self._amounts, other._amounts or {}
            if mine is not None:
                self._amounts = mine | {name: mine.get(name, 0) + amount for name, amount in more.items()}
                other._amounts = None
                return
        other.release()
        raise InternalError("a released hold cannot take more")

    def keep(self, memory_bytes: int) -> None:
        """Release memory beyond a number of bytes."""
        with self._lock:
            if self._amounts is not None and self.memory_bytes > memory_bytes:
                for sums in (self._held, self._all):
                    sums["memory_bytes"] -= self.memory_bytes - memory_bytes
                self._amounts = self._amounts | {"memory_bytes": memory_bytes}
                if self._shared is not None:
                    self._shared.publish(("memory_bytes",))

    def release(self) -> None:
        """Release everything; a second call does nothing."""
        with self._lock:
            amounts = self._amounts
            if amounts is not None:
                self._amounts = None
                held = self._held
                for name, amount in amounts.items():
                    held[name] -= amount
                self._all["memory_bytes"] -= amounts.get("memory_bytes", 0)
                if self._shared is not None:
                    self._shared.publish([name for name, amount in amounts.items() if amount])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.release()


class Quotas:
    """The accounts of all tenants of this process; with a table, limits hold over all processes that share it.

    A tenant without a quota for ``memory_bytes`` takes no more memory, beyond its first 320 MiB, than it leaves free
    for all others: one alone has at most half of it, and the next one half of what is left.
    Source: A. K. Choudhury, E. L. Hahne, "Dynamic Queue Length Thresholds" (IEEE/ACM ToN 1998).

    Idle accounts are dropped when others are opened. What is held begins at nothing; the usage of past hours comes back
    with `restore`. Processes that share a table do not wait for one another: those that ask at the same time may each
    take the last place, so that a limit may be exceeded by one request of each other process.

    Attributes:
        host_bytes: linear memory that all tenants together may hold; None does not limit it.
    """

    def __init__(
        self,
        now_unix_ms: Callable[[], int] = unix_ms,
        host_bytes: int | None = None,
        table: SharedTable | None = None,
    ) -> None:
        self.host_bytes = host_bytes
        self._all = {"memory_bytes": 0}
        self._shared = None if table is None else SharedAccounts(table, HELD, BUDGETS, self._all, self._this_hour)
        self._now_unix_ms = now_unix_ms
        self._lock = threading.Lock()
        self._accounts: OrderedDict[int, TenantAccount] = OrderedDict()
        self._refusals: dict[str, int] = {}
        self._spent = {"gpu_us": 0, "launches": 0}

    @property
    def most_bytes(self) -> int | None:
        """Most memory that a tenant without a quota for it may hold; None for no limit."""
        return None if self.host_bytes is None else max(LEAST_MEMORY_BYTES, self.host_bytes // 2)

    def hold(self, tenant: int, limits: Mapping[str, int], **amounts: int) -> QuotaHold:
        """Take amounts by name of `HELD`, all of them or none, within limits by name of `QUOTAS`.

        Raises:
            QuotaExceeded: a limit would be exceeded; the message names the quota, what is held and the limit.
            CapacityExhausted: all tenants together would hold more memory than there is for them, or the table has no
                room for one more tenant.
            InvalidArgs: there is no such quota, or an amount is negative.
        """
        with self._lock:
            account = self._accounts.get(tenant) or self._open(tenant)
            held, rest = account.held, limits
            if account.shared is not None:
                names = held.keys() & amounts.keys() & limits.keys()
                rest = {name: limits[name] - account.elsewhere(name) for name in names}
            for name, amount in amounts.items():
                used = held.get(name, 0)
                if amount < 0 or used + amount > rest.get(name, _UNLIMITED) or name not in held:
                    for before in itertools.takewhile(name.__ne__, amounts):
                        held[before] -= amounts[before]
                    if amount < 0 or name not in held:
                        raise InvalidArgs(f"{amount} of {name} cannot be held")
                    raise self._refuse(name, used + limits[name] - rest[name], amount, limits[name])
                held[name] = used + amount
            if self.host_bytes is not None and amounts.get("memory_bytes"):
                self._require_memory(self.host_bytes, account, limits, amounts)
            self._all["memory_bytes"] += amounts.get("memory_bytes", 0)
            is_seen = account.shared is None or account.shared.publish(amounts)
        taken = QuotaHold(self._lock, held, self._all, amounts, account.shared)
        if not is_seen:
            taken.release()
            raise CapacityExhausted("too many tenants hold something at a time; try again later")
        return taken

    def require(self, tenant: int, limits: Mapping[str, int], **amounts: int) -> None:
        """Check that amounts could be held, without holding them, for a call that is not interrupted.

        Arguments and QuotaExceeded are as for `hold`.
        """
        account = self._accounts.get(tenant)
        for name, amount in amounts.items():
            limit = limits.get(name)
            if limit is not None:
                used = 0 if account is None else account.held[name]
                if self._shared is not None:
                    used += self.held_elsewhere(tenant, name)
                if used + amount > limit:
                    with self._lock:
                        raise self._refuse(name, used, amount, limit)

    def charge(self, tenant: int, *, gpu_us: int = 0, launches: int = 0) -> None:
        """Record what was used up. It is never refused: use over the budget makes later requests fail."""
        if self._shared is None or self._shared.is_primary:
            self.restore(tenant, self._this_hour() * HOUR_MS, gpu_us=gpu_us, launches=launches)
        else:
            self._add_unreported(tenant, gpu_us, launches)
        with self._lock:
            self._spent["gpu_us"] += gpu_us
            self._spent["launches"] += launches

    def reported(self, tenant: int, *, gpu_us: int = 0, launches: int = 0) -> None:
        """Record that the primary has counted what this process charged; in a process that shares a table with it."""
        self._add_unreported(tenant, -gpu_us, -launches)

    def restore(self, tenant: int, hour_unix_ms: int, *, gpu_us: int = 0, launches: int = 0) -> None:
        """Record what was used up in the hour that began then; for a restarted service and reports, in order of time.

        Hours that no longer count change nothing.

        Raises:
            InvalidArgs: an amount is negative.
        """
        if gpu_us < 0 or launches < 0:
            raise InvalidArgs("usage cannot be negative")
        if not gpu_us and not launches:
            return
        with self._lock:
            account = self._accounts.get(tenant) or self._open(tenant)
            hour = hour_unix_ms // HOUR_MS
            account.turn_to(hour)
            if hour < account.hour - 1:
                return
            used = account.now if hour == account.hour else account.before
            for name, amount in (("gpu_us_per_hour", gpu_us), ("launches_per_hour", launches)):
                used[name] = used.get(name, 0) + amount
            if account.shared is not None and account.shared.is_primary:
                account.shared.publish_used(account)

    def check_budget(self, tenant: int, limits: Mapping[str, int]) -> None:
        """Raise QuotaExceeded, with quota, use and limit, if a budget is used up."""
        with self._lock:
            account = self._find(tenant)
            for name in BUDGETS:
                limit = limits.get(name)
                if limit is not None:
                    used = 0 if account is None else self._used(account, name)
                    if used >= limit:
                        raise self._refuse(name, used, 1, limit)

    def usage(self, tenant: int) -> dict[str, int]:
        """Return what a tenant holds and has used up within an hour, by name of `QUOTAS`."""
        with self._lock:
            account = self._find(tenant)
            if account is None:
                return dict.fromkeys(QUOTAS, 0)
            held = {name: amount + account.elsewhere(name) for name, amount in account.held.items()}
            return held | {name: self._used(account, name) for name in BUDGETS}

    def memory_limit(self, tenant: int, limits: Mapping[str, int]) -> int | None:
        """Return how much linear memory a tenant may hold now; None for no limit."""
        if "memory_bytes" in limits or self.host_bytes is None:
            return limits.get("memory_bytes")
        with self._lock:
            account = self._find(tenant)
            own_bytes = 0 if account is None else account.held["memory_bytes"] + account.elsewhere("memory_bytes")
            reachable_bytes = max(0, self.host_bytes - self._all_bytes() + own_bytes)
        return max(min(LEAST_MEMORY_BYTES, reachable_bytes), reachable_bytes // 2)

    @property
    def is_shared(self) -> bool:
        """Whether other processes may hold and release what limits allow."""
        return self._shared is not None

    def held_elsewhere(self, tenant: int | None, name: str = "memory_bytes") -> int:
        """Return what a tenant, or for None all tenants in ``memory_bytes``, hold in other processes."""
        if self._shared is None:
            return 0
        if tenant is None:
            return self._shared.table.others_total()
        with self._lock:
            return (self._accounts.get(tenant) or self._open(tenant)).elsewhere(name)

    def held(self, name: str) -> dict[int, int]:
        """Return the amount of a quota of `HELD` that each tenant holds in this process, without zeros."""
        with self._lock:
            return {tenant: amount for tenant, account in self._accounts.items() if (amount := account.held[name])}

    def refusals(self) -> dict[str, int]:
        """Return the number of refusals, by name of the quota."""
        with self._lock:
            return dict(self._refusals)

    def spent(self) -> dict[str, int]:
        """Return the sums of all charges since the start: ``gpu_us`` and ``launches``."""
        with self._lock:
            return dict(self._spent)

    def _require_memory(
        self, host_bytes: int, account: TenantAccount, limits: Mapping[str, int], amounts: Mapping[str, int]
    ) -> None:
        """Check that there is memory for what a tenant has just taken; else undo all that it took, and raise."""
        wanted_bytes, all_bytes = amounts["memory_bytes"], self._all_bytes()
        own_bytes = account.held["memory_bytes"] + account.elsewhere("memory_bytes")
        free_bytes = host_bytes - all_bytes - wanted_bytes
        greedy = "memory_bytes" not in limits and own_bytes > max(LEAST_MEMORY_BYTES, free_bytes)
        if free_bytes >= 0 and not greedy:
            return
        for name, amount in amounts.items():
            account.held[name] -= amount
        own_bytes -= wanted_bytes
        if greedy and (free_bytes >= 0 or own_bytes or wanted_bytes > (self.most_bytes or 0)):
            raise self._refuse("memory_bytes", own_bytes, wanted_bytes, (host_bytes - all_bytes + own_bytes) // 2)
        self._refusals["host_bytes"] = self._refusals.get("host_bytes", 0) + 1
        raise CapacityExhausted("the memory of this machine is held by other instances; try again later")

    def _refuse(self, name: str, used: int, amount: int, limit: int) -> QuotaExceeded:
        self._refusals[name] = self._refusals.get(name, 0) + 1
        return QuotaExceeded(f"the quota {name} is {limit}: {used} are used, and {amount} more are too many")

    def _used(self, account: TenantAccount, budget: str) -> int:
        now_ms = self._now_unix_ms()
        unreported = account.unreported(budget)
        account.turn_to(now_ms // HOUR_MS)
        return account.used(budget, now_ms) + unreported

    def _add_unreported(self, tenant: int, gpu_us: int, launches: int) -> None:
        with self._lock:
            shared = (self._accounts.get(tenant) or self._open(tenant)).shared
            if shared is not None:
                for name, amount in (("gpu_us_per_hour", gpu_us), ("launches_per_hour", launches)):
                    shared.unreported[name] = max(0, shared.unreported[name] + amount)
                shared.publish(BUDGETS)

    def _all_bytes(self) -> int:
        return self._all["memory_bytes"] + self.held_elsewhere(None)

    def _this_hour(self) -> int:
        return self._now_unix_ms() // HOUR_MS

    def _find(self, tenant: int) -> TenantAccount | None:
        """Return a tenant's account; None if nothing is known of it, in this process or in others."""
        return self._accounts.get(tenant) or (None if self._shared is None else self._open(tenant))

    def _open(self, tenant: int) -> TenantAccount:
        for _ in range(min(_LOOKS, len(self._accounts))):
            old, account = self._accounts.popitem(last=False)
            if not account.is_idle(self._this_hour()):
                self._accounts[old] = account
        account = self._accounts[tenant] = TenantAccount(dict.fromkeys(HELD, 0))
        if self._shared is not None:
            account.shared = SharedAccount(self._shared, tenant, account.held)
        return account


@dataclass(frozen=True, slots=True)
class TenantPolicy:
    """The rules for a tenant.

    Attributes:
        weight: its share where tenants wait for one another, 1 to 1000.
        quotas: by name of `tensorwasm.tenancy.quotas.CAPS`; a missing one is unlimited.
    """

    weight: int = 1
    quotas: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    disabled: bool = False
