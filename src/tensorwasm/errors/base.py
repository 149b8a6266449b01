"""The root of the tree, and its four branches: whose fault it is."""

from __future__ import annotations

from typing import ClassVar, Final

MAX_MESSAGE: Final = 2000
"""Longest text of an error, in characters."""

MAX_NAME: Final = 80
"""Longest name that a text quotes, in characters: a guest, a module or a client may have chosen it."""


def plain(text: str, most: int = MAX_MESSAGE) -> str:
    """Return a text as one line that is safe on a terminal and in a log: escaped what does not print, and bounded.

    Text from outside reaches messages through this: names of exports, imports, functions and kernels,
    excerpts, paths.

    Args:
        text: any.
        most: longest result, in characters.
    """
    if len(text) > most:
        text = text[: most - 1] + "…"
    if text.isprintable():
        return text
    shown = "".join(each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in text)
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def quote(name: str) -> str:
    """Return a name from outside, in quotation marks, as messages show it."""
    return repr(plain(name, MAX_NAME))


def quote_all(names: tuple[str, ...] | list[str], most: int = 10) -> str:
    """Return the first of several names, as messages list them; empty without one."""
    shown = ", ".join(plain(name, MAX_NAME) for name in names[:most])
    return f"{shown}, ..." if len(names) > most else shown


class TensorWasmError(Exception):
    """Base of the tree.

    Attributes:
        kind: stable identifier, part of the contract; messages are not.
        http_status: status the HTTP edge answers with.
        exit_code: code the command line exits with.
        retryable: whether the same request may succeed if it is made again. It may have had effects already: only its
            maker knows whether they may happen twice, so nothing here tries again unasked.
    """

    kind: ClassVar[str] = "internal"
    http_status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1
    retryable: ClassVar[bool] = False

    def __init__(self, *args: object) -> None:
        """Keep the text as `plain` makes it."""
        super().__init__(*(plain(each) if isinstance(each, str) else each for each in args))

    @property
    def message(self) -> str:
        """The text for people, without the kind."""
        return str(self.args[0]) if self.args else self.kind


class CallerError(TensorWasmError):
    """The caller's mistake: retrying unchanged cannot help."""

    kind = "invalid_request"
    http_status = 400
    exit_code = 2


class GuestError(TensorWasmError):
    """The guest program's own doing.

    Attributes:
        stdout: what the guest had written until then, where that was captured.
        stderr: likewise.
    """

    stdout: bytes = b""
    stderr: bytes = b""

    kind = "wasm_error"
    http_status = 500


class LimitError(TensorWasmError):
    """Refused for now; the same request may succeed later."""

    kind = "capacity_exhausted"
    http_status = 429
    retryable = True


class HostError(TensorWasmError):
    """This machine or this program."""

    kind = "internal"
