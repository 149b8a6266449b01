"""A device with words of memory and kernels whose order shows, for tests of what lies beside the port's core."""

from __future__ import annotations

import ctypes
import mmap
import struct
import time
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from typing import Self

from tensorwasm.gpu.device.port import Device
from tensorwasm.ptx.parser import parse
from tensorwasm.values import NEVER, Deadline, LaunchConfig, Region

ONE = LaunchConfig((1, 1, 1), (1, 1, 1))
PTX = """
.version 7.0
.target sm_70
.address_size 64
.visible .entry mix(.param .u64 to, .param .u64 from, .param .u32 factor)
{
  .reg .b32 %r<6>; .reg .b64 %rd<3>;
  ld.param.u64 %rd1, [to]; ld.param.u64 %rd2, [from]; ld.param.u32 %r1, [factor];
  cvta.to.global.u64 %rd1, %rd1; cvta.to.global.u64 %rd2, %rd2;
  ld.global.u32 %r2, [%rd1]; ld.global.u32 %r3, [%rd2];
  mad.lo.u32 %r4, %r2, %r1, %r3; add.u32 %r5, %r4, 1; st.global.u32 [%rd1], %r5;
  ret;
}
.visible .entry await(.param .u64 flag)
{
  .reg .pred %p<2>; .reg .b32 %r<2>; .reg .b64 %rd<2>;
  ld.param.u64 %rd1, [flag]; cvta.to.global.u64 %rd1, %rd1;
L: ld.volatile.global.u32 %r1, [%rd1]; setp.eq.u32 %p1, %r1, 0; @%p1 bra L;
  ret;
}
"""


def mixed(to: int, source: int, factor: int) -> int:
    """Return what the kernel ``mix`` makes of two words."""
    return (to * factor + source + 1) & 0xFFFF_FFFF


@contextmanager
def pages(device: Device, count: int = 1):
    """Registered host pages, with their address."""
    size = count * mmap.PAGESIZE
    block = mmap.mmap(-1, size)
    anchor = ctypes.c_char.from_buffer(block)
    address = ctypes.addressof(anchor)
    device.register(address, size)
    try:
        yield block, address
    finally:
        device.unregister(address)
        del anchor
        block.close()


class Rig:
    """Owns what it opens; a context manager. Words are uint32.

    Attributes:
        regions: what its kernels may touch.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.regions: list[Region] = []
        self._stack = ExitStack()
        self._loaded = device.load(parse(PTX), NEVER)
        self._stack.callback(device.unload, self._loaded)
        self._own = self.stream()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def loaded(self):
        return self._loaded

    def stream(self):
        """Return a new stream."""
        stream = self.device.open_stream()
        self._stack.callback(self.device.close_stream, stream)
        return stream

    def event(self):
        """Return a new event."""
        event = self.device.events.open_event()
        self._stack.callback(self.device.events.close_event, event)
        return event

    def graph(self, stream):
        """End a capture and return the graph."""
        graph = self.device.graphs.end_capture(stream)
        self._stack.callback(self.device.graphs.close_graph, graph)
        return graph

    def words(self, *values: int) -> int:
        """Return the address of new device memory that holds words."""
        size = 4 * len(values)
        address = self.device.allocate(size)
        self._stack.callback(self.device.free, address)
        self.regions.append(Region(address, size, host=False))
        self.device.write(address, struct.pack(f"<{len(values)}I", *values), self._own)
        return address

    def host(self, count: int = 1):
        """Return registered host pages and their address."""
        block, address = self._stack.enter_context(pages(self.device, count))
        self.regions.append(Region(address, count * mmap.PAGESIZE, host=True))
        return block, address

    def look(self, address: int, count: int = 1) -> list[int]:
        """Return words of device memory. Waits for no stream of the test's."""
        into = bytearray(4 * count)
        self.device.read(address, memoryview(into), self._own)
        return list(struct.unpack(f"<{count}I", into))

    def mix(self, stream, to: int, source: int, factor: int) -> None:
        """Start the kernel ``mix``."""
        self.start("mix", stream, struct.pack("<Q", to), struct.pack("<Q", source), struct.pack("<I", factor))

    def hold(self, stream, flag: int) -> None:
        """Keep a stream busy until the word at a host address is not 0, or the test has failed.

        Kernels of a GPU have no other end, and a driver unregisters no page while one runs.
        """
        self._stack.callback(self.drain, stream)
        self._stack.callback(ctypes.memset, flag, 1, 1)
        self.start("await", stream, struct.pack("<Q", flag), deadline=Deadline.after(20))

    def start(self, entry: str, stream, *args: bytes, deadline: Deadline = NEVER) -> None:
        """Start a kernel of one thread."""
        self.device.launch(self._loaded, entry, ONE, args, tuple(self.regions), stream, deadline)

    def drain(self, *streams) -> None:
        """Wait for streams."""
        for stream in streams:
            self.device.synchronize(stream, Deadline.after(30))


def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Ask until the answer is yes, letting other threads have their turns; too late is a failure."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0)
