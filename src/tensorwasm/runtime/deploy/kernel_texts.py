"""PTX texts in modules, so that their kernels can be compiled before a guest asks for them.

Best effort: a text that a guest reads, unpacks or puts together is not found, and one may be found otherwise than the
guest passes it. Then the guest's first call has its kernel compiled, as ever. Modules are untrusted: what is looked at
in one go is bounded, so that other threads have their turn, and so is what is found.

Source: PTX ISA, "PTX Module Directives: .version", "Kernel and Function Directives: .entry", "Identifiers".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from tensorwasm.errors import InvalidWasm, ModuleTooLarge
from tensorwasm.gc_pause import gc_paused
from tensorwasm.ptx import MAX_PTX_BYTES
from tensorwasm.wasm.definitions import DATA, DataSegment
from tensorwasm.wasm.sections import DATA as DATA_SECTION
from tensorwasm.wasm.sections import read_sections

MAX_TEXTS: Final = 16
MAX_KERNELS: Final = 32
MAX_ENTRIES: Final = 1024
"""Places in one text that look as if a kernel began there; the others are not looked at."""

_STEP_BYTES: Final = 256 << 10
_COMMENTS_BYTES: Final = 4 << 10
"""Before ``.version``: compilers write who they are there."""

_NO_TEXT: Final = re.compile(rb"[^\t\n\v\f\r -~]")
_ENTRY: Final = re.compile(rb"\.entry\s{1,64}([a-zA-Z_$%][a-zA-Z0-9_$]{0,1022})(?![a-zA-Z0-9_$])")


def find_kernels(module: bytes) -> list[tuple[bytes, str]]:
    """Return the PTX texts in a module's data segments, each with the name of one of its kernels.

    At most `MAX_KERNELS`, of at most `MAX_TEXTS` texts. Raises nothing.
    """
    found: dict[tuple[bytes, str], None] = {}
    texts = 0
    for segment in _segments(module):
        for text in _texts(segment.data):
            for entry in _entries(text):
                found[text, entry] = None
                if len(found) == MAX_KERNELS:
                    return list(found)
            texts += 1
            if texts == MAX_TEXTS:
                return list(found)
    return list(found)


def _segments(module: bytes) -> tuple[DataSegment, ...]:
    with suppress(InvalidWasm, ModuleTooLarge), gc_paused():  # or what this reader does not know
        for section, _, contents in read_sections(module):
            if section == DATA_SECTION:
                return tuple(DATA.read(contents))
    return ()


def _texts(data: bytes) -> Iterator[bytes]:
    at = 0
    while (at := _find(data, b".version", at)) >= 0:
        end = _end(data, at)
        yield data[_begin(data, at) : end]
        at = _skip(data, end)


def _find(data: bytes, word: bytes, at: int) -> int:
    """Return where a word begins, from a place on; -1 if it does not occur."""
    for start in range(at, len(data), _STEP_BYTES):
        found = data.find(word, start, start + _STEP_BYTES + len(word) - 1)
        if found >= 0:
            return found
    return -1


def _begin(data: bytes, version: int) -> int:
    """Return where the lines without code begin that are right before ``.version``."""
    before = data[max(0, version - _COMMENTS_BYTES) : version]
    *lines, last = before[_after_last(before) :].split(b"\n")
    begin = version
    if last.strip():
        return begin  # other text, without a NUL or a newline between
    begin -= len(last)
    for line in reversed(lines):
        if line.strip() and not line.lstrip().startswith(b"//"):
            # Where other text ends without a NUL: NVIDIA's compilers begin with an empty comment.
            return begin - len(b"//\n") if line.endswith(b"//") else begin
        begin -= len(line) + 1
    return begin


def _after_last(data: bytes) -> int:
    """Return where the text begins that some bytes end with."""
    return max((found.end() for found in _NO_TEXT.finditer(data)), default=0)


def _end(data: bytes, version: int) -> int:
    """Return where a text ends: with the spaces behind its last brace, because other text may follow at once."""
    end = _skip(data, version)
    brace = data.rfind(b"}", version, end)
    if brace < 0:
        return end
    rest = data[brace + 1 : end]
    return end - len(rest.lstrip())


def _skip(data: bytes, at: int) -> int:
    """Return where the printable text around a place ends, or the longest that a PTX text may be."""
    most = min(len(data), at + MAX_PTX_BYTES)
    for start in range(at, most, _STEP_BYTES):
        found = _NO_TEXT.search(data, start, min(start + _STEP_BYTES, most))
        if found is not None:
            return found.start()
    return most


def _entries(text: bytes) -> Iterator[str]:
    at = 0
    for _ in range(MAX_ENTRIES):
        at = _find(text, b".entry", at)
        if at < 0:
            return
        found = _ENTRY.match(text, at)
        if found is not None:
            yield found[1].decode("ascii")
        at += 1
