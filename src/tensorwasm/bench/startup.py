"""The benchmarks ``deploy`` and ``start``: what deploys, starts of a server and runs of a cached module cost.

Every sample is a process of its own, with caches and data in folders that are removed afterwards.
"""

from __future__ import annotations

import base64
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tensorwasm.bench.figures import Figure, Report, alternate, sampled
from tensorwasm.bench.harness import make_module, read_guest, run_python, scratch_folder
from tensorwasm.bench.peers.host import WASMTIME
from tensorwasm.bench.service.serving import ServiceClient, serving
from tensorwasm.errors import InternalError

_DEPLOY_BAR_MS: Final = 5.0
_READY_S: Final = 300.0
_CACHE: Final = "TENSOR_WASM_CACHE"
_STATE: Final = "TENSOR_WASM_STATE_DIR"
_BYTECODE: Final = {"PYTHONDONTWRITEBYTECODE": ""}
"""Processes keep their bytecode, as users' do, whatever the environment says."""

_DEPLOY: Final = """
import json, sys, time
from tensorwasm.runtime import Runtime
from tensorwasm.artifacts import hashing
hashing.blake3(b"")
with Runtime("emulator") as runtime:
    taken = []
    for path in sys.argv[1:]:
        start = time.perf_counter_ns()
        runtime.load(path)
        taken.append((time.perf_counter_ns() - start) / 1e6)
print(json.dumps([*taken, runtime.deploys().compiled]))
"""
_COMPILE: Final = """
import json, sys, time, wasmtime
engine = wasmtime.Engine()
start = time.perf_counter_ns()
with open(sys.argv[1], "rb") as file:
    wasmtime.Module(engine, file.read())
print(json.dumps([(time.perf_counter_ns() - start) / 1e6, 1]))
"""
_RUN: Final = """
import sys, wasmtime
engine = wasmtime.Engine()
store = wasmtime.Store(engine)
with open(sys.argv[1], "rb") as file:
    instance = wasmtime.Instance(store, wasmtime.Module(engine, file.read()), [])
print(instance.exports(store)["add"](store, 40, 2))
"""


def measure_deploy(_choice: str = "auto", *, samples: int = 15, code_bytes: int = 1_000_000) -> Report:
    """Measure deploys in so many processes, which have imported everything and opened their `Runtime`."""
    with scratch_folder() as folder:
        return Report("deploy", "", _deploy_figures(folder, samples, code_bytes))


def _deploy_figures(folder: Path, samples: int, code_bytes: int) -> tuple[Figure, ...]:
    first, second = folder / "1.wasm", folder / "2.wasm"
    for seed, path in enumerate((first, second)):
        path.write_bytes(make_module(code_bytes, seed))
    kept = {_CACHE: str(folder / "kept"), _STATE: str(folder / "state"), "TENSOR_WASM_CODE_CACHE": "1024"}
    _run_script(_DEPLOY, kept, first, second)
    further: list[float] = []

    def seen() -> float:
        one, two, compiled = _run_script(_DEPLOY, kept, first, second)
        if compiled:
            raise InternalError("a module that was deployed before was compiled again")
        further.append(two)
        return one

    subjects = {
        "seen": seen,
        "new": lambda: _run_script(_DEPLOY, kept | {"TENSOR_WASM_CODE_CACHE": "0"}, first)[0],
        "peer": lambda: _run_script(_COMPILE, {}, first)[0],
    }
    taken = alternate(subjects, samples)
    name = f"deploy in a fresh process, seen before, {code_bytes / 1e6:g} MB of code"
    return (
        sampled(name, "ms", taken["seen"], bar=_DEPLOY_BAR_MS),
        sampled("the next one there, seen before", "ms", further[1:], bar=_DEPLOY_BAR_MS),
        sampled("deploy of what is new, nothing kept", "ms", taken["new"], peer=WASMTIME, peers=taken["peer"]),
        sampled(f"{WASMTIME} compiles it", "ms", taken["peer"]),
    )


def _run_script(script: str, settings: Mapping[str, str], *paths: Path) -> list[float]:
    """Return the list of numbers that a script prints about some modules."""
    answer: list[float] = json.loads(run_python("-P", "-c", script, *map(str, paths), settings=settings)[0])
    return answer


def measure_start(_choice: str = "auto", *, starts: int = 3, runs: int = 20) -> Report:
    """Measure so many starts of a server and runs of a module, on the emulator."""
    with scratch_folder() as folder:
        # The first of each kind is not counted: it leaves bytecode, and the caches that the warm ones find.
        empty = [_start(folder, f"empty{number}", f"cache{number}") for number in range(starts + 1)][1:]
        warm = [_start(folder, f"warm{number}", "cache0") for number in range(starts)]
        return Report("start", "", (*_start_figures(warm, empty), *_run_figures(folder, runs)))


_Start = tuple[float, float, float]
"""Seconds until a server is ready, milliseconds of its first answer then, seconds until its first answer of all."""


def _start_figures(warm: Sequence[_Start], empty: Sequence[_Start]) -> list[Figure]:
    (ready, first, early), (ready_empty, first_empty, early_empty) = zip(*warm, strict=True), zip(*empty, strict=True)
    return [
        sampled("serve until it is ready, warm caches", "s", ready, bar=2.0),
        sampled("serve until it is ready, no caches", "s", ready_empty, bar=12.0),
        sampled("serve until its first deploy and call are answered, warm caches", "s", early),
        sampled("serve until its first deploy and call are answered, no caches", "s", early_empty),
        sampled("first answer once it is ready", "ms", (*first, *first_empty), bar=100.0),
    ]


def _start(folder: Path, data: str, cache: str) -> _Start:
    settings = {_CACHE: str(folder / cache), _STATE: str(folder / f"{data}.state"), "TENSOR_WASM_DEVICE": "emulator"}
    module = base64.b64encode(read_guest("add")).decode()
    began_s = time.perf_counter()
    with serving(folder / data, settings | _BYTECODE) as service, service.client() as client:
        function = client.ask("POST", "/functions", {"name": "add", "wasm_b64": module})["id"]
        _call_ms(client, function)
        early_s = time.perf_counter() - began_s
        while client.send("GET", "/readyz")[0] != 200:
            if time.perf_counter() - began_s > _READY_S:
                raise InternalError(f"the service is not ready after {_READY_S:g} s")
            time.sleep(0.01)
        return time.perf_counter() - began_s, _call_ms(client, function), early_s


def _call_ms(client: ServiceClient, function: str) -> float:
    """Call a function; return how many milliseconds its answer took."""
    began_s = time.perf_counter()
    answer = client.ask("POST", f"/functions/{function}/invoke", {"export": "add", "args": [40, 2]})
    if answer["result"] != [42]:
        raise InternalError(f"the service computed 40 + 2 = {answer['result']}")
    return (time.perf_counter() - began_s) * 1e3


def _run_figures(folder: Path, runs: int) -> list[Figure]:
    path = folder / "add.wasm"
    path.write_bytes(read_guest("add"))
    settings = {_CACHE: str(folder / "cache0"), _STATE: str(folder / "run.state"), **_BYTECODE}
    own = ("-m", "tensorwasm.cli", "run", str(path), "--export", "add", "--args", "[40, 2]")
    peer = ("-P", "-c", _RUN, str(path))
    taken = alternate({"own": lambda: _run_ms(own, settings), "peer": lambda: _run_ms(peer, settings)}, runs)
    ratio = statistics.median(taken["own"]) / statistics.median(taken["peer"])
    return [
        sampled(f"run of a cached module ({ratio:.2f} of {WASMTIME})", "ms", taken["own"], bar=200.0),
        sampled(f"{WASMTIME} runs it", "ms", taken["peer"]),
    ]


def _run_ms(arguments: Sequence[str], settings: Mapping[str, str]) -> float:
    """Return how many milliseconds a process takes that prints 42."""
    output, spent_s = run_python(*arguments, settings=settings)
    if "42" not in output:
        raise InternalError(f"a process of the benchmark printed {output[-400:]!r} instead of 42")
    return spent_s * 1e3
