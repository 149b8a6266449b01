"""`tensor-wasm functions`: see functions of a server, give them versions, names and aliases, take them away."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import quote

import typer

from tensorwasm.cli.answers import Limit, field_of, rows_of, text_of
from tensorwasm.cli.client import Client, client_command
from tensorwasm.cli.deploy import Env, Grant, Memory, Model, Timeout, Warm, encode, read_module, read_options
from tensorwasm.cli.showing import Output, show_json, show_record, show_table
from tensorwasm.errors import InvalidArgs

MAX_VERSIONS_SHOWN: Final = 1000
MAX_REFERENCE: Final = 256
"""Longest segment of a path that a server takes, in characters."""

_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,256}")

app = typer.Typer(name="functions", help="Functions of a server: see, change and delete them.", no_args_is_help=True)

Function = Annotated[str, typer.Argument(metavar="FUNCTION", help="The function: its ID or name.")]


@app.command("list")
@client_command
def list_functions(client: Client, *, limit: Limit = 1000, output: Output = "text") -> None:
    """List functions, oldest first."""
    rows = rows_of(client, "/functions", "functions", limit)
    if output == "json":
        show_json(rows)
    else:
        show_table(rows, ("id", "current", "updated_unix_ms", "name"), "(no functions)")


@app.command()
@client_command
def show(client: Client, function: Function, *, output: Output = "text") -> None:
    """Show a function with its versions and aliases."""
    path = function_path(function)
    found = {
        **_mapping(client.call("GET", path)),
        "versions": rows_of(client, f"{path}/versions", "versions", MAX_VERSIONS_SHOWN),
    }
    if output == "json":
        show_json(found)
        return
    show_record(found, ("id", "name", "tenant_id", "current", "created_unix_ms", "updated_unix_ms"))
    show_table(found["versions"], ("version", "module_bytes", "created_unix_ms", "module_hash"), "(no versions)")
    for alias in found.get("aliases") or []:
        print(f"{text_of(alias, 'alias')} -> {text_of(alias, 'version')}")


@app.command()
@client_command
def update(
    client: Client,
    function: Function,
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="A module for a new version; - for stdin.")
    ] = None,
    *,
    name: Annotated[str | None, typer.Option(help="Another name.")] = None,
    current: Annotated[
        int | None, typer.Option(metavar="VERSION", help="Call this version from now on, and change nothing else.")
    ] = None,
    grant: Grant = None,
    memory: Memory = None,
    timeout: Timeout = None,
    env: Env = None,
    warm: Warm = None,
    model: Model = None,
    output: Output = "text",
) -> None:
    """Give a function a new version, other options or another name, or go back to an earlier version.

    Options that are not said are the server's usual ones, if any is said.
    """
    options = read_options(grant, memory, timeout, env, warm, model)
    said = {"name": name, "wasm_b64": encode(read_module(file)) if file else None, "options": options or None}
    body = {key: value for key, value in said.items() if value is not None}
    path = function_path(function)
    if current is not None and not body:
        changed = client.call("PATCH", path, {"current": current})
    elif body and current is None:
        changed = client.call("PUT", path, body)
    else:
        raise InvalidArgs("say what is new: a FILE, options, --name, or --current alone")
    if output == "json":
        show_json(changed)
    else:
        print(f"{text_of(changed, 'id')} is at version {text_of(changed, 'current')}")


@app.command()
@client_command
def delete(client: Client, function: Function) -> None:
    """Delete a function with all its versions and aliases."""
    client.call("DELETE", function_path(function))


@app.command()
@client_command
def alias(
    client: Client,
    function: Function,
    name: Annotated[str, typer.Argument(metavar="ALIAS", help="The alias.")],
    version: Annotated[int | None, typer.Argument(metavar="VERSION", help="Where it is to lead.")] = None,
    *,
    remove: Annotated[bool, typer.Option("--delete", help="Take it away instead.")] = False,
) -> None:
    """Let an alias lead to a version, or take it away."""
    path = f"{function_path(function)}/aliases/{checked_id(name)}"
    if remove == (version is not None):
        raise InvalidArgs("an alias needs the VERSION that it is to lead to, or --delete")
    if remove:
        client.call("DELETE", path)
    else:
        made = client.call("PUT", path, {"version": version})
        print(f"{text_of(made, 'alias')} -> {text_of(made, 'version')}")


def function_path(reference: str) -> str:
    """Return the path of a function's routes.

    Raises:
        InvalidArgs: it cannot refer to a function.
    """
    return f"/functions/{quote(checked_function(reference), safe='@')}"


def checked_function(text: str) -> str:
    """Return what refers to a function: an ID or a name, and perhaps ``@VERSION`` or ``@ALIAS``.

    Raises:
        InvalidArgs: it is no segment of a path: of such a function the ID does.
    """
    if not 1 <= len(text) <= MAX_REFERENCE or not text.isprintable() or "/" in text or text in {".", ".."}:
        raise InvalidArgs("a function is its ID or its name; of one with '/' in its name only the ID does")
    return text


def checked_id(text: str) -> str:
    """Return an ID or a name that is a path's segment as it is.

    Raises:
        InvalidArgs: it is none.
    """
    if not _ID.fullmatch(text) or text in {".", ".."}:
        raise InvalidArgs("an ID has letters, digits, '.', '_' and '-' only")
    return text


def _mapping(found: object) -> Mapping[str, Any]:
    field_of(found, "id")
    return found  # type: ignore[return-value]
