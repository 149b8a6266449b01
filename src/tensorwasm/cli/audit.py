"""`tensor-wasm audit`: whether an audit log is whole."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(name="audit", help="The service's audit log.", no_args_is_help=True)


@app.callback()
def audit() -> None:
    """The service's audit log."""


@app.command()
def verify(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH...", help="The log's file, with the full ones beside it; or files, oldest first."),
    ],
    *,
    head: Annotated[
        bool, typer.Option("--head/--no-head", help="The last file has its head beside it; not if it was moved away.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Read an audit log, and exit with 1 if a line was changed, removed or moved, or its beginning or end is cut off.

    The last line's number and hash are printed: kept elsewhere, they show later whether all was made up anew.
    """
    from tensorwasm.tenancy.audit import log_files  # noqa: PLC0415 - keeps --help quick
    from tensorwasm.tenancy.audit import verify as verify_log  # noqa: PLC0415 - the same

    found = verify_log(*(log_files(paths[0]) if len(paths) == 1 and head else paths), head=head)
    if as_json:
        sys.stdout.write(json.dumps({**asdict(found), "ok": found.ok}, indent=1) + "\n")
    else:
        for finding in found.findings:
            print(f"{finding.path}:{finding.line}: {finding.detail}")
        print(
            f"{'ok' if found.ok else 'NOT OK'}: {found.lines} lines, {found.first_seq} to {found.last.seq}, "
            f"the last with hash {found.last.hash}"
        )
        if found.removed is not None:
            print(f"lines up to {found.removed.seq} were removed by the log itself, the last with {found.removed.hash}")
        elif found.first_seq > 1:
            print(f"lines before {found.first_seq} are not here, and no line says that the log removed them")
    if not found.ok:
        raise typer.Exit(1)
