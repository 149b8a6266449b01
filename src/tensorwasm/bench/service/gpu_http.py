"""The benchmark ``gpu-http``: requests that each launch one small kernel in a fresh sandbox, beside uvicorn with CuPy.

The service is started for it, with all its features on. One process is measured beside the peer, then one with several
fronts, then a thousand tenants, each with a kernel of its own, one after the other. Without a GPU it runs
on the emulator, whose kernels take longer than all the rest: no bar is for it then.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from tensorwasm.bench.figures import Figure, MissingPeer, Report, alternate, p99, sampled, summarise
from tensorwasm.bench.harness import read_guest, scratch_folder
from tensorwasm.bench.peers.host import CUPY, serve_peer
from tensorwasm.bench.service.http import WrkResult, apply_load, require_wrk
from tensorwasm.bench.service.serving import RunningService, ServiceClient, serving, tenant_headers
from tensorwasm.errors import InternalError
from tensorwasm.runtime import Runtime

FREESTANDING: Final = "freestanding guest"
WASI: Final = "guest with WASI and libc"

_BARS: Final = {FREESTANDING: 0.8, WASI: 0.5}
_FRONTS_BAR: Final = 1.5
_LATENCY_BARS_MS: Final = {(FREESTANDING, 1): (0.25, None), (FREESTANDING, 16): (None, 3.0)}
"""The most that p50 and p99 may be, by guest and connections."""
_CONNECTIONS: Final = (1, 16, 64)
_MOST: Final = _CONNECTIONS[-1]
_ROUNDS: Final = 3
_FRONTS: Final = 4
_IN_TURN: Final = 3
_DEPLOYERS: Final = 16
_KERNEL: Final = b"// Adds one to each of 64 numbers."
_ANSWER: Final = {"export": "increment", "args": [41]}
_PROGRAM: Final = {"argv": ["increment", "41"]}
_CALLS: Final[Mapping[str, object]] = {FREESTANDING: _ANSWER, WASI: _PROGRAM, CUPY: {"args": [41]}}
_LIMITS: Final = {"qps": 1_000_000, "burst": 100_000}  # never reached


def measure_gpu_http(choice: str = "auto", *, seconds: float = 4.0, tenants: int | None = None) -> Report:
    """Measure requests with a kernel each, in runs of wrk of so many seconds; with 1,000 tenants on a GPU."""
    require_wrk()
    with Runtime(device=choice) as runtime:
        device = runtime.device
    real = device.kind == "cuda"
    settings = {"TENSOR_WASM_DEVICE": f"cuda:{device.ordinal}" if real else "emulator", "TENSOR_WASM_NATIVE": "on"}
    count = tenants or (1000 if real else 20)
    with scratch_folder() as folder:
        with serving(folder / "one", settings) as service:
            figures = [*_one_front(service, folder, seconds, real=real), *_tenants_in_turn(service, count, real=real)]
        peers = next((figure.value for figure in figures if figure.name == _named(CUPY, _MOST)), None)
        figures += _several_fronts(folder, settings, seconds, peers, real=real)
    return Report("gpu-http", device.name, tuple(figures))


@dataclass(frozen=True, slots=True)
class _Subject:
    """What is measured: where it is asked, what, and with which headers."""

    url: str
    body: object
    headers: Mapping[str, str]

    def press(self, seconds: float, connections: int) -> WrkResult:
        """Return the outcome of one run of wrk, in which every request succeeded."""
        result = apply_load(self.url, self.body, self.headers, seconds=seconds, connections=connections)
        if result.refused or result.broken:
            raise InternalError(f"{self.url}: {result.refused} without success, {result.broken} without an answer")
        return result


def _deploy(client: ServiceClient, kind: str, module: bytes | None = None) -> str:
    """Deploy a guest with a grant of the GPU, call it until it is warm, and return its path."""
    module = module or read_guest("increment" if kind == FREESTANDING else "wasi/increment")
    function = client.deploy("increment", module, grants=["cuda"])
    path = f"/functions/{function}/invoke"
    for _ in range(3):
        answer = client.ask("POST", path, _CALLS[kind])
        if answer["result"] != [42] and answer.get("stdout") != {"text": "42\n"}:
            raise InternalError(f"the {kind} answered {answer}")
    return path


def _named(subject: str, connections: int) -> str:
    return f"{subject}, {connections} connection{'s' if connections > 1 else ''}"


def _one_front(service: RunningService, folder: Path, seconds: float, *, real: bool) -> Iterator[Figure]:
    """Yield throughput and latencies of one server and of the peer, in turns."""
    headers = tenant_headers(service.token, 1)
    with service.client() as client:
        client.ask("PATCH", "/tenants/1", {"quotas": _LIMITS})
        subjects = {
            kind: _Subject(f"{service.url}{_deploy(client, kind)}", _CALLS[kind], headers)
            for kind in (FREESTANDING, WASI)
        }
    with contextlib.ExitStack() as peers:
        with contextlib.suppress(MissingPeer):  # its figures say that it is missing, and miss their bars
            url = peers.enter_context(serve_peer(CUPY, folder))
            subjects[CUPY] = _Subject(url, _CALLS[CUPY], {})
        for connections in _CONNECTIONS:
            yield from compare(_press(subjects, seconds, connections), connections, real=real)


def _press(subjects: Mapping[str, _Subject], seconds: float, connections: int) -> dict[str, list[WrkResult]]:
    """Return the outcomes of runs of wrk against each subject, in turns, without those of the first one."""
    results: dict[str, list[WrkResult]] = {name: [] for name in subjects}

    def press(name: str) -> float:
        results[name].append(subjects[name].press(seconds, connections))
        return results[name][-1].per_s

    alternate({name: partial(press, name) for name in subjects}, _ROUNDS)
    return {name: each[1:] for name, each in results.items()}


def compare(results: Mapping[str, Sequence[WrkResult]], connections: int, *, real: bool) -> Iterator[Figure]:
    """Yield figures of both guests beside those of the peer; bars are for a real GPU."""
    peers = [result.per_s for result in results.get(CUPY, ())]
    if peers:
        yield sampled(_named(CUPY, connections), "requests/s", peers)
    for kind, bar in _BARS.items():
        held = bar if real and connections == _MOST else None
        per_s = [result.per_s for result in results[kind]]
        yield sampled(_named(kind, connections), "requests/s", per_s, peer=CUPY, peers=peers, bar=held, at_least=True)
    for name, each in results.items():
        p50_bar, p99_bar = _LATENCY_BARS_MS.get((name, connections), (None, None)) if real else (None, None)
        yield sampled(f"{_named(name, connections)}, p50", "ms", [result.p50_ms for result in each], bar=p50_bar)
        yield sampled(f"{_named(name, connections)}, p99", "ms", [result.p99_ms for result in each], bar=p99_bar)


def tenants_guest(tenant: int) -> bytes:
    """Return the guest of a tenant, with a kernel text that no other one has."""
    return read_guest("increment").replace(_KERNEL, b"// A kernel of the tenant %07d." % tenant)


def _tenants_in_turn(service: RunningService, count: int, *, real: bool) -> Iterator[Figure]:
    """Yield latencies of many tenants, each with a kernel of its own, that are called one after the other."""

    def deploy(tenant: int) -> tuple[int, str]:
        with service.client(tenant) as client:
            return tenant, _deploy(client, FREESTANDING, tenants_guest(tenant))

    with ThreadPoolExecutor(_DEPLOYERS) as pool:
        paths = dict(pool.map(deploy, range(2, count + 2)))
    taken = []
    with service.client() as client:
        for _ in range(_IN_TURN):
            for tenant, path in paths.items():
                client.headers = tenant_headers(service.token, tenant)
                began_s = time.perf_counter()
                client.ask("POST", path, _ANSWER)
                taken.append((time.perf_counter() - began_s) * 1e3)
    name = f"{count} tenants with a kernel each, called in turn"
    yield sampled(f"{name}, p50", "ms", taken, bar=1.5 if real else None)
    yield Figure(f"{name}, p99", "ms", p99(taken), summarise(taken)[1], len(taken), bar=10.0 if real else None)


def _several_fronts(
    folder: Path, settings: Mapping[str, str], seconds: float, peers: float | None, *, real: bool
) -> Iterator[Figure]:
    """Yield the throughput of one server with several fronts."""
    with serving(folder / "fronts", {**settings, "TENSOR_WASM_WORKERS": str(_FRONTS)}) as service:
        headers = tenant_headers(service.token, 1)
        for kind in (FREESTANDING, WASI):
            with service.client() as client:
                client.ask("PATCH", "/tenants/1", {"quotas": _LIMITS})
                subject = _Subject(f"{service.url}{_deploy(client, kind)}", _CALLS[kind], headers)
            rounds = [subject.press(seconds, _MOST).per_s for _ in range(_ROUNDS + 1)]
            name = f"{kind}, {_FRONTS} fronts, {_MOST} connections"
            bar = _FRONTS_BAR if real and kind == FREESTANDING else None
            peer = [peers] if peers is not None else []
            yield sampled(name, "requests/s", rounds[1:], peer=CUPY, peers=peer, bar=bar, at_least=True)
