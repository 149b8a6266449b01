"""What handlers read from a request: its decoded body, and numbers, pages and keys of its query and head.

Source: RFC 9110, 8.3 "Content-Type", 15.5.16 "415 Unsupported Media Type"; RFC 8259, 8.1: JSON is UTF-8.
"""

from __future__ import annotations

import asyncio
import binascii
import difflib
import io
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import msgspec

from tensorwasm.errors import (
    BodyTooLarge,
    CapacityExhausted,
    DatabaseUnavailable,
    InvalidArgs,
    InvalidBase64,
    InvalidJson,
    InvalidRequest,
    NotFound,
    UnknownField,
    UnsupportedMediaType,
)
from tensorwasm.server.http.routing import HttpRequest, QueryParam, Route
from tensorwasm.service.idempotency import IdempotencyKey, make_key
from tensorwasm.service.pages import CURSOR, DEFAULT_PAGE, MAX_PAGE

VALUES: Final = 1 << 19
"""Most values in a body's JSON, not counting the contents of its own string fields. The values of 64 MiB of
`[],[],...` would take 1.6 GB, and seconds in which the event loop serves no other request."""

INLINE_BYTES: Final = 32 << 10
"""Longest base64 that is decoded on the event loop, in characters: 20 us."""

_PIECE_BYTES: Final = 256 << 10
"""Of base64 that is decoded at a time: a multiple of four characters."""

_PADDING: Final = ("=", ord("="))

JSON: Final = "application/json"
BINARY: Final = "application/octet-stream"

_MAX_SHOWN: Final = 64
_CHARSETS: Final = frozenset({"utf-8", "utf8", "us-ascii"})
_CHARSET: Final = re.compile(r"""charset\s*=\s*"?([^\s;"]*)""", re.IGNORECASE)
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.*?)`(?: - at `[^`]*`)?", re.DOTALL)


class JsonDecoder:
    """Decodes JSON of one msgspec struct."""

    def __init__(self, wanted: Any) -> None:
        self._decode = msgspec.json.Decoder(wanted).decode
        self._names = sorted(set(_field_names(msgspec.inspect.type_info(wanted))))
        fields = [(each.encode_name, msgspec.Raw, msgspec.Raw()) for each in msgspec.structs.fields(wanted)]
        self._outline = msgspec.json.Decoder(msgspec.defstruct("Outline", fields))

    def read(self, text: bytes | str) -> Any:
        """Return the decoded value. Of a repeated key the last one counts.

        Raises:
            InvalidJson: it is not JSON of the type, or, as `UnknownField`, has a field that the type forbids.
            BodyTooLarge: it has more than `VALUES` values.
        """
        try:
            if len(text) > VALUES:
                self._require_few_values(text if isinstance(text, bytes) else text.encode())
            return self._decode(text)
        except msgspec.ValidationError as error:
            raise self._refusal(str(error)) from None
        except (msgspec.DecodeError, UnicodeError):
            raise InvalidJson("the body is not JSON") from None
        except RecursionError:
            raise InvalidJson("the body is nested too deeply") from None

    def _require_few_values(self, body: bytes) -> None:
        """Check a long body against `VALUES` before anything is built from it. The fields' own texts do not count."""
        count = _count_values(body)
        if count > VALUES:
            fields = [bytes(each) for each in msgspec.structs.astuple(self._outline.decode(body))]
            if count - sum(_count_values(each) for each in fields if each.startswith(b'"')) > VALUES:
                raise BodyTooLarge(f"the body has more than {VALUES} values")

    def _refusal(self, text: str) -> InvalidJson:
        unknown = _UNKNOWN.fullmatch(text)
        if unknown is None:
            return InvalidJson(f"the body does not fit this route: {text}")
        name = unknown[1][:_MAX_SHOWN]
        near = difflib.get_close_matches(name, self._names, 1)
        return UnknownField(f"there is no field {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))


def decoder(route: Route) -> Callable[[bytes, str | None], Any]:
    """Return a function that decodes a route's bodies, given with their content type, for its handler.

    It raises `UnsupportedMediaType` for other content types, and what `JsonDecoder.read` raises.
    """
    wanted = route.request
    if wanted is None:
        return lambda body, _: body or None
    if wanted is bytes:
        return _read_bytes
    read, uploads, optional = JsonDecoder(wanted).read, route.uploads, route.optional_body

    def decode(body: bytes, kind: str | None) -> Any:
        if not body and optional:
            return wanted()
        if uploads and content_type(kind) in uploads:
            return None
        if body and kind != JSON:
            _require_json(kind, uploads)
        return read(body)

    return decode


def content_type(header: str | None) -> str:
    """Return a Content-Type without its parameters, in lower case; empty without one."""
    return header.partition(";")[0].strip().lower() if header is not None else ""


async def decode_base64(text: str | memoryview) -> bytes:
    """Decode standard base64, a long text on another thread; raise `InvalidBase64` for anything else.

    Of a body's long texts there are views of ASCII (`tensorwasm.server.http.long_json`).
    """
    return _decode(text) if len(text) < INLINE_BYTES else await asyncio.to_thread(_decode, text)


def _decode(text: str | memoryview) -> bytes:
    whole = io.BytesIO()  # hands over its buffer in the end
    try:
        for start in range(0, len(text), _PIECE_BYTES):  # the GIL is free between pieces
            piece = text[start : start + _PIECE_BYTES]
            if start + len(piece) < len(text) and piece[-1] in _PADDING:
                raise ValueError("there is more behind the padding")  # noqa: TRY301 - as the decoder does
            whole.write(binascii.a2b_base64(piece, strict_mode=True))
    except ValueError:
        raise InvalidBase64("a field is not base64") from None
    return whole.getvalue()


def _read_bytes(body: bytes, kind: str | None) -> bytes | None:
    if body and kind is not None and content_type(kind) != BINARY:
        raise UnsupportedMediaType(f"this route takes {BINARY}, not {kind[:_MAX_SHOWN]!r}")
    return body or None


def _require_json(kind: str | None, uploads: tuple[str, ...]) -> None:
    """Check the content type of a body that is not empty, and its charset."""
    if content_type(kind) != JSON:
        shown = "a body without a Content-Type" if kind is None else repr(kind[:_MAX_SHOWN])
        raise UnsupportedMediaType(f"this route takes {', '.join((JSON, *uploads))}, not {shown}")
    charset = _CHARSET.search(kind or "")
    if charset is not None and charset[1].lower() not in _CHARSETS:
        raise UnsupportedMediaType(f"JSON is UTF-8, not {charset[1][:_MAX_SHOWN]!r}")


def _field_names(kind: Any) -> Iterator[str]:
    """Yield the names of the fields of a type and of the types within it, none of which contains itself."""
    for field in getattr(kind, "fields", ()):
        yield field.encode_name
        yield from _field_names(field.type)
    for each in (*getattr(kind, "types", ()), *filter(None, (getattr(kind, "item_type", None),))):
        yield from _field_names(each)


def _count_values(text: bytes) -> int:
    """Return an upper bound of the number of JSON values: the contents of strings count too."""
    return 1 + text.count(b",") + text.count(b"[") + text.count(b"{")


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
