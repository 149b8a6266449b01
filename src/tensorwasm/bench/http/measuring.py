"""`tensor-wasm bench http`: throughput beside workerd and Node, streams, the OpenAI gateway, and noisy neighbours."""

from __future__ import annotations

import base64
import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from tensorwasm.bench.examples import read_guest
from tensorwasm.bench.figures import Figure, Report
from tensorwasm.bench.http.client import Client
from tensorwasm.bench.http.load import Load, apply_load, require_wrk
from tensorwasm.bench.http.neighbours import QUOTA_PER_S, measure_neighbours
from tensorwasm.bench.http.serving import Served, serving
from tensorwasm.bench.http.singles import measure_gateway, measure_streams
from tensorwasm.bench.peers import web
from tensorwasm.bench.peers.missing import MissingPeer
from tensorwasm.bench.rounds import alternate, compared
from tensorwasm.errors import InternalError

SECONDS: Final = 5.0
ROUNDS: Final = 7
OURS: Final = "TensorWasm"

_BARS: Final = {web.WORKERD: 2.2, web.NODE: 1.4}
_ADD: Final[dict[str, object]] = {"args": [2, 3]}
_FREE: Final = 1_000_000
"""Requests a second that are never reached: the limit is looked at all the same."""


def measure_http(_choice: str = "auto", *, seconds: float = SECONDS, rounds: int = ROUNDS) -> Report:
    """Measure a service that this starts; no device takes part.

    Args:
        seconds: of each run of wrk.
        rounds: of each service, in turns.

    Raises:
        InvalidArgs: wrk is not installed.
    """
    require_wrk()
    with tempfile.TemporaryDirectory(prefix="tensorwasm-bench-") as name, serving(Path(name) / "data") as served:
        folder = Path(name)
        with Client(served.url, served.token, 1) as client:
            for tenant, qps in ((1, _FREE), (2, QUOTA_PER_S), (3, QUOTA_PER_S)):
                quotas = {"qps": qps, "burst": max(qps // 10, 20)}
                client.ask("PATCH", f"/tenants/{tenant}", {"quotas": quotas})
            add = deploy(client, "add")
            figures = [*_throughput(served, add, folder, seconds, rounds)]
            figures += measure_streams(client, deploy(client, "stream"))
            figures += measure_gateway(client, deploy(client, "chat", model=True), "chat")
        figures += measure_neighbours(served.url, served.token, {each: _deploy_for(served, each) for each in (2, 3)})
    return Report("http", "", tuple(figures))


def deploy(client: Client, name: str, **options: object) -> str:
    """Deploy a guest of the benchmarks, and return its id."""
    module = base64.b64encode(read_guest(name)).decode()
    return str(client.ask("POST", "/functions", {"name": name, "wasm_b64": module, "options": options})["id"])


def _deploy_for(served: Served, tenant: int) -> str:
    with Client(served.url, served.token, tenant) as client:
        return deploy(client, "add")


def _throughput(served: Served, add: str, folder: Path, seconds: float, rounds: int) -> Iterator[Figure]:
    """Yield figures of wrk with 16 connections, of ours and the peers' in turns."""
    (folder / "add.wasm").write_bytes(read_guest("add"))
    headers = {"authorization": f"Bearer {served.token}", "x-tensorwasm-tenant": "1"}
    places = {OURS: (f"{served.url}/functions/{add}/invoke", {"export": "add", **_ADD}, headers)}
    loads: dict[str, list[Load]] = {OURS: []}
    with contextlib.ExitStack() as open_:
        for peer in _BARS:
            with contextlib.suppress(MissingPeer):  # its figures say that it is missing, and miss their bars
                places[peer] = (open_.enter_context(web.serving(peer, folder)), _ADD, {})
                loads[peer] = []

        def press(name: str) -> Callable[[], float]:
            def work() -> float:
                load = apply_load(*places[name], seconds=seconds)
                if load.refused or load.broken:
                    raise InternalError(f"{name}: {load.refused} of the answers are no success, {load.broken} missing")
                loads[name].append(load)
                return load.per_s

            return work

        taken = alternate({name: press(name) for name in places}, rounds)
    for peer, bar in _BARS.items():
        peers = taken.get(peer, ())
        if peers:
            yield compared(f"{peer}, add(2, 3)", "requests/s", peers)
        yield compared(
            "add(2, 3), a fresh sandbox each", "requests/s", taken[OURS], peer=peer, peers=peers, bar=bar, at_least=True
        )
    p99s = {name: tuple(load.p99_ms for load in each[1:]) for name, each in loads.items()}
    best = min((name for name in _BARS if name in p99s), key=lambda name: sorted(p99s[name])[rounds // 2], default="")
    if best:
        yield compared(f"p99 of {best}", "ms", p99s[best])
    yield compared("p99", "ms", p99s[OURS], peer=best or "the better of both", peers=p99s.get(best, ()), bar=1.0)
