"""Windows of addresses without an unmapped page, as memory that host and emulated kernels share at one address.

A window and its slack are pages of one file, mapped again and again; memory of its own replaces some of them. Kernels
see all of it as one piece of host memory.

Source: Linux mmap(2), memfd_create(2), madvise(2) (MADV_REMOVE). A process has at most 65,530 mappings
(``vm.max_map_count``), so the file is 64 MiB long, whatever was asked for; pages that nothing was written to take no
memory.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Final

from tensorwasm.errors import InvalidPointer, LaunchRefused, QuotaExceeded
from tensorwasm.gpu.device.address_windows import (
    GRANULE_BYTES,
    SLACK_BYTES,
    WINDOW_BYTES,
    WindowPart,
    WindowParts,
    check_window_bytes,
    scratch_chunk,
)
from tensorwasm.gpu.device.protocols import AddressWindow, Stream
from tensorwasm.gpu.emulator.handles import OpenObjects
from tensorwasm.gpu.emulator.memory.allocations import AllocationTable
from tensorwasm.gpu.emulator.memory.unified import (
    FIXED,
    NO_ACCESS,
    READ_WRITE,
    EmulatedMemory,
    discard_pages,
    map_pages,
    release_pages,
)
from tensorwasm.gpu.memory.pages import rounded

CHUNK_BYTES: Final = SLACK_BYTES
_NO_RESERVE: Final = 0x4000  # MAP_NORESERVE of Linux

_log: Final = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class EmulatedWindow:
    """A window; what is in it changes with the lock held.

    Attributes:
        address: the first byte behind the slack.
        reserved: the first of the addresses that it lies in.
        scratch: the descriptor of the file that the aliases show.
        charged_bytes: scratch memory as the device accounts for it.
        slot: offset of the part that is cleared with the scratch memory; None without.
        parts: what is mapped in place of aliases; the backing of host memory is a file's descriptor.
    """

    address: int
    reserved: int
    scratch: int
    charged_bytes: int
    size_bytes: int
    slot: int | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)
    parts: WindowParts = field(init=False)

    def __post_init__(self) -> None:
        """Begin with aliases alone."""
        self.parts = WindowParts(self.size_bytes)

    @property
    def start(self) -> int:
        """The first address of the slack before it."""
        return self.address - SLACK_BYTES

    @property
    def span_bytes(self) -> int:
        """Addresses of it and its slack."""
        return self.size_bytes + 2 * SLACK_BYTES

    @property
    def reserved_bytes(self) -> int:
        """Addresses in which it fits with its slack, wherever they begin."""
        return 2 * (self.size_bytes + SLACK_BYTES)


class EmulatedWindows:
    """The open windows of a device.

    Device memory and scratch memory, the latter in the size that was asked for, are charged to the device's budget.

    Args:
        allocations: of the device.
        unified: of the device; views are mapped in its ranges.
        fill: starts filling memory with zeros in a stream.
        start: starts any action in a stream.

    Attributes:
        open: the windows.
    """

    available: Final = sys.platform == "linux"

    def __init__(
        self,
        allocations: AllocationTable,
        unified: EmulatedMemory,
        fill: Callable[[int, int, Stream], None],
        start: Callable[[Callable[[], None], Stream], None],
    ) -> None:
        self._allocations, self._unified, self._fill, self._start = allocations, unified, fill, start
        self.open: Final = OpenObjects(EmulatedWindow, "the window is not open on this device")

    def total_bytes(self) -> int:
        """Return the memory of all windows, as the device accounts for it."""
        return sum(window.charged_bytes + window.parts.total_bytes for window in self.open)

    def open_window(self, scratch_bytes: int, size_bytes: int = WINDOW_BYTES) -> AddressWindow:
        """Return a window of aliases alone."""
        if not self.available:
            raise LaunchRefused("this system has no files of memory that can be mapped again and again")
        check_window_bytes(size_bytes)
        charged_bytes = scratch_chunk(scratch_bytes, size_bytes) + GRANULE_BYTES
        own = EmulatedWindow(0, 0, -1, charged_bytes, size_bytes)
        with ExitStack() as undo, _quota("a window of addresses"):
            own.reserved = map_pages(own.reserved_bytes, NO_ACCESS, flags=_NO_RESERVE)
            undo.callback(release_pages, own.reserved, own.reserved_bytes)
            own.address = rounded(own.reserved + SLACK_BYTES, size_bytes)
            own.scratch = scratch = _memory_file(CHUNK_BYTES)
            undo.callback(os.close, scratch)
            for address in range(own.start, own.start + own.span_bytes, CHUNK_BYTES):
                map_pages(CHUNK_BYTES, READ_WRITE, address, FIXED | _NO_RESERVE, scratch)
            self._allocations.charge(charged_bytes)
            undo.callback(self._allocations.charge, -charged_bytes)
            self._allocations.add_host(own.start, own.span_bytes, "window")
            undo.pop_all()
            return self.open.add(own)

    def close_window(self, window: AddressWindow) -> None:
        """Release a window, as soon as no running work holds it."""
        own = self.open.require(window)
        with own.lock:
            self.open.require(own)
            self.open.discard(own)
            self._allocations.remove_host(own.start, "window")
            self._allocations.charge(-own.charged_bytes)
            for offset, part in own.parts.entries():
                own.parts.remove(offset)
                self._let_go(part)
            _release(own)

    def release_all(self) -> None:
        """Release everything. The allocation table must have been cleared before, and the views are not unmapped."""
        for own in self.open.take_all():
            with own.lock:
                for _, part in own.parts.entries():
                    if part.backing is not None:
                        os.close(part.backing)
                _release(own)

    # -------------------------------------------------------------------------------------- memory in them

    def map_device(self, window: AddressWindow, offset: int, size_bytes: int) -> None:
        """Put new pages in place of aliases, and charge them to the device."""
        with self._changing(window) as own, _quota(f"{size_bytes} bytes of a window"):
            own.parts.require_free(offset, size_bytes)
            self._allocations.charge(size_bytes)
            try:
                map_pages(size_bytes, READ_WRITE, own.address + offset, FIXED | _NO_RESERVE)
            except BaseException:
                self._allocations.charge(-size_bytes)
                raise
            own.parts.add(offset, WindowPart(size_bytes, None))

    def map_host(self, window: AddressWindow, offset: int, size_bytes: int, view: int | None = None) -> int:
        """Put the pages of a new file in place of aliases, and show them at the view too."""
        with self._changing(window) as own, ExitStack() as undo, _quota(f"{size_bytes} bytes of a window"):
            own.parts.require_free(offset, size_bytes)
            file = _memory_file(size_bytes)
            undo.callback(os.close, file)
            at = self._unified.reserve(size_bytes) if view is None else view
            if view is None:
                undo.callback(self._unified.unreserve, at, size_bytes)
            self._unified.show(at, size_bytes, file)
            undo.callback(self._unified.unmap, at, size_bytes)
            map_pages(size_bytes, READ_WRITE, own.address + offset, FIXED | _NO_RESERVE, file)
            own.parts.add(offset, WindowPart(size_bytes, file, at, reserved=view is None))
            undo.pop_all()
            return at

    def map_slot(self, window: AddressWindow, offset: int) -> int:
        """Map a granule as `map_host` does, and remember it."""
        own = self.open.require(window)
        if own.slot is not None:
            raise InvalidPointer("the window has a slot")
        at = self.map_host(window, offset, GRANULE_BYTES)
        own.slot = offset
        return at

    def unmap(self, window: AddressWindow, offset: int) -> None:
        """Put aliases in place of a part."""
        with self._changing(window) as own, _quota("aliases of a window"):
            if offset == own.slot:
                raise InvalidPointer("the slot of a window stays")
            part = own.parts.require(offset)
            address, end = own.address + offset, own.address + offset + part.size_bytes
            while address < end:
                at = (address - own.start) % CHUNK_BYTES
                size_bytes = min(CHUNK_BYTES - at, end - address)
                map_pages(size_bytes, READ_WRITE, address, FIXED | _NO_RESERVE, own.scratch, at)
                address += size_bytes
            own.parts.remove(offset)
            self._let_go(part)

    def _let_go(self, part: WindowPart) -> None:
        """Free the memory of a part that no window shows any more."""
        if part.view is None:
            self._allocations.charge(-part.size_bytes)
            return
        self._unified.unmap(part.view, part.size_bytes)
        if part.reserved:
            self._unified.unreserve(part.view, part.size_bytes)
        os.close(part.backing)

    # -------------------------------------------------------------------------------------------- clearing

    def clear_scratch(self, window: AddressWindow, stream: Stream, parts: Sequence[tuple[int, int]] = ()) -> None:
        """Start discarding the pages of the scratch file; nothing happens if the window is closed when it runs."""
        own = self.open.require(window)

        def discard() -> None:
            with own.lock:
                if own in self.open:
                    discard_pages(own.start, CHUNK_BYTES)

        self._start(discard, stream)
        slot = () if own.slot is None else ((own.slot, GRANULE_BYTES),)
        for offset, size_bytes in (*slot, *parts):
            self.clear(window, offset, size_bytes, stream)

    def scratch_ranges(self, window: AddressWindow) -> Sequence[tuple[int, int]]:
        """Return nothing: discarding the pages is quicker."""
        self.open.require(window)
        return ()

    def clear(self, window: AddressWindow, offset: int, size_bytes: int, stream: Stream) -> None:
        """Start filling memory of a part with zeros."""
        with self._changing(window) as own:
            own.parts.require_inside(offset, size_bytes)
        self._fill(own.address + offset, size_bytes, stream)

    @contextmanager
    def _changing(self, window: AddressWindow) -> Iterator[EmulatedWindow]:
        """Hold an open window for the length of a ``with``."""
        own = self.open.require(window)
        with own.lock:
            yield self.open.require(own)


@contextmanager
def _quota(what: str) -> Iterator[None]:
    """Raise `QuotaExceeded` if the system has no memory, mappings or descriptors for something."""
    try:
        yield
    except OSError as error:
        raise QuotaExceeded(f"{what}: {error}") from None


def _memory_file(size_bytes: int) -> int:
    """Return the descriptor of a new file of zeros that is nowhere but in memory."""
    file = os.memfd_create("tensorwasm-window")
    try:
        os.ftruncate(file, size_bytes)
    except BaseException:
        os.close(file)
        raise
    return file


def _release(own: EmulatedWindow) -> None:
    """Give the pages of a window back."""
    try:
        release_pages(own.reserved, own.reserved_bytes)
    except OSError:
        _log.exception("the addresses of a window were not given back")
    os.close(own.scratch)
