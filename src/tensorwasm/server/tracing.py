"""What a request is called: as its client calls it, else a UUID; and the trace that its client says it belongs to.

Source: W3C Trace Context, 3.2 "traceparent Header"; RFC 9562, 5.4 "UUID Version 4".
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from itertools import count
from typing import Final

_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:=@+~-]{0,127}", re.ASCII)
_TRACEPARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?", re.ASCII)
_NO_TRACE: Final = "0" * 32
_NO_PARENT: Final = "0" * 16


def request_ids() -> Callable[[], str]:
    """Return a source of UUIDs, one for each call: 74 random bits of its own, and a number that counts.

    They tell requests apart; they are no secrets. Made so because a request has no time for the system's random bytes.
    """
    start = secrets.token_hex(10)
    prefix = f"{start[:8]}-{start[8:12]}-4{start[12:15]}-{secrets.choice('89ab')}{start[15:18]}-"
    numbers = count(secrets.randbits(40))
    return lambda: f"{prefix}{next(numbers) & 0xFFFFFFFFFFFF:012x}"


def own_request_id(given: str | None) -> str:
    """Return what a client calls its request; empty if it says nothing, or what no path and no log should have."""
    return given if given is not None and _REQUEST_ID.fullmatch(given) else ""


def trace_id(traceparent: str | None) -> str:
    """Return the 32 hex digits of the trace that a header names; empty without one, or if it is not as it must be."""
    if traceparent is None:
        return ""
    found = _TRACEPARENT.fullmatch(traceparent)
    if found is None:
        return ""
    version, trace, parent, more = found.groups()
    if version == "ff" or (version == "00" and more) or trace == _NO_TRACE or parent == _NO_PARENT:
        return ""
    return trace
