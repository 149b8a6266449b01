"""`tensor-wasm invoke`: call a function of a server; at once, as a stream, or as a job."""

from __future__ import annotations

import base64
import binascii
import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from tensorwasm.cli.answers import field_of, parse_json, text_of
from tensorwasm.cli.client import READ_S, Client, client_command
from tensorwasm.cli.deploy import Key, checked_key, encode
from tensorwasm.cli.functions import function_path
from tensorwasm.cli.run import read_variables
from tensorwasm.cli.showing import Output, clean, show_json
from tensorwasm.errors import InvalidArgs, Refused, ServerUnreachable
from tensorwasm.settings.parsing import checked_seconds
from tensorwasm.values import MIB

MAX_INPUT_BYTES: Final = 64 * MIB

REFERENCE: Final = "The function: its ID or name, and @VERSION or @ALIAS if it is not the current version."

Export = Annotated[str | None, typer.Option(help="Function to call; without it _start, and where there is none, main.")]
Args = Annotated[
    str, typer.Option("--args", metavar="JSON", help='Its arguments, a JSON array: [1, 2.5, "NaN", 9007199254740993].')
]
Input = Annotated[
    Path | None, typer.Option("--input", metavar="FILE", help="What the guest reads with read-input; - for stdin.")
]
Timeout = Annotated[
    float | None, typer.Option(metavar="SECONDS", help="In which it must have ended; without it the server's.")
]


@client_command
def invoke(
    client: Client,
    function: Annotated[str, typer.Argument(metavar="FUNCTION", help=REFERENCE)],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="ARG", help="After --: arguments that the guest sees as its argv.")
    ] = None,
    *,
    export: Export = None,
    args: Args = "[]",
    given: Input = None,
    stdin: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Standard input of the guest; - for this one's.")
    ] = None,
    env: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="A variable the guest sees.")] = None,
    timeout: Timeout = None,
    stream: Annotated[
        bool, typer.Option("--stream", help="Write what the guest sends as it comes, byte by byte.")
    ] = False,
    run_async: Annotated[bool, typer.Option("--async", help="Begin a job, and print its ID.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="With --async: wait for the job, and print its result.")] = False,
    idempotency_key: Key = None,
    output: Output = "text",
) -> None:
    """Call a function.

    What the guest wrote comes first, then its results: ok for none, a bare value for one, a JSON array for several.
    """
    if stream and run_async:
        raise InvalidArgs("--stream and --async exclude each other")
    if (wait or idempotency_key is not None) and not run_async:
        raise InvalidArgs("--wait and --idempotency-key go with --async")
    path = function_path(function)
    body = call_body(export, args, given, timeout, stdin=stdin, env=env, argv=arguments and [function, *arguments])
    try:
        if stream:
            _stream(client, path, body, output)
        elif run_async:
            _begin(client, path, body, idempotency_key, output, wait=wait)
        else:
            show_outcome(client.call("POST", f"{path}/invoke", body, timeout=patience_s(timeout)), output)
    except Refused as refused:
        if output == "text":
            _show_written(refused.left)
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
    """Return what a call asks for, as the server takes it; what was not said is left out.

    Raises:
        InvalidArgs: the arguments are no JSON array, a file cannot be read or is too long, or there is no such time.
    """
    from tensorwasm.guest.engine import codec  # noqa: PLC0415 - keeps --help quick

    values = [_spell(value) for value in codec.parse(args)]
    said = {
        "export": export,
        "args": values or None,
        "input_b64": None if given is None else encode(read_input(given)),
        "stdin_b64": None if stdin is None else encode(read_input(stdin)),
        "env": read_variables(env) if env else None,
        "argv": argv or None,
        "deadline_ms": None if timeout is None else max(1, round(checked_seconds("--timeout", timeout) * 1000)),
    }
    return {name: value for name, value in said.items() if value is not None}


def read_input(file: Path) -> bytes:
    """Return what a guest is to read, from a file or standard input.

    Raises:
        InvalidArgs: it cannot be read, or is too long.
    """
    try:
        if str(file) == "-":
            data = sys.stdin.buffer.read(MAX_INPUT_BYTES + 1)
        else:
            with file.open("rb") as opened:
                data = opened.read(MAX_INPUT_BYTES + 1)
    except OSError as error:
        raise InvalidArgs(f"{str(file)!r} cannot be read: {error.strerror}") from None
    if len(data) > MAX_INPUT_BYTES:
        raise InvalidArgs(f"a guest's input has at most {MAX_INPUT_BYTES // MIB} MiB")
    return data


def patience_s(timeout: float | None) -> float:
    """Return how long an answer is waited for: longer than the call may take."""
    return READ_S if timeout is None else max(READ_S, timeout + READ_S)


def show_outcome(outcome: Mapping[str, Any], output: str) -> None:
    """Print what came of a call.

    Raises:
        Refused: the server's answer is malformed.
    """
    result = field_of(outcome, "result")
    if output == "json":
        show_json(outcome)
        return
    if not (_show_written(outcome) and result == "ok"):
        print(format_result(result))


def _show_written(outcome: Mapping[str, Any]) -> bool:
    """Write what a guest wrote; return whether there was anything."""
    from tensorwasm.cli.events import write_all  # noqa: PLC0415 - keeps --help quick

    wrote = False
    for name, to in (("stdout", sys.stdout), ("stderr", sys.stderr), ("output", sys.stdout)):
        data = _written(outcome.get(name))
        write_all(data, to)
        wrote = wrote or bool(data)
        if outcome.get(f"{name}_truncated") is True:
            sys.stderr.write(f"warning: the guest wrote more to {name} than the server keeps: the rest is not there\n")
    return wrote


def format_result(result: object) -> str:
    """Return a call's results for people: ok, a bare value or a JSON array."""
    if isinstance(result, str):
        return clean(result)
    shown = result[0] if isinstance(result, list) and len(result) == 1 else result
    return clean(json.dumps(shown))


def _spell(value: object) -> object:
    """Return an argument as JSON has it: numbers that it has no words for are text."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _written(part: object) -> bytes:
    """Return what a guest wrote, from text or base64."""
    if not isinstance(part, Mapping):
        return b""
    try:
        return (
            base64.b64decode(part["base64"], validate=True) if "base64" in part else str(part.get("text", "")).encode()
        )
    except (binascii.Error, TypeError, ValueError):
        raise Refused("the server's answer has output that is no base64", "malformed_answer") from None


def _stream(client: Client, path: str, body: dict[str, Any], output: str) -> None:
    """Write chunks as they come; with JSON one event a line.

    Raises:
        Refused: the guest failed.
        ServerUnreachable: the stream broke off.
    """
    from tensorwasm.cli.events import decode_chunk, read_events, writer  # noqa: PLC0415 - keeps --help quick

    write = writer(sys.stdout)
    headers = {"Accept": "text/event-stream"}
    with client.open("POST", f"{path}/invoke-stream", body, headers=headers) as answer:
        for name, data in read_events(answer.iter_bytes()):
            if name in {"chunk", "chunk-base64"}:
                if output == "json":
                    _show_event(name, {"data": data})
                else:
                    write(decode_chunk(name, data))
            elif name == "done":
                done = _fields(parse_json(data.encode()))
                if output == "json":
                    _show_event(name, done)
                else:
                    _show_written(done)
                return
            elif name == "error":
                raise _failure(parse_json(data.encode()))
    raise ServerUnreachable("the stream broke off before its end")


def _show_event(name: str, rest: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps({"event": name, **rest}).replace("\x7f", "\\u007f") + "\n")
    sys.stdout.flush()


def _failure(told: object) -> Refused:
    """Return what a stream's last event says went wrong."""
    said = _fields(told)
    kind = said.get("kind") or said.get("reason") or "refused"
    return Refused(clean(said.get("message", "")), clean(kind), left=said)


def _fields(told: object) -> Mapping[str, Any]:
    return told if isinstance(told, Mapping) else {}


def _begin(client: Client, path: str, body: dict[str, Any], key: str | None, output: str, *, wait: bool) -> None:
    """Begin a job; print its ID, or wait for it and print its result."""
    from tensorwasm.cli.jobs import show_ended, wait_for  # noqa: PLC0415 - only here

    headers = {} if key is None else {"Idempotency-Key": checked_key(key)}
    begun = client.call("POST", f"{path}/invoke-async", body, headers=headers)
    if wait:
        show_ended(wait_for(client, text_of(begun, "job_id")), output)
    elif output == "json":
        show_json(begun)
    else:
        print(text_of(begun, "job_id"))
