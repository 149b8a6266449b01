"""Whether quotas hold while 64 threads allocate and free under one cap, how fast, and how soon a refusal comes.

Nothing that is measured is believed: auditors with counters and locks of their own stand between the slab and the
device's pools, and between the threads and the slab.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tensorwasm.bench.figures import Figure, Report, summarise
from tensorwasm.errors import InternalError, QuotaExceeded
from tensorwasm.gpu.device.protocols import Pool, Pools
from tensorwasm.gpu.limits.accounts import Account, Accounts
from tensorwasm.gpu.limits.quota import MemoryLedger
from tensorwasm.gpu.opening import open_device
from tensorwasm.gpu.slab import GRAIN_BYTES, Slab
from tensorwasm.values import MIB, Region

OPERATIONS: Final = 1_000_000
THREADS: Final = 64
CAP_BYTES: Final = 64 * MIB
REFUSALS: Final = 10_000
REFUSAL_BAR_US: Final = 10.0
_SIZES: Final = (1, 256, 4096, 60_000, MIB, 4 * MIB)


class Auditor:
    """A plain counter of live bytes, which remembers the most that it has seen."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.live_bytes = 0
        self.most_bytes = 0

    def count(self, size_bytes: int) -> None:
        """Add to the live bytes, or take away."""
        with self._lock:
            self.live_bytes += size_bytes
            self.most_bytes = max(self.most_bytes, self.live_bytes)


class AuditedPools:
    """A device's pools, every allocation counted from before it may be there until after it is gone."""

    def __init__(self, pools: Pools) -> None:
        self._pools = pools
        self._sizes: dict[int, int] = {}
        self.auditor = Auditor()
        self.capped = pools.capped
        self.open_pool = pools.open_pool
        self.close_pool = pools.close_pool

    def pool_allocate(self, pool: Pool, size_bytes: int) -> int:
        """See `Pools.pool_allocate`."""
        self.auditor.count(size_bytes)
        try:
            address = self._pools.pool_allocate(pool, size_bytes)
        except BaseException:
            self.auditor.count(-size_bytes)
            raise
        self._sizes[address] = size_bytes
        return address

    def pool_free(self, pool: Pool, address: int) -> None:
        """See `Pools.pool_free`."""
        self._pools.pool_free(pool, address)
        self.auditor.count(-self._sizes.pop(address))


@dataclass(frozen=True, slots=True)
class Contention:
    """What became of many operations under one cap.

    Attributes:
        seconds: from the first to the last.
        operations: allocations, refused ones too, and frees.
        refused: of them.
        most_charged_bytes: most that the account ever had charged, what waited for the device included.
        most_region_bytes: most live bytes of regions, by the auditor.
        most_chunk_bytes: most live bytes of chunks, by the auditor.
        left_bytes: charged in the ledger, live by the auditors, or still in the slab at the end.
    """

    seconds: float
    operations: int
    refused: int
    most_charged_bytes: int
    most_region_bytes: int
    most_chunk_bytes: int
    left_bytes: int


def measure_quota(choice: str = "auto", operations: int = OPERATIONS) -> Report:
    """Measure accounts and slabs over the pools of a device.

    Args:
        choice: the device.
        operations: how many, over all threads.
    """
    device, _ = open_device(choice)
    try:
        run = contend(device.pools, operations)
        figures = _figures(run, refusals_us(), pairs_us(device.pools))
        return Report("quota", device.info.name, figures)
    finally:
        device.close()


def contend(pools: Pools, operations: int, threads: int = THREADS, cap_bytes: int = CAP_BYTES) -> Contention:
    """Allocate and free at random from many threads under one cap; at the end everything is freed."""
    ledger = MemoryLedger()
    account = Accounts(ledger).register("contended", cap_bytes)
    audited, regions = AuditedPools(pools), Auditor()
    slab = Slab(audited, account)
    each = max(1, operations // threads)
    workers = [_Worker(slab, regions, each, cap_bytes // threads, seed) for seed in range(threads)]
    began = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    seconds = time.perf_counter() - began
    slab.close()
    if broken := [worker.failure for worker in workers if worker.failure is not None]:
        raise InternalError(f"{len(broken)} of {threads} threads failed: {broken[0]}") from broken[0]
    left_bytes = (ledger.statistics().device_bytes, regions.live_bytes, audited.auditor.live_bytes)
    return Contention(
        seconds=seconds,
        operations=each * threads,
        refused=sum(worker.refused for worker in workers),
        most_charged_bytes=account.statistics().peak_bytes,
        most_region_bytes=regions.most_bytes,
        most_chunk_bytes=audited.auditor.most_bytes,
        left_bytes=max(left_bytes),
    )


def refusals_us(count: int = REFUSALS) -> tuple[float, ...]:
    """Return how long refusals by a full account take, in microseconds."""
    account: Account = Accounts(MemoryLedger()).register("full", MIB)
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
    return tuple(taken)


def pairs_us(pools: Pools, count: int = REFUSALS) -> tuple[float, ...]:
    """Return how long it takes to allocate a small region and free it again, in microseconds."""
    slab = Slab(pools, Accounts(MemoryLedger()).register("alone", CAP_BYTES))
    beside = slab.allocate(GRAIN_BYTES)
    taken = []
    for _ in range(count):
        began = time.perf_counter_ns()
        slab.free(slab.allocate(4096))
        taken.append((time.perf_counter_ns() - began) / 1e3)
    slab.free(beside)
    slab.close()
    return tuple(taken)


class _Worker(threading.Thread):
    """Allocates and frees, wanting about twice its share of the cap, so that some requests are refused."""

    def __init__(self, slab: Slab, auditor: Auditor, operations: int, share_bytes: int, seed: int) -> None:
        super().__init__(daemon=True)
        self._slab, self._auditor, self._operations = slab, auditor, operations
        self._share_bytes = share_bytes
        self._draw = random.Random(seed)  # noqa: S311 - inputs of a benchmark, the same in every run
        self._held: list[Region] = []
        self._held_bytes = 0
        self.refused = 0
        self.failure: Exception | None = None

    def run(self) -> None:
        try:
            for _ in range(self._operations - 1):
                if self._held and (self._held_bytes > 2 * self._share_bytes or self._draw.random() < 0.4):
                    self._free(self._draw.randrange(len(self._held)))
                else:
                    self._allocate(self._draw.choice(_SIZES))
            while self._held:
                self._free(0)
        except Exception as error:  # noqa: BLE001 - the thread that started this one reports it
            self.failure = error

    def _allocate(self, size_bytes: int) -> None:
        try:
            region = self._slab.allocate(size_bytes)
        except QuotaExceeded:
            self.refused += 1
            return
        self._auditor.count(_charged(region))
        self._held.append(region)
        self._held_bytes += size_bytes

    def _free(self, index: int) -> None:
        region = self._held.pop(index)
        self._held_bytes -= region.size_bytes
        self._auditor.count(-_charged(region))
        self._slab.free(region)


def _charged(region: Region) -> int:
    return -(-region.size_bytes // GRAIN_BYTES) * GRAIN_BYTES


def _figures(run: Contention, refused_us: Sequence[float], pair_us: Sequence[float]) -> tuple[Figure, ...]:
    most_bytes = max(run.most_charged_bytes, run.most_region_bytes, run.most_chunk_bytes)
    what = f"{THREADS} threads, {run.operations:,} operations under {CAP_BYTES // MIB} MiB"
    return (
        Figure(f"{what}: speed", "operations/s", run.operations / run.seconds, 0.0, 1),
        Figure(f"{what}: refused", "operations", float(run.refused), 0.0, 1, bar=1.0, sense="at least"),
        Figure(f"{what}: over the cap", "bytes", float(max(0, most_bytes - CAP_BYTES)), 0.0, 1, bar=0.0),
        Figure(f"{what}: most in use", "bytes", float(run.most_region_bytes), 0.0, 1),
        Figure(f"{what}: left at the end", "bytes", float(run.left_bytes), 0.0, 1, bar=0.0),
        Figure("refusal over the cap", "us", *summarise(refused_us), bar=REFUSAL_BAR_US),
        Figure("allocate and free 4 KiB, one thread", "us", *summarise(pair_us)),
    )
