"""Printing the outcome of a call: what the guest wrote, and its results."""

from __future__ import annotations

import base64
import codecs
import json
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final, TextIO

from tensorwasm.cli.options import write_bytes
from tensorwasm.cli.output import clean, print_json, warn
from tensorwasm.cli.remote.client import field_of, malformed
from tensorwasm.errors import Refused

_LAYOUT: Final = "\n\t"
"""Control characters that a terminal gets."""


def show_outcome(outcome: Mapping[str, Any], output: str) -> None:
    """Print the outcome of a call as JSON, or as output and results."""
    result = field_of(outcome, "result")
    if output == "json":
        print_json(outcome)
    elif not (show_written(outcome) and result == "ok"):
        print(format_result(result))


def show_written(outcome: Mapping[str, Any]) -> bool:
    """Write the output of a guest; return whether there was any."""
    wrote = False
    for name, stream in (("stdout", sys.stdout), ("stderr", sys.stderr), ("output", sys.stdout)):
        part = outcome.get(name)
        data = _bytes_of(part) if isinstance(part, Mapping) else b""
        if data:
            writer(stream)(data)
            wrote = True
        if outcome.get(f"{name}_truncated") is True:
            warn(f"the guest wrote more to {name} than the server keeps: the rest is missing")
    return wrote


def _bytes_of(part: Mapping[str, Any]) -> bytes:
    if "base64" in part:
        return decode_base64(part["base64"], "the server's answer has output")
    return str(part.get("text", "")).encode()


def decode_base64(text: Any, what: str) -> bytes:
    """Return the bytes that base64 stands for, or raise Refused with a message about `what`."""
    try:
        return base64.b64decode(text, validate=True)
    except (TypeError, ValueError):  # binascii.Error is a ValueError
        raise malformed(f"{what} that is not base64") from None


def format_result(result: object) -> str:
    """Return the results of a call as text: ok, a bare value or a JSON array."""
    if isinstance(result, str):
        return clean(result)
    return clean(json.dumps(result[0] if isinstance(result, list) and len(result) == 1 else result))


def failure_of(answer: object, kind: str = "refused", message: object = "") -> Refused:
    """Return the error that an answer describes, with a kind and message for one that names none."""
    fields = answer if isinstance(answer, Mapping) else {}
    kind = fields.get("kind") or fields.get("reason") or kind
    return Refused(clean(fields.get("message", message)), clean(kind), left=fields)


def writer(stream: TextIO) -> Callable[[bytes], None]:
    """Return a function that writes a guest's bytes at once, to a terminal without control characters."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    terminal = stream.isatty()

    def write(data: bytes) -> None:
        if terminal:
            data = "".join(c for c in decoder.decode(data) if c in _LAYOUT or c.isprintable()).encode()
        write_bytes(stream, data)

    return write
