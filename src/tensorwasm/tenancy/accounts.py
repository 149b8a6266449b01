"""Accounts: what each tenant holds and has used up, in one process (`TenantAccount`) and in all that share a table.

Each process writes into the table what it holds itself, and what it has charged and not yet reported to the primary.
The primary, whose row is 0, also writes what was used up, as it knows from itself and from reports. All of it together
is what a tenant holds and has used up; while a report is acknowledged, it counts twice.

One thread at a time may be in here; `tensorwasm.tenancy.quotas` has the lock.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tensorwasm.tenancy.shared_table import AMOUNTS, COUNTERS, HEAD, SharedTable

HOUR_MS: Final = 3_600_000

PRIMARY: Final = 0
"""Row of the process that knows what was used up."""

Used = tuple[int, ...]
"""An hour, counted since 1970, and the amounts of both budgets used in it, and of both in the hour before."""


@dataclass(slots=True, eq=False)
class TenantAccount:
    """What one tenant holds in this process, and has used up, both by name.

    ``now`` is the use in the current hour, counted since 1970, and ``before`` that in the hour before; ``shared`` is
    the account in the table, if there is one.
    """

    held: dict[str, int]
    shared: SharedAccount | None = None
    hour: int = 0
    now: dict[str, int] = field(default_factory=dict)
    before: dict[str, int] = field(default_factory=dict)

    def turn_to(self, hour: int) -> None:
        """Make an hour the current one, unless a later one is."""
        if hour > self.hour:
            self.before = self.now if hour == self.hour + 1 else {}
            self.now = {}
            self.hour = hour

    def used(self, budget: str, now_ms: int) -> int:
        """Return what was used up of a budget within the last 60 minutes, as if use in the hour before was even."""
        left_ms = HOUR_MS - (now_ms - self.hour * HOUR_MS)
        before = self.before.get(budget, 0)
        return self.now.get(budget, 0) + (before * max(0, min(left_ms, HOUR_MS)) // HOUR_MS if before else 0)

    def is_idle(self, hour: int) -> bool:
        """Return whether nothing is held, and nothing used up still counts in an hour."""
        self.turn_to(hour)
        nothing = not any(self.held.values()) and not self.now and not self.before
        return nothing and (self.shared is None or not any(self.shared.unreported.values()))

    def elsewhere(self, name: str) -> int:
        """Return what other processes hold, or have charged and not reported."""
        return 0 if self.shared is None else self.shared.elsewhere(name)

    def unreported(self, budget: str) -> int:
        """Return what all processes have charged and not reported, and learn what the primary knows to be used up.

        In this order: a report counts there before it ceases to count here.
        """
        shared = self.shared
        if shared is None:
            return 0
        unreported = shared.elsewhere(budget) + shared.unreported[budget]
        if not shared.is_primary:
            self.hour, *amounts = shared.used()
            names = tuple(shared.unreported)
            self.now = {name: amount for name, amount in zip(names, amounts[:2], strict=True) if amount}
            self.before = {name: amount for name, amount in zip(names, amounts[2:], strict=True) if amount}
        return unreported


class SharedAccounts:
    """The accounts in a table, as one process sees them.

    Args:
        table: of all processes.
        budgets: names of what is used up.
        all_held: what all tenants together hold in this process, by name; of which the memory is published too.
        this_hour: returns the current hour, counted since 1970.

    Attributes:
        words: where this row's amounts are in a record, by name.
        counters: likewise the primary's numbers in `Used`.
        columns: unpacks the rows' incarnations, amounts and the record's incarnation, by name.
    """

    def __init__(
        self,
        table: SharedTable,
        held: Iterable[str],
        budgets: Iterable[str],
        all_held: Mapping[str, int],
        this_hour: Callable[[], int],
    ) -> None:
        self.table = table
        self.budgets = tuple(budgets)
        self.all_held = all_held
        self.records = records = table.accounts
        self.is_primary = table.row == PRIMARY
        self.words = {name: records.column(place) + table.row for place, name in enumerate((*held, *self.budgets))}
        self.counters = [records.column(AMOUNTS + place) + PRIMARY for place in range(COUNTERS)]
        self.columns = {
            name: struct.Struct(
                f"{table.rows}q{8 * (word - table.row - HEAD - table.rows)}x{table.rows}q"
                f"{8 * (records.incarnation - word + table.row - table.rows)}xq"
            ).unpack_from
            for name, word in self.words.items()
        }
        self._this_hour = this_hour

    def lacks(self, record: int, incarnation: int) -> float:
        """Return infinity for a record that must stay: a process holds something, or use of it still counts."""
        words, records, rows = self.table.words, self.records, self.table.rows
        for row in range(rows):
            if words[record + records.column(-1) + row] == incarnation and any(
                words[record + records.column(number) + row] for number in range(AMOUNTS)
            ):
                return math.inf
        hour, *used = self.used(record, incarnation)
        return math.inf if any(used) and hour >= self._this_hour() - 1 else 0.0

    def used(self, record: int, incarnation: int) -> Used:
        """Return what the primary knows to be used up."""
        words = self.table.words
        if words[record + self.records.column(-1) + PRIMARY] != incarnation:
            return (0,) * COUNTERS
        return tuple(words[record + word] for word in self.counters)


class SharedAccount:
    """A tenant's account in the table, as one process sees it.

    Its place may be given to another tenant while no process holds anything of it. What finds that, opens it again.

    Args:
        accounts: of all tenants.
        tenant: the key.
        held: what the tenant holds in this process, which `publish` reads.

    Attributes:
        unreported: what this process charged and did not report to the primary, by name of the budget.
    """

    __slots__ = ("_accounts", "_held", "_incarnation", "_key", "_record", "_used", "unreported")

    def __init__(self, accounts: SharedAccounts, tenant: int, held: Mapping[str, int]) -> None:
        self._accounts = accounts
        self._key = repr(tenant).encode()
        self._held = held
        self.unreported = dict.fromkeys(accounts.budgets, 0)
        self._used: Used = (0,) * COUNTERS
        self._record = 0
        self._incarnation = 0

    @property
    def is_primary(self) -> bool:
        """Whether this process is the primary."""
        return self._accounts.is_primary

    def publish(self, names: Collection[str]) -> bool:
        """Show all processes what this one holds or has not reported, by name.

        Return False if they cannot see it, because the table has no room for the tenant.
        """
        accounts, record = self._accounts, self._record
        words = accounts.table.words
        if self._is_current():  # else this row's words there may belong to another tenant
            for name in names:
                words[record + accounts.words[name]] = self._amount(name)
        if "memory_bytes" in names:
            accounts.table.publish_total(accounts.all_held["memory_bytes"])
        return self._is_current() or self._open()

    def publish_used(self, account: TenantAccount) -> None:
        """Show all processes what the primary knows to be used up; only in the primary."""
        used = (amounts.get(name, 0) for amounts in (account.now, account.before) for name in self.unreported)
        self._used = (account.hour, *used)
        if self._is_current():
            self._write_used()
        if not self._is_current():
            self._open()

    def elsewhere(self, name: str) -> int:
        """Return what other processes hold or have not reported; 0 where the table has no room for the tenant."""
        table, unpack = self._accounts.table, self._accounts.columns[name]
        words = unpack(table.memory, (self._record + HEAD) * 8)
        while not self._incarnation or words[-1] != self._incarnation:
            if not self._open():
                return 0
            words = unpack(table.memory, (self._record + HEAD) * 8)
        rows = table.rows
        owners: tuple[int, ...] = words[:rows]
        amounts: tuple[int, ...] = words[rows:-1]
        if owners.count(self._incarnation) + owners.count(0) == rows:  # rows that never were used are zeros
            return sum(amounts) - amounts[table.row]
        return sum(amounts[row] for row in range(rows) if owners[row] == self._incarnation and row != table.row)

    def used(self) -> Used:
        """Return what the primary knows to be used up; after `elsewhere`, which finds the account."""
        return self._accounts.used(self._record, self._incarnation)

    def _amount(self, name: str) -> int:
        unreported = self.unreported.get(name)
        return self._held[name] if unreported is None else unreported

    def _is_current(self) -> bool:
        """Return whether the place is still the tenant's, so that all see what this process wrote there."""
        words, records = self._accounts.table.words, self._accounts.records
        return self._incarnation != 0 and words[self._record + records.incarnation] == self._incarnation

    def _write_used(self) -> None:
        for word, amount in zip(self._accounts.counters, self._used, strict=True):
            self._accounts.table.words[self._record + word] = amount

    def _open(self) -> bool:
        """Find or add the account in the table, and write all of this row; return False if there is no room."""
        accounts = self._accounts
        records = accounts.records
        with accounts.table.exclusive():
            record = records.find(self._key, accounts.lacks)
            if record is None:
                self._incarnation = 0
                return False
            joined = records.join(record)
            self._record, self._incarnation = record, joined or records.begin(record)
            for name, word in accounts.words.items():
                accounts.table.words[record + word] = self._amount(name)
            if accounts.is_primary:
                self._write_used()
            if not joined:
                records.publish(record, self._incarnation)
        return True
