"""Benchmarks: each is a function from a device choice to a report.

It raises `InvalidArgs` if something that it needs is not installed, and `InternalError` if what it measures fails or
gives a wrong result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from tensorwasm.bench.device.dispatch import measure_dispatch, measure_job, measure_memory
from tensorwasm.bench.device.emulator import measure_emulator
from tensorwasm.bench.device.quota import measure_quota
from tensorwasm.bench.device.shares import measure_shares
from tensorwasm.bench.device.tenants import measure_tenants
from tensorwasm.bench.device.waiting import measure_waiting
from tensorwasm.bench.figures import Report
from tensorwasm.bench.offload.benchmark import measure_offload
from tensorwasm.bench.offload.deploying import measure_offload_deploy
from tensorwasm.bench.offload.kernels import measure_kernels
from tensorwasm.bench.offload.overhead import measure_overhead
from tensorwasm.bench.sandbox import measure_sandbox
from tensorwasm.bench.service.first_answer import measure_first_answer
from tensorwasm.bench.service.gpu_http import measure_gpu_http, sweep_gpu_http
from tensorwasm.bench.service.http import measure_http, sweep_http
from tensorwasm.bench.service.neighbours import measure_neighbours
from tensorwasm.bench.service.pauses import measure_pauses
from tensorwasm.bench.service.soak import measure_soak
from tensorwasm.bench.service.where import measure_where
from tensorwasm.bench.startup import measure_deploy, measure_start

BENCHMARKS: Final[Mapping[str, Callable[..., Report]]] = {
    "deploy": measure_deploy,
    "dispatch": measure_dispatch,
    "emulator": measure_emulator,
    "first-answer": measure_first_answer,
    "gpu-http": measure_gpu_http,
    "http": measure_http,
    "job": measure_job,
    "memory": measure_memory,
    "neighbours": measure_neighbours,
    "offload": measure_offload,
    "offload-deploy": measure_offload_deploy,
    "offload-kernels": measure_kernels,
    "offload-overhead": measure_overhead,
    "pauses": measure_pauses,
    "quota": measure_quota,
    "sandbox": measure_sandbox,
    "soak": measure_soak,
    "start": measure_start,
    "tenants": measure_tenants,
    "shares": measure_shares,
    "waiting": measure_waiting,
    "where": measure_where,
}
"""Each takes the choice of a device; those in `TIMED` also how long to run, as ``seconds``.

Those in `OFFLOADING` take ``size`` and ``programs``, too, and ``offload`` takes ``resume``.
"""

OFFLOADING: Final = frozenset({"offload", "offload-kernels"})

TIMED: Final = frozenset({"gpu-http", "http", "neighbours", "pauses", "sandbox"})

SWEEPS: Final[Mapping[str, Callable[..., Report]]] = {"gpu-http": sweep_gpu_http, "http": sweep_http}
"""Measure the same servers with more and more connections; like those benchmarks they take ``workers``, too."""
