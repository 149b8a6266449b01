"""`OffloadMeter`: counts what became of guests' loops, by tenant and function, and records runs that differed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from tensorwasm.telemetry.metrics import TENANTS, Metrics
from tensorwasm.tenancy.audit import AuditRecord, outcome_of
from tensorwasm.values import OffloadUse

FUNCTIONS: Final = 100
"""Functions with their own label, those that are called first in this process; all others are ``other``."""

_OTHER: Final = "other"
_DONE: Final = 200


class OffloadMeter:
    """Counts into metrics. For one event loop.

    Args:
        metrics: have the counters.
        audit: takes a record of each run that differed.
    """

    def __init__(self, metrics: Metrics, audit: Callable[[AuditRecord], object]) -> None:
        self._metrics, self._audit = metrics, audit
        self._tenants: set[str] = set()
        self._functions: set[tuple[str, str]] = set()

    def note(self, tenant: int, function_id: str, use: OffloadUse) -> None:
        """Count one call's."""
        self._count("success", use.taken)
        self._count("fallback", sum(count for _, count in use.declined))
        self._count("compared", use.compared)
        labels = self._labels(tenant, function_id)
        self._count("taken", use.taken, *labels)
        self._count("seconds", use.seconds, *labels)
        self._count("moved_bytes", use.moved_bytes, *labels)
        self._count("mismatches", len(use.mismatches), *labels)
        for reason, count in use.declined:
            self._count("declined", count, labels[0], reason)
        for evidence in use.mismatches:
            resource = {"tenant_id": tenant, "function_id": function_id, "evidence": evidence}
            now_unix_ms = time.time_ns() // 1_000_000
            self._audit(AuditRecord(now_unix_ms, "", None, "offload_mismatch", resource, outcome_of(_DONE), 0.0))

    def _count(self, what: str, amount: float, *labels: str) -> None:
        if amount:
            self._metrics.counter(f"tensor_wasm_offload_{what}_total", *labels).add(amount)

    def _labels(self, tenant: int, function_id: str) -> tuple[str, str]:
        """Return the labels of a function, of which there are a bounded number."""
        label = f"T#{tenant}"
        if label not in self._tenants and len(self._tenants) < TENANTS:
            self._tenants.add(label)
        known = (label if label in self._tenants else _OTHER), function_id
        if known not in self._functions and len(self._functions) < FUNCTIONS:
            self._functions.add(known)
        return known if known in self._functions else (known[0], _OTHER)
