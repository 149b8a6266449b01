"""What it costs to save an instance, and to go on where one was, whatever the size of its memory.

The memories are dense: half of every page cannot be compressed, the other half is the same in all of them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from tensorwasm.bench.figures import Figure
from tensorwasm.bench.peers.packing import ZSTANDARD, zstandard_to_disk
from tensorwasm.bench.rounds import alternate, compared
from tensorwasm.errors import InternalError
from tensorwasm.runtime import Function, Runtime
from tensorwasm.runtime.snapshots.live import LiveInstance
from tensorwasm.runtime.snapshots.snapshot import Snapshot, keep
from tensorwasm.saved import PAGE_BYTES, SavedMemory, SavedRun
from tensorwasm.values import MIB, WASM_PAGE_BYTES, Limits
from tensorwasm.wasm.edit import set_memory_minimum
from tensorwasm.wasm.module import decode, encode

EXPORT: Final = "touch"
VALUE: Final = 7

_PAGE: Final = "a fresh sandbox of 1 page"
_SMALLEST: Final = "the smallest"
_BAR: Final = 5.0
_FLAT_BAR: Final = 1.5
_FIRST_BAR: Final = 0.5
_SAVE_BAR: Final = 1.5
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


def resized(wasm: bytes, size_bytes: int) -> bytes:
    """Return a module with a memory of another size."""
    return encode(set_memory_minimum(decode(wasm), {0: size_bytes // WASM_PAGE_BYTES}))


def filled(function: Function, data: bytes) -> Snapshot:
    """Return a snapshot of an instance whose memory has these contents."""
    with function.open() as live, live.captured() as saved:
        return keep(replace(saved, memories=(SavedMemory(len(data), (SavedRun(0, data),)),)))


def restoring(wasm: bytes, sizes_mib: Sequence[int], samples: int, count: int) -> Iterator[Figure]:
    """Yield what restoring, one call and dropping cost at some sizes, against a fresh sandbox of one page.

    Args:
        wasm: a module with a memory of one page.
        sizes_mib: of the memories, ascending.
        samples: of each.
        count: in a sample.
    """
    with Runtime("emulator", limits=Limits(memory_bytes=2 * max(sizes_mib) * MIB)) as runtime:
        page = runtime.load(wasm, "page")
        functions = {size: runtime.load(resized(wasm, size * MIB), f"{size} MiB") for size in sizes_mib}
        snapshots = {size: filled(function, dense(size * MIB)) for size, function in functions.items()}
        works: dict[str, Callable[[], float]] = {_PAGE: lambda: _each(count, lambda: page.invoke(EXPORT, (VALUE,)))}
        for size, function in functions.items():
            works[f"{size}"] = _restored(runtime, snapshots[size], function, count)
        largest = sizes_mib[-1]
        works["live"] = _opened(runtime, snapshots[largest], functions[largest], count)
        taken = alternate(works, samples)
        for snapshot in snapshots.values():
            snapshot.close()
    for size in sizes_mib:
        name = f"restore + call + drop, {size} MiB dense"
        yield compared(name, "us", taken[f"{size}"], peer=_PAGE, peers=taken[_PAGE], bar=_BAR)
    first, last = taken[f"{sizes_mib[0]}"], taken[f"{largest}"]
    yield compared("the same, largest", "us", last, peer=_SMALLEST, peers=first, bar=_FLAT_BAR)
    yield compared(
        f"restore + call + close of a live instance, {largest} MiB", "us", taken["live"], peer=_PAGE, peers=taken[_PAGE]
    )


def restoring_first(wasm: bytes, size_mib: int, samples: int) -> Iterator[Figure]:
    """Yield how fast a file is restored that its process never saw: verified, decompressed, mapped, and called."""
    with tempfile.TemporaryDirectory(prefix="tensorwasm-bench-") as folder:
        module, path = Path(folder, "guest.wasm"), Path(folder, "guest.tws")
        module.write_bytes(resized(wasm, size_mib * MIB))
        with Runtime("emulator", limits=Limits(memory_bytes=size_mib * MIB)) as runtime:
            function = runtime.load(module)
            with filled(function, dense(size_mib * MIB)) as snapshot, runtime.restore(snapshot, function) as live:
                runtime.snapshot(live, path)
        taken = tuple(size_mib * MIB / _first(module, path, size_mib) / 1e9 for _ in range(samples))
    name = f"first restore of {size_mib} MiB that compress to a half"
    yield compared(name, "GB/s", taken, bar=_FIRST_BAR, at_least=True)


def saving(wasm: bytes, size_mib: int, samples: int) -> Iterator[Figure]:
    """Yield what saving an instance costs, signed and on the disk, against compressing and writing the same bytes."""
    data = dense(size_mib * MIB)
    with (
        tempfile.TemporaryDirectory(prefix="tensorwasm-bench-") as folder,
        Runtime("emulator", limits=Limits(memory_bytes=size_mib * MIB)) as runtime,
    ):
        function = runtime.load(resized(wasm, size_mib * MIB))
        with filled(function, data) as snapshot, runtime.restore(snapshot, function) as live:
            taken = alternate(
                {
                    "ours": lambda: _save(runtime, live, Path(folder, "ours")),
                    "peer": zstandard_to_disk(data, Path(folder, "peer")),
                },
                samples,
            )
    name = f"save of {size_mib} MiB that compress to a half"
    yield compared(name, "ms", taken["ours"], peer=ZSTANDARD, peers=taken["peer"], bar=_SAVE_BAR)


def _each(count: int, work: Callable[[], object]) -> float:
    """Return microseconds each of a count."""
    start = time.perf_counter_ns()
    for _ in range(count):
        work()
    return (time.perf_counter_ns() - start) / count / 1000


def _restored(runtime: Runtime, snapshot: Snapshot, function: Function, count: int) -> Callable[[], float]:
    def once() -> None:
        if runtime.invoke(snapshot, function, EXPORT, (VALUE,)).values != (VALUE,):
            raise InternalError("the restored guest answers something else")

    return lambda: _each(count, once)


def _opened(runtime: Runtime, snapshot: Snapshot, function: Function, count: int) -> Callable[[], float]:
    def once() -> None:
        with runtime.restore(snapshot, function) as live:
            live.call(EXPORT, (VALUE,))

    return lambda: _each(max(1, count // 5), once)


def _first(module: Path, path: Path, size_mib: int) -> float:
    """Return in how many seconds a process of its own restores and calls."""
    order = json.dumps([str(module), str(path), size_mib * MIB, EXPORT, VALUE])
    done = subprocess.run([sys.executable, "-c", _FIRST, order], capture_output=True, text=True, check=False)  # noqa: S603 - this interpreter, and what is above
    if done.returncode:
        raise InternalError(f"a process that restores failed: {done.stderr.strip()[-200:]}")
    seconds, values = json.loads(done.stdout)
    if values != [VALUE]:
        raise InternalError("the restored guest answers something else")
    return float(seconds)


def _save(runtime: Runtime, live: LiveInstance, path: Path) -> float:
    start = time.perf_counter_ns()
    runtime.snapshot(live, path)
    return (time.perf_counter_ns() - start) / 1e6
