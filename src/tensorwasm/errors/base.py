"""The root of the tree, and its four branches by cause."""

from __future__ import annotations

from typing import ClassVar, Final

MAX_MESSAGE: Final = 2000
"""Longest message of an error, in characters."""

MAX_NAME: Final = 80
"""Longest quoted name in a message, in characters: a guest, a module or a client may have chosen it."""


def plain(text: str, most: int = MAX_MESSAGE) -> str:
    """Return a text from outside, such as a name or path, as one line of at most ``most`` characters for messages.

    Characters that do not print are escaped, so that the line is safe on a terminal and in a log.
    """
    if len(text) > most:
        text = text[: most - 1] + "…"
    if text.isprintable():
        return text
    shown = "".join(each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in text)
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def quote(name: str) -> str:
    """Return a name from outside in quotation marks, for messages."""
    return repr(plain(name, MAX_NAME))


def quote_all(names: tuple[str, ...] | list[str], most: int = 10) -> str:
    """Return the first names of a list, for messages."""
    shown = ", ".join(plain(name, MAX_NAME) for name in names[:most])
    return f"{shown}, ..." if len(names) > most else shown


class TensorWasmError(Exception):
    """Base of the tree.

    Attributes:
        kind: stable identifier, part of the contract; messages are not.
        http_status: of the HTTP response.
        exit_code: of the command line.
        retryable: whether the same request may succeed later. It may have had effects already, and only the caller
            knows whether these may happen twice; so nothing here retries on its own.
    """

    kind: ClassVar[str] = "internal"
    http_status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1
    retryable: ClassVar[bool] = False

    def __init_subclass__(
        cls,
        *,
        kind: str | None = None,
        http_status: int | None = None,
        exit_code: int | None = None,
        retryable: bool | None = None,
    ) -> None:
        """Set the attributes that are given in the head of a subclass; it inherits the others."""
        super().__init_subclass__()
        given = {"kind": kind, "http_status": http_status, "exit_code": exit_code, "retryable": retryable}
        for name, value in given.items():
            if value is not None:
                setattr(cls, name, value)

    def __init__(self, *args: object) -> None:
        super().__init__(*(plain(each) if isinstance(each, str) else each for each in args))

    @property
    def message(self) -> str:
        """The text for people, without the kind."""
        return str(self.args[0]) if self.args else self.kind


class CallerError(TensorWasmError, kind="invalid_request", http_status=400, exit_code=2):
    """The caller's mistake: an unchanged retry cannot succeed."""


class GuestError(TensorWasmError, kind="wasm_error", http_status=500):
    """Caused by the guest program; ``stdout`` and ``stderr`` are what it had written, if that was captured."""

    stdout: bytes = b""
    stderr: bytes = b""


class LimitError(TensorWasmError, kind="capacity_exhausted", http_status=429, retryable=True):
    """Refused for now; the same request may succeed later."""


class HostError(TensorWasmError, kind="internal"):
    """Caused by this machine or this program."""
