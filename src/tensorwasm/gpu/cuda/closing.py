"""The end of a device: everything that is live goes back to the driver, once nothing can be using it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tensorwasm.errors import CapacityExhausted
from tensorwasm.gpu.cuda.core import Core
from tensorwasm.gpu.cuda.graphs import CudaGraphs
from tensorwasm.gpu.cuda.ledger import Ranges
from tensorwasm.gpu.cuda.memory import DeviceMemory
from tensorwasm.gpu.cuda.pools import CudaPools
from tensorwasm.gpu.cuda.results import DriverFailure
from tensorwasm.values import Deadline

_LIMIT_S: Final = 1.0
"""How long the end waits for work that still runs."""


class Closing:
    """Releases what a device holds. The context must be bound."""

    def __init__(self, core: Core, memory: DeviceMemory, pools: CudaPools, graphs: CudaGraphs) -> None:
        """Know the parts that hold something."""
        self._core = core
        self._memory = memory
        self._pools = pools
        self._graphs = graphs

    def run(self) -> bool:
        """Release all of it and return whether the driver took it. What it did not take stays in the books.

        Work that does not end in a second loses the device, and everything stays.

        Raises:
            DriverFailure: whether work has ended cannot be told; everything stays.
        """
        limit = Deadline.after(_LIMIT_S)
        if not self._drained(limit):
            self._core.context.lose("a kernel was still running when the device was closed")
            return False
        self._release_memory()
        self._release_handles()
        self._core.streams.wait_for_own(limit)  # frees under way: the driver would keep their pools for them
        return self._release_own() and self._core.ledger.empty()

    def _drained(self, limit: Deadline) -> bool:
        streams = self._core.streams
        live = list(self._core.ledger.streams)
        for stream in live:
            self._graphs.abandon(stream)
        ended = all(streams.wait(stream, limit) for stream in live) and streams.wait_for_own(limit)
        return ended and streams.wait_for_threads(limit)

    def _release_memory(self) -> None:
        books, release = self._core.ledger, self._core.release
        self._empty(books.registrations, lambda start, _: release("cuMemHostUnregister", start))
        self._empty(books.managed, lambda start, _: release("cuMemFree", start))
        self._empty(books.mapped, lambda start, size: release("cuMemUnmap", start, size))
        self._empty(books.reserved, lambda start, size: release("cuMemAddressFree", start, size))
        self._empty(books.pooled, lambda start, _: self._pools.release(start))
        self._empty(books.allocations, lambda start, _: self._memory.release(start))

    def _release_handles(self) -> None:
        books, release = self._core.ledger, self._core.release
        self._each(books.graphs, lambda item: release("cuGraphExecDestroy", item.handle))
        self._each(books.events, lambda item: self._core.destroy_event(item.handle))
        self._each(books.modules, lambda item: release("cuModuleUnload", item.handle))
        if not books.pooled.live():  # else the driver would keep the pools for what it did not take back
            self._each(books.pools, self._pools.destroy)
        self._each(books.streams, self._core.destroy_stream)

    def _release_own(self) -> bool:
        core = self._core
        gone = [not core.ledger.allocations.live() and self._released(self._memory.close)]
        gone += [self._released(core.destroy_stream, stream) for stream in core.streams.own()]
        core.streams.forget()
        return all(gone)

    def _empty(self, ranges: Ranges, release: Callable[[int, int], object]) -> None:
        for start in ranges.live():
            if self._released(release, start, ranges.size(start)):
                ranges.take(start)

    def _each(self, live: set[Any], release: Callable[[Any], object]) -> None:
        for item in list(live):
            if self._released(release, item):
                live.discard(item)

    def _released(self, release: Callable[..., object], *args: Any) -> bool:
        """Return whether the driver took it back; once the device is lost it is not asked."""
        if self._core.context.lost:
            return False
        try:
            release(*args)
        except DriverFailure as failure:
            self._core.judge(failure)
            return False
        except CapacityExhausted:
            return False
        return True
