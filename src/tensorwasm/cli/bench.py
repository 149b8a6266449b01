"""`tensor-wasm bench`: figures against bars."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from tensorwasm.errors import InvalidArgs
from tensorwasm.settings import current
from tensorwasm.settings.parsing import checked_seconds


def bench(
    name: Annotated[
        str,
        typer.Argument(
            help="What to measure: deploy, dispatch, emulator, http, job, memory, neighbours, quota, sandbox, "
            "soak, start or waiting."
        ),
    ],
    *,
    device: Annotated[
        str | None, typer.Option(help="For benchmarks that take one: auto, emulator, cuda, cuda:N.")
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            help="For sandbox: how long sandboxes are made at a steady rate, instead of 60; for http: of each "
            "run of wrk, instead of 5; for neighbours: beside each load, instead of 60."
        ),
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the report as JSON.")] = None,
    plot_file: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw it: .svg, .png or .pdf.")
    ] = None,
) -> None:
    """Measure, print one row per figure, and exit with 1 if a bar is missed."""
    from tensorwasm.bench import BENCHMARKS, TIMED  # noqa: PLC0415 - keeps --help quick

    if name not in BENCHMARKS:
        raise InvalidArgs(f"no benchmark {name[:64]!r}; there are {', '.join(BENCHMARKS)}")
    if seconds is not None and name not in TIMED:
        raise InvalidArgs(f"--seconds is for {', '.join(sorted(TIMED))}, not for {name}")
    timed = {} if seconds is None else {"seconds": checked_seconds("--seconds", seconds)}
    report = BENCHMARKS[name](device or current().device, **timed)
    sys.stdout.write(report.to_text())
    if json_file:
        json_file.write_text(report.to_json())
    if plot_file:
        from tensorwasm.bench.plot import plot  # noqa: PLC0415 - matplotlib takes a second to load

        plot(report, plot_file)
    if not report.met:
        raise typer.Exit(1)
