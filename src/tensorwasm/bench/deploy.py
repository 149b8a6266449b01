"""What deploying a module costs: one that was seen before, in a process that never saw it, and one that is new.

Each sample is a process of its own, which has imported everything and made its `Runtime`. Modules and compiled code
are in a folder that is removed afterwards.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tensorwasm.bench.figures import Figure, Report
from tensorwasm.bench.modules import make_module
from tensorwasm.bench.rounds import alternate, compared
from tensorwasm.errors import InternalError

CODE_BYTES: Final = 1_000_000
SAMPLES: Final = 15
PEER: Final = "wasmtime-py"

_BAR_MS: Final = 5.0
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
_PEER: Final = """
import json, sys, time, wasmtime
engine = wasmtime.Engine()
start = time.perf_counter_ns()
with open(sys.argv[1], "rb") as file:
    wasmtime.Module(engine, file.read())
print(json.dumps([(time.perf_counter_ns() - start) / 1e6, 1]))
"""


def measure_deploy(_choice: str = "auto", *, samples: int = SAMPLES, code_bytes: int = CODE_BYTES) -> Report:
    """Measure deploys; no device takes part.

    Args:
        samples: processes of each kind.
        code_bytes: of the modules.
    """
    with tempfile.TemporaryDirectory(prefix="tensorwasm-bench-") as folder:
        return Report("deploy", "", _figures(Path(folder), samples, code_bytes))


def _figures(folder: Path, samples: int, code_bytes: int) -> tuple[Figure, ...]:
    first, second = (folder / f"{seed}.wasm" for seed in (1, 2))
    for seed, path in enumerate((first, second)):
        path.write_bytes(make_module(code_bytes, seed))
    kept = {"TENSOR_WASM_CACHE": str(folder / "kept"), "TENSOR_WASM_STATE_DIR": str(folder / "state")}
    _run(_DEPLOY, kept | {"TENSOR_WASM_CODE_CACHE": "1024"}, first, second)
    further: list[float] = []

    def seen() -> float:
        one, two, compiled = _run(_DEPLOY, kept | {"TENSOR_WASM_CODE_CACHE": "1024"}, first, second)
        if compiled:
            raise InternalError("what was seen before was compiled again")
        further.append(two)
        return one

    taken = alternate(
        {
            "seen": seen,
            "new": lambda: _run(_DEPLOY, kept | {"TENSOR_WASM_CODE_CACHE": "0"}, first)[0],
            "peer": lambda: _run(_PEER, {}, first)[0],
        },
        samples,
    )
    size = f"{code_bytes / 1e6:g} MB of code"
    return (
        compared(f"deploy in a fresh process, seen before, {size}", "ms", taken["seen"], bar=_BAR_MS),
        compared("the next one there, seen before", "ms", tuple(further[1:]), bar=_BAR_MS),
        compared("deploy of what is new, nothing kept", "ms", taken["new"], peer=PEER, peers=taken["peer"]),
        compared(f"{PEER} compiles it", "ms", taken["peer"]),
    )


def _run(script: str, settings: dict[str, str], *paths: Path) -> list[float]:
    """Return what a process has to say of some modules."""
    done = subprocess.run(  # noqa: S603 - our own interpreter and script, without a shell
        [sys.executable, "-P", "-c", script, *map(str, paths)],
        env=os.environ | settings,
        stdout=subprocess.PIPE,
        check=False,
    )
    if done.returncode:
        raise InternalError(f"a process of the benchmark exited with code {done.returncode}")
    answer: list[float] = json.loads(done.stdout)
    return answer
