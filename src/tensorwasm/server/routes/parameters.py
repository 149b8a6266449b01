"""What the handlers of several routes read from a request: pages, numbers, idempotency keys and text fields."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from tensorwasm.errors import CapacityExhausted, DatabaseUnavailable, InvalidArgs, InvalidRequest, NotFound
from tensorwasm.server.http.decoding import decode_base64
from tensorwasm.server.http.routing import HttpRequest, QueryParam
from tensorwasm.service.idempotency import IdempotencyKey, make_key
from tensorwasm.service.pages import CURSOR, DEFAULT_PAGE, MAX_PAGE

LIMIT: Final = QueryParam(
    f"Most records on the page, 1 to {MAX_PAGE}; default {DEFAULT_PAGE}.",
    {"type": "integer", "minimum": 1, "maximum": MAX_PAGE},
)
AFTER: Final = "`next` of the preceding page."
PAGING: Final[Mapping[str, QueryParam]] = {
    "after": QueryParam(AFTER, {"type": "string", "pattern": CURSOR}),
    "limit": LIMIT,
}

UNAVAILABLE: Final = (DatabaseUnavailable, CapacityExhausted)
"""Errors of every route that uses the database."""

STORED: Final = (NotFound, *UNAVAILABLE)
"""Errors of every route that looks for a record."""

_SHORT_BYTES: Final = 64 << 10
"""Longest body that is hashed for an idempotency key on the event loop."""

_SCALARS: Final = frozenset({int, float, str})


def page_limit(request: HttpRequest) -> int:
    """Return how many records a page may have."""
    return query_number(request, "limit", DEFAULT_PAGE, MAX_PAGE, least=1)


def query_number(request: HttpRequest, name: str, usual: int, most: int, least: int = 0) -> int:
    """Return a number of the query as `parse_number` does, or `usual` without one."""
    text = request.query.get(name)
    return usual if text is None else parse_number(name, text, most, least)


def parse_number(name: str, text: str, most: int, least: int = 0) -> int:
    """Return the number that a text holds; raise `InvalidRequest` unless it is from `least` to `most`."""
    digits = text.isascii() and text.isdigit() and len(text) <= max(10, len(str(most)))
    if not digits or not least <= int(text) <= most:
        raise InvalidRequest(f"{name} is a number from {least} to {most}")
    return int(text)


def check_arguments(args: tuple[Any, ...]) -> None:
    """Raise `InvalidArgs` if an argument of a call is neither a number nor a text."""
    for index, value in enumerate(args):
        if type(value) not in _SCALARS:
            raise InvalidArgs(f"argument {index} is neither a number nor a text")


async def decode_optional(encoded: str | None) -> bytes:
    """Decode a base64 field; empty without one."""
    return b"" if encoded is None else await decode_base64(encoded)


async def read_key(request: HttpRequest, operation: str, *parts: str) -> IdempotencyKey | None:
    """Return the key of the header Idempotency-Key, None without one.

    It is for an operation with a body and `parts` besides; raise `InvalidRequest` unless it is 1 to 255 printable ASCII
    characters.
    """
    header = request.headers.get("idempotency-key")
    make = partial(make_key, operation, header, *(part.encode() for part in parts), request.raw)
    return make() if header is None or len(request.raw) < _SHORT_BYTES else await asyncio.to_thread(make)
