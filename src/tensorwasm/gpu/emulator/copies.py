"""Copies and fills as work of a stream."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tensorwasm.errors import KernelFault, LaunchRefused
from tensorwasm.gpu.device.protocols import Stream
from tensorwasm.gpu.emulator.allocations import Allocations
from tensorwasm.gpu.emulator.planes import host_bytes, shown_address
from tensorwasm.gpu.emulator.queues import Action, Queues, Work
from tensorwasm.gpu.emulator.reach import NOWHERE, Reach, Use
from tensorwasm.values import NEVER, Deadline

Bytes = NDArray[np.uint8]
Place = Reach | Bytes
"""A range of memory of the table, or bytes that somebody keeps until the copy has run."""


@dataclass(frozen=True, slots=True)
class Copy:
    """Bytes from one place to another.

    Attributes:
        allocations: where the places are.
        target: where to.
        source: where from; a single byte fills the target.
    """

    allocations: Allocations
    target: Place
    source: Place

    def run(self, reach: Reach, deadline: Deadline) -> None:
        """Copy.

        Raises:
            KernelFault: memory of the table is no longer there.
        """
        del reach, deadline
        with (
            self.allocations.using(_reach(self.target)) as target,
            self.allocations.using(_reach(self.source)) as source,
        ):
            _bytes(self.target, target)[:] = _bytes(self.source, source)


def _reach(place: Place) -> Reach:
    return place if isinstance(place, Reach) else NOWHERE


def _bytes(place: Place, use: Use) -> Bytes:
    if not isinstance(place, Reach):
        return place
    planes = use.holding.planes
    if len(planes) != 1 or planes[0].data.size != place.segments[-1].end - place.segments[0].start:
        raise KernelFault("a copy reaches memory that was released before it ran")
    return planes[0].data


class Copies:
    """What starts copies on a device.

    Device memory is any that the table knows. Host memory that the table does not know is copied from at once, and
    copied to while the caller waits, so that nothing touches it after the call.
    """

    def __init__(self, allocations: Allocations, queues: Queues) -> None:
        self._allocations = allocations
        self._queues = queues

    def write(self, address: int, data: bytes | memoryview, stream: Stream | None) -> None:
        """Copy host bytes into device memory behind the work in the stream, if there is one; wait for it.

        Raises:
            LaunchRefused: the range is not inside one allocation, or the stream is recording.
            TensorWasmError: the work in the stream has failed.
        """
        source = np.frombuffer(data, np.uint8)
        self._now(Copy(self._allocations, self._span(address, source.size), source), stream)

    def read(self, address: int, into: memoryview, stream: Stream | None) -> None:
        """Fill a writable host buffer from device memory behind the work in the stream, if there is one; wait for it.

        Raises:
            LaunchRefused: the range is not inside one allocation, or the stream is recording.
            TensorWasmError: the work in the stream has failed.
        """
        self._fetch(np.frombuffer(into, np.uint8), address, stream)

    def fill(self, address: int, size_bytes: int, stream: Stream) -> None:
        """Start filling device memory with zeros.

        Raises:
            LaunchRefused: the range is not inside one allocation.
            TensorWasmError: what the stream has failed with.
        """
        self._later(Copy(self._allocations, self._span(address, size_bytes), np.zeros(1, np.uint8)), stream)

    def copy_in(self, address: int, host_address: int, size_bytes: int, stream: Stream) -> None:
        """Start copying host memory to device memory.

        Raises:
            LaunchRefused: a range is not inside one allocation or not host memory, or the stream is recording and the
                host memory is not registered.
            TensorWasmError: what the stream has failed with.
        """
        if not size_bytes:
            return
        target = self._span(address, size_bytes)
        source: Place | None = self._allocations.host_span(host_address, size_bytes)
        if source is None:
            self._queues.mark(self._queues.own(stream))
            source = host_bytes(host_address, size_bytes).copy()
        self._later(Copy(self._allocations, target, source), stream)

    def copy_out(self, host_address: int, address: int, size_bytes: int, stream: Stream) -> None:
        """Start copying device memory to host memory.

        Raises:
            LaunchRefused: a range is not inside one allocation or not host memory, or the stream is recording and the
                host memory is not registered.
            TensorWasmError: what the stream has failed with.
        """
        if not size_bytes:
            return
        source = self._span(address, size_bytes)
        target = self._allocations.host_span(host_address, size_bytes)
        if target is None:
            self._fetch(host_bytes(host_address, size_bytes), address, stream)
        else:
            self._later(Copy(self._allocations, target, source), stream)

    def _later(self, action: Action, stream: Stream) -> None:
        self._queues.give(self._queues.own(stream), Work(action))

    def _now(self, action: Action, stream: Stream | None) -> None:
        if stream is None:
            action.run(NOWHERE, NEVER)
            return
        own = self._queues.own(stream)
        self._queues.mark(own)
        self._queues.run_to(self._queues.give(own, Work(action)), NEVER)

    def _fetch(self, target: Bytes, address: int, stream: Stream | None) -> None:
        self._now(Copy(self._allocations, target, self._span(address, target.size)), stream)

    def _span(self, address: int, size_bytes: int) -> Reach:
        found = self._allocations.span(address, size_bytes)
        if found is None:
            raise LaunchRefused(f"{size_bytes} bytes at {shown_address(address)} are not memory of this device")
        return found
