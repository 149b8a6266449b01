"""The benchmark ``sandbox``: fresh sandboxes, from store to drop, one by one, at a steady rate and many at once.

Sandboxes are made as users make them: by `Function.invoke` and `Function.submit` with their defaults, every limit in
force. The peers are wasmtime-py as it comes, and a process.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Final

from tensorwasm.bench.figures import Figure, Report, alternate, sampled
from tensorwasm.bench.inputs import read_guest
from tensorwasm.bench.peers.host import PROCESS, WASMTIME, Loop, process_loop, wasmtime_loop
from tensorwasm.bench.processes import descriptor_count, mapping_count, resident_bytes, run_python
from tensorwasm.bench.restoring import EXPORT, VALUE, measure_first_restore, measure_restores, measure_saves
from tensorwasm.errors import InternalError
from tensorwasm.guest.engine.engine import Engine, EngineConfig
from tensorwasm.guest.engine.module import compile_module
from tensorwasm.guest.sandbox.instance import Instance
from tensorwasm.guest.sandbox.linker import Linker
from tensorwasm.runtime import Function, Invocation, Runtime

IN_FLIGHT: Final = 100
"""Invocations that are submitted before the first of them is waited for."""

RATE: Final = 1000
READINGS: Final = 40
"""How often in a run the process's resources are read, at equal intervals."""

_RESIDENT_BAR_KIB: Final = 128.0
"""Variation of the allocators of Python and wasmtime between readings; 60,000 sandboxes that each leaked eight bytes
would leave four times as much."""

_CHILD: Final = """import json, sys
sys.modules["numba"] = None
from tensorwasm.bench.sandbox import compare_invoke
print(json.dumps(compare_invoke({samples}, {count})))"""


def measure_sandbox(
    choice: str = "auto",
    *,
    seconds: float = 60.0,
    samples: int = 31,
    count: int = 1000,
    instances: int = 10_000,
    sizes_mib: Sequence[int] = (1, 32, 512),
    saved_mib: int = 32,
) -> Report:
    """Measure sandboxes; no device takes part.

    Args:
        choice: the device that the runtime would open.
        seconds: how long sandboxes are made at a steady rate.
        samples: of each figure.
        count: sandboxes in a sample.
        instances: how many live at once.
        sizes_mib: sizes of restored memories, ascending.
        saved_mib: size of a saved memory.
    """
    wasm = read_guest("page")
    with Runtime(device=choice) as runtime:
        function = runtime.load(wasm, "page")
        figures = (
            *_starts(function, wasm, samples, count),
            _without_compiled_code(samples, count),
            *run_beside_busy_thread(function, samples, count),
            *run_at_steady_rate(lambda: _check(function.invoke(EXPORT, (VALUE,))), seconds),
            *keep_alive(wasm, instances),
            *measure_restores(wasm, sizes_mib, samples, count),
            measure_first_restore(wasm, sizes_mib[-1], max(1, samples // 6)),
            measure_saves(wasm, saved_mib, samples),
        )
        return Report("sandbox", "", figures)


def _check(done: Invocation) -> None:
    """Check the result of an invocation."""
    if done.values != (VALUE,):
        raise InternalError(f"the guest returned {done.values}")


def _invoked(function: Function) -> Loop:
    """Return a loop of fresh sandboxes, called on this thread."""

    def loop(count: int) -> float:
        start = time.perf_counter_ns()
        for _ in range(count):
            _check(function.invoke(EXPORT, (VALUE,)))
        return (time.perf_counter_ns() - start) / count / 1000

    return loop


def _submitted(function: Function, in_flight: int) -> Loop:
    """Return a loop of fresh sandboxes on fibers of another thread."""

    def loop(count: int) -> float:
        start = time.perf_counter_ns()
        for _ in range(count // in_flight):
            futures = [function.submit(EXPORT, (VALUE,)) for _ in range(in_flight)]
            for future in futures:
                _check(future.result())
        return (time.perf_counter_ns() - start) / (count // in_flight * in_flight) / 1000

    return loop


def _awaited(function: Function, runner: asyncio.Runner) -> Loop:
    """Return a loop of fresh sandboxes on fibers that begin on an event loop's thread, one after another."""

    async def run(count: int) -> float:
        start = time.perf_counter_ns()
        for _ in range(count):
            _check(await function.invoke_async(EXPORT, (VALUE,)))
        return (time.perf_counter_ns() - start) / count / 1000

    return lambda count: runner.run(run(count))


def _starts(function: Function, wasm: bytes, samples: int, count: int) -> Iterator[Figure]:
    """Yield what a start costs on a thread and on a fiber, beside the peers."""
    ours, many, alone = _invoked(function), _submitted(function, IN_FLIGHT), _submitted(function, 1)
    peer, process = wasmtime_loop(wasm, EXPORT, VALUE), process_loop()
    many(IN_FLIGHT)  # compiles what all later calls use
    with asyncio.Runner() as runner:
        awaited = _awaited(function, runner)
        subjects = {
            "invoke": lambda: ours(count),
            "await": lambda: awaited(count),
            "submit": lambda: many(max(count, IN_FLIGHT)),
            "alone": lambda: alone(max(1, count // 10)),
            WASMTIME: lambda: peer(max(1, count // 5)),
            PROCESS: lambda: process(max(1, count // 50)),
        }
        taken = alternate(subjects, samples)
    for shown, name, than, bar in (
        ("store + instantiate + call + drop, 1 page", "invoke", WASMTIME, 0.15),
        ("the same on a fiber (invoke_async)", "await", WASMTIME, 0.25),
        (f"the same on a fiber of another thread (submit), {IN_FLIGHT} in flight", "submit", WASMTIME, None),
        ("the same on a fiber of another thread (submit), one at a time", "alone", WASMTIME, None),
        ("the same against a process", "invoke", PROCESS, None),
    ):
        yield sampled(shown, "us", taken[name], peer=than, peers=taken[than], bar=bar)
    for name in (WASMTIME, PROCESS):
        yield sampled(name, "us", taken[name])


def compare_invoke(samples: int, count: int) -> dict[str, tuple[float, ...]]:
    """Return microseconds for a sandbox of ours and of wasmtime-py's, in this process."""
    wasm = read_guest("page")
    with Runtime() as runtime:
        ours, peer = _invoked(runtime.load(wasm, "page")), wasmtime_loop(wasm, EXPORT, VALUE)
        return alternate({"invoke": lambda: ours(count), "stock": lambda: peer(max(1, count // 5))}, samples)


def _without_compiled_code(samples: int, count: int) -> Figure:
    """Measure a sandbox in a process that does not find Numba."""
    taken = json.loads(run_python("-c", _CHILD.format(samples=samples, count=count))[0])
    name = "store + instantiate + call + drop, without Numba"
    return sampled(name, "us", taken["invoke"], peer=WASMTIME, peers=taken["stock"])


def run_beside_busy_thread(function: Function, samples: int, count: int) -> tuple[Figure, ...]:
    """Measure the tail of a sandbox's cost beside a thread that wants the interpreter all the time."""
    p50s, p99s = zip(*(_quantiles(function, count) for _ in range(samples)), strict=True)
    stopped: list[None] = []

    def spin() -> None:
        while not stopped:
            pass

    thread = threading.Thread(target=spin, name="busy")
    thread.start()
    try:
        middles, tails = zip(*(_quantiles(function, count) for _ in range(samples)), strict=True)
    finally:
        stopped.append(None)
        thread.join()
    return (
        sampled("p99 beside a thread that never sleeps", "us", tails, peer="its own p50", peers=middles, bar=3.0),
        sampled("p50 beside a thread that never sleeps", "us", middles),
        sampled("p50 without one", "us", p50s),
        sampled("p99 without one", "us", p99s),
    )


def _quantiles(function: Function, count: int) -> tuple[float, float]:
    """Return median and 99th percentile of so many invocations, each timed, in microseconds."""
    taken = []
    for _ in range(count):
        start = time.perf_counter_ns()
        done = function.invoke(EXPORT, (VALUE,))
        taken.append(time.perf_counter_ns() - start)
        _check(done)
    taken.sort()
    return taken[count // 2] / 1000, taken[count * 99 // 100] / 1000


def run_at_steady_rate(start: Callable[[], object], seconds: float) -> tuple[Figure, ...]:
    """Measure the rate at which sandboxes start and end on one core, and how the process's resources grow meanwhile."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        for _ in range(RATE):  # makes whatever is made once
            start()
        gc.collect()
        rate, readings = _run(start, seconds)
    finally:
        os.sched_setaffinity(0, cores)
    fifth = max(1, len(readings) // 5)
    early, late = readings[fifth : 2 * fifth] or readings[:1], readings[-fifth:]
    columns = zip(zip(*early, strict=True), zip(*late, strict=True), strict=True)
    resident, descriptors, mappings = (statistics.median(last) - statistics.median(first) for first, last in columns)
    name, count = f"fresh sandboxes per second, {seconds:g} s", len(readings)
    return (
        Figure(name, "", rate, 0.0, round(rate * seconds), bar=0.999 * RATE, sense="at least"),
        Figure("resident memory gained meanwhile", "KiB", resident / 1024, 0.0, count, bar=_RESIDENT_BAR_KIB),
        Figure("descriptors gained", "", descriptors, 0.0, count, bar=0.0),
        Figure("mappings gained", "", mappings, 0.0, count, bar=0.0),
    )


def _run(start: Callable[[], object], seconds: float) -> tuple[float, list[tuple[int, int, int]]]:
    """Return the rate that was reached, at most `RATE`, and resident bytes, descriptors and mappings over time."""
    count = max(READINGS, round(RATE * seconds))
    readings, began = [_read()], time.perf_counter()
    for number in range(1, count + 1):
        start()
        if number * READINGS // count > (number - 1) * READINGS // count:
            readings.append(_read())
        early_s = began + number / RATE - time.perf_counter()
        if early_s > 0:
            time.sleep(early_s)
    return count / (time.perf_counter() - began), readings


def _read() -> tuple[int, int, int]:
    return resident_bytes(), descriptor_count(), mapping_count()


def keep_alive(wasm: bytes, count: int) -> tuple[Figure, ...]:
    """Measure instances of a module with ``fill`` and ``sum`` that all live at once, each with a page of its own."""
    engine = Engine.shared(EngineConfig(slots=count))
    prepared = Linker(engine).prepare(compile_module(engine, wasm))
    with Instance(prepared) as first:
        first.call("fill", (1,))
    gc.collect()
    with ExitStack() as open_instances:
        before, started = resident_bytes(), time.perf_counter()
        instances = [open_instances.enter_context(Instance(prepared)) for _ in range(count)]
        for number, instance in enumerate(instances):
            instance.call("fill", (number,))
        made_s, each = time.perf_counter() - started, (resident_bytes() - before) / count
        # The guest's ``fill`` writes 1023 words of its page.
        right = sum(instance.call("sum") == [number * 1023] for number, instance in enumerate(instances))
    name = "instances of 64 KiB alive at once that answer right"
    return (
        Figure(name, "", right, 0.0, 1, bar=count, sense="at least"),
        Figure("resident memory of each", "KiB", each / 1024, 0.0, count, bar=100.0),
        Figure("made and filled, each", "us", made_s / count * 1e6, 0.0, count),
    )
