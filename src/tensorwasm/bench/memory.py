"""How fast kernels and copies reach a guest's memory, kind by kind, against memory that a C program allocates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from tensorwasm.bench.figures import Figure, Report, summarise
from tensorwasm.bench.guests import Bench
from tensorwasm.bench.peers import raw
from tensorwasm.bench.peers.raw import RawPeer
from tensorwasm.bench.rounds import alternate, compared
from tensorwasm.gpu.device.limits import STAGE_SLOT_BYTES
from tensorwasm.values import MIB, MemoryKind

SAMPLES: Final = 31
KINDS: Final[tuple[MemoryKind, ...]] = ("staged", "pinned", "managed", "vmm")
_COPIED_BYTES: Final = 64 * MIB
_PER_ELEMENT_BYTES: Final = 12
_RENTED_BYTES: Final = 192 << 10
_LAUNCHES: Final = (1, 4, 8, 16, 64, 256)


def measure_memory(choice: str = "auto") -> Report:
    """Measure copies, streaming kernels and the kinds of memory; on the emulator small, without peers and bars."""
    with Bench(choice) as bench:
        rows = (*_copies(bench), *_streaming(bench), *_kinds(bench), *_crossing(bench))
        return Report("memory", bench.runtime.device.name, rows)


def _copies(bench: Bench) -> Iterator[Figure]:
    size_bytes, count, samples = (_COPIED_BYTES, 5, SAMPLES) if bench.real else (1 << 16, 2, 3)
    peer = bench.raw
    host, device = (peer.host_memory(size_bytes), peer.device_memory(size_bytes)) if peer else (0, 0)
    for way, shown in (("in", "host to device"), ("out", "device to host")):
        works: dict[str, Callable[[], float]] = {
            "guest": lambda way=way: size_bytes * count / bench.ns(f"copy_{way}", size_bytes, count)  # type: ignore[misc]
        }
        if peer is not None:
            works["raw"] = lambda way=way: (
                size_bytes / peer.copies_ns(f"raw_copy_{way}", host, device, size_bytes, count)
            )  # type: ignore[misc]
        taken = alternate(works, samples)
        yield _against(bench, f"guest memcpy {shown}, {size_bytes >> 20} MiB from pinned linear memory", taken, 0.95)


def _streaming(bench: Bench) -> Iterator[Figure]:
    elements, count, samples = (16 * MIB, 5, SAMPLES) if bench.real else (1 << 12, 2, 3)
    moved = elements * _PER_ELEMENT_BYTES * count
    rows: tuple[tuple[str, str, MemoryKind, float, Callable[[RawPeer], Callable[[int], int]]], ...] = (
        (
            "stream_windows",
            "streaming kernel over linear memory (pinned)",
            "pinned",
            0.95,
            lambda peer: peer.host_memory,
        ),
        ("stream_buffers", "streaming kernel over device buffers", "auto", 0.98, lambda peer: peer.device_memory),
    )
    for export, shown, kind, bar, allocator in rows:
        works: dict[str, Callable[[], float]] = {
            "guest": lambda export=export, kind=kind: moved / bench.ns(export, elements, count, memory_kind=kind)  # type: ignore[misc]
        }
        if bench.raw is not None:
            peer, allocate = bench.raw, allocator(bench.raw)
            launch = peer.launch([allocate(elements * 4) for _ in range(3)], elements)
            works["raw"] = lambda peer=peer, launch=launch: (  # type: ignore[misc]
                elements * _PER_ELEMENT_BYTES / peer.launches_ns("raw_launch_sync", launch, count)
            )
        yield _against(bench, shown, alternate(works, samples), bar)


def _kinds(bench: Bench) -> Iterator[Figure]:
    """Yield the first and the later launches over windows of some sizes: where the kinds cross over."""
    sizes = (12 << 10, 48 << 10, 192 << 10, 768 << 10, 12 * MIB, 96 * MIB) if bench.real else (12 << 10,)
    for size_bytes in sizes:
        elements = size_bytes // _PER_ELEMENT_BYTES
        for kind in KINDS:
            if kind == "staged" and size_bytes > STAGE_SLOT_BYTES:
                continue
            first, later = (
                [bench.ns("first_window", elements, count, memory_kind=kind) / max(count, 1) / 1000 for _ in range(5)]
                for count in (0, 10)
            )
            yield compared(f"{size_bytes >> 10} KiB of windows, {kind}, first launch", "us", tuple(first))
            yield compared(f"{size_bytes >> 10} KiB of windows, {kind}, later launches", "us", tuple(later))


def _crossing(bench: Bench) -> Iterator[Figure]:
    """Yield what some launches on a fresh memory cost together: where it pays to register, and what ``auto`` does.

    On paper ``auto`` costs at most twice what the cheaper of the two does, however many launches there are.
    """
    size_bytes, counts, samples = (_RENTED_BYTES, _LAUNCHES, 7) if bench.real else (12 << 10, (2,), 3)
    kinds: tuple[MemoryKind, ...] = ("staged", "pinned", "auto")
    for count in counts:
        taken = alternate(
            {kind: lambda kind=kind, count=count: _together_us(bench, size_bytes, count, kind) for kind in kinds},  # type: ignore[misc]
            samples,
        )
        cheaper = min(kinds[:2], key=lambda kind, taken=taken: summarise(taken[kind])[0])  # type: ignore[misc]
        for kind in kinds:
            shown = f"{size_bytes >> 10} KiB of windows, {kind}, {count} launches together"
            peer, peers = (cheaper, taken[cheaper]) if kind == "auto" else ("", ())
            yield compared(shown, "us", taken[kind], peer=peer, peers=peers)


def _together_us(bench: Bench, size_bytes: int, count: int, kind: MemoryKind) -> float:
    """Return the first launch on one fresh memory and the later ones on another."""
    elements, counts = size_bytes // _PER_ELEMENT_BYTES, (0, count - 1)[: min(count, 2)]
    return sum(bench.ns("first_window", elements, later, memory_kind=kind) for later in counts) / 1000


def _against(bench: Bench, shown: str, taken: dict[str, tuple[float, ...]], bar: float) -> Figure:
    peer = f"{raw.NAME}{f' ({bench.why_not})' if bench.why_not else ''}"
    return compared(
        shown,
        "GB/s",
        taken["guest"],
        peer=peer,
        peers=taken.get("raw", ()),
        bar=bar if bench.real else None,
        at_least=True,
    )
