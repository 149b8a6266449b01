"""Benchmarks: each a function from a device choice to a report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from tensorwasm.bench.emulator import measure_emulator
from tensorwasm.bench.figures import Report
from tensorwasm.bench.job import measure_job
from tensorwasm.bench.quota import measure_quota

BENCHMARKS: Final[Mapping[str, Callable[[str], Report]]] = {
    "emulator": measure_emulator,
    "job": measure_job,
    "quota": measure_quota,
}
