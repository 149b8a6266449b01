"""Names of functions, from the custom section in which compilers leave them.

The section is untrusted and no part of a module's meaning: one that is malformed has no names.

Source: Wasm core 2.0, 7.4.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from tensorwasm.errors import InvalidWasm, ModuleTooLarge
from tensorwasm.wasm.binary import Cursor, name, sized, unsigned, vector
from tensorwasm.wasm.module import CustomSection, Module
from tensorwasm.wasm.preamble import MAX_FUNCTIONS

SECTION: Final = "name"

_FUNCTIONS: Final = 1
_LOCALS: Final = 2
_LABELS: Final = 3
_MAX_LOCALS: Final = 10_000_000


def read_function_names(module: Module) -> dict[int, str]:
    """Return the names of functions by their index, as far as the module has them."""
    for custom in module.customs:
        if custom.name == SECTION:
            try:
                for number, content in _subsections(custom):
                    if number == _FUNCTIONS:
                        return dict(_read_names(content))
            except (InvalidWasm, ModuleTooLarge):
                return {}
    return {}


def shift_names(custom: CustomSection, first: int, by: int) -> CustomSection | None:
    """Return a section of names after functions from index ``first`` on have moved up; None if it is malformed."""
    parts: list[bytes] = []
    try:
        for number, content in _subsections(custom):
            if number == _FUNCTIONS:
                items = [_shifted(index, first, by) + name(text) for index, text in _read_names(content)]
                data = vector(items)
            elif number in (_LOCALS, _LABELS):
                items = [
                    _shifted(index, first, by) + vector([unsigned(inner) + name(text) for inner, text in names])
                    for index, names in _read_nested(content)
                ]
                data = vector(items)
            else:
                data = content.take(content.end - content.offset)
            parts.append(bytes([number]) + sized(data))
    except (InvalidWasm, ModuleTooLarge):
        return None
    return replace(custom, data=b"".join(parts))


def _subsections(custom: CustomSection) -> Iterator[tuple[int, Cursor]]:
    cursor = Cursor(custom.data, 0, len(custom.data))
    while not cursor.done():
        number, size = cursor.byte(), cursor.unsigned()
        start = cursor.offset
        cursor.take(size)
        yield number, Cursor(custom.data, start, start + size)


def _read_names(cursor: Cursor, maximum: int = MAX_FUNCTIONS) -> tuple[tuple[int, str], ...]:
    return cursor.vector(lambda cursor: (cursor.unsigned(), cursor.name()), maximum, "names")


def _read_nested(cursor: Cursor) -> tuple[tuple[int, tuple[tuple[int, str], ...]], ...]:
    return cursor.vector(lambda cursor: (cursor.unsigned(), _read_names(cursor, _MAX_LOCALS)), MAX_FUNCTIONS, "names")


def _shifted(index: int, first: int, by: int) -> bytes:
    return unsigned(index + by if index >= first else index)
