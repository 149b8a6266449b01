"""Values that cross from one of our processes to another in pieces.

A pickle of a hundred thousand declarations, or of twenty megabytes of bytes, is unpacked in one step that keeps the GIL
for tens of milliseconds. In pieces it is free in between. Only a process that runs nothing but this package's own code
may be read: a pickle can name any function.
"""

from __future__ import annotations

import io
import pickle
import struct
from dataclasses import fields, is_dataclass
from itertools import islice
from typing import Any, BinaryIO, Final

MOST_ITEMS: Final = 500
"""Items of a container that are unpacked in one step."""

MOST_BYTES: Final = 256 << 10
"""Bytes that are copied in one step."""

_HEAD: Final = struct.Struct("<cQ")
_CONTAINERS: Final = (tuple, list, dict, frozenset)


def write(value: Any, sink: BinaryIO) -> None:
    """Write a value; of one that is a dataclass each attribute, of a long container some items at a time."""
    if isinstance(value, bytes) and len(value) > MOST_BYTES:
        sink.write(_HEAD.pack(b"b", len(value)))
        sink.write(value)
    elif is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in fields(value)]
        _put(b"d", (type(value), names), sink)
        for name in names:
            write(getattr(value, name), sink)
    elif type(value) in _CONTAINERS and len(value) > MOST_ITEMS:
        items = iter(value.items() if isinstance(value, dict) else value)
        parts = iter(lambda: list(islice(items, MOST_ITEMS)), [])
        _put(b"c", (type(value), -(-len(value) // MOST_ITEMS)), sink)
        for part in parts:
            _put(b"p", part, sink)
    else:
        _put(b"p", value, sink)


def _put(kind: bytes, value: Any, sink: BinaryIO) -> None:
    data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    sink.write(_HEAD.pack(kind, len(data)))
    sink.write(data)


class PieceReader:
    """Reads what `write` wrote; raises EOFError where it is cut."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._offset = 0

    def read(self) -> Any:
        """Return the next value."""
        kind, data = self._take_piece()
        if kind == b"b":
            whole = io.BytesIO()  # hands over its buffer in the end
            for start in range(0, len(data), MOST_BYTES):
                whole.write(data[start : start + MOST_BYTES])
            return whole.getvalue()
        value = pickle.loads(data)  # noqa: S301 - of our own process, which runs no other code than this package's
        if kind == b"d":
            of_type, names = value
            return of_type(**{name: self.read() for name in names})
        if kind == b"c":
            of_type, count = value
            items: list[Any] = []
            for _ in range(count):
                items += self.read()
            return items if of_type is list else of_type(items)
        return value

    def _take_piece(self) -> tuple[bytes, memoryview]:
        begin = self._offset + _HEAD.size
        if begin > len(self._data):
            raise EOFError
        kind, length = _HEAD.unpack(self._data[self._offset : begin])
        self._offset = begin + length
        if self._offset > len(self._data):
            raise EOFError
        return kind, self._data[begin : self._offset]
