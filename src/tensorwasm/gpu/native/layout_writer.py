"""The session's side of the layout that it shares with compiled code.

Every session counts its work in a layout, so that one count is true whether Python or compiled code gave the work. A
session that no compiled code serves has a layout of its own, which is never armed.
"""

from __future__ import annotations

import ctypes
import time
from array import array
from collections.abc import Callable, Sequence
from operator import attrgetter
from types import SimpleNamespace
from typing import Final, ParamSpec, Protocol

from tensorwasm.gpu.device.address_windows import window_mask
from tensorwasm.gpu.native.layout import (
    BUFFER_ROWS,
    CLEAR_ROWS,
    GRAPH_ROWS,
    KERNEL_ROWS,
    NO_DEADLINE_NS,
    OFFER_ROWS,
    STREAM_ROWS,
    UNBOUNDED,
    WORD_BYTES,
    BufferRow,
    ClearRow,
    GraphRow,
    KernelImage,
    KernelRow,
    OfferRow,
    SessionLayout,
    StreamRow,
    WindowRow,
    word_offsets,
)
from tensorwasm.values import NEVER, Deadline, Region

_P = ParamSpec("_P")
_AT: Final = SimpleNamespace(**word_offsets(SessionLayout))
"""Where each field begins, in words."""
_STREAM, _OFFER, _KERNEL, _GRAPH, _WINDOW, _BUFFER = (
    ctypes.sizeof(row) // WORD_BYTES for row in (StreamRow, OfferRow, KernelRow, GraphRow, WindowRow, BufferRow)
)
_PENDING: Final = _AT.pending
_GIVEN: Final = word_offsets(StreamRow)["pending"]
_HANDLE: Final = word_offsets(StreamRow)["stream"]
_RECORDING: Final = word_offsets(StreamRow)["recording"]


class _Word(Protocol):
    """A field of `SessionLayout` that the session reads or writes as one number."""

    def __get__(self, writer: SessionLayoutWriter, owner: type) -> int: ...

    def __set__(self, writer: SessionLayoutWriter, value: int) -> None: ...


def _word(name: str) -> _Word:
    def write(writer: SessionLayoutWriter, value: int) -> None:
        writer.words[at] = value

    at: int = getattr(_AT, name)
    return property(attrgetter(f"_memory.{name}"), write)  # read without Python code, in every guest's call


class SessionLayoutWriter:
    """The only writer of a layout on the session's side. Only the thread that runs the guest, or holds it, may call.

    Args:
        layout: what compiled code reads, None if none does. Its fields ``memory``, ``scratch`` and ``wait`` are not
            the session's.
        driver_at: address of the `DriverTable`, which outlives the writer; 0 if there is none.

    Attributes:
        layout: as given.
        words: the whole layout.
        pending: and the other fields of `SessionLayout` that are written as they are.
    """

    __slots__ = ("_buffers_used", "_first", "_memory", "_used", "layout", "words")

    pending = _word("pending")
    waited_ns = _word("waited_ns")
    most_pending = _word("most_pending")
    placed = _word("placed")
    stage_used = _word("stage_used")
    stage_left = _word("stage_left")
    staged = _word("staged")
    clearing = _word("clearing")
    next_kernel = _word("next_kernel")
    budget = _word("budget")
    loads = _word("loads")
    loaded_bytes = _word("loaded_bytes")

    def __init__(self, layout: SessionLayout | None, driver_at: int = 0) -> None:
        self.layout = layout
        self._memory = layout if layout is not None else SessionLayout()
        self.words = words = memoryview(self._memory).cast("B").cast("Q")
        words[_AT.deadline_ns] = NO_DEADLINE_NS
        words[_AT.most_pending] = UNBOUNDED
        self._used = self._buffers_used = False
        self._first = words[_AT.launched], words[_AT.replayed], words[_AT.refusals]
        if layout is not None and driver_at:
            words[_AT.driver] = driver_at
            words[_AT.armed] = 1

    # ------------------------------------------------------------------------------------------- the head

    def counters(self) -> tuple[int, int, int]:
        """Return launches, replays and refusals of compiled code in this session."""
        words, first = self.words, self._first
        return words[_AT.launched] - first[0], words[_AT.replayed] - first[1], words[_AT.refusals] - first[2]

    @property
    def traffic(self) -> tuple[int, int, int]:
        """What grows whenever compiled code gives work: launches, replays and bytes of copies in this layout."""
        return self.words[_AT.launched], self.words[_AT.replayed], self.words[_AT.copied_bytes]

    @property
    def deadline(self) -> Deadline:
        """When the guest's call must have ended."""
        at_ns = self.words[_AT.deadline_ns]
        return NEVER if at_ns == NO_DEADLINE_NS else Deadline(at_ns)

    def begin_call(self, deadline: Deadline) -> None:
        """Begin a guest's call, which must have ended by then."""
        self.waited_ns = 0
        at_ns = deadline.at_ns
        # Before the clock began has passed, and past its end is the end.
        self.words[_AT.deadline_ns] = NO_DEADLINE_NS if at_ns is None else min(max(at_ns, 0), NO_DEADLINE_NS - 1)

    def count_wait(self, wait: Callable[_P, object], *args: _P.args, **named: _P.kwargs) -> None:
        """Call what waits for the device, and count its time as the guest's wait."""
        started_ns = time.monotonic_ns()
        try:
            wait(*args, **named)
        finally:
            self.waited_ns += time.monotonic_ns() - started_ns

    def disarm(self) -> None:
        """Send compiled code to Python for everything from now on."""
        self.words[_AT.armed] = 0

    def show_reach(self, region: Region | None, displacement: int = 0) -> None:
        """Set which part of the guest's memory the device reaches in place, and how far away it sees it."""
        self.words[_AT.reach_displacement] = displacement % (1 << 64)
        self.words[_AT.reach_at] = region.address if region else 0
        self.words[_AT.reach_bytes] = region.size_bytes if region else 0

    def show_guard(self, window: int, window_bytes: int, flag: int, status: int) -> None:
        """Set the session's window and the addresses of its stop word."""
        self.words[_AT.window_at], self.words[_AT.window_mask] = window, window_mask(window_bytes)
        self.words[_AT.flag_at], self.words[_AT.status_at] = flag, status

    def show_timer(self, offset_ns: int) -> None:
        """Set what the device's clock is beyond the monotonic one."""
        self.words[_AT.timer_offset] = offset_ns % (1 << 64)

    def show_clear(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Let compiled code clear some ranges for the next guest, at most `CLEAR_ROWS`; with more or none, Python."""
        first, end = int(_AT.clear), int(_AT.clear) + CLEAR_ROWS * len(ClearRow._fields_)
        words = [word for each in ranges for word in each] if len(ranges) <= CLEAR_ROWS else []
        self.words[first:end] = array("Q", words + [0] * (end - first - len(words)))

    # ------------------------------------------------------------------------------------------- staging

    def show_slot(self, region: Region, view: int) -> None:
        """Let compiled code stage windows in a region of the device, which the host reaches at an address."""
        self.words[_AT.stage_at] = region.address
        self.words[_AT.stage_bytes] = region.size_bytes
        self.words[_AT.stage_view] = view

    def staged_windows(self) -> list[tuple[int, int, int]]:
        """Return offset, length and place in the slot of the windows that compiled code has staged."""
        words, first = self.words, _AT.windows
        rows = range(first, min(first + self.staged * _WINDOW, len(words)), _WINDOW)
        return [(words[row], words[row + 1], words[row + 2]) for row in rows]

    def forget_staged(self) -> None:
        """Set that no staged launch is in flight."""
        self.staged = 0

    # ----------------------------------------------------------------------------------- offered kernels

    def show_offer(self, index: int, values: tuple[int, int, int, int, int]) -> None:
        """Enter an offered kernel, in the order of `OfferRow`; what it points to stays alive until it is replaced."""
        for at, value in enumerate(values, _AT.offers + index % OFFER_ROWS * _OFFER):
            self.words[at] = value

    def hide_offers(self) -> None:
        """Remove all offered kernels."""
        self.budget = 0
        self._clear(_AT.offers, _AT.streams)

    def take_loads(self) -> list[tuple[int, int]]:
        """Return ids and offers of the kernels that compiled code has loaded, and forget them."""
        count, first = self.loads, self.next_kernel - self.loads
        self.loads = self.loaded_bytes = 0
        return [(first + index, self.words[_AT.loaded + index]) for index in range(count)]

    def begin_anew(self, next_kernel: int, budget: int) -> None:
        """Remove what compiled code has loaded from the table, and count what it does from here.

        Args:
            next_kernel: id of the kernel that is loaded next.
            budget: kernels that compiled code may load.
        """
        words, end = self.words, self.next_kernel
        for kernel_id in range(end - words[_AT.loads], end):
            row = _AT.kernels + kernel_id % KERNEL_ROWS * _KERNEL
            if words[row] == kernel_id:
                words[row] = words[row + 1] = 0
        words[_AT.loads] = words[_AT.loaded_bytes] = words[_AT.waited_ns] = 0
        words[_AT.next_kernel], words[_AT.budget] = next_kernel, budget
        self._first = words[_AT.launched], words[_AT.replayed], words[_AT.refusals]

    # -------------------------------------------------------------------------------------------- tables

    def has_room(self, number: int) -> bool:
        """Return whether the row of a stream's number is empty."""
        return self.words[int(_AT.streams) + number % STREAM_ROWS * _STREAM + _HANDLE] == 0

    def open_stream(self, number: int, handle: int) -> int:
        """Enter a stream, whose handle is not 0; return its row for the methods below."""
        self._used = True
        row, words = int(_AT.streams + number % STREAM_ROWS * _STREAM), self.words
        words[row], words[row + _GIVEN], words[row + _RECORDING], words[row + _HANDLE] = number, 0, 0, handle
        return row

    def close_stream(self, row: int) -> None:
        """Empty a stream's row."""
        self.count_drained(row)
        self.words[row] = self.words[row + _HANDLE] = self.words[row + _RECORDING] = 0

    def set_recording(self, row: int, *, recording: bool) -> None:
        """Set whether a stream records a graph."""
        self.words[row + _RECORDING] = recording

    def given(self, row: int) -> int:
        """Return how much work a stream was given since it was last seen drained."""
        return self.words[row + _GIVEN]

    def count_started(self, row: int, pieces: int = 1) -> None:
        """Count work given to a stream."""
        self.words[row + _GIVEN] += pieces
        self.words[_PENDING] += pieces

    def count_refused(self, row: int, pieces: int = 1) -> None:
        """Undo one `count_started`."""
        self.words[row + _GIVEN] -= pieces
        self.words[_PENDING] -= pieces

    def count_drained(self, row: int) -> None:
        """Count all work of a stream as ended."""
        words = self.words
        words[_PENDING] = max(words[_PENDING] - words[row + _GIVEN], 0)
        words[row + _GIVEN] = 0

    def show_buffer(self, handle: int, region: Region) -> None:
        """Enter a device buffer; the newest of a row wins."""
        self._buffers_used = True
        row, words = _AT.buffers + handle % BUFFER_ROWS * _BUFFER, self.words
        words[row], words[row + 1], words[row + 2] = handle, region.address, region.size_bytes

    def hide_buffer(self, handle: int) -> None:
        """Remove a device buffer, if it is there."""
        self._hide(_AT.buffers + handle % BUFFER_ROWS * _BUFFER, handle)

    def show_kernel(self, kernel_id: int, image: KernelImage, data_at: int = 0) -> None:
        """Enter a kernel, whose image stays alive until it is hidden; the newest of a row wins."""
        self._used = True
        row = _AT.kernels + kernel_id % KERNEL_ROWS * _KERNEL
        self.words[row], self.words[row + 1], self.words[row + 2] = kernel_id, image.address, data_at

    def hide_kernel(self, kernel_id: int) -> None:
        """Remove a kernel, if it is there."""
        self._hide(_AT.kernels + kernel_id % KERNEL_ROWS * _KERNEL, kernel_id)

    def show_graph(self, number: int, handle: int, launches: int, pieces: int) -> None:
        """Enter a graph that may be replayed; the newest of a row wins."""
        self._used = True
        row, words = _AT.graphs + number % GRAPH_ROWS * _GRAPH, self.words
        words[row], words[row + 1], words[row + 2], words[row + 3] = number, handle, launches, pieces

    def hide_graph(self, number: int) -> None:
        """Remove a graph, if it is there."""
        self._hide(_AT.graphs + number % GRAPH_ROWS * _GRAPH, number)

    def wipe(self) -> None:
        """Leave nothing of the session in the layout but the counters: it may serve another session now."""
        for at in _WIPED:
            self.words[at] = 0
        self.show_clear(())
        if self._used:
            self._clear(_AT.offers, _AT.buffers)
        if self._buffers_used:
            self._clear(_AT.buffers, _AT.windows)

    def _hide(self, row: int, key: int) -> None:
        if self.words[row] == key:
            self.words[row] = self.words[row + 1] = 0

    def _clear(self, first: int, end: int) -> None:
        ctypes.memset(ctypes.addressof(self._memory) + first * WORD_BYTES, 0, (end - first) * WORD_BYTES)


_WIPED: Final = tuple(
    getattr(_AT, name)
    for name in (
        *("armed", "driver", "placed", "pending", "most_pending", "reach_at", "reach_bytes"),
        *("stage_at", "stage_bytes", "stage_view", "stage_used", "staged", "stage_left"),
        *("next_kernel", "budget", "loads", "loaded_bytes"),
        *("window_at", "window_mask", "flag_at", "status_at", "clearing"),
    )
)
