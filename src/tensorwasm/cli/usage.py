"""`tensor-wasm usage`: what a tenant used, and what is left of its quotas."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from tensorwasm.cli.answers import field_of
from tensorwasm.cli.client import Client, client_command
from tensorwasm.cli.showing import Output, show_json, show_table
from tensorwasm.settings.parsing import checked_seconds

USED = ("requests", "errors", "cpu_us", "gpu_us", "launches", "bytes_in", "bytes_out")


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
        show_json(found)
        return
    hours = [{"hour_unix_ms": field_of(each, "hour_unix_ms"), **field_of(each, "used")} for each in _list(found)]
    total = {"hour_unix_ms": "all", **field_of(found, "total")}
    show_table([*hours, total], ("hour_unix_ms", *USED), "(nothing was used)")
    print()
    quotas = field_of(found, "quotas")
    rows = [
        {"quota": name, "used": field_of(each, "used"), "limit": each.get("limit")} for name, each in quotas.items()
    ]
    show_table(rows, ("quota", "used", "limit"), "(no quotas)")


def _list(found: object) -> list[object]:
    return list(field_of(found, "hours"))
