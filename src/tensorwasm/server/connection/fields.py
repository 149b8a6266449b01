"""Fields of HTTP/1.1 messages: those of a request, found by name, and those of an answer, written.

Source: RFC 9110 5.1 (names are case-insensitive), 5.5 (values), 6.6.1 (Date); RFC 9112 4 (status line), 5 (fields).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from email.utils import formatdate
from http import HTTPStatus
from typing import Final, overload

from tensorwasm.errors import InternalError

RELAYED_CLIENT: Final = "x-tensorwasm-relayed-client"
RELAYED_CERTIFICATE: Final = "x-tensorwasm-relayed-certificate"
"""Where another process of this server accepted the connection: the peer's address, and whom its certificate names,
with percent signs. Heeded on the private socket alone."""

Fields = Sequence[tuple[str, str]]

_KNOWN_NAMES: Final = 1024
_KNOWN_BYTES: Final = 64
"""How many names are kept in lower case, and how long each may be: clients send few, again and again."""

_names: Final[dict[bytes, str]] = {}


class RequestFields:
    """The fields of one request, by names in any case. Values are what a client sent, read as Latin-1."""

    __slots__ = ("_more", "_values")

    def __init__(self) -> None:
        """Have none."""
        self._values: dict[str, bytes] = {}
        self._more: list[tuple[str, bytes]] = []

    def add(self, name: bytes, value: bytes) -> None:
        """Append a field, whose name is a token in ASCII."""
        known = _names.get(name)
        if known is None:
            known = name.decode("ascii").lower()
            if len(_names) < _KNOWN_NAMES and len(name) <= _KNOWN_BYTES:
                _names[name] = known
        if known in self._values:
            self._more.append((known, value))
        else:
            self._values[known] = value

    @overload
    def get(self, name: str) -> str | None: ...
    @overload
    def get(self, name: str, default: str) -> str: ...
    def get(self, name: str, default: str | None = None) -> str | None:
        """Return the value of the first field of a name."""
        found = self._first(name)
        return default if found is None else found.decode("latin-1")

    def get_all(self, name: str) -> list[str]:
        """Return the values of all fields of a name, in order."""
        found, lower = self._first(name), name.lower()
        if found is None:
            return []
        return [found.decode("latin-1"), *(value.decode("latin-1") for each, value in self._more if each == lower)]

    def repeated(self, names: frozenset[str]) -> str | None:
        """Return one of some names that occurs more than once, None if none does."""
        if not self._more:
            return None
        return next((name for name, _ in self._more if name in names), None)

    def pairs(self) -> list[tuple[str, str]]:
        """Return all fields; those of one name are in order."""
        fields = [*self._values.items(), *self._more]
        return [(name, value.decode("latin-1")) for name, value in fields]

    def __contains__(self, name: str) -> bool:
        return self._first(name) is not None

    def _first(self, name: str) -> bytes | None:
        found = self._values.get(name)
        return found if found is not None or name.islower() else self._values.get(name.lower())


_STATUS: Final = {each.value: b"HTTP/1.1 %d %b\r\n" % (each.value, each.phrase.encode()) for each in HTTPStatus}


_dates: Final = [(0, b"")]
"""The field Date, made once a second, and its second."""


def write_fields(fields: Fields) -> bytes:
    """Return the lines of some fields; raise `InternalError` if one has a line break, or is not ASCII."""
    lines = "".join([f"{name}: {value}\r\n" for name, value in fields])
    if lines.count("\r") != len(fields) or lines.count("\n") != len(fields) or not lines.isascii():
        raise InternalError("a field of the reply's head has a line break, or is not ASCII")
    return lines.encode("ascii")


def write_head(status: int, lines: bytes, own: bytes, body: bytes = b"") -> bytes:
    """Return the head of an answer, with Date, and its body; lines are its fields', and ``own`` the connection's."""
    now_s = int(time.time())
    at_s, date = _dates[0]
    if now_s != at_s:
        date = f"date: {formatdate(now_s, usegmt=True)}\r\n".encode("ascii")
        _dates[0] = now_s, date
    return b"%b%b%b%b\r\n%b" % (_STATUS[status], date, lines, own, body)
