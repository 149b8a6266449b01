"""`tensor-wasm jobs`: see jobs of a server, wait for them, cancel them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer

from tensorwasm.cli.answers import Limit, field_of, rows_of, text_of
from tensorwasm.cli.client import Client, client_command
from tensorwasm.cli.functions import checked_id
from tensorwasm.cli.invoke import format_result, show_outcome
from tensorwasm.cli.progress import waiting
from tensorwasm.cli.showing import Output, clean, show_json, show_record, show_table
from tensorwasm.errors import Refused, ServerUnreachable
from tensorwasm.settings.parsing import checked_seconds

SHOWN: Final = (
    "id",
    "status",
    "function_id",
    "version",
    "tenant_id",
    "attempts",
    "max_attempts",
    "created_unix_ms",
    "due_unix_ms",
    "ended_unix_ms",
)
ENDED: Final = frozenset({"completed", "failed", "cancelled", "dead"})
WAIT_S: Final = 20.0
"""How long the server is asked to wait with its answer."""

PAUSE_S: Final = (0.05, 1.0)
"""First and longest pause between two questions that the server answered at once."""

app = typer.Typer(name="jobs", help="Jobs of a server: see them, wait for them, cancel them.", no_args_is_help=True)

Id = Annotated[str, typer.Argument(metavar="ID", help="The job.")]


@app.command("list")
@client_command
def list_jobs(
    client: Client,
    *,
    status: Annotated[
        str | None, typer.Option(help="Only these: pending, running, completed, failed, cancelled or dead.")
    ] = None,
    function: Annotated[str | None, typer.Option(metavar="ID", help="Only this function's.")] = None,
    limit: Limit = 100,
    output: Output = "text",
) -> None:
    """List jobs, newest first."""
    rows = rows_of(client, "/jobs", "jobs", limit, status=status, function_id=function)
    if output == "json":
        show_json(rows)
    else:
        show_table(rows, ("id", "status", "attempts", "created_unix_ms", "function_id"), "(no jobs)")


@app.command()
@client_command
def show(client: Client, job: Id, *, output: Output = "text") -> None:
    """Show a job, with its result if it has ended."""
    _show(client.call("GET", f"/jobs/{checked_id(job)}"), output)


@app.command()
@client_command
def cancel(client: Client, job: Id, *, output: Output = "text") -> None:
    """Cancel a job; one that runs is ended."""
    _show(client.call("DELETE", f"/jobs/{checked_id(job)}"), output)


@app.command()
@client_command
def wait(
    client: Client,
    job: Id,
    *,
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Give up after this time; the job goes on.")
    ] = None,
    output: Output = "text",
) -> None:
    """Wait until a job has ended, and print its result. The exit code is 1 if it did not complete."""
    show_ended(wait_for(client, checked_id(job), timeout), output)


def wait_for(client: Client, job_id: str, timeout_s: float | None = None) -> Mapping[str, Any]:
    """Return a job once it has ended.

    Raises:
        ServerUnreachable: it has not, in this time.
        TensorWasmError: what `Client.call` raises.
    """
    until = None if timeout_s is None else time.monotonic() + checked_seconds("--timeout", timeout_s)
    pause_s = PAUSE_S[0]
    with waiting("waiting for the job"):
        while True:
            asked = time.monotonic()
            patience_s = WAIT_S if until is None else max(0.0, min(WAIT_S, until - asked))
            job: Mapping[str, Any] = client.call(
                "GET", f"/jobs/{job_id}/wait", params={"timeout_s": f"{patience_s:.3f}"}
            )
            if field_of(job, "status") in ENDED:
                return job
            now = time.monotonic()
            if until is not None and now >= until:
                raise ServerUnreachable("the job has not ended in this time; it goes on")
            if now - asked < pause_s:  # the server does not wait
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, PAUSE_S[1])


def show_ended(job: Mapping[str, Any], output: str) -> None:
    """Print the result of a job that has ended.

    Raises:
        Refused: it failed, was cancelled or is dead.
    """
    if output == "json":
        show_json(job)
    elif job["status"] == "completed":
        show_outcome(field_of(job, "result"), output)
    if job["status"] != "completed":
        raise _failure(job)


def _failure(job: Mapping[str, Any]) -> Refused:
    said = job.get("result")
    said = said if isinstance(said, Mapping) else {}
    message, kind = said.get("message", f"the job is {job['status']}"), said.get("kind", job["status"])
    return Refused(clean(message), clean(kind), left=said)


def _show(job: Any, output: str) -> None:
    if output == "json":
        show_json(job)
        return
    text_of(job, "id")
    show_record(job, SHOWN)
    result = job.get("result")
    if isinstance(result, Mapping) and "kind" in result:
        print(f"{clean(result['kind'])}: {clean(result.get('message', ''))}")
    elif isinstance(result, Mapping):
        print(format_result(result.get("result")))
