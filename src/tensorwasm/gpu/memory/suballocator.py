"""One tenant's device memory, cut from chunks that come from a pool of the device with the tenant's cap.

A request is charged to the tenant's account first, which decides. The pool, whose cap the device itself enforces, is
the second lock: it holds even if the accounts should be wrong. Most requests are met from chunks that exist already,
without a call of the driver.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from tensorwasm.errors import InternalError, InvalidArgs, QuotaExceeded
from tensorwasm.gpu.device.protocols import Pool, Pools
from tensorwasm.gpu.limits.accounts import Account, Reservation
from tensorwasm.values import MIB, Region


@dataclass(slots=True, eq=False)
class Chunk:
    """A range of addresses that is handed out in pieces.

    Attributes:
        address: first byte.
        size_bytes: length.
        used_bytes: handed out.
        sizes: free spans, start to size.
        starts: free spans, end to start.
    """

    address: int
    size_bytes: int
    used_bytes: int = 0
    sizes: dict[int, int] = field(default_factory=dict)
    starts: dict[int, int] = field(default_factory=dict)


class FreeList:
    """The free spans of some chunks. Not safe from several threads.

    Chunks may lie side by side: spans are joined within a chunk only. A search takes log n steps; adding and removing a
    span moves the n pointers behind it, which is less than the search for any n that limits allow.
    """

    def __init__(self) -> None:
        self._by_size: list[tuple[int, int, Chunk]] = []

    def add(self, chunk: Chunk) -> None:
        """Add a chunk, all of it free."""
        self._insert(chunk, chunk.address, chunk.size_bytes)

    def remove(self, chunk: Chunk) -> None:
        """Remove a chunk, all of which is free."""
        self._extract(chunk, chunk.address)

    def take(self, size_bytes: int) -> tuple[int, Chunk] | None:
        """Return the start of the smallest span that is long enough, of several the lowest, and its chunk; or None."""
        at = bisect_left(self._by_size, (size_bytes,))
        if at == len(self._by_size):
            return None
        span_bytes, address, chunk = self._by_size[at]
        self._extract(chunk, address)
        if span_bytes > size_bytes:
            self._insert(chunk, address + size_bytes, span_bytes - size_bytes)
        chunk.used_bytes += size_bytes
        return address, chunk

    def put(self, chunk: Chunk, address: int, size_bytes: int) -> None:
        """Take back a piece from `take`, all of it."""
        chunk.used_bytes -= size_bytes
        end = address + size_bytes
        if end in chunk.sizes:
            size_bytes += self._extract(chunk, end)
        if address in chunk.starts:
            before = chunk.starts[address]
            size_bytes += self._extract(chunk, before)
            address = before
        self._insert(chunk, address, size_bytes)

    def longest_bytes(self) -> int:
        """Return the bytes of the longest span, 0 without any."""
        return self._by_size[-1][0] if self._by_size else 0

    def _insert(self, chunk: Chunk, address: int, size_bytes: int) -> None:
        chunk.sizes[address] = size_bytes
        chunk.starts[address + size_bytes] = address
        insort(self._by_size, (size_bytes, address, chunk))

    def _extract(self, chunk: Chunk, address: int) -> int:
        size_bytes = chunk.sizes.pop(address)
        del chunk.starts[address + size_bytes]
        del self._by_size[bisect_left(self._by_size, (size_bytes, address))]
        return size_bytes


GRAIN_BYTES: Final = 256
"""Sizes are rounded up to it: the alignment that a device's own allocations have."""
_CHUNK_BYTES: Final = 32 * MIB
"""Largest chunk for several regions under a cap above 64 MiB. Chunks are smaller under a small one, and a large region
has one of its own, so that a tenant can use all of its cap."""
_SMALL_CHUNK_BYTES: Final = MIB
_WHOLE_CAP_BYTES: Final = 64 * MIB
"""Up to such a cap the first chunk is all of it: a driver's pool grows by 32 MiB, and two of those that lie apart have
no room for three regions of 20."""
_CHUNKS_PER_CAP: Final = 16
_PIECES_PER_CHUNK: Final = 4

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SuballocatorStatistics:
    """A snapshot: live regions and the bytes charged for them, chunks, their bytes and pools, and failed releases."""

    allocations: int = 0
    allocated_bytes: int = 0
    chunks: int = 0
    chunk_bytes: int = 0
    pools: int = 0
    release_failures: int = 0


@dataclass(slots=True, eq=False)
class _CappedPool:
    """A pool and the bytes allocated from it."""

    pool: Pool
    max_bytes: int
    held_bytes: int = 0


@dataclass(slots=True, eq=False)
class _Piece:
    """A live region. Not frozen, which would double the cost of making one."""

    chunk: Chunk
    size_bytes: int
    taken_bytes: int
    reservation: Reservation


class Suballocator:
    """Cuts regions from chunks. Safe from any thread. Closed, it refuses every use with `InternalError`.

    A request that the free space cannot meet waits for the device to allocate a chunk; requests that it can meet do not
    wait for that one. At most one empty chunk is kept.

    A raised cap is served by a further pool for the difference, so that all pools together have the account's cap; once
    nothing is allocated there is one pool again. Until then a lowered cap is enforced by the account alone.

    Args:
        pools: of the device, which outlives the suballocator.
        account: charged for every region, with its size rounded up to 256 bytes.
        spare: called when the device has no memory left for a request within the cap: lets the device's other
            suballocators `trim`, and returns whether any could.
        granule_bytes: what chunks are multiples of, where the pools allocate nothing else; they are as small as the
            request allows then. 0 for chunks of any size.
    """

    def __init__(
        self, pools: Pools, account: Account, *, spare: Callable[[], bool] = lambda: False, granule_bytes: int = 0
    ) -> None:
        self._pools = pools
        self._account = account
        self._spare = spare
        self._granule_bytes = granule_bytes
        # Two locks, always taken in this order: one while the device is asked, one for the tables alone.
        self._growth = threading.Lock()
        self._tables = threading.RLock()
        self._free = FreeList()
        self._pieces: dict[int, _Piece] = {}
        self._chunks: dict[Chunk, _CappedPool] = {}
        self._sources: list[_CappedPool] = []
        self._idle: Chunk | None = None
        self._surplus: list[Chunk] = []
        self._release_failures = 0
        self._closed = False

    def allocate(self, size_bytes: int) -> Region:
        """Return device memory, aligned to 256 bytes, with undefined contents.

        Raises:
            QuotaExceeded: over the account's cap or the process's, or no piece of that size is left in either.
        """
        if size_bytes < 1:
            raise InvalidArgs("a region of device memory has at least 1 byte")
        taken_bytes = _rounded(size_bytes)
        with self._account.reserve(taken_bytes) as reservation:
            address = self._cut(size_bytes, taken_bytes, reservation)
            if address is None:
                address = self._cut_after_growth(size_bytes, taken_bytes, reservation)
        return Region(address, size_bytes, host=False)

    def has(self, size_bytes: int) -> bool:
        """Return whether the free space can meet a request without a call of the device."""
        with self._tables:
            return self._free.longest_bytes() >= _rounded(size_bytes)

    def free(self, region: Region) -> None:
        """Take back a live region from `allocate`, which no stream uses any more."""
        with self._tables:
            piece = self._pieces.get(region.address)
            if piece is None or piece.size_bytes != region.size_bytes or region.host:
                raise InternalError("a region that is not live in this suballocator was freed")
            del self._pieces[region.address]
            chunk = piece.chunk
            self._free.put(chunk, region.address, piece.taken_bytes)
            if not chunk.used_bytes:
                # A large one is not kept: cut up for others it would leave no room for another large region.
                if self._idle is None and chunk.size_bytes <= self._standard_bytes():
                    self._idle = chunk
                else:
                    self._set_apart(chunk)
            surplus = bool(self._surplus)
        piece.reservation.release()
        if surplus:
            with self._growth:
                self._give_back_surplus()

    def trim(self) -> bool:
        """Give back the empty chunk that is kept, charged to no tenant, for another tenant's request.

        Returns whether there was one; False while the suballocator grows, for which this does not wait.
        """
        if not self._growth.acquire(blocking=False):
            return False
        try:
            return self._give_up_idle()
        finally:
            self._growth.release()

    def statistics(self) -> SuballocatorStatistics:
        """Return a snapshot."""
        with self._tables:
            return SuballocatorStatistics(
                allocations=len(self._pieces),
                allocated_bytes=sum(piece.taken_bytes for piece in self._pieces.values()),
                chunks=len(self._chunks),
                chunk_bytes=sum(chunk.size_bytes for chunk in self._chunks),
                pools=len(self._sources),
                release_failures=self._release_failures,
            )

    def close(self) -> None:
        """Give everything back and refund it, live regions included. Idempotent; raises nothing.

        No stream may still use any of it. What the device fails to take back is logged and counted.
        """
        with self._growth:
            with self._tables:
                self._closed = True
                pieces, self._pieces = list(self._pieces.values()), {}
                self._surplus, self._free, self._idle = list(self._chunks), FreeList(), None
            self._give_back_surplus()
            for piece in pieces:
                piece.reservation.release()
            self._close_pools()

    # ------------------------------------------------------------------------------------------- the tables

    def _cut(self, size_bytes: int, taken_bytes: int, reservation: Reservation) -> int | None:
        """Make a piece of free space and commit its charge, in one step; None if nothing free is long enough."""
        with self._tables:
            if self._closed:
                raise InternalError("this suballocator of device memory is closed")
            found = self._free.take(taken_bytes)
            if found is None:
                return None
            address, chunk = found
            if chunk is self._idle:
                self._idle = None
            self._pieces[address] = _Piece(chunk, size_bytes, taken_bytes, reservation)
            reservation.commit()
            return address

    def _set_apart(self, chunk: Chunk) -> None:
        self._free.remove(chunk)
        self._surplus.append(chunk)

    # ------------------------------------------------------------------------------------------- the device

    def _cut_after_growth(self, size_bytes: int, taken_bytes: int, reservation: Reservation) -> int:
        with self._growth:
            # The thread that had the lock before may have left room for this request too.
            address = self._cut(size_bytes, taken_bytes, reservation)
            if address is not None:
                return address
            chunk, source = self._grow(taken_bytes)
            with self._tables:
                self._chunks[chunk] = source
                self._free.add(chunk)
                # Under the same lock, or another thread may take a piece of a chunk that is exactly long enough.
                address = self._cut(size_bytes, taken_bytes, reservation)
        if address is None:
            raise InternalError("a new chunk does not hold what it was made for")
        return address

    def _grow(self, taken_bytes: int) -> tuple[Chunk, _CappedPool]:
        """Return a new chunk for a request; if there is no room, after giving up idle chunks, at last others'."""
        self._give_back_surplus()
        self._fit_pools()
        added = self._obtain(taken_bytes)
        for give_up in (self._give_up_idle, self._spare):
            while added is None and give_up():
                self._fit_pools()
                added = self._obtain(taken_bytes)
        if added is None:
            self._account.count_refusal()
            raise QuotaExceeded(f"no {taken_bytes} bytes in one piece are left of the tenant's GPU memory")
        return added

    def _obtain(self, taken_bytes: int) -> tuple[Chunk, _CappedPool] | None:
        for chunk_bytes, source in self._candidates(taken_bytes):
            with suppress(QuotaExceeded):
                address = self._pools.pool_allocate(source.pool, chunk_bytes)
                source.held_bytes += chunk_bytes
                return Chunk(address, chunk_bytes), source
        return None

    def _candidates(self, taken_bytes: int) -> Iterator[tuple[int, _CappedPool]]:
        """Yield sizes to ask of pools: for each, first a chunk for several regions, then the size of the request."""
        standard_bytes = self._standard_bytes()
        own = taken_bytes * _PIECES_PER_CHUNK >= standard_bytes and self._account.max_bytes > _WHOLE_CAP_BYTES
        if self._granule_bytes:
            own = taken_bytes > self._granule_bytes
            standard_bytes = _rounded(_PIECES_PER_CHUNK * taken_bytes, self._granule_bytes)
            taken_bytes = _rounded(taken_bytes, self._granule_bytes)
        for source in self._sources:
            room_bytes = source.max_bytes - source.held_bytes
            shared_bytes = min(standard_bytes, room_bytes)
            if not own and shared_bytes > taken_bytes:
                yield shared_bytes, source
            if room_bytes >= taken_bytes:
                yield taken_bytes, source

    def _standard_bytes(self) -> int:
        if self._granule_bytes:
            return self._granule_bytes
        cap_bytes = self._account.max_bytes
        if cap_bytes <= _WHOLE_CAP_BYTES:
            return _rounded(cap_bytes)
        return _rounded(min(_CHUNK_BYTES, max(_SMALL_CHUNK_BYTES, cap_bytes // _CHUNKS_PER_CAP)))

    def _fit_pools(self) -> None:
        """Open pools up to the account's cap in all; if nothing is allocated from any, one alone."""
        cap_bytes = _rounded(self._account.max_bytes, self._granule_bytes or GRAIN_BYTES)
        sizes = [source.max_bytes for source in self._sources]
        if sizes != [cap_bytes] and not any(source.held_bytes for source in self._sources):
            self._close_pools()
        max_bytes = cap_bytes - sum(source.max_bytes for source in self._sources)
        if max_bytes > 0:
            with suppress(QuotaExceeded):  # the pools that there are may do; else the request is refused
                self._sources.append(_CappedPool(self._pools.open_pool(max_bytes), max_bytes))

    def _give_up_idle(self) -> bool:
        with self._tables:
            chunk, self._idle = self._idle, None
            if chunk is not None:
                self._set_apart(chunk)
        self._give_back_surplus()
        return chunk is not None

    def _give_back_surplus(self) -> None:
        """Return chunks to their pools; one that its pool does not take is not used again, and counts as held."""
        with self._tables:
            surplus = [(chunk, self._chunks.pop(chunk)) for chunk in self._surplus]
            self._surplus.clear()
        for chunk, source in surplus:
            if self._attempt(self._pools.pool_free, source.pool, chunk.address):
                source.held_bytes -= chunk.size_bytes

    def _close_pools(self) -> None:
        for source in self._sources:
            if source.held_bytes == 0:
                self._attempt(self._pools.close_pool, source.pool)
        self._sources = []

    def _attempt(self, release: Callable[..., None], *args: Any) -> bool:
        try:
            release(*args)
        except Exception:  # noqa: BLE001 - the region is free even if the memory behind it is not
            _log.exception("a device failed to take back memory of tenant %s", self._account.tenant)
            self._release_failures += 1
            return False
        return True


def _rounded(size_bytes: int, grain_bytes: int = GRAIN_BYTES) -> int:
    return -(-size_bytes // grain_bytes) * grain_bytes
