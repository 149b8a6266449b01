"""JSON of requests: which content types count, how much of it there may be, and which fields a route does not take.

Source: RFC 9110, 8.3 "Content-Type", 15.5.16 "415 Unsupported Media Type"; RFC 8259, 8.1: JSON is UTF-8.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from tensorwasm.errors import BodyTooLarge, InvalidJson, UnknownField, UnsupportedMediaType
from tensorwasm.server.routing import Route

VALUES: Final = 1 << 19
"""Most values of a body's JSON, texts of its own fields apart. Those of 64 MiB of `[],[],...` would take 1.6 GB, and
seconds in which nobody else is served."""

JSON: Final = "application/json"
BINARY: Final = "application/octet-stream"

_MAX_SHOWN: Final = 64
_CHARSETS: Final = frozenset({"utf-8", "utf8", "us-ascii"})
_CHARSET: Final = re.compile(r"""charset\s*=\s*"?([^\s;"]*)""", re.IGNORECASE)
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.*?)`(?: - at `[^`]*`)?", re.DOTALL)


class JsonReader:
    """Reads JSON of one type.

    Args:
        wanted: a msgspec struct.
    """

    def __init__(self, wanted: Any) -> None:
        self._decode = msgspec.json.Decoder(wanted).decode
        self._outline = _outline(wanted)
        self._names = sorted(set(_field_names(msgspec.inspect.type_info(wanted))))

    def read(self, text: bytes | str) -> Any:
        """Return what a text stands for. Of a key that is there twice the last one counts.

        Raises:
            UnknownField: it has a field that the type has not, and the type forbids that.
            InvalidJson: it is not JSON of the type.
            BodyTooLarge: it has more than `VALUES` values.
        """
        try:
            if len(text) > VALUES:
                _require_few_values(text if isinstance(text, bytes) else text.encode(), self._outline)
            return self._decode(text)
        except msgspec.ValidationError as error:
            raise self._refusal(str(error)) from None
        except (msgspec.DecodeError, UnicodeError):
            raise InvalidJson("the body is not JSON") from None
        except RecursionError:
            raise InvalidJson("the body is nested too deeply") from None

    def _refusal(self, text: str) -> InvalidJson:
        unknown = _UNKNOWN.fullmatch(text)
        if unknown is None:
            return InvalidJson(f"the body is not what this route takes: {text}")
        name = unknown[1][:_MAX_SHOWN]
        near = difflib.get_close_matches(name, self._names, 1)
        return UnknownField(f"there is no field {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))


def decoder(route: Route) -> Callable[[bytes, str | None], Any]:
    """Return what turns a route's bodies, given with their content type, into what its handler takes.

    It raises `UnsupportedMediaType` for a body of a type that the route does not take, and what `JsonReader.read` does.
    """
    wanted = route.request
    if wanted is None:
        return lambda body, _: body or None
    if wanted is bytes:
        return _read_bytes
    read, uploads, optional = JsonReader(wanted).read, route.uploads, route.optional_body

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
    """Return what a Content-Type says but for its parameters, in lower case; empty for nothing."""
    return header.partition(";")[0].strip().lower() if header is not None else ""


def _read_bytes(body: bytes, kind: str | None) -> bytes | None:
    if body and kind is not None and content_type(kind) != BINARY:
        raise UnsupportedMediaType(f"this route takes {BINARY}, not {kind[:_MAX_SHOWN]!r}")
    return body or None


def _require_json(kind: str | None, uploads: tuple[str, ...]) -> None:
    """Hold the content type of a body that is there against what is JSON.

    Raises:
        UnsupportedMediaType: it says something else, or nothing.
    """
    taken = ", ".join((JSON, *uploads))
    if content_type(kind) != JSON:
        shown = "a body without a Content-Type" if kind is None else repr(kind[:_MAX_SHOWN])
        raise UnsupportedMediaType(f"this route takes {taken}, not {shown}")
    charset = _CHARSET.search(kind or "")
    if charset is not None and charset[1].lower() not in _CHARSETS:
        raise UnsupportedMediaType(f"JSON is UTF-8, not {charset[1][:_MAX_SHOWN]!r}")


def _field_names(kind: Any) -> Iterator[str]:
    """Yield the names of the fields of a type, and of those within it, which are no types of themselves."""
    for field in getattr(kind, "fields", ()):
        yield field.encode_name
        yield from _field_names(field.type)
    for each in (*getattr(kind, "types", ()), *filter(None, (getattr(kind, "item_type", None),))):
        yield from _field_names(each)


def _outline(wanted: Any) -> msgspec.json.Decoder[Any]:
    """Return what decodes a body to its fields, each as it stands there."""
    names = [each.encode_name for each in msgspec.structs.fields(wanted)]
    return msgspec.json.Decoder(msgspec.defstruct("Outline", [(name, msgspec.Raw, msgspec.Raw()) for name in names]))


def _require_few_values(body: bytes, outline: msgspec.json.Decoder[Any]) -> None:
    """Hold a long body against `VALUES`, before anything is made of it.

    Raises:
        BodyTooLarge: it has more.
        msgspec.DecodeError: it is not JSON.
    """
    count = _count_values(body)
    if count > VALUES:
        fields = [bytes(each) for each in msgspec.structs.astuple(outline.decode(body))]
        if count - sum(_count_values(each) for each in fields if each.startswith(b'"')) > VALUES:
            raise BodyTooLarge(f"the body has more than {VALUES} values")


def _count_values(text: bytes) -> int:
    """Return how many values JSON has at the most: what is in its texts counts too."""
    return 1 + text.count(b",") + text.count(b"[") + text.count(b"{")
