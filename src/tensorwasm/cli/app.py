"""All commands, as Typer knows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from tensorwasm.cli.local import artifacts, offload, operating, run, serving, snapshot
from tensorwasm.cli.options import for_typer
from tensorwasm.cli.remote import calls, functions, jobs, kernel, metrics, tenants
from tensorwasm.settings import package_version

app = typer.Typer(
    name="tensor-wasm",
    help="Run untrusted WebAssembly with a GPU in reach.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for _command in (
    for_typer(run.run),
    operating.doctor,
    for_typer(serving.serve),
    for_typer(serving.reload),
    operating.broker,
    operating.bench,
    functions.deploy,
    calls.invoke,
    metrics.metrics,
    metrics.observe,
    tenants.usage,
):
    app.command()(_command)
for _group in (
    functions.FUNCTIONS.app,
    jobs.JOBS.app,
    kernel.KERNELS.app,
    calls.SESSIONS.app,
    calls.SNAPSHOTS.app,
    tenants.TENANTS.app,
    tenants.TOKENS.app,
    artifacts.app,
    operating.audit,
    offload.app,
    snapshot.app,
):
    app.add_typer(_group)


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
    """Run one command line; return the command's result, or the exit code if Typer ends it.

    Raises:
        Exception: any error of the command, or a usage error, which prints itself by its method ``show``.
    """
    try:
        return typer.main.get_command(app).main(list(arguments), prog_name="tensor-wasm", standalone_mode=False)
    except typer.Exit as done:
        return done.exit_code
    except typer.Abort:
        raise KeyboardInterrupt from None
