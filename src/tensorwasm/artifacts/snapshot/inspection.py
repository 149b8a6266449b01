"""Describes a snapshot to people, without anything that is the guest's secret, and says where two differ."""

from __future__ import annotations

import dataclasses
import mmap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from tensorwasm.artifacts.snapshot.file import SnapshotFile, Span, merge
from tensorwasm.artifacts.snapshot.head import ExtentMap
from tensorwasm.saved import PAGE_BYTES, SavedInstance, SavedSession

_STRIDE_BYTES: Final = 64 * PAGE_BYTES
"""Compared at once first: most of a memory is unchanged."""
_BY_PARTS: Final = frozenset({"memories", "globals", "tables", "session", "parent", "buffers"})
_Part = tuple[memoryview, list[Span]] | None
"""A memory or buffer, and the spans outside of which it is zero; None if a snapshot lacks it."""


@dataclass(frozen=True, slots=True)
class Summary:
    """A snapshot in numbers and names: no contents of memories, buffers, globals, input or kernels.

    Hashes and ids are hexadecimal. An empty parent means that it is whole. ``signature``, ``compression`` and
    ``cipher`` are algorithms, or ``none``.

    Attributes:
        depth: length of the chain of snapshots that it adds to.
        memory_stored_bytes: of each memory, what this snapshot itself has.
        tables: how many differ from what the module makes.
        input_bytes: what has not been read yet.
        kernels: names of their entry points.
    """

    content_hash: str
    module_hash: str
    parent: str
    depth: int
    made_unix_ms: int
    signature: str
    key_id: str
    compression: str
    cipher: str
    file_bytes: int
    content_bytes: int
    memory_bytes: tuple[int, ...]
    memory_stored_bytes: tuple[int, ...]
    globals: int
    tables: int
    input_bytes: int
    grants: tuple[str, ...]
    gpu: bool
    buffer_bytes: int
    buffers: int
    kernels: tuple[str, ...]


def summarize(snapshot: SnapshotFile) -> Summary:
    """Return the summary of a verified snapshot; its parent need not be open."""
    header, instance, session = snapshot.header, snapshot.instance, snapshot.instance.session
    buffers = session.buffers if session else ()
    return Summary(
        content_hash=snapshot.content_hash.hex(),
        module_hash=instance.module_hash.hex(),
        parent=(instance.parent or b"").hex(),
        depth=snapshot.depth,
        made_unix_ms=instance.made_unix_ms,
        signature=header.algorithm.name.lower() if header.algorithm else "none",
        key_id=header.key_id,
        compression=header.compression.name.lower(),
        cipher=header.cipher.name.lower(),
        file_bytes=snapshot.file_bytes,
        content_bytes=header.content_bytes,
        memory_bytes=tuple(memory.size_bytes for memory in instance.memories),
        memory_stored_bytes=tuple(sum(size for _, size, _ in p.runs) for p in snapshot.layers[0].layout.memories),
        globals=len(instance.globals),
        tables=len(instance.tables),
        input_bytes=len(instance.input),
        grants=instance.grants,
        gpu=session is not None,
        buffer_bytes=sum(buffer.size_bytes for buffer in buffers),
        buffers=len(buffers),
        kernels=tuple(kernel.entry for kernel in session.kernels) if session else (),
    )


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two snapshots differ.

    Attributes:
        memories: by index, spans of bytes in pages, begin and end; memories that only one has appear as a whole.
        buffers: likewise by handle.
        globals: indices, as are the tables.
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
    """Return where two snapshots differ, each with its chain applied; errors as for `SnapshotFile.place`.

    Takes as much memory as the larger memories of both together.
    """
    a, b = one.instance, two.instance
    count = max(len(a.memories), len(b.memories))
    memories = ((index, _compare(_memory(one, index), _memory(two, index))) for index in range(count))
    handles = sorted(one.layers[0].layout.buffers.keys() | two.layers[0].layout.buffers.keys())
    buffers = ((handle, _compare(_buffer(one, handle), _buffer(two, handle))) for handle in handles)
    fields = list(_fields(a, b))
    if a.session is not None and b.session is not None:
        fields += (f"session.{name}" for name in _fields(a.session, b.session))
    elif a.session is not b.session:
        fields.append("session")
    return Difference(
        tuple((index, spans) for index, spans in memories if spans),
        tuple((handle, spans) for handle, spans in buffers if spans),
        _indices({each.index: each for each in a.globals}, {each.index: each for each in b.globals}),
        _indices({each.index: each for each in a.tables}, {each.index: each for each in b.tables}),
        tuple(fields),
    )


def _memory(snapshot: SnapshotFile, index: int) -> _Part:
    found = snapshot.layers[0].layout.memories[index : index + 1]
    return _load(found[0], index, snapshot.place, snapshot.memory_spans) if found else None


def _buffer(snapshot: SnapshotFile, handle: int) -> _Part:
    found = snapshot.layers[0].layout.buffers.get(handle)
    return _load(found, handle, snapshot.place_buffer, snapshot.buffer_spans) if found else None


def _load(
    extents: ExtentMap, which: int, place: Callable[[int, memoryview], None], spans: Callable[[int], list[Span]]
) -> _Part:
    view = memoryview(mmap.mmap(-1, extents.size_bytes) if extents.size_bytes else b"")
    place(which, view)
    return view, spans(which)


def _compare(one: _Part, two: _Part) -> tuple[Span, ...]:
    """Return where two memories differ; one that has grown differs in all that is new."""
    if one is None or two is None:
        present = one or two
        return ((0, len(present[0])),) if present and len(present[0]) else ()
    longer, shorter = sorted((one[0], two[0]), key=len, reverse=True)
    common = len(shorter)
    spans = merge(sorted((start, min(end, common)) for start, end in (*one[1], *two[1]) if start < common))
    grown = [(common, len(longer))] if len(longer) > common else []
    return tuple(merge([*_find_different(longer[:common], shorter, spans), *grown]))


def _find_different(view: memoryview, other: memoryview, spans: Iterable[Span]) -> Iterator[Span]:
    """Yield the pages that differ between two memories of the same length, within ascending spans of whole pages."""
    for start, end in spans:
        for stride in range(start, min(end, len(view)), _STRIDE_BYTES):
            stop = min(stride + _STRIDE_BYTES, end, len(view))
            ours, theirs = bytes(view[stride:stop]), bytes(other[stride:stop])
            if ours == theirs:
                continue
            for at in range(0, len(ours), PAGE_BYTES):
                if ours[at : at + PAGE_BYTES] != theirs[at : at + PAGE_BYTES]:
                    yield stride + at, min(stride + at + PAGE_BYTES, stop)


def _indices(one: dict[int, object], two: dict[int, object]) -> tuple[int, ...]:
    return tuple(sorted(key for key in one.keys() | two.keys() if one.get(key) != two.get(key)))


def _fields(one: SavedInstance | SavedSession, two: SavedInstance | SavedSession) -> Iterator[str]:
    """Yield names of fields that differ and are not compared by their parts."""
    for field in dataclasses.fields(one):
        if field.name not in _BY_PARTS and getattr(one, field.name) != getattr(two, field.name):
            yield field.name
