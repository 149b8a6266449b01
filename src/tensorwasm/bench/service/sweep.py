"""Sweeps: requests a second and latencies of several servers with more and more connections, as a table and curves."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tensorwasm.bench.figures import Figure, Report, sampled, summarise
from tensorwasm.bench.service.wrk import WrkResult, WrkTarget

CONNECTIONS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)

_ROUNDS: Final = 3
_WARM_CONNECTIONS: Final = 16

Outcomes = Mapping[str, Mapping[int, Sequence[WrkResult]]]
"""Of runs of wrk, by target and by number of connections."""


@dataclass(frozen=True, slots=True)
class SweepReport(Report):
    """A report with a row for each number of connections, and a curve for each target."""

    outcomes: Outcomes

    def to_text(self) -> str:
        """Return a table: successes a second, p99 in milliseconds and, where there are any, failures a second."""
        rows = (
            (str(connections), *(_cell(each[connections]) for each in self.outcomes.values()))
            for connections in CONNECTIONS
        )
        return self._table([("connections", *self.outcomes), *rows]).replace("\n\n", ": requests/s, p99 in ms\n\n", 1)

    def draw(self, canvas: Any) -> None:
        """Draw both quantities over the number of connections, beside each other."""
        canvas.set_size_inches(12, 4.5)
        panels = canvas.subplots(1, 2)
        for axes, name, field in zip(panels, ("requests/s", "p99 in ms"), ("succeeded_per_s", "p99_ms"), strict=True):
            for target, points in self.outcomes.items():
                axes.plot([*points], [_median(each, field) for each in points.values()], marker="o", label=target)
            axes.set_xscale("log", base=2)
            axes.set_xticks(CONNECTIONS, map(str, CONNECTIONS))
            axes.set_xlabel("connections")
            axes.set_title(name, loc="left")
        panels[0].set_ylim(bottom=0)
        panels[1].set_yscale("log")
        panels[0].legend(fontsize="small")
        canvas.suptitle(self.title)


def sweep(
    benchmark: str, device: str, targets: Mapping[str, WrkTarget], seconds: float, clients: frozenset[int] = frozenset()
) -> SweepReport:
    """Measure all targets with each of `CONNECTIONS`, in turns, in runs of so many seconds, and tell of each run.

    All numbers of connections come once before any comes again, so that a machine's drift does not look like a curve.

    Args:
        benchmark: that the report is of.
        device: that takes part.
        targets: by name.
        seconds: of one run.
        clients: processors that wrk has for itself.
    """
    outcomes: dict[str, dict[int, list[WrkResult]]] = {name: {count: [] for count in CONNECTIONS} for name in targets}
    for target in targets.values():
        target.press(seconds, _WARM_CONNECTIONS)
    for turn in range(_ROUNDS):
        for connections in CONNECTIONS:
            for name, target in targets.items():
                result = target.run(seconds, connections, clients)
                outcomes[name][connections].append(result)
                print(f"{turn + 1}/{_ROUNDS}, {name}, connections: {connections}: {_cell([result])}", file=sys.stderr)
    return SweepReport(benchmark, device, tuple(_figures(outcomes)), outcomes)


def _median(results: Sequence[WrkResult], field: str) -> float:
    return summarise([getattr(result, field) for result in results])[0]


def _cell(results: Sequence[WrkResult]) -> str:
    failed = _median(results, "failed_per_s")
    said = f"{_median(results, 'succeeded_per_s'):.0f}/s, {_median(results, 'p99_ms'):.2f} ms"
    return f"{said}, {failed:.0f}/s failed" if failed else said


def _figures(outcomes: Outcomes) -> Iterator[Figure]:
    for name, points in outcomes.items():
        for connections, results in points.items():
            named = f"{name}, {connections} connection{'s' if connections > 1 else ''}"
            yield sampled(named, "requests/s", [result.succeeded_per_s for result in results])
            yield sampled(f"{named}, failed", "requests/s", [result.failed_per_s for result in results])
            yield sampled(f"{named}, p50", "ms", [result.p50_ms for result in results])
            yield sampled(f"{named}, p99", "ms", [result.p99_ms for result in results])
