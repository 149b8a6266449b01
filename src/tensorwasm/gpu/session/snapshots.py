"""Saves a GPU session between two calls of its guest as plain values, and restores one before its guest runs."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from io import BytesIO
from typing import Final

from tensorwasm.errors import (
    DeviceUnavailable,
    InvalidArgs,
    InvalidSnapshot,
    InvokeTimeout,
    MalformedPtx,
    NotCapturable,
    UnsupportedPtx,
)
from tensorwasm.gpu.session.core import SessionPart, in_turn
from tensorwasm.gpu.session.saved_checks import check_buffers, check_session, next_numbers, set_numbers
from tensorwasm.gpu.session.streams import SessionEvents
from tensorwasm.gpu.state.numbered import OWN
from tensorwasm.ptx.lexer import shown
from tensorwasm.saved import PAGE_BYTES, SavedBuffer, SavedKernel, SavedRun, SavedSession
from tensorwasm.values import MIB, NEVER, Deadline, Region

CHUNK_BYTES: Final = 16 * MIB
"""Host memory that device memory is read through, and most that is written between two looks at the deadline."""
_FIRST_PAUSE_S: Final = 50e-6
_LONGEST_PAUSE_S: Final = 5e-3
_BLOCK_BYTES: Final = 16 * PAGE_BYTES
"""Compared at once, before its pages are."""
_ZEROS: Final = bytes(_BLOCK_BYTES)


class SessionSnapshots(SessionPart):
    """Reads one session, and makes a new one what was read. Thread-safe, while the guest does not run."""

    __slots__ = ()

    def take(self, deadline: Deadline, parent: SavedSession | None) -> SavedSession:
        """See `tensorwasm.gpu.session.Session.capture`."""
        if parent is not None:
            check_buffers(parent.buffers)
        with self._core.lock:
            self._require_whole()
            if not self._await_end(deadline):
                raise InvokeTimeout("work on the GPU was still running when the session was to be saved")
            return self._read(deadline, {} if parent is None else {each.handle: each for each in parent.buffers})

    def _require_whole(self) -> None:
        core = self._core
        if core.failure is not None or core.closed:
            raise NotCapturable(f"a GPU session that is over cannot be saved: {core.failure or 'it was closed'}")
        if core.graphs.recording is not None:
            raise NotCapturable(f"stream {core.graphs.recording.source.number} records a graph: end that first")
        if len(core.graphs):
            raise NotCapturable(f"{len(core.graphs)} graphs, which only the device knows: close them first")
        if core.layout.staged:
            raise NotCapturable("a launch whose call has not ended")

    @in_turn()
    def _await_end(self, deadline: Deadline) -> bool:
        """Return whether all work ended in time.

        A device may give up, or stop, work that is waited for beyond a deadline. This deadline is not the work's own,
        so the device is only asked.
        """
        work = self._core.work
        if deadline.at_ns is None:
            work.drain(deadline)
            return True
        pause_s = _FIRST_PAUSE_S
        while [stream for stream in work.streams if not work.ended(stream)]:  # each is asked: that lets it run
            if deadline.expired():
                return False
            time.sleep(min(pause_s, deadline.remaining_s()))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        return True

    @in_turn(InvokeTimeout)
    def _read(self, deadline: Deadline, parent: dict[int, SavedBuffer]) -> SavedSession:
        core = self._core
        return SavedSession(
            kernels=self._kernels(),
            buffers=self._buffers(parent, deadline),
            streams=tuple(sorted(stream.number for stream in core.work.streams if stream.number != OWN)),
            events=tuple(core.events),
            next_numbers=tuple(next_numbers(core).items()),
            memory_kind=core.windows.kind,
        )

    def _kernels(self) -> tuple[SavedKernel, ...]:
        saved = []
        for kernel_id, kernel in sorted(self._core.table.kernels.items()):
            shared, entry = kernel.shared, kernel.shared.entry
            if shared.writable:
                raise NotCapturable(f"kernel {shown(entry)} may have written to variables of its module")
            saved.append(SavedKernel(kernel_id, shared.text, entry))
        return tuple(saved)

    def _buffers(self, parent: dict[int, SavedBuffer], deadline: Deadline) -> tuple[SavedBuffer, ...]:
        buffers, saved = self._core.table.buffers, []
        largest = max((region.size_bytes for region in buffers.values()), default=0)
        stage = memoryview(bytearray(min(largest, CHUNK_BYTES)))
        for handle, region in buffers.items():
            old = parent.get(handle)
            if old is not None and old.size_bytes != region.size_bytes:
                raise InvalidSnapshot(f"the parent is of another session: its buffer {handle} has another size")
            runs = self._runs(region, stage, old.runs if old is not None else (), deadline)
            saved.append(SavedBuffer(handle, region.size_bytes, runs))
        return tuple(saved)

    def _runs(
        self, region: Region, stage: memoryview, base: tuple[SavedRun, ...], deadline: Deadline
    ) -> tuple[SavedRun, ...]:
        collector = RunCollector(base)
        for offset in range(0, region.size_bytes, CHUNK_BYTES):
            chunk = stage[: min(CHUNK_BYTES, region.size_bytes - offset)]
            self._core.device.read(region.address + offset, chunk, None, deadline)
            collector.add(offset, chunk)
        return collector.finish()

    # ---------------------------------------------------------------------------------------- restoring

    def put(self, saved: SavedSession, deadline: Deadline) -> None:
        """See `tensorwasm.gpu.session.Session.restore`."""
        numbers = check_session(saved)
        with self._core.lock:
            self._take(saved, numbers, deadline)
            try:
                self._fill(saved.buffers, deadline)
            except BaseException as error:
                # Even if it was a refusal: buffers are half filled, and the device may be at work on them.
                self._core.fail(error)
                raise

    @in_turn(InvokeTimeout, DeviceUnavailable)
    def _take(self, saved: SavedSession, numbers: dict[str, int], deadline: Deadline) -> None:
        """Take all that the session needs, or nothing. No work is given to the device yet."""
        core, events = self._core, SessionEvents(self._core)
        if core.table.kernels or not core.pristine:
            raise InvalidArgs("only a new session can be restored into")
        with ExitStack() as undo:
            undo.callback(set_numbers, core, next_numbers(core))
            for buffer in saved.buffers:
                core.table.buffers.next_number = buffer.handle
                undo.callback(core.table.free, core.table.allocate(buffer.size_bytes)[0])
            if saved.buffers:
                core.work.find(OWN)
            for number in saved.streams:
                core.work.streams.next_number = number
                undo.callback(core.work.close, core.work.open(), NEVER)
            for number in saved.events:
                core.events.next_number = number
                undo.callback(events.close, events.add())
            for kernel in saved.kernels:
                core.layout.next_kernel = kernel.kernel_id
                undo.callback(core.table.unload, self._load(kernel, deadline))
            set_numbers(core, numbers)
            undo.pop_all()

    def _fill(self, buffers: Sequence[SavedBuffer], deadline: Deadline) -> None:
        """Bring the contents back, and only then let compiled code see them."""
        table, work = self._core.table, self._core.work
        for buffer in buffers:
            own, region = work.find(OWN), table.buffers[buffer.handle]
            work.give(own, 1, self._core.device.fill, region.address, region.size_bytes, own.stream)
        work.drain(deadline)
        for buffer in buffers:
            self._write(buffer, table.buffers[buffer.handle].address, deadline)
            table.show(buffer.handle)
        work.confine()

    def _load(self, kernel: SavedKernel, deadline: Deadline) -> int:
        try:
            return self._core.table.load(kernel.text, kernel.entry, deadline)
        except UnsupportedPtx as error:
            raise UnsupportedPtx(f"the saved kernel {shown(kernel.entry)} cannot run here: {error.message}") from error
        except MalformedPtx as error:
            raise MalformedPtx(f"the saved kernel {shown(kernel.entry)}: {error.message}") from error

    def _write(self, buffer: SavedBuffer, address: int, deadline: Deadline) -> None:
        for run in buffer.runs:
            data = memoryview(run.data)
            for start in range(0, len(data), CHUNK_BYTES):
                at = address + run.offset_bytes + start
                self._core.device.write(at, data[start : start + CHUNK_BYTES], None, deadline)


class RunCollector:
    """Collects the runs of pages of one buffer that differ from a base, from its beginning to its end.

    Args:
        base: the runs of the same buffer in the snapshot that this one adds to, ascending and apart; none for a
            snapshot of its own, whose base is zeros.
    """

    __slots__ = ("_base", "_end", "_offset", "_open", "_runs", "_starts")

    def __init__(self, base: Sequence[SavedRun] = ()) -> None:
        self._base = base
        self._starts = [run.offset_bytes for run in base]
        self._runs: list[SavedRun] = []
        self._open: BytesIO | None = None
        self._offset = self._end = 0

    def add(self, offset_bytes: int, chunk: memoryview) -> None:
        """Add a copy of what changed in a chunk.

        Args:
            offset_bytes: where it begins, a multiple of the page size, not before the end of the chunk before.
            chunk: bytes; whole pages, except for the last of the buffer.
        """
        for start in range(0, len(chunk), _BLOCK_BYTES):
            block = bytes(chunk[start : start + _BLOCK_BYTES])
            at = offset_bytes + start
            base = self._read_base(at, len(block))
            if block != base:
                for page, data in _changed(block, base):
                    self._put(at + page, data)

    def finish(self) -> tuple[SavedRun, ...]:
        """Return the runs, ascending, no two of which touch."""
        if self._open is not None:
            self._runs.append(SavedRun(self._offset, self._open.getvalue()))
            self._open = None
        return tuple(self._runs)

    def _put(self, offset_bytes: int, data: bytes) -> None:
        if self._open is None or self._end != offset_bytes:
            self.finish()
            self._open, self._offset = BytesIO(), offset_bytes
        self._open.write(data)
        self._end = offset_bytes + len(data)

    def _read_base(self, offset_bytes: int, length_bytes: int) -> bytes:
        """Return a piece of the base, a block at most."""
        end = offset_bytes + length_bytes
        first = max(bisect_right(self._starts, offset_bytes) - 1, 0)
        piece = None
        for run in self._base[first : bisect_right(self._starts, end - 1)]:
            start = max(run.offset_bytes, offset_bytes)
            part = run.data[start - run.offset_bytes : end - run.offset_bytes]
            if part:
                piece = piece or bytearray(length_bytes)
                piece[start - offset_bytes : start - offset_bytes + len(part)] = part
        return _ZEROS[:length_bytes] if piece is None else bytes(piece)


def _changed(block: bytes, base: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the pages that differ, with where they begin."""
    for page in range(0, len(block), PAGE_BYTES):
        data = block[page : page + PAGE_BYTES]
        if data != base[page : page + PAGE_BYTES]:
            yield page, data
