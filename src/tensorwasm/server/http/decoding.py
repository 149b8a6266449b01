"""Decodes request bodies: accepted content types, size and fields of JSON, and base64 fields.

Source: RFC 9110, 8.3 "Content-Type", 15.5.16 "415 Unsupported Media Type"; RFC 8259, 8.1: JSON is UTF-8.
"""

from __future__ import annotations

import asyncio
import binascii
import difflib
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from tensorwasm.errors import BodyTooLarge, InvalidBase64, InvalidJson, UnknownField, UnsupportedMediaType
from tensorwasm.server.http.routing import Route

VALUES: Final = 1 << 19
"""Most values in a body's JSON, not counting the contents of its own string fields. The values of 64 MiB of
`[],[],...` would take 1.6 GB, and seconds in which the event loop serves no other request."""

INLINE_BYTES: Final = 32 << 10
"""Longest base64 that is decoded on the event loop, in characters: 20 us."""

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


async def decode_base64(text: str) -> bytes:
    """Decode standard base64, a long text on another thread; raise `InvalidBase64` for anything else."""
    return _decode(text) if len(text) < INLINE_BYTES else await asyncio.to_thread(_decode, text)


def _decode(text: str) -> bytes:
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except ValueError:
        raise InvalidBase64("a field is not base64") from None


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
