"""Metrics: counted in plain lists, at most a microsecond for a request, and rendered by prometheus_client.

Events are counted through a child that is fetched once; states are read from a source when they are rendered::

    metrics = Metrics([(route.method, route.path) for route in ROUTES])
    counts = metrics.routes[index]; counts.in_flight += 1; ...; counts.end(status, seconds)   # for every request
    refused = metrics.counter("tensor_wasm_quota_refusals_total", "requests"); refused.add()
    metrics.read("tensor_wasm_workers_alive", lambda: pool.statistics().alive)
    metrics.read_tenants("tensor_wasm_cpu_memory_bytes_per_tenant", lambda: quotas.held("memory_bytes"))
    metrics.render()   # on a thread, if there are many routes: a millisecond for 150 samples

Where several processes serve together, each has its own, and one adds up the `Samples` of all when they are rendered.

`RouteCounts` are for one thread, the server's loop; everything else is thread-safe.
"""

from __future__ import annotations

import logging
import platform
import re
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from types import ModuleType
from typing import TYPE_CHECKING, Final, Literal

from tensorwasm.errors import InvalidArgs
from tensorwasm.settings import package_version

if TYPE_CHECKING:
    from prometheus_client import Metric

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

UNKNOWN: Final = -1
"""Index of the counts of requests without a route."""

TENANTS: Final = 100
"""Tenants with their own label in a family, those with the highest values; the sum of the rest is ``other``."""

MetricSource = Callable[[], "float | Mapping[tuple[str, ...], float]"]

_LOG: Final = logging.getLogger(__name__)
_STATUSES: Final = range(100, 600)
REQUESTS: Final = "tensor_wasm_http_requests_total"
_DURATION: Final = "tensor_wasm_http_request_duration_seconds"
_IN_FLIGHT: Final = "tensor_wasm_http_requests_in_flight"
_BUILD: Final = "tensor_wasm_build_info"
_FUNCTION: Final = ("tenant_id", "function_id")

HTTP_BUCKETS_S: Final = (
    *(2e-05, 5e-05, 0.0001, 0.00025, 0.0005, 0.001, 0.005, 0.01, 0.025),
    *(0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
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
    Family("tensor_wasm_http_requests_total", "counter", "Requests answered.", ("route", "method", "status")),
    Family(
        "tensor_wasm_http_request_duration_seconds",
        "histogram",
        "Time from a request's head to the end of its answer.",
        ("route", "method", "status"),
        HTTP_BUCKETS_S,
    ),
    Family("tensor_wasm_http_requests_in_flight", "gauge", "Requests without an answer yet.", ("route", "method")),
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
    Family("tensor_wasm_kernels_prepared_total", "counter", "Kernels compiled before their first call."),
    Family("tensor_wasm_kernel_latency_seconds", "histogram", "Wait of a call for its kernels.", (), KERNEL_BUCKETS_S),
    Family("tensor_wasm_offload_success_total", "counter", "Runs of guests' loops on all cores or a GPU instead."),
    Family("tensor_wasm_offload_fallback_total", "counter", "Runs of loops that were looked at, and not taken."),
    Family("tensor_wasm_offload_taken_total", "counter", "Runs of a function's loops that were taken.", _FUNCTION),
    Family("tensor_wasm_offload_declined_total", "counter", "Those that were not, by reason.", ("tenant_id", "reason")),
    Family("tensor_wasm_offload_seconds_total", "counter", "Time of the runs that were taken.", _FUNCTION),
    Family("tensor_wasm_offload_moved_bytes_total", "counter", "Bytes that they copied to and from a GPU.", _FUNCTION),
    Family("tensor_wasm_offload_compared_total", "counter", "Runs that were made in the guest too, and compared."),
    Family("tensor_wasm_offload_mismatches_total", "counter", "Compared runs that differed.", _FUNCTION),
    Family(
        "tensor_wasm_streaming_chunks_emitted_total", "counter", "Chunks that guests emitted and the service accepted."
    ),
    Family("tensor_wasm_streams_active", "gauge", "Open streams and WebSockets."),
    Family("tensor_wasm_functions_total", "gauge", "Functions deployed."),
    Family("tensor_wasm_sessions", "gauge", "Stored sessions, by state.", ("state",)),
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
    Family("tensor_wasm_fronts", "gauge", "Processes that accept requests besides the one that has the database."),
    Family("tensor_wasm_front_requests_total", "counter", "Requests answered by one of these processes.", ("pid",)),
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
_COUNTERS: Final = frozenset(family.name for family in FAMILIES if family.kind == "counter")


def family_of(name: str, kind: str, labels: tuple[str, ...] = ()) -> Family:
    """Return the family of a name, type and number of labels, or raise InvalidArgs."""
    family = BY_NAME.get(name)
    if family is None or family.kind != kind:
        raise InvalidArgs(f"there is no {kind} {name}")
    if len(labels) != len(family.labels):
        raise InvalidArgs(f"{name} has the labels {', '.join(family.labels) or 'none'}")
    return family


class MetricValue:
    """The value of a counter or gauge, from 0. Thread-safe."""

    __slots__ = ("_lock", "value")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.value: float = 0

    def add(self, amount: float = 1) -> None:
        """Add an amount, which is negative only for a gauge."""
        with self._lock:
            self.value += amount

    def set(self, value: float) -> None:
        """Set a gauge."""
        self.value = value


class Histogram:
    """The counts of a histogram. Thread-safe."""

    __slots__ = ("_bounds", "_counts", "_lock")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._lock = threading.Lock()
        self._bounds = bounds
        self._counts = _no_counts(bounds)

    def observe(self, value: float) -> None:
        """Count a value, in the family's unit."""
        with self._lock:
            self._counts[bisect_left(self._bounds, value)] += 1
            self._counts[-1] += value

    def counts(self) -> list[float]:
        """Return the count of each bucket, of the values above the last bound, and the sum of all values."""
        with self._lock:
            return list(self._counts)


@dataclass(slots=True, eq=False)
class RouteCounts:
    """The counts of one route: requests without an answer, and by status a histogram of durations."""

    labels: tuple[str, str]
    in_flight: int = 0
    series: dict[int, list[float]] = field(default_factory=dict)

    def end(self, status: int, seconds: float) -> None:
        """Count the end of a request that was in flight, which took so long from its head to the end of its answer."""
        self.in_flight -= 1
        series = self.series.get(status)
        if series is None:
            series = self.series.setdefault(status if status in _STATUSES else 0, _no_counts(HTTP_BUCKETS_S))
        series[bisect_left(HTTP_BUCKETS_S, seconds)] += 1
        series[-1] += seconds


@dataclass(frozen=True, slots=True)
class Samples:
    """Samples by name of their family, with their label values: values of counters and gauges, counts of histograms."""

    values: dict[str, list[tuple[tuple[str, ...], float]]] = field(default_factory=dict)
    histograms: dict[str, list[tuple[tuple[str, ...], list[float]]]] = field(default_factory=dict)

    def __add__(self, other: Samples) -> Samples:
        """Return the sums of samples that have the same labels; of a family that describes the build, the samples."""
        values, histograms = {}, {}
        for name in {**self.values, **other.values}:
            sums: dict[tuple[str, ...], float] = dict(self.values.get(name, ()))
            for labels, value in other.values.get(name, ()):
                sums[labels] = value if name == _BUILD else sums.get(labels, 0) + value
            values[name] = list(sums.items())
        for name in {**self.histograms, **other.histograms}:
            series: dict[tuple[str, ...], list[float]] = dict(self.histograms.get(name, ()))
            for labels, counts in other.histograms.get(name, ()):
                before = series.get(labels)
                series[labels] = counts if before is None else [a + b for a, b in zip(before, counts, strict=True)]
            histograms[name] = list(series.items())
        return Samples(values, histograms)

    def lasting(self) -> Samples:
        """Return what still counts once its process has ended: counters and histograms."""
        counters = {name: values for name, values in self.values.items() if name in _COUNTERS}
        return Samples(counters, self.histograms)


NO_SAMPLES: Final = Samples()


class Metrics:
    """All metrics of a service, in a registry of its own.

    Args:
        routes: method and path of each.

    Attributes:
        routes: their counts in the same order, and last those of `UNKNOWN`.
    """

    def __init__(self, routes: Sequence[tuple[str, str]] = ()) -> None:
        labels = [(re.sub(r"\{(\w+)\}", r":\1", path), method) for method, path in routes]
        self.routes = [RouteCounts(each) for each in (*labels, ("unknown", "unknown"))]
        self._values: dict[str, dict[tuple[str, ...], MetricValue]] = {family.name: {} for family in FAMILIES}
        self._histograms: dict[str, dict[tuple[str, ...], Histogram]] = {family.name: {} for family in FAMILIES}
        self._sources: dict[str, MetricSource] = {}
        self._lock = threading.Lock()
        for family in FAMILIES:
            if not family.labels and family.kind == "histogram":
                self.histogram(family.name)
            elif not family.labels:
                self._value(family.name, family.kind)
        target = f"{platform.machine()}-{platform.system().lower()}"
        self.gauge(_BUILD, package_version(), "unknown", "", "release", target).set(1)

    def counter(self, name: str, *labels: str) -> MetricValue:
        """Return the child of a counter with these label values, to be kept; for an unknown one, raise InvalidArgs."""
        return self._value(name, "counter", *labels)

    def gauge(self, name: str, *labels: str) -> MetricValue:
        """Return the child of a gauge, as `counter` does."""
        return self._value(name, "gauge", *labels)

    def histogram(self, name: str, *labels: str) -> Histogram:
        """Return the child of a histogram, as `counter` does."""
        family = family_of(name, "histogram", labels)
        with self._lock:
            return self._histograms[name].setdefault(labels, Histogram(family.buckets))

    def read(self, name: str, source: MetricSource) -> None:
        """Read a counter or gauge, or with labels its values by label values, from a source at each rendering.

        The source must not block; if it raises, its family is left out, and the error is logged. For an unknown family,
        or one that is counted from the requests, InvalidArgs is raised.
        """
        if name not in BY_NAME or BY_NAME[name].kind == "histogram" or name in {REQUESTS, _IN_FLIGHT}:
            raise InvalidArgs(f"there is no counter or gauge {name} to read")
        self._sources[name] = source

    def read_tenants(self, name: str, source: Callable[[], Mapping[int, float]]) -> None:
        """Read a family with a tenant label, as `read` does; see `TENANTS`."""
        self.read(name, lambda: _by_tenant(source()))

    def render(self, others: Samples = NO_SAMPLES) -> bytes:
        """Return everything in the text format of `CONTENT_TYPE`, with the samples of other processes added."""
        from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest  # noqa: PLC0415 - 30 ms, once

        registry = CollectorRegistry()
        registry.register(_Collector(self.snapshot() + others))
        ProcessCollector(registry=registry)
        return generate_latest(registry)

    def snapshot(self) -> Samples:
        """Return all samples. A family whose source fails is left out."""
        values, histograms = {}, {}
        for family in FAMILIES:
            try:
                if family.kind == "histogram":
                    histograms[family.name] = self._counts_of(family.name)
                else:
                    values[family.name] = [(labels, float(value)) for labels, value in self._values_of(family.name)]
            except Exception:  # noqa: BLE001 - a failing source must not take the other families with it
                _LOG.exception("the source of %s failed: it is left out", family.name)
        return Samples(values, histograms)

    def _value(self, name: str, kind: str, *labels: str) -> MetricValue:
        family_of(name, kind, labels)
        with self._lock:
            return self._values[name].setdefault(labels, MetricValue())

    def _values_of(self, name: str) -> Iterable[tuple[tuple[str, ...], float]]:
        if name == REQUESTS:
            return [(labels, sum(counts[:-1])) for labels, counts in self._counts_of(_DURATION)]
        if name == _IN_FLIGHT:
            return [(counts.labels, counts.in_flight) for counts in self.routes]
        source = self._sources.get(name)
        if source is not None:
            found = source()
            return found.items() if isinstance(found, Mapping) else [((), found)]
        with self._lock:
            return [(labels, child.value) for labels, child in self._values[name].items()]

    def _counts_of(self, name: str) -> list[tuple[tuple[str, ...], list[float]]]:
        if name == _DURATION:
            return [
                ((*route.labels, str(status or "unknown")), list(counts))
                for route in self.routes
                for status, counts in sorted(route.series.items())
            ]
        with self._lock:
            return [(labels, histogram.counts()) for labels, histogram in self._histograms[name].items()]


class _Collector:
    """A collector of prometheus_client over a snapshot."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples

    def collect(self) -> Iterator[Metric]:
        from prometheus_client import core  # noqa: PLC0415 - 30 ms, once

        for family in FAMILIES:
            if family.name in self._samples.histograms:
                yield _histogram(core, family, self._samples.histograms[family.name])
            elif family.name in self._samples.values:
                yield _plain(core, family, self._samples.values[family.name])


def _no_counts(bounds: tuple[float, ...]) -> list[float]:
    """Return a zero for each bound, for the values above the last one, and for the sum."""
    return [0] * (len(bounds) + 1) + [0.0]


def _by_tenant(values: Mapping[int, float]) -> dict[tuple[str, ...], float]:
    """Return the highest values by tenant, and the sum of the others."""
    order = sorted(values, key=values.__getitem__, reverse=True)
    found: dict[tuple[str, ...], float] = {(f"T#{tenant}",): values[tenant] for tenant in order[:TENANTS]}
    if order[TENANTS:]:
        found["other",] = sum(values[tenant] for tenant in order[TENANTS:])
    return found


def _plain(core: ModuleType, family: Family, values: Iterable[tuple[tuple[str, ...], float]]) -> Metric:
    kinds = {"counter": core.CounterMetricFamily, "gauge": core.GaugeMetricFamily}
    metric: Metric = kinds[family.kind](family.name, family.meaning, labels=family.labels)
    for labels, value in values:
        metric.add_metric(labels, value)  # type: ignore[attr-defined] # both kinds have it, their common type has not
    return metric


def _histogram(core: ModuleType, family: Family, series: Iterable[tuple[tuple[str, ...], list[float]]]) -> Metric:
    metric: Metric = core.HistogramMetricFamily(family.name, family.meaning, labels=family.labels)
    bounds = [*(repr(bound) for bound in family.buckets), "+Inf"]
    for labels, counts in series:
        metric.add_metric(labels, list(zip(bounds, accumulate(counts[:-1]), strict=True)), counts[-1])  # type: ignore[attr-defined] # as above
    return metric
