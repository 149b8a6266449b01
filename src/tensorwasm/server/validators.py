"""Entity tags: a client that has an answer already is told so instead of being sent it again.

A tag is made of the answer's own bytes, so it is right whatever has changed. It is weak: the same answer may be sent
compressed or as it is.

Source: RFC 9110, 8.8.3 "ETag", 13.1.2 "If-None-Match", 15.4.5 "304 Not Modified".
"""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any, Final

from tensorwasm.server.exchange import ASIDE

INLINE_BYTES: Final = 256 << 10
"""Longest answer that is hashed on the event loop: 0.3 ms."""

REVALIDATED: Final = ("cache-control", "private, no-cache")
"""Who keeps an answer asks before he uses it again; nobody keeps it for others."""


async def entity_tag(body: bytes) -> str:
    """Return the tag of an answer."""
    if len(body) <= INLINE_BYTES:
        return _tag(body)
    await ASIDE
    return await asyncio.to_thread(_tag, body)


def is_known(headers: Any, tag: str) -> bool:
    """Return whether a request says that it has the answer with a tag already."""
    if "if-none-match" not in headers:
        return False
    given = [each.strip() for line in headers.get_all("if-none-match") for each in line.split(",")]
    return "*" in given or any(each.removeprefix("W/") == tag.removeprefix("W/") for each in given)


def _tag(body: bytes) -> str:
    return f'W/"{hashlib.blake2b(body, digest_size=16).hexdigest()}"'
