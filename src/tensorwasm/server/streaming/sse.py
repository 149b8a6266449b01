"""Server-sent events that carry any bytes exactly.

An event ``chunk`` has the chunk as its data where that is text which every reader of events gives back as it was; an
event ``chunk-base64`` has it in base64. So the bytes of a chunk are the UTF-8 of the one and the decoding of the other,
and those of all chunks in turn are what the guest sent, wherever it divided its characters.

Source: WHATWG HTML 9.2.5, 9.2.6 (parsing and interpreting an event stream); RFC 4648 4 (base64).
"""

from __future__ import annotations

import base64
import re
from typing import Final

MEDIA_TYPE: Final = "text/event-stream"

KEEP_ALIVE: Final = b": keep-alive\n\n"
"""A comment, so that neither end nor anything between them takes a quiet connection for a dead one."""

KEEP_ALIVE_S: Final = 15.0
"""Seconds of quiet after which it is sent."""

# An event stream takes CR for LF. NUL and the other characters that some readers take for the end of a line too (as
# Python's splitlines does) are carried by the standard, but not by all who read.
_UNSAFE: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f\x85\u2028\u2029]")


def wanted(accept: str | None) -> bool:
    """Return whether one of the types of an Accept header is that of event streams."""
    return any(part.strip().lower().startswith(MEDIA_TYPE) for part in (accept or "").split(","))


def encode_event(name: str, data: str) -> bytes:
    """Return one event; its data has no line break but LF."""
    lines = "".join(f"data: {line}\n" for line in data.split("\n"))
    return f"event: {name}\n{lines}\n".encode()


def encode_chunk(chunk: bytes) -> bytes:
    """Return the event of one chunk, which is not empty."""
    try:
        text = chunk.decode()
    except UnicodeDecodeError:
        text = None
    if text is None or _UNSAFE.search(text):
        return encode_event("chunk-base64", base64.b64encode(chunk).decode("ascii"))
    return encode_event("chunk", text)
