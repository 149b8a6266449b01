"""How the commands of a server are declared: the options they share, and tables of commands for records."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Annotated, Any, Concatenate, Final, ParamSpec, TextIO, TypeVar, cast

import typer

from tensorwasm.cli.options import with_parameters
from tensorwasm.cli.output import Output, print_json, print_record, print_table
from tensorwasm.cli.remote.client import Client, ServerOptions, field_of, text_of
from tensorwasm.errors import InvalidArgs

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
