"""What a guest pays for a launch, against the loop in C and other ways from Python."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Final

from tensorwasm.bench.figures import Figure, Report
from tensorwasm.bench.guests import ENTRY, Bench, answer
from tensorwasm.bench.peers import raw
from tensorwasm.bench.peers.missing import MissingPeer
from tensorwasm.bench.peers.python import ELEMENTS, PEERS
from tensorwasm.bench.rounds import alternate, compared

SAMPLES: Final = 31
REPLAYED: Final = 100
"""Launches in a graph."""


def measure_dispatch(choice: str = "auto") -> Report:
    """Measure launches of a small kernel; on the emulator a few of each, without peers and bars."""
    with Bench(choice) as bench:
        count = 2000 if bench.real else 20
        return Report("dispatch", bench.runtime.device.name, (*_launches(bench, count), *_sandboxes(bench, count)))


def _launches(bench: Bench, count: int) -> Iterator[Figure]:
    replays = max(1, count // REPLAYED)
    works: dict[str, Callable[[], float]] = {
        "submit": lambda: bench.ns("submit", count) / count,
        "sync": lambda: bench.ns("launch_sync", count) / count,
        "replay": lambda: bench.ns("replay", REPLAYED, replays) / (replays * REPLAYED),
    }
    with ExitStack() as open_peers:
        works |= _raw_loops(bench, count)
        works |= _python_loops(bench, open_peers, count)
        taken = alternate(works, SAMPLES if bench.real else 5)

    def against(name: str, loop: str, bar: float | None, shown: str) -> Figure:
        peer = f"{raw.NAME}{f' ({bench.why_not})' if bench.why_not else ''}"
        return compared(shown, "ns", taken[name], peer=peer, peers=taken.get(loop, ()), bar=bar if bench.real else None)

    yield against("submit", "raw_submit", 1.10, "guest launch, submit only")
    yield against("sync", "raw_launch_sync", 1.15, "guest launch + sync")
    yield against("replay", "raw_complete", 0.5, f"graph of {REPLAYED} launches replayed by the guest, per launch")
    for loop, shown in (
        ("raw_submit", "submit only"),
        ("raw_complete", "to completion"),
        ("raw_launch_sync", "+ sync"),
    ):
        if loop in taken:
            yield compared(f"{raw.NAME}, launch {shown}", "ns", taken[loop])
    for name, _ in PEERS:
        for way, loop in (("submit only", "raw_submit"), ("+ sync", "raw_launch_sync")):
            if f"{name} {way}" in taken:
                yield against(f"{name} {way}", loop, None, f"{name} from Python, launch {way}")


def _raw_loops(bench: Bench, count: int) -> dict[str, Callable[[], float]]:
    peer = bench.raw
    if peer is None:
        return {}
    launch = peer.launch([peer.device_memory(ELEMENTS * 4) for _ in range(3)], ELEMENTS)

    def loop(name: str) -> Callable[[], float]:
        return lambda: peer.launches_ns(name, launch, count)

    return {name: loop(name) for name in ("raw_submit", "raw_complete", "raw_launch_sync")}


def _python_loops(bench: Bench, open_peers: ExitStack, count: int) -> dict[str, Callable[[], float]]:
    works: dict[str, Callable[[], float]] = {}
    if not bench.real:
        return works
    for name, peer in PEERS:
        try:
            submit, launch_sync = open_peers.enter_context(peer(bench.runtime.device.ordinal, bench.ptx, ENTRY))
        except MissingPeer as missing:
            print(f"{name} is not measured: {missing}")
            continue
        works[f"{name} submit only"] = lambda submit=submit: submit(count)  # type: ignore[misc]
        works[f"{name} + sync"] = lambda launch_sync=launch_sync: launch_sync(count)  # type: ignore[misc]
    return works


def _sandboxes(bench: Bench, count: int) -> Iterator[Figure]:
    repeats = max(3, count // 20)

    def fresh(export: str) -> Callable[[], float]:
        def sample() -> float:
            start = time.perf_counter_ns()
            for _ in range(repeats):
                bench.sandbox.invoke(export, grants={"cuda"}, memory_kind="staged")
            return (time.perf_counter_ns() - start) / repeats / 1000

        return sample

    if answer(bench.sandbox, "once", memory_kind="staged") != 0:
        yield Figure("fresh sandbox + one small kernel: WRONG RESULT", "us", 0.0, 0.0, 0, bar=0.0, sense="at least")
        return
    works = {"once": fresh("once"), "nothing": fresh("nothing")}
    peer = bench.raw
    if peer is not None:
        small = peer.launch([peer.device_memory(4096) for _ in range(3)], 1024)
        works["raw"] = lambda: peer.launches_ns("raw_launch_sync", small, count) / 1000
    taken = alternate(works, SAMPLES if bench.real else 5)
    yield compared(
        "fresh sandbox + one small kernel on 3 windows of 4 KiB (staged)",
        "us",
        taken["once"],
        peer=f"{raw.NAME}, launch + sync",
        peers=taken.get("raw", ()),
        bar=4.0 if bench.real else None,
    )
    yield compared("fresh sandbox without a kernel", "us", taken["nothing"])
