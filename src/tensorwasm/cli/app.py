"""All commands, as Typer knows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from tensorwasm.cli import (
    artifacts,
    audit,
    bench,
    deploy,
    doctor,
    functions,
    invoke,
    jobs,
    kernel,
    metrics,
    observe,
    run,
    serve,
    sessions,
    snapshot,
    snapshots,
    tenants,
    tokens,
    usage,
)
from tensorwasm.cli.options import for_typer
from tensorwasm.settings import package_version

app = typer.Typer(
    name="tensor-wasm",
    help="Run untrusted WebAssembly with a GPU in reach.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command()(for_typer(run.run))
app.command()(doctor.doctor)
app.command()(serve.serve)
app.command()(bench.bench)
app.command()(deploy.deploy)
app.command()(invoke.invoke)
app.command()(metrics.metrics)
app.command()(observe.observe)
app.command()(usage.usage)
app.add_typer(functions.app)
app.add_typer(jobs.app)
app.add_typer(kernel.app)
app.add_typer(sessions.app)
app.add_typer(snapshots.app)
app.add_typer(tenants.app)
app.add_typer(tokens.app)
app.add_typer(artifacts.app)
app.add_typer(audit.app)
app.add_typer(snapshot.app)


def _show_version(wanted: bool) -> None:  # noqa: FBT001 - Typer calls it with the flag's value
    if wanted:
        print(f"tensor-wasm {package_version()}")
        raise typer.Exit


@app.callback()
def options(
    *,
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Run untrusted WebAssembly with a GPU in reach."""


def run_line(arguments: Sequence[str]) -> object:
    """Run one command line; return what its command does, or the exit code where Typer ends it.

    Raises:
        KeyboardInterrupt: it was interrupted.
        Exception: what the command raises, and a usage error, which knows how to show itself.
    """
    try:
        return typer.main.get_command(app).main(list(arguments), prog_name="tensor-wasm", standalone_mode=False)
    except typer.Exit as done:
        return done.exit_code
    except typer.Abort:
        raise KeyboardInterrupt from None
