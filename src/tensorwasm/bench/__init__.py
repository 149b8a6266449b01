"""Benchmarks: each a function from a device choice to a report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from tensorwasm.bench.deploy import measure_deploy
from tensorwasm.bench.dispatch import measure_dispatch
from tensorwasm.bench.emulator import measure_emulator
from tensorwasm.bench.figures import Report
from tensorwasm.bench.http.measuring import measure_http
from tensorwasm.bench.job import measure_job
from tensorwasm.bench.memory import measure_memory
from tensorwasm.bench.neighbours.measuring import measure_neighbours
from tensorwasm.bench.quota import measure_quota
from tensorwasm.bench.sandbox import measure_sandbox
from tensorwasm.bench.soak.measuring import measure_soak
from tensorwasm.bench.start import measure_start
from tensorwasm.bench.waiting import measure_waiting

BENCHMARKS: Final[Mapping[str, Callable[..., Report]]] = {
    "deploy": measure_deploy,
    "dispatch": measure_dispatch,
    "emulator": measure_emulator,
    "http": measure_http,
    "job": measure_job,
    "memory": measure_memory,
    "neighbours": measure_neighbours,
    "quota": measure_quota,
    "sandbox": measure_sandbox,
    "soak": measure_soak,
    "start": measure_start,
    "waiting": measure_waiting,
}
"""Each takes the choice of a device; those in `TIMED` also how long to run, as ``seconds``."""

TIMED: Final = frozenset({"http", "neighbours", "sandbox"})
