"""The benchmark ``sandbox``: fresh sandboxes, from store to drop, one by one, at a steady rate and many at once.

Sandboxes are made as users make them: by `Function.invoke` and `Function.submit` with their defaults, every limit in
force. The peers are wasmtime-py as it comes, and a process.

Instances are saved and restored too, with memories of several sizes. The memories are dense: half of every page cannot
be compressed, the other half is the same in all of them.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Final

from tensorwasm.bench.figures import Figure, Report, alternate, loop_us, sampled, time_once
from tensorwasm.bench.harness import (
    descriptor_count,
    mapping_count,
    read_guest,
    resident_bytes,
    run_python,
    scratch_folder,
)
from tensorwasm.bench.peers.host import (
    PROCESS,
    WASMTIME,
    ZSTANDARD,
    Loop,
    process_loop,
    wasmtime_loop,
    zstandard_to_disk,
)
from tensorwasm.errors import InternalError
from tensorwasm.guest.engine.engine import Engine, EngineConfig
from tensorwasm.guest.engine.module import compile_module
from tensorwasm.guest.sandbox.instance import Instance
from tensorwasm.guest.sandbox.linker import Linker
from tensorwasm.runtime import Function, Invocation, Runtime
from tensorwasm.runtime.snapshots.snapshot import Snapshot, make_snapshot
from tensorwasm.saved import PAGE_BYTES, SavedMemory, SavedRun
from tensorwasm.values import MIB, WASM_PAGE_BYTES, Limits
from tensorwasm.wasm.edit import set_memory_minimum
from tensorwasm.wasm.module import decode, encode

EXPORT: Final = "touch"
"""An export of the guest that returns its argument."""

VALUE: Final = 7
_PAGE: Final = "a fresh sandbox of 1 page"
_FIRST: Final = """
import json, sys, time
from tensorwasm.runtime import Runtime
from tensorwasm.values import Limits
module, path, size_bytes, export, value = json.loads(sys.argv[1])
with Runtime("emulator", limits=Limits(memory_bytes=size_bytes)) as runtime:
    function = runtime.load(module)
    start = time.perf_counter()
    done = runtime.invoke(path, function, export, (value,))
    print(json.dumps([time.perf_counter() - start, done.values]))
"""


def dense(size_bytes: int) -> bytes:
    """Return contents of a memory: half of each page random, half the same."""
    half = PAGE_BYTES // 2
    noise = memoryview(os.urandom(size_bytes // 2))
    return b"".join(bytes(noise[at : at + half]) + b"\x5a" * half for at in range(0, size_bytes // 2, half))


def _resized(wasm: bytes, size_bytes: int) -> bytes:
    return encode(set_memory_minimum(decode(wasm), {0: size_bytes // WASM_PAGE_BYTES}))


def _filled(function: Function, data: bytes) -> Snapshot:
    """Return a snapshot of an instance whose memory has these contents."""
    with function.open() as live, live.captured() as saved:
        return make_snapshot(replace(saved, memories=(SavedMemory(len(data), (SavedRun(0, data),)),)))


def measure_restores(wasm: bytes, sizes_mib: Sequence[int], samples: int, count: int) -> Iterator[Figure]:
    """Yield what restoring, one call and dropping cost at ascending sizes, against a fresh sandbox of one page."""
    with Runtime("emulator", limits=Limits(memory_bytes=2 * max(sizes_mib) * MIB)) as runtime:
        page = runtime.load(wasm, "page")
        functions = {size: runtime.load(_resized(wasm, size * MIB), f"{size} MiB") for size in sizes_mib}
        snapshots = {size: _filled(function, dense(size * MIB)) for size, function in functions.items()}
        smallest, largest = sizes_mib[0], sizes_mib[-1]

        def restored(snapshot: Snapshot, function: Function) -> None:
            if runtime.invoke(snapshot, function, EXPORT, (VALUE,)).values != (VALUE,):
                raise InternalError("the restored guest returned a wrong result")

        def opened(snapshot: Snapshot, function: Function) -> None:
            with runtime.restore(snapshot, function) as live:
                live.call(EXPORT, (VALUE,))

        subjects = {_PAGE: partial(loop_us, lambda: page.invoke(EXPORT, (VALUE,)), count)}
        for size in sizes_mib:
            subjects[f"{size}"] = partial(loop_us, partial(restored, snapshots[size], functions[size]), count)
        live = partial(opened, snapshots[largest], functions[largest])
        taken = alternate({**subjects, "live": partial(loop_us, live, max(1, count // 5))}, samples)
        for snapshot in snapshots.values():
            snapshot.close()
    fresh, last = taken[_PAGE], taken[f"{largest}"]
    for size in sizes_mib:
        name = f"restore + call + drop, {size} MiB dense"
        yield sampled(name, "us", taken[f"{size}"], peer=_PAGE, peers=fresh, bar=5.0)
    yield sampled("the same, largest", "us", last, peer="the smallest", peers=taken[f"{smallest}"], bar=1.5)
    name = f"restore + call + close of a live instance, {largest} MiB"
    yield sampled(name, "us", taken["live"], peer=_PAGE, peers=fresh)


def measure_first_restore(wasm: bytes, size_mib: int, samples: int) -> Figure:
    """Measure how fast a file is restored in a new process: verified, decompressed, mapped, and called."""
    with scratch_folder() as folder:
        module, path = folder / "guest.wasm", folder / "guest.tws"
        module.write_bytes(_resized(wasm, size_mib * MIB))
        with Runtime("emulator", limits=Limits(memory_bytes=size_mib * MIB)) as runtime:
            function = runtime.load(module)
            with _filled(function, dense(size_mib * MIB)) as snapshot, runtime.restore(snapshot, function) as live:
                runtime.snapshot(live, path)
        order = json.dumps([str(module), str(path), size_mib * MIB, EXPORT, VALUE])
        taken = []
        for _ in range(samples):
            seconds, values = json.loads(run_python("-c", _FIRST, order)[0])
            if values != [VALUE]:
                raise InternalError("the restored guest returned a wrong result")
            taken.append(size_mib * MIB / seconds / 1e9)
    return sampled(f"first restore of {size_mib} MiB that compress to a half", "GB/s", taken, bar=0.5, at_least=True)


def measure_saves(wasm: bytes, size_mib: int, samples: int) -> Figure:
    """Measure saving an instance, signed and on the disk, against compressing and writing the same bytes."""
    data = dense(size_mib * MIB)
    with scratch_folder() as folder, Runtime("emulator", limits=Limits(memory_bytes=size_mib * MIB)) as runtime:
        function = runtime.load(_resized(wasm, size_mib * MIB))
        with _filled(function, data) as snapshot, runtime.restore(snapshot, function) as live:
            subjects = {
                "ours": lambda: time_once(lambda: runtime.snapshot(live, folder / "ours")) * 1e3,
                "peer": zstandard_to_disk(data, folder / "peer"),
            }
            taken = alternate(subjects, samples)
    name = f"save of {size_mib} MiB that compress to a half"
    return sampled(name, "ms", taken["ours"], peer=ZSTANDARD, peers=taken["peer"], bar=1.5)


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
    return partial(loop_us, lambda: _check(function.invoke(EXPORT, (VALUE,))))


def _submitted(function: Function, in_flight: int) -> Loop:
    """Return a loop of fresh sandboxes on fibers of another thread."""

    def submit() -> None:
        for future in [function.submit(EXPORT, (VALUE,)) for _ in range(in_flight)]:
            _check(future.result())

    return lambda count: loop_us(submit, count // in_flight) / in_flight


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

    with ThreadPoolExecutor(1) as pool:
        pool.submit(spin)
        try:
            middles, tails = zip(*(_quantiles(function, count) for _ in range(samples)), strict=True)
        finally:
            stopped.append(None)
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
    return (
        Figure("instances of 64 KiB alive at once that answer right", "", right, 0.0, 1, bar=count, sense="at least"),
        Figure("resident memory of each", "KiB", each / 1024, 0.0, count, bar=100.0),
        Figure("made and filled, each", "us", made_s / count * 1e6, 0.0, count),
    )
