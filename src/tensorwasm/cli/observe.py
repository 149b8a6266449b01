"""`tensor-wasm observe`: what a server does, again and again."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tensorwasm.cli.client import Client, client_command
from tensorwasm.cli.showing import Output, clean
from tensorwasm.errors import HostError, InvalidArgs

if TYPE_CHECKING:
    from tensorwasm.cli.exposition import Sample

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
ROUTES: Final = 5
"""Routes that text shows, the busiest first."""


@dataclass(frozen=True, slots=True)
class Look:
    """What a server had counted at one moment, of this machine's monotonic clock."""

    samples: list[Sample]
    at_s: float


@client_command
def observe(
    client: Client,
    *,
    interval: Annotated[float, typer.Option(metavar="SECONDS", help="Between two looks; at least 1.")] = 2.0,
    count: Annotated[int | None, typer.Option(metavar="N", help="Looks, instead of until interrupted.")] = None,
    output: Output = "text",
) -> None:
    """Show what the server does: rates, latencies by route, what is alive. Until interrupted.

    Rates and quantiles are of the time between two looks. A look that fails is shown, and the next one is taken.
    With --output json each look is one line.
    """
    if not interval >= MIN_INTERVAL_S:
        raise InvalidArgs(f"--interval is in seconds, at least {MIN_INTERVAL_S:g}")
    show = _show_json if output == "json" else _show_text
    before: Look | None = None
    taken = 0
    while True:
        before = _tick(client, before, show)
        taken += 1
        if count is not None and taken >= count:
            return
        time.sleep(interval)


def _tick(client: Client, before: Look | None, show: Any) -> Look | None:
    """Take one look and show it; a look that failed leaves nothing to compare with."""
    from tensorwasm.cli.exposition import parse  # noqa: PLC0415 - keeps --help quick

    now = datetime.now(UTC).isoformat(timespec="seconds")
    try:
        look = Look(parse(client.fetch("GET", "/metrics").text), time.monotonic())
    except HostError as error:
        show({"time": now, "error": {"kind": error.kind, "message": error.message}})
        return None
    show({"time": now, **summarise(look, before)})
    return look


def summarise(look: Look, before: Look | None) -> dict[str, Any]:
    """Return what two looks show; None stands for what cannot be told."""
    from tensorwasm.cli.exposition import total  # noqa: PLC0415 - keeps --help quick

    gauges = {name: total(look.samples, series) for name, series in GAUGES.items()}
    routes = sorted({s.labels["route"] for s in look.samples if s.name == REQUESTS and "route" in s.labels})
    every = _rates(look, before)
    return {**every, **gauges, "routes": {route: _rates(look, before, route=route) for route in routes}}


def _rates(look: Look, before: Look | None, **labels: str) -> dict[str, float | None]:
    from tensorwasm.cli.exposition import buckets, quantile, total  # noqa: PLC0415 - keeps --help quick

    if before is None or look.at_s <= before.at_s:
        return dict.fromkeys(("requests_per_s", "failures_per_s", *QUANTILES))
    seconds = look.at_s - before.at_s

    def grown(now: float | None, then: float | None) -> float | None:
        """Return how much a counter has grown; one that is less than it was has begun anew."""
        return None if now is None else now - then if then is not None and then <= now else now

    requests = grown(total(look.samples, REQUESTS, **labels), total(before.samples, REQUESTS, **labels))
    failures = grown(_failed(look, labels), _failed(before, labels))
    then = buckets(before.samples, DURATION, **labels)
    counts = {
        bound: grown(number, then.get(bound)) or 0.0
        for bound, number in buckets(look.samples, DURATION, **labels).items()
    }
    return {
        "requests_per_s": None if requests is None else requests / seconds,
        "failures_per_s": None if failures is None else failures / seconds,
        **{name: quantile(counts, q) for name, q in QUANTILES.items()},
    }


def _failed(look: Look, labels: dict[str, str]) -> float | None:
    """Return how many requests the server failed at, None if it counts no requests."""
    found = [s for s in look.samples if s.name == REQUESTS and labels.items() <= s.labels.items()]
    return sum(s.value for s in found if s.labels.get("status", "").startswith("5")) if found else None


def _show_json(row: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(row).replace("\x7f", "\\u007f") + "\n")
    sys.stdout.flush()


def _show_text(row: dict[str, Any]) -> None:
    clock = row["time"][11:19]
    if error := row.get("error"):
        sys.stdout.write(f"{clock}  {clean(error['kind'])}: {clean(error['message'])}\n")
    else:
        gauges = "  ".join(f"{name.replace('_', ' ')} {_number(row[name])}" for name in GAUGES)
        sys.stdout.write(f"{clock}  {_line(row)}  {gauges}\n")
        busy = sorted(row["routes"].items(), key=lambda pair: -(pair[1]["requests_per_s"] or 0.0))[:ROUTES]
        sys.stdout.writelines(
            f"          {_line(rates)}  {clean(route)}\n" for route, rates in busy if rates["requests_per_s"]
        )
    sys.stdout.flush()


def _line(rates: dict[str, Any]) -> str:
    times = "  ".join(f"{name.removesuffix('_s')} {_milliseconds(rates[name])}" for name in QUANTILES)
    return f"{_number(rates['requests_per_s']):>8} req/s  {_number(rates['failures_per_s']):>6} 5xx/s  {times}"


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:.6g}"


def _milliseconds(value_s: float | None) -> str:
    return "n/a" if value_s is None else f"{value_s * 1e3:.3g} ms"
