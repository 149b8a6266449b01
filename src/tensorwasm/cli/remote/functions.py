"""`tensor-wasm deploy` and `functions`: modules become functions of a server, which have versions and aliases."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import quote

import typer

from tensorwasm.cli.options import Module, read_bytes, read_variables, without_none
from tensorwasm.cli.output import Output, print_json, print_record, print_table
from tensorwasm.cli.remote.client import Client, field_of
from tensorwasm.cli.remote.commands import CommandGroup, checked_id, client_command, show_line
from tensorwasm.errors import InvalidArgs, ModuleTooLarge
from tensorwasm.settings.parsing import checked_memory_mib, checked_offload, checked_offload_math, checked_seconds
from tensorwasm.values import MIB

MAX_MODULE_BYTES: Final = 64 * MIB

_ALIAS: Final = "{alias} -> {version}"
_MAX_VERSIONS: Final = 1000
_MAX_REFERENCE: Final = 256
"""Longest segment of a path that a server accepts, in characters."""

Grant = Annotated[
    list[str] | None, typer.Option(help="What its guests may use: cuda. Repeatable; nothing is granted by default.")
]
Memory = Annotated[int | None, typer.Option(metavar="MIB", help="Linear memory at most; without it the server's.")]
Timeout = Annotated[
    float | None, typer.Option(metavar="SECONDS", help="Longest that a call may take; without it the server's.")
]
Env = Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="A variable that its guests see.")]
Warm = Annotated[int | None, typer.Option(metavar="N", help="Sandboxes kept ready.")]
Model = Annotated[
    bool | None, typer.Option("--model/--no-model", help="Clients of OpenAI's API may use it as a model.")
]
Offload = Annotated[
    str | None,
    typer.Option(
        metavar="off|auto|cpu|gpu",
        help="Where loops run that can run in parallel: in the guest, on a GPU or else all cores, on all cores, or on "
        "the device.",
    ),
]
MathOrder = Annotated[
    str | None,
    typer.Option(
        metavar="exact|relaxed",
        help="Whether these loops add up and multiply floats in WebAssembly's order, or in another one.",
    ),
]
Key = Annotated[
    str | None,
    typer.Option(metavar="KEY", help="A request with the key of an earlier one does nothing and gets the same answer."),
]
Function = Annotated[str, typer.Argument(metavar="FUNCTION", help="The function: its ID or name.")]


def checked_function(text: str) -> str:
    """Return a reference to a function that can be one segment of a path, or raise InvalidArgs."""
    if not 1 <= len(text) <= _MAX_REFERENCE or not text.isprintable() or "/" in text or text in {".", ".."}:
        raise InvalidArgs("a function is its ID or its name; one with '/' in its name is called by its ID")
    return text


def _segment(function: str) -> str:
    return quote(checked_function(function), safe="@")


FUNCTIONS: Final = CommandGroup(
    "functions", "Functions of a server: see, change and delete them.", Function, segment=_segment
)
FUNCTIONS.add_list("List functions, oldest first.", ("id", "current", "updated_unix_ms", "name"))


@FUNCTIONS.command("show")
def show_function(client: Client, function: Function, *, output: Output = "text") -> None:
    """Show a function with its versions and aliases."""
    path = FUNCTIONS.path(function)
    found = client.call("GET", path)
    field_of(found, "id")
    versions = client.list_records("versions", _MAX_VERSIONS, f"{path}/versions")
    if output == "json":
        print_json({**found, "versions": versions})
        return
    print_record(found, ("id", "name", "tenant_id", "current", "created_unix_ms", "updated_unix_ms"))
    print_table(versions, ("version", "module_bytes", "created_unix_ms", "module_hash"), "(no versions)")
    for each in found.get("aliases") or []:
        show_line(each, output, _ALIAS)


@FUNCTIONS.command("update")
def update_function(
    client: Client,
    function: Function,
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="A module for a new version; - for stdin.")
    ] = None,
    *,
    name: Annotated[str | None, typer.Option(help="Another name.")] = None,
    current: Annotated[
        int | None, typer.Option(metavar="VERSION", help="Make this version the current one, and change nothing else.")
    ] = None,
    grant: Grant = None,
    memory: Memory = None,
    timeout: Timeout = None,
    env: Env = None,
    warm: Warm = None,
    model: Model = None,
    offload: Offload = None,
    offload_math: MathOrder = None,
    output: Output = "text",
) -> None:
    """Give a function a new version, other options or another name, or go back to an earlier version.

    If any option is given, the others take the server's defaults.
    """
    options = read_options(grant, memory, timeout, env, warm, model, offload, offload_math)
    body = without_none(name=name, wasm_b64=encode(read_module(file)) if file else None, options=options or None)
    path = FUNCTIONS.path(function)
    if current is not None and not body:
        changed = client.call("PATCH", path, {"current": current})
    elif body and current is None:
        changed = client.call("PUT", path, body)
    else:
        raise InvalidArgs("give what is to change: a FILE, options, --name, or --current alone")
    show_line(changed, output, "{id} is at version {current}")


FUNCTIONS.add_send("delete", "Delete a function with all its versions and aliases.", "DELETE")


@FUNCTIONS.command("alias")
def set_alias(
    client: Client,
    function: Function,
    name: Annotated[str, typer.Argument(metavar="ALIAS", help="The alias.")],
    version: Annotated[int | None, typer.Argument(metavar="VERSION", help="The version that it stands for.")] = None,
    *,
    remove: Annotated[bool, typer.Option("--delete", help="Delete the alias instead.")] = False,
) -> None:
    """Point an alias at a version, or delete it."""
    path = f"{FUNCTIONS.path(function)}/aliases/{checked_id(name)}"
    if remove == (version is not None):
        raise InvalidArgs("an alias needs the VERSION that it stands for, or --delete")
    if remove:
        client.call("DELETE", path)
    else:
        show_line(client.call("PUT", path, {"version": version}), "text", _ALIAS)


@client_command
def deploy(
    client: Client,
    file: Module,
    *,
    name: Annotated[str | None, typer.Option(help="Its name; without it the file's, without .wasm.")] = None,
    grant: Grant = None,
    memory: Memory = None,
    timeout: Timeout = None,
    env: Env = None,
    warm: Warm = None,
    model: Model = None,
    offload: Offload = None,
    offload_math: MathOrder = None,
    new: Annotated[
        bool, typer.Option("--new", help="Make another function even if there is one of that name.")
    ] = False,
    idempotency_key: Key = None,
    output: Output = "text",
) -> None:
    """Deploy a module, and print the function's ID.

    If a function of that name exists it gets a new version. If no option is given, its options stay.
    """
    if name is None and str(file) == "-":
        raise InvalidArgs("a module from standard input needs --name")
    query = {"name": name or file.stem, "if_exists": "new_function" if new else "new_version"}
    module = read_module(file)
    options = read_options(grant, memory, timeout, env, warm, model, offload, offload_math)
    headers = key_headers(idempotency_key)
    if options:
        body = {"wasm_b64": encode(module), "options": options, **query}
        made = client.call("POST", "/functions", body, headers=headers)
    else:
        headers["Content-Type"] = "application/wasm"
        made = client.call("POST", "/functions", content=module, headers=headers, params=query)
    show_line(made, output)


def read_module(file: Path) -> bytes:
    """Return a module's bytes, at most 64 MiB, from the file or standard input."""
    too_long = ModuleTooLarge(f"a module has at most {MAX_MODULE_BYTES // MIB} MiB")
    return read_bytes(file, MAX_MODULE_BYTES, too_long, stdin=True)


def read_options(
    grant: list[str] | None,
    memory: int | None,
    timeout: float | None,
    env: list[str] | None,
    warm: int | None,
    model: bool | None,  # noqa: FBT001 - an option's value, as the others
    offload: str | None,
    offload_math: str | None = None,
) -> dict[str, Any]:
    """Return a function's options for a request, without those that were not given."""
    return without_none(
        grants=grant or None,
        memory_mib=None if memory is None else checked_memory_mib("--memory", memory),
        timeout_s=None if timeout is None else checked_seconds("--timeout", timeout),
        env=read_variables(env) if env else None,
        warm=warm,
        model=model,
        offload=None if offload is None else checked_offload("--offload", offload),
        offload_math=None if offload_math is None else checked_offload_math("--offload-math", offload_math),
    )


def key_headers(key: str | None) -> dict[str, str]:
    """Return the headers for an idempotency key, none for None."""
    if key is None:
        return {}
    if not (1 <= len(key) <= 255 and key.isascii() and key.isprintable()):
        raise InvalidArgs("--idempotency-key has 1 to 255 printable ASCII characters")
    return {"Idempotency-Key": key}


def encode(data: bytes) -> str:
    """Return bytes in base64."""
    return base64.b64encode(data).decode("ascii")
