"""A session made what it was when it was saved, before its guest runs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final

from tensorwasm.errors import DeviceUnavailable, InvalidArgs, InvokeTimeout, MalformedPtx, UnsupportedPtx
from tensorwasm.gpu.device.port import Device
from tensorwasm.gpu.session.handles import SessionHandles
from tensorwasm.gpu.session.lock import SessionLock, in_turn
from tensorwasm.gpu.session.saved_checks import check_session
from tensorwasm.gpu.state.events import EventTable
from tensorwasm.gpu.state.graph_book import GraphBook
from tensorwasm.gpu.state.resource_table import ResourceTable
from tensorwasm.gpu.state.streams import OWN
from tensorwasm.gpu.state.work import SessionWork
from tensorwasm.ptx.lexer import shown
from tensorwasm.saved import SavedBuffer, SavedKernel, SavedSession
from tensorwasm.values import MIB, NEVER, Deadline

CHUNK_BYTES: Final = 16 * MIB
"""Most that is written at once, so that the deadline is looked at."""


class Restore:
    """Restores one session. Any thread may call.

    Args:
        turns: of the session.
        device: the device.
        holdings: what the guest gets.
        work: the streams.
        marks: the events.
        book: the graphs.
        numbers: what comes next.
    """

    __slots__ = ("_book", "_device", "_holdings", "_marks", "_numbers", "_turns", "_work")

    def __init__(
        self,
        turns: SessionLock,
        device: Device,
        holdings: ResourceTable,
        work: SessionWork,
        marks: EventTable,
        book: GraphBook,
        numbers: SessionHandles,
    ) -> None:
        self._turns = turns
        self._device = device
        self._holdings = holdings
        self._work = work
        self._marks = marks
        self._book = book
        self._numbers = numbers

    def put(self, saved: SavedSession, deadline: Deadline) -> None:
        """See `tensorwasm.gpu.session.Session.restore`."""
        numbers = check_session(saved)
        with self._turns.lock:
            self._take(saved, numbers, deadline)
            try:
                self._fill(saved.buffers, deadline)
            except BaseException as error:
                # Even if it was a refusal: buffers are half filled, and the device may be at work on them.
                self._turns.fail(error)
                raise

    @in_turn(InvokeTimeout, DeviceUnavailable)
    def _take(self, saved: SavedSession, numbers: dict[str, int], deadline: Deadline) -> None:
        """Take all that the session needs, or nothing. No work is given to the device yet."""
        if not self._fresh():
            raise InvalidArgs("only a new session can be restored into")
        with ExitStack() as undo:
            undo.callback(self._numbers.set, self._numbers.get())
            for buffer in saved.buffers:
                self._numbers.set({"handle": buffer.handle})
                undo.callback(self._holdings.free, self._holdings.allocate(buffer.size_bytes)[0])
            if saved.buffers:
                self._work.find(OWN)
            for number in saved.streams:
                self._numbers.set({"stream": number})
                undo.callback(self._work.close, self._work.open(), NEVER)
            for number in saved.events:
                self._numbers.set({"event": number})
                undo.callback(self._marks.close, self._marks.open())
            for kernel in saved.kernels:
                self._numbers.set({"kernel": kernel.kernel_id})
                undo.callback(self._holdings.unload, self._load(kernel, deadline))
            self._numbers.set(numbers)
            undo.pop_all()

    def _fill(self, buffers: Sequence[SavedBuffer], deadline: Deadline) -> None:
        """Bring the contents back, and only then let compiled code see them."""
        regions = self._holdings.buffers
        for buffer in buffers:
            own, region = self._work.find(OWN), regions[buffer.handle]
            with self._work.giving(own):
                self._device.fill(region.address, region.size_bytes, own.stream)
        self._work.drain(deadline)
        for buffer in buffers:
            self._write(buffer, regions[buffer.handle].address, deadline)
            self._holdings.show(buffer.handle)
        self._work.confine()

    def _fresh(self) -> bool:
        unused = self._holdings.renewable and self._work.renewable and self._marks.unused and self._book.unused
        return unused and not self._holdings.kernels

    def _load(self, kernel: SavedKernel, deadline: Deadline) -> int:
        try:
            return self._holdings.load(kernel.text, kernel.entry, deadline)
        except UnsupportedPtx as error:
            raise UnsupportedPtx(f"the saved kernel {shown(kernel.entry)} cannot run here: {error.message}") from error
        except MalformedPtx as error:
            raise MalformedPtx(f"the saved kernel {shown(kernel.entry)}: {error.message}") from error

    def _write(self, buffer: SavedBuffer, address: int, deadline: Deadline) -> None:
        for run in buffer.runs:
            data = memoryview(run.data)
            for start in range(0, len(data), CHUNK_BYTES):
                place = address + run.offset_bytes + start
                self._device.write(place, data[start : start + CHUNK_BYTES], None, deadline)
