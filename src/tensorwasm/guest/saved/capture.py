"""Reading a sandbox into plain values, between two calls, through the names that its instrumented module exports."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from tensorwasm.errors import InternalError, InvalidSnapshot
from tensorwasm.guest.memory.images import Image
from tensorwasm.guest.memory.pagemap import Span, clip, find_different, find_nonzero, find_written, join
from tensorwasm.guest.sandbox.exports import Exports
from tensorwasm.guest.saved.instrumented import Drop, InstrumentedModule
from tensorwasm.saved import SavedGlobal, SavedMemory, SavedRun, SavedTable

MAX_RUN_BYTES: Final = 64 << 20
"""Longest run: longer ones are cut, so that readers need not hold more at once."""


@dataclass(frozen=True, slots=True)
class Contents:
    """The content of a sandbox, as in `tensorwasm.saved.SavedInstance`. Runs are views of live memory."""

    memories: tuple[SavedMemory, ...]
    globals: tuple[SavedGlobal, ...]
    tables: tuple[SavedTable, ...]
    dropped_data: tuple[int, ...]
    dropped_elements: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Origin:
    """The memory of a sandbox when that was made.

    ``image`` is None if it was made by instantiating. ``plain`` pages are the process's own, so the system knows which
    were written to; a device's are not.
    """

    image: Image | None = None
    plain: bool = True


def capture(
    exports: Exports, instrumented: InstrumentedModule, origin: Origin, parent: Image | None = None
) -> Contents:
    """Read a resting sandbox of either form, without copying its memory: use the runs only while it is not called.

    With a parent, its memory at an earlier time, only differences are saved. Raises `InvalidSnapshot` if the parent is
    longer, so it is not this memory at an earlier time.
    """
    functions = {exports.function(name): index for index, name in instrumented.functions.items()}
    found = []
    for item in instrumented.globals:
        bits = exports.read_global(item.name, item.kind)
        found.append(SavedGlobal(item.index, item.kind, _index(bits, functions) if item.kind == "funcref" else bits))
    return Contents(
        memories=_memories(exports, instrumented, origin, parent),
        globals=tuple(found),
        tables=_tables(exports, instrumented, functions),
        dropped_data=_dropped(exports, instrumented.data),
        dropped_elements=_dropped(exports, instrumented.elements),
    )


def _memories(
    exports: Exports, instrumented: InstrumentedModule, origin: Origin, parent: Image | None
) -> tuple[SavedMemory, ...]:
    if instrumented.memory is None:
        return ()
    address, size_bytes = exports.memory(instrumented.memory)
    made = [(0, instrumented.data_end_bytes)] if origin.image is None else _spans(origin.image)
    written = find_written(address, size_bytes) if origin.plain else [(0, size_bytes)]
    spans: Iterable[Span]
    if parent is None:
        spans = find_nonzero(address, clip(join(sorted([*written, *made])), 0, size_bytes))
    elif parent.size_bytes > size_bytes:
        raise InvalidSnapshot(f"a memory of {size_bytes} bytes does not follow one of {parent.size_bytes}")
    else:
        # Of what both were made of, only what was written can differ.
        known = [] if parent is origin.image and origin.plain else [*made, *_spans(parent)]
        spans = _changes(address, parent, clip(join(sorted([*written, *known])), 0, size_bytes), size_bytes)
    window = memoryview((ctypes.c_ubyte * size_bytes).from_address(address)).cast("B").toreadonly()
    return (SavedMemory(size_bytes, tuple(SavedRun(start, window[start:end]) for start, end in _cut(spans))),)


def _changes(address: int, parent: Image, spans: list[Span], size_bytes: int) -> list[Span]:
    before = parent.map()
    try:
        found = list(find_different(address, before.address, clip(spans, 0, parent.size_bytes)))
    finally:
        before.close()
    return [*found, *find_nonzero(address, clip(spans, parent.size_bytes, size_bytes))]


def _spans(image: Image) -> list[Span]:
    return [(offset, offset + length) for offset, length in image.extents]


def _cut(spans: Iterable[Span]) -> Iterator[Span]:
    for start, end in join(spans):
        for first in range(start, end, MAX_RUN_BYTES):
            yield first, min(first + MAX_RUN_BYTES, end)


def _tables(exports: Exports, instrumented: InstrumentedModule, functions: dict[int, int]) -> tuple[SavedTable, ...]:
    tables = []
    for index, name in enumerate(instrumented.tables):
        held = tuple(_index(number, functions) for number in exports.read_table(name))
        if held != instrumented.initial_tables[index]:
            tables.append(SavedTable(index, held))
    return tuple(tables)


def _dropped(exports: Exports, drops: tuple[Drop, ...]) -> tuple[int, ...]:
    return tuple(drop.segment for drop in drops if exports.read_global(drop.mark, "i32"))


def _index(number: int, functions: dict[int, int]) -> int | None:
    if not number:
        return None
    index = functions.get(number)
    if index is None:
        raise InternalError("a table or a global holds a function that the module does not name")
    return index
