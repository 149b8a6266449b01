"""The commands and what is common to them: errors become one line and an exit code, never a traceback."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final, NoReturn

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
    tokens,
)
from tensorwasm.errors import GuestExit, OutputClosed, TensorWasmError
from tensorwasm.settings import current, package_version

INTERRUPTED: Final = 130

app = typer.Typer(
    name="tensor-wasm",
    help="Run untrusted WebAssembly with a GPU in reach.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command()(run.run)
app.command()(doctor.doctor)
app.command()(serve.serve)
app.command()(bench.bench)
app.command()(deploy.deploy)
app.command()(invoke.invoke)
app.command()(metrics.metrics)
app.command()(observe.observe)
app.add_typer(functions.app)
app.add_typer(jobs.app)
app.add_typer(kernel.app)
app.add_typer(sessions.app)
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


def execute(arguments: Sequence[str]) -> NoReturn:
    """Run one command line and end the process with its exit code.

    The process ends without Python's and the driver's exit handlers: a kernel that never ends would hold them for ever.
    """
    _open_closed_streams()
    code = _dispatch(arguments)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:  # the reader has gone: its loss, and the code still counts
            continue
    os._exit(code)


def _open_closed_streams() -> None:
    """Let a standard stream that the caller has closed be the null device, whose number no other file then gets."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = Path(os.devnull).open(mode, encoding="utf-8")  # noqa: SIM115 - open as long as the process lives
            setattr(sys, name, stream)


def _dispatch(arguments: Sequence[str]) -> int:
    try:
        outcome = typer.main.get_command(app).main(list(arguments), prog_name="tensor-wasm", standalone_mode=False)
    except TensorWasmError as error:
        return _report(error)
    except typer.Exit as done:
        return done.exit_code
    except (typer.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the last line of defence: one line instead of a traceback
        return _report_unexpected(error)
    return outcome if isinstance(outcome, int) else 0


def _report(error: TensorWasmError) -> int:
    if isinstance(error, GuestExit):
        return error.code
    sys.stderr.write(f"error: {error.kind}: {error.message}\n")
    return error.exit_code


def _report_unexpected(error: Exception) -> int:
    if isinstance(error, OSError):  # our own printing: files and guests' output raise errors of ours
        error = OutputClosed(f"the output cannot be written: {error.strerror}")
        return _report(error)
    if show := getattr(error, "show", None):  # a usage error of Click's: it knows how to print itself
        show()
        return int(getattr(error, "exit_code", 2))
    with contextlib.suppress(TensorWasmError):  # a setting that does not parse: then not
        if current().traceback:
            traceback.print_exception(error)
    sys.stderr.write(f"error: internal: {type(error).__name__}: {error}\n")
    return 1
