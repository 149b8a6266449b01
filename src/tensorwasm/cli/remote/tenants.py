"""`tensor-wasm tenants`, `tokens` and `usage`: who may use a server, and how much of it."""

from __future__ import annotations

import sys
import time
from functools import partial
from typing import Annotated, Any, Final

import typer

from tensorwasm.cli.options import without_none
from tensorwasm.cli.output import Output, print_json, print_table
from tensorwasm.cli.remote.client import MAX_TENANT, Client, field_of, text_of
from tensorwasm.cli.remote.commands import CommandGroup, client_command, show_record
from tensorwasm.errors import InvalidArgs
from tensorwasm.settings.parsing import checked_seconds

_MAX_OVERLAP_S: Final = 30 * 86_400
_USED: Final = ("requests", "errors", "cpu_us", "gpu_us", "launches", "bytes_in", "bytes_out")

Number = Annotated[int, typer.Argument(metavar="TENANT", help="The tenant's number.")]
Name = Annotated[str | None, typer.Option(help="A name for people.")]
Weight = Annotated[
    int | None, typer.Option(metavar="N", help="Its share while tenants wait for one another, 1 to 1000.")
]
Quota = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=NUMBER", help="A quota, such as qps=100; NAME= removes it. Repeatable."),
]
TokenId = Annotated[str, typer.Argument(metavar="ID", help="The token's ID, which is no secret.")]
Expires = Annotated[
    float | None, typer.Option("--expires", metavar="SECONDS", help="Lifetime of the token, counted from now.")
]


def checked_tenant(tenant: int) -> int:
    """Return the number of a tenant, or raise InvalidArgs."""
    if not 0 <= tenant <= MAX_TENANT:
        raise InvalidArgs("a tenant is a number from 0 to 2**64 - 1")
    return tenant


def _with_quotas(tenant: dict[str, Any]) -> dict[str, Any]:
    found = tenant.get("quotas")
    quotas = [f"{name}={number}" for name, number in found.items()] if isinstance(found, dict) else []
    return {**tenant, "quotas": quotas}


_FIELDS: Final = ("tenant", "name", "weight", "disabled", "quotas", "created_unix_ms")
_show_tenant: Final = partial(show_record, fields=_FIELDS, to_row=_with_quotas)
TENANTS: Final = CommandGroup("tenants", "Tenants of a server: see, change and disable them.", Number, checked_tenant)
TENANTS.add_list(
    "List the tenants that were given a name, a weight or quotas, by number.",
    ("tenant", "weight", "disabled", "quotas", "name"),
    _with_quotas,
)
TENANTS.add_call("show", "Show a tenant.", "GET", _show_tenant)


@TENANTS.command("create")
def create_tenant(
    client: Client,
    number: Number,
    *,
    name: Name = None,
    weight: Weight = None,
    quota: Quota = None,
    output: Output = "text",
) -> None:
    """Give a tenant a name, a weight or quotas for the first time."""
    body = {"tenant": checked_tenant(number), **read_change(name, weight, quota)}
    _show_tenant(client.call("POST", "/tenants", body), output)


@TENANTS.command("update")
def update_tenant(
    client: Client,
    number: Number,
    *,
    name: Name = None,
    weight: Weight = None,
    quota: Quota = None,
    enable: Annotated[bool, typer.Option("--enable", help="Serve it again.")] = False,
    output: Output = "text",
) -> None:
    """Change a tenant; values that are not given stay."""
    body = read_change(name, weight, quota) | ({"disabled": False} if enable else {})
    if not body:
        raise InvalidArgs("give what is to change: --name, --weight, --quota or --enable")
    _show_tenant(client.call("PATCH", TENANTS.path(number), body), output)


TENANTS.add_send("disable", "Disable a tenant: its requests are refused, and its data stays.", "DELETE")


def read_change(name: str | None, weight: int | None, quota: list[str] | None) -> dict[str, Any]:
    """Return the values of a tenant for a request, without those that were not given."""
    quotas: dict[str, int | None] = {}
    for text in quota or ():
        called, equals, number = text.partition("=")
        if not called or not equals or (number and not (number.isascii() and number.isdigit())):
            raise InvalidArgs("--quota is NAME=NUMBER, or NAME= to remove a quota")
        quotas[called] = int(number) if number else None
    return without_none(name=name, weight=weight, quotas=quotas or None)


TOKENS: Final = CommandGroup("tokens", "Tokens of a server: make, see, replace and revoke them.", TokenId)


@TOKENS.command("create")
def create_token(
    client: Client,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its purpose, for people.")],
    *,
    tenants: Annotated[
        str, typer.Option("--tenants", metavar="NUMBERS", help="Tenants it may act for: 1,2,3, or * for all.")
    ],
    scope: Annotated[
        list[str] | None, typer.Option(help="A scope it has. Repeatable; without it the scopes of users.")
    ] = None,
    expires: Expires = None,
    output: Output = "text",
) -> None:
    """Make a token, and print it: it is shown this once."""
    body = without_none(name=name, tenants=read_tenants(tenants), scopes=scope, expires_unix_ms=_expiry_ms(expires))
    _show_made(client.call("POST", "/tokens", body), output)


TOKENS.add_list(
    "List tokens, oldest first, expired and revoked ones too.",
    ("id", "tenants", "expires_unix_ms", "revoked_unix_ms", "scopes", "name"),
)


@TOKENS.command("rotate")
def rotate_token(
    client: Client,
    token: TokenId,
    *,
    overlap: Annotated[
        float, typer.Option(metavar="SECONDS", help="How long the old one stays valid; at most 30 days.")
    ] = 0.0,
    expires: Expires = None,
    output: Output = "text",
) -> None:
    """Replace a token by a new one with the same scopes, and print that: it is shown this once."""
    if not 0 <= overlap <= _MAX_OVERLAP_S:
        raise InvalidArgs(f"--overlap is in seconds, 0 to {_MAX_OVERLAP_S}")
    body = without_none(overlap_s=overlap, expires_unix_ms=_expiry_ms(expires))
    _show_made(client.call("POST", f"{TOKENS.path(token)}/rotate", body), output)


TOKENS.add_send("revoke", "Revoke a token: from now on it is invalid.", "DELETE")


def read_tenants(text: str) -> list[int] | str:
    """Return numbers of tenants or ``*`` for all, or raise InvalidArgs."""
    if text == "*":
        return text
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) <= 20 and int(part) <= MAX_TENANT for part in parts):
        raise InvalidArgs("--tenants takes numbers from 0 to 2**64 - 1, separated by commas, or *")
    return [int(part) for part in parts]


def _expiry_ms(seconds: float | None) -> int | None:
    return None if seconds is None else round((time.time() + checked_seconds("--expires", seconds)) * 1000)


def _show_made(made: Any, output: str) -> None:
    """Print a new token: alone on standard output, so that a script can store it; the rest on standard error."""
    secret = text_of(made, "token")
    if output == "text":
        print(secret)
    fields = ("id", "name", "tenants", "scopes", "created_unix_ms", "expires_unix_ms", "revoked_unix_ms", "replaces")
    show_record(made, output, fields, file=sys.stderr)


@client_command
def usage(
    client: Client,
    *,
    last: Annotated[float, typer.Option(metavar="SECONDS", help="How far back; whole hours are shown.")] = 86_400.0,
    output: Output = "text",
) -> None:
    """Show what a tenant used by the hour, and how much of its quotas it holds now."""
    since_s = max(0.0, time.time() - checked_seconds("--last", last))
    found = client.call("GET", "/usage", params={"since_unix_ms": round(since_s * 1000)})
    if output == "json":
        print_json(found)
        return
    hours = [
        {"hour_unix_ms": field_of(each, "hour_unix_ms"), **field_of(each, "used")} for each in field_of(found, "hours")
    ]
    total = {"hour_unix_ms": "all", **field_of(found, "total")}
    print_table([*hours, total], ("hour_unix_ms", *_USED), "(nothing was used)")
    print()
    quotas = [
        {"quota": name, "used": field_of(each, "used"), "limit": each.get("limit")}
        for name, each in field_of(found, "quotas").items()
    ]
    print_table(quotas, ("quota", "used", "limit"), "(no quotas)")
