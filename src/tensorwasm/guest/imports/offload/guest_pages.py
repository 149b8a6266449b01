"""Copies between a guest's linear memory and buffers of a device, from pages that are registered where that pays.

A GPU copies registered pages at 55 GB/s, without the processor; others are copied by the driver at 9 to 14 GB/s
(H200, driver 580). To register pages and to give them up costs as much as one copy of theirs by the driver.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from tensorwasm.errors import QuotaExceeded
from tensorwasm.gpu.device.arguments import HostWindow
from tensorwasm.guest.imports.host_function import HostCall
from tensorwasm.offload.program import Array
from tensorwasm.values import Deadline, Region

if TYPE_CHECKING:
    from tensorwasm.gpu.session import Session
    from tensorwasm.guest.memory.linear_memory import GuestMemory

_SPARSE: Final = 2
"""Memory is registered from the first array to the last if that is at most so many times the arrays, and all of it if
it is at most so many times that."""


class GuestPages:
    """The pages of one guest that its session copies. They stay registered until the session ends."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._region: Region | None = None  # holds every array that is copied, once there is one
        self._refused = False

    def reach(self, arrays: Sequence[Array], memory: GuestMemory, deadline: Deadline) -> None:
        """Register pages for copies of arrays, where that pays.

        Raises:
            QuotaExceeded: more pages than before would have to be registered than may be.
        """
        wanted = None if self._refused else self._choose(arrays, memory)
        if wanted is None or wanted == self._region:
            return
        if self._session.buffers.reach(wanted, deadline):
            self._region = wanted
        elif self._region is None:
            self._refused = True
        else:  # the driver does not copy a range of which a part is registered
            raise QuotaExceeded("more pages cannot be registered")

    def copy_in(self, handle: int, array: Array, call: HostCall) -> None:
        """Copy an array to a buffer; from registered pages, start to."""
        buffers, region = self._session.buffers, self._region
        if region is None:
            buffers.write(handle, call.memory.view(array.first, array.size_bytes), call.deadline)
        else:
            buffers.copy_in(handle, 0, _window(array, call), region, call.deadline)

    def copy_out(self, handle: int, array: Array, call: HostCall) -> None:
        """Copy a buffer to an array; to registered pages, start to."""
        buffers, region = self._session.buffers, self._region
        if region is None:
            buffers.read(handle, call.memory.view(array.first, array.size_bytes), call.deadline)
        else:
            buffers.copy_out(_window(array, call), region, handle, 0, call.deadline)

    def finish(self, deadline: Deadline) -> None:
        """Wait for the copies."""
        self._session.streams.synchronize(deadline)

    def _choose(self, arrays: Sequence[Array], memory: GuestMemory) -> Region | None:
        """Return the pages that are to be registered; None for none."""
        known = self._region
        if not arrays:
            return known
        first = min(array.first for array in arrays)
        end = max(array.first + array.size_bytes for array in arrays)
        if known is not None:
            first, end = min(first, known.address - memory.address), max(end, known.end - memory.address)
            if (memory.address + first, memory.address + end) == (known.address, known.end):
                return known
        elif end - first > _SPARSE * sum(array.size_bytes for array in arrays):
            return None
        if memory.size_bytes <= _SPARSE * (end - first):
            first, end = 0, memory.size_bytes
        first, end = first // mmap.PAGESIZE * mmap.PAGESIZE, -(-end // mmap.PAGESIZE) * mmap.PAGESIZE
        return Region(memory.address + first, end - first, host=True)


def _window(array: Array, call: HostCall) -> HostWindow:
    return HostWindow(call.memory.address + array.first, array.size_bytes)
