"""A guest's linear memory in the window of its session: guarded kernels reach it there, in place.

It is memory of the host that has two addresses: its view, which the guest's code uses, and its place in the window. It
grows in place, and some of it stays mapped for the next guest, because pinning it again would take 0.4 ms a MiB.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tensorwasm.errors import QuotaExceeded
from tensorwasm.gpu.device.address_windows import GRANULE_BYTES
from tensorwasm.gpu.device.protocols import Stream, UnifiedMemory
from tensorwasm.gpu.limits.accounts import Account, Reservation
from tensorwasm.gpu.memory import pages
from tensorwasm.gpu.resources.window_heap import HOST_BYTES, WindowHeap

MAX_BYTES: Final = HOST_BYTES
"""Most that it may grow to: the rest of a window is for device memory."""
_KEPT_BYTES: Final = 2 * GRANULE_BYTES
"""What stays mapped for the next guest."""


class WindowMemory:
    """Memory of one guest at a time. One thread at a time may use it.

    Args:
        unified: of the device; reserves the view.
        heap: of the window.
        account: charged for what is mapped while a guest has it.
        capacity_bytes: up to where it may grow; no more than `MAX_BYTES` of it count.
        ended: called when the guest is done with it, for good.

    Attributes:
        settle: called before more is mapped; raises where it is not to wait for work in flight.

    Raises:
        QuotaExceeded: the window has no room for the capacity.
        LaunchRefused: there are no addresses for the view.
    """

    def __init__(
        self,
        unified: UnifiedMemory,
        heap: WindowHeap,
        account: Account,
        capacity_bytes: int,
        ended: Callable[[], object],
    ) -> None:
        self.capacity_bytes: Final = pages.rounded(min(capacity_bytes, MAX_BYTES), GRANULE_BYTES)
        self._unified = unified
        self._heap = heap
        self._account = account
        self._ended = ended
        self.settle: Callable[[], object] = _nothing
        self._place = heap.reserve(self.capacity_bytes)
        try:
            self._view = unified.reserve(self.capacity_bytes)
        except BaseException:
            heap.unreserve(self._place, self.capacity_bytes)
            raise
        self._parts: list[tuple[int, int]] = []
        self._charges: list[Reservation] = []
        self._mapped_bytes = 0

    @property
    def address(self) -> int:
        """The first byte, as the host reaches it; a multiple of the page size."""
        return self._view

    @property
    def displacement(self) -> int:
        """What is added to an address of the host for the same byte's on the device."""
        return self._place - self._view

    def begin(self, size_bytes: int) -> None:
        """Give it, cleared, to a guest; raises as `try_grow_in_place`."""
        with self._account.reserve_pinned(self._mapped_bytes) as reservation:
            self.try_grow_in_place(size_bytes)
            reservation.commit()
        self._charges.append(reservation)

    def try_grow_in_place(self, size_bytes: int) -> None:
        """Extend it with zeros. Waits for the session's work in flight if more has to be mapped.

        Raises:
            QuotaExceeded: over the capacity or the account's cap on pinned memory, or there is no memory for it, or
                `settle` does not wait.
        """
        more_bytes = pages.rounded(size_bytes, GRANULE_BYTES) - self._mapped_bytes
        if more_bytes <= 0:
            return  # what a kernel has written beyond the guest's memory is its own guest's
        if self._mapped_bytes + more_bytes > self.capacity_bytes:
            raise QuotaExceeded(f"a memory of {size_bytes} bytes; guarded kernels reach {self.capacity_bytes} of it")
        with self._account.reserve_pinned(more_bytes) as reservation:
            self.settle()
            at = self._mapped_bytes
            self._heap.map_host(self._place + at, more_bytes, self._view + at)
            reservation.commit()
        self._charges.append(reservation)
        self._parts.append((at, more_bytes))
        self._mapped_bytes += more_bytes

    def close(self) -> None:
        """End the guest's use: what is kept of it is cleared with the window. Nothing in flight reaches it any more."""
        try:
            self._shrink(_KEPT_BYTES)
        finally:
            for charge in self._charges:
                charge.release()
            self._charges.clear()
            self.settle = _nothing
            self._ended()

    def clear(self, stream: Stream) -> None:
        """Start clearing what is mapped, behind the work already in a stream."""
        for at, size_bytes in self._parts:
            self._heap.clear_host(self._place + at, size_bytes, stream)

    def release(self) -> None:
        """Unmap all of it, and give back its place and its view."""
        self._shrink(0)
        self._unified.unreserve(self._view, self.capacity_bytes)
        self._heap.unreserve(self._place, self.capacity_bytes)

    def _shrink(self, kept_bytes: int) -> None:
        while self._mapped_bytes > kept_bytes:
            at, size_bytes = self._parts[-1]
            self._heap.unmap(self._place + at)
            self._parts.pop()
            self._mapped_bytes -= size_bytes


def _nothing() -> None:
    """Leave the waiting to the window's heap."""
