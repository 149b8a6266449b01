"""Windows of addresses without an unmapped page: `tensorwasm.gpu.device.protocols.AddressWindows`.

A window is a reserved range in which a chunk of scratch memory is mapped again and again. What costs is the number of
mappings: on an H200 with driver 580, ``cuMemSetAccess`` takes 24 us for each, so a window of 4 GiB with a chunk of
16 MiB opens in 7 ms. The driver maps no part of a handle, so where memory of its own leaves pieces of a chunk's place,
they show a granule that the window has for that.

Source: CUDA Driver API, "Virtual Memory Management".
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from tensorwasm.errors import CapacityExhausted, InternalError, InvalidPointer, LaunchRefused, TensorWasmError
from tensorwasm.gpu.cuda.core import POOL_LIMIT_S, Core
from tensorwasm.gpu.cuda.driver.calls import OUT_OF_MEMORY, DriverFailure
from tensorwasm.gpu.cuda.handles import CudaWindow
from tensorwasm.gpu.cuda.memory.pools import DeviceAllocator, MemoryLocation, MemoryTraits, access_from, mappable
from tensorwasm.gpu.cuda.memory.unified import CudaUnified
from tensorwasm.gpu.device.address_windows import (
    GRANULE_BYTES,
    SLACK_BYTES,
    WINDOW_BYTES,
    WindowPart,
    check_window_bytes,
    scratch_chunk,
)
from tensorwasm.gpu.device.protocols import AddressWindow, Stream
from tensorwasm.gpu.memory import pages
from tensorwasm.values import Deadline

_Mapping = tuple[int, int, Any]
"""Address, size and handle."""

_log: Final = logging.getLogger(__name__)


class CudaWindows:
    """The windows of a device; see `CudaDevice` for what every method raises.

    Attributes:
        available: whether the device has windows.
    """

    def __init__(self, core: Core, traits: MemoryTraits, allocator: DeviceAllocator, unified: CudaUnified) -> None:
        self.available = traits.windows
        self._core = core
        self._traits = traits
        self._allocator = allocator
        self._unified = unified

    # -------------------------------------------------------------------------------------- whole windows

    def open_window(self, scratch_bytes: int, size_bytes: int = WINDOW_BYTES) -> AddressWindow:
        """See `AddressWindows.open_window`. Takes the scratch chunk, a granule of 2 MiB, and twice the addresses.

        Behind the slack all that kernels can write to is mapped once more, without a gap, so that one fill clears it:
        the driver takes 5 us for each, whatever its size.

        A window that could neither be made nor given back stays open until the device is closed.
        """
        core = self._core
        if not self.available:
            raise LaunchRefused("this device has no windows of addresses")
        check_window_bytes(size_bytes)
        chunk_bytes = scratch_chunk(scratch_bytes, size_bytes)
        # A window with its slack, and what is cleared behind it, fit into so many addresses wherever they begin.
        reserved_bytes = 2 * (size_bytes + SLACK_BYTES) + chunk_bytes + 2 * GRANULE_BYTES
        with core.calling:
            reserved = int(core.driver.call("cuMemAddressReserve", reserved_bytes, GRANULE_BYTES, 0, 0))
            address = pages.rounded(reserved + SLACK_BYTES, size_bytes)
            own = CudaWindow(address, reserved, reserved_bytes, chunk_bytes, size_bytes)
            try:
                self._fill(own)
            except Exception:
                try:
                    self.release(own)
                except DriverFailure as failure:
                    core.judge(failure)
                    core.live.windows.enter(own)
                except CapacityExhausted:
                    core.live.windows.enter(own)
                raise
            return core.live.windows.enter(own)

    def _fill(self, own: CudaWindow) -> None:
        """Map aliases everywhere, and the granule and the chunk behind the slack: there they stay, to be cleared."""
        for size_bytes in (own.chunk_bytes, GRANULE_BYTES):
            own.handles.append(self._create(size_bytes, self._traits.device))
        chunk, granule = own.handles
        start, end = own.address - SLACK_BYTES, own.tail
        tail = (end, GRANULE_BYTES, granule), (end + GRANULE_BYTES, own.chunk_bytes, chunk)
        self._map(own, [*_aliases(own, start, end), *tail])
        self._core.streams.clear(*own.scratch)

    def close_window(self, window: AddressWindow) -> None:
        """See `AddressWindows.close_window`."""
        live = self._core.live.windows
        self._core.retire(live, live.require(window), self.release)

    def release(self, own: CudaWindow) -> None:
        """Give back all of a window; may be tried again after a failure. The context must be bound.

        Raises:
            CapacityExhausted: the driver did not come to the clearing of its memory in time.
        """
        core = self._core
        with own.lock:
            self._settle()
            own.damaged = True
            for address, size_bytes in _runs(own.mapped):
                core.release("cuMemUnmap", address, size_bytes)
                _forget(own, address, address + size_bytes)
            for offset, part in own.parts.entries():
                own.parts.remove(offset)
                core.live.in_windows.take(own.address + offset)
                self._let_go(part)
            while own.handles:
                core.undo("cuMemRelease", own.handles.pop())
            core.release("cuMemAddressFree", own.reserved, own.reserved_bytes)

    # --------------------------------------------------------------------------------------- memory in them

    def map_device(self, window: AddressWindow, offset: int, size_bytes: int) -> None:
        """See `AddressWindows.map_device`. Does not wait for the clearing: streams are put behind it."""
        core = self._core
        with self._changing(window) as own:
            own.parts.require_free(offset, size_bytes)
            handle = self._create(size_bytes, self._traits.device)
            with core.undoing("cuMemRelease", handle):
                self._put(own, offset, WindowPart(size_bytes, handle))

    def map_host(self, window: AddressWindow, offset: int, size_bytes: int, view: int | None = None) -> int:
        """See `AddressWindows.map_host`. Takes about 0.4 ms a MiB: the pages are pinned and cleared."""
        core, host = self._core, self._traits.host
        with self._changing(window) as own:
            own.parts.require_free(offset, size_bytes)
            if host is None:
                raise LaunchRefused("this device reaches no memory of the host in a window")
            handle = self._create(size_bytes, host)
            with core.undoing("cuMemRelease", handle):
                at = self._show(size_bytes, handle, view)
                part = WindowPart(size_bytes, handle, at, reserved=view is None)
                try:
                    self._put(own, offset, part)
                except Exception:
                    self._hide(part)
                    raise
            return at

    def map_slot(self, window: AddressWindow, offset: int) -> int:
        """See `AddressWindows.map_slot`."""
        with self._changing(window) as own:
            if own.slot is not None:
                raise InvalidPointer("the window has a slot")
        at = self.map_host(window, offset, GRANULE_BYTES)
        with self._changing(window) as own:
            own.damaged = True  # unless all of this is done: then the window can only be closed
            self._map(own, [(sum(own.scratch), GRANULE_BYTES, own.parts.require(offset).backing)])
            own.slot, own.damaged = offset, False
        return at

    def unmap(self, window: AddressWindow, offset: int) -> None:
        """See `AddressWindows.unmap`."""
        core = self._core
        with self._changing(window) as own:
            if offset == own.slot:
                raise InvalidPointer("the slot of a window stays")
            part = own.parts.require(offset)
            self._settle()
            start, end = _freed(own, offset, part.size_bytes)
            self._replace(own, start, end, list(_aliases(own, start, end)))
            own.parts.remove(offset)
            core.live.in_windows.take(own.address + offset)
            self._let_go(part)

    def _put(self, own: CudaWindow, offset: int, part: WindowPart) -> None:
        """Map a part in place of aliases, and start clearing it if it is device memory."""
        address = own.address + offset
        behind = address + part.size_bytes
        start, end = _covered(own, address, behind)
        wanted = [*_aliases(own, start, address), (address, part.size_bytes, part.backing), *_aliases(own, behind, end)]
        self._replace(own, start, end, wanted, fresh=(address, part.size_bytes) if part.view is None else None)
        own.parts.add(offset, part)
        self._core.live.in_windows.enter(address, part.size_bytes)

    def _show(self, size_bytes: int, handle: Any, view: int | None) -> int:
        """Map memory for the host, zeroed, at its view or at addresses that are reserved for it; return where."""
        at = self._unified.reserve(size_bytes) if view is None else view
        try:
            self._unified.map_handle(at, size_bytes, handle)
        except Exception:
            if view is None:
                with suppress(TensorWasmError):
                    self._unified.unreserve(at, size_bytes)
            raise
        return at

    def _let_go(self, part: WindowPart) -> None:
        """Free memory that no window shows any more; what the driver does not take back is logged and counted."""
        self._hide(part)
        self._core.undo("cuMemRelease", part.backing)

    def _hide(self, part: WindowPart) -> None:
        """Unmap the host's view of a part, if there is one; if the driver refuses, it stays until the device closes."""
        if part.view is None:
            return
        with suppress(TensorWasmError):
            self._unified.unmap(part.view, part.size_bytes)
            if part.reserved:
                self._unified.unreserve(part.view, part.size_bytes)

    # --------------------------------------------------------------------------------------------- clearing

    def clear_scratch(self, window: AddressWindow, stream: Stream, parts: Sequence[tuple[int, int]] = ()) -> None:
        """See `AddressWindows.clear_scratch`. On a stream that records, it is recorded."""
        with self._changing(window) as own:
            self._clear(stream, [own.scratch, *self._addressed(own, parts)])

    def scratch_ranges(self, window: AddressWindow) -> Sequence[tuple[int, int]]:
        """See `AddressWindows.scratch_ranges`."""
        return (self._core.live.windows.require(window).scratch,)

    def clear(self, window: AddressWindow, offset: int, size_bytes: int, stream: Stream) -> None:
        """See `AddressWindows.clear`. On a stream that records, it is recorded."""
        with self._changing(window) as own:
            self._clear(stream, self._addressed(own, [(offset, size_bytes)]))

    @staticmethod
    def _addressed(own: CudaWindow, parts: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        for offset, size_bytes in parts:
            own.parts.require_inside(offset, size_bytes)
        return [(own.address + offset, size_bytes) for offset, size_bytes in parts if size_bytes]

    def _clear(self, stream: Stream, ranges: Sequence[tuple[int, int]]) -> None:
        core, own = self._core, self._core.live.streams.require(stream)
        core.streams.order(own)
        for address, size_bytes in ranges:
            core.driver.call("cuMemsetD8Async", address, 0, size_bytes, own.handle)

    # --------------------------------------------------------------------------------------------- mappings

    @contextmanager
    def _changing(self, window: AddressWindow) -> Iterator[CudaWindow]:
        """Hold an open window for the length of a ``with``, and bind the context.

        Raises:
            InternalError: it has a hole.
        """
        core = self._core
        own = core.live.windows.require(window)
        with own.lock, core.calling:
            core.live.windows.require(own)  # another thread may have closed it
            if own.damaged:
                raise InternalError("the window has a hole, and can only be closed")
            yield own

    def _replace(
        self, own: CudaWindow, start: int, end: int, wanted: list[_Mapping], fresh: tuple[int, int] | None = None
    ) -> None:
        """Put other mappings in place of those between two addresses, or leave all as it was.

        Clearing of ``fresh``, the address and size of new memory among them, is started.

        Raises:
            InternalError: the driver did not put back what was there; the window is damaged.
        """
        before = _between(own, start, end)
        try:
            self._exchange(own, start, end, wanted)
            if fresh is not None:
                self._core.streams.clear(*fresh)
        except Exception as error:
            if _between(own, start, end) == before:
                raise
            if isinstance(error, DriverFailure):
                self._core.judge(error)
            try:
                self._settle()
                self._exchange(own, start, end, before)
            except (DriverFailure, CapacityExhausted) as failure:
                own.damaged = True
                if isinstance(failure, DriverFailure):
                    self._core.judge(failure)
                _log.exception("a window of addresses has a hole and is used no more")
                raise InternalError("the driver did not put back what was mapped in a window") from error
            raise

    def _exchange(self, own: CudaWindow, start: int, end: int, wanted: list[_Mapping]) -> None:
        """Put mappings in place of whole ones; after a failure, some of either may be missing."""
        present = {address: (size_bytes, handle) for address, size_bytes, handle in _between(own, start, end)}
        for address, size_bytes in _runs(present):
            self._core.driver.call("cuMemUnmap", address, size_bytes)
            _forget(own, address, address + size_bytes)
        self._map(own, wanted)

    def _map(self, own: CudaWindow, wanted: list[_Mapping]) -> None:
        """Map adjacent pieces where nothing is mapped, and let the device access them."""
        driver = self._core.driver
        for address, size_bytes, handle in wanted:
            driver.call("cuMemMap", address, size_bytes, 0, handle, 0)
            own.mapped[address] = size_bytes, handle
        start, (last, last_bytes, _) = wanted[0][0], wanted[-1]
        driver.call("cuMemSetAccess", start, last + last_bytes - start, [access_from(driver, self._traits.device)], 1)

    def _create(self, size_bytes: int, location: MemoryLocation) -> Any:
        """Return new memory that can be mapped; the driver may have its content undefined."""
        driver = self._core.driver
        request = size_bytes, mappable(driver, location), 0
        code, handle = driver.attempt("cuMemCreate", *request)
        if code == OUT_OF_MEMORY:
            self._allocator.trim()
            return driver.call("cuMemCreate", *request)
        if code:
            raise DriverFailure("cuMemCreate", code)
        return handle

    def _settle(self) -> None:
        """Wait until no clearing that was started reaches memory of a window.

        Raises:
            CapacityExhausted: the driver did not come to it in time.
        """
        streams = self._core.streams
        if not streams.wait(streams.own("clearing"), Deadline.after(POOL_LIMIT_S)):
            raise CapacityExhausted("the GPU is too busy for a change of memory: its driver does not come to it")


# --------------------------------------------------------------------------------------------- what is mapped where


def _aliases(own: CudaWindow, start: int, end: int) -> Iterator[_Mapping]:
    """Yield the mappings of scratch memory between two addresses: whole chunks in their places, else granules."""
    chunk, granule = own.handles
    while start < end:
        whole = start % own.chunk_bytes == 0 and start + own.chunk_bytes <= end
        size_bytes = own.chunk_bytes if whole else GRANULE_BYTES
        yield start, size_bytes, chunk if whole else granule
        start += size_bytes


def _covered(own: CudaWindow, start: int, end: int) -> tuple[int, int]:
    """Return the range of the whole aliases that a range of them touches."""
    for place in {start - start % own.chunk_bytes, (end - 1) - (end - 1) % own.chunk_bytes}:
        if own.mapped.get(place) == (own.chunk_bytes, own.handles[0]):
            start, end = min(start, place), max(end, place + own.chunk_bytes)
    return start, end


def _freed(own: CudaWindow, offset: int, size_bytes: int) -> tuple[int, int]:
    """Return the range whose aliases change with a part: its own, and the rest of its chunks' places if it is free."""
    end = offset + size_bytes
    first, last = offset - offset % own.chunk_bytes, pages.rounded(end, own.chunk_bytes)
    if not own.parts.overlaps(first, offset):
        offset = first
    if not own.parts.overlaps(end, last):
        end = last
    return own.address + offset, own.address + end


def _between(own: CudaWindow, start: int, end: int) -> list[_Mapping]:
    """Return the mappings that begin between two addresses, ascending."""
    return sorted((at, *mapping) for at, mapping in own.mapped.items() if start <= at < end)


def _runs(mapped: dict[int, tuple[int, Any]]) -> list[tuple[int, int]]:
    """Return address and size of what is mapped without a gap."""
    runs: list[tuple[int, int]] = []
    for at in sorted(mapped):
        size_bytes = mapped[at][0]
        if runs and sum(runs[-1]) == at:
            runs[-1] = runs[-1][0], runs[-1][1] + size_bytes
        else:
            runs.append((at, size_bytes))
    return runs


def _forget(own: CudaWindow, start: int, end: int) -> None:
    """Drop the mappings that begin between two addresses."""
    for at, _, _ in _between(own, start, end):
        del own.mapped[at]
