"""`tensor-wasm doctor`: what is wrong with this machine, and how to mend it."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Annotated

import typer

from tensorwasm.settings import current


def doctor(
    *,
    device: Annotated[str | None, typer.Option(help="The device that must work: auto, emulator, cuda, cuda:N.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Check this machine, from driver to a verified kernel launch on the chosen device.

    The exit code is 0 only if that device works. A FAIL keeps it from working; a WARN does not.
    """
    from tensorwasm.doctor import render, report  # noqa: PLC0415 - keeps --help quick

    found = report(device or current().device)
    sys.stdout.write(json.dumps(asdict(found), indent=1) + "\n" if as_json else render(found))
    if not found.ok:
        raise typer.Exit(1)
