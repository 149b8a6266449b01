"""Moves a sandbox's state out into plain values between two calls, and back into a sandbox of the blank form.

Both use the names that the instrumented module exports. A saved state is checked and compared once, and applied often.

Source: Wasm core 2.0, 4.2: a store has memories, globals, tables, and segments that may be dropped.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Final

from tensorwasm.errors import InternalError, InvalidSnapshot
from tensorwasm.guest.engine.engine import MAX_TABLE_ELEMENTS
from tensorwasm.guest.memory.images import Image
from tensorwasm.guest.memory.pagemap import Span, clip, find_different, find_nonzero, find_written, join
from tensorwasm.guest.sandbox.exports import BITS, Exports
from tensorwasm.guest.sandbox.instance import Instance
from tensorwasm.guest.saved.instrumented import Drop, InstrumentedModule
from tensorwasm.saved import SavedGlobal, SavedInstance, SavedMemory, SavedRun, SavedTable
from tensorwasm.values import WASM_PAGE_BYTES
from tensorwasm.wasm.preamble import Preamble

MAX_RUN_BYTES: Final = 64 << 20
"""Longest run: longer ones are cut, so that readers need not hold more at once."""

_MAX_MEMORY_PAGES: Final = 1 << 16

_Functions = dict[int, int | None]
"""Indices of functions by number in one sandbox, with None for 0."""


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
) -> SavedInstance:
    """Return the content of a resting sandbox of either form; the caller adds the module's hash and what is not in it.

    The runs are views of its memory: use them only while it is not called. With a parent, its memory at an earlier
    time, only differences are saved. Raises `InvalidSnapshot` if the parent is longer, so it is not this memory.
    """
    functions: _Functions = {0: None}
    functions |= {exports.function(name): index for index, name in instrumented.functions.items()}
    found = []
    for item in instrumented.globals:
        bits = exports.read_global(item.name, item.kind)
        found.append(SavedGlobal(item.index, item.kind, _index(bits, functions) if item.kind == "funcref" else bits))
    return SavedInstance(
        module_hash=b"",
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
    if parent is not None and parent.size_bytes > size_bytes:
        raise InvalidSnapshot(f"a memory of {size_bytes} bytes does not follow one of {parent.size_bytes}")
    if parent is not None:
        # Of what both were made of, only what was written can differ.
        made = [] if parent is origin.image and origin.plain else [*made, *_spans(parent)]
    spans = clip(join(sorted([*written, *made])), 0, size_bytes)
    found = find_nonzero(address, spans) if parent is None else _changes(address, parent, spans, size_bytes)
    window = memoryview((ctypes.c_ubyte * size_bytes).from_address(address)).cast("B").toreadonly()
    return (SavedMemory(size_bytes, tuple(SavedRun(start, window[start:end]) for start, end in _cut(found))),)


def _changes(address: int, parent: Image, spans: list[Span], size_bytes: int) -> Iterator[Span]:
    with closing(parent.map()) as before:
        yield from find_different(address, before.address, clip(spans, 0, parent.size_bytes))
    yield from find_nonzero(address, clip(spans, parent.size_bytes, size_bytes))


def _spans(image: Image) -> list[Span]:
    return [(offset, offset + length) for offset, length in image.extents]


def _cut(spans: Iterable[Span]) -> Iterator[Span]:
    for start, end in join(spans):
        for first in range(start, end, MAX_RUN_BYTES):
            yield first, min(first + MAX_RUN_BYTES, end)


def _tables(exports: Exports, instrumented: InstrumentedModule, functions: _Functions) -> tuple[SavedTable, ...]:
    tables = (
        SavedTable(index, tuple(_index(number, functions) for number in exports.read_table(name)))
        for index, name in enumerate(instrumented.tables)
    )
    return tuple(table for table in tables if table.functions != instrumented.initial_tables[table.index])


def _dropped(exports: Exports, drops: tuple[Drop, ...]) -> tuple[int, ...]:
    return tuple(drop.segment for drop in drops if exports.read_global(drop.mark, "i32"))


def _index(number: int, functions: _Functions) -> int | None:
    if number not in functions:
        raise InternalError("a table or a global holds a function that the module does not name")
    return functions[number]


# ------------------------------------------------------------------------------------------------------- restoring


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """What to change in a new sandbox of a blank form, by names of its exports.

    Attributes:
        bits: globals that differ: name, type and bits.
        pointers: globals that hold another function: name, and the function's name or None.
        tables: tables that differ: name, elements by index, length.
        drops: functions to call.
    """

    size_bytes: int
    bits: tuple[tuple[str, str, int], ...]
    pointers: tuple[tuple[str, str | None], ...]
    tables: tuple[tuple[str, dict[int, str | None], int], ...]
    drops: tuple[str, ...]


def read_pristine(instance: Instance, instrumented: InstrumentedModule) -> SavedInstance:
    """Return the content of a new sandbox of a blank form, with every table, without its memory."""
    everything = replace(instrumented, memory=None, initial_tables=(None,) * len(instrumented.tables))
    with instance.resting() as exports:
        return capture(exports, everything, Origin())


def make_plan(
    saved: SavedInstance, instrumented: InstrumentedModule, declared: Preamble, pristine: SavedInstance
) -> RestorePlan:
    """Compare an untrusted, whole saved state with ``pristine``, what `read_pristine` found in a new sandbox.

    Raises `InvalidSnapshot` if it does not fit the module, which declares ``declared`` in its blank form.
    """
    bits, pointers = _compare_globals(saved.globals, instrumented, pristine.globals)
    return RestorePlan(
        size_bytes=_memory_bytes(saved, declared),
        bits=bits,
        pointers=pointers,
        tables=_compare_tables(saved.tables, instrumented, pristine.tables),
        drops=(
            *_find_drops(saved.dropped_data, instrumented.data, "data"),
            *_find_drops(saved.dropped_elements, instrumented.elements, "element"),
        ),
    )


def apply(plan: RestorePlan, instance: Instance) -> None:
    """Carry out a plan in a new sandbox, except for its memory; `CapacityExhausted` if a table cannot be that long."""
    if plan.bits or plan.pointers or plan.tables:
        with instance.resting() as exports:
            for name, kind, bits in plan.bits:
                exports.write_global(name, kind, bits)
            for name, function in plan.pointers:
                exports.point_global(name, function)
            for name, elements, size in plan.tables:
                exports.write_table(name, elements, size)
    for function in plan.drops:
        instance.call(function)


def fill(instance: Instance, instrumented: InstrumentedModule, image: Image) -> None:
    """Copy an image into the memory of a new sandbox, all zeros. `CapacityExhausted` if it cannot grow so far."""
    if instrumented.memory is None:
        return
    with closing(image.map()) as source, instance.resting() as exports:
        address = exports.grow_memory(instrumented.memory, image.size_bytes)
        for offset, length in image.extents:
            ctypes.memmove(address + offset, source.address + offset, length)


def _memory_bytes(saved: SavedInstance, declared: Preamble) -> int:
    if len(saved.memories) != len(declared.memories):
        raise InvalidSnapshot(f"{len(saved.memories)} memories are saved; the module has {len(declared.memories)}")
    if not saved.memories:
        return 0
    (memory,), (kind,) = saved.memories, declared.memories
    pages, rest = divmod(memory.size_bytes, WASM_PAGE_BYTES)
    most = _MAX_MEMORY_PAGES if kind.maximum is None else kind.maximum
    if rest or not kind.minimum <= pages <= most:
        raise InvalidSnapshot(
            f"a memory of {memory.size_bytes} bytes is saved; the module's has {kind.minimum} to {most} pages"
        )
    return memory.size_bytes


def _compare_globals(
    saved: tuple[SavedGlobal, ...], instrumented: InstrumentedModule, pristine: tuple[SavedGlobal, ...]
) -> tuple[tuple[tuple[str, str, int], ...], tuple[tuple[str, str | None], ...]]:
    if [(item.index, item.kind) for item in saved] != [(item.index, item.kind) for item in instrumented.globals]:
        raise InvalidSnapshot("the saved globals are not those of the module")
    bits: list[tuple[str, str, int]] = []
    pointers: list[tuple[str, str | None]] = []
    for item, known, before in zip(saved, instrumented.globals, pristine, strict=True):
        if item.kind == "funcref":
            function = _function(item.bits, instrumented)
            if item.bits != before.bits:
                pointers.append((known.name, function))
        elif item.bits is None or not 0 <= item.bits < 1 << BITS[item.kind]:
            raise InvalidSnapshot(f"global {item.index} has bits that no {item.kind} has")
        elif item.bits != before.bits:
            bits.append((known.name, item.kind, item.bits))
    return tuple(bits), tuple(pointers)


def _compare_tables(
    saved: tuple[SavedTable, ...], instrumented: InstrumentedModule, pristine: tuple[SavedTable, ...]
) -> tuple[tuple[str, dict[int, str | None], int], ...]:
    tables = []
    indices = [table.index for table in saved]
    if indices != sorted(set(indices)) or (indices and not 0 <= indices[0] <= indices[-1] < len(instrumented.tables)):
        raise InvalidSnapshot("the saved tables are not those of the module")
    for table in saved:
        before = pristine[table.index].functions
        if not len(before) <= len(table.functions) <= MAX_TABLE_ELEMENTS:
            raise InvalidSnapshot(f"table {table.index} is saved with {len(table.functions)} elements")
        padded = before + (None,) * (len(table.functions) - len(before))
        elements = {
            index: _function(function, instrumented)
            for index, (function, old) in enumerate(zip(table.functions, padded, strict=True))
            if function != old
        }
        if elements or len(before) != len(table.functions):
            tables.append((instrumented.tables[table.index], elements, len(table.functions)))
    return tuple(tables)


def _function(index: int | None, instrumented: InstrumentedModule) -> str | None:
    if index is None:
        return None
    name = instrumented.functions.get(index)
    if name is None:
        raise InvalidSnapshot(f"function {index} is saved, which no table or global of the module can hold")
    return name


def _find_drops(saved: tuple[int, ...], drops: tuple[Drop, ...], what: str) -> list[str]:
    known = {drop.segment: drop.function for drop in drops}
    unknown = [segment for segment in saved if segment not in known]
    if unknown or len(set(saved)) != len(saved):
        raise InvalidSnapshot(f"the dropped {what} segments are not ones that the module drops")
    return [known[segment] for segment in saved]
