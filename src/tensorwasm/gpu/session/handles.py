"""What a session's next buffer, kernel, stream, event and graph will be called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tensorwasm.gpu.native.layout_writer import SessionLayoutWriter
from tensorwasm.gpu.state.events import EventTable
from tensorwasm.gpu.state.graph_book import GraphBook
from tensorwasm.gpu.state.resource_table import ResourceTable
from tensorwasm.gpu.state.work import SessionWork

NAMES: Final = ("handle", "kernel", "stream", "event", "graph")
"""What is counted, as `tensorwasm.saved.SavedSession.next_numbers` calls it."""


class SessionHandles:
    """The counters of one session. Not safe from several threads: the session takes turns.

    Args:
        holdings: counts buffers.
        sheet: counts kernels, for compiled code loads some; 0 while none was ever loaded.
        work: counts streams.
        marks: counts events.
        book: counts graphs.
    """

    __slots__ = ("_book", "_holdings", "_marks", "_sheet", "_work")

    def __init__(
        self, holdings: ResourceTable, sheet: SessionLayoutWriter, work: SessionWork, marks: EventTable, book: GraphBook
    ) -> None:
        self._holdings = holdings
        self._sheet = sheet
        self._work = work
        self._marks = marks
        self._book = book

    def get(self) -> dict[str, int]:
        """Return all."""
        counted = (
            self._holdings.next_handle,
            self._sheet.next_kernel,
            self._work.lanes.next_number,
            self._marks.next_number,
            self._book.next_number,
        )
        return dict(zip(NAMES, counted, strict=True))

    def set(self, numbers: Mapping[str, int]) -> None:
        """Change those that are named; none of them is taken, nor any after it."""
        self._holdings.next_handle = numbers.get("handle", self._holdings.next_handle)
        self._sheet.next_kernel = numbers.get("kernel", self._sheet.next_kernel)
        self._work.lanes.next_number = numbers.get("stream", self._work.lanes.next_number)
        self._marks.next_number = numbers.get("event", self._marks.next_number)
        self._book.next_number = numbers.get("graph", self._book.next_number)
