"""A whole module as values: decoded, edited by making another, encoded.

Source: Wasm core 2.0, 5.5.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from tensorwasm.errors import InvalidWasm, UnsupportedProposal
from tensorwasm.values import MIB
from tensorwasm.wasm import definitions, preamble, sections
from tensorwasm.wasm.binary import Cursor, name, sized, unsigned
from tensorwasm.wasm.definitions import CodeEntry, DataSegment, ElementSegment, Global
from tensorwasm.wasm.preamble import BinaryFormat, Export, Import
from tensorwasm.wasm.types import FuncType, MemoryType, TableType

MAX_SEARCHED_BYTES: Final = 4 * MIB
"""Most code that `find_proposal` decodes: Python decodes some megabytes of it a second."""


@dataclass(frozen=True, slots=True)
class CustomSection:
    """A custom section: its name, the bytes behind it, and the section that it follows, 0 before the first."""

    name: str
    data: bytes
    after: int = 0


@dataclass(frozen=True, slots=True)
class EncodedSection:
    """The bytes of a section, header included, valid for as long as its value is the very same object."""

    section: int
    value: object
    encoded: bytes | memoryview


@dataclass(frozen=True, slots=True)
class Module:
    """A module; imports come before what it defines in each index space.

    Attributes:
        functions: for each function defined, the index of its type.
        tags: for each tag defined, the index of its signature.
        start: index of the function that instantiating runs, or None.
        data_count: value of the data count section, or None without one.
        bodies: for each function defined.
        customs: custom sections, those at one place in their order.
        kept: the sections as they were read, so that unchanged ones are written with the same bytes.
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
    elements: tuple[ElementSegment, ...] = ()
    data_count: int | None = None
    bodies: tuple[CodeEntry, ...] = ()
    data: tuple[DataSegment, ...] = ()
    customs: tuple[CustomSection, ...] = ()
    kept: tuple[EncodedSection, ...] = field(default=(), compare=False, repr=False)

    def imported(self, kind: str) -> tuple[Import, ...]:
        """Return the imports of a kind."""
        return tuple(item for item in self.imports if item.kind == kind)


_NUMBER: Final = BinaryFormat(Cursor.unsigned, unsigned)
_SECTIONS: Final = {
    sections.TYPE: ("types", preamble.TYPES),
    sections.IMPORT: ("imports", preamble.IMPORTS),
    sections.FUNCTION: ("functions", preamble.FUNCTIONS),
    sections.TABLE: ("tables", preamble.TABLES),
    sections.MEMORY: ("memories", preamble.MEMORIES),
    sections.TAG: ("tags", preamble.TAGS),
    sections.GLOBAL: ("globals", definitions.GLOBALS),
    sections.EXPORT: ("exports", preamble.EXPORTS),
    sections.START: ("start", _NUMBER),
    sections.ELEMENT: ("elements", definitions.ELEMENTS),
    sections.DATA_COUNT: ("data_count", _NUMBER),
    sections.CODE: ("bodies", definitions.BODIES),
    sections.DATA: ("data", definitions.DATA),
}
"""The attribute of `Module` that holds a section, and the section's format."""


def decode(wasm: bytes) -> Module:
    """Read a module; function bodies are not decoded.

    This is no validator: the result may break rules that depend on types.

    Args:
        wasm: a whole binary module. Its bytes are kept for as long as the module is.

    Raises:
        InvalidWasm: the bytes break the binary format; the message has the offset.
    """
    values: dict[str, Any] = {}
    customs: list[CustomSection] = []
    kept: list[EncodedSection] = []
    after = 0
    view = memoryview(wasm)
    for section, start, cursor in sections.read_sections(wasm):
        if section == sections.CUSTOM:
            value = CustomSection(cursor.name(), cursor.take(cursor.end - cursor.offset), after)
            customs.append(value)
        else:
            attribute, form = _SECTIONS[section]
            value = values[attribute] = form.read(cursor)
            after = section
        if not cursor.done():
            raise cursor.fail("section size mismatch")
        kept.append(EncodedSection(section, value, view[start : cursor.end]))
    module = Module(**values, customs=tuple(customs), kept=tuple(kept))
    end = Cursor(wasm, len(wasm), len(wasm))
    if len(module.functions) != len(module.bodies):
        raise end.fail("function and code section have inconsistent lengths")
    if module.data_count not in (None, len(module.data)):
        raise end.fail("data count and data section have inconsistent lengths")
    return module


def encode(module: Module) -> bytes:
    """Write a module.

    A section that holds the value that `decode` returned keeps its bytes, and so does a body inside a changed section;
    everything else is written in its shortest form.

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

    parts: list[bytes | memoryview] = [sections.HEADER]
    for number in (sections.CUSTOM, *sections.ORDER):
        if number in _SECTIONS:
            attribute, form = _SECTIONS[number]
            parts.append(section(number, getattr(module, attribute), form.write))
        parts += [section(sections.CUSTOM, item, _write_custom) for item in module.customs if item.after == number]
    return b"".join(parts)


def _write_custom(custom: CustomSection) -> bytes:
    return name(custom.name) + custom.data


def find_proposal(wasm: bytes) -> UnsupportedProposal | None:
    """Return the error for the first instruction that belongs to a proposal that is off, for a module so refused.

    None if there is none in the first `MAX_SEARCHED_BYTES` of code, or if the code is malformed before it.
    """
    searched_bytes = 0
    try:
        for body in decode(wasm).bodies:
            searched_bytes += len(body.raw)
            if searched_bytes > MAX_SEARCHED_BYTES:
                return None
            body.instructions()
    except UnsupportedProposal as found:
        return found
    except InvalidWasm:
        return None
    return None
