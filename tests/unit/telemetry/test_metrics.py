"""Metrics: counts are exposed exactly, under the contract's names, and within bounds."""

import re
import threading
from bisect import bisect_left
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from tensorwasm.errors import InvalidArgs
from tensorwasm.settings import package_version
from tensorwasm.telemetry.metrics import FAMILIES, HTTP_BUCKETS_S, KERNEL_BUCKETS_S, TENANTS, UNKNOWN, Metrics, Samples

ROUTES = [("GET", "/healthz"), ("POST", "/functions/{id}/invoke"), ("GET", "/kernels/{name}/{version}")]
LABELS = [
    ("/healthz", "GET"),
    ("/functions/:id/invoke", "POST"),
    ("/kernels/:name/:version", "GET"),
    ("unknown", "unknown"),
]

CONTRACT = {
    "active_instances": ("gauge", ()),
    "gpu_memory_used_bytes": ("gauge", ()),
    "kernel_dispatches_total": ("counter", ()),
    "kernels_prepared_total": ("counter", ()),
    "kernel_latency_seconds": ("histogram", ()),
    "instance_spawns_total": ("counter", ()),
    "instance_terminations_total": ("counter", ()),
    "offload_success_total": ("counter", ()),
    "offload_fallback_total": ("counter", ()),
    "http_requests_total": ("counter", ("route", "method", "status")),
    "http_request_duration_seconds": ("histogram", ("route", "method", "status")),
    "http_requests_in_flight": ("gauge", ("route", "method")),
    "build_info": ("gauge", ("version", "git_sha", "rustc_version", "profile", "target")),
    "jobs_active": ("gauge", ()),
    "gpu_memory_bytes_per_tenant": ("gauge", ("tenant_id",)),
    "cpu_memory_bytes_per_tenant": ("gauge", ("tenant_id",)),
    "streaming_chunks_emitted_total": ("counter", ()),
}
"""What clients of earlier releases read, without its prefix."""


def _samples(metrics):
    """Return the value of every sample, by its name and labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
    }


def _of(samples, name, **labels):
    return samples[f"tensor_wasm_{name}", frozenset(labels.items())]


def _count(metrics, route, status, seconds):
    """Count a request from its begin to its end."""
    metrics.routes[route].in_flight += 1
    metrics.routes[route].end(status, seconds)


def test_the_families_of_the_contract_exist():
    table = {family.name: (family.kind, family.labels) for family in FAMILIES}
    assert {f"tensor_wasm_{name}": what for name, what in CONTRACT.items()}.items() <= table.items()
    assert len(KERNEL_BUCKETS_S) == 14
    assert HTTP_BUCKETS_S[:3] == (2e-05, 5e-05, 1e-04)
    assert len(HTTP_BUCKETS_S) == 17
    assert all(sorted(set(bounds)) == list(bounds) for bounds in (HTTP_BUCKETS_S, KERNEL_BUCKETS_S))


def test_requests_of_less_than_a_millisecond_fall_into_buckets_of_their_own():
    metrics = Metrics(ROUTES)
    for seconds in (0.00008, 0.0002, 0.0004, 0.0009):
        _count(metrics, 0, 200, seconds)
    samples, labels = _samples(metrics), {"route": "/healthz", "method": "GET", "status": "200"}
    bounds = ("0.0001", "0.00025", "0.0005", "0.001")
    below = [_of(samples, "http_request_duration_seconds_bucket", le=bound, **labels) for bound in bounds]
    assert below == [1, 2, 3, 4]


def test_every_family_of_the_table_is_exposed_with_its_type_and_no_other():
    text = Metrics(ROUTES).render().decode()
    types = dict(re.findall(r"^# TYPE (tensor_wasm_\S+) (\S+)$", text, re.MULTILINE))
    assert types == {family.name: family.kind for family in FAMILIES}
    assert "process_resident_memory_bytes" in text


@given(
    st.lists(
        st.tuples(
            st.sampled_from([0, 1, 2, UNKNOWN]),
            st.sampled_from([200, 404, 599, 0, 999]),
            st.sampled_from([*HTTP_BUCKETS_S, 0.0, 0.0011, 99.0]),
        ),
        max_size=40,
    ),
    st.lists(st.sampled_from([0, 1, 2, UNKNOWN]), max_size=5),
)
def test_requests_are_counted_by_route_method_and_status(requests, unanswered):
    metrics = Metrics(ROUTES)
    counts, times = Counter(), {}
    for route, status, seconds in requests:
        _count(metrics, route, status, seconds)
        key = (*LABELS[route], str(status) if 100 <= status < 600 else "unknown")
        counts[key] += 1
        times.setdefault(key, []).append(seconds)
    for route in unanswered:
        metrics.routes[route].in_flight += 1
    samples = _samples(metrics)
    assert sum(name == "tensor_wasm_http_requests_total" for name, _ in samples) == len(counts)
    for (route, method, status), count in counts.items():
        labels = {"route": route, "method": method, "status": status}
        assert _of(samples, "http_requests_total", **labels) == count
        assert _of(samples, "http_request_duration_seconds_count", **labels) == count
        seen = times[route, method, status]
        assert _of(samples, "http_request_duration_seconds_sum", **labels) == pytest.approx(sum(seen))
        for bound in HTTP_BUCKETS_S:
            below = sum(seconds <= bound for seconds in seen)
            assert _of(samples, "http_request_duration_seconds_bucket", le=repr(bound), **labels) == below
    for index, (route, method) in enumerate(LABELS):
        waiting = sum(each % len(LABELS) == index for each in unanswered)
        assert _of(samples, "http_requests_in_flight", route=route, method=method) == waiting


@given(st.lists(st.floats(0, 20), max_size=30))
def test_a_histogram_counts_what_is_below_each_bound(values):
    metrics = Metrics()
    for value in values:
        metrics.histogram("tensor_wasm_kernel_latency_seconds").observe(value)
    samples = _samples(metrics)
    ordered = sorted(values)
    for bound in KERNEL_BUCKETS_S:
        below = bisect_left(ordered, True, key=lambda value, bound=bound: value > bound)
        assert _of(samples, "kernel_latency_seconds_bucket", le=repr(bound)) == below
    assert _of(samples, "kernel_latency_seconds_bucket", le="+Inf") == len(values)
    assert _of(samples, "kernel_latency_seconds_sum") == pytest.approx(sum(values))


def test_children_are_the_same_for_the_same_labels_and_count_from_any_thread():
    metrics = Metrics()

    def work():
        for _ in range(1000):
            metrics.counter("tensor_wasm_quota_refusals_total", "requests").add()
            metrics.gauge("tensor_wasm_active_instances").add(1)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    metrics.gauge("tensor_wasm_active_instances").add(-8000)
    samples = _samples(metrics)
    assert _of(samples, "quota_refusals_total", quota="requests") == 8000
    assert _of(samples, "active_instances") == 0


def test_sources_are_read_at_each_rendering():
    metrics, alive = Metrics(), [3]
    metrics.read("tensor_wasm_workers_alive", lambda: alive[0])
    metrics.read("tensor_wasm_jobs", lambda: {("pending",): 4, ("failed",): 1})
    assert _of(_samples(metrics), "workers_alive") == 3
    alive[0] = 2
    samples = _samples(metrics)
    assert _of(samples, "workers_alive") == 2
    assert _of(samples, "jobs", status="pending") == 4


@given(st.dictionaries(st.integers(0, 2**64 - 1), st.integers(1, 2**40), max_size=3 * TENANTS))
def test_the_highest_tenants_have_their_own_label(held):
    metrics = Metrics()
    metrics.read_tenants("tensor_wasm_cpu_memory_bytes_per_tenant", lambda: held)
    found = {
        dict(labels)["tenant_id"]: value
        for (name, labels), value in _samples(metrics).items()
        if name == "tensor_wasm_cpu_memory_bytes_per_tenant"
    }
    assert len(found) == min(len(held), TENANTS + 1)
    assert sum(found.values()) == sum(held.values())
    labelled = {int(label[2:]): value for label, value in found.items() if label != "other"}
    assert labelled.items() <= held.items()
    assert all(value >= min(labelled.values()) for value in labelled.values())


def test_a_source_that_fails_leaves_its_family_out_and_no_other(caplog):
    metrics = Metrics()
    metrics.read("tensor_wasm_workers_alive", lambda: 1 // 0)
    samples = _samples(metrics)
    assert not [name for name, _ in samples if "workers_alive" in name]
    assert _of(samples, "worker_restarts_total") == 0
    assert "workers_alive failed" in caplog.text


def test_the_build_is_described():
    labels = next(dict(labels) for name, labels in _samples(Metrics()) if name == "tensor_wasm_build_info")
    assert labels["version"] == package_version()
    assert set(labels) == {"version", "git_sha", "rustc_version", "profile", "target"}


@pytest.mark.parametrize(
    "ask",
    [
        lambda metrics: metrics.counter("tensor_wasm_nothing_total"),
        lambda metrics: metrics.counter("tensor_wasm_active_instances"),
        lambda metrics: metrics.counter("tensor_wasm_quota_refusals_total"),
        lambda metrics: metrics.gauge("tensor_wasm_active_instances", "label"),
        lambda metrics: metrics.histogram("tensor_wasm_jobs_active"),
        lambda metrics: metrics.read("tensor_wasm_nothing_total", int),
        lambda metrics: metrics.read("tensor_wasm_kernel_latency_seconds", int),
        lambda metrics: metrics.read("tensor_wasm_http_requests_total", int),
    ],
)
def test_unknown_families_are_refused(ask):
    with pytest.raises(InvalidArgs):
        ask(Metrics())


def test_samples_of_processes_are_added_up_and_counters_stay_when_one_has_ended():
    one = Samples({"tensor_wasm_fronts": [((), 1.0)], "tensor_wasm_audit_lines_total": [((), 2.0)]})
    other = Samples(
        {"tensor_wasm_audit_lines_total": [((), 5.0)], "tensor_wasm_build_info": [(("1",), 1.0)]},
        {"tensor_wasm_kernel_latency_seconds": [((), [1, 0, 0.5])]},
    )
    whole = one + other + other
    assert whole.values["tensor_wasm_audit_lines_total"] == [((), 12.0)]
    assert whole.values["tensor_wasm_build_info"] == [(("1",), 1.0)]
    assert whole.histograms["tensor_wasm_kernel_latency_seconds"] == [((), [2, 0, 1.0])]
    assert set(one.lasting().values) == {"tensor_wasm_audit_lines_total"}
    assert other.lasting().histograms == other.histograms
