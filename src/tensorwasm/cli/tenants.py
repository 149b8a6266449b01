"""`tensor-wasm tenants`: see tenants of a server, give them names, weights and quotas, disable them."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tensorwasm.cli.answers import Limit, rows_of, text_of
from tensorwasm.cli.client import MAX_TENANT, Client, client_command
from tensorwasm.cli.showing import Output, show_json, show_record, show_table
from tensorwasm.errors import InvalidArgs

app = typer.Typer(name="tenants", help="Tenants of a server: see, change and disable them.", no_args_is_help=True)

Number = Annotated[int, typer.Argument(metavar="TENANT", help="The tenant's number.")]
Name = Annotated[str | None, typer.Option(help="A name for people.")]
Weight = Annotated[
    int | None, typer.Option(metavar="N", help="Its share where tenants wait for one another, 1 to 1000.")
]
Quota = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=NUMBER", help="A cap, such as qps=100; NAME= takes it away. Repeatable."),
]


@app.command("list")
@client_command
def list_tenants(client: Client, *, limit: Limit = 1000, output: Output = "text") -> None:
    """List tenants that something was said of, by number."""
    rows = rows_of(client, "/tenants", "tenants", limit)
    if output == "json":
        show_json(rows)
        return
    shown = [{**row, "quotas": _quotas(row)} for row in rows]
    show_table(shown, ("tenant", "weight", "disabled", "quotas", "name"), "(no tenants)")


@app.command()
@client_command
def show(client: Client, number: Number, *, output: Output = "text") -> None:
    """Show a tenant."""
    _show(client.call("GET", f"/tenants/{checked_tenant(number)}"), output)


@app.command()
@client_command
def create(
    client: Client,
    number: Number,
    *,
    name: Name = None,
    weight: Weight = None,
    quota: Quota = None,
    output: Output = "text",
) -> None:
    """Say something of a tenant for the first time."""
    body = {"tenant": checked_tenant(number), **read_change(name, weight, quota)}
    _show(client.call("POST", "/tenants", body), output)


@app.command()
@client_command
def update(
    client: Client,
    number: Number,
    *,
    name: Name = None,
    weight: Weight = None,
    quota: Quota = None,
    enable: Annotated[bool, typer.Option("--enable", help="Serve it again.")] = False,
    output: Output = "text",
) -> None:
    """Change a tenant; what is not said stays."""
    body = read_change(name, weight, quota) | ({"disabled": False} if enable else {})
    if not body:
        raise InvalidArgs("say what is new: --name, --weight, --quota or --enable")
    _show(client.call("PATCH", f"/tenants/{checked_tenant(number)}", body), output)


@app.command()
@client_command
def disable(client: Client, number: Number) -> None:
    """Disable a tenant: nothing of it is served, and all that is kept of it stays."""
    client.call("DELETE", f"/tenants/{checked_tenant(number)}")


def checked_tenant(tenant: int) -> int:
    """Return the number of a tenant.

    Raises:
        InvalidArgs: it is none.
    """
    if not 0 <= tenant <= MAX_TENANT:
        raise InvalidArgs("a tenant is a number from 0 to 2**64 - 1")
    return tenant


def read_change(name: str | None, weight: int | None, quota: list[str] | None) -> dict[str, Any]:
    """Return what is to be different of a tenant as the server takes it; what was not said is left out.

    Raises:
        InvalidArgs: a quota is not ``NAME=NUMBER`` or ``NAME=``.
    """
    caps: dict[str, int | None] = {}
    for text in quota or ():
        called, equals, number = text.partition("=")
        if not called or not equals or (number and not (number.isascii() and number.isdigit())):
            raise InvalidArgs("--quota is NAME=NUMBER, or NAME= to take a quota away")
        caps[called] = int(number) if number else None
    said = {"name": name, "weight": weight, "quotas": caps or None}
    return {key: value for key, value in said.items() if value is not None}


def _quotas(row: Any) -> list[str]:
    found = row.get("quotas")
    return [f"{name}={number}" for name, number in found.items()] if isinstance(found, dict) else []


def _show(tenant: Any, output: str) -> None:
    if output == "json":
        show_json(tenant)
        return
    text_of(tenant, "tenant")
    shown = {**tenant, "quotas": _quotas(tenant)}
    show_record(shown, ("tenant", "name", "weight", "disabled", "quotas", "created_unix_ms"))
