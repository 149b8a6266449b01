"""`Gauges`: where the metrics of a service are read, whenever somebody asks for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from tensorwasm.database.engine.executor import DatabaseExecutor
from tensorwasm.database.inventory import RecordCounts, count_records
from tensorwasm.runtime.warm.pool import WarmStatistics
from tensorwasm.service.functions.loading import Loader
from tensorwasm.service.invocations.invocations import Invocations
from tensorwasm.telemetry.metrics import Metrics, MetricSource
from tensorwasm.tenancy.audit import AuditLog
from tensorwasm.tenancy.fairness import GateStatistics
from tensorwasm.tenancy.quotas import Quotas

CENSUS_S: Final = 30.0
"""Seconds between two looks at how many functions, jobs and sessions there are."""


@dataclass(slots=True, kw_only=True)
class Gauges:
    """What the metrics are read from.

    Attributes:
        desk: of the database.
        audit: the audit log.
        quotas: of tenants.
        invocations: calls functions.
        loader: loads them.
        warm: returns how the sandboxes are that are kept ready.
        census: what there was at the last look.
    """

    desk: DatabaseExecutor
    audit: AuditLog
    quotas: Quotas
    invocations: Invocations
    loader: Loader
    warm: Callable[[], WarmStatistics]
    census: RecordCounts = RecordCounts()  # noqa: RUF009 - frozen

    async def refresh(self) -> None:
        """Look how many functions, jobs and sessions there are; if that fails, what there was stays.

        Raises:
            TensorWasmError: what reading the database does.
        """
        self.census = await self.desk.read(count_records)

    def watch(self, metrics: Metrics) -> None:
        """Have all of it read; see `tensorwasm.telemetry.metrics.Metrics.read`."""
        sources = self._invoking() | self._holding() | self._keeping()
        for name, source in sources.items():
            metrics.read(f"tensor_wasm_{name}", source)
        metrics.read_tenants("tensor_wasm_cpu_memory_bytes_per_tenant", lambda: self.quotas.held("memory_bytes"))
        metrics.read_tenants("tensor_wasm_gpu_memory_bytes_per_tenant", self._device_bytes)

    def _invoking(self) -> dict[str, MetricSource]:
        said = self.invocations.statistics
        return {
            "instance_spawns_total": lambda: said().begun,
            "instance_terminations_total": lambda: said().begun - said().running,
            "streaming_chunks_emitted_total": lambda: said().chunks,
            "function_loads_total": lambda: self.loader.loads,
            "queue_waiting": lambda: {(name,): gate.waiting for name, gate in self._gates().items()},
            "queue_free_slots": lambda: {(name,): gate.free for name, gate in self._gates().items()},
            "memory_waiting": lambda: said().memory_waiting,
            "memory_waits_total": lambda: said().memory_waits,
            "pool_warm_instances": lambda: self.warm().warm,
            "pool_draws_total": lambda: {("hit",): self.warm().hits, ("miss",): self.warm().misses},
            "workers_alive": lambda: sum(worker.pid is not None for worker in self.invocations.workers.statistics()),
            "worker_restarts_total": lambda: said().restarts,
            "kernel_dispatches_total": lambda: self.quotas.spent()["launches"],
            "gpu_memory_used_bytes": lambda: sum(self._device_bytes().values()),
        }

    def _holding(self) -> dict[str, MetricSource]:
        return {
            "active_instances": lambda: sum(self.quotas.held("instances").values()),
            "streams_active": lambda: sum(self.quotas.held("streams").values()),
            "quota_refusals_total": lambda: _labelled(self.quotas.refusals()),
            "functions_total": lambda: self.census.functions,
            "jobs": lambda: _labelled(self.census.jobs),
            "sessions": lambda: _labelled(self.census.sessions),
        }

    def _keeping(self) -> dict[str, MetricSource]:
        log, desk = self.audit.statistics, self.desk.statistics
        return {
            "audit_lines_total": lambda: log().written,
            "audit_dropped_total": lambda: log().dropped,
            "audit_suppressed_total": lambda: log().suppressed,
            "audit_failing": lambda: log().failing,
            "database_commits_total": lambda: desk().commits,
            "database_waiting": lambda: desk().waiting,
        }

    def _gates(self) -> Mapping[str, GateStatistics]:
        return self.invocations.statistics().gates

    def _device_bytes(self) -> dict[int, float]:
        """Return the device memory that each tenant's guests hold in all workers."""
        held: dict[int, float] = {}
        for worker in self.invocations.workers.statistics():
            for tenant, device_bytes, _ in worker.charges:
                held[int(tenant)] = held.get(int(tenant), 0) + device_bytes
        return held


def _labelled(counts: Mapping[str, int]) -> dict[tuple[str, ...], float]:
    return {(name,): count for name, count in counts.items()}
