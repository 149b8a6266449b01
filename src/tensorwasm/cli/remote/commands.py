"""How the commands of a server are declared, and how their answers are printed: records, and the outcome of a call."""

from __future__ import annotations

import base64
import codecs
import inspect
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Annotated, Any, Concatenate, Final, ParamSpec, TextIO, TypeVar, cast

import typer

from tensorwasm.cli.options import with_parameters, write_bytes
from tensorwasm.cli.output import Output, clean, print_json, print_record, print_table, warn
from tensorwasm.cli.remote.client import Client, ServerOptions, field_of, malformed, text_of
from tensorwasm.errors import InvalidArgs, Refused

P = ParamSpec("P")
T = TypeVar("T")

Show = Callable[[Any, str], None]
"""Prints an answer as text or JSON."""

Limit = Annotated[int, typer.Option(metavar="N", help="Most that are listed.")]

_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,256}")


def client_command(command: Callable[Concatenate[Client, P], T]) -> Callable[..., T]:
    """Return a function of a client as a command, with the options that choose the server."""
    _, *own = inspect.signature(command, eval_str=True).parameters.values()
    shared = inspect.signature(ServerOptions, eval_str=True).parameters

    @wraps(command)
    def run(**values: Any) -> T:
        with Client(ServerOptions(**{name: values.pop(name) for name in shared})) as client:
            return cast("Callable[..., T]", command)(client, **values)

    return with_parameters(run, (*own, *shared.values()))


def checked_id(text: str) -> str:
    """Return an ID or a name that needs no quoting in a path, or raise InvalidArgs."""
    if not _ID.fullmatch(text) or text in {".", ".."}:
        raise InvalidArgs("an ID has letters, digits, '.', '_' and '-' only")
    return text


class CommandGroup:
    """A group of commands for one kind of records of a server; `app` is the group for Typer."""

    def __init__(self, name: str, text: str, argument: object, segment: Callable[[Any], object] = checked_id) -> None:
        """Make a group without commands.

        Args:
            name: name of the group, of the route, and of the field of a page that has the records.
            text: help of the group.
            argument: annotation of the argument that names a record.
            segment: returns such an argument as a segment of a path.
        """
        self.app = typer.Typer(name=name, help=text, no_args_is_help=True)
        self._name = name
        self._argument = argument
        self._segment = segment

    def path(self, record: object) -> str:
        """Return the path of a record."""
        return f"/{self._name}/{self._segment(record)}"

    def command(self, name: str) -> Callable[[Callable[Concatenate[Client, P], T]], Callable[..., T]]:
        """Return a decorator that adds a function of a client as a command."""
        return lambda function: self.app.command(name)(client_command(function))

    def add_list(self, text: str, columns: Sequence[str], to_row: Callable[[Any], Mapping[str, Any]] = dict) -> None:
        """Add the command that lists the records; `to_row` prepares a record for the table."""

        def list_records(client: Client, *, limit: Limit = 1000, output: Output = "text") -> None:
            show_rows(client.list_records(self._name, limit), output, columns, f"(no {self._name})", to_row)

        self._add("list", text, list_records)

    def add_send(self, name: str, text: str, method: str, suffix: str = "") -> None:
        """Add a command that sends a request about a record and prints nothing."""

        def send(client: Client, record: Any) -> None:
            client.call(method, self.path(record) + suffix)

        self._add(name, text, send)

    def add_call(self, name: str, text: str, method: str, show: Show, suffix: str = "") -> None:
        """Add a command that sends a request about a record and prints the answer."""

        def call(client: Client, record: Any, *, output: Output = "text") -> None:
            show(client.call(method, self.path(record) + suffix), output)

        self._add(name, text, call)

    def _add(self, name: str, text: str, function: Callable[..., None]) -> None:
        function.__doc__ = text
        function.__annotations__["record"] = self._argument
        self.command(name)(function)


def show_rows(
    records: Sequence[Mapping[str, Any]],
    output: str,
    columns: Sequence[str],
    empty: str,
    to_row: Callable[[Any], Mapping[str, Any]] = dict,
) -> None:
    """Print records as JSON or as a table, whose rows `to_row` makes."""
    if output == "json":
        print_json(records)
    else:
        print_table([to_row(record) for record in records], columns, empty)


def show_line(answer: object, output: str, form: str = "{id}") -> None:
    """Print an answer as JSON, or a line of text with fields of the answer in place of ``{name}``."""
    if output == "json":
        print_json(answer)
    else:
        print(re.sub(r"\{(\w+)\}", lambda found: text_of(answer, found[1]), form))


def show_record(
    answer: Any,
    output: str,
    fields: Sequence[str],
    to_row: Callable[[Any], Mapping[str, Any]] = dict,
    file: TextIO | None = None,
) -> None:
    """Print a record as JSON, or as fields of what `to_row` makes of it, the first of which it must have."""
    if output == "json":
        print_json(answer)
    else:
        field_of(answer, fields[0])
        print_record(to_row(answer), fields, file)


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
