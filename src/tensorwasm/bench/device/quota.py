"""The benchmark ``quota``: whether quotas hold under contention, how fast, and how soon a refusal comes.

64 threads allocate and free under one cap. The measured code is not trusted: independent counters with locks of their
own stand between the slab and the device's pools, and between the threads and the slab.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from tensorwasm.bench.figures import Figure, Report, sampled
from tensorwasm.errors import InternalError, QuotaExceeded
from tensorwasm.gpu.device.protocols import Pool, Pools
from tensorwasm.gpu.limits.accounts import Accounts, MemoryLedger
from tensorwasm.gpu.memory.suballocator import GRAIN_BYTES, Suballocator
from tensorwasm.gpu.opening import open_device
from tensorwasm.values import MIB, Region

THREADS: Final = 64
CAP_BYTES: Final = 64 * MIB
REFUSALS: Final = 10_000


class ByteCounter:
    """Counts live bytes, and remembers the most."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.live_bytes = 0
        self.most_bytes = 0

    def count(self, size_bytes: int) -> None:
        """Add to the live bytes; a negative size takes away."""
        with self._lock:
            self.live_bytes += size_bytes
            self.most_bytes = max(self.most_bytes, self.live_bytes)


class CountedPools:
    """A device's pools; an allocation is counted from before it may exist until after it is gone."""

    def __init__(self, pools: Pools) -> None:
        self._pools = pools
        self._sizes: dict[int, int] = {}
        self.counter = ByteCounter()
        self.capped = pools.capped
        self.open_pool = pools.open_pool
        self.close_pool = pools.close_pool

    def pool_allocate(self, pool: Pool, size_bytes: int) -> int:
        """See `Pools.pool_allocate`."""
        self.counter.count(size_bytes)
        try:
            address = self._pools.pool_allocate(pool, size_bytes)
        except BaseException:
            self.counter.count(-size_bytes)
            raise
        self._sizes[address] = size_bytes
        return address

    def pool_free(self, pool: Pool, address: int) -> None:
        """See `Pools.pool_free`."""
        self._pools.pool_free(pool, address)
        self.counter.count(-self._sizes.pop(address))


@dataclass(frozen=True, slots=True)
class ContentionResult:
    """The outcome of many operations under one cap.

    Attributes:
        seconds: from the first to the last.
        operations: allocations, refused ones too, and frees.
        refused: refused allocations.
        most_charged_bytes: most that the account had charged, reservations included.
        most_region_bytes: most live bytes of regions, as counted here.
        most_chunk_bytes: most live bytes of chunks, as counted here.
        left_bytes: most that was charged or counted at the end.
    """

    seconds: float
    operations: int
    refused: int
    most_charged_bytes: int
    most_region_bytes: int
    most_chunk_bytes: int
    left_bytes: int


def measure_quota(choice: str = "auto", operations: int = 1_000_000) -> Report:
    """Measure accounts and slabs over the pools of a device, with so many operations over all threads."""
    with closing(open_device(choice)[0]) as device:
        figures = _figures(contend(device.pools, operations), refusals_us(), pairs_us(device.pools))
        return Report("quota", device.info.name, figures)


def contend(pools: Pools, operations: int, threads: int = THREADS, cap_bytes: int = CAP_BYTES) -> ContentionResult:
    """Allocate and free at random from many threads under one cap; at the end everything is freed."""
    ledger = MemoryLedger()
    account = Accounts(ledger).register("contended", cap_bytes)
    counted, regions = CountedPools(pools), ByteCounter()
    slab = Suballocator(counted, account)
    each = max(1, operations // threads)
    refused: list[int] = []
    failures: list[Exception] = []

    def work(seed: int) -> None:
        try:
            refused.append(_churn(slab, regions, each, cap_bytes // threads, seed))
        except Exception as error:  # noqa: BLE001 - raised below, once all threads have ended
            failures.append(error)

    workers = [threading.Thread(target=work, args=(seed,), daemon=True) for seed in range(threads)]
    began = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    seconds = time.perf_counter() - began
    slab.close()
    if failures:
        raise InternalError(f"{len(failures)} of {threads} threads failed: {failures[0]}") from failures[0]
    return ContentionResult(
        seconds=seconds,
        operations=each * threads,
        refused=sum(refused),
        most_charged_bytes=account.statistics().peak_bytes,
        most_region_bytes=regions.most_bytes,
        most_chunk_bytes=counted.counter.most_bytes,
        left_bytes=max(ledger.statistics().device_bytes, regions.live_bytes, counted.counter.live_bytes),
    )


def refusals_us(count: int = REFUSALS) -> list[float]:
    """Return how long refusals by a full account take, in microseconds."""
    account = Accounts(MemoryLedger()).register("full", MIB)
    taken = []
    with account.reserve(MIB):
        for _ in range(count):
            began = time.perf_counter_ns()
            try:
                account.reserve(GRAIN_BYTES)
            except QuotaExceeded:
                taken.append((time.perf_counter_ns() - began) / 1e3)
    if len(taken) != count:
        raise InternalError("a full account has admitted something")
    return taken


def pairs_us(pools: Pools, count: int = REFUSALS) -> list[float]:
    """Return how long it takes to allocate a small region and free it again, in microseconds."""
    slab = Suballocator(pools, Accounts(MemoryLedger()).register("alone", CAP_BYTES))
    beside = slab.allocate(GRAIN_BYTES)
    taken = []
    for _ in range(count):
        began = time.perf_counter_ns()
        slab.free(slab.allocate(4096))
        taken.append((time.perf_counter_ns() - began) / 1e3)
    slab.free(beside)
    slab.close()
    return taken


def _churn(slab: Suballocator, counter: ByteCounter, operations: int, share_bytes: int, seed: int) -> int:
    """Allocate and free about twice a share of the cap, so that some requests are refused; return how many."""
    draw = random.Random(seed)  # noqa: S311 - inputs of a benchmark, the same in every run
    held: list[Region] = []
    held_bytes = refused = 0
    for _ in range(operations - 1):
        if held and (held_bytes > 2 * share_bytes or draw.random() < 0.4):
            held_bytes -= _free(slab, counter, held.pop(draw.randrange(len(held))))
            continue
        size_bytes = draw.choice((1, 256, 4096, 60_000, MIB, 4 * MIB))
        try:
            region = slab.allocate(size_bytes)
        except QuotaExceeded:
            refused += 1
            continue
        counter.count(_charged(region))
        held.append(region)
        held_bytes += size_bytes
    while held:
        _free(slab, counter, held.pop(0))
    return refused


def _free(slab: Suballocator, counter: ByteCounter, region: Region) -> int:
    counter.count(-_charged(region))
    slab.free(region)
    return region.size_bytes


def _charged(region: Region) -> int:
    return -(-region.size_bytes // GRAIN_BYTES) * GRAIN_BYTES


def _figures(run: ContentionResult, refused_us: Sequence[float], pair_us: Sequence[float]) -> tuple[Figure, ...]:
    most_bytes = max(run.most_charged_bytes, run.most_region_bytes, run.most_chunk_bytes)
    what = f"{THREADS} threads, {run.operations:,} operations under {CAP_BYTES // MIB} MiB"
    return (
        Figure(f"{what}: speed", "operations/s", run.operations / run.seconds, 0.0, 1),
        Figure(f"{what}: refused", "operations", float(run.refused), 0.0, 1, bar=1.0, sense="at least"),
        Figure(f"{what}: over the cap", "bytes", float(max(0, most_bytes - CAP_BYTES)), 0.0, 1, bar=0.0),
        Figure(f"{what}: most in use", "bytes", float(run.most_region_bytes), 0.0, 1),
        Figure(f"{what}: left at the end", "bytes", float(run.left_bytes), 0.0, 1, bar=0.0),
        sampled("refusal over the cap", "us", refused_us, bar=10.0),
        sampled("allocate and free 4 KiB, one thread", "us", pair_us),
    )
