"""JSON bodies with a long base64 text, which would be decoded in one step of tens of milliseconds.

The text is cut out in slices before the rest is decoded, and stays where it is in the body until
`tensorwasm.server.http.decoding.decode_base64` decodes it piece by piece. Only the plain case is treated so: a field
of the outermost object whose name ends with ``_b64``, and whose text has no escapes. All else is decoded at once.

Source: RFC 8259, 4 "Objects", 7 "Strings".
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

from tensorwasm.server.exchange import BECOME_TASK
from tensorwasm.server.http.decoding import JSON, content_type
from tensorwasm.server.http.long_work import run_slice

LONG_BYTES: Final = 128 << 10
"""Shortest text that is cut out; a shorter body is decoded at once."""

MOST_STRINGS: Final = 256
"""Strings that are looked at; a body with more before its text is decoded at once."""

_NEAR_BYTES: Final = 64 << 10
"""What is looked through without waiting for a slice."""

_STEP_BYTES: Final = 1 << 20
_KEY: Final = re.compile(rb'"([a-z_]{1,32}_b64)"\s*:\s*\Z')
_KEY_BYTES: Final = 128


class _Text(NamedTuple):
    """A long text: the name of its field, and where it is in the body, without the quotes."""

    field: str
    start: int
    end: int


async def decode_long(decode: Callable[[bytes, str | None], Any], body: bytes, kind: str | None) -> Any:
    """Return what a route's decoder makes of a long body, with its long texts as memory views; raise what it raises."""
    if content_type(kind) != JSON:
        return decode(body, kind)
    await BECOME_TASK
    texts = await _find_texts(body)
    if not texts:
        return decode(body, kind)
    parts, at = list[bytes](), 0
    for index, text in enumerate(texts):
        parts += [body[at : text.start], _stand_in(index).encode()]
        at = text.end
    decoded = decode(b"".join((*parts, body[at:])), kind)
    for index, text in enumerate(texts):
        if getattr(decoded, text.field, None) == _stand_in(index):
            setattr(decoded, text.field, memoryview(body)[text.start : text.end])
    return decoded


def _stand_in(index: int) -> str:
    """Return what stands for a text while the rest is decoded; it is no base64."""
    return f"-{index}-"


async def _find_texts(body: bytes) -> list[_Text]:
    """Return the long texts of a body; nothing if it is not as plain as is understood here."""
    texts, depth, at = list[_Text](), 0, 0
    for _ in range(MOST_STRINGS):
        start = await _find(body, b'"', at, len(body))
        if start < 0:
            return texts
        if start - at > LONG_BYTES:
            return []
        between = body[at:start]
        depth += between.count(b"{") + between.count(b"[") - between.count(b"}") - between.count(b"]")
        end = await _find(body, b'"', start + 1, len(body))
        if end < 0 or await _find(body, b"\\", start + 1, end) >= 0:
            return []
        if end - start > LONG_BYTES and depth == 1:
            key = _KEY.search(body, max(0, start - _KEY_BYTES), start)
            if key is not None:
                texts.append(_Text(key[1].decode(), start + 1, end))
        at = end + 1
    return []


async def _find(body: bytes, byte: bytes, at: int, end: int) -> int:
    """Return where a byte is next, before an end; -1 if it is not."""
    found = body.find(byte, at, min(at + _NEAR_BYTES, end))
    for begin in range(at + _NEAR_BYTES, end, _STEP_BYTES):
        if found >= 0:
            break
        found = await run_slice(partial(body.find, byte, begin, min(begin + _STEP_BYTES, end)))
    return found
