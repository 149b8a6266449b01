"""A launch pad as its session writes it.

Every session keeps its counts of work on a pad, so that there is one truth whether Python or compiled code gave the
work: a session that no compiled code serves has a pad of its own, which is never armed.
"""

from __future__ import annotations

import ctypes
from typing import Final

from tensorwasm.gpu.native.layout import (
    BUFFER_ROWS,
    GRAPH_ROWS,
    KERNEL_ROWS,
    NO_DEADLINE_NS,
    OFFER_ROWS,
    STREAM_ROWS,
    UNBOUNDED,
    BufferRow,
    GraphRow,
    KernelImage,
    KernelRow,
    OfferRow,
    SessionLayout,
    StreamRow,
    WindowRow,
)
from tensorwasm.values import NEVER, Deadline, Region

_WORD_BYTES: Final = 8


def _word(field: str) -> int:
    return int(getattr(SessionLayout, field).offset) // _WORD_BYTES


def _words(row: type[ctypes.Structure]) -> int:
    return ctypes.sizeof(row) // _WORD_BYTES


_ARMED: Final = _word("armed")
_DEADLINE_NS: Final = _word("deadline_ns")
_REACH_AT: Final = _word("reach_at")
_REACH_BYTES: Final = _word("reach_bytes")
_PLACED: Final = _word("placed")
_PENDING: Final = _word("pending")
_MOST_PENDING: Final = _word("most_pending")
_LAUNCHED: Final = _word("launched")
_REPLAYED: Final = _word("replayed")
_COPIED_BYTES: Final = _word("copied_bytes")
_REFUSALS: Final = _word("refusals")
_DRIVER: Final = _word("driver")
_STAGE_AT: Final = _word("stage_at")
_STAGE_BYTES: Final = _word("stage_bytes")
_STAGE_USED: Final = _word("stage_used")
_STAGED: Final = _word("staged")
_STAGE_LEFT: Final = _word("stage_left")
_NEXT_KERNEL: Final = _word("next_kernel")
_BUDGET: Final = _word("budget")
_LOADS: Final = _word("loads")
_LOADED_BYTES: Final = _word("loaded_bytes")
_LOADED: Final = _word("loaded")
_OFFERS: Final = _word("offers")
_STREAMS: Final = _word("streams")
_KERNELS: Final = _word("kernels")
_GRAPHS: Final = _word("graphs")
_WINDOWS: Final = _word("windows")
_BUFFERS: Final = _word("buffers")

_OFFER_WORDS: Final = _words(OfferRow)
_STREAM_WORDS: Final = _words(StreamRow)
_KERNEL_WORDS: Final = _words(KernelRow)
_GRAPH_WORDS: Final = _words(GraphRow)
_WINDOW_WORDS: Final = _words(WindowRow)
_BUFFER_WORDS: Final = _words(BufferRow)


class SessionLayoutWriter:
    """The one writer of a pad on the session's side. Whoever runs the guest, or holds it, may call.

    Args:
        pad: what compiled code reads, None if none does. Its fields ``memory``, ``scratch`` and ``wait`` are others'.
        driver_at: address of the `DriverTable`, which outlives the sheet; 0 if there is none.
    """

    __slots__ = ("_buffers_used", "_first", "_pad", "_used", "_words", "pad")

    def __init__(self, pad: SessionLayout | None, driver_at: int = 0) -> None:
        self.pad = pad
        self._pad = pad if pad is not None else SessionLayout()
        self._words = words = memoryview(self._pad).cast("B").cast("Q")
        words[_DEADLINE_NS] = NO_DEADLINE_NS
        words[_MOST_PENDING] = UNBOUNDED
        self._used = self._buffers_used = False
        self._first = words[_LAUNCHED], words[_REPLAYED], words[_REFUSALS]
        if pad is not None and driver_at:
            words[_DRIVER] = driver_at
            words[_ARMED] = 1

    # ------------------------------------------------------------------------------------------- the head

    @property
    def pending(self) -> int:
        """Work given to any stream that was not seen to end."""
        return self._words[_PENDING]

    @property
    def most_pending(self) -> int:
        """How much may be pending, whoever gives it."""
        return self._words[_MOST_PENDING]

    @most_pending.setter
    def most_pending(self, pieces: int) -> None:
        self._words[_MOST_PENDING] = pieces

    @property
    def placed(self) -> bool:
        """Whether the session holds a place at the gate."""
        return self._words[_PLACED] != 0

    @placed.setter
    def placed(self, holds: bool) -> None:
        self._words[_PLACED] = holds

    def counters(self) -> tuple[int, int, int]:
        """Return launches, replays and refusals of compiled code in this session."""
        words, first = self._words, self._first
        return words[_LAUNCHED] - first[0], words[_REPLAYED] - first[1], words[_REFUSALS] - first[2]

    @property
    def traffic(self) -> tuple[int, int, int]:
        """What only grows when compiled code gives work: launches, replays and bytes of copies on this pad."""
        return self._words[_LAUNCHED], self._words[_REPLAYED], self._words[_COPIED_BYTES]

    @property
    def deadline(self) -> Deadline:
        """When the guest's call has to have ended."""
        at_ns = self._words[_DEADLINE_NS]
        return NEVER if at_ns == NO_DEADLINE_NS else Deadline(at_ns)

    def begin_call(self, deadline: Deadline) -> None:
        """Say when the guest's call has to have ended."""
        at_ns = deadline.at_ns
        # Before the clock began is passed, and past its end is the end.
        self._words[_DEADLINE_NS] = NO_DEADLINE_NS if at_ns is None else min(max(at_ns, 0), NO_DEADLINE_NS - 1)

    def disarm(self) -> None:
        """Send everything to Python from now on."""
        self._words[_ARMED] = 0

    def show_reach(self, region: Region | None) -> None:
        """Say which part of the guest's memory the device reaches in place."""
        self._words[_REACH_AT] = region.address if region else 0
        self._words[_REACH_BYTES] = region.size_bytes if region else 0

    # ------------------------------------------------------------------------------------------- staging

    def show_slot(self, address: int, size_bytes: int) -> None:
        """Let compiled code stage windows of that many bytes in all."""
        self._words[_STAGE_AT] = address
        self._words[_STAGE_BYTES] = size_bytes

    @property
    def stage_used(self) -> int:
        """How far compiled code has used the slot since it was cleared."""
        return self._words[_STAGE_USED]

    @stage_used.setter
    def stage_used(self, used_bytes: int) -> None:
        self._words[_STAGE_USED] = used_bytes

    @property
    def stage_left(self) -> int:
        """Bytes that launches may still stage, all together."""
        return self._words[_STAGE_LEFT]

    @stage_left.setter
    def stage_left(self, left_bytes: int) -> None:
        self._words[_STAGE_LEFT] = left_bytes

    @property
    def staged(self) -> int:
        """Windows of the staged launch that compiled code has in flight."""
        return self._words[_STAGED]

    def staged_windows(self) -> list[tuple[int, int, int]]:
        """Return offset, length and place of those windows."""
        words = self._words
        rows = range(_WINDOWS, min(_WINDOWS + self.staged * _WINDOW_WORDS, len(words)), _WINDOW_WORDS)
        return [(words[row], words[row + 1], words[row + 2]) for row in rows]

    def forget_staged(self) -> None:
        """Say that no staged launch is in flight."""
        self._words[_STAGED] = 0

    # ----------------------------------------------------------------------------------- offered kernels

    @property
    def next_kernel(self) -> int:
        """Id of the kernel that is loaded next, 0 before the first."""
        return self._words[_NEXT_KERNEL]

    @next_kernel.setter
    def next_kernel(self, kernel_id: int) -> None:
        self._words[_NEXT_KERNEL] = kernel_id

    @property
    def loads(self) -> int:
        """Kernels that compiled code has loaded and nobody took."""
        return self._words[_LOADS]

    @property
    def loaded_bytes(self) -> int:
        """Bytes of their texts."""
        return self._words[_LOADED_BYTES]

    def allow_loads(self, budget: int) -> None:
        """Say how many offered kernels compiled code may load."""
        self._words[_BUDGET] = budget

    def show_offer(self, index: int, values: tuple[int, int, int, int, int]) -> None:
        """Enter an offered kernel, in the order of `OfferRow`; what it points to stays alive until it is replaced."""
        row = _OFFERS + index % OFFER_ROWS * _OFFER_WORDS
        for at, value in enumerate(values):
            self._words[row + at] = value

    def hide_offers(self) -> None:
        """Offer nothing any more."""
        self._words[_BUDGET] = 0
        self._clear(_OFFERS, _STREAMS)

    def take_loads(self) -> list[tuple[int, int]]:
        """Return ids and offers of the kernels that compiled code has loaded; they are the caller's business now."""
        words, count = self._words, self._words[_LOADS]
        first = words[_NEXT_KERNEL] - count
        words[_LOADS] = words[_LOADED_BYTES] = 0
        return [(first + index, words[_LOADED + index]) for index in range(count)]

    def begin_anew(self, next_kernel: int) -> None:
        """Take what compiled code has loaded out of the table, for good, and count what it does from here.

        Args:
            next_kernel: id of the kernel that is loaded next.
        """
        words = self._words
        loads, end = words[_LOADS], words[_NEXT_KERNEL]
        if loads:
            for kernel_id in range(end - loads, end):
                self.hide_kernel(kernel_id)
            words[_LOADS] = words[_LOADED_BYTES] = 0
        words[_NEXT_KERNEL] = next_kernel
        self._first = words[_LAUNCHED], words[_REPLAYED], words[_REFUSALS]

    # -------------------------------------------------------------------------------------------- tables

    def has_room(self, number: int) -> bool:
        """Return whether the row of a stream's number is empty."""
        return self._words[_stream(number) + 1] == 0

    def open_stream(self, number: int, handle: int) -> int:
        """Enter a stream, whose handle is not 0; return its row for the methods below."""
        self._used = True
        row = _stream(number)
        self._words[row], self._words[row + 2], self._words[row + 3] = number, 0, 0
        self._words[row + 1] = handle
        return row

    def close_stream(self, row: int) -> None:
        """Empty a stream's row."""
        self.count_drained(row)
        self._words[row] = self._words[row + 1] = self._words[row + 3] = 0

    def set_recording(self, row: int, *, recording: bool) -> None:
        """Say whether a stream records a graph."""
        self._words[row + 3] = recording

    def given(self, row: int) -> int:
        """Return how much work a stream was given since it was last seen drained."""
        return self._words[row + 2]

    def count_started(self, row: int, pieces: int = 1) -> None:
        """Count work given to a stream."""
        self._words[row + 2] += pieces
        self._words[_PENDING] += pieces

    def count_refused(self, row: int, pieces: int = 1) -> None:
        """Take back one `count_started`."""
        self._words[row + 2] -= pieces
        self._words[_PENDING] -= pieces

    def count_drained(self, row: int) -> None:
        """Count off all work of a stream."""
        words = self._words
        words[_PENDING] = max(words[_PENDING] - words[row + 2], 0)
        words[row + 2] = 0

    def show_buffer(self, handle: int, region: Region) -> None:
        """Enter a device buffer; the newest of a row wins."""
        self._buffers_used = True
        row = _BUFFERS + handle % BUFFER_ROWS * _BUFFER_WORDS
        self._words[row], self._words[row + 1], self._words[row + 2] = handle, region.address, region.size_bytes

    def hide_buffer(self, handle: int) -> None:
        """Take a device buffer out, if it is in."""
        self._hide(_BUFFERS + handle % BUFFER_ROWS * _BUFFER_WORDS, handle)

    def show_kernel(self, kernel_id: int, image: KernelImage) -> None:
        """Enter a kernel, whose image stays alive until it is hidden; the newest of a row wins."""
        self._used = True
        row = _KERNELS + kernel_id % KERNEL_ROWS * _KERNEL_WORDS
        self._words[row], self._words[row + 1] = kernel_id, image.address

    def hide_kernel(self, kernel_id: int) -> None:
        """Take a kernel out, if it is in."""
        self._hide(_KERNELS + kernel_id % KERNEL_ROWS * _KERNEL_WORDS, kernel_id)

    def show_graph(self, number: int, handle: int, launches: int, steps: int) -> None:
        """Enter a graph that may be replayed; the newest of a row wins."""
        self._used = True
        row = _GRAPHS + number % GRAPH_ROWS * _GRAPH_WORDS
        self._words[row], self._words[row + 1] = number, handle
        self._words[row + 2], self._words[row + 3] = launches, steps

    def hide_graph(self, number: int) -> None:
        """Take a graph out, if it is in."""
        self._hide(_GRAPHS + number % GRAPH_ROWS * _GRAPH_WORDS, number)

    def wipe(self) -> None:
        """Leave nothing of the session on the pad but the counters: it may serve another session now."""
        words = self._words
        words[_ARMED] = words[_DRIVER] = words[_PLACED] = words[_PENDING] = words[_MOST_PENDING] = 0
        words[_REACH_AT] = words[_REACH_BYTES] = 0
        words[_STAGE_AT] = words[_STAGE_BYTES] = words[_STAGE_USED] = words[_STAGED] = 0
        words[_STAGE_LEFT] = 0
        words[_NEXT_KERNEL] = words[_BUDGET] = words[_LOADS] = words[_LOADED_BYTES] = 0
        if self._used:
            self._clear(_OFFERS, _BUFFERS)
        if self._buffers_used:
            self._clear(_BUFFERS, _WINDOWS)

    def _hide(self, row: int, key: int) -> None:
        if self._words[row] == key:
            self._words[row] = self._words[row + 1] = 0

    def _clear(self, first: int, end: int) -> None:
        ctypes.memset(ctypes.addressof(self._pad) + first * _WORD_BYTES, 0, (end - first) * _WORD_BYTES)


def _stream(number: int) -> int:
    return _STREAMS + number % STREAM_ROWS * _STREAM_WORDS
