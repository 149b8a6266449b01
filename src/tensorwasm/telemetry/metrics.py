"""Metrics: counted in plain lists, since a request may cost a microsecond of it at most; rendered by prometheus_client.

What happens is counted by whoever makes it happen, through a child got once; what is, is read when somebody asks::

    metrics = Metrics([(route.method, route.path) for route in ROUTES])
    metrics.begin(index); ...; metrics.request(index, status, seconds)   # the server's loop, for every request
    refused = metrics.counter("tensor_wasm_quota_refusals_total", "requests"); refused.add()
    metrics.read("tensor_wasm_workers_alive", lambda: pool.statistics().alive)
    metrics.read_tenants("tensor_wasm_cpu_memory_bytes_per_tenant", lambda: quotas.held("memory_bytes"))
    metrics.render()   # on a thread, where there are many routes: a millisecond for every 150 samples

`begin` and `request` are for one thread; everything else for any.
"""

from __future__ import annotations

import logging
import platform
import re
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from types import ModuleType
from typing import TYPE_CHECKING, Final

from tensorwasm.errors import InvalidArgs
from tensorwasm.settings import package_version
from tensorwasm.telemetry.families import BY_NAME, FAMILIES, HTTP_BUCKETS_S, Family, family_of

if TYPE_CHECKING:
    from prometheus_client import Metric

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

UNKNOWN: Final = -1
"""Index of what is no route of the table."""

TENANTS: Final = 100
"""Tenants that a family tells apart, those with most; the others are one, ``other``."""

Source = Callable[[], "float | Mapping[tuple[str, ...], float]"]

_LOG: Final = logging.getLogger(__name__)
_STATUSES: Final = range(100, 600)
_REQUESTS: Final = "tensor_wasm_http_requests_total"
_DURATION: Final = "tensor_wasm_http_request_duration_seconds"
_IN_FLIGHT: Final = "tensor_wasm_http_requests_in_flight"


class Number:
    """One number of a counter or a gauge. Thread-safe."""

    __slots__ = ("_lock", "_value")

    def __init__(self) -> None:
        """Start at 0."""
        self._lock = threading.Lock()
        self._value: float = 0

    def add(self, amount: float = 1) -> None:
        """Add an amount; less than 0 only to a gauge."""
        with self._lock:
            self._value += amount

    def set(self, value: float) -> None:
        """Let a gauge be something else."""
        self._value = value

    def value(self) -> float:
        """Return it."""
        return self._value


class Histogram:
    """One histogram. Thread-safe."""

    __slots__ = ("_bounds", "_counts", "_lock")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        """Start without observations."""
        self._lock = threading.Lock()
        self._bounds = bounds
        self._counts = _no_counts(bounds)

    def observe(self, value: float) -> None:
        """Count a value, in the family's unit."""
        with self._lock:
            self._counts[bisect_left(self._bounds, value)] += 1
            self._counts[-1] += value

    def counts(self) -> list[float]:
        """Return how many fell below each bound and not the one before, above the last, and the sum of all."""
        with self._lock:
            return list(self._counts)


class _Line:
    """What is counted of one route: requests that have no answer, and a histogram by status."""

    __slots__ = ("in_flight", "labels", "series")

    def __init__(self, method: str, path: str) -> None:
        self.labels = (path, method)
        self.in_flight = 0
        self.series: dict[int, list[float]] = {}


class Metrics:
    """All that one service counts, in a registry of its own.

    Args:
        routes: method and path of each, in the order that `request` numbers them.
    """

    def __init__(self, routes: Sequence[tuple[str, str]] = ()) -> None:
        """Start with everything at 0."""
        lines = [_Line(method, re.sub(r"\{(\w+)\}", r":\1", path)) for method, path in routes]
        self._lines = [*lines, _Line("unknown", "unknown")]
        self._numbers: dict[str, dict[tuple[str, ...], Number]] = {family.name: {} for family in FAMILIES}
        self._histograms: dict[str, dict[tuple[str, ...], Histogram]] = {family.name: {} for family in FAMILIES}
        self._sources: dict[str, Source] = {}
        self._lock = threading.Lock()
        self._render: Callable[[], bytes] | None = None
        for family in FAMILIES:
            if not family.labels and family.kind == "histogram":
                self.histogram(family.name)
            elif not family.labels:
                self._number(family)
        target = f"{platform.machine()}-{platform.system().lower()}"
        self.gauge("tensor_wasm_build_info", package_version(), "unknown", "", "release", target).set(1)

    def begin(self, route: int) -> None:
        """Count a request that has come."""
        self._lines[route].in_flight += 1

    def request(self, route: int, status: int, seconds: float) -> None:
        """Count a request that was answered, and had begun.

        Args:
            route: its index in the table, or `UNKNOWN`.
            status: of HTTP.
            seconds: from its head to the end of its answer.
        """
        line = self._lines[route]
        line.in_flight -= 1
        series = line.series.get(status)
        if series is None:
            series = line.series.setdefault(status if status in _STATUSES else 0, _no_counts(HTTP_BUCKETS_S))
        series[bisect_left(HTTP_BUCKETS_S, seconds)] += 1
        series[-1] += seconds

    def counter(self, name: str, *labels: str) -> Number:
        """Return the child of a counter with these labels; keep it, and add to it.

        Raises:
            InvalidArgs: there is no such counter, or it has other labels.
        """
        return self._number(family_of(name, "counter"), *labels)

    def gauge(self, name: str, *labels: str) -> Number:
        """Return the child of a gauge with these labels; keep it, and set it.

        Raises:
            InvalidArgs: there is no such gauge, or it has other labels.
        """
        return self._number(family_of(name, "gauge"), *labels)

    def histogram(self, name: str, *labels: str) -> Histogram:
        """Return the child of a histogram with these labels; keep it, and have it observe.

        Raises:
            InvalidArgs: there is no such histogram, or it has other labels.
        """
        family = _labelled(family_of(name, "histogram"), labels)
        with self._lock:
            return self._histograms[name].setdefault(labels, Histogram(family.buckets))

    def read(self, name: str, source: Source) -> None:
        """Have a counter or a gauge read from somewhere whenever somebody asks, instead of what was counted.

        Args:
            name: of the family.
            source: returns its value, or with labels the values by label values. It must not block; one that raises
                leaves its family out, and the log says so.

        Raises:
            InvalidArgs: there is no such counter or gauge, or it is counted from the requests.
        """
        if name not in BY_NAME or BY_NAME[name].kind == "histogram" or name in {_REQUESTS, _IN_FLIGHT}:
            raise InvalidArgs(f"there is no counter or gauge {name} to read")
        self._sources[name] = source

    def read_tenants(self, name: str, source: Callable[[], Mapping[int, float]]) -> None:
        """Have a family with the label of a tenant read, as `read` does; those with most are told apart."""
        self.read(name, lambda: _by_tenant(source()))

    def render(self) -> bytes:
        """Return everything in the text format, version 0.0.4; `CONTENT_TYPE` is its type."""
        if self._render is None:
            self._render = self._register()
        return self._render()

    def collect(self) -> Iterator[Metric]:
        """Yield every family, as a collector of prometheus_client does."""
        from prometheus_client import core  # noqa: PLC0415 - 30 ms, for the first who asks

        for family in FAMILIES:
            try:
                if family.kind == "histogram":
                    yield _histogram(core, family, self._counts_of(family.name))
                else:
                    yield _plain(core, family, self._values_of(family.name))
            except Exception:  # noqa: BLE001 - a source is anybody's, and must not take the others with it
                _LOG.exception("the source of %s failed: it is left out", family.name)

    def _number(self, family: Family, *labels: str) -> Number:
        _labelled(family, labels)
        with self._lock:
            return self._numbers[family.name].setdefault(labels, Number())

    def _register(self) -> Callable[[], bytes]:
        from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest  # noqa: PLC0415 - the same

        registry = CollectorRegistry()
        registry.register(self)
        ProcessCollector(registry=registry)
        return lambda: generate_latest(registry)

    def _values_of(self, name: str) -> Iterable[tuple[tuple[str, ...], float]]:
        if name == _REQUESTS:
            return [(labels, sum(counts[:-1])) for labels, counts in self._counts_of(_DURATION)]
        if name == _IN_FLIGHT:
            return [(line.labels, line.in_flight) for line in self._lines]
        source = self._sources.get(name)
        if source is not None:
            found = source()
            return found.items() if isinstance(found, Mapping) else [((), found)]
        with self._lock:
            return [(labels, number.value()) for labels, number in self._numbers[name].items()]

    def _counts_of(self, name: str) -> list[tuple[tuple[str, ...], list[float]]]:
        if name == _DURATION:
            return [
                ((*line.labels, str(status or "unknown")), list(counts))
                for line in self._lines
                for status, counts in sorted(line.series.items())
            ]
        with self._lock:
            return [(labels, histogram.counts()) for labels, histogram in self._histograms[name].items()]


def _no_counts(bounds: tuple[float, ...]) -> list[float]:
    """Return a count for each bound, one for what is above the last, and the sum."""
    return [0] * (len(bounds) + 1) + [0.0]


def _labelled(family: Family, labels: tuple[str, ...]) -> Family:
    if len(labels) != len(family.labels):
        raise InvalidArgs(f"{family.name} has the labels {', '.join(family.labels) or 'none'}")
    return family


def _by_tenant(values: Mapping[int, float]) -> dict[tuple[str, ...], float]:
    """Return the values of the tenants that have most, and of all others together."""
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
