"""Where instances differ: to save only that, or to show it."""

from __future__ import annotations

import dataclasses
import mmap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from tensorwasm.artifacts.snapshot.file import SnapshotFile
from tensorwasm.artifacts.snapshot.pages import Span, find_pages, merge
from tensorwasm.errors import InvalidSnapshot
from tensorwasm.saved import PAGE_BYTES, Run, SavedBuffer, SavedInstance, SavedMemory

_ZEROS: Final = bytes(1 << 20)
_APART: Final = frozenset({"memories", "globals", "tables", "session", "parent"})


def leave_out(instance: SavedInstance, parent: SnapshotFile) -> SavedInstance:
    """Return an instance that adds to a snapshot: only pages that differ from what they were there.

    Takes as much memory as the parent's largest memory or buffer has, for as long as it runs. What was not zero there
    and is now becomes a run of zeros.

    Args:
        instance: whole. Its runs are not copied.
        parent: opened with all that it adds to.

    Raises:
        InvalidSnapshot: the instance adds to a snapshot already, or has fewer memories, or shorter ones.
        WrongParent: what the parent adds to was not opened.
        Damaged: a file was changed since it was opened.
        OSError: it cannot be read.
    """
    older = parent.instance.memories
    if instance.parent is not None:
        raise InvalidSnapshot("the instance adds to a snapshot already")
    if len(older) != len(instance.memories):
        raise InvalidSnapshot("the snapshot has another number of memories than the instance")
    memories = tuple(_leave_out_memory(memory, parent, i) for i, memory in enumerate(instance.memories))
    session = instance.session
    if session is not None:
        buffers = tuple(_leave_out_buffer(buffer, parent) for buffer in session.buffers)
        session = dataclasses.replace(session, buffers=buffers)
    return dataclasses.replace(instance, memories=memories, session=session, parent=parent.content_hash)


def _leave_out_memory(memory: SavedMemory, parent: SnapshotFile, index: int) -> SavedMemory:
    size_bytes = parent.instance.memories[index].size_bytes
    if size_bytes > memory.size_bytes:
        raise InvalidSnapshot("a memory is shorter than it was")
    then = _place(size_bytes, lambda into: parent.place(index, into))
    return dataclasses.replace(memory, runs=tuple(_runs(memory.runs, then, parent.cover_memory(index))))


def _leave_out_buffer(buffer: SavedBuffer, parent: SnapshotFile) -> SavedBuffer:
    session = parent.instance.session
    sizes = {each.handle: each.size_bytes for each in session.buffers} if session else {}
    if sizes.get(buffer.handle) != buffer.size_bytes:
        return buffer
    then = _place(buffer.size_bytes, lambda into: parent.place_buffer(buffer.handle, into))
    return dataclasses.replace(buffer, runs=tuple(_runs(buffer.runs, then, parent.cover_buffer(buffer.handle))))


def _place(size_bytes: int, place: Callable[[memoryview], None]) -> memoryview:
    """Return a memory put together, in memory of its own."""
    view = memoryview(mmap.mmap(-1, size_bytes) if size_bytes else b"")
    if size_bytes:
        place(view)
    return view


def _runs(runs: tuple[Run, ...], then: memoryview, spans: list[Span]) -> Iterator[Run]:
    """Yield what differs from then: parts of the runs, and zeros for what has become zero between them."""
    end = 0
    for run in runs:
        data = memoryview(run.data).cast("B")
        yield from _zeros(then, spans, end, run.offset_bytes)
        for start, stop in _find_changes(run.offset_bytes, data, then):
            yield Run(start, data[start - run.offset_bytes : stop - run.offset_bytes])
        end = run.offset_bytes + len(data)
    yield from _zeros(then, spans, end, len(then))


def _find_changes(offset: int, data: memoryview, then: memoryview) -> list[Span]:
    """Return where a run differs from then, in pages of the memory; its ends need not be at pages' ends."""
    lead = min(-offset % PAGE_BYTES, len(data))
    before = then[offset : offset + len(data)]
    first = [(0, lead)] if lead and bytes(data[:lead]) != bytes(before[:lead]).ljust(lead, b"\0") else []
    rest = find_pages(data[lead:], before[lead:], [(0, len(data) - lead)])
    return merge([(offset + start, offset + end) for start, end in (*first, *((lead + a, lead + b) for a, b in rest))])


def _zeros(then: memoryview, spans: list[Span], start: int, end: int) -> Iterator[Run]:
    """Yield runs of zeros for what was not zero then, between two runs."""
    for span_start, span_end in spans:
        low, high = max(span_start, start), min(span_end, end, len(then))
        if low >= high:
            continue
        for at, stop in find_pages(then[low:high], None, [(0, high - low)]):
            for piece in range(low + at, low + stop, len(_ZEROS)):
                yield Run(piece, memoryview(_ZEROS)[: min(len(_ZEROS), low + stop - piece)])


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two snapshots differ.

    Attributes:
        memories: by index, spans of bytes in pages, begin and end; memories that only one has are there as a whole.
        buffers: likewise by handle.
        globals: indices.
        tables: indices.
        fields: names of what else differs: attributes of `SavedInstance`, and of its session as ``session.NAME``.
    """

    memories: tuple[tuple[int, tuple[Span, ...]], ...] = ()
    buffers: tuple[tuple[int, tuple[Span, ...]], ...] = ()
    globals: tuple[int, ...] = ()
    tables: tuple[int, ...] = ()
    fields: tuple[str, ...] = ()

    @property
    def pages(self) -> int:
        """How many pages of memories and buffers differ."""
        spans = [span for _, found in (*self.memories, *self.buffers) for span in found]
        return sum(-(-(end - start) // PAGE_BYTES) for start, end in spans)


def compare(one: SnapshotFile, two: SnapshotFile) -> Difference:
    """Return where two snapshots differ, once each is put together with all that it adds to.

    Takes as much memory as the larger memories of both together.

    Raises:
        WrongParent: what one of them adds to was not opened.
        Damaged: a file was changed since it was opened.
        OSError: it cannot be read.
    """
    a, b = one.instance, two.instance
    memories = {
        index: _compare(_memory(one, index), _memory(two, index))
        for index in range(max(len(a.memories), len(b.memories)))
    }
    handles = sorted(_handles(a) | _handles(b))
    buffers = {handle: _compare(_buffer(one, handle), _buffer(two, handle)) for handle in handles}
    return Difference(
        tuple((index, spans) for index, spans in memories.items() if spans),
        tuple((handle, spans) for handle, spans in buffers.items() if spans),
        _keys({each.index: each for each in a.globals}, {each.index: each for each in b.globals}),
        _keys({each.index: each for each in a.tables}, {each.index: each for each in b.tables}),
        tuple(_fields(a, b)),
    )


_Part = tuple[memoryview, list[Span]] | None


def _memory(snapshot: SnapshotFile, index: int) -> _Part:
    if index >= len(snapshot.instance.memories):
        return None
    size_bytes = snapshot.instance.memories[index].size_bytes
    return _place(size_bytes, lambda into: snapshot.place(index, into)), snapshot.cover_memory(index)


def _buffer(snapshot: SnapshotFile, handle: int) -> _Part:
    session = snapshot.instance.session
    sizes = {each.handle: each.size_bytes for each in session.buffers} if session else {}
    if handle not in sizes:
        return None
    return _place(sizes[handle], lambda into: snapshot.place_buffer(handle, into)), snapshot.cover_buffer(handle)


def _compare(one: _Part, two: _Part) -> tuple[Span, ...]:
    """Return where two memories differ; one that has grown differs in all that is new."""
    if one is None or two is None:
        present = one or two
        return ((0, len(present[0])),) if present and len(present[0]) else ()
    longer, shorter = sorted((one[0], two[0]), key=len, reverse=True)
    common = len(shorter)
    spans = merge(sorted((start, min(end, common)) for start, end in (*one[1], *two[1]) if start < common))
    found = find_pages(longer[:common], shorter, spans)
    grown = [(common, len(longer))] if len(longer) > common else []
    return tuple(merge([*found, *grown]))


def _handles(instance: SavedInstance) -> set[int]:
    return {buffer.handle for buffer in instance.session.buffers} if instance.session else set()


def _keys(one: dict[int, object], two: dict[int, object]) -> tuple[int, ...]:
    return tuple(sorted(key for key in one.keys() | two.keys() if one.get(key) != two.get(key)))


def _fields(one: SavedInstance, two: SavedInstance) -> Iterator[str]:
    """Yield names of fields that differ and are not compared by their parts."""
    for field in dataclasses.fields(one):
        if field.name not in _APART and getattr(one, field.name) != getattr(two, field.name):
            yield field.name
    if one.session is None or two.session is None:
        if one.session is not two.session:
            yield "session"
        return
    for field in dataclasses.fields(one.session):
        if field.name != "buffers" and getattr(one.session, field.name) != getattr(two.session, field.name):
            yield f"session.{field.name}"
