"""A device of real host pages: it keeps books, notes broken rules of the port, and any call can be made to fail."""

from __future__ import annotations

import ctypes
import mmap
from dataclasses import dataclass, field, replace

from fakes.device import INFO
from tensorwasm.values import DeviceInfo

GRANULE_BYTES = 4 * mmap.PAGESIZE
DEVICE_BYTES = 1 << 30
DIRT = 0xAA
_INFO = replace(INFO, memory_bytes=DEVICE_BYTES, concurrent_managed_access=True)


@dataclass
class FakeMemory:
    """Implements what buffers need of the `Device` port and of its `UnifiedMemory` facet.

    Device memory is host memory under an address that is off by `SHIFT`, so that nobody reaches it by accident.

    Attributes:
        failures: error that the next call of that method raises, once.
        broken: rules of the port that the caller broke; tests assert that there are none.
        calls: methods called, with their plain arguments.
        seen: what was in pages when they were given back or left the device's reach.
    """

    SHIFT = 1 << 50

    info: DeviceInfo = _INFO
    managed: bool = True
    growable: bool = True
    granularity_bytes: int = GRANULE_BYTES
    failures: dict[str, BaseException] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    calls: list[tuple] = field(default_factory=list)
    allocations: dict[int, ctypes.Array] = field(default_factory=dict)
    registered: dict[int, int] = field(default_factory=dict)
    managed_pages: dict[int, mmap.mmap] = field(default_factory=dict)
    reserved: dict[int, mmap.mmap] = field(default_factory=dict)
    mapped: dict[int, int] = field(default_factory=dict)
    streams: list[object] = field(default_factory=list)
    seen: list[bytes] = field(default_factory=list)

    @property
    def unified(self):
        return self

    def empty(self):
        return not (
            self.allocations or self.registered or self.managed_pages or self.reserved or self.mapped or self.streams
        )

    def _begin(self, name, *args):
        self.calls.append((name, *args))
        if error := self.failures.pop(name, None):
            raise error

    def _require(self, kept, rule):
        if not kept:
            self.broken.append(rule)

    # device memory

    def allocate(self, size_bytes):
        self._begin("allocate", size_bytes)
        block = (ctypes.c_ubyte * size_bytes)()
        address = ctypes.addressof(block) + self.SHIFT
        self.allocations[address] = block
        return address

    def free(self, address):
        self._begin("free")
        self._require(self.allocations.pop(address, None) is not None, "free of nothing")

    def _inside(self, address, size_bytes, stream):
        self._require(stream in self.streams, "a stream that is not open")
        inside = any(
            at <= address and address + size_bytes <= at + len(block) for at, block in self.allocations.items()
        )
        self._require(inside and size_bytes > 0, "a range that is not inside an allocation")

    def write(self, address, data, stream):
        self._begin("write")
        self._inside(address, len(data), stream)
        ctypes.memmove(address - self.SHIFT, bytes(data), len(data))

    def read(self, address, into, stream):
        self._begin("read")
        self._inside(address, len(into), stream)
        into[:] = ctypes.string_at(address - self.SHIFT, len(into))

    def fill(self, address, size_bytes, stream):
        self._begin("fill")
        self._inside(address, size_bytes, stream)
        ctypes.memset(address - self.SHIFT, 0, size_bytes)

    def synchronize(self, stream, deadline):
        self._begin("synchronize")

    def open_stream(self):
        self._begin("open_stream")
        self.streams.append(stream := object())
        return stream

    def close_stream(self, stream):
        self._begin("close_stream")
        self.streams.remove(stream)

    # host pages

    def register(self, address, size_bytes):
        self._begin("register", size_bytes)
        self._require(address % mmap.PAGESIZE == 0 and size_bytes % mmap.PAGESIZE == 0, "no whole pages")
        ctypes.string_at(address, size_bytes)  # they are there
        self.registered[address] = size_bytes

    def unregister(self, address):
        self._begin("unregister")
        self._require(self.registered.pop(address, None) is not None, "unregister of nothing")

    # unified memory

    def allocate_managed(self, size_bytes, zero_bytes=None):
        self._begin("allocate_managed", size_bytes, zero_bytes)
        address = self._pages(self.managed_pages, size_bytes)
        ctypes.memset(address, DIRT, size_bytes)
        ctypes.memset(address, 0, size_bytes if zero_bytes is None else zero_bytes)
        return address

    def clear_managed(self, address, size_bytes):
        self._begin("clear_managed", size_bytes)
        blocks = ((at, len(pages)) for at, pages in self.managed_pages.items())
        inside = any(at <= address and address + size_bytes <= at + size for at, size in blocks)
        self._require(inside and size_bytes > 0, "a range that is not inside managed memory")
        ctypes.memset(address, 0, size_bytes)

    def free_managed(self, address):
        self._begin("free_managed")
        del self.managed_pages[address]

    def advise(self, address, size_bytes, advice):
        self._begin("advise", size_bytes, advice)
        return True

    def prefetch(self, address, size_bytes, stream, *, to_host):
        self._begin("prefetch", size_bytes, stream, to_host)
        return True

    def reserve(self, size_bytes):
        self._begin("reserve", size_bytes)
        self._require(size_bytes % GRANULE_BYTES == 0, "no whole granules")
        return self._pages(self.reserved, size_bytes)

    def map(self, address, size_bytes):
        self._begin("map", size_bytes)
        self._require(address % mmap.PAGESIZE == 0 and size_bytes % GRANULE_BYTES == 0, "no whole granules")
        self.mapped[address] = size_bytes

    def unmap(self, address, size_bytes):
        self._begin("unmap", size_bytes)
        self._require(self.mapped.pop(address, None) == size_bytes, "unmap of what no map mapped")
        self.seen.append(ctypes.string_at(address, size_bytes))

    def unreserve(self, address, size_bytes):
        self._begin("unreserve", size_bytes)
        inside = any(address <= at < address + size_bytes for at in self.mapped)
        self._require(not inside, "a range that is given back with memory in it")
        del self.reserved[address]

    @staticmethod
    def _pages(table, size_bytes):
        pages = mmap.mmap(-1, size_bytes)
        address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
        table[address] = pages
        return address
