"""`tensor-wasm metrics` and `observe`: the metrics of a server, once or as rates over time.

Source: Prometheus, "Exposition formats", text-based format 0.0.4; `histogram_quantile` for the interpolation.
"""

from __future__ import annotations

import itertools
import math
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, Final

import typer

from tensorwasm.cli.output import Output, clean, print_json
from tensorwasm.cli.remote.client import Client
from tensorwasm.cli.remote.commands import client_command
from tensorwasm.errors import HostError, InvalidArgs

REQUESTS: Final = "tensor_wasm_http_requests_total"
DURATION: Final = "tensor_wasm_http_request_duration_seconds"
QUANTILES: Final = {"p50_s": 0.5, "p95_s": 0.95, "p99_s": 0.99}
GAUGES: Final = {
    "in_flight": "tensor_wasm_http_requests_in_flight",
    "instances": "tensor_wasm_active_instances",
    "jobs": "tensor_wasm_jobs_active",
    "streams": "tensor_wasm_streams_active",
    "gpu_bytes": "tensor_wasm_gpu_memory_used_bytes",
}
MIN_INTERVAL_S: Final = 1.0

_SHOWN_ROUTES: Final = 5
_SAMPLE: Final = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?[ \t]+(\S+)(?:[ \t]+-?\d+)?")
_LABEL: Final = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"\s*(?:,|$)')
_ESCAPES: Final = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}
_ESCAPED: Final = re.compile(r'\\[\\"n]')


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of an exposition: name of the series with its suffix, labels, and value, which may be NaN."""

    name: str
    labels: Mapping[str, str]
    value: float

    def belongs_to(self, name: str, labels: Mapping[str, str]) -> bool:
        """Return whether the sample has a name and these labels, or more."""
        return self.name == name and labels.items() <= self.labels.items()


@dataclass(frozen=True, slots=True)
class Scrape:
    """The samples of a server at one moment of this machine's monotonic clock."""

    samples: list[Sample]
    at_s: float


@client_command
def metrics(client: Client, *, output: Output = "text") -> None:
    """Print the metrics of the server, in Prometheus's text format or as JSON."""
    text = client.fetch("GET", "/metrics").text
    if output == "text":
        sys.stdout.writelines(f"{clean(line)}\n" for line in text.splitlines())
        return
    print_json(
        [
            # JSON has no word for infinities and NaN: they become text.
            {"name": s.name, "labels": s.labels, "value": s.value if math.isfinite(s.value) else str(s.value)}
            for s in parse(text)
        ]
    )


@client_command
def observe(
    client: Client,
    *,
    interval: Annotated[float, typer.Option(metavar="SECONDS", help="Time between two scrapes; at least 1.")] = 2.0,
    count: Annotated[int | None, typer.Option(metavar="N", help="Scrapes, instead of until interrupted.")] = None,
    output: Output = "text",
) -> None:
    """Show what the server does until interrupted: rates, latencies by route, what is alive.

    Rates and quantiles are of the time between two scrapes. A scrape that fails is shown, and the next one is made.
    With --output json each scrape is one line.
    """
    if not interval >= MIN_INTERVAL_S:
        raise InvalidArgs(f"--interval is in seconds, at least {MIN_INTERVAL_S:g}")
    show = partial(print_json, indent=None) if output == "json" else _show_text
    before: Scrape | None = None
    for taken in itertools.count(1):
        before = _scrape(client, before, show)
        if count is not None and taken >= count:
            return
        time.sleep(interval)


def _scrape(client: Client, before: Scrape | None, show: Callable[[dict[str, Any]], None]) -> Scrape | None:
    """Scrape the server and show the result; return None if that failed."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    try:
        scrape = Scrape(parse(client.fetch("GET", "/metrics").text), time.monotonic())
    except HostError as error:
        show({"time": now, "error": {"kind": error.kind, "message": error.message}})
        return None
    show({"time": now, **summarise(scrape, before)})
    return scrape


def summarise(scrape: Scrape, before: Scrape | None) -> dict[str, Any]:
    """Return the gauges of a scrape, and rates and quantiles since the one before; None for an unknown value."""
    gauges = {name: total(scrape.samples, series) for name, series in GAUGES.items()}
    routes = sorted({s.labels["route"] for s in scrape.samples if s.name == REQUESTS and "route" in s.labels})
    by_route = {route: _rates(scrape, before, route=route) for route in routes}
    return {**_rates(scrape, before), **gauges, "routes": by_route}


def _rates(scrape: Scrape, before: Scrape | None, **labels: str) -> dict[str, float | None]:
    if before is None or scrape.at_s <= before.at_s:
        return dict.fromkeys(("requests_per_s", "failures_per_s", *QUANTILES))
    seconds = scrape.at_s - before.at_s
    requests = _growth(total(scrape.samples, REQUESTS, **labels), total(before.samples, REQUESTS, **labels))
    failures = _growth(_failed(scrape, labels), _failed(before, labels))
    then = buckets(before.samples, DURATION, **labels)
    now = buckets(scrape.samples, DURATION, **labels)
    counts = {bound: _growth(number, then.get(bound)) or 0.0 for bound, number in now.items()}
    return {
        "requests_per_s": None if requests is None else requests / seconds,
        "failures_per_s": None if failures is None else failures / seconds,
        **{name: quantile(counts, q) for name, q in QUANTILES.items()},
    }


def _growth(now: float | None, then: float | None) -> float | None:
    """Return how much a counter has grown; a counter that is less than before was restarted from 0."""
    return now if now is None or then is None or then > now else now - then


def _failed(scrape: Scrape, labels: Mapping[str, str]) -> float | None:
    """Return how many requests had a status 5xx; None if the server counts no requests."""
    found = [s for s in scrape.samples if s.belongs_to(REQUESTS, labels)]
    return sum(s.value for s in found if s.labels.get("status", "").startswith("5")) if found else None


def _show_text(row: dict[str, Any]) -> None:
    clock = row["time"][11:19]
    if error := row.get("error"):
        print(f"{clock}  {clean(error['kind'])}: {clean(error['message'])}", flush=True)
        return
    gauges = "  ".join(f"{name.replace('_', ' ')} {_number(row[name])}" for name in GAUGES)
    print(f"{clock}  {_line(row)}  {gauges}")
    for route, rates in sorted(row["routes"].items(), key=lambda pair: -(pair[1]["requests_per_s"] or 0.0))[
        :_SHOWN_ROUTES
    ]:
        if rates["requests_per_s"]:
            print(f"          {_line(rates)}  {clean(route)}")
    sys.stdout.flush()


def _line(rates: dict[str, Any]) -> str:
    times = "  ".join(f"{name.removesuffix('_s')} {_milliseconds(rates[name])}" for name in QUANTILES)
    return f"{_number(rates['requests_per_s']):>8} req/s  {_number(rates['failures_per_s']):>6} 5xx/s  {times}"


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:.6g}"


def _milliseconds(value_s: float | None) -> str:
    return "n/a" if value_s is None else f"{value_s * 1e3:.3g} ms"


def parse(text: str) -> list[Sample]:
    """Return the samples of an exposition; lines that are no samples are skipped.

    The parser of prometheus_client refuses a whole text for one bad line, and comes with the server only.
    """
    samples = []
    for line in text.split("\n"):
        if (match := _SAMPLE.fullmatch(line.strip())) and (value := _float(match[3])) is not None:
            found = _LABEL.findall(match[2] or "")
            labels = {name: _ESCAPED.sub(lambda escape: _ESCAPES[escape[0]], quoted) for name, quoted in found}
            samples.append(Sample(match[1], labels, value))
    return samples


def total(samples: Iterable[Sample], name: str, **labels: str) -> float | None:
    """Return the sum of a family's samples that have these labels, None if there are none."""
    found = [sample.value for sample in samples if sample.belongs_to(name, labels)]
    return math.fsum(found) if found else None


def buckets(samples: Iterable[Sample], name: str, **labels: str) -> dict[float, float]:
    """Return a histogram's cumulative counts by upper bound, summed over all series that have these labels."""
    found: dict[float, float] = {}
    for sample in samples:
        bound = _float(sample.labels.get("le", ""))
        if bound is not None and sample.belongs_to(f"{name}_bucket", labels):
            found[bound] = found.get(bound, 0.0) + sample.value
    return found


def quantile(counts: Mapping[float, float], q: float) -> float | None:
    """Return a quantile of a histogram, interpolated linearly within its bucket.

    Args:
        counts: cumulative counts by upper bound, the last of them infinite.
        q: the quantile, 0 to 1.

    Returns:
        None if nothing was counted; the last finite bound if the value is beyond it.
    """
    bounds = sorted(counts)
    if not bounds or not math.isinf(bounds[-1]) or not counts[bounds[-1]] > 0:
        return None
    rank = q * counts[bounds[-1]]
    below, floor = 0.0, 0.0
    for bound in bounds:
        if counts[bound] >= rank:
            if math.isinf(bound):
                return floor
            inside = counts[bound] - below
            return bound if inside <= 0 else floor + (bound - floor) * (rank - below) / inside
        below, floor = counts[bound], bound
    return floor


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
