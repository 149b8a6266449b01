"""What a fresh sandbox costs, from its store to its end, against wasmtime-py as it comes and against a process.

Sandboxes are what users get: `Function.invoke` and `Function.submit` with their defaults, every limit in force.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from tensorwasm.bench.endurance import endure
from tensorwasm.bench.examples import read_guest
from tensorwasm.bench.figures import Figure, Report
from tensorwasm.bench.keeping import restoring, restoring_first, saving
from tensorwasm.bench.living import keep_alive
from tensorwasm.bench.peers import stock
from tensorwasm.bench.rounds import alternate, compared
from tensorwasm.errors import InternalError
from tensorwasm.runtime import Function, Invocation, Runtime

EXPORT: Final = "touch"
VALUE: Final = 7
SAMPLES: Final = 31
SECONDS: Final = 60.0
INSTANCES: Final = 10_000
FLIGHT: Final = 100
"""Invocations that are submitted before the first of them is waited for."""

_BAR: Final = 0.15
_FIBER_BAR: Final = 0.25
_TAIL_BAR: Final = 3.0


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured.

    Attributes:
        samples: of each figure.
        count: sandboxes in a sample.
        seconds: how long sandboxes are made at a steady rate.
        instances: how many live at once.
        sizes_mib: of memories that are restored, ascending.
        saved_mib: of a memory that is saved.
    """

    samples: int = SAMPLES
    count: int = 1000
    seconds: float = SECONDS
    instances: int = INSTANCES
    sizes_mib: tuple[int, ...] = (1, 32, 512)
    saved_mib: int = 32


@dataclass(frozen=True, slots=True)
class Subject:
    """What is measured.

    Attributes:
        runtime: where.
        wasm: the module: a memory of one page, and no imports.
        function: it, loaded.
        scale: how much.
    """

    runtime: Runtime
    wasm: bytes
    function: Function
    scale: Scale


def measure_sandbox(choice: str = "auto", *, seconds: float | None = None, scale: Scale | None = None) -> Report:
    """Measure sandboxes; no device takes part.

    Args:
        choice: of the device that the runtime would open.
        seconds: how long sandboxes are made at a steady rate, instead of the scale's.
        scale: how much is measured.
    """
    scale = scale or Scale(seconds=SECONDS if seconds is None else seconds)
    wasm = read_guest("page")
    with Runtime(device=choice) as runtime:
        subject = Subject(runtime, wasm, runtime.load(wasm, "page"), scale)
        return Report("sandbox", "", tuple(figure for rows in ROWS for figure in rows(subject)))


def _invoked(function: Function) -> stock.Loop:
    """Return a loop of fresh sandboxes, called on this thread."""

    def loop(count: int) -> float:
        start = time.perf_counter_ns()
        for _ in range(count):
            _check(function.invoke(EXPORT, (VALUE,)))
        return (time.perf_counter_ns() - start) / count / 1000

    return loop


def _submitted(function: Function, flight: int) -> stock.Loop:
    """Return a loop of fresh sandboxes on fibers, so many in flight."""

    def loop(count: int) -> float:
        start = time.perf_counter_ns()
        for _ in range(count // flight):
            futures: list[Future[Invocation]] = [function.submit(EXPORT, (VALUE,)) for _ in range(flight)]
            for future in futures:
                _check(future.result())
        return (time.perf_counter_ns() - start) / (count // flight * flight) / 1000

    return loop


def _awaited(function: Function, runner: asyncio.Runner) -> stock.Loop:
    """Return a loop of fresh sandboxes on fibers that begin on an event loop's thread, one after another."""

    async def run(count: int) -> float:
        start = time.perf_counter_ns()
        for _ in range(count):
            _check(await function.invoke_async(EXPORT, (VALUE,)))
        return (time.perf_counter_ns() - start) / count / 1000

    return lambda count: runner.run(run(count))


def _check(done: Invocation) -> None:
    if done.values != (VALUE,):
        raise InternalError(f"the guest answered {done.values}")


def _starts(subject: Subject) -> Iterator[Figure]:
    """Yield what a start costs on a thread and on a fiber, beside the peers."""
    count, function = subject.scale.count, subject.function
    ours, flight, alone = _invoked(function), _submitted(function, FLIGHT), _submitted(function, 1)
    peer, process = stock.stock_wasmtime(subject.wasm, EXPORT, VALUE), stock.plain_process()
    flight(FLIGHT)  # from now on there is compiled code
    with asyncio.Runner() as runner:
        awaited = _awaited(function, runner)
        taken = alternate(
            {
                "invoke": lambda: ours(count),
                "await": lambda: awaited(count),
                "submit": lambda: flight(max(count, FLIGHT)),
                "alone": lambda: alone(max(1, count // 10)),
                "stock": lambda: peer(max(1, count // 5)),
                "process": lambda: process(max(1, count // 50)),
            },
            subject.scale.samples,
        )

    def against(shown: str, name: str, peer: str, bar: float | None = None, than: str = "stock") -> Figure:
        return compared(shown, "us", taken[name], peer=peer, peers=taken[than], bar=bar)

    yield against("store + instantiate + call + drop, 1 page", "invoke", stock.WASMTIME, _BAR)
    yield against("the same on a fiber (invoke_async)", "await", stock.WASMTIME, _FIBER_BAR)
    yield against(f"the same on a fiber of another thread (submit), {FLIGHT} in flight", "submit", stock.WASMTIME)
    yield against("the same on a fiber of another thread (submit), one at a time", "alone", stock.WASMTIME)
    yield against("the same against a process", "invoke", stock.PROCESS, than="process")
    yield compared(stock.WASMTIME, "us", taken["stock"])
    yield compared(stock.PROCESS, "us", taken["process"])


def compare_invoke(samples: int, count: int) -> dict[str, tuple[float, ...]]:
    """Return microseconds for a sandbox, and for wasmtime-py's, in this process as it is."""
    wasm = read_guest("page")
    with Runtime() as runtime:
        ours, peer = _invoked(runtime.load(wasm, "page")), stock.stock_wasmtime(wasm, EXPORT, VALUE)
        return alternate({"invoke": lambda: ours(count), "stock": lambda: peer(max(1, count // 5))}, samples)


_CHILD: Final = """import json, sys
sys.modules["numba"] = None
from tensorwasm.bench.sandbox import compare_invoke
print(json.dumps(compare_invoke({samples}, {count})))"""


def _without_compiled_code(subject: Subject) -> Iterator[Figure]:
    """Yield the first figure as it is where Numba is not installed: measured in a process that does not find it."""
    code = _CHILD.format(samples=subject.scale.samples, count=subject.scale.count)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)  # noqa: S603 - ours
    if run.returncode:
        raise InternalError(f"a process without Numba failed: {run.stderr[-400:]}")
    taken = json.loads(run.stdout)
    yield compared(
        "store + instantiate + call + drop, without Numba",
        "us",
        tuple(taken["invoke"]),
        peer=stock.WASMTIME,
        peers=tuple(taken["stock"]),
    )


def _beside_a_busy_thread(subject: Subject) -> Iterator[Figure]:
    """Yield the tail of what a sandbox costs beside a thread that wants the interpreter all the time."""
    count, samples = subject.scale.count, subject.scale.samples
    quiet = [_quantiles(subject.function, count) for _ in range(samples)]
    with _busy_thread():
        beside = [_quantiles(subject.function, count) for _ in range(samples)]
    middles, tails = ([pair[index] for pair in beside] for index in (0, 1))
    yield compared(
        "p99 beside a thread that never sleeps",
        "us",
        tuple(tails),
        peer="its own p50",
        peers=tuple(middles),
        bar=_TAIL_BAR,
    )
    yield compared("p50 beside a thread that never sleeps", "us", tuple(middles))
    yield compared("p50 without one", "us", tuple(pair[0] for pair in quiet))
    yield compared("p99 without one", "us", tuple(pair[1] for pair in quiet))


def _quantiles(function: Function, count: int) -> tuple[float, float]:
    """Return median and 99th percentile of a count of invocations, each timed, in microseconds."""
    taken = []
    for _ in range(count):
        start = time.perf_counter_ns()
        done = function.invoke(EXPORT, (VALUE,))
        taken.append(time.perf_counter_ns() - start)
        _check(done)
    taken.sort()
    return taken[count // 2] / 1000, taken[min(count - 1, count * 99 // 100)] / 1000


@contextmanager
def _busy_thread() -> Iterator[None]:
    stopped: list[None] = []

    def spin() -> None:
        while not stopped:
            pass

    thread = threading.Thread(target=spin, name="busy")
    thread.start()
    try:
        yield
    finally:
        stopped.append(None)
        thread.join()


def _endurance(subject: Subject) -> Iterator[Figure]:
    return endure(lambda: _check(subject.function.invoke(EXPORT, (VALUE,))), subject.scale.seconds)


def _living(subject: Subject) -> Iterator[Figure]:
    return keep_alive(subject.wasm, subject.scale.instances)


def _restoring(subject: Subject) -> Iterator[Figure]:
    scale = subject.scale
    yield from restoring(subject.wasm, scale.sizes_mib, scale.samples, scale.count)
    yield from restoring_first(subject.wasm, scale.sizes_mib[-1], max(1, scale.samples // 6))


def _saving(subject: Subject) -> Iterator[Figure]:
    return saving(subject.wasm, subject.scale.saved_mib, subject.scale.samples)


ROWS: Final[Sequence[Callable[[Subject], Iterator[Figure]]]] = (
    _starts,
    _without_compiled_code,
    _beside_a_busy_thread,
    _endurance,
    _living,
    _restoring,
    _saving,
)
"""What makes the rows, in the order of the report."""
