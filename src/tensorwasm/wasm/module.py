"""A whole module as values: decoded, edited by making another, encoded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from tensorwasm.wasm import declarations, definitions, frame
from tensorwasm.wasm.cursor import Cursor
from tensorwasm.wasm.declarations import Export, Import
from tensorwasm.wasm.definitions import Body, Data, Element, Global
from tensorwasm.wasm.frame import HEADER, frames
from tensorwasm.wasm.types import FuncType, MemoryType, TableType
from tensorwasm.wasm.writing import name, sized, unsigned

_MAX_CUSTOMS: Final = 100_000


@dataclass(frozen=True, slots=True)
class Custom:
    """A custom section.

    Attributes:
        name: what it is.
        data: what is behind the name.
        after: number of the section that it follows, 0 for those before the first.
    """

    name: str
    data: bytes
    after: int = 0


@dataclass(frozen=True, slots=True)
class Kept:
    """How a section was encoded, header included, for as long as its value is the very same object."""

    section: int
    value: object
    encoded: bytes | memoryview


@dataclass(frozen=True, slots=True)
class Module:
    """A module.

    Attributes:
        types: signatures.
        imports: in order.
        functions: for each function defined, the index of its type.
        tables: the defined ones.
        memories: the defined ones.
        tags: for each tag defined, the index of its signature.
        globals: the defined ones.
        exports: in order.
        start: index of the function that instantiating runs, or None.
        elements: element segments.
        data_count: what the data count section says, or None without one.
        bodies: for each function defined, its body.
        data: data segments.
        customs: custom sections, those at one place in their order.
        kept: the encoded sections as they came, so that those nobody touched go out unchanged.
    """

    types: tuple[FuncType, ...] = ()
    imports: tuple[Import, ...] = ()
    functions: tuple[int, ...] = ()
    tables: tuple[TableType, ...] = ()
    memories: tuple[MemoryType, ...] = ()
    tags: tuple[int, ...] = ()
    globals: tuple[Global, ...] = ()
    exports: tuple[Export, ...] = ()
    start: int | None = None
    elements: tuple[Element, ...] = ()
    data_count: int | None = None
    bodies: tuple[Body, ...] = ()
    data: tuple[Data, ...] = ()
    customs: tuple[Custom, ...] = ()
    kept: tuple[Kept, ...] = field(default=(), compare=False, repr=False)

    def imported(self, kind: str) -> tuple[Import, ...]:
        """Return the imports of a kind: they come first in its index space."""
        return tuple(item for item in self.imports if item.kind == kind)


@dataclass(frozen=True, slots=True)
class _Section:
    attribute: str
    read: Callable[[Cursor], Any]
    write: Callable[[Any], bytes]


_SECTIONS: Final = {
    frame.TYPE: _Section("types", declarations.read_types, declarations.write_types),
    frame.IMPORT: _Section("imports", declarations.read_imports, declarations.write_imports),
    frame.FUNCTION: _Section("functions", declarations.read_functions, declarations.write_functions),
    frame.TABLE: _Section("tables", declarations.read_tables, declarations.write_tables),
    frame.MEMORY: _Section("memories", declarations.read_memories, declarations.write_memories),
    frame.TAG: _Section("tags", declarations.read_tags, declarations.write_tags),
    frame.GLOBAL: _Section("globals", definitions.read_globals, definitions.write_globals),
    frame.EXPORT: _Section("exports", declarations.read_exports, declarations.write_exports),
    frame.START: _Section("start", Cursor.unsigned, unsigned),
    frame.ELEMENT: _Section("elements", definitions.read_elements, definitions.write_elements),
    frame.DATA_COUNT: _Section("data_count", Cursor.unsigned, unsigned),
    frame.CODE: _Section("bodies", definitions.read_bodies, definitions.write_bodies),
    frame.DATA: _Section("data", definitions.read_data, definitions.write_data),
}


def decode(wasm: bytes) -> Module:
    """Read a module; function bodies are only cut out.

    This is no validator: what it gives may break rules that need types to be seen.

    Args:
        wasm: a whole binary module. Its bytes are kept for as long as the module is.

    Raises:
        InvalidWasm: the bytes break the binary format; the message has the offset.

    Source: Wasm core 2.0, 5.5.
    """
    values: dict[str, Any] = {}
    customs: list[Custom] = []
    kept: list[Kept] = []
    after = 0
    view = memoryview(wasm)
    for section, start, cursor in frames(wasm):
        if len(customs) > _MAX_CUSTOMS:
            raise cursor.fail(f"more than {_MAX_CUSTOMS} custom sections", start)
        if section == frame.CUSTOM:
            value = Custom(cursor.name(), cursor.take(cursor.end - cursor.offset), after)
            customs.append(value)
        else:
            value = values[_SECTIONS[section].attribute] = _SECTIONS[section].read(cursor)
            after = section
        if not cursor.done():
            raise cursor.fail("section size mismatch")
        kept.append(Kept(section, value, view[start : cursor.end]))
    module = Module(**values, customs=tuple(customs), kept=tuple(kept))
    _check_lengths(module, Cursor(wasm, len(wasm), len(wasm)))
    return module


def _check_lengths(module: Module, end: Cursor) -> None:
    """Compare the sections that must agree (Wasm core 2.0, 5.5.16)."""
    if len(module.functions) != len(module.bodies):
        raise end.fail("function and code section have inconsistent lengths")
    if module.data_count not in (None, len(module.data)):
        raise end.fail("data count and data section have inconsistent lengths")


def encode(module: Module) -> bytes:
    """Write a module.

    A section whose value is the one that `decode` gave goes out as it came, and so does a body inside a section that
    changed; everything else takes its shortest form.

    Raises:
        KeyError: there is no such instruction or type.
        ValueError: an immediate is not of its kind.
    """
    kept = {(item.section, id(item.value)): item.encoded for item in module.kept}

    def section(number: int, value: object, write: Callable[[Any], bytes]) -> bytes | memoryview:
        encoded = kept.get((number, id(value)))
        if encoded is not None:
            return encoded
        return bytes([number]) + sized(write(value)) if value not in ((), None) else b""

    parts: list[bytes | memoryview] = [HEADER]
    for number in (frame.CUSTOM, *frame.ORDER):
        if number in _SECTIONS:
            form = _SECTIONS[number]
            parts.append(section(number, getattr(module, form.attribute), form.write))
        parts += [section(frame.CUSTOM, item, _write_custom) for item in module.customs if item.after == number]
    return b"".join(parts)


def _write_custom(custom: Custom) -> bytes:
    return name(custom.name) + custom.data
