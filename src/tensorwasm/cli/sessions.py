"""`tensor-wasm sessions`: instances of a server that several calls share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from tensorwasm.cli.answers import Limit, rows_of, text_of
from tensorwasm.cli.client import Client, client_command
from tensorwasm.cli.deploy import encode
from tensorwasm.cli.functions import checked_function, checked_id
from tensorwasm.cli.invoke import (
    REFERENCE,
    Args,
    Export,
    Input,
    Timeout,
    call_body,
    patience_s,
    read_input,
    show_outcome,
)
from tensorwasm.cli.run import read_variables
from tensorwasm.cli.showing import Output, show_json, show_table

SHOWN: Final = ("id", "status", "calls", "saved_calls", "used_unix_ms", "version", "function_id")

app = typer.Typer(name="sessions", help="Sessions of a server: instances that calls share.", no_args_is_help=True)

Id = Annotated[str, typer.Argument(metavar="ID", help="The session.")]


@app.command("open")
@client_command
def open_session(
    client: Client,
    function: Annotated[str, typer.Argument(metavar="FUNCTION", help=REFERENCE)],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="ARG", help="After --: arguments that the guest sees as its argv.")
    ] = None,
    *,
    given: Annotated[
        Path | None,
        typer.Option("--input", metavar="FILE", help="What calls read with read-input unless they bring their own."),
    ] = None,
    env: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="A variable the guest sees.")] = None,
    output: Output = "text",
) -> None:
    """Open a session, and print its ID."""
    said = {
        "function": checked_function(function),
        "input_b64": None if given is None else encode(read_input(given)),
        "argv": [function, *arguments] if arguments else None,
        "env": read_variables(env) if env else None,
    }
    made = client.call("POST", "/sessions", {name: value for name, value in said.items() if value is not None})
    if output == "json":
        show_json(made)
    else:
        print(text_of(made, "id"))


@app.command("list")
@client_command
def list_sessions(client: Client, *, limit: Limit = 1000, output: Output = "text") -> None:
    """List sessions, oldest first."""
    rows = rows_of(client, "/sessions", "sessions", limit)
    if output == "json":
        show_json(rows)
    else:
        show_table(rows, SHOWN, "(no sessions)")


@app.command()
@client_command
def call(
    client: Client,
    session: Id,
    *,
    export: Export = None,
    args: Args = "[]",
    given: Input = None,
    timeout: Timeout = None,
    durable: Annotated[
        bool, typer.Option("--durable", help="Wait until the state after the call is saved as well.")
    ] = False,
    output: Output = "text",
) -> None:
    """Call a session; what the call leaves is there for the next one."""
    body = call_body(export, args, given, timeout) | ({"durable": True} if durable else {})
    path = f"/sessions/{checked_id(session)}/invoke"
    show_outcome(client.call("POST", path, body, timeout=patience_s(timeout)), output)


@app.command()
@client_command
def save(client: Client, session: Id, *, output: Output = "text") -> None:
    """Save a session now, and print the ID of the snapshot that is kept of it."""
    made = client.call("POST", f"/sessions/{checked_id(session)}/snapshot")
    if output == "json":
        show_json(made)
    else:
        print(text_of(made, "id"))


@app.command()
@client_command
def close(client: Client, session: Id) -> None:
    """End a session for good, with what runs and waits in it."""
    client.call("DELETE", f"/sessions/{checked_id(session)}")
