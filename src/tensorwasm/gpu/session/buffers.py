"""Device memory of a guest: allocated, freed, and copied to and from."""

from __future__ import annotations

import ctypes

from tensorwasm.gpu.device.arguments import BufferOffset, HostWindow
from tensorwasm.gpu.device.limits import PIN_COPY_BYTES
from tensorwasm.gpu.device.port import Stream
from tensorwasm.gpu.session.core import REFUSALS, in_turn
from tensorwasm.gpu.session.graphs import RecordingPart
from tensorwasm.gpu.state.numbered import OWN
from tensorwasm.gpu.windows import require_inside
from tensorwasm.values import Deadline, Region


class SessionBuffers(RecordingPart):
    """The buffers of one session, by their handles. Thread-safe; errors as in `tensorwasm.gpu.session`."""

    __slots__ = ()

    @in_turn()
    def allocate(self, size_bytes: int) -> int:
        """Return the handle of new zeroed device memory. Handles start at 1 and are never used twice.

        Raises:
            InvalidArgs: the size is 0.
            QuotaExceeded: over a limit of the session, the tenant or the process, or the device has no memory left.
        """
        core = self._core
        handle, region = core.table.allocate(size_bytes)
        try:
            core.work.clear(region)
        except REFUSALS:
            core.table.free(handle)
            raise
        core.table.show(handle)
        core.work.confine()
        return handle

    @in_turn()
    def free(self, handle: int, deadline: Deadline) -> None:
        """Release a buffer, once all work has ended. Graphs that use it can be replayed no more."""
        core = self._core
        core.table.buffers.require(handle)
        core.work.drain(deadline)
        core.graphs.forget(buffer=handle)
        core.table.free(handle)
        core.work.confine()

    @in_turn()
    def write(
        self,
        handle: int,
        data: bytes | memoryview,
        deadline: Deadline,
        offset_bytes: int = 0,
        memory: Region | None = None,
    ) -> None:
        """Copy host bytes to an offset in a buffer, after all work in flight. Blocks until done.

        Args:
            handle: of the buffer.
            data: what is copied.
            deadline: when the work in flight must have ended.
            offset_bytes: where the copy begins.
            memory: the guest's memory, if ``data`` is part of it. Many bytes are faster from registered memory, so it
                is registered for them.

        Raises:
            InvalidArgs: more bytes than the buffer has there.
        """
        core = self._core
        address = core.table.place(handle, offset_bytes, len(data))
        core.work.drain(deadline)
        if data:
            core.windows.prefer(memory, len(data), deadline)
            core.layout.count_wait(core.device.write, address, data, None, deadline)

    @in_turn()
    def read(
        self, handle: int, into: memoryview, deadline: Deadline, offset_bytes: int = 0, memory: Region | None = None
    ) -> None:
        """Fill writable bytes from an offset in a buffer; otherwise as `write`."""
        core = self._core
        address = core.table.place(handle, offset_bytes, len(into))
        core.work.drain(deadline)
        if into:
            core.windows.prefer(memory, len(into), deadline)
            core.layout.count_wait(core.device.read, address, into, None, deadline)

    @in_turn(recording=True)
    def copy_in(
        self, handle: int, offset_bytes: int, window: HostWindow, memory: Region, deadline: Deadline, stream: int = OWN
    ) -> None:
        """Start copying guest memory to an offset in a buffer; memory that is staged waits for the stream first.

        Args:
            handle: of the buffer.
            offset_bytes: where the copy begins.
            window: of guest memory; it stays as it is until the stream has drained.
            memory: the guest's memory as it is now, registered if it is not.
            deadline: when the copy must have ended.
            stream: its number.

        Raises:
            InvalidArgs: more bytes than the buffer has there, or another stream records, or this one records and the
                window is not reached in place.
            InvalidPointer: the window is not inside the memory.
            CapacityExhausted: no permit at the gate in time.
            QuotaExceeded: over the tenant's cap on pinned memory, or the graph that is recorded is full.
            LaunchRefused: the memory cannot be registered.
        """
        self._copy(window, memory, BufferOffset(handle, offset_bytes), deadline, stream, inward=True)

    @in_turn(recording=True)
    def copy_out(
        self, window: HostWindow, memory: Region, handle: int, offset_bytes: int, deadline: Deadline, stream: int = OWN
    ) -> None:
        """Start copying from an offset in a buffer to guest memory; otherwise as `copy_in`."""
        self._copy(window, memory, BufferOffset(handle, offset_bytes), deadline, stream, inward=False)

    @in_turn()
    def reach(self, memory: Region, deadline: Deadline) -> bool:
        """Register whole pages of the guest's memory for copies; return whether the device copies them in place.

        If not, what was registered before may still be. Waits for the work in flight.
        """
        windows = self._core.windows
        windows.prefer(memory, PIN_COPY_BYTES, deadline)
        self._core.work.permit.settle()
        return windows.reach.holds(memory.address, memory.size_bytes)

    @in_turn(recording=True)
    def pieces(self, size_bytes: int) -> int:
        """Return how many pieces of work a copy is."""
        return self._core.copy_pieces(size_bytes)

    @in_turn(recording=True)
    def before_copy(self, memory: Region, stream: int) -> list[int]:
        """Return the streams, by their numbers, that `copy_in` and `copy_out` on a stream wait for first."""
        return self._core.windows.before_copy(memory, stream)

    @in_turn(recording=True)
    def at_hand(self, size_bytes: int) -> bool:
        """Return whether `allocate` need not ask the device for so much memory, and so waits for nothing."""
        return self._core.table.at_hand(size_bytes)

    def _copy(
        self, window: HostWindow, memory: Region, place: BufferOffset, deadline: Deadline, stream: int, *, inward: bool
    ) -> None:
        core, work = self._core, self._core.work
        work.streams.require(stream)
        address = core.table.place(place.handle, place.offset_bytes, window.length_bytes)
        require_inside(window, memory)
        if not window.length_bytes:
            return
        pieces = core.copy_pieces(window.length_bytes)
        if core.graphs.recording is not None:
            recorder = self._begin_step(stream, memory, deadline, pieces)
            self._require_reached([window])
            self._start(window, address, recorder, inward=inward)
            core.graphs.recording.uses.add((window, place), None, core.windows.reach.region, pieces)
            return
        work.permit.take(deadline)
        try:
            reached = core.windows.extend_for_copy(window, memory, deadline)
            target = work.find(stream)
            if reached:
                work.give(target, pieces, self._start, window, address, target.stream, inward=inward)
            else:
                # From memory that is not registered the driver copies when a stream comes to it, and waits for that in
                # the call, without a deadline: so never behind kernels, of the guest or of others on its stream.
                work.wait(target, deadline)
                host = memoryview((ctypes.c_char * window.length_bytes).from_address(window.address)).cast("B")
                core.layout.count_wait(core.device.write if inward else core.device.read, address, host, None, deadline)
        finally:
            work.permit.settle()

    def _start(self, window: HostWindow, address: int, stream: Stream, *, inward: bool) -> None:
        if inward:
            self._core.device.copy_in(address, window.address, window.length_bytes, stream)
        else:
            self._core.device.copy_out(window.address, address, window.length_bytes, stream)
