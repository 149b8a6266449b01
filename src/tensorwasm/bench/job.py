"""The main job on a device: a guest that launches a kernel and reads back, as `tensor-wasm run` does it."""

from __future__ import annotations

import time
from functools import partial
from typing import Final

from tensorwasm.bench.examples import read_example
from tensorwasm.bench.figures import Figure, Report, measure, summarise
from tensorwasm.errors import InternalError
from tensorwasm.runtime import Function, Runtime

SAMPLES: Final = 30
GUESTS: Final = ("vector_add", "matmul", "wmma")


def measure_job(choice: str = "auto") -> Report:
    """Measure a first run, compilation and device start included, and later runs, each in a fresh sandbox."""
    figures = []
    with Runtime(device=choice) as runtime:
        for name in GUESTS:
            wasm = read_example(f"{name}/{name}.wasm")
            start = time.perf_counter()
            function = runtime.load(wasm, name=name)
            _run(function)
            first_s = time.perf_counter() - start
            figures.append(Figure(f"{name}.wasm, first run", "s", first_s, 0.0, 1))
            value, spread, samples = summarise(measure(partial(_run, function), SAMPLES))
            figures.append(Figure(f"{name}.wasm, later runs", "s", value, spread, samples))
        return Report("job", runtime.device.name, tuple(figures))


def _run(function: Function) -> None:
    outcome = function.invoke(grants={"cuda"})
    if outcome.exit_code != 0 or b"verified" not in outcome.stdout:
        raise InternalError(f"{function.name}: not verified: {outcome.stdout[-200:]!r}")
