"""The table of all metric families: names, types, labels and meanings. Registry and documentation are made from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from tensorwasm.errors import InvalidArgs

HTTP_BUCKETS_S: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
KERNEL_BUCKETS_S: Final = (1e-05, 5e-05, 1e-4, 5e-4, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class Family:
    """One family; ``buckets`` are the ascending upper bounds of a histogram, without infinity."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    meaning: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


FAMILIES: Final[tuple[Family, ...]] = (
    Family(
        "tensor_wasm_http_requests_total",
        "counter",
        "Requests answered.",
        ("route", "method", "status"),
    ),
    Family(
        "tensor_wasm_http_request_duration_seconds",
        "histogram",
        "Time from a request's head to the end of its answer.",
        ("route", "method", "status"),
        HTTP_BUCKETS_S,
    ),
    Family(
        "tensor_wasm_http_requests_in_flight",
        "gauge",
        "Requests without an answer yet.",
        ("route", "method"),
    ),
    Family("tensor_wasm_active_instances", "gauge", "Live instances."),
    Family("tensor_wasm_instance_spawns_total", "counter", "Instances started."),
    Family("tensor_wasm_instance_terminations_total", "counter", "Instances ended."),
    Family(
        "tensor_wasm_function_loads_total",
        "counter",
        "Functions that were compiled or fetched because they were not loaded yet.",
    ),
    Family("tensor_wasm_pool_warm_instances", "gauge", "Sandboxes kept ready."),
    Family(
        "tensor_wasm_pool_draws_total", "counter", "Requests for a ready sandbox, by result: hit or miss.", ("result",)
    ),
    Family("tensor_wasm_gpu_memory_used_bytes", "gauge", "Device memory that guests hold."),
    Family(
        "tensor_wasm_gpu_memory_bytes_per_tenant", "gauge", "Device memory that a tenant's guests hold.", ("tenant_id",)
    ),
    Family(
        "tensor_wasm_cpu_memory_bytes_per_tenant", "gauge", "Linear memory of a tenant's instances.", ("tenant_id",)
    ),
    Family("tensor_wasm_kernel_dispatches_total", "counter", "Kernels launched."),
    Family(
        "tensor_wasm_kernel_latency_seconds", "histogram", "Time from a launch to its end.", buckets=KERNEL_BUCKETS_S
    ),
    Family("tensor_wasm_offload_success_total", "counter", "Loops that were offloaded to the GPU automatically."),
    Family(
        "tensor_wasm_offload_fallback_total", "counter", "Loops that could have been offloaded, and ran on the CPU."
    ),
    Family(
        "tensor_wasm_streaming_chunks_emitted_total", "counter", "Chunks that guests emitted and the service accepted."
    ),
    Family("tensor_wasm_streams_active", "gauge", "Open streams and WebSockets."),
    Family("tensor_wasm_functions_total", "gauge", "Functions deployed."),
    Family("tensor_wasm_sessions", "gauge", "Sessions by state: live in memory, or saved.", ("state",)),
    Family("tensor_wasm_jobs_active", "gauge", "Jobs accepted and not ended."),
    Family("tensor_wasm_jobs", "gauge", "Stored jobs, by status.", ("status",)),
    Family("tensor_wasm_quota_refusals_total", "counter", "Requests refused by a quota.", ("quota",)),
    Family("tensor_wasm_queue_waiting", "gauge", "Invocations that wait for a slot: cpu, gpu or streams.", ("gate",)),
    Family("tensor_wasm_queue_free_slots", "gauge", "Free slots: cpu, gpu or streams.", ("gate",)),
    Family("tensor_wasm_memory_waiting", "gauge", "Calls that wait for memory that running guests hold."),
    Family("tensor_wasm_memory_waits_total", "counter", "Calls that had to wait for memory."),
    Family("tensor_wasm_audit_lines_total", "counter", "Lines written to the audit log."),
    Family("tensor_wasm_audit_dropped_total", "counter", "Audit records lost because the log could not keep up."),
    Family(
        "tensor_wasm_audit_suppressed_total",
        "counter",
        "Records of refused credentials that were counted instead of written.",
    ),
    Family("tensor_wasm_audit_failing", "gauge", "1 while the audit log cannot be written."),
    Family("tensor_wasm_database_commits_total", "counter", "Transactions committed."),
    Family("tensor_wasm_database_waiting", "gauge", "Calls that wait for the database."),
    Family("tensor_wasm_workers_alive", "gauge", "Live worker processes."),
    Family(
        "tensor_wasm_worker_restarts_total", "counter", "Worker processes replaced after they died or were retired."
    ),
    Family(
        "tensor_wasm_build_info",
        "gauge",
        "Always 1; the labels describe the build.",
        ("version", "git_sha", "rustc_version", "profile", "target"),
    ),
)

BY_NAME: Final = {family.name: family for family in FAMILIES}


def family_of(name: str, kind: str, labels: tuple[str, ...] = ()) -> Family:
    """Return the family of a name, type and number of labels, or raise InvalidArgs."""
    family = BY_NAME.get(name)
    if family is None or family.kind != kind:
        raise InvalidArgs(f"there is no {kind} {name}")
    if len(labels) != len(family.labels):
        raise InvalidArgs(f"{name} has the labels {', '.join(family.labels) or 'none'}")
    return family
