"""What it costs to save an instance, and to restore one, for several sizes of its memory.

The memories are dense: half of every page cannot be compressed, the other half is the same in all of them.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from tensorwasm.bench.figures import Figure, alternate, sampled, time_once
from tensorwasm.bench.peers.host import ZSTANDARD, zstandard_to_disk
from tensorwasm.bench.processes import run_python, scratch_folder
from tensorwasm.errors import InternalError
from tensorwasm.runtime import Function, Runtime
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

        subjects = {_PAGE: _loop(count, lambda: page.invoke(EXPORT, (VALUE,)))}
        subjects |= {f"{size}": _loop(count, partial(restored, snapshots[size], functions[size])) for size in sizes_mib}
        subjects["live"] = _loop(max(1, count // 5), partial(opened, snapshots[largest], functions[largest]))
        taken = alternate(subjects, samples)
        for snapshot in snapshots.values():
            snapshot.close()
    fresh, last = taken[_PAGE], taken[f"{largest}"]
    for size in sizes_mib:
        name = f"restore + call + drop, {size} MiB dense"
        yield sampled(name, "us", taken[f"{size}"], peer=_PAGE, peers=fresh, bar=5.0)
    yield sampled("the same, largest", "us", last, peer="the smallest", peers=taken[f"{smallest}"], bar=1.5)
    name = f"restore + call + close of a live instance, {largest} MiB"
    yield sampled(name, "us", taken["live"], peer=_PAGE, peers=fresh)


def _loop(count: int, work: Callable[[], object]) -> Callable[[], float]:
    """Return a function that calls ``work`` so many times and returns microseconds per call."""

    def sample() -> float:
        start = time.perf_counter_ns()
        for _ in range(count):
            work()
        return (time.perf_counter_ns() - start) / count / 1000

    return sample


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
