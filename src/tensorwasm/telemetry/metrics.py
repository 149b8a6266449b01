"""Metrics: counted in plain lists, at most a microsecond for a request, and rendered by prometheus_client.

Events are counted through a child that is fetched once; states are read from a source when they are rendered::

    metrics = Metrics([(route.method, route.path) for route in ROUTES])
    counts = metrics.routes[index]; counts.in_flight += 1; ...; counts.end(status, seconds)   # for every request
    refused = metrics.counter("tensor_wasm_quota_refusals_total", "requests"); refused.add()
    metrics.read("tensor_wasm_workers_alive", lambda: pool.statistics().alive)
    metrics.read_tenants("tensor_wasm_cpu_memory_bytes_per_tenant", lambda: quotas.held("memory_bytes"))
    metrics.render()   # on a thread, if there are many routes: a millisecond for 150 samples

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
from typing import TYPE_CHECKING, Final

from tensorwasm.errors import InvalidArgs
from tensorwasm.settings import package_version
from tensorwasm.telemetry.families import BY_NAME, FAMILIES, HTTP_BUCKETS_S, Family, family_of

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Metric

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

UNKNOWN: Final = -1
"""Index of the counts of requests without a route."""

TENANTS: Final = 100
"""Tenants with their own label in a family, those with the highest values; the sum of the rest is ``other``."""

MetricSource = Callable[[], "float | Mapping[tuple[str, ...], float]"]

_LOG: Final = logging.getLogger(__name__)
_STATUSES: Final = range(100, 600)
_REQUESTS: Final = "tensor_wasm_http_requests_total"
_DURATION: Final = "tensor_wasm_http_request_duration_seconds"
_IN_FLIGHT: Final = "tensor_wasm_http_requests_in_flight"


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
        self._registry: CollectorRegistry | None = None
        for family in FAMILIES:
            if not family.labels and family.kind == "histogram":
                self.histogram(family.name)
            elif not family.labels:
                self._value(family.name, family.kind)
        target = f"{platform.machine()}-{platform.system().lower()}"
        self.gauge("tensor_wasm_build_info", package_version(), "unknown", "", "release", target).set(1)

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
        if name not in BY_NAME or BY_NAME[name].kind == "histogram" or name in {_REQUESTS, _IN_FLIGHT}:
            raise InvalidArgs(f"there is no counter or gauge {name} to read")
        self._sources[name] = source

    def read_tenants(self, name: str, source: Callable[[], Mapping[int, float]]) -> None:
        """Read a family with a tenant label, as `read` does; see `TENANTS`."""
        self.read(name, lambda: _by_tenant(source()))

    def render(self) -> bytes:
        """Return everything in the text format of `CONTENT_TYPE`."""
        from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest  # noqa: PLC0415 - 30 ms, once

        if self._registry is None:
            self._registry = CollectorRegistry()
            self._registry.register(self)
            ProcessCollector(registry=self._registry)
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yield every family, as a collector of prometheus_client does."""
        from prometheus_client import core  # noqa: PLC0415 - the same

        for family in FAMILIES:
            try:
                if family.kind == "histogram":
                    yield _histogram(core, family, self._counts_of(family.name))
                else:
                    yield _plain(core, family, self._values_of(family.name))
            except Exception:  # noqa: BLE001 - a failing source must not take the other families with it
                _LOG.exception("the source of %s failed: it is left out", family.name)

    def _value(self, name: str, kind: str, *labels: str) -> MetricValue:
        family_of(name, kind, labels)
        with self._lock:
            return self._values[name].setdefault(labels, MetricValue())

    def _values_of(self, name: str) -> Iterable[tuple[tuple[str, ...], float]]:
        if name == _REQUESTS:
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
