"""Device memory of a guest: taken, given back, and copied to and from."""

from __future__ import annotations

from tensorwasm.gpu.device.arguments import BufferOffset, HostWindow
from tensorwasm.gpu.device.port import Device
from tensorwasm.gpu.launcher import Launcher
from tensorwasm.gpu.session.lock import REFUSALS, SessionLock, in_turn
from tensorwasm.gpu.state.graph_book import GraphBook
from tensorwasm.gpu.state.resource_table import ResourceTable
from tensorwasm.gpu.state.streams import OWN
from tensorwasm.gpu.state.work import SessionWork
from tensorwasm.gpu.windows import Windows
from tensorwasm.values import Deadline, Region


class SessionBuffers:
    """The buffers of one session, by their handles. Any thread may call.

    Args:
        turns: of the session.
        device: the device.
        holdings: what the guest has.
        windows: of the guest's memory.
        work: the streams.
        book: told which graphs may be replayed no more.
        launcher: of launches and copies.
    """

    __slots__ = ("_book", "_device", "_holdings", "_launcher", "_turns", "_windows", "_work")

    def __init__(
        self,
        turns: SessionLock,
        device: Device,
        holdings: ResourceTable,
        windows: Windows,
        work: SessionWork,
        book: GraphBook,
        launcher: Launcher,
    ) -> None:
        self._turns = turns
        self._device = device
        self._holdings = holdings
        self._windows = windows
        self._work = work
        self._book = book
        self._launcher = launcher

    @in_turn()
    def allocate(self, size_bytes: int) -> int:
        """Return the handle of new zeroed device memory. Handles start at 1 and are never used twice.

        Raises:
            InvalidArgs: the size is 0, or a stream records.
            QuotaExceeded: over a limit of the session, the tenant or the process, or the device has no memory left.
            DeviceLost: the session is over, or the device does not answer.
        """
        handle, region = self._holdings.allocate(size_bytes)
        try:
            self._work.clear(region)
        except REFUSALS:
            self._holdings.free(handle)
            raise
        self._holdings.show(handle)
        self._work.confine()
        return handle

    @in_turn()
    def free(self, handle: int, deadline: Deadline) -> None:
        """Release a buffer, once all work has ended. Graphs that use it can be replayed no more.

        Raises:
            InvalidHandle: no such buffer.
            InvalidArgs: a stream records.
            KernelFault: that work broke a rule.
            InvokeTimeout: that work did not end in time.
            DeviceLost: the session is over, or the device does not answer.
        """
        self._holdings.buffer(handle)
        self._work.drain(deadline)
        self._book.forget_buffer(handle)
        self._holdings.free(handle)
        self._work.confine()

    @in_turn()
    def write(
        self,
        handle: int,
        data: bytes | memoryview,
        deadline: Deadline,
        offset_bytes: int = 0,
        memory: Region | None = None,
    ) -> None:
        """Copy host bytes to a place in a buffer, after all work in flight. Blocks until done.

        Args:
            handle: of the buffer.
            data: what is copied.
            deadline: when the work in flight must have ended.
            offset_bytes: where the copy begins.
            memory: the guest's memory, if ``data`` is part of it. Many bytes are faster from registered memory, so it
                is registered for them.

        Raises:
            InvalidHandle: no such buffer.
            InvalidArgs: more bytes than the buffer has there, or a stream records.
            KernelFault: the work in flight broke a rule.
            InvokeTimeout: the work in flight did not end in time.
            DeviceLost: the session is over, or the device does not answer.
        """
        region = self._holdings.buffer(handle, len(data), offset_bytes)
        self._work.drain(deadline)
        if data:
            self._windows.prefer(memory, len(data), deadline)
            self._device.write(region.address + offset_bytes, data, None, deadline)

    @in_turn()
    def read(
        self,
        handle: int,
        into: memoryview,
        deadline: Deadline,
        offset_bytes: int = 0,
        memory: Region | None = None,
    ) -> None:
        """Fill writable bytes from a place in a buffer, after all work in flight. Blocks until done.

        Args:
            handle: of the buffer.
            into: what is filled.
            deadline: when the work in flight must have ended.
            offset_bytes: where the copy begins.
            memory: as in `write`.

        Raises:
            InvalidHandle: no such buffer.
            InvalidArgs: more bytes than the buffer has there, or a stream records.
            KernelFault: the work in flight broke a rule.
            InvokeTimeout: the work in flight did not end in time.
            DeviceLost: the session is over, or the device does not answer.
        """
        region = self._holdings.buffer(handle, len(into), offset_bytes)
        self._work.drain(deadline)
        if into:
            self._windows.prefer(memory, len(into), deadline)
            self._device.read(region.address + offset_bytes, into, None, deadline)

    @in_turn(recording=True)
    def copy_in(
        self,
        handle: int,
        offset_bytes: int,
        window: HostWindow,
        memory: Region,
        deadline: Deadline,
        stream: int = OWN,
    ) -> None:
        """Start copying guest memory to a place in a buffer; with memory that is staged, only once the stream drained.

        Args:
            handle: of the buffer.
            offset_bytes: where the copy begins.
            window: of guest memory; it stays as it is until the stream has drained.
            memory: the guest's memory as it is now, registered if it is not.
            deadline: when the copy must have ended.
            stream: its number.

        Raises:
            InvalidHandle: no such buffer or stream.
            InvalidArgs: more bytes than the buffer has there, or another stream records, or this one records and the
                window is not reached in place.
            InvalidPointer: the window is not inside the memory.
            CapacityExhausted: no place on the GPU in time.
            QuotaExceeded: over the tenant's cap on pinned memory, or the graph that is recorded is full.
            LaunchRefused: the memory cannot be registered.
            KernelFault: the work in flight broke a rule.
            InvokeTimeout: the work in flight did not end in time.
            DeviceLost: the session is over, or the device does not answer.
        """
        place = BufferOffset(handle, offset_bytes)
        self._launcher.copy(window, memory, place, deadline, stream, inward=True)

    @in_turn(recording=True)
    def copy_out(
        self,
        window: HostWindow,
        memory: Region,
        handle: int,
        offset_bytes: int,
        deadline: Deadline,
        stream: int = OWN,
    ) -> None:
        """Start copying a place in a buffer to guest memory; see `copy_in`.

        Raises:
            TensorWasmError: what `copy_in` raises.
        """
        place = BufferOffset(handle, offset_bytes)
        self._launcher.copy(window, memory, place, deadline, stream, inward=False)

    @in_turn(recording=True)
    def before_copy(self, memory: Region, stream: int) -> list[int]:
        """Return the streams, by their numbers, that `copy_in` and `copy_out` on a stream wait for first."""
        return self._windows.before_copy(memory, stream)

    @in_turn(recording=True)
    def at_hand(self, size_bytes: int) -> bool:
        """Return whether `allocate` need not ask the device for so much memory, and so waits for nothing."""
        return self._holdings.at_hand(size_bytes)
