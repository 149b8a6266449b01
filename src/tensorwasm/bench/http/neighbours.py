"""One tenant beside another that floods: latency beside ten times a quota, over that beside a polite neighbour."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Final

from tensorwasm.bench.figures import Figure, summarise
from tensorwasm.bench.http.client import Client
from tensorwasm.bench.http.load import Load, apply_load
from tensorwasm.errors import InternalError

QUOTA_PER_S: Final = 500
"""Requests a second that each of the two tenants may make."""

ROUNDS: Final = 5
SECONDS: Final = 10.0

_BAR: Final = 1.25
_CONNECTIONS: Final = 16
_PERIOD_S: Final = 10 / QUOTA_PER_S
_FLOOD_DELAY_MS: Final = 1000 * _CONNECTIONS // (10 * QUOTA_PER_S)
_POLITE_DELAY_MS: Final = 1000 * _CONNECTIONS // QUOTA_PER_S


def measure_neighbours(
    url: str, token: str, function: dict[int, str], rounds: int = ROUNDS, seconds: float = SECONDS
) -> Iterator[Figure]:
    """Yield latencies of a tenant that makes a tenth of its quota, beside a neighbour of either kind.

    Args:
        url: of the service.
        token: for both tenants, whose quotas are `QUOTA_PER_S` requests a second.
        function: what each tenant calls, an id; the first tenant is the one that is looked at.
        rounds: of each kind, in turns.
        seconds: of one.
    """
    subject, neighbour = function
    taken: dict[str, list[float]] = {"polite": [], "flood": []}
    p99s: dict[str, list[float]] = {"polite": [], "flood": []}
    for _ in range(rounds):
        for kind, delay_ms in (("polite", _POLITE_DELAY_MS), ("flood", _FLOOD_DELAY_MS)):
            loads: list[Load] = []
            load = threading.Thread(target=_press, args=(loads, url, token, neighbour, function, seconds, delay_ms))
            load.start()
            latencies = sorted(ask_steadily(url, token, subject, function[subject], seconds - 1, _PERIOD_S))
            load.join()
            _check(kind, loads)
            taken[kind] += latencies
            p99s[kind].append(latencies[len(latencies) * 99 // 100])
    for kind in ("polite", "flood"):
        middle, spread, count = summarise(taken[kind])
        yield Figure(f"at 10 % of its quota beside a {kind} neighbour, p50", "ms", middle, spread, count)
    polite, flood = (sorted(taken[kind]) for kind in ("polite", "flood"))
    bases, worst = polite[len(polite) * 99 // 100], flood[len(flood) * 99 // 100]
    spread = summarise(p99s["flood"])[1]
    yield Figure("p99 beside a polite neighbour", "ms", bases, summarise(p99s["polite"])[1], len(polite))
    yield Figure(
        "p99 beside a flood of 10 times the quota",
        "ms",
        worst,
        spread,
        len(flood),
        peer="a polite neighbour",
        ratio=worst / bases,
        bar=_BAR,
        judged="ratio",
    )


def _press(
    loads: list[Load], url: str, token: str, tenant: int, function: dict[int, str], seconds: float, delay_ms: int
) -> None:
    headers = {"authorization": f"Bearer {token}", "x-tensorwasm-tenant": str(tenant)}
    path = f"{url}/functions/{function[tenant]}/invoke"
    body = {"export": "add", "args": [2, 3]}
    loads.append(apply_load(path, body, headers, seconds=seconds, connections=_CONNECTIONS, delay_ms=delay_ms))


def ask_steadily(url: str, token: str, tenant: int, function: str, seconds: float, period_s: float) -> Iterator[float]:
    """Yield latencies in ms of requests at a steady rate; one that is late does not move those after it.

    Those that were still to be made when the time was over have waited until then at least.

    Args:
        url: of the service.
        token: for the tenant.
        tenant: who asks.
        function: what is called, the id of one with ``add``.
        seconds: for how long.
        period_s: between two requests.
    """
    with Client(url, token, tenant) as client:
        start_s = time.perf_counter() + 0.2
        for index in range(int(seconds / period_s)):
            due_s = start_s + index * period_s
            left_s = due_s - time.perf_counter()
            if left_s > 0:
                time.sleep(left_s)
                due_s = time.perf_counter()  # what sleeping took too long is nobody's latency
            client.ask("POST", f"/functions/{function}/invoke", {"export": "add", "args": [2, 3]})
            yield (time.perf_counter() - due_s) * 1e3
            if time.perf_counter() - start_s > seconds:
                for late in range(index + 1, int(seconds / period_s)):
                    yield (seconds - late * period_s) * 1e3
                return


def _check(kind: str, loads: list[Load]) -> None:
    """Raise if the neighbour was not what it was to be."""
    if not loads:
        raise InternalError(f"the {kind} neighbour could not be made")
    load = loads[0]
    asked = load.per_s / QUOTA_PER_S
    if kind == "flood" and (asked < 5 or not load.refused):
        raise InternalError(f"no flood: {asked:.1f} times the quota, {load.refused} refused")
    if kind == "polite" and load.refused > load.per_s:
        raise InternalError(f"not polite: {load.refused} refused")
