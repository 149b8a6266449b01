"""A reader of event streams as the standard says, byte by byte and without any leniency of ours.

Source: WHATWG HTML 9.2.5, 9.2.6.
"""

from __future__ import annotations

import base64
import re
from typing import NamedTuple


class Event(NamedTuple):
    """What a page would be given."""

    name: str
    data: str


def read_events(stream: bytes) -> list[Event]:
    """Interpret an event stream that has ended."""
    text = stream.decode("utf-8", errors="replace").removeprefix("\ufeff")
    lines = re.split("\r\n|\r|\n", text)
    events: list[Event] = []
    name, data = "", ""
    for line in lines[:-1]:  # what no line end follows is not interpreted
        if not line:
            if data:
                events.append(Event(name or "message", data.removesuffix("\n")))
            name, data = "", ""
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            name = value
        elif field == "data":
            data += value + "\n"
    return events


def read_chunks(stream: bytes) -> list[bytes]:
    """Return the chunks of an event stream, by the rule that its documentation gives."""
    decode = {"chunk": str.encode, "chunk-base64": base64.b64decode}
    return [decode[each.name](each.data) for each in read_events(stream) if each.name in decode]
