"""`tensor-wasm jobs`: see jobs of a server, wait for them, cancel them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer

from tensorwasm.cli.output import Output, clean, print_json, waiting
from tensorwasm.cli.remote.client import Client, field_of
from tensorwasm.cli.remote.commands import (
    CommandGroup,
    Limit,
    checked_id,
    failure_of,
    format_result,
    show_outcome,
    show_record,
    show_rows,
)
from tensorwasm.errors import ServerUnreachable
from tensorwasm.settings.parsing import checked_seconds

FIELDS: Final = (
    "id", "status", "function_id", "version", "tenant_id", "attempts", "max_attempts", "created_unix_ms",
    "due_unix_ms", "ended_unix_ms",
)  # fmt: skip
ENDED: Final = frozenset({"completed", "failed", "cancelled", "dead"})
WAIT_S: Final = 20.0
"""How long the server is asked to hold its answer back."""

PAUSE_S: Final = (0.05, 1.0)
"""First and longest pause between two requests that the server answered at once."""

Id = Annotated[str, typer.Argument(metavar="ID", help="The job.")]

JOBS: Final = CommandGroup("jobs", "Jobs of a server: see them, wait for them, cancel them.", Id)


@JOBS.command("list")
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
    found = client.list_records("jobs", limit, status=status, function_id=function)
    show_rows(found, output, ("id", "status", "attempts", "created_unix_ms", "function_id"), "(no jobs)")


def _show(job: Any, output: str) -> None:
    show_record(job, output, FIELDS)
    result = job.get("result")
    if output == "text" and isinstance(result, Mapping):
        failed = "kind" in result
        print(
            f"{clean(result['kind'])}: {clean(result.get('message', ''))}"
            if failed
            else format_result(result.get("result"))
        )


JOBS.add_call("show", "Show a job, with its result if it has ended.", "GET", _show)
JOBS.add_call("cancel", "Cancel a job; one that runs is stopped.", "DELETE", _show)


@JOBS.command("wait")
def wait_job(
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
    """Return a job once it has ended, or raise ServerUnreachable at the timeout."""
    until = None if timeout_s is None else time.monotonic() + checked_seconds("--timeout", timeout_s)
    pause_s = PAUSE_S[0]
    with waiting("waiting for the job"):
        while True:
            asked = time.monotonic()
            patience_s = WAIT_S if until is None else max(0.0, min(WAIT_S, until - asked))
            params = {"timeout_s": f"{patience_s:.3f}"}
            job: Mapping[str, Any] = client.call("GET", f"/jobs/{job_id}/wait", params=params)
            if field_of(job, "status") in ENDED:
                return job
            now = time.monotonic()
            if until is not None and now >= until:
                raise ServerUnreachable("the job has not ended in this time; it goes on")
            if now - asked < pause_s:  # the server does not wait
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, PAUSE_S[1])


def show_ended(job: Mapping[str, Any], output: str) -> None:
    """Print the result of a job that has ended; raise Refused if it did not complete."""
    status = job["status"]
    if output == "json":
        print_json(job)
    elif status == "completed":
        show_outcome(field_of(job, "result"), output)
    if status != "completed":
        raise failure_of(job.get("result"), status, f"the job is {status}")
