"""One tenant's device memory, handed out in pieces of chunks that come from a pool with the tenant's cap.

A request is charged to the tenant's account first, which is the lock that decides. The pool, whose cap the device
itself enforces, is the second: it holds even where the books should be wrong. Most requests are met from chunks that
are there and never reach the driver.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from tensorwasm.errors import InternalError, InvalidArgs, QuotaExceeded
from tensorwasm.gpu.device.protocols import Pool, Pools
from tensorwasm.gpu.limits.accounts import Account, Reservation
from tensorwasm.gpu.spans import Chunk, Spans
from tensorwasm.values import MIB, Region

GRAIN_BYTES: Final = 256
"""Sizes are rounded up to it: the alignment that a device's own allocations have."""
CHUNK_BYTES: Final = 32 * MIB
_SMALL_CHUNK_BYTES: Final = MIB
_WHOLE_CAP_BYTES: Final = 64 * MIB
"""Up to such a cap the first chunk is all of it: a driver's pool grows by 32 MiB, of which two that are apart have no
room for three regions of 20."""
_CHUNKS_PER_CAP: Final = 16
_PIECES_PER_CHUNK: Final = 4

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SlabStatistics:
    """A snapshot of a slab.

    Attributes:
        allocations: live regions.
        allocated_bytes: what they are charged.
        chunks: chunks that regions are cut from.
        chunk_bytes: their bytes.
        pools: pools that chunks come from.
        release_failures: chunks and pools that the device failed to take back.
    """

    allocations: int = 0
    allocated_bytes: int = 0
    chunks: int = 0
    chunk_bytes: int = 0
    pools: int = 0
    release_failures: int = 0


@dataclass(slots=True, eq=False)
class _Source:
    """A pool and what was taken from it."""

    pool: Pool
    max_bytes: int
    held_bytes: int = 0

    @property
    def room_bytes(self) -> int:
        return self.max_bytes - self.held_bytes


@dataclass(slots=True, eq=False)
class _Piece:
    """A live region. Not frozen, which would double the cost of making one."""

    chunk: Chunk
    size_bytes: int
    taken_bytes: int
    reservation: Reservation


class Slab:
    """Cuts regions from chunks. Safe from any thread.

    A request that no free span can meet waits for the device to allocate a chunk; requests that can be met do not wait
    for that one. At most one chunk is kept empty.

    A raised cap is served by a further pool for the difference, so that all pools together have the account's cap; once
    nothing is allocated there is one pool again. A lowered cap is the account's to keep until then.

    Args:
        pools: of the device, which outlives the slab.
        account: charged for every region, with its size rounded up to 256 bytes.
        chunk_bytes: largest chunk for several regions under a cap above 64 MiB. Chunks are smaller under a small one,
            and a large region has one of its own, so that a tenant can use all it may. A cap of up to 64 MiB is one
            chunk.
        spare: has other slabs of the device `trim`, where that has no memory left for a request within the cap; returns
            whether any could.
    """

    def __init__(
        self,
        pools: Pools,
        account: Account,
        *,
        chunk_bytes: int = CHUNK_BYTES,
        spare: Callable[[], bool] = lambda: False,
    ) -> None:
        self._pools = pools
        self._account = account
        self._chunk_bytes = chunk_bytes
        self._spare = spare
        # Two locks, never taken the other way round: growth while the device is asked, turn for the tables alone.
        self._growth = threading.Lock()
        self._turn = threading.Lock()
        self._spans = Spans()
        self._pieces: dict[int, _Piece] = {}
        self._chunks: dict[Chunk, _Source] = {}
        self._sources: list[_Source] = []
        self._idle: Chunk | None = None
        self._surplus: list[Chunk] = []
        self._release_failures = 0
        self._closed = False

    @property
    def account(self) -> Account:
        """Who is charged."""
        return self._account

    def allocate(self, size_bytes: int) -> Region:
        """Return device memory, aligned to 256 bytes, of which nobody else has a byte. What is in it is undefined.

        Raises:
            InvalidArgs: the size is below 1.
            QuotaExceeded: over the account's cap or the process's, or no such piece is left in one.
            DeviceLost: the device does not answer.
            InternalError: the slab is closed.
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
        """Return whether so much could be cut from the chunks that there are, without asking the device."""
        with self._turn:
            return self._spans.longest_bytes() >= _rounded(size_bytes)

    def free(self, region: Region) -> None:
        """Take back what `allocate` returned. No stream may still use it.

        Raises:
            InternalError: it is not live, or not of this slab.
        """
        with self._turn:
            piece = self._pieces.get(region.address)
            if piece is None or piece.size_bytes != region.size_bytes or region.host:
                raise InternalError("a region that is not live in this slab was freed")
            del self._pieces[region.address]
            self._spans.put(piece.chunk, region.address, piece.taken_bytes)
            if not piece.chunk.used_bytes:
                self._retire(piece.chunk)
            surplus = bool(self._surplus)
        piece.reservation.release()
        if surplus:
            with self._growth:
                self._give_back_surplus()

    def trim(self) -> bool:
        """Give back the chunk that is kept empty, for others; return whether there was one. Waits for no other growth.

        What one tenant keeps for its next request is charged to nobody: it is not to be another's refusal.
        """
        if not self._growth.acquire(blocking=False):
            return False
        try:
            return self._give_up_idle()
        finally:
            self._growth.release()

    def statistics(self) -> SlabStatistics:
        """Return a snapshot."""
        with self._turn:
            return SlabStatistics(
                allocations=len(self._pieces),
                allocated_bytes=sum(piece.taken_bytes for piece in self._pieces.values()),
                chunks=len(self._chunks),
                chunk_bytes=sum(chunk.size_bytes for chunk in self._chunks),
                pools=len(self._sources),
                release_failures=self._release_failures,
            )

    def close(self) -> None:
        """Give everything back, live regions included, whose charges are refunded. Idempotent; raises nothing.

        No stream may still use any of it. What the device fails to take back is logged and counted.
        """
        with self._growth:
            with self._turn:
                self._closed = True
                pieces, self._pieces = list(self._pieces.values()), {}
                self._surplus, self._spans, self._idle = list(self._chunks), Spans(), None
            self._give_back_surplus()
            for piece in pieces:
                piece.reservation.release()
            self._close_pools()

    # ------------------------------------------------------------------------------------------- the tables

    def _cut(self, size_bytes: int, taken_bytes: int, reservation: Reservation) -> int | None:
        """Make a piece of what is free and commit its charge, in one step; None if nothing free is long enough."""
        with self._turn:
            return self._cut_in_turn(size_bytes, taken_bytes, reservation)

    def _cut_in_turn(self, size_bytes: int, taken_bytes: int, reservation: Reservation) -> int | None:
        if self._closed:
            raise InternalError("this slab of device memory is closed")
        found = self._spans.take(taken_bytes)
        if found is None:
            return None
        address, chunk = found
        if chunk is self._idle:
            self._idle = None
        self._pieces[address] = _Piece(chunk, size_bytes, taken_bytes, reservation)
        reservation.commit()
        return address

    def _retire(self, chunk: Chunk) -> None:
        """Keep a chunk that is empty now, or set it apart to be given back.

        A large one is not kept: what was made for one region would be cut up for others, and no room be left for many.
        """
        if self._idle is None and chunk.size_bytes <= self._standard_bytes():
            self._idle = chunk
        else:
            self._set_apart(chunk)

    def _set_apart(self, chunk: Chunk) -> None:
        self._spans.remove(chunk)
        self._surplus.append(chunk)

    # ------------------------------------------------------------------------------------------- the device

    def _cut_after_growth(self, size_bytes: int, taken_bytes: int, reservation: Reservation) -> int:
        with self._growth:
            # Whoever had the lock before may have left room for this one too.
            address = self._cut(size_bytes, taken_bytes, reservation)
            if address is not None:
                return address
            chunk, source = self._grow(taken_bytes)
            with self._turn:
                self._chunks[chunk] = source
                self._spans.add(chunk)
                # In the same turn, or another thread may take a piece of what was asked for to the byte.
                address = self._cut_in_turn(size_bytes, taken_bytes, reservation)
        if address is None:
            raise InternalError("a new chunk does not hold what it was made for")
        return address

    def _grow(self, taken_bytes: int) -> tuple[Chunk, _Source]:
        """Return a new chunk that can hold the request, giving up idle ones for it if need be, at last others'."""
        self._give_back_surplus()
        self._fit_pools()
        added = self._obtain(taken_bytes)
        for give_up in (self._give_up_idle, self._spare):
            if added is None and give_up():
                self._fit_pools()
                added = self._obtain(taken_bytes)
        if added is None:
            self._account.count_refusal()
            raise QuotaExceeded(f"no {taken_bytes} bytes in one piece are left of the tenant's GPU memory")
        return added

    def _obtain(self, taken_bytes: int) -> tuple[Chunk, _Source] | None:
        for chunk_bytes, source in self._candidates(taken_bytes):
            try:
                address = self._pools.pool_allocate(source.pool, chunk_bytes)
            except QuotaExceeded:
                continue
            source.held_bytes += chunk_bytes
            return Chunk(address, chunk_bytes), source
        return None

    def _candidates(self, taken_bytes: int) -> Iterator[tuple[int, _Source]]:
        """Yield what to ask which pool for: a chunk for several regions, then just what is needed."""
        standard_bytes = self._standard_bytes()
        own = taken_bytes * _PIECES_PER_CHUNK >= standard_bytes and self._account.max_bytes > _WHOLE_CAP_BYTES
        for source in self._sources:
            if source.room_bytes < taken_bytes:
                continue
            shared_bytes = min(standard_bytes, source.room_bytes)
            if not own and shared_bytes > taken_bytes:
                yield shared_bytes, source
            yield taken_bytes, source

    def _standard_bytes(self) -> int:
        cap_bytes = self._account.max_bytes
        if cap_bytes <= _WHOLE_CAP_BYTES:
            return _rounded(cap_bytes)
        return _rounded(min(self._chunk_bytes, max(_SMALL_CHUNK_BYTES, cap_bytes // _CHUNKS_PER_CAP)))

    def _fit_pools(self) -> None:
        """Have pools with the account's cap in all, and one only where nothing is allocated from any."""
        cap_bytes = _rounded(self._account.max_bytes)
        fits = [source.max_bytes for source in self._sources] == [cap_bytes]
        if not fits and not any(source.held_bytes for source in self._sources):
            self._close_pools()
        open_bytes = sum(source.max_bytes for source in self._sources)
        if open_bytes < cap_bytes:
            max_bytes = cap_bytes - open_bytes
            with suppress(QuotaExceeded):  # what there is may do, and if not, that is a refusal like any other
                self._sources.append(_Source(self._pools.open_pool(max_bytes), max_bytes))

    def _give_up_idle(self) -> bool:
        with self._turn:
            chunk, self._idle = self._idle, None
            if chunk is not None:
                self._set_apart(chunk)
        self._give_back_surplus()
        return chunk is not None

    def _give_back_surplus(self) -> None:
        """Return chunks to their pools; one that its pool does not take is neither used again nor room."""
        with self._turn:
            surplus, self._surplus = self._surplus, []
            sources = [self._chunks.pop(chunk) for chunk in surplus]
        for chunk, source in zip(surplus, sources, strict=True):
            if self._attempt(self._pools.pool_free, source.pool, chunk.address):
                source.held_bytes -= chunk.size_bytes

    def _close_pools(self) -> None:
        for source in self._sources:
            if source.held_bytes == 0:
                self._attempt(self._pools.close_pool, source.pool)
        self._sources = []

    def _attempt(self, release: Callable[..., None], *things: Any) -> bool:
        try:
            release(*things)
        except Exception:  # noqa: BLE001 - the region is free whatever becomes of the memory behind it
            _log.exception("a device failed to take back memory of tenant %s", self._account.tenant)
            self._release_failures += 1
            return False
        return True


def _rounded(size_bytes: int) -> int:
    return -(-size_bytes // GRAIN_BYTES) * GRAIN_BYTES
