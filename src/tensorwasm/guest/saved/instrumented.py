"""Instrumented forms of a module whose instances are saved: everything private is exported, under unused names.

The *live* form does what the module does. The *blank* form starts in a saved state: it runs no start function and
copies no data, because the saved memory already includes both. Indices mean the same in both and in the module, so a
state can be moved between them. The guest cannot notice: exports are invisible to it, and its code does not name the
globals that are added to record dropped segments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from tensorwasm.errors import NotCapturable
from tensorwasm.guest.engine import traps
from tensorwasm.values import MIB, WASM_PAGE_BYTES
from tensorwasm.wasm import edit
from tensorwasm.wasm.definitions import ACTIVE, PASSIVE, CodeEntry, ElementSegment, Expression, Global
from tensorwasm.wasm.module import Module, decode, encode
from tensorwasm.wasm.preamble import MAX_EXPORTS, Export
from tensorwasm.wasm.types import REFERENCE_TYPES, FuncType, GlobalType

_T = TypeVar("_T")

_STEM: Final = "tensorwasm.private."
_EVERYTHING: Final = 1 << 32
MAX_SUSPECT_BYTES: Final = 4 * MIB
"""Most code that is looked through for drops of segments: Python reads some megabytes of it a second."""


@dataclass(frozen=True, slots=True)
class PrivateGlobal:
    """A mutable global: its index, its type and the name under which it is exported."""

    index: int
    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class Drop:
    """A segment that code may drop: an ``i32`` global, ``mark``, is 1 once it is dropped, and a function drops it."""

    segment: int
    mark: str
    function: str


@dataclass(frozen=True, slots=True)
class InstrumentedModule:
    """Both forms of a module, and the names of their exports.

    Attributes:
        live: binary of the live form.
        blank: binary of the blank form.
        functions: name of every function that a table or a global can hold, by index.
        data: data segments that code may drop.
        elements: element segments that code may drop.
        data_end_bytes: past this, memory of a new instance is zeros.
        initial_tables: the functions in each table of a new instance, None where they are computed.
    """

    live: bytes
    blank: bytes
    memory: str | None
    globals: tuple[PrivateGlobal, ...]
    tables: tuple[str, ...]
    functions: dict[int, str]
    data: tuple[Drop, ...]
    elements: tuple[Drop, ...]
    data_end_bytes: int
    initial_tables: tuple[tuple[int | None, ...] | None, ...]


def instrument(wasm: bytes) -> InstrumentedModule:
    """Instrument a module that an engine has accepted.

    Raises:
        NotCapturable: it imports a memory, table or global, keeps exceptions in one, or has too many exports or too
            much code that may drop segments.
        InvalidWasm: it is malformed where engines do not look.
    """
    module = decode(wasm)
    for item in module.imports:
        if item.kind != "func":
            label = traps.clean(f"{item.module}.{item.name}")
            raise NotCapturable(f"the module imports the {item.kind} {label}: its state is not the instance's own")
    _require_no_exceptions(module)
    prefix = edit.free_prefix(module, _STEM)
    private = tuple(
        PrivateGlobal(index, item.type.value, f"{prefix}global{index}")
        for index, item in enumerate(module.globals)
        if item.type.mutable
    )
    tables = tuple(f"{prefix}table{index}" for index in range(len(module.tables)))
    memory = f"{prefix}memory" if module.memories else None
    functions: dict[int, str] = {}
    if tables or any(item.kind == "funcref" for item in private):
        functions = {index: f"{prefix}func{index}" for index in edit.find_escaping(module)}
    exports = [
        *(Export(item.name, "global", item.index) for item in private),
        *(Export(name, "table", index) for index, name in enumerate(tables)),
        *(Export(name, "func", index) for index, name in functions.items()),
        *([Export(memory, "memory", 0)] if memory is not None else []),
    ]
    live, data, elements = _note_drops(edit.add_exports(module, exports), prefix)
    if len(live.exports) > MAX_EXPORTS:
        raise NotCapturable(f"the module has more than {MAX_EXPORTS} globals, tables and functions in tables")
    blank = edit.drop_data(
        edit.remove_start(live), {index for index, item in enumerate(live.data) if item.mode == ACTIVE}
    )
    return InstrumentedModule(
        live=encode(live),
        blank=encode(blank),
        memory=memory,
        globals=private,
        tables=tables,
        functions=functions,
        data=data,
        elements=elements,
        data_end_bytes=_data_end(module),
        initial_tables=tuple(_initial_table(module, index) for index in range(len(module.tables))),
    )


def _require_no_exceptions(module: Module) -> None:
    """Refuse what could hold an exception between two calls: only the engine can read it."""
    for index, item in enumerate(module.globals):
        if item.type.mutable and item.type.value in REFERENCE_TYPES - {"funcref"}:
            raise NotCapturable(f"the module keeps an exception in global {index}, of type {item.type.value}")
    for index, table in enumerate(module.tables):
        if table.element != "funcref":
            raise NotCapturable(f"the module keeps exceptions in table {index}, of type {table.element}")


def _note_drops(module: Module, prefix: str) -> tuple[Module, tuple[Drop, ...], tuple[Drop, ...]]:
    """Make the module record which segments it drops, and export functions that drop them."""
    # Those that are not passive have been dropped before any code runs.
    if PASSIVE not in {segment.mode for segment in module.data} | {segment.mode for segment in module.elements}:
        return module, (), ()
    if edit.suspect_bytes(module) > MAX_SUSPECT_BYTES:
        raise NotCapturable(f"functions that may drop segments have more than {MAX_SUSPECT_BYTES} bytes of code")
    data, elements = edit.find_drops(module)
    found = [("data.drop", index) for index in sorted(data) if module.data[index].mode == PASSIVE]
    found += [("elem.drop", index) for index in sorted(elements) if module.elements[index].mode == PASSIVE]
    if not found:
        return module, (), ()
    unmarked = Global(GlobalType("i32", mutable=True), (("i32.const", 0),))
    # Its code is another from here on, and lines of the module as it came would be wrong.
    module = replace(module, customs=tuple(each for each in module.customs if each.name != ".debug_line"))
    module, marks = edit.add_globals(module, [unmarked] * len(found))
    module, functions = edit.add_functions(module, [(FuncType(), CodeEntry.build((), (drop,))) for drop in found])
    marked = dict(zip(found, marks, strict=True))
    module = edit.mark_drops(module, _of_kind(marked, "data.drop"), _of_kind(marked, "elem.drop"))
    drops = {drop: Drop(drop[1], f"{prefix}{drop[0]}{drop[1]}.mark", f"{prefix}{drop[0]}{drop[1]}") for drop in found}
    exports = [Export(drops[drop].mark, "global", mark) for drop, mark in marked.items()]
    exports += [Export(drops[drop].function, "func", index) for drop, index in zip(found, functions, strict=True)]
    data_drops, element_drops = (tuple(_of_kind(drops, kind).values()) for kind in ("data.drop", "elem.drop"))
    return edit.add_exports(module, exports), data_drops, element_drops


def _of_kind(found: Mapping[tuple[str, int], _T], kind: str) -> dict[int, _T]:
    return {index: value for (name, index), value in found.items() if name == kind}


def _data_end(module: Module) -> int:
    """Return where the data that instantiating copies ends, rounded up; the largest size if an offset is computed."""
    end = 0
    for segment in module.data:
        if segment.mode == ACTIVE:
            offset = _plain_offset(segment.offset)
            end = max(end, _EVERYTHING if offset is None else offset + len(segment.data))
    return min(-(-end // WASM_PAGE_BYTES) * WASM_PAGE_BYTES, _EVERYTHING)


def _plain_offset(offset: Expression) -> int | None:
    if len(offset) == 1 and offset[0][0] == "i32.const":
        return int(offset[0][1]) & 0xFFFF_FFFF
    return None


def _initial_table(module: Module, index: int) -> tuple[int | None, ...] | None:
    table: list[int | None] = [None] * module.tables[index].minimum
    for element in module.elements:
        if element.mode != ACTIVE or element.table != index:
            continue
        offset, items = _plain_offset(element.offset), _plain_items(element)
        if offset is None or items is None or offset + len(items) > len(table):
            return None
        table[offset : offset + len(items)] = items
    return tuple(table)


def _plain_items(element: ElementSegment) -> list[int | None] | None:
    items: list[int | None] = []
    for item in element.items:
        if isinstance(item, int):
            items.append(item)
        elif len(item) == 1 and item[0][0] in {"ref.func", "ref.null"}:
            items.append(int(item[0][1]) if item[0][0] == "ref.func" else None)
        else:
            return None
    return items
