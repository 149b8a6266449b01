"""Saved linear memories, each kept once and mapped copy-on-write into every sandbox restored from it.

An image is a sealed file in memory that nothing can write to. A sandbox sees it through a private mapping at the
beginning of a reservation as large as the pool's, so compiled code needs no comparison and an access past the end hits
an unmapped page. Restoring therefore costs the same at any size; a page is copied when a guest first writes to it.

A reservation whose sandbox is gone serves later ones of the same image and tenant, after its changes are discarded;
never another's.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
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
_kept_left: Final[list[None]] = [None] * MAX_KEPT
"""One for each reservation that may still be kept. No lock: an image that is collected gives its own back."""


class Image:
    """A saved linear memory, read-only. Thread-safe; made by `ImageWriter` or `make_image`.

    ``extents`` are ascending pairs of offset and length, page-aligned; elsewhere it is zeros.
    """

    def __init__(self, descriptor: int, size_bytes: int, extents: tuple[tuple[int, int], ...]) -> None:
        self.size_bytes = size_bytes
        self.extents = extents
        self._descriptor = descriptor
        self._idle: dict[str, deque[int]] = {}
        self._lock = threading.Lock()  # while the descriptor is used: once closed, its number may be reused

    def __del__(self) -> None:
        self.close()

    @property
    def held_bytes(self) -> int:
        """Memory that the image takes, without that of sandboxes."""
        return sum(length for _, length in self.extents)

    @property
    def closed(self) -> bool:
        """Whether no more memory can be mapped from it."""
        return self._descriptor < 0

    def map(self, owner: str = "") -> MappedMemory:
        """Return memory with the image's content, the caller's alone until `MappedMemory.close`.

        No tenant but the owner gets its address space afterwards. Raises `CapacityExhausted` if no address space or
        mapping is left, or the image is closed.
        """
        try:
            address = self._idle[owner].pop()
        except (KeyError, IndexError):
            address = self._map()
        else:
            _kept_left.append(None)
        return MappedMemory(self, address, owner)

    def close(self) -> None:
        """Prevent further `map` calls; mapped memory stays. Idempotent."""
        with self._lock:
            descriptor, self._descriptor = self._descriptor, -1
            if descriptor >= 0:
                os.close(descriptor)
        for idle in tuple(self._idle.values()):
            while idle:
                with suppress(IndexError):
                    mappings.release(idle.pop(), _RESERVED_BYTES)
                    _kept_left.append(None)

    def recycle(self, address: int, owner: str) -> None:
        """Take back a `MappedMemory`'s address that nothing reaches and that has not grown beyond the image."""
        idle = self._idle.get(owner)
        if idle is None and len(self._idle) < MAX_OWNERS:
            idle = self._idle.setdefault(owner, deque())
        if idle is None or self.closed or len(idle) >= MAX_IDLE or not _reserve_kept():
            mappings.release(address, _RESERVED_BYTES, self.size_bytes)
            return
        if not mappings.rewind(address, self.size_bytes):
            _kept_left.append(None)
            mappings.release(address, _RESERVED_BYTES, self.size_bytes)
            return
        idle.append(address)
        if self.closed:  # by another thread, since the check above
            self.close()

    def _map(self) -> int:
        address = mappings.reserve(_RESERVED_BYTES)
        try:
            mappings.make_accessible(address, self.size_bytes)
            with self._lock:
                if self.closed:
                    raise CapacityExhausted("the image is closed")  # noqa: TRY301 - the range is released below
                for offset, length in self.extents:
                    mappings.map_privately(address + offset, length, self._descriptor, offset)
        except BaseException:
            mappings.release(address, _RESERVED_BYTES)
            raise
        return address


class MappedMemory:
    """One sandbox's memory made of an image, a `tensorwasm.guest.engine.memory_creator.MemoryBacking`."""

    __slots__ = ("_grown", "address", "image", "owner")

    def __init__(self, image: Image, address: int, owner: str) -> None:
        self.image = image
        self.address = address
        self.owner = owner
        self._grown = False

    def try_grow_in_place(self, size_bytes: int) -> None:
        """Extend it with zeros. Raises `CapacityExhausted` if no mapping is left."""
        # From the image's end, whatever the size is now: what is accessible already stays as it is.
        if size_bytes > self.image.size_bytes:
            mappings.make_accessible(self.address + self.image.size_bytes, size_bytes - self.image.size_bytes)
            self._grown = True

    def view(self) -> memoryview:
        """Return its content within the image's length, read-only and valid until `close`."""
        window = (ctypes.c_ubyte * self.image.size_bytes).from_address(self.address)
        return memoryview(window).cast("B").toreadonly()

    def close(self) -> None:
        """Return it to its image, or if it has grown, to the system."""
        if self._grown:
            mappings.release(self.address, _RESERVED_BYTES, MEMORY_RESERVATION_BYTES)
        else:
            self.image.recycle(self.address, self.owner)


class ImageWriter:
    """Makes an image piece by piece. A context manager: an unfinished image is dropped at its end."""

    def __init__(self, size_bytes: int) -> None:
        """Open an empty image of whole Wasm pages, or raise `InvalidSnapshot` or what `mappings.make_file` raises."""
        if size_bytes % WASM_PAGE_BYTES or not 0 <= size_bytes <= MEMORY_RESERVATION_BYTES:
            raise InvalidSnapshot(f"a linear memory of {size_bytes} bytes")
        self._size_bytes = size_bytes
        self._extents: list[tuple[int, int]] = []
        self._end = 0
        self._descriptor = mappings.make_file("tensorwasm-image", size_bytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def write(self, offset_bytes: int, data: bytes | memoryview) -> None:
        """Write data at an offset, which is not before the end of the last write. Blocks while copying.

        Raises `InvalidSnapshot` if it does not fit, and `CapacityExhausted` if the system has no memory for it.
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
        """Yield the whole image, zeros so far, to be written to inside the ``with``, in ascending spans apart.

        Errors are those of `write`.
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
        """Return the image, now sealed."""
        mappings.seal(self._descriptor)
        descriptor, self._descriptor = self._descriptor, -1
        return Image(descriptor, self._size_bytes, self._joined())

    def _note(self, offset: int, end: int) -> None:
        start = offset // mmap.PAGESIZE * mmap.PAGESIZE
        end = min(-(-end // mmap.PAGESIZE) * mmap.PAGESIZE, self._size_bytes)
        if self._extents and start - sum(self._extents[-1]) < GAP_BYTES:
            start = self._extents.pop()[0]
        self._extents.append((start, end - start))

    def _joined(self) -> tuple[tuple[int, int], ...]:
        extents = self._extents
        gaps = sorted(range(1, len(extents)), key=lambda index: extents[index][0] - sum(extents[index - 1]))
        joined: list[tuple[int, int]] = []
        close = set(gaps[: max(0, len(extents) - MAX_EXTENTS)])
        for index, (start, length) in enumerate(extents):
            first = joined.pop()[0] if index in close else start
            joined.append((first, start + length - first))
        return tuple(joined)


def _reserve_kept() -> bool:
    try:
        _kept_left.pop()
    except IndexError:
        return False
    return True


def make_image(size_bytes: int, runs: Iterable[SavedRun]) -> Image:
    """Return the image of a memory of whole Wasm pages from ascending runs; errors are those of `ImageWriter`."""
    with ImageWriter(size_bytes) as writer:
        for run in runs:
            writer.write(run.offset_bytes, run.data)
        return writer.finish()
