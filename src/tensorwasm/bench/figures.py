"""What a benchmark reports: rows of figures, as a table for people, JSON for machines and a picture for both.

A bar is the least or the most that a figure must reach; a report is met when every figure with a bar is.
"""

from __future__ import annotations

import json
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Figure:
    """One row.

    Attributes:
        name: what was measured.
        unit: of ``value`` and ``spread``: ``s``, ``us``, ``GB/s``.
        value: median of the samples.
        spread: half the distance between the quartiles.
        samples: how many.
        peer: what it was measured against in the same run, empty if nothing.
        ratio: value over the peer's value, None without a peer or when the peer is missing.
        bar: the limit, None for a figure that is only shown.
        judged: whether ``value`` or ``ratio`` is held against the bar.
        sense: ``at most`` or ``at least``.
    """

    name: str
    unit: str
    value: float
    spread: float
    samples: int
    peer: str = ""
    ratio: float | None = None
    bar: float | None = None
    judged: Literal["value", "ratio"] = "value"
    sense: Literal["at most", "at least"] = "at most"

    @property
    def met(self) -> bool | None:
        """Whether the bar is met; None without a bar. A missing peer misses the bar."""
        if self.bar is None:
            return None
        got = self.value if self.judged == "value" else self.ratio
        if got is None:
            return False
        return got <= self.bar if self.sense == "at most" else got >= self.bar


@dataclass(frozen=True, slots=True)
class Report:
    """One benchmark's outcome.

    Attributes:
        benchmark: its name.
        device: the device's name, empty if none took part.
        figures: the rows.
    """

    benchmark: str
    device: str
    figures: tuple[Figure, ...]

    @property
    def met(self) -> bool:
        """Whether no bar was missed."""
        return all(figure.met is not False for figure in self.figures)

    def to_json(self) -> str:
        """Return the report as JSON, with machine, versions and date."""
        rows = [asdict(figure) | {"met": figure.met} for figure in self.figures]
        head: dict[str, Any] = {
            "benchmark": self.benchmark,
            "device": self.device,
            "machine": machine(),
            "versions": versions(),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        return json.dumps(head | {"figures": rows}, indent=1) + "\n"

    def to_text(self) -> str:
        """Return the report as an aligned table."""
        head = ("figure", "value", "spread", "n", "peer", "ratio", "bar", "met")
        rows = [head, *(_cells(figure) for figure in self.figures)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join((f"{self.benchmark} on {self.device or 'this machine'}", "", *lines)) + "\n"


def _cells(figure: Figure) -> tuple[str, ...]:
    verdict = {None: "", True: "yes", False: "NO"}[figure.met]
    bar = "" if figure.bar is None else f"{figure.sense} {figure.bar:g}"
    ratio = "" if figure.ratio is None else f"{figure.ratio:.3g}"
    if figure.peer and figure.ratio is None:
        ratio = "peer missing"
    value = f"{figure.value:.4g} {figure.unit}"
    return (figure.name, value, f"{figure.spread:.2g}", str(figure.samples), figure.peer, ratio, bar, verdict)


def measure(work: Callable[[], object], samples: int) -> tuple[float, ...]:
    """Return wall-clock seconds of ``samples`` runs, after one that is not counted."""
    work()
    taken = []
    for _ in range(samples):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return tuple(taken)


def summarise(samples: Sequence[float]) -> tuple[float, float, int]:
    """Return median, half the interquartile range, and count."""
    if len(samples) < 4:
        return statistics.median(samples), (max(samples) - min(samples)) / 2, len(samples)
    low, middle, high = statistics.quantiles(samples, n=4, method="inclusive")
    return middle, (high - low) / 2, len(samples)


def machine() -> str:
    """Return processor and system, as far as Python knows them."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.partition(":")[2].strip() for line in info.read_text().splitlines() if line.startswith("model name")
        ]
        cpu = f"{len(names)} x {names[0]}" if names else cpu
    return f"{cpu}, {platform.system()} {platform.release()}"


def _linkage() -> str:
    """Say how the interpreter is built where that shows: as a shared library it is slower by a third."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return ""
    return ", a shared library" if "/libpython" in maps.read_text() else ", a program of one piece"


def versions() -> dict[str, str]:
    """Return the versions of Python and of the libraries that figures depend on."""
    found = {"python": platform.python_version() + _linkage()}
    for name in ("tensor-wasm", "wasmtime", "numpy", "cuda-bindings"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found
