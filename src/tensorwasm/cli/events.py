"""Reading server-sent events, and writing what guests sent where people or programs take it.

Source: WHATWG HTML 9.2.6 (interpreting an event stream), as far as the server makes use of it.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TextIO

from tensorwasm.errors import OutputClosed, Refused

MAX_EVENT_BYTES: Final = 1 << 20
"""Longest event that is taken; a chunk has 64 KiB at most."""

_KEPT: Final = "\n\t"


def read_events(pieces: Iterable[bytes]) -> Iterator[tuple[str, str]]:
    """Give name and data of each event, as they come.

    Raises:
        Refused: an event is too long, or no UTF-8.
    """
    rest = b""
    for piece in pieces:
        *events, rest = (rest + piece).split(b"\n\n")
        for event in events:
            yield from _read_event(event)
        if len(rest) > MAX_EVENT_BYTES:
            raise Refused("the stream has an event that is too long", "malformed_answer")


def decode_chunk(name: str, data: str) -> bytes:
    """Return the bytes of a chunk: an event ``chunk`` has them as text, ``chunk-base64`` as base64.

    Raises:
        Refused: it is no base64.
    """
    if name == "chunk":
        return data.encode()
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise Refused("the stream has a chunk that is no base64", "malformed_answer") from None


def writer(stream: TextIO) -> Callable[[bytes], None]:
    """Return what writes a guest's bytes at once: as they are, but without control characters on a terminal.

    Raises:
        OutputClosed: (the function) nobody takes them any more.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    terminal = stream.isatty()

    def write(data: bytes) -> None:
        if terminal:
            data = "".join(c for c in decoder.decode(data) if c in _KEPT or c.isprintable()).encode()
        try:
            stream.flush()
            stream.buffer.write(data)
            stream.buffer.flush()
        except OSError as error:
            raise OutputClosed(f"the guest's output cannot be written: {error.strerror}") from None

    return write


def write_all(data: bytes, stream: TextIO | None = None) -> None:
    """Write a guest's bytes as `writer` does; to standard output unless told otherwise."""
    if data:
        writer(stream or sys.stdout)(data)


def _read_event(event: bytes) -> Iterator[tuple[str, str]]:
    try:
        lines = event.decode().split("\n")
    except UnicodeDecodeError:
        raise Refused("the stream has an event that is no UTF-8", "malformed_answer") from None
    name, data = "message", []
    for line in lines:
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            name = value
        elif field == "data":
            data.append(value)
    if data:
        yield name, "\n".join(data)
