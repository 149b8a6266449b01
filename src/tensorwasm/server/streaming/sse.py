"""Server-sent events that carry any bytes exactly.

An event ``chunk`` carries a chunk as text, if it is text that every reader of events returns unchanged; an event
``chunk-base64`` carries it in base64. So the chunks decode to the guest's bytes wherever it divided its characters.

Source: WHATWG HTML 9.2.5, 9.2.6 (parsing and interpreting an event stream); RFC 4648 4 (base64).
"""

from __future__ import annotations

import base64
import re
from typing import Final

MEDIA_TYPE: Final = "text/event-stream"
CONTENT_TYPE: Final = f"{MEDIA_TYPE}; charset=utf-8"
HEADERS: Final = (("cache-control", "no-store"), ("x-accel-buffering", "no"))
"""Headers that keep proxies from caching or buffering events."""

KEEP_ALIVE: Final = b": keep-alive\n\n"
"""A comment, so that no side takes a quiet connection for a dead one."""

KEEP_ALIVE_S: Final = 15.0
"""Seconds without output after which it is sent."""

# An event stream reads CR as LF. The standard carries NUL and the other characters here, but some readers take them for
# line ends too (as Python's splitlines does).
_UNSAFE: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f\x85\u2028\u2029]")


def wanted(accept: str | None) -> bool:
    """Return whether an Accept header has the media type of event streams."""
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
