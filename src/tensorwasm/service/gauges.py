"""`Gauges`: the sources of the service's metrics, read whenever the metrics are scraped."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from tensorwasm.database.engine.executor import DatabaseExecutor
from tensorwasm.database.usage import RecordCounts, count_records
from tensorwasm.runtime.warm import WarmStatistics
from tensorwasm.service.fleet.front import ReportedAudit
from tensorwasm.service.functions.loading import Loader
from tensorwasm.service.invocations.invocations import Invocations
from tensorwasm.service.offload_meter import OffloadMeter
from tensorwasm.telemetry.metrics import Metrics, MetricSource
from tensorwasm.tenancy.audit import AuditLog
from tensorwasm.tenancy.quotas import Quotas

COUNT_S: Final = 30.0
"""Seconds between two counts of functions, jobs and sessions."""


@dataclass(slots=True, kw_only=True)
class Gauges:
    """What the metrics are read from; `counts` has functions, jobs and sessions at the last `refresh`."""

    database: DatabaseExecutor
    audit: AuditLog | ReportedAudit
    quotas: Quotas
    invocations: Invocations
    loader: Loader
    warm: Callable[[], WarmStatistics]
    counts: RecordCounts = RecordCounts()  # noqa: RUF009 - frozen

    async def refresh(self) -> None:
        """Count functions, jobs and sessions; where the database raises, the last counts stay."""
        self.counts = await self.database.read(count_records)

    def watch(self, metrics: Metrics) -> None:
        """Register all sources, see `tensorwasm.telemetry.metrics.Metrics.read`, and fill the histogram of kernels."""
        calls, quotas, workers = self.invocations.statistics, self.quotas, self.invocations.workers
        audit, database = self.audit.statistics, self.database.statistics
        sources: dict[str, MetricSource] = {
            "instance_spawns_total": lambda: calls().begun,
            "instance_terminations_total": lambda: calls().begun - calls().running,
            "streaming_chunks_emitted_total": lambda: calls().chunks,
            "function_loads_total": lambda: self.loader.loads,
            "queue_waiting": lambda: {(name,): gate.waiting for name, gate in calls().gates.items()},
            "queue_free_slots": lambda: {(name,): gate.free for name, gate in calls().gates.items()},
            "memory_waiting": lambda: calls().memory_waiting,
            "memory_waits_total": lambda: calls().memory_waits,
            "pool_warm_instances": lambda: self.warm().warm,
            "pool_draws_total": lambda: {("hit",): self.warm().hits, ("miss",): self.warm().misses},
            "workers_alive": lambda: sum(worker.pid is not None for worker in workers.statistics()),
            "worker_restarts_total": lambda: calls().restarts,
            "kernels_prepared_total": lambda: workers.prepared,
            "kernel_dispatches_total": lambda: quotas.spent()["launches"],
            "gpu_memory_used_bytes": lambda: sum(self._device_bytes().values()),
            "active_instances": lambda: sum(quotas.held("instances").values()),
            "streams_active": lambda: sum(quotas.held("streams").values()),
            "quota_refusals_total": lambda: _labelled(quotas.refusals()),
            "functions_total": lambda: self.counts.functions,
            "jobs": lambda: _labelled(self.counts.jobs),
            "sessions": lambda: _labelled(self.counts.sessions),
            "audit_lines_total": lambda: audit().written,
            "audit_dropped_total": lambda: audit().dropped,
            "audit_suppressed_total": lambda: audit().suppressed,
            "audit_failing": lambda: audit().failing,
            "database_commits_total": lambda: database().commits,
            "database_waiting": lambda: database().waiting,
        }
        for name, source in sources.items():
            metrics.read(f"tensor_wasm_{name}", source)
        metrics.read_tenants("tensor_wasm_cpu_memory_bytes_per_tenant", lambda: quotas.held("memory_bytes"))
        metrics.read_tenants("tensor_wasm_gpu_memory_bytes_per_tenant", self._device_bytes)
        self.invocations.turns.note_offload = OffloadMeter(metrics, self.audit.append).note
        self.invocations.turns.observe = metrics.histogram("tensor_wasm_kernel_latency_seconds").observe

    def _device_bytes(self) -> dict[int, float]:
        """Return the device memory that each tenant's guests hold in all workers."""
        held: dict[int, float] = {}
        for worker in self.invocations.workers.statistics():
            for tenant, device_bytes, _ in worker.charges:
                held[int(tenant)] = held.get(int(tenant), 0) + device_bytes
        return held


def _labelled(counts: Mapping[str, int]) -> dict[tuple[str, ...], float]:
    return {(name,): count for name, count in counts.items()}
