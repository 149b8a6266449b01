"""`tensor-wasm doctor`: what is wrong with this machine, and how to mend it."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from tensorwasm.settings import current


def doctor(
    *,
    device: Annotated[str | None, typer.Option(help="The device that must work: auto, emulator, cuda, cuda:N.")] = None,
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Check a data folder of the service, or a copy of one, instead.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Check this machine, from driver to a verified kernel launch on the chosen device; or whether a backup is whole.

    The exit code is 0 only if that device works. A FAIL keeps it from working; a WARN does not. With --data it is 0
    only if the service could go on with all that it kept: database, artifacts and keys.
    """
    if data is not None:
        _check_data(data, as_json=as_json)
        return
    from tensorwasm.doctor import render, report  # noqa: PLC0415 - keeps --help quick

    found = report(device or current().device)
    sys.stdout.write(json.dumps(asdict(found), indent=1) + "\n" if as_json else render(found))
    if not found.ok:
        raise typer.Exit(1)


def _check_data(folder: Path, *, as_json: bool) -> None:
    from tensorwasm.doctor import Status, render_rows  # noqa: PLC0415 - keeps --help quick
    from tensorwasm.service.backup import examine  # noqa: PLC0415 - the same
    from tensorwasm.settings.service import ServiceSettings  # noqa: PLC0415 - the same

    rows = examine(folder.expanduser(), ServiceSettings.from_environment(os.environ))
    whole = all(row.status is not Status.FAIL for row in rows)
    verdict = "It is whole." if whole else "The service cannot go on with all of it."
    if as_json:
        sys.stdout.write(json.dumps({"ok": whole, "rows": [asdict(row) for row in rows]}, indent=1) + "\n")
    else:
        sys.stdout.write(render_rows("TensorWasm doctor: a data folder", rows, verdict))
    if not whole:
        raise typer.Exit(1)
