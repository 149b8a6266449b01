"""The benchmark ``tenants``: very many tenants with guarded kernels on one GPU, and one beside hostile neighbours.

First every tenant deploys a function with a kernel of its own, in a process that ends. Then this process calls them in
turn. In the second part a tenant calls a small kernel in guarded workers while another keeps a long one running at all
times, and a third loads new kernels without end. On the emulator there are few of all.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final

from msgspec import structs

from tensorwasm.bench.figures import Figure, Report, p99, sampled, time_once
from tensorwasm.bench.harness import read_guest
from tensorwasm.bench.peers.cuda import used_bytes
from tensorwasm.bench.peers.host import assembled
from tensorwasm.errors import InternalError, TensorWasmError
from tensorwasm.runtime import Function, Grants, Runtime
from tensorwasm.runtime.executor.request import Request
from tensorwasm.runtime.workers.pool import WorkerExecutor
from tensorwasm.values import MIB, Limits

_BUILD: Final = b"CL-32267302"
"""A number in a comment of the guest's PTX: another one makes it another text."""
_DEPLOY: Final = f"from {__name__} import deploy; deploy"
_ROUNDS: Final = 3
_DEPLOYERS: Final = 16
_DEPLOYED: Final = 64
_PERIOD_S: Final = 0.005
_GPU_BYTES: Final = 64 * MIB
_LIMITS: Final = Limits(wall_s=30.0)
_SPIN: Final = """.version 7.0\\n.target sm_80\\n.address_size 64\\n.visible .entry spin() {{\\n
.reg .u64 %rd<3>; .reg .pred %p;\\nmov.u64 %rd0, %globaltimer; add.u64 %rd1, %rd0, {ns};\\n
$again:\\nmov.u64 %rd2, %globaltimer; setp.lt.u64 %p, %rd2, %rd1; @%p bra $again;\\nret;\\n}}\\n"""
_GUEST: Final = """(module
  (import "wasi:cuda/host@0.3.0" "wasi_cuda_load_ptx" (func $load (param i32 i32 i32 i32) (result i64)))
  (import "wasi:cuda/host@0.3.0" "wasi_cuda_launch"
    (func $launch (param i64 i32 i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (data (i32.const 0) "spin") (data (i32.const 16) "{ptx}")
  (func (export "spin") (result i32)
    (call $launch (call $load (i32.const 16) (i32.const {size}) (i32.const 0) (i32.const 4))
      (i32.const {blocks}) (i32.const 1) (i32.const 1) (i32.const {threads}) (i32.const 1) (i32.const 1)
      (i32.const 0) (i32.const 0) (i32.const 0))))"""


def measure_tenants(choice: str = "auto") -> Report:
    """Measure calls of many tenants in turn, and those of one beside neighbours that do their worst."""
    with Runtime(device=choice, isolation="guarded") as runtime:
        device = runtime.device
        real = device.kind == "cuda"
        before_bytes = used_bytes(device.ordinal) if real else 0
        name, count = f"cuda:{device.ordinal}" if real else "emulator", 1000 if real else 4
        subprocess.run([sys.executable, "-c", f"{_DEPLOY}({name!r}, {count})"], check=True)  # noqa: S603 - this module
        figures = [*_in_turn(runtime, count, before_bytes, real=real)]
    return Report("tenants", device.name, (*figures, *_beside_neighbours(name, 20.0 if real else 1.0, real=real)))


def own_guest(number: int) -> bytes:
    """Return the guest of a tenant, with a PTX text that no other one has."""
    return read_guest("sandbox").replace(_BUILD, b"CL-%08d" % number)


def spinning_guest(ns: int, blocks: int, threads: int) -> bytes:
    """Return a guest whose kernel runs for so many ns on every block at least."""
    ptx = _SPIN.format(ns=ns).replace("\n", "")
    return assembled(_GUEST.format(ptx=ptx, size=len(ptx.replace("\\n", " ")), blocks=blocks, threads=threads))


def deploy(choice: str, count: int) -> None:
    """Have every tenant's function deployed and called once, in a process of its own."""
    with Runtime(device=choice, isolation="guarded") as runtime, ThreadPoolExecutor(_DEPLOYERS) as pool:
        runtime.share()
        for function, tenant in pool.map(partial(_load, runtime), range(count)):
            _call(function, tenant)


def _load(runtime: Runtime, number: int) -> tuple[Function, str]:
    tenant = f"tenant{number}"
    runtime.accounts.register(tenant, _GPU_BYTES, _GPU_BYTES)
    return runtime.load(own_guest(number), name=tenant), tenant


def _call(function: Function, tenant: str) -> None:
    values = function.invoke("once", grants={"cuda"}, tenant=tenant, memory_kind="staged").values
    if values != (0,):
        raise InternalError(f"{function.name}.once returned {values}")


def _in_turn(runtime: Runtime, count: int, before_bytes: int, *, real: bool) -> Iterator[Figure]:
    runtime.share()
    with ThreadPoolExecutor(_DEPLOYERS) as pool:
        calls = [partial(_call, *each) for each in pool.map(partial(_load, runtime), range(count))]
    first_ms = [1000 * time_once(call) for call in calls]
    rounds = [1000 * time_once(call) for _ in range(_ROUNDS) for call in calls]
    tenants = f"{count} tenants with a kernel each"
    yield sampled(f"{tenants}, called in turn", "ms", rounds, bar=1.0 if real else None)
    yield Figure(f"{tenants}, called in turn, p99", "ms", p99(rounds), 0.0, len(rounds))
    first = "first call in a new process of a kernel that was deployed before"
    yield sampled(first, "ms", first_ms[1:], bar=20.0 if real else None)
    yield Figure(f"{first}, p99", "ms", p99(first_ms[1:]), 0.0, count - 1, bar=20.0 if real else None)
    if real:
        each_mib = (used_bytes(runtime.device.ordinal) - before_bytes) / MIB / count
        yield Figure(f"{tenants}, memory of the GPU at rest for each", "MiB", each_mib, 0.0, 1, bar=40.0)


def _beside_neighbours(device: str, seconds: float, *, real: bool) -> Iterator[Figure]:
    long_ns, blocks, threads = (5_000_000_000, 264, 1024) if real else (100_000_000, 1, 1)
    long = Request(
        module=spinning_guest(long_ns, blocks, threads), export="spin", tenant="long", grants=_CUDA, limits=_LIMITS
    )
    small = Request(module=read_guest("sandbox"), export="once", tenant="small", grants=_CUDA, memory_kind="staged")
    with WorkerExecutor(device, isolation="guarded") as executor:
        alone_ms = _steady(executor, small, seconds / 4)
        numbers = itertools.count(1)
        with _flood(lambda: _answer(executor, long)), _flood(lambda: _answer(executor, _loader(next(numbers)))):
            beside_ms = _steady(executor, small, seconds)
        loads = next(numbers) - 1
        deployed = [_deployed(number) for number in range(_DEPLOYED if real else 2)]
        for each in deployed:
            _complete(executor, each)
        lost_s = _lost(executor, small)
        for each in deployed:  # has the worker compile the guest's module, which takes longer than the rest
            executor.submit(structs.replace(each, export="nothing")).result()
        first_ms = [1000 * time_once(partial(_complete, executor, each)) for each in deployed]
    yield sampled("a small kernel through a worker, alone", "ms", alone_ms)
    shown = "a small kernel beside one of 5 s at all times and a loader of new kernels"
    yield Figure(f"{shown}, p99", "ms", p99(beside_ms), 0.0, len(beside_ms), bar=30.0 if real else None)
    yield Figure(f"{shown}, longest", "ms", max(beside_ms), 0.0, len(beside_ms))
    yield Figure("new kernels that were loaded meanwhile", "", loads, 0.0, 1)
    yield Figure("from the end of the worker's process to an answer of the next one", "s", lost_s, 0.0, 1, bar=3.0)
    name, bar = "first kernel through a new worker, which was deployed before", 20.0 if real else None
    yield sampled(name, "ms", first_ms, bar=bar)
    yield Figure(f"{name}, longest", "ms", max(first_ms), 0.0, len(first_ms))


_CUDA: Final = Grants(cuda=True)


def _deployed(number: int) -> Request:
    """Return a call of a tenant with a kernel of its own."""
    tenant = f"deployed{number}"
    return Request(module=own_guest(number), export="once", tenant=tenant, grants=_CUDA, memory_kind="staged")


def _complete(executor: WorkerExecutor, request: Request) -> None:
    values = executor.submit(request).result().values
    if values != (0,):
        raise InternalError(f"a guest of the benchmark returned {values}")


def _loader(number: int) -> Request:
    return Request(module=spinning_guest(number, 1, 1), export="spin", tenant="loader", grants=_CUDA, limits=_LIMITS)


def _answer(executor: WorkerExecutor, request: Request) -> float:
    """Return the ms until a request is answered; a refused one counts as well."""
    began_s = time.perf_counter()
    with suppress(TensorWasmError):
        executor.submit(request).result()
    return 1000 * (time.perf_counter() - began_s)


def _lost(executor: WorkerExecutor, request: Request) -> float:
    """Kill the processes of all workers, and return the seconds until a request is answered again."""
    for worker in executor.workers():
        if worker.pid is not None:
            os.kill(worker.pid, signal.SIGKILL)
    began_s = time.perf_counter()
    while True:
        with suppress(TensorWasmError):  # the call that finds out
            if executor.submit(request).result().values == (0,):
                return time.perf_counter() - began_s


def _steady(executor: WorkerExecutor, request: Request, seconds: float) -> list[float]:
    """Return the ms of requests, one every 5 ms or after the last one, whichever is later."""
    if executor.submit(request).result().values != (0,):
        raise InternalError("the small kernel gave a wrong result")
    found, ends_s = [], time.perf_counter() + seconds
    while time.perf_counter() < ends_s:
        found.append(_answer(executor, request))
        time.sleep(max(0.0, _PERIOD_S - found[-1] / 1000))
    return found


@contextmanager
def _flood(step: Callable[[], object]) -> Iterator[None]:
    """Do something again and again, on a thread, for the length of a ``with``."""
    ended = threading.Event()

    def run() -> None:
        while not ended.is_set():
            step()

    thread = threading.Thread(target=run, name="tensorwasm-bench-flood")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
