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
from pathlib import Path
from typing import Final

from tensorwasm.bench.figures import Figure, MissingPeer, Report, p99, sampled, summarise
from tensorwasm.bench.harness import read_guest, scratch_folder
from tensorwasm.bench.peers.host import CUPY, serve_peer
from tensorwasm.bench.service.serving import UNLIMITED, RunningService, ServiceClient, serving, tenant_headers
from tensorwasm.bench.service.sweep import SweepReport, sweep
from tensorwasm.bench.service.wrk import WrkResult, WrkTarget, dividing_processors, press_in_turns, require_wrk
from tensorwasm.errors import InternalError
from tensorwasm.runtime import Runtime
from tensorwasm.values import DeviceInfo

FREESTANDING: Final = "freestanding guest"
WASI: Final = "guest with WASI and libc"

_BARS: Final = {FREESTANDING: 0.8, WASI: 0.5}
_FRONTS_BAR: Final = 1.5
_LATENCY_BARS_MS: Final = {(FREESTANDING, 1): (0.25, None), (FREESTANDING, 16): (None, 3.0)}
"""The most that p50 and p99 may be, by guest and connections."""
_CONNECTIONS: Final = (1, 16, 64)
_MOST: Final = _CONNECTIONS[-1]
_ROUNDS: Final = 3
_IN_TURN: Final = 3
_DEPLOYERS: Final = 16
_KERNEL: Final = b"// Adds one to each of 64 numbers."
_ANSWER: Final = {"export": "increment", "args": [41]}
_PROGRAM: Final = {"argv": ["increment", "41"]}
_CALLS: Final[Mapping[str, object]] = {FREESTANDING: _ANSWER, WASI: _PROGRAM, CUPY: {"args": [41]}}


def measure_gpu_http(
    choice: str = "auto", *, seconds: float = 4.0, workers: int = 4, tenants: int | None = None
) -> Report:
    """Measure requests with a kernel each, in runs of wrk of so many seconds; with 1,000 tenants on a GPU.

    Args:
        choice: of a device.
        seconds: of each run.
        workers: processes of the server that has several.
        tenants: that are called in turn.
    """
    require_wrk()
    device, settings = _find_device(choice)
    real = device.kind == "cuda"
    count = tenants or (1000 if real else 20)
    with scratch_folder() as folder:
        with serving(folder / "one", settings) as service:
            with _targets(service, folder) as targets:
                figures = [
                    figure
                    for connections in _CONNECTIONS
                    for figure in compare(
                        press_in_turns(targets, seconds, connections, _ROUNDS), connections, real=real
                    )
                ]
            figures += _tenants_in_turn(service, count, real=real)
        peers = [figure.value for figure in figures if figure.name == _named(CUPY, _MOST)]
        with serving(folder / "fronts", {**settings, "TENSOR_WASM_WORKERS": str(workers)}) as service:
            figures += _several_fronts(service, workers, seconds, peers, real=real)
    return Report("gpu-http", device.name, tuple(figures))


def sweep_gpu_http(choice: str = "auto", *, seconds: float = 4.0, workers: int = 1) -> SweepReport:
    """Measure both guests and the peer with more and more connections, in runs of wrk of so many seconds."""
    require_wrk()
    device, settings = _find_device(choice)
    with (
        dividing_processors() as clients,
        scratch_folder() as folder,
        serving(folder / "data", {**settings, "TENSOR_WASM_WORKERS": str(workers)}) as service,
        _targets(service, folder) as targets,
    ):
        return sweep("gpu-http", device.name, targets, seconds, clients)


def _find_device(choice: str) -> tuple[DeviceInfo, dict[str, str]]:
    """Return the device, and the settings of a server that uses it."""
    with Runtime(device=choice) as runtime:
        device = runtime.device
    chosen = f"cuda:{device.ordinal}" if device.kind == "cuda" else "emulator"
    return device, {"TENSOR_WASM_DEVICE": chosen, "TENSOR_WASM_NATIVE": "on"}


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


@contextlib.contextmanager
def _targets(service: RunningService, folder: Path) -> Iterator[dict[str, WrkTarget]]:
    """Run the peer if it is installed, and yield what is asked of it and of both guests."""
    with contextlib.ExitStack() as peers:
        targets = _guests(service)
        with contextlib.suppress(MissingPeer):  # its figures say that it is missing, and miss their bars
            targets[CUPY] = WrkTarget(peers.enter_context(serve_peer(CUPY, folder)), _CALLS[CUPY], {})
        yield targets


def _guests(service: RunningService) -> dict[str, WrkTarget]:
    """Deploy both guests for a tenant without limits, and return what is asked of them."""
    headers = tenant_headers(service.token, 1)
    with service.client() as client:
        client.ask("PATCH", "/tenants/1", {"quotas": UNLIMITED})
        client.wait_until_ready()
        return {
            kind: WrkTarget(f"{service.url}{_deploy(client, kind)}", _CALLS[kind], headers)
            for kind in (FREESTANDING, WASI)
        }


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
    service: RunningService, fronts: int, seconds: float, peers: Sequence[float], *, real: bool
) -> Iterator[Figure]:
    """Yield the throughput of one server with several fronts."""
    results = press_in_turns(_guests(service), seconds, _MOST, _ROUNDS)
    for kind, each in results.items():
        name, per_s = f"{kind}, {fronts} fronts, {_MOST} connections", [result.per_s for result in each]
        bar = _FRONTS_BAR if real and kind == FREESTANDING else None
        yield sampled(name, "requests/s", per_s, peer=CUPY, peers=peers, bar=bar, at_least=True)
