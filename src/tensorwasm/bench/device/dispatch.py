"""The benchmarks ``job``, ``dispatch`` and ``memory``: runs of examples, small launches, and kinds of guest memory.

The guest of ``dispatch`` and ``memory`` times loops over single functions of the ABI. On hardware it takes turns with a
loop in C, which is given memory that a C program would allocate.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

from tensorwasm.bench.figures import Figure, MissingPeer, Report, alternate, loop_us, measure, sampled, summarise
from tensorwasm.bench.harness import read_example, read_guest
from tensorwasm.bench.peers.cuda import ELEMENTS, PEERS, RAW, RawPeer
from tensorwasm.bench.peers.host import wasmtime_program
from tensorwasm.errors import InternalError
from tensorwasm.gpu.device.limits import STAGE_SLOT_BYTES
from tensorwasm.runtime import Function, Runtime
from tensorwasm.values import MIB, Limits, MemoryKind

REPLAYED: Final = 100
"""Launches in a graph."""

_SAMPLES: Final = 31
_PER_ELEMENT_BYTES: Final = 12
_LOOPS: Final = {"raw_submit": "submit only", "raw_complete": "to completion", "raw_launch_sync": "+ sync"}

Sample = Callable[[], float]


def measure_job(choice: str = "auto") -> Report:
    """Measure a first run, compilation and device start included, and later runs, each in a fresh sandbox."""
    figures = []
    with Runtime(device=choice) as runtime:
        for name in ("vector_add", "matmul", "wmma"):
            wasm = read_example(f"{name}/{name}.wasm")
            start = time.perf_counter()
            function = runtime.load(wasm, name=name)
            _run_example(function)
            figures.append(Figure(f"{name}.wasm, first run", "s", time.perf_counter() - start, 0.0, 1))
            figures.append(sampled(f"{name}.wasm, later runs", "s", measure(partial(_run_example, function), 30)))
        device = runtime.device.name
    return Report("job", device, (*figures, *_vector_add(choice)))


def _vector_add(choice: str) -> Iterator[Figure]:
    """Measure what compilers make, WASI and libc included: a fresh guarded sandbox with a small kernel."""
    wasm = read_example("vector_add/vector_add.wasm")
    with Runtime(device=choice, isolation="guarded") as runtime:
        function, real = runtime.load(wasm, name="vector_add"), runtime.device.kind == "cuda"
        for _ in range(3):
            _run_example(function)
        runs = measure(partial(_run_example, function), 300 if real else 10)
    name = "vector_add.wasm of 65,536 floats, in a fresh guarded sandbox"
    yield sampled(name, "ms", [1000 * each for each in runs], bar=0.6 if real else None)
    alone = [1000 * each for each in measure(wasmtime_program(wasm), 300 if real else 10)]
    yield sampled("its guest in wasmtime-py alone, whose calls of the GPU do nothing", "ms", alone)


def _run_example(function: Function) -> None:
    outcome = function.invoke(grants={"cuda"})
    if outcome.exit_code != 0 or b"verified" not in outcome.stdout:
        raise InternalError(f"{function.name}: not verified: {outcome.stdout[-200:]!r}")


@dataclass(frozen=True, slots=True)
class DeviceBench:
    """A device, the guests on it, and the loop in C beside them.

    Attributes:
        runtime: on the device.
        dispatch: the guest that times itself.
        sandbox: the guest of one small kernel.
        kernel: ordinal of the device, PTX and entry, which all peers launch.
        raw: the loop in C, None if it is missing.
        peer: its name, and why it is missing.
    """

    runtime: Runtime
    dispatch: Function
    sandbox: Function
    kernel: tuple[int, bytes, str]
    raw: RawPeer | None
    peer: str

    @property
    def real(self) -> bool:
        """Whether this is hardware, whose figures have bars."""
        return self.runtime.device.kind == "cuda"

    def ns(self, export: str, *args: int, memory_kind: MemoryKind | None = None) -> float:
        """Return the time that the guest measured for the whole of its loop."""
        return call_guest(self.dispatch, export, *args, memory_kind=memory_kind)

    def against_raw(
        self,
        name: str,
        unit: str,
        samples: Sequence[float],
        peers: Sequence[float] | None,
        bar: float | None,
        *,
        at_least: bool = False,
    ) -> Figure:
        """Return a figure against the loop in C; only hardware has the bar."""
        bar = bar if self.real else None
        return sampled(name, unit, samples, peer=self.peer, peers=peers or (), bar=bar, at_least=at_least)


@contextmanager
def open_bench(choice: str) -> Iterator[DeviceBench]:
    """Open a device and load the guests."""
    with ExitStack() as stack:
        runtime = stack.enter_context(Runtime(device=choice, limits=Limits(memory_bytes=256 * MIB, wall_s=120.0)))
        dispatch, sandbox = (runtime.load(read_guest(name), name=name) for name in ("dispatch", "sandbox"))
        kernel = runtime.device.ordinal, read_example("vector_add/vector_add.sm_80.ptx"), "vector_add"
        raw, peer = None, f"{RAW} (the emulator has no driver)"
        if runtime.device.kind == "cuda":
            try:
                raw, peer = stack.enter_context(closing(RawPeer(*kernel))), RAW
            except MissingPeer as missing:
                peer = f"{RAW} ({missing})"
        yield DeviceBench(runtime, dispatch, sandbox, kernel, raw, peer)


def call_guest(function: Function, export: str, *args: int, memory_kind: MemoryKind | None = None) -> int:
    """Return the result of an export."""
    (value,) = function.invoke(export, args, grants={"cuda"}, memory_kind=memory_kind).values
    if not isinstance(value, int) or value < 0:
        raise InternalError(f"{function.name}.{export}{args} returned {value}")
    return value


def measure_dispatch(choice: str = "auto") -> Report:
    """Measure launches of a small kernel; on the emulator a few of each, without peers and bars."""
    with open_bench(choice) as bench:
        count, samples = (2000, _SAMPLES) if bench.real else (20, 5)
        device = bench.runtime.device.name
        return Report("dispatch", device, (*_launches(bench, count, samples), *_sandboxes(bench, count, samples)))


def _launches(bench: DeviceBench, count: int, samples: int) -> Iterator[Figure]:
    replays = max(1, count // REPLAYED)
    subjects: dict[str, Sample] = {
        "submit": lambda: bench.ns("submit", count) / count,
        "sync": lambda: bench.ns("launch_sync", count) / count,
        "replay": lambda: bench.ns("replay", REPLAYED, replays) / (replays * REPLAYED),
    }
    if peer := bench.raw:
        launch = peer.launch([peer.device_memory(ELEMENTS * 4) for _ in range(3)], ELEMENTS)
        subjects |= {loop: partial(peer.launches_ns, loop, launch, count) for loop in _LOOPS}
    with ExitStack() as open_peers:
        if bench.real:
            subjects |= _python_loops(bench, open_peers, count)
        taken = alternate(subjects, samples)
    for name, subject, loop, bar in (
        ("guest launch, submit only", "submit", "raw_submit", 1.10),
        ("guest launch + sync", "sync", "raw_launch_sync", 1.15),
        (f"graph of {REPLAYED} launches replayed by the guest, per launch", "replay", "raw_complete", 0.5),
    ):
        yield bench.against_raw(name, "ns", taken[subject], taken.get(loop), bar)
    for loop, shown in _LOOPS.items():
        if loop in taken:
            yield sampled(f"{RAW}, launch {shown}", "ns", taken[loop])
    for name, loop in itertools.product(PEERS, ("raw_submit", "raw_launch_sync")):
        subject = f"{name} from Python, launch {_LOOPS[loop]}"
        if subject in taken:
            yield bench.against_raw(subject, "ns", taken[subject], taken.get(loop), None)


def _python_loops(bench: DeviceBench, open_peers: ExitStack, count: int) -> dict[str, Sample]:
    subjects: dict[str, Sample] = {}
    for name, peer in PEERS.items():
        try:
            submit, launch_sync = open_peers.enter_context(peer(*bench.kernel))
        except MissingPeer as missing:
            print(f"{name} is not measured: {missing}")
            continue
        subjects[f"{name} from Python, launch submit only"] = partial(submit, count)
        subjects[f"{name} from Python, launch + sync"] = partial(launch_sync, count)
    return subjects


def _sandboxes(bench: DeviceBench, count: int, samples: int) -> Iterator[Figure]:
    def fresh(export: str) -> float:
        call = partial(bench.sandbox.invoke, export, grants={"cuda"}, memory_kind="staged")
        return loop_us(call, max(3, count // 20))

    if call_guest(bench.sandbox, "once", memory_kind="staged") != 0:
        yield Figure("fresh sandbox + one small kernel: WRONG RESULT", "us", 0.0, 0.0, 0, bar=0.0, sense="at least")
        return
    subjects: dict[str, Sample] = {"once": partial(fresh, "once"), "nothing": partial(fresh, "nothing")}
    if peer := bench.raw:
        small = peer.launch([peer.device_memory(4096) for _ in range(3)], 1024)
        subjects["raw"] = lambda: peer.launches_ns("raw_launch_sync", small, count) / 1000
    taken = alternate(subjects, samples)
    name, bar = "fresh sandbox + one small kernel on 3 windows of 4 KiB (staged)", 4.0 if bench.real else None
    yield sampled(name, "us", taken["once"], peer=f"{RAW}, launch + sync", peers=taken.get("raw", ()), bar=bar)
    yield sampled("fresh sandbox without a kernel", "us", taken["nothing"])


def measure_memory(choice: str = "auto") -> Report:
    """Measure copies, streaming kernels and the kinds of memory; on the emulator small, without peers and bars."""
    with open_bench(choice) as bench:
        figures = (*_copies(bench), *_streaming(bench), *_kinds(bench), *_crossing(bench))
        return Report("memory", bench.runtime.device.name, figures)


def _copies(bench: DeviceBench) -> Iterator[Figure]:
    size_bytes, count = (64 * MIB, 5) if bench.real else (1 << 16, 2)
    peer = bench.raw
    ends = (peer.host_memory(size_bytes), peer.device_memory(size_bytes)) if peer else (0, 0)
    for way, shown in (("in", "host to device"), ("out", "device to host")):
        name = f"guest memcpy {shown}, {size_bytes >> 20} MiB from pinned linear memory"
        guest = partial(bench.ns, f"copy_{way}", size_bytes, count)
        raw = partial(peer.copies_ns, f"raw_copy_{way}", *ends, size_bytes, count) if peer else None
        yield _speed(bench, name, size_bytes, count, guest, raw, 0.95)


def _streaming(bench: DeviceBench) -> Iterator[Figure]:
    elements, count = (16 * MIB, 5) if bench.real else (1 << 12, 2)
    peer, raw = bench.raw, None
    rows: tuple[tuple[str, str, MemoryKind, float], ...] = (
        ("streaming kernel over linear memory (pinned)", "stream_windows", "pinned", 0.95),
        ("streaming kernel over device buffers", "stream_buffers", "auto", 0.98),
    )
    for name, export, kind, bar in rows:
        guest = partial(bench.ns, export, elements, count, memory_kind=kind)
        if peer is not None:
            allocate = peer.host_memory if kind == "pinned" else peer.device_memory
            launch = peer.launch([allocate(elements * 4) for _ in range(3)], elements)
            raw = partial(peer.launches_ns, "raw_launch_sync", launch, count)
        yield _speed(bench, name, elements * _PER_ELEMENT_BYTES, count, guest, raw, bar)


def _speed(
    bench: DeviceBench, name: str, size_bytes: int, count: int, guest: Sample, raw: Sample | None, bar: float
) -> Figure:
    """Measure in GB/s how fast so many bytes are moved.

    ``guest`` returns nanoseconds for moving them ``count`` times, ``raw`` for once; it is None if the peer is missing.
    """
    subjects: dict[str, Sample] = {"guest": lambda: size_bytes * count / guest()}
    if raw is not None:
        subjects["raw"] = lambda: size_bytes / raw()
    taken = alternate(subjects, _SAMPLES if bench.real else 3)
    return bench.against_raw(name, "GB/s", taken["guest"], taken.get("raw"), bar, at_least=True)


def _kinds(bench: DeviceBench) -> Iterator[Figure]:
    """Yield the first and the later launches over windows of several sizes: where the kinds cross over."""
    sizes = (12 << 10, 48 << 10, 192 << 10, 768 << 10, 12 * MIB, 96 * MIB) if bench.real else (12 << 10,)
    kinds: tuple[MemoryKind, ...] = ("staged", "pinned", "managed", "vmm")
    for size_bytes, kind in itertools.product(sizes, kinds):
        if kind == "staged" and size_bytes > STAGE_SLOT_BYTES:
            continue
        for shown, count in (("first launch", 0), ("later launches", 10)):
            first_window = partial(bench.ns, "first_window", size_bytes // _PER_ELEMENT_BYTES, count, memory_kind=kind)
            samples = [first_window() / max(count, 1) / 1000 for _ in range(5)]
            yield sampled(f"{size_bytes >> 10} KiB of windows, {kind}, {shown}", "us", samples)


def _crossing(bench: DeviceBench) -> Iterator[Figure]:
    """Yield the cost of several launches together on a fresh memory: where it pays to register, and what ``auto`` does.

    On paper ``auto`` costs at most twice what the cheaper of the two does, however many launches there are.
    """
    size_bytes, counts, samples = (192 << 10, (1, 4, 8, 16, 64, 256), 7) if bench.real else (12 << 10, (2,), 3)
    kinds: tuple[MemoryKind, ...] = ("staged", "pinned", "auto")
    for count in counts:
        taken = alternate({kind: partial(_together_us, bench, size_bytes, count, kind) for kind in kinds}, samples)
        medians = {kind: summarise(taken[kind])[0] for kind in kinds[:2]}
        cheaper = min(medians, key=lambda kind: medians[kind])
        for kind in kinds:
            name = f"{size_bytes >> 10} KiB of windows, {kind}, {count} launches together"
            peer, peers = (cheaper, taken[cheaper]) if kind == "auto" else ("", ())
            yield sampled(name, "us", taken[kind], peer=peer, peers=peers)


def _together_us(bench: DeviceBench, size_bytes: int, count: int, kind: MemoryKind) -> float:
    """Return the first launch on one fresh memory and the later ones on another."""
    elements, counts = size_bytes // _PER_ELEMENT_BYTES, (0, count - 1)[: min(count, 2)]
    return sum(bench.ns("first_window", elements, later, memory_kind=kind) for later in counts) / 1000
