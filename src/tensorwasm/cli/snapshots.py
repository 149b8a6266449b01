"""`tensor-wasm snapshots`: saved states that a server keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, BinaryIO, Final

import typer

from tensorwasm.cli.answers import Limit, rows_of, text_of
from tensorwasm.cli.client import Client, client_command
from tensorwasm.cli.functions import checked_id
from tensorwasm.cli.showing import Output, show_json, show_record, show_table
from tensorwasm.errors import InvalidArgs

SHOWN: Final = ("id", "function_id", "version", "session_id", "size_bytes", "created_unix_ms", "content_hash")

app = typer.Typer(
    name="snapshots", help="Snapshots of a server: see, fetch, restore and delete them.", no_args_is_help=True
)

Id = Annotated[str, typer.Argument(metavar="ID", help="The snapshot.")]


@app.command("list")
@client_command
def list_snapshots(client: Client, *, limit: Limit = 1000, output: Output = "text") -> None:
    """List snapshots, oldest first."""
    rows = rows_of(client, "/snapshots", "snapshots", limit)
    if output == "json":
        show_json(rows)
    else:
        show_table(rows, ("id", "size_bytes", "created_unix_ms", "function_id"), "(no snapshots)")


@app.command()
@client_command
def show(client: Client, snapshot: Id, *, output: Output = "text") -> None:
    """Show a snapshot."""
    found = client.call("GET", f"/snapshots/{checked_id(snapshot)}")
    if output == "json":
        show_json(found)
    else:
        text_of(found, "id")
        show_record(found, SHOWN)


@app.command()
@client_command
def fetch(
    client: Client, snapshot: Id, file: Annotated[Path, typer.Argument(metavar="FILE", help="Where it is written.")]
) -> None:
    """Write a snapshot's file, which is there once it is whole."""
    from tensorwasm.artifacts import private_files  # noqa: PLC0415 - keeps --help quick

    try:
        with (
            private_files.replace_file(file) as out,
            client.open("GET", f"/snapshots/{checked_id(snapshot)}/content") as answer,
        ):
            for piece in answer.iter_bytes():
                _write(out, piece, file)
    except OSError as error:
        raise _unwritable(file, error) from None


def _write(out: BinaryIO, piece: bytes, file: Path) -> None:
    """Write to a file within a request, whose own errors are OSErrors too."""
    try:
        out.write(piece)
    except OSError as error:
        raise _unwritable(file, error) from None


def _unwritable(file: Path, error: OSError) -> InvalidArgs:
    return InvalidArgs(f"{str(file)!r} cannot be written: {error.strerror}")


@app.command()
@client_command
def restore(client: Client, snapshot: Id, *, output: Output = "text") -> None:
    """Open a session that goes on where a snapshot was, and print its ID."""
    made = client.call("POST", f"/snapshots/{checked_id(snapshot)}/restore")
    if output == "json":
        show_json(made)
    else:
        print(text_of(made, "instance_id"))


@app.command()
@client_command
def delete(client: Client, snapshot: Id) -> None:
    """Delete a snapshot."""
    client.call("DELETE", f"/snapshots/{checked_id(snapshot)}")
