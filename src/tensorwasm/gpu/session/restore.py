"""A session made what it was when it was saved, before its guest runs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final

from tensorwasm.errors import DeviceUnavailable, InvalidArgs, InvokeTimeout, MalformedPtx, UnsupportedPtx
from tensorwasm.gpu.session.core import SessionCore, in_turn
from tensorwasm.gpu.session.events import SessionEvents
from tensorwasm.gpu.session.saved_checks import check_session, next_numbers, set_numbers
from tensorwasm.gpu.state.streams import OWN
from tensorwasm.ptx.lexer import shown
from tensorwasm.saved import SavedBuffer, SavedKernel, SavedSession
from tensorwasm.values import MIB, NEVER, Deadline

CHUNK_BYTES: Final = 16 * MIB
"""Most that is written between two looks at the deadline."""


class Restore:
    """Restores one session. Thread-safe."""

    __slots__ = ("_core", "_events")

    def __init__(self, core: SessionCore, events: SessionEvents) -> None:
        self._core = core
        self._events = events

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
        core, events = self._core, self._events
        unnumbered = core.table.next_handle == events.next_number == core.graphs.next_number == 1
        if not unnumbered or core.table.kernels or not core.work.renewable:
            raise InvalidArgs("only a new session can be restored into")
        with ExitStack() as undo:
            undo.callback(set_numbers, core, events, next_numbers(core, events))
            for buffer in saved.buffers:
                core.table.next_handle = buffer.handle
                undo.callback(core.table.free, core.table.allocate(buffer.size_bytes)[0])
            if saved.buffers:
                core.work.find(OWN)
            for number in saved.streams:
                core.work.streams.next_number = number
                undo.callback(core.work.close, core.work.open(), NEVER)
            for number in saved.events:
                events.next_number = number
                undo.callback(events.close, events.add())
            for kernel in saved.kernels:
                core.layout.next_kernel = kernel.kernel_id
                undo.callback(core.table.unload, self._load(kernel, deadline))
            set_numbers(core, events, numbers)
            undo.pop_all()

    def _fill(self, buffers: Sequence[SavedBuffer], deadline: Deadline) -> None:
        """Bring the contents back, and only then let compiled code see them."""
        table, work, fill = self._core.table, self._core.work, self._core.device.fill
        for buffer in buffers:
            own, region = work.find(OWN), table.buffers[buffer.handle]
            work.give(own, 1, fill, region.address, region.size_bytes, own.stream)
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
