"""`tensor-wasm tokens`: make tokens of a server, see, replace and revoke them."""

from __future__ import annotations

import sys
import time
from typing import Annotated, Any, Final

import typer

from tensorwasm.cli.answers import Limit, rows_of, text_of
from tensorwasm.cli.client import MAX_TENANT, Client, client_command
from tensorwasm.cli.functions import checked_id
from tensorwasm.cli.showing import Output, show_json, show_record, show_table
from tensorwasm.errors import InvalidArgs
from tensorwasm.settings.parsing import checked_seconds

MAX_OVERLAP_S: Final = 30 * 86_400
SHOWN: Final = ("id", "name", "tenants", "scopes", "created_unix_ms", "expires_unix_ms", "revoked_unix_ms", "replaces")

app = typer.Typer(name="tokens", help="Tokens of a server: make, see, replace and revoke them.", no_args_is_help=True)

Id = Annotated[str, typer.Argument(metavar="ID", help="The token's ID, which is no secret.")]
Expires = Annotated[
    float | None, typer.Option("--expires", metavar="SECONDS", help="After which it ends, counted from now.")
]


@app.command()
@client_command
def create(
    client: Client,
    name: Annotated[str, typer.Argument(metavar="NAME", help="What it is for.")],
    *,
    tenants: Annotated[
        str, typer.Option("--tenants", metavar="NUMBERS", help="Whom it may act for: 1,2,3, or * for all.")
    ],
    scope: Annotated[
        list[str] | None, typer.Option(help="What it may do. Repeatable; without it what users may.")
    ] = None,
    expires: Expires = None,
    output: Output = "text",
) -> None:
    """Make a token, and print it: it is shown this once."""
    said = {"name": name, "tenants": read_tenants(tenants), "scopes": scope, "expires_unix_ms": _end(expires)}
    _show_made(client.call("POST", "/tokens", {key: value for key, value in said.items() if value is not None}), output)


@app.command("list")
@client_command
def list_tokens(client: Client, *, limit: Limit = 1000, output: Output = "text") -> None:
    """List tokens, oldest first, those that have ended too."""
    rows = rows_of(client, "/tokens", "tokens", limit)
    if output == "json":
        show_json(rows)
    else:
        show_table(rows, ("id", "tenants", "expires_unix_ms", "revoked_unix_ms", "scopes", "name"), "(no tokens)")


@app.command()
@client_command
def rotate(
    client: Client,
    token: Id,
    *,
    overlap: Annotated[
        float, typer.Option(metavar="SECONDS", help="How long the old one is still good; at most 30 days.")
    ] = 0.0,
    expires: Expires = None,
    output: Output = "text",
) -> None:
    """Replace a token by a new one that may do the same, and print that: it is shown this once."""
    if not 0 <= overlap <= MAX_OVERLAP_S:
        raise InvalidArgs(f"--overlap is in seconds, 0 to {MAX_OVERLAP_S}")
    body: dict[str, Any] = {"overlap_s": overlap}
    if expires is not None:
        body["expires_unix_ms"] = _end(expires)
    _show_made(client.call("POST", f"/tokens/{checked_id(token)}/rotate", body), output)


@app.command()
@client_command
def revoke(client: Client, token: Id) -> None:
    """Revoke a token: from now on it is good for nothing."""
    client.call("DELETE", f"/tokens/{checked_id(token)}")


def read_tenants(text: str) -> list[int] | str:
    """Return numbers of tenants, or ``*`` for all.

    Raises:
        InvalidArgs: no such numbers.
    """
    if text == "*":
        return text
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) <= 20 and int(part) <= MAX_TENANT for part in parts):
        raise InvalidArgs("--tenants takes numbers from 0 to 2**64 - 1, separated by commas, or *")
    return [int(part) for part in parts]


def _end(seconds: float | None) -> int | None:
    return None if seconds is None else round((time.time() + checked_seconds("--expires", seconds)) * 1000)


def _show_made(made: Any, output: str) -> None:
    """Print a token that was just made: alone on standard output, so that it can be put where it belongs."""
    secret = text_of(made, "token")
    if output == "json":
        show_json(made)
        return
    print(secret)
    show_record(made, SHOWN, sys.stderr)
