"""A session read into plain values, between two calls of its guest."""

from __future__ import annotations

import time
from typing import Final

from tensorwasm.errors import InvalidSnapshot, InvokeTimeout, NotCapturable
from tensorwasm.gpu.device.port import Device
from tensorwasm.gpu.launcher import Launcher
from tensorwasm.gpu.native.layout_writer import SessionLayoutWriter
from tensorwasm.gpu.session.handles import SessionHandles
from tensorwasm.gpu.session.lock import SessionLock, in_turn
from tensorwasm.gpu.session.page_runs import Collector
from tensorwasm.gpu.session.saved_checks import check_buffers
from tensorwasm.gpu.state.events import EventTable
from tensorwasm.gpu.state.graph_book import GraphBook
from tensorwasm.gpu.state.resource_table import ResourceTable
from tensorwasm.gpu.state.streams import OWN
from tensorwasm.gpu.state.work import SessionWork
from tensorwasm.gpu.windows import Windows
from tensorwasm.ptx.lexer import shown
from tensorwasm.saved import SavedBuffer, SavedKernel, SavedRun, SavedSession
from tensorwasm.values import MIB, Deadline, Region

CHUNK_BYTES: Final = 16 * MIB
"""Host memory that device memory is read through."""
_FIRST_PAUSE_S: Final = 50e-6
_LONGEST_PAUSE_S: Final = 5e-3


class Capture:
    """Reads one session. Any thread may call, while the guest does not run.

    Args:
        turns: of the session.
        device: the device.
        sheet: what compiled code knows.
        holdings: what the guest has.
        windows: of the guest's memory.
        work: the streams.
        marks: the events.
        book: the graphs.
        launcher: knows whether a stream records.
        numbers: what comes next.
    """

    __slots__ = (
        "_book",
        "_device",
        "_holdings",
        "_launcher",
        "_marks",
        "_numbers",
        "_sheet",
        "_turns",
        "_windows",
        "_work",
    )

    def __init__(
        self,
        turns: SessionLock,
        device: Device,
        sheet: SessionLayoutWriter,
        holdings: ResourceTable,
        windows: Windows,
        work: SessionWork,
        marks: EventTable,
        book: GraphBook,
        launcher: Launcher,
        numbers: SessionHandles,
    ) -> None:
        self._turns = turns
        self._device = device
        self._sheet = sheet
        self._holdings = holdings
        self._windows = windows
        self._work = work
        self._marks = marks
        self._book = book
        self._launcher = launcher
        self._numbers = numbers

    def take(self, deadline: Deadline, parent: SavedSession | None) -> SavedSession:
        """See `tensorwasm.gpu.session.Session.capture`."""
        if parent is not None:
            check_buffers(parent.buffers)
        with self._turns.lock:
            self._require_whole()
            if not self._await_end(deadline):
                raise InvokeTimeout("work on the GPU was still running when the session was to be saved")
            return self._read(deadline, {} if parent is None else {each.handle: each for each in parent.buffers})

    def _require_whole(self) -> None:
        turns = self._turns
        if turns.failure is not None or turns.closed:
            raise NotCapturable(f"a GPU session that is over cannot be saved: {turns.failure or 'it was closed'}")
        if self._launcher.recording is not None:
            raise NotCapturable(f"stream {self._launcher.recording.lane.number} records a graph: end that first")
        if self._book.count:
            raise NotCapturable(f"{self._book.count} graphs, which only the device knows: close them first")
        if self._sheet.staged:
            raise NotCapturable("a launch whose call has not ended")

    @in_turn()
    def _await_end(self, deadline: Deadline) -> bool:
        """Return whether all work ended in time.

        A device may give up, or stop, work that is waited for beyond the deadline of whoever waits. This one is not
        the work's own, so the device is only asked.
        """
        if deadline.at_ns is None:
            self._work.drain(deadline)
            return True
        pause_s = _FIRST_PAUSE_S
        while [lane for lane in self._work.lanes if not self._work.ended(lane)]:  # each is asked: that lets it run
            if deadline.expired():
                return False
            time.sleep(min(pause_s, deadline.remaining_s()))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        return True

    @in_turn(InvokeTimeout)
    def _read(self, deadline: Deadline, parent: dict[int, SavedBuffer]) -> SavedSession:
        kernels = self._kernels()
        return SavedSession(
            buffers=self._buffers(parent, deadline),
            kernels=kernels,
            streams=tuple(sorted(lane.number for lane in self._work.lanes if lane.number != OWN)),
            events=self._marks.numbers,
            next_numbers=tuple(self._numbers.get().items()),
            memory_kind=self._windows.kind,
        )

    def _kernels(self) -> tuple[SavedKernel, ...]:
        saved = []
        for kernel_id, kernel in sorted(self._holdings.kernels.items()):
            if kernel.shared.writable:
                raise NotCapturable(f"kernel {shown(kernel.entry)} may have written to variables of its module")
            saved.append(SavedKernel(kernel_id, kernel.shared.text, kernel.entry))
        return tuple(saved)

    def _buffers(self, parent: dict[int, SavedBuffer], deadline: Deadline) -> tuple[SavedBuffer, ...]:
        buffers = self._holdings.buffers
        largest = max((region.size_bytes for region in buffers.values()), default=0)
        stage = memoryview(bytearray(min(largest, CHUNK_BYTES)))
        saved = []
        for handle, region in buffers.items():
            old = parent.get(handle)
            if old is not None and old.size_bytes != region.size_bytes:
                raise InvalidSnapshot(f"the parent is of another session: its buffer {handle} has another size")
            runs = self._runs(region, stage, () if old is None else old.runs, deadline)
            saved.append(SavedBuffer(handle, region.size_bytes, runs))
        return tuple(saved)

    def _runs(
        self, region: Region, stage: memoryview, base: tuple[SavedRun, ...], deadline: Deadline
    ) -> tuple[SavedRun, ...]:
        collector = Collector(base)
        for offset in range(0, region.size_bytes, CHUNK_BYTES):
            chunk = stage[: min(CHUNK_BYTES, region.size_bytes - offset)]
            self._device.read(region.address + offset, chunk, None, deadline)
            collector.add(offset, chunk)
        return collector.finish()
