"""The benchmark ``offload-overhead``: whole programs that offloading cannot help, beside wasmtime alone.

Each program takes 10 ms or more. Its loops are declined, or are too short to run elsewhere. A sample is a pair of
calls, one of each kind, in turns. Calls wait for the module with guards and for plans, so that these are measured.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from tensorwasm.bench.figures import Figure, Report, summarise
from tensorwasm.bench.offload.measuring import LIMITS, opened, time_pair
from tensorwasm.bench.offload.programs import BenchProgram, read_programs
from tensorwasm.bench.peers.host import WASMTIME, WasmtimeGuest
from tensorwasm.runtime import Runtime

if TYPE_CHECKING:
    from tensorwasm.guest.sandbox.instance import Instance

SIZES: Final[Mapping[str, tuple[int, ...]]] = {
    "adi": (100, 200),
    "cholesky": (600,),
    "durbin": (4000,),
    "floyd-warshall": (300,),
    "gramschmidt": (200, 260),
    "jacobi-1d": (4000, 2000),
    "k-means": (4, 40_000, 16, 8),
    "mandelbrot": (400, 300, 200),
    "nussinov": (500,),
    "seidel-2d": (20, 400),
    "trisolv": (4000,),
}
"""Programs and sizes with which wasmtime takes 10 ms or more, and all cores do not help."""

PAIRS: Final = 30
WARM_PAIRS: Final = 6
"""Pairs before those that count: plans are made, and regions are measured here and there."""
_BAR: Final = 0.98


def measure_overhead(
    choice: str = "auto", *, sizes: Mapping[str, tuple[int, ...]] = SIZES, count: int = PAIRS
) -> Report:
    """Measure programs with their loops offloaded to a GPU, or to all cores where there is none or for ``cpu``."""
    with Runtime("emulator" if choice == "cpu" else choice, limits=LIMITS) as runtime:
        on_device = choice != "cpu" and runtime.device.kind == "cuda"
        load = partial(runtime.load, offload="gpu" if on_device else "cpu", offload_waits=True)
        figures: list[Figure] = []
        for name, arguments in sizes.items():
            program = replace(read_programs("small", [name])[0], sizes=arguments)
            with opened(load(program.wasm), program) as sandbox, closing(WasmtimeGuest(program.wasm)) as guest:
                pairs = list(_pairs(program, guest, sandbox, WARM_PAIRS + count))[WARM_PAIRS:]
            figures.append(_figure(name, pairs))
        return Report("offload-overhead", runtime.device.name if on_device else "all cores", tuple(figures))


def _pairs(program: BenchProgram, guest: WasmtimeGuest, sandbox: Instance, count: int) -> Iterator[tuple[float, float]]:
    """Yield seconds in wasmtime and here; every other time in the other order."""
    for number in range(count):
        calls = (guest.call, sandbox.call)
        times = [time_pair(call, program.sizes) for call in (calls if number % 2 else calls[::-1])]
        yield (times[0], times[1]) if number % 2 else (times[1], times[0])


def _figure(name: str, pairs: list[tuple[float, float]]) -> Figure:
    median, spread, count = summarise([here_s for _, here_s in pairs])
    ratio = statistics.median([alone_s / here_s for alone_s, here_s in pairs])
    return Figure(
        *(name, "s", median, spread, count),
        peer=f"{WASMTIME}'s speed",
        ratio=ratio,
        bar=_BAR,
        judged="ratio",
        sense="at least",
    )
