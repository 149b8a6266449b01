"""The benchmark ``http``: throughput beside workerd and Node, streams, the OpenAI gateway, and a noisy neighbour.

Load comes from wrk: so many connections, each of which makes a request again as soon as it is answered.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from tensorwasm.bench.figures import Figure, MissingPeer, Report, p99, sampled, summarise, time_once
from tensorwasm.bench.harness import read_guest, scratch_folder
from tensorwasm.bench.peers.host import NODE, WORKERD, serve_peer
from tensorwasm.bench.service.serving import (
    UNLIMITED,
    RunningService,
    ServiceClient,
    ask_steadily,
    serving,
    tenant_headers,
)
from tensorwasm.bench.service.sweep import SweepReport, sweep
from tensorwasm.bench.service.wrk import (
    WrkResult,
    WrkTarget,
    apply_load,
    dividing_processors,
    press_in_turns,
    require_wrk,
)
from tensorwasm.errors import InternalError

OURS: Final = "TensorWasm"
QUOTA_PER_S: Final = 500
"""Requests a second that each of two neighbours may make."""

_BARS: Final = {WORKERD: 2.2, NODE: 1.0}
_TAIL_BAR: Final = 0.6
_ADD: Final = {"export": "add", "args": [2, 3]}
_CONNECTIONS: Final = 16
_PERIOD_S: Final = 10 / QUOTA_PER_S
_DELAYS_MS: Final = {"polite": 1000 * _CONNECTIONS // QUOTA_PER_S, "flood": 1000 * _CONNECTIONS // (10 * QUOTA_PER_S)}


def measure_http(_choice: str = "auto", *, seconds: float = 5.0, workers: int = 1, rounds: int = 7) -> Report:
    """Measure a service that this starts, in runs of wrk of so many seconds; no device takes part."""
    require_wrk()
    with scratch_folder() as folder, serving(folder / "data", {"TENSOR_WASM_WORKERS": str(workers)}) as service:
        with service.client() as client:
            client.ask("PATCH", "/tenants/1", {"quotas": UNLIMITED})
            for tenant in (2, 3):
                client.ask("PATCH", f"/tenants/{tenant}", {"quotas": {"qps": QUOTA_PER_S, "burst": QUOTA_PER_S // 10}})
            client.wait_until_ready()
            figures = [
                *_throughput(service, client.deploy("add"), folder, seconds, rounds),
                *_streams(client, client.deploy("stream"), 1000),
                *_gateway(client, client.deploy("chat", model=True), 1000),
            ]
        functions = {}
        for tenant in (2, 3):
            with service.client(tenant) as client:
                functions[tenant] = client.deploy("add")
        return Report("http", "", (*figures, *_flood(service, functions)))


def sweep_http(_choice: str = "auto", *, seconds: float = 4.0, workers: int = 1) -> SweepReport:
    """Measure ours and both peers with more and more connections, in runs of wrk of so many seconds."""
    require_wrk()
    with (
        dividing_processors() as clients,
        scratch_folder() as folder,
        serving(folder / "data", {"TENSOR_WASM_WORKERS": str(workers)}) as service,
    ):
        with service.client() as client:
            client.ask("PATCH", "/tenants/1", {"quotas": UNLIMITED})
            client.wait_until_ready()
            add = client.deploy("add")
        with _targets(service, add, folder) as targets:
            return sweep("http", "", targets, seconds, clients)


@contextlib.contextmanager
def _targets(service: RunningService, add: str, folder: Path) -> Iterator[dict[str, WrkTarget]]:
    """Run the peers that are installed, and yield what is asked of them and of ours."""
    (folder / "add.wasm").write_bytes(read_guest("add"))
    url, headers = f"{service.url}/functions/{add}/invoke", tenant_headers(service.token, 1)
    with contextlib.ExitStack() as peers:
        targets = {OURS: WrkTarget(url, _ADD, headers)}
        for peer in _BARS:
            with contextlib.suppress(MissingPeer):  # its figures say that it is missing, and miss their bars
                targets[peer] = WrkTarget(peers.enter_context(serve_peer(peer, folder)), {"args": _ADD["args"]}, {})
        yield targets


def _throughput(service: RunningService, add: str, folder: Path, seconds: float, rounds: int) -> Iterator[Figure]:
    """Yield figures of wrk with 16 connections, of ours and the peers' in turns."""
    with _targets(service, add, folder) as targets:
        yield from compare(press_in_turns(targets, seconds, _CONNECTIONS, rounds))


def compare(results: Mapping[str, Sequence[WrkResult]]) -> Iterator[Figure]:
    """Yield figures of `OURS` beside those of the peers that are there; one that is missing misses its bars."""
    per_s = {name: [result.per_s for result in each] for name, each in results.items()}
    p99s = {name: [result.p99_ms for result in each] for name, each in results.items()}
    name = "add(2, 3), a fresh sandbox each"
    for peer, bar in _BARS.items():
        if peer in per_s:
            yield sampled(f"{peer}, add(2, 3)", "requests/s", per_s[peer])
        yield sampled(name, "requests/s", per_s[OURS], peer=peer, peers=per_s.get(peer, ()), bar=bar, at_least=True)
    for peer in _BARS:
        if peer in p99s:
            yield sampled(f"p99 of {peer}", "ms", p99s[peer])
    both = all(peer in p99s for peer in _BARS)  # without one of them nobody knows which is the better
    best = min(_BARS, key=lambda name: summarise(p99s[name])[0]) if both else "the better of both"
    yield sampled("p99", "ms", p99s[OURS], peer=best, peers=p99s.get(best, ()), bar=_TAIL_BAR)


def _streams(client: ServiceClient, function: str, count: int) -> tuple[Figure, ...]:
    """Measure the time of a chunk from the guest's emit-chunk to the client, in raw streams."""
    taken = [_chunk_ms(client, function) for _ in range(count)]
    middle, spread, _ = summarise(taken)
    name = "first byte of a stream after emit-chunk"
    return (
        Figure(f"{name}, p50", "ms", middle, spread, count),
        Figure(f"{name}, p99", "ms", p99(taken), spread, count, bar=2.0),
    )


def _chunk_ms(client: ServiceClient, function: str) -> float:
    body = {"export": "stamp", "args": [3000]}  # runs on for 3 ms: a stream is of use while the guest still runs
    with client.open_stream(f"/functions/{function}/invoke-stream", body, "application/octet-stream") as answer:
        stamp = answer.read(8)
        now_ns = time.time_ns()
        answer.read()
    if len(stamp) != 8:
        raise InternalError(f"a stream had {len(stamp)} bytes instead of 8")
    return (now_ns - int.from_bytes(stamp, "little")) / 1e6


def _gateway(client: ServiceClient, function: str, count: int) -> tuple[Figure, ...]:
    """Measure what the OpenAI route takes beyond an invocation of the same guest, asked for in turns."""
    chat = {"model": "chat", "messages": [{"role": "user", "content": "Hello?"}]}
    bare, routed = [], []
    for _ in range(count):
        bare.append(time_once(lambda: client.ask("POST", f"/functions/{function}/invoke", {})) * 1e3)
        routed.append(time_once(lambda: client.ask("POST", "/v1/chat/completions", chat)) * 1e3)
    invoke = summarise(bare)[0]
    return (
        sampled("a bare invoke of the same guest, p50", "ms", bare),
        sampled("added by the OpenAI route, p50", "ms", [one - invoke for one in routed], bar=0.3),
    )


def _flood(
    service: RunningService, functions: Mapping[int, str], rounds: int = 5, seconds: float = 10.0
) -> Iterator[Figure]:
    """Yield latencies of a tenant that makes a tenth of its quota, beside a neighbour of either kind.

    Args:
        service: that allows both tenants `QUOTA_PER_S` requests a second.
        functions: id of the function that each tenant calls; the first tenant is measured.
        rounds: of each kind, in turns.
        seconds: of one round.
    """
    subject, neighbour = functions
    url, headers = f"{service.url}/functions/{functions[neighbour]}/invoke", tenant_headers(service.token, neighbour)
    taken: dict[str, list[list[float]]] = {kind: [] for kind in _DELAYS_MS}
    with ThreadPoolExecutor(1) as pool:
        for kind, delay_ms in list(_DELAYS_MS.items()) * rounds:
            load = pool.submit(
                apply_load, url, _ADD, headers, seconds=seconds, connections=_CONNECTIONS, delay_ms=delay_ms
            )
            with service.client(subject) as client:
                taken[kind].append([*ask_steadily(client, functions[subject], seconds - 1, _PERIOD_S)])
            _check(kind, load.result())
    pooled = {kind: [latency for each in rounds_ for latency in each] for kind, rounds_ in taken.items()}
    for kind, latencies in pooled.items():
        yield sampled(f"at 10 % of its quota beside a {kind} neighbour, p50", "ms", latencies)
    # The 99th percentile of all latencies, its spread over the rounds, and the count.
    polite, flood = ((p99(pooled[k]), summarise([*map(p99, taken[k])])[1], len(pooled[k])) for k in _DELAYS_MS)
    yield Figure("p99 beside a polite neighbour", "ms", *polite)
    name, peer = "p99 beside a flood of 10 times the quota", "a polite neighbour"
    yield Figure(name, "ms", *flood, peer=peer, ratio=flood[0] / polite[0], bar=1.25, judged="ratio")


def _check(kind: str, load: WrkResult) -> None:
    """Raise if the neighbour did not behave as intended."""
    asked = load.per_s / QUOTA_PER_S
    if kind == "flood" and (asked < 5 or not load.refused):
        raise InternalError(f"no flood: {asked:.1f} times the quota, {load.refused} refused")
    if kind == "polite" and load.refused > load.per_s:
        raise InternalError(f"not polite: {load.refused} refused")
