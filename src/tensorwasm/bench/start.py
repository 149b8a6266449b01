"""How long a server takes until it is ready, with warm caches and with none, and what a run of a cached module costs.

Every sample is a process of its own, with caches and data in folders that are removed afterwards. Processes keep their
bytecode, as users' do, whatever the environment says.
"""

from __future__ import annotations

import base64
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tensorwasm.bench.examples import read_guest
from tensorwasm.bench.figures import Figure, Report
from tensorwasm.bench.http.client import Client
from tensorwasm.bench.http.serving import serving
from tensorwasm.bench.rounds import alternate, compared
from tensorwasm.errors import InternalError

STARTS: Final = 3
RUNS: Final = 20
PEER: Final = "wasmtime-py"

_WARM_S: Final = 2.0
_EMPTY_S: Final = 12.0
_ANSWER_MS: Final = 100.0
_RUN_MS: Final = 200.0
_READY_S: Final = 300.0
_CACHE: Final = "TENSOR_WASM_CACHE"
_BYTECODE: Final = "PYTHONDONTWRITEBYTECODE"
_CALL: Final = {"export": "add", "args": [40, 2]}
_PEER: Final = """
import sys, wasmtime
engine = wasmtime.Engine()
store = wasmtime.Store(engine)
with open(sys.argv[1], "rb") as file:
    instance = wasmtime.Instance(store, wasmtime.Module(engine, file.read()), [])
print(instance.exports(store)["add"](store, 40, 2))
"""


def measure_start(_choice: str = "auto", *, starts: int = STARTS, runs: int = RUNS) -> Report:
    """Measure starts on the emulator: no device takes part.

    Args:
        starts: servers of each kind.
        runs: processes of each kind that run a module.

    Raises:
        InternalError: a process fails, or a server does not get ready.
    """
    with tempfile.TemporaryDirectory(prefix="tensorwasm-bench-") as name:
        folder = Path(name)
        # The first of each kind is not counted: it leaves bytecode, and the caches that the warm ones find.
        empty = [_start(folder, f"empty{number}", f"cache{number}") for number in range(starts + 1)][1:]
        warm = [_start(folder, f"warm{number}", "cache0") for number in range(starts)]
        return Report("start", "", (*_start_figures(warm, empty), *_run_figures(folder, runs)))


def _start_figures(warm: list[tuple[float, float, float]], empty: list[tuple[float, float, float]]) -> list[Figure]:
    ready, first, early = ([taken[at] for taken in warm] for at in range(3))
    ready_empty, first_empty, early_empty = ([taken[at] for taken in empty] for at in range(3))
    return [
        compared("serve until it is ready, warm caches", "s", tuple(ready), bar=_WARM_S),
        compared("serve until it is ready, no caches", "s", tuple(ready_empty), bar=_EMPTY_S),
        compared("serve until its first deploy and call are answered, warm caches", "s", tuple(early)),
        compared("serve until its first deploy and call are answered, no caches", "s", tuple(early_empty)),
        compared("first answer once it is ready", "ms", (*first, *first_empty), bar=_ANSWER_MS),
    ]


def _start(folder: Path, data: str, cache: str) -> tuple[float, float, float]:
    """Start a server; return seconds until it is ready, ms of its first answer then, s until its first of all."""
    settings = {_CACHE: str(folder / cache), "TENSOR_WASM_DEVICE": "emulator", _BYTECODE: ""}
    settings["TENSOR_WASM_STATE_DIR"] = str(folder / f"{data}.state")
    module = base64.b64encode(read_guest("add")).decode()
    began_s = time.perf_counter()
    with serving(folder / data, settings) as served, Client(served.url, served.token) as client:
        made = client.ask("POST", "/functions", {"name": "add", "wasm_b64": module})["id"]
        _call(client, made)
        early_s = time.perf_counter() - began_s
        while client.send("GET", "/readyz", None, {})[0] != 200:
            if time.perf_counter() - began_s > _READY_S:
                raise InternalError(f"the service is not ready after {_READY_S:g} s")
            time.sleep(0.01)
        ready_s = time.perf_counter() - began_s
        return ready_s, _call(client, made), early_s


def _call(client: Client, function: str) -> float:
    """Call a function; return how many ms its answer took."""
    began_s = time.perf_counter()
    answer = client.ask("POST", f"/functions/{function}/invoke", _CALL)
    if answer["result"] != [42]:
        raise InternalError(f"the service says that 40 + 2 is {answer['result']}")
    return (time.perf_counter() - began_s) * 1e3


def _run_figures(folder: Path, runs: int) -> list[Figure]:
    path = folder / "add.wasm"
    path.write_bytes(read_guest("add"))
    settings = {_CACHE: str(folder / "cache0"), "TENSOR_WASM_STATE_DIR": str(folder / "run.state"), _BYTECODE: ""}
    own = [sys.executable, "-m", "tensorwasm.cli", "run", str(path), "--export", "add", "--args", "[40, 2]"]
    peer = [sys.executable, "-P", "-c", _PEER, str(path)]
    taken = alternate({"own": lambda: _run(own, settings), "peer": lambda: _run(peer, settings)}, runs)
    ratio = statistics.median(taken["own"]) / statistics.median(taken["peer"])
    return [
        compared(f"run of a cached module ({ratio:.2f} of {PEER})", "ms", taken["own"], bar=_RUN_MS),
        compared(f"{PEER} runs it", "ms", taken["peer"]),
    ]


def _run(command: list[str], settings: Mapping[str, str]) -> float:
    """Return how many ms a process takes that says 42."""
    began_s = time.perf_counter()
    done = subprocess.run(command, env={**os.environ, **settings}, capture_output=True, text=True, check=False)  # noqa: S603 - our own interpreter and scripts, without a shell
    spent_ms = (time.perf_counter() - began_s) * 1e3
    if done.returncode or "42" not in done.stdout:
        raise InternalError(f"a process of the benchmark exited with code {done.returncode}: {done.stderr[-400:]}")
    return spent_ms
