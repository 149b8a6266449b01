"""The benchmark ``shares``: the GPU's time between two tenants of weights 3 and 1 who both want all of it.

Each tenant keeps two calls under way, whose guests start some milliseconds of kernels, wait, and start more. A kernel
does a fixed amount of work on all multiprocessors, so a tenant's time is the number of his kernels times what one takes
alone. Kernels of 50 ms run in the guarded workers' second process, which shares the GPU with the first.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from tensorwasm.bench.figures import Figure, Report
from tensorwasm.bench.peers.host import assembled
from tensorwasm.errors import InternalError
from tensorwasm.runtime import Grants
from tensorwasm.runtime.executor.request import Request
from tensorwasm.runtime.workers.pool import WorkerExecutor
from tensorwasm.values import DeviceInfo, Limits

_WEIGHTS: Final = (3, 1)
_SECONDS: Final = 10.0
_CALL_S: Final = 0.1
"""What the kernels of one call take, so that two calls under way keep the GPU busy."""
_BATCH_S: Final = 0.004
"""What the kernels take that a guest starts before it waits: a call through a worker takes less than that to wait."""
_TURNS: Final = 1_000
"""Of the kernel that is timed first."""
_MOST_GROWTH: Final = 30
"""How many times longer the kernel is that is timed next."""
_CUDA: Final = Grants(cuda=True)
_LIMITS: Final = Limits(wall_s=60.0)
_KERNEL: Final = """.version 7.0\\n.target sm_80\\n.address_size 64\\n.visible .entry work() {{\\n
.reg .u32 %r; .reg .u64 %d; .reg .pred %p;\\nmov.u32 %r, {turns}; mov.u64 %d, %clock64;\\n
$again:\\nmad.lo.u64 %d, %d, 6364136223846793005, 1442695040888963407;\\n
sub.u32 %r, %r, 1; setp.ne.u32 %p, %r, 0; @%p bra $again;\\nsetp.eq.u64 %p, %d, 0; @%p trap;\\nret;\\n}}\\n"""
"""Computes the next number of a sequence on every turn; a sequence that nothing used would be left out."""
_GUEST: Final = """(module
  (import "wasi:cuda/host@0.3.0" "wasi_cuda_load_ptx" (func $load (param i32 i32 i32 i32) (result i64)))
  (import "wasi:cuda/host@0.3.0" "wasi_cuda_launch_async"
    (func $launch (param i64 i32 i32 i32 i32 i32 i32 i32 i32 i32 i64) (result i32)))
  (import "wasi:cuda/host@0.3.0" "wasi_cuda_sync" (func $sync (result i32)))
  (memory (export "memory") 1)
  (data (i32.const 0) "work") (data (i32.const 16) "{ptx}")
  (func (export "work") (param $count i32) (param $batch i32) (result i32) (local $kernel i64) (local $left i32)
    (local.set $kernel (call $load (i32.const 16) (i32.const {size}) (i32.const 0) (i32.const 4)))
    (loop $again
      (local.set $left (local.get $batch))
      (loop $more
        (if (call $launch (local.get $kernel) (i32.const {blocks}) (i32.const 1) (i32.const 1) (i32.const {threads})
            (i32.const 1) (i32.const 1) (i32.const 0) (i32.const 0) (i32.const 0) (i64.const 0))
          (then (return (i32.const 1))))
        (local.set $left (i32.sub (local.get $left) (i32.const 1)))
        (br_if $more (local.get $left)))
      (if (call $sync) (then (return (i32.const 2))))
      (local.set $count (i32.sub (local.get $count) (i32.const 1)))
      (br_if $again (local.get $count)))
    (i32.const 0)))"""


class _Kernel(NamedTuple):
    """A kernel of a certain length."""

    module: bytes
    alone_s: float  # what one takes
    rate: float  # how many a second two calls under way complete alone
    batches: int  # in a call
    batch: int  # kernels that a guest starts before it waits


def measure_shares(choice: str = "auto") -> Report:
    """Measure how the GPU's time is shared, for short and long kernels, both ways round."""
    with WorkerExecutor(choice if choice != "auto" else "cuda", isolation="guarded") as executor:
        _complete(executor, _request(_module(1, 1), (1, 1), "first", 1))
        info = executor.workers()[0].info
        if info is None:
            raise InternalError("a worker without a device has answered")
        return Report("shares", info.name, tuple(_measure(executor, info)))


def _measure(executor: WorkerExecutor, info: DeviceInfo) -> Iterator[Figure]:
    real = info.kind == "cuda"
    seconds, wanted_s = (_SECONDS, (0.0001, 0.05)) if real else (4.0, (0.002, 0.02))
    blocks = 2 * info.multiprocessors if real else 1
    modules = [_calibrate(executor, each, blocks, _TURNS if real else 20) for each in wanted_s]
    kernels = [_time(executor, *each, seconds / 4) for each in zip(modules, wanted_s, strict=True)]
    for one, two in itertools.product(kernels, repeat=2):
        had = _flood(executor, (one, two), seconds)
        weighted = had[0] * one.alone_s / _WEIGHTS[0], had[1] * two.alone_s / _WEIGHTS[1]
        lengths = f"kernels of {1e3 * one.alone_s:.2g} and {1e3 * two.alone_s:.2g} ms"
        off = abs(weighted[0] / weighted[1] - 1.0) if weighted[1] else float("inf")
        judged = 10.0 if real else None
        yield Figure(f"{lengths}, weights 3 and 1: off their shares", "%", 100 * off, 0.0, 1, bar=judged)
        total = (had[0] / one.rate + had[1] / two.rate) / seconds
        least = 0.95 if real else None
        yield Figure(f"{lengths}: work of both, of unshared", "", total, 0.0, 1, bar=least, sense="at least")


def _calibrate(executor: WorkerExecutor, wanted_s: float, blocks: int, turns: int) -> bytes:
    """Return a guest whose kernel takes so long, without what it takes to start one and to wait for it."""
    batch = _batch(wanted_s)
    count = max(5, round(2 * _CALL_S / wanted_s / batch))
    for _ in range(3):  # the last time with about as many turns as there will be
        few_s, many_s = (_alone(executor, _module(each * turns, blocks), count, batch) for each in (1, 3))
        turns = max(1, round(turns * min(2 * wanted_s / max(many_s - few_s, 1e-9), _MOST_GROWTH)))
    return _module(turns, blocks)


def _module(turns: int, blocks: int) -> bytes:
    """Return a guest whose kernel has so many blocks, of 1,024 threads if there are several, and turns so often."""
    ptx = _KERNEL.format(turns=turns).replace("\n", "")
    threads = 1024 if blocks > 1 else 32
    return assembled(_GUEST.format(ptx=ptx, size=len(ptx.replace("\\n", " ")), blocks=blocks, threads=threads))


def _batch(kernel_s: float) -> int:
    return max(1, round(_BATCH_S / kernel_s))


def _request(module: bytes, counts: tuple[int, int], tenant: str, weight: int) -> Request:
    return Request(
        module=module,
        export="work",
        args=counts,
        tenant=tenant,
        grants=_CUDA,
        limits=_LIMITS,
        weight=weight,
    )


def _complete(executor: WorkerExecutor, request: Request) -> None:
    values = executor.submit(request).result().values
    if values != (0,):
        raise InternalError(f"a guest of the benchmark returned {values}")


def _alone(executor: WorkerExecutor, module: bytes, count: int, batch: int) -> float:
    """Return what one kernel of a call takes, in seconds: the first calls may start a worker, or move to another."""
    request = _request(module, (count, batch), "alone", 1)
    took_s = []
    for _ in range(4):
        began_s = time.perf_counter()
        _complete(executor, request)
        took_s.append(time.perf_counter() - began_s)
    return min(took_s) / count / batch


def _time(executor: WorkerExecutor, module: bytes, wanted_s: float, seconds: float) -> _Kernel:
    batch = _batch(wanted_s)
    kernel = _Kernel(module, wanted_s, 0.0, max(1, round(_CALL_S / wanted_s / batch)), batch)
    rate = _flood(executor, (kernel,), seconds)[0] / seconds
    if not rate:
        raise InternalError(f"no call of the benchmark ended in {seconds} s")
    return kernel._replace(alone_s=1.0 / rate, rate=rate)


def _flood(executor: WorkerExecutor, kernels: Sequence[_Kernel], seconds: float) -> list[float]:
    """Have each tenant's calls made without a pause; return how many kernels of each ran in the given time.

    A call that is only partly within the time counts in part, as if its kernels had run evenly.
    """
    ended = threading.Event()
    calls: list[list[tuple[float, float]]] = [[] for _ in kernels]

    def keep(at: int) -> None:
        kernel = kernels[at]
        counts = kernel.batches, kernel.batch
        request = _request(kernel.module, counts, f"tenant{at}", _WEIGHTS[at])
        while not ended.is_set():
            call_began_s = time.perf_counter()
            _complete(executor, request)
            calls[at].append((call_began_s, time.perf_counter()))

    threads = [
        threading.Thread(target=keep, args=(at,), name="tensorwasm-bench-flood")
        for at in range(len(kernels))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    time.sleep(seconds / 5)  # until their turns have settled
    began_s = time.perf_counter()
    time.sleep(seconds)
    ends_s = time.perf_counter()
    ended.set()
    for thread in threads:
        thread.join()
    return [
        kernel.batches * kernel.batch * sum(max(0.0, min(b, ends_s) - max(a, began_s)) / (b - a) for a, b in each)
        for kernel, each in zip(kernels, calls, strict=True)
    ]
