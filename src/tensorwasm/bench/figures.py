"""The report of a benchmark: rows of figures as a table for people, JSON for machines and a picture for both.

A bar is the least or the most that a figure must reach; a report is met when every figure with a bar is.
"""

from __future__ import annotations

import json
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from tensorwasm.errors import InvalidArgs


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of a report.

    Attributes:
        name: what was measured.
        unit: of ``value`` and ``spread``: ``s``, ``us``, ``GB/s``.
        value: median of the samples.
        spread: half the interquartile range.
        samples: number of samples.
        peer: what it was measured against in the same run, empty without one.
        ratio: value over the peer's value, None without a peer or when the peer is missing.
        bar: the limit, None for a figure that is only shown.
        judged: which of ``value`` and ``ratio`` is held against the bar.
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
    def result(self) -> float | None:
        """The number that is held against the bar; None for the ratio to a missing peer."""
        return self.value if self.judged == "value" else self.ratio

    @property
    def met(self) -> bool | None:
        """Whether the bar is met; None without a bar. A missing peer misses the bar."""
        if self.bar is None or self.result is None:
            return None if self.bar is None else False
        return self.result <= self.bar if self.sense == "at most" else self.result >= self.bar


class MissingPeer(Exception):
    """A peer is not installed or does not work; its figures say why and miss their bars."""


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of one benchmark; the device's name is empty if none took part."""

    benchmark: str
    device: str
    figures: tuple[Figure, ...]

    @property
    def met(self) -> bool:
        """Whether no bar was missed."""
        return all(figure.met is not False for figure in self.figures)

    def to_json(self) -> str:
        """Return the report as JSON, with machine, versions and date."""
        report = {
            "benchmark": self.benchmark,
            "device": self.device,
            "machine": machine(),
            "versions": versions(),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "figures": [asdict(figure) | {"met": figure.met} for figure in self.figures],
        }
        return json.dumps(report, indent=1) + "\n"

    def to_text(self) -> str:
        """Return the report as an aligned table."""
        return self._table(
            [("figure", "value", "spread", "n", "peer", "ratio", "bar", "met"), *map(_cells, self.figures)]
        )

    def _table(self, rows: Sequence[Sequence[str]]) -> str:
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join((self.title, "", *lines)) + "\n"

    @property
    def title(self) -> str:
        """The benchmark, and what it ran on."""
        return f"{self.benchmark} on {self.device or 'this machine'}"

    def _rows_on(self, canvas: Any, count: int) -> Any:
        """Return axes for so many rows, the first one on top."""
        canvas.set_size_inches(8, 1 + 0.5 * count)
        axes = canvas.subplots()
        axes.invert_yaxis()
        axes.set_title(self.title, loc="left")
        return axes

    def draw(self, canvas: Any) -> None:
        """Draw on matplotlib's canvas how far each figure is from its bar: 1 is the bar, shorter is better."""
        rows = [figure for figure in self.figures if figure.bar]
        axes = self._rows_on(canvas, len(rows))
        used = []
        for row in rows:
            share = (row.result or 0.0) / (row.bar or 1.0)
            used.append(share if row.sense == "at most" else 1 / share if share else 0.0)
        axes.barh([row.name for row in rows], used, color=["#2a7f62" if row.met else "#b3392f" for row in rows])
        axes.axvline(1.0, color="black", linewidth=1)
        axes.set_xlabel("share of the bar used (1 = the bar)")


def _cells(figure: Figure) -> tuple[str, ...]:
    ratio = "" if figure.ratio is None else f"{figure.ratio:.3g}"
    return (
        figure.name,
        f"{figure.value:.4g} {figure.unit}",
        f"{figure.spread:.2g}",
        str(figure.samples),
        figure.peer,
        "peer missing" if figure.peer and figure.ratio is None else ratio,
        "" if figure.bar is None else f"{figure.sense} {figure.bar:g}",
        {None: "", True: "yes", False: "NO"}[figure.met],
    )


def sampled(
    name: str,
    unit: str,
    samples: Sequence[float],
    *,
    peer: str = "",
    peers: Sequence[float] = (),
    bar: float | None = None,
    at_least: bool = False,
) -> Figure:
    """Return the figure of samples; with a peer, the bar is for the ratio. A missing peer has no samples."""
    value, spread, count = summarise(samples)
    return Figure(
        name,
        unit,
        value,
        spread,
        count,
        peer=peer,
        ratio=value / summarise(peers)[0] if peers else None,
        bar=bar,
        judged="ratio" if peer else "value",
        sense="at least" if at_least else "at most",
    )


def alternate(subjects: Mapping[str, Callable[[], float]], samples: int) -> dict[str, tuple[float, ...]]:
    """Return samples of each subject, taken in turns because machines drift; a first round is not counted."""
    rounds = [{name: subject() for name, subject in subjects.items()} for _ in range(samples + 1)]
    return {name: tuple(taken[name] for taken in rounds[1:]) for name in subjects}


def measure(work: Callable[[], object], samples: int) -> tuple[float, ...]:
    """Return wall-clock seconds of ``samples`` runs, after one that is not counted."""
    return tuple([time_once(work) for _ in range(samples + 1)][1:])


def time_once(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the seconds that one run takes by the clock."""
    start = clock()
    work()
    return clock() - start


def loop_us(work: Callable[[], object], count: int) -> float:
    """Return microseconds per call of so many calls."""
    start = time.perf_counter_ns()
    for _ in range(count):
        work()
    return (time.perf_counter_ns() - start) / count / 1000


def summarise(samples: Sequence[float]) -> tuple[float, float, int]:
    """Return median, half the interquartile range (half the range of fewer than four samples), and count."""
    if len(samples) < 4:
        return statistics.median(samples), (max(samples) - min(samples)) / 2, len(samples)
    low, middle, high = statistics.quantiles(samples, n=4, method="inclusive")
    return middle, (high - low) / 2, len(samples)


def p99(samples: Sequence[float]) -> float:
    """Return the 99th percentile."""
    return sorted(samples)[len(samples) * 99 // 100]


def machine() -> str:
    """Return processor and operating system."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{f'{len(names)} x {names[0]}' if names else cpu}, {platform.system()} {platform.release()}"


def versions() -> dict[str, str]:
    """Return the versions of Python and of the libraries that figures depend on."""
    found, maps = {"python": platform.python_version()}, Path("/proc/self/maps")
    if maps.exists():  # an interpreter whose libpython is shared is slower by a third
        found["libpython"] = "shared" if "/libpython" in maps.read_text() else "static"
    for name in ("tensor-wasm", "wasmtime", "numpy", "cuda-bindings"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def plot(report: Report, path: Path) -> None:
    """Draw a report; InvalidArgs if matplotlib is not installed, or cannot write files with this suffix."""
    try:
        from matplotlib.figure import Figure as Canvas  # noqa: PLC0415 - takes a second, and only a plot needs it
    except ImportError:
        raise InvalidArgs("--plot needs matplotlib: pip install matplotlib") from None
    canvas = Canvas(layout="constrained")
    report.draw(canvas)
    try:
        canvas.savefig(path)
    except ValueError as error:
        raise InvalidArgs(str(error)) from None
