"""`tensor-wasm bench neighbours`: the 99th percentile of a trivial call, alone and beside each kind of load."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tensorwasm.bench.figures import Figure, Report, summarise
from tensorwasm.bench.http.client import Client
from tensorwasm.bench.http.measuring import deploy
from tensorwasm.bench.http.neighbours import ask_steadily
from tensorwasm.bench.http.serving import Served, serving
from tensorwasm.bench.neighbours.loads import LOADS, REFUSALS, Load, prepare
from tensorwasm.bench.neighbours.pressing import Answers, pressing
from tensorwasm.bench.soak.measuring import holdings
from tensorwasm.errors import InternalError
from tensorwasm.values import MIB

SECONDS: Final = 60.0
PERIOD_S: Final = 0.02
SUBJECT: Final = 1
"""The tenant whose calls are looked at; every load has a tenant of its own."""

_PARTS: Final = 20
"""Stretches of a run whose 99th percentiles give its spread."""


def measure_neighbours(_choice: str = "auto", *, seconds: float = SECONDS, loads: Sequence[Load] = LOADS) -> Report:
    """Measure a service that this starts; no device takes part. Needs Linux.

    Args:
        seconds: beside each load; before each the call is measured alone for a share of that.
        loads: which.
    """
    with tempfile.TemporaryDirectory(prefix="tensorwasm-bench-") as name, serving(Path(name)) as served:
        with Client(served.url, served.token, SUBJECT) as client:
            add = deploy(client, "add")
        alone: list[float] = []
        beside: list[tuple[Load, list[float], Answers, int]] = []
        for number, load in enumerate(loads, SUBJECT + 1):
            with Client(served.url, served.token, number) as client:
                scene = prepare(load, client)
            alone += _ask(served, add, max(seconds / len(loads), 1.0))
            with pressing(load, scene, served.url) as press:
                taken = _ask(served, add, seconds)
            beside.append((load, taken, press.answers, holdings(served.process)[0]))
        figures = tuple(_figures(alone, beside))
    return Report("neighbours", "", figures)


def _ask(served: Served, function: str, seconds: float) -> list[float]:
    return [*ask_steadily(served.url, served.token, SUBJECT, function, seconds, PERIOD_S)]


def _figures(alone: list[float], beside: list[tuple[Load, list[float], Answers, int]]) -> Iterator[Figure]:
    base = _p99(alone)
    yield Figure("p50 alone", "ms", *summarise(alone))
    yield Figure("p99 alone", "ms", base, _spread(alone), len(alone))
    for load, taken, answers, resident_bytes in beside:
        p99 = _p99(taken)
        if not any(answers[status] for status in load.expected):
            raise InternalError(f"{load.name}: no call was answered with success: {dict(answers)}")
        figure = f"p99 beside {load.name}"
        if load.value_ms is not None:
            yield Figure(figure, "ms", p99, _spread(taken), len(taken), bar=load.value_ms)
            figure = "over p99 alone"
        yield Figure(
            figure, "ms", p99, _spread(taken), len(taken),
            peer="alone", ratio=p99 / base, bar=load.ratio, judged="ratio",
        )  # fmt: skip
        yield Figure("p50", "ms", *summarise(taken))
        yield Figure("longest", "ms", max(taken), 0, len(taken))
        good = sum(answers[status] for status in load.expected)
        refused = sum(answers[status] for status in REFUSALS)
        yield Figure("answers of the load", "requests", good, 0, 1)
        yield Figure("refused for lack of room", "requests", refused, 0, 1)
        yield Figure("other answers", "requests", answers.total() - good - refused, 0, 1, bar=0)
        yield Figure("resident afterwards", "MiB", resident_bytes / MIB, 0, 1)


def _p99(taken: Sequence[float]) -> float:
    return sorted(taken)[len(taken) * 99 // 100]


def _spread(taken: Sequence[float]) -> float:
    """Return how far the 99th percentiles of stretches lie apart."""
    size = max(len(taken) // _PARTS, 1)
    return summarise([_p99(taken[start : start + size]) for start in range(0, len(taken) - size + 1, size)])[1]
