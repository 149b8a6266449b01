"""What a linear memory was, kept once and mapped copy-on-write into every sandbox that is restored from it.

An image is a sealed file in memory: nobody can write to it any more, this process included. A sandbox sees it through a
private mapping, at the beginning of a reservation as large as the pool's, so that compiled code needs no comparison and
an access past the end hits a page that is not there. Restoring therefore costs the same at any size; a page is copied
when a guest first writes to it.

A reservation whose sandbox has gone serves the next one of the same image and tenant, once what was written there is
forgotten; it never serves another.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from tensorwasm.errors import CapacityExhausted, InvalidSnapshot
from tensorwasm.guest.engine.engine import GUARD_BYTES, MEMORY_RESERVATION_BYTES
from tensorwasm.guest.memory import mappings
from tensorwasm.values import WASM_PAGE_BYTES

if TYPE_CHECKING:
    from tensorwasm.saved import SavedRun

MAX_IDLE: Final = 16
"""Reservations that an image keeps for later sandboxes of one tenant."""
MAX_OWNERS: Final = 64
"""Tenants for whom it keeps any."""
MAX_KEPT: Final = 1024
"""Such reservations of all images together: each has up to nine of the 65,530 mappings that a process may have."""
GAP_BYTES: Final = 1 << 20
"""Least number of zeros for which an image is divided, so that they cost no memory."""
MAX_EXTENTS: Final = 4
"""Most mappings that one sandbox needs for its image."""

_RESERVED_BYTES: Final = MEMORY_RESERVATION_BYTES + GUARD_BYTES
_places: Final[list[None]] = [None] * MAX_KEPT
"""One for each reservation that may still be kept. No lock: an image that is collected gives its own back."""


class Image:
    """A linear memory as it was, read-only. Safe from any thread; made with `ImageWriter` or `make_image`.

    Attributes:
        size_bytes: of the linear memory.
        extents: ascending pairs of offset and length, page-aligned, outside of which it is zeros.
    """

    def __init__(self, descriptor: int, size_bytes: int, extents: tuple[tuple[int, int], ...]) -> None:
        self.size_bytes = size_bytes
        self.extents = extents
        self._descriptor = descriptor
        self._idle: dict[str, deque[int]] = {}
        self._lock = threading.Lock()  # while the descriptor is used: once closed, its number is somebody else's

    def __del__(self) -> None:
        self.close()

    @property
    def held_bytes(self) -> int:
        """Memory that it takes, whoever else uses it."""
        return sum(length for _, length in self.extents)

    @property
    def closed(self) -> bool:
        """Whether no more sandboxes can be made of it."""
        return self._descriptor < 0

    def map(self, owner: str = "") -> MappedMemory:
        """Return memory that holds what the image holds, the caller's alone until `MappedMemory.close`.

        Args:
            owner: tenant whose it is: nobody else gets its address space afterwards.

        Raises:
            CapacityExhausted: no address space or no mapping is left, or the image is closed.
        """
        try:
            address = self._idle[owner].pop()
        except (KeyError, IndexError):
            address = self._map()
        else:
            _places.append(None)
        return MappedMemory(self, address, owner)

    def close(self) -> None:
        """Make no more sandboxes of it. Idempotent; those that live keep what they have."""
        with self._lock:
            descriptor, self._descriptor = self._descriptor, -1
            if descriptor >= 0:
                os.close(descriptor)
        for idle in tuple(self._idle.values()):
            while idle:
                with suppress(IndexError):
                    mappings.release(idle.pop(), _RESERVED_BYTES)
                    _places.append(None)

    def recycle(self, address: int, owner: str) -> None:
        """Take back memory that nobody reaches any more and of which no more was accessible than the image.

        Args:
            address: of a `MappedMemory`.
            owner: likewise.
        """
        idle = self._idle.get(owner)
        if idle is None and len(self._idle) < MAX_OWNERS:
            idle = self._idle.setdefault(owner, deque())
        kept = idle is not None and not self.closed and len(idle) < MAX_IDLE and _take_place()
        if idle is None or not kept:
            mappings.release(address, _RESERVED_BYTES, self.size_bytes)
            return
        if not mappings.rewind(address, self.size_bytes):
            _places.append(None)
            mappings.release(address, _RESERVED_BYTES, self.size_bytes)
            return
        idle.append(address)
        if self.closed:  # meanwhile, by another thread
            self.close()

    def _map(self) -> int:
        address = mappings.reserve(_RESERVED_BYTES)
        try:
            mappings.make_accessible(address, self.size_bytes)
            self._show(address)
        except BaseException:
            mappings.release(address, _RESERVED_BYTES)
            raise
        return address

    def _show(self, address: int) -> None:
        with self._lock:
            if self.closed:
                raise CapacityExhausted("the image is closed")
            for offset, length in self.extents:
                mappings.map_privately(address + offset, length, self._descriptor, offset)


class MappedMemory:
    """One sandbox's memory, made of an image. It is a `tensorwasm.guest.engine.memory_creator.MemoryBacking`.

    Attributes:
        address: host address of the first byte.
        image: what it was made of.
        owner: tenant whose it is.
    """

    __slots__ = ("_grown", "address", "image", "owner")

    def __init__(self, image: Image, address: int, owner: str) -> None:
        self.image = image
        self.address = address
        self.owner = owner
        self._grown = False

    def try_grow_in_place(self, size_bytes: int) -> None:
        """Make it that long, the new bytes zero.

        Raises:
            CapacityExhausted: no mapping is left.
        """
        # From the image's end, whatever the size is now: what is accessible already stays as it is.
        if size_bytes > self.image.size_bytes:
            mappings.make_accessible(self.address + self.image.size_bytes, size_bytes - self.image.size_bytes)
            self._grown = True

    def view(self) -> memoryview:
        """Return what it holds within the image's length, read-only and valid until `close`."""
        window = (ctypes.c_ubyte * self.image.size_bytes).from_address(self.address)
        return memoryview(window).cast("B").toreadonly()

    def close(self) -> None:
        """Give it back to its image, or where it has grown, to the system."""
        if self._grown:
            mappings.release(self.address, _RESERVED_BYTES, MEMORY_RESERVATION_BYTES)
        else:
            self.image.recycle(self.address, self.owner)


class ImageWriter:
    """Makes an image, piece by piece. A context manager: what was not finished is dropped at its end."""

    def __init__(self, size_bytes: int) -> None:
        """Open an empty image.

        Args:
            size_bytes: of the linear memory, whole Wasm pages.

        Raises:
            InvalidSnapshot: there is no linear memory of that size.
            NotSupported: this system has no images.
            CapacityExhausted: the process may open no more files.
        """
        if size_bytes % WASM_PAGE_BYTES or not 0 <= size_bytes <= MEMORY_RESERVATION_BYTES:
            raise InvalidSnapshot(f"a linear memory of {size_bytes} bytes")
        self._size_bytes = size_bytes
        self._extents: list[tuple[int, int]] = []
        self._end = 0
        self._descriptor = mappings.make_file("tensorwasm-image", size_bytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def write(self, offset_bytes: int, data: bytes | memoryview) -> None:
        """Write what begins at an offset. Blocks for as long as copying takes.

        Args:
            offset_bytes: not before the end of what was written last.
            data: of any length, also none.

        Raises:
            InvalidSnapshot: it overlaps what was written, or reaches past the end.
            CapacityExhausted: the system has no memory for it.
        """
        end = offset_bytes + len(data)
        if offset_bytes < self._end or end > self._size_bytes:
            raise InvalidSnapshot(f"{len(data)} bytes at {offset_bytes} do not fit a memory of {self._size_bytes}")
        if not data:
            return
        self._note(offset_bytes, end)
        left, at = memoryview(data), offset_bytes
        while left:
            try:
                written = os.pwrite(self._descriptor, left, at)
            except OSError as error:
                raise CapacityExhausted(f"no memory for an image: {error.strerror}") from None
            left, at = left[written:], at + written
        self._end = end

    @contextmanager
    def mapped(self, spans: Iterable[tuple[int, int]]) -> Iterator[memoryview]:
        """Yield the whole image to be written to, zeros until now, and keep nothing of the view afterwards.

        Args:
            spans: begin and end of what will be written, ascending and apart; outside of them it stays zeros.

        Raises:
            InvalidSnapshot: a span does not fit, or comes before the end of what was written last.
            CapacityExhausted: the system has no memory for it.
        """
        for start, end in spans:
            if not self._end <= start < end <= self._size_bytes:
                raise InvalidSnapshot(f"bytes {start} to {end} do not fit a memory of {self._size_bytes}")
            self._note(start, end)
            self._end = end
        if not self._size_bytes:
            yield memoryview(b"")
            return
        try:
            pages = mmap.mmap(self._descriptor, self._size_bytes)
        except OSError as error:  # it takes a descriptor of its own too
            raise CapacityExhausted(f"no memory for an image: {error.strerror}") from None
        # Many at once cost half of what they cost one by one, and here one learns whether there is memory for them.
        mappings.populate(ctypes.addressof(ctypes.c_char.from_buffer(pages)), self._extents)
        view = memoryview(pages)
        yield view
        view.release()
        pages.close()

    def finish(self) -> Image:
        """Return the image, which nobody can write to any more."""
        mappings.seal(self._descriptor)
        descriptor, self._descriptor = self._descriptor, -1
        return Image(descriptor, self._size_bytes, self._joined())

    def _note(self, offset: int, end: int) -> None:
        """Remember which pages are written to."""
        start = offset // mmap.PAGESIZE * mmap.PAGESIZE
        end = min(-(-end // mmap.PAGESIZE) * mmap.PAGESIZE, self._size_bytes)
        if self._extents and start - sum(self._extents[-1]) < GAP_BYTES:
            start = self._extents.pop()[0]
        self._extents.append((start, end - start))

    def _joined(self) -> tuple[tuple[int, int], ...]:
        """Return the extents, the nearest of them joined until there are few enough."""
        extents = self._extents
        gaps = sorted(range(1, len(extents)), key=lambda index: extents[index][0] - sum(extents[index - 1]))
        joined: list[tuple[int, int]] = []
        close = set(gaps[: max(0, len(extents) - MAX_EXTENTS)])
        for index, (start, length) in enumerate(extents):
            if index in close:
                first = joined.pop()[0]
                joined.append((first, start + length - first))
            else:
                joined.append((start, length))
        return tuple(joined)


def _take_place() -> bool:
    """Return whether one more reservation may be kept."""
    try:
        _places.pop()
    except IndexError:
        return False
    return True


def make_image(size_bytes: int, runs: Iterable[SavedRun]) -> Image:
    """Return the image of a memory.

    Args:
        size_bytes: its length, whole Wasm pages.
        runs: ascending and apart; zeros between them.

    Raises:
        InvalidSnapshot: the runs overlap or do not fit.
        CapacityExhausted: the system has no memory for it.
    """
    with ImageWriter(size_bytes) as writer:
        for run in runs:
            writer.write(run.offset_bytes, run.data)
        return writer.finish()
