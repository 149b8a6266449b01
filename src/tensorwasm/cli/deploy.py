"""`tensor-wasm deploy`: a module becomes a function of a server."""

from __future__ import annotations

import base64
import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from tensorwasm.cli.answers import text_of
from tensorwasm.cli.client import Client, client_command
from tensorwasm.cli.run import read_variables
from tensorwasm.cli.showing import Output, show_json
from tensorwasm.errors import InvalidArgs, ModuleTooLarge
from tensorwasm.settings.parsing import checked_memory_mib, checked_seconds
from tensorwasm.values import MIB

MAX_MODULE_BYTES: Final = 64 * MIB

Module = Annotated[Path, typer.Argument(metavar="FILE", help="The module, a .wasm file; - reads standard input.")]
Grant = Annotated[
    list[str] | None, typer.Option(help="What its guests may use: cuda. Repeatable; nothing is granted unasked.")
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
Key = Annotated[
    str | None,
    typer.Option(metavar="KEY", help="What was done under this key already is not done again, and answered alike."),
]


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
    new: Annotated[
        bool, typer.Option("--new", help="Make another function even if there is one of that name.")
    ] = False,
    idempotency_key: Key = None,
    output: Output = "text",
) -> None:
    """Deploy a module, and print the function's ID.

    Where there is a function of that name it gets a new version; options that are not said stay, if none is said.
    """
    if name is None and str(file) == "-":
        raise InvalidArgs("a module from standard input needs --name")
    called, module = name or file.stem, read_module(file)
    options = read_options(grant, memory, timeout, env, warm, model)
    if_exists = "new_function" if new else "new_version"
    headers = {"Idempotency-Key": checked_key(idempotency_key)} if idempotency_key is not None else {}
    if options:
        body = {"name": called, "wasm_b64": encode(module), "options": options, "if_exists": if_exists}
        made = client.call("POST", "/functions", body, headers=headers)
    else:
        headers["Content-Type"] = "application/wasm"
        made = client.call(
            "POST", "/functions", content=module, headers=headers, params={"name": called, "if_exists": if_exists}
        )
    if output == "json":
        show_json(made)
    else:
        print(text_of(made, "id"))


def read_module(file: Path) -> bytes:
    """Return a module's bytes, from the file or standard input.

    Raises:
        InvalidArgs: it cannot be read.
        ModuleTooLarge: it has more than 64 MiB.
    """
    try:
        if str(file) == "-":
            data = sys.stdin.buffer.read(MAX_MODULE_BYTES + 1)
        else:
            with file.open("rb") as opened:
                data = opened.read(MAX_MODULE_BYTES + 1)
    except OSError as error:
        raise InvalidArgs(f"{str(file)!r} cannot be read: {error.strerror}") from None
    if len(data) > MAX_MODULE_BYTES:
        raise ModuleTooLarge(f"a module has at most {MAX_MODULE_BYTES // MIB} MiB")
    return data


def read_options(
    grant: list[str] | None,
    memory: int | None,
    timeout: float | None,
    env: list[str] | None,
    warm: int | None,
    model: bool | None,  # noqa: FBT001 - an option's value, as the others
) -> dict[str, Any]:
    """Return a function's options as the server takes them; those that were not said are left out.

    Raises:
        InvalidArgs: one cannot be.
    """
    said = {
        "grants": grant or None,
        "memory_mib": None if memory is None else checked_memory_mib("--memory", memory),
        "timeout_s": None if timeout is None else checked_seconds("--timeout", timeout),
        "env": read_variables(env) if env else None,
        "warm": warm,
        "model": model,
    }
    return {name: value for name, value in said.items() if value is not None}


def checked_key(key: str) -> str:
    """Return an idempotency key that a header can hold.

    Raises:
        InvalidArgs: it cannot be one.
    """
    if not (1 <= len(key) <= 255 and key.isascii() and key.isprintable()):
        raise InvalidArgs("--idempotency-key has 1 to 255 printable ASCII characters")
    return key


def encode(data: bytes) -> str:
    """Return bytes as JSON carries them."""
    return base64.b64encode(data).decode("ascii")
