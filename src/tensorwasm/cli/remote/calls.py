"""`tensor-wasm invoke`, `sessions` and `snapshots`: calls of a server's functions, and the states that calls leave."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from tensorwasm.cli.options import Args, Arguments, Env, Export, read_bytes, read_variables, without_none
from tensorwasm.cli.output import Output, print_json
from tensorwasm.cli.remote.client import READ_S, Client, malformed, parse_json, text_of
from tensorwasm.cli.remote.commands import (
    CommandGroup,
    client_command,
    decode_base64,
    failure_of,
    show_line,
    show_outcome,
    show_record,
    show_written,
    writer,
)
from tensorwasm.cli.remote.functions import FUNCTIONS, Key, Timeout, checked_function, encode, key_headers
from tensorwasm.cli.remote.jobs import show_ended, wait_for
from tensorwasm.errors import InvalidArgs, Refused, ServerUnreachable
from tensorwasm.settings.parsing import checked_seconds
from tensorwasm.values import MIB

MAX_INPUT_BYTES: Final = 64 * MIB
MAX_EVENT_BYTES: Final = 1 << 20
"""Longest event that is accepted; a chunk has 64 KiB at most."""

Reference = Annotated[
    str,
    typer.Argument(
        metavar="FUNCTION",
        help="The function: its ID or name, and @VERSION or @ALIAS if it is not the current version.",
    ),
]
Input = Annotated[
    Path | None,
    typer.Option("--input", metavar="FILE", help="Input that the guest reads with read-input; - for stdin."),
]
SessionId = Annotated[str, typer.Argument(metavar="ID", help="The session.")]
SnapshotId = Annotated[str, typer.Argument(metavar="ID", help="The snapshot.")]

SESSIONS: Final = CommandGroup("sessions", "Sessions of a server: instances that calls share.", SessionId)
SNAPSHOTS: Final = CommandGroup("snapshots", "Snapshots of a server: see, fetch, restore and delete them.", SnapshotId)


@client_command
def invoke(
    client: Client,
    function: Reference,
    arguments: Arguments = None,
    *,
    export: Export = None,
    args: Args = "[]",
    given: Input = None,
    stdin: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Standard input of the guest; - for this command's.")
    ] = None,
    env: Env = None,
    timeout: Timeout = None,
    stream: Annotated[
        bool, typer.Option("--stream", help="Write the chunks that the guest sends as they come.")
    ] = False,
    run_async: Annotated[bool, typer.Option("--async", help="Begin a job, and print its ID.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="With --async: wait for the job, and print its result.")] = False,
    idempotency_key: Key = None,
    output: Output = "text",
) -> None:
    """Call a function.

    The guest's output is printed first, then its results: ok for none, a bare value for one, a JSON array for several.
    """
    if stream and run_async:
        raise InvalidArgs("--stream and --async exclude each other")
    if (wait or idempotency_key is not None) and not run_async:
        raise InvalidArgs("--wait and --idempotency-key go with --async")
    path = FUNCTIONS.path(function)
    body = call_body(export, args, given, timeout, stdin=stdin, env=env, argv=arguments and [function, *arguments])
    try:
        if stream:
            _stream(client, f"{path}/invoke-stream", body, output)
        elif run_async:
            begun = client.call("POST", f"{path}/invoke-async", body, headers=key_headers(idempotency_key))
            if wait:
                show_ended(wait_for(client, text_of(begun, "job_id")), output)
            else:
                show_line(begun, output, "{job_id}")
        else:
            show_outcome(client.call("POST", f"{path}/invoke", body, timeout=patience_s(timeout)), output)
    except Refused as refused:
        if output == "text":
            show_written(refused.left)
        raise


def call_body(
    export: str | None,
    args: str,
    given: Path | None,
    timeout: float | None,
    *,
    stdin: Path | None = None,
    env: list[str] | None = None,
    argv: list[str] | None = None,
) -> dict[str, Any]:
    """Return the body of a request for a call, without options that were not given."""
    from tensorwasm.guest.engine import codec  # noqa: PLC0415 - keeps --help quick

    return without_none(
        export=export,
        args=[_spell(value) for value in codec.parse(args)] or None,
        input_b64=read_input(given),
        stdin_b64=read_input(stdin),
        env=read_variables(env) if env else None,
        argv=argv or None,
        deadline_ms=None if timeout is None else max(1, round(checked_seconds("--timeout", timeout) * 1000)),
    )


def read_input(file: Path | None) -> str | None:
    """Return the content of a file or standard input in base64, None for no file."""
    if file is None:
        return None
    too_long = InvalidArgs(f"a guest's input has at most {MAX_INPUT_BYTES // MIB} MiB")
    return encode(read_bytes(file, MAX_INPUT_BYTES, too_long, stdin=True))


def patience_s(timeout: float | None) -> float:
    """Return how long to wait for an answer: longer than the call may take."""
    return READ_S if timeout is None else max(READ_S, timeout + READ_S)


def _spell(value: object) -> object:
    """Return an argument as JSON can hold it: infinities and NaN become text."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _stream(client: Client, path: str, body: dict[str, Any], output: str) -> None:
    """Write chunks as they come, or each event as a line of JSON."""
    write = writer(sys.stdout)
    with client.open("POST", path, body, headers={"Accept": "text/event-stream"}) as answer:
        for name, data in read_events(answer.iter_bytes()):
            if name == "error":
                raise failure_of(parse_json(data.encode()))
            if name == "done":
                fields = parse_json(data.encode())
                fields = fields if isinstance(fields, Mapping) else {}
                if output == "json":
                    print_json({"event": name, **fields}, indent=None)
                else:
                    show_written(fields)
                return
            if name in {"chunk", "chunk-base64"}:
                if output == "json":
                    print_json({"event": name, "data": data}, indent=None)
                else:
                    write(decode_chunk(name, data))
    raise ServerUnreachable("the stream broke off before its end")


def read_events(pieces: Iterable[bytes]) -> Iterator[tuple[str, str]]:
    """Yield name and data of each server-sent event as they come.

    Source: WHATWG HTML 9.2.6 (interpreting an event stream), as far as the server uses it.
    """
    rest = b""
    for piece in pieces:
        *events, rest = (rest + piece).split(b"\n\n")
        for event in events:
            yield from _read_event(event)
        if len(rest) > MAX_EVENT_BYTES:
            raise malformed("the stream has an event that is too long")


def _read_event(event: bytes) -> Iterator[tuple[str, str]]:
    try:
        lines = event.decode().split("\n")
    except UnicodeDecodeError:
        raise malformed("the stream has an event that is not UTF-8") from None
    name, data = "message", []
    for line in lines:
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            name = value
        elif field == "data":
            data.append(value)
    if data:
        yield name, "\n".join(data)


def decode_chunk(name: str, data: str) -> bytes:
    """Return the bytes of a chunk: an event ``chunk`` has them as text, ``chunk-base64`` as base64."""
    return data.encode() if name == "chunk" else decode_base64(data, "the stream has a chunk")


@SESSIONS.command("open")
def open_session(
    client: Client,
    function: Reference,
    arguments: Arguments = None,
    *,
    given: Annotated[
        Path | None,
        typer.Option("--input", metavar="FILE", help="Input of the calls that bring none, read with read-input."),
    ] = None,
    env: Env = None,
    output: Output = "text",
) -> None:
    """Open a session, and print its ID."""
    body = without_none(
        function=checked_function(function),
        input_b64=read_input(given),
        argv=[function, *arguments] if arguments else None,
        env=read_variables(env) if env else None,
    )
    show_line(client.call("POST", "/sessions", body), output)


SESSIONS.add_list(
    "List sessions, oldest first.", ("id", "status", "calls", "saved_calls", "used_unix_ms", "version", "function_id")
)


@SESSIONS.command("call")
def call_session(
    client: Client,
    session: SessionId,
    *,
    export: Export = None,
    args: Args = "[]",
    given: Input = None,
    timeout: Timeout = None,
    durable: Annotated[
        bool, typer.Option("--durable", help="Wait until the state after the call is saved as well.")
    ] = False,
    output: Output = "text",
) -> None:
    """Call a session; the next call finds the state that this one leaves."""
    body = call_body(export, args, given, timeout) | ({"durable": True} if durable else {})
    show_outcome(client.call("POST", f"{SESSIONS.path(session)}/invoke", body, timeout=patience_s(timeout)), output)


SESSIONS.add_call("save", "Save a session now, and print the ID of the snapshot.", "POST", show_line, "/snapshot")
SESSIONS.add_send("close", "End a session for good, with its running and waiting calls.", "DELETE")

SNAPSHOTS.add_list("List snapshots, oldest first.", ("id", "size_bytes", "created_unix_ms", "function_id"))
_FIELDS: Final = ("id", "function_id", "version", "session_id", "size_bytes", "created_unix_ms", "content_hash")
SNAPSHOTS.add_call("show", "Show a snapshot.", "GET", partial(show_record, fields=_FIELDS))


@SNAPSHOTS.command("fetch")
def fetch_snapshot(
    client: Client, snapshot: SnapshotId, file: Annotated[Path, typer.Argument(metavar="FILE", help="The new file.")]
) -> None:
    """Write a snapshot's file, whole or not at all."""
    from tensorwasm.artifacts import private_files  # noqa: PLC0415 - keeps --help quick

    try:
        with (
            private_files.replace_file(file) as out,
            client.open("GET", f"{SNAPSHOTS.path(snapshot)}/content") as answer,
        ):
            for piece in answer.iter_bytes():
                try:  # here, because the client takes an OSError within a request for one of the connection
                    out.write(piece)
                except OSError as error:
                    raise _unwritable(file, error) from None
    except OSError as error:
        raise _unwritable(file, error) from None


def _unwritable(file: Path, error: OSError) -> InvalidArgs:
    return InvalidArgs(f"{str(file)!r} cannot be written: {error.strerror}")


SNAPSHOTS.add_call(
    "restore",
    "Open a session with the state of a snapshot, and print its ID.",
    "POST",
    partial(show_line, form="{instance_id}"),
    "/restore",
)
SNAPSHOTS.add_send("delete", "Delete a snapshot.", "DELETE")
