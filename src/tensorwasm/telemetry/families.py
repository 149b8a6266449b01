"""Every family of metrics, once: name, type, labels, meaning. Registry and documents are made from this table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from tensorwasm.errors import InvalidArgs

HTTP_BUCKETS_S: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
KERNEL_BUCKETS_S: Final = (1e-05, 5e-05, 1e-4, 5e-4, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class Family:
    """One family.

    Attributes:
        name: as it is exposed, a counter's with ``_total``.
        kind: its type.
        meaning: one sentence for people.
        labels: names.
        buckets: upper bounds of a histogram's, ascending, without infinity.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    meaning: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


def _counter(name: str, meaning: str, *labels: str) -> Family:
    return Family(f"tensor_wasm_{name}", "counter", meaning, labels)


def _gauge(name: str, meaning: str, *labels: str) -> Family:
    return Family(f"tensor_wasm_{name}", "gauge", meaning, labels)


def _histogram(name: str, meaning: str, buckets: tuple[float, ...], *labels: str) -> Family:
    return Family(f"tensor_wasm_{name}", "histogram", meaning, labels, buckets)


FAMILIES: Final[tuple[Family, ...]] = (
    _counter("http_requests_total", "Requests answered.", "route", "method", "status"),
    _histogram(
        "http_request_duration_seconds",
        "Time from a request's head to the end of its answer.",
        HTTP_BUCKETS_S,
        "route",
        "method",
        "status",
    ),
    _gauge("http_requests_in_flight", "Requests that have no answer yet.", "route", "method"),
    _gauge("active_instances", "Instances alive."),
    _counter("instance_spawns_total", "Instances made."),
    _counter("instance_terminations_total", "Instances ended."),
    _counter("function_loads_total", "Functions that were compiled or fetched; every other call's was there."),
    _gauge("pool_warm_instances", "Sandboxes kept ready."),
    _counter("pool_draws_total", "Sandboxes wanted from those kept ready: hit or miss.", "result"),
    _gauge("gpu_memory_used_bytes", "Device memory that guests hold."),
    _gauge("gpu_memory_bytes_per_tenant", "Device memory that a tenant's guests hold.", "tenant_id"),
    _gauge("cpu_memory_bytes_per_tenant", "Linear memory of a tenant's instances.", "tenant_id"),
    _counter("kernel_dispatches_total", "Kernels launched."),
    _histogram("kernel_latency_seconds", "Time from a launch to its end.", KERNEL_BUCKETS_S),
    _counter("offload_success_total", "Loops that ran on the GPU without being asked to."),
    _counter("offload_fallback_total", "Loops that could have, and ran where they were."),
    _counter("streaming_chunks_emitted_total", "Chunks that guests emitted and the service took."),
    _gauge("streams_active", "Streams and WebSockets open."),
    _gauge("functions_total", "Functions deployed."),
    _gauge("sessions", "Sessions by state: live in memory, or saved.", "state"),
    _gauge("jobs_active", "Jobs accepted and not ended."),
    _gauge("jobs", "Jobs kept, by status.", "status"),
    _counter("quota_refusals_total", "Requests refused by a quota.", "quota"),
    _gauge("queue_waiting", "Invocations that wait for a slot: cpu, gpu or streams.", "gate"),
    _gauge("queue_free_slots", "Slots that no invocation has: cpu, gpu or streams.", "gate"),
    _gauge("memory_waiting", "Calls that wait for memory that running guests hold."),
    _counter("memory_waits_total", "Calls that had to wait for it."),
    _counter("audit_lines_total", "Lines written to the audit log."),
    _counter("audit_dropped_total", "Audit records lost because the log could not keep up."),
    _counter("audit_suppressed_total", "Records of refused credentials that were counted instead of written."),
    _gauge("audit_failing", "1 while the audit log cannot be written."),
    _counter("database_commits_total", "Transactions committed."),
    _gauge("database_waiting", "Writes that wait for their transaction."),
    _gauge("workers_alive", "Worker processes alive."),
    _counter("worker_restarts_total", "Worker processes replaced after they died or were retired."),
    _gauge(
        "build_info", "Always 1; the labels say what runs.", "version", "git_sha", "rustc_version", "profile", "target"
    ),
)

BY_NAME: Final = {family.name: family for family in FAMILIES}


def family_of(name: str, kind: str) -> Family:
    """Return a family by its name.

    Raises:
        InvalidArgs: there is none of that name and type.
    """
    family = BY_NAME.get(name)
    if family is None or family.kind != kind:
        raise InvalidArgs(f"there is no {kind} {name}")
    return family
