"""The outer structure of a module: its header, and the sections behind it in their order.

Source: Wasm core 2.0, 5.5.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tensorwasm.errors import InvalidWasm, ModuleTooLarge
from tensorwasm.wasm.binary import Cursor

HEADER: Final = b"\0asm\x01\0\0\0"

CUSTOM: Final = 0
TYPE, IMPORT, FUNCTION, TABLE, MEMORY, GLOBAL, EXPORT, START, ELEMENT, CODE, DATA, DATA_COUNT, TAG = range(1, 14)
# Wasm core 2.0, 5.5.2; the tag section is between memories and globals, the data count before the code.
ORDER: Final = (TYPE, IMPORT, FUNCTION, TABLE, MEMORY, TAG, GLOBAL, EXPORT, START, ELEMENT, DATA_COUNT, CODE, DATA)
MAX_CUSTOMS: Final = 10_000
"""Most custom sections: a module of 20 MB could have six million, and each pass over them would take seconds."""

_RANKS: Final = {section: rank for rank, section in enumerate(ORDER)}


def read_sections(wasm: bytes) -> Iterator[tuple[int, int, Cursor]]:
    """Yield each section's number, the offset of its header, and a cursor over its contents.

    Raises:
        InvalidWasm: this is no module, or a section is cut off, unknown or out of order.
        ModuleTooLarge: it has more than `MAX_CUSTOMS` custom sections.
    """
    if wasm[:8] != HEADER:
        raise InvalidWasm(_describe_header(wasm))
    cursor = Cursor(wasm, len(HEADER), len(wasm))
    last_rank, customs = -1, 0
    while not cursor.done():
        start = cursor.offset
        section = cursor.byte()
        size = cursor.unsigned()
        contents = cursor.offset
        if size > cursor.end - contents:
            raise cursor.fail("unexpected end")
        if section != CUSTOM:
            rank = _RANKS.get(section, -1)
            if rank <= last_rank:
                raise cursor.fail("malformed section id" if rank < 0 else "unexpected section", start)
            last_rank = rank
        elif (customs := customs + 1) > MAX_CUSTOMS:
            raise ModuleTooLarge(f"the module has more than {MAX_CUSTOMS} custom sections (at byte {start})")
        cursor.offset = contents + size
        yield section, start, Cursor(wasm, contents, cursor.offset)


def _describe_header(wasm: bytes) -> str:
    if wasm[:4] != HEADER[:4]:
        what = "it is empty" if not wasm else r"it does not start with the magic bytes \0asm"
        return f"not a WebAssembly module: {what} (at byte 0)"
    if wasm[4:8] == b"\x0d\0\x01\0":
        return "a component, not a core module: build for wasm32-wasip1 instead (at byte 4)"
    return "not a valid WebAssembly module: unknown binary version (at byte 4)"
