"""`tensor-wasm broker`, `doctor`, `audit verify` and `bench`.

All but `broker` exit with 1 if something is not as it should be.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tensorwasm.cli.output import AsJson, print_json
from tensorwasm.errors import InvalidArgs
from tensorwasm.settings import current, state_dir
from tensorwasm.settings.parsing import checked_isolation, checked_seconds

if TYPE_CHECKING:  # the benchmarks import all that they measure
    from tensorwasm.bench.figures import Report

ChosenDevice = Annotated[
    str | None, typer.Option(help="auto, emulator, cuda or cuda:N. [env: TENSOR_WASM_DEVICE; default: auto]")
]

ServerProcesses = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="For http and gpu-http: processes of the server, TENSOR_WASM_WORKERS, instead of 1; gpu-http without "
        "--sweep measures one with a single process first, and then one with as many, instead of 4.",
    ),
]
ProgramSizes = Annotated[
    str | None,
    typer.Option(
        help="For offload and offload-kernels: small, medium, large or extralarge, instead of medium and extralarge; "
        "as in PolyBench."
    ),
]
Programs = Annotated[
    str | None, typer.Option(metavar="NAME,...", help="For offload and offload-kernels: the programs, instead of all.")
]
KeptFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="For offload: keep figures in this file after each program, and take from it those that are there for the "
        "same program, machine, device and code.",
    ),
]


def broker(
    *,
    device: ChosenDevice = None,
    isolation: Annotated[
        str | None, typer.Option(help="What keeps tenants apart: guarded or stream. [default: the device's]")
    ] = None,
    socket: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Where to listen. [default: broker.sock in the state folder]")
    ] = None,
) -> None:
    """Run GPU workers that several servers of this user share, until it is stopped.

    Servers find it by TENSOR_WASM_BROKER, the path of its socket, which is printed. They may come and go: a new one
    finds the GPU ready. When the broker ends, so do its workers, and calls in them fail; servers wait for another.
    """
    from tensorwasm.runtime.workers.broker import WorkerBroker  # noqa: PLC0415 - keeps --help quick
    from tensorwasm.runtime.workers.pool import WorkerExecutor  # noqa: PLC0415 - the same

    chosen = None if isolation is None else checked_isolation("--isolation", isolation)
    path = (socket or state_dir() / "broker.sock").expanduser().absolute()
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    with WorkerExecutor(device or current().device, isolation=chosen) as executor:
        if executor.isolation == "process":
            raise InvalidArgs("a broker's workers are shared by tenants: isolation is guarded or stream, not process")
        with WorkerBroker(executor, path):
            print(f"listening on {path}", flush=True)
            stopped.wait()


audit = typer.Typer(name="audit", help="The service's audit log.", no_args_is_help=True)


def doctor(
    *,
    device: Annotated[str | None, typer.Option(help="The device that must work: auto, emulator, cuda, cuda:N.")] = None,
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Check a data folder of the service, or a copy of one, instead.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Check this machine, from the driver to a verified kernel launch on the chosen device; or check a backup.

    The exit code is 0 only if that device works. A FAIL keeps it from working; a WARN does not. With --data it is 0
    only if the service could go on with the folder: database, artifacts and keys.
    """
    from tensorwasm.doctor import Status, check_machine, render, render_rows  # noqa: PLC0415 - keeps --help quick

    if data is None:
        report = check_machine(device or current().device)
        ok, found, text = report.ok, asdict(report), render(report)
    else:
        from tensorwasm.service.backup import examine  # noqa: PLC0415 - the same
        from tensorwasm.settings.service import ServiceSettings  # noqa: PLC0415 - the same

        rows = examine(data.expanduser(), ServiceSettings.from_environment(os.environ))
        ok = all(row.status is not Status.FAIL for row in rows)
        found = {"ok": ok, "rows": [asdict(row) for row in rows]}
        verdict = "It is whole." if ok else "The service cannot go on with all of it."
        text = render_rows("TensorWasm doctor: a data folder", rows, verdict)
    if as_json:
        print_json(found)
    else:
        sys.stdout.write(text)
    if not ok:
        raise typer.Exit(1)


@audit.callback()
def _audit() -> None:
    """Keep `verify` a command of the group although it is the only one."""


@audit.command("verify")
def verify_audit(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH...", help="The log's file, with the full ones beside it; or files, oldest first."),
    ],
    *,
    head: Annotated[
        bool, typer.Option("--head/--no-head", help="The last file has its head beside it; not if it was moved away.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Read an audit log, and exit with 1 if a line was changed, removed or moved, or its beginning or end is cut off.

    The last line's number and hash are printed: kept elsewhere, they prove later that the log was not replaced.
    """
    from tensorwasm.tenancy.audit import log_files, verify  # noqa: PLC0415 - keeps --help quick

    found = verify(*(log_files(paths[0]) if len(paths) == 1 and head else paths), head=head)
    if as_json:
        print_json({**asdict(found), "ok": found.ok})
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


def bench(
    name: Annotated[
        str,
        typer.Argument(
            help="What to measure: deploy, dispatch, emulator, gpu-http, http, job, memory, neighbours, offload, "
            "offload-kernels, offload-overhead, pauses, quota, sandbox, shares, soak, start, tenants, waiting or where."
        ),
    ],
    *,
    device: Annotated[
        str | None, typer.Option(help="For benchmarks that take one: auto, emulator, cuda, cuda:N.")
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            help="For sandbox: how long sandboxes are made at a steady rate, instead of 60; for http and gpu-http: of "
            "each run of wrk, instead of 5 and 4, or 4 in a sweep; for neighbours and pauses: of load, instead of 60."
        ),
    ] = None,
    sweep: Annotated[
        bool,
        typer.Option("--sweep", help="For http and gpu-http: measure with 1 to 256 connections, beside all peers."),
    ] = False,
    workers: ServerProcesses = None,
    size: ProgramSizes = None,
    programs: Programs = None,
    resume: KeptFile = None,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the report as JSON.")] = None,
    plot_file: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw it: .svg, .png or .pdf.")
    ] = None,
) -> None:
    """Measure, print one row per figure, and exit with 1 if a bar is missed."""
    offloading = {"size": size, "programs": programs, "resume": resume}
    report = _measure(name, device or current().device, seconds, workers, offloading, sweep=sweep)
    sys.stdout.write(report.to_text())
    if json_file:
        json_file.write_text(report.to_json())
    if plot_file:
        from tensorwasm.bench.figures import plot  # noqa: PLC0415 - matplotlib takes a second to load

        plot(report, plot_file)
    if not report.met:
        raise typer.Exit(1)


def _measure(
    name: str,
    device: str,
    seconds: float | None,
    workers: int | None,
    offloading: Mapping[str, object],
    *,
    sweep: bool,
) -> Report:
    """Return the report of a benchmark or of its sweep; InvalidArgs for an option that is not for it."""
    from tensorwasm.bench import BENCHMARKS, OFFLOADING, SWEEPS, TIMED  # noqa: PLC0415 - keeps --help quick

    if name not in BENCHMARKS:
        raise InvalidArgs(f"no benchmark {name[:64]!r}; there are {', '.join(BENCHMARKS)}")
    if seconds is not None and name not in TIMED:
        raise InvalidArgs(f"--seconds is for {', '.join(sorted(TIMED))}, not for {name}")
    if (sweep or workers is not None) and name not in SWEEPS:
        raise InvalidArgs(f"--sweep and --workers are for {', '.join(sorted(SWEEPS))}, not for {name}")
    given = {option: value for option, value in offloading.items() if value is not None}
    if given and (name not in OFFLOADING or ("resume" in given and name != "offload")):
        raise InvalidArgs(f"--{next(reversed(given))} is for {' and '.join(sorted(OFFLOADING))}, not for {name}")
    options: dict[str, object] = given if seconds is None else {"seconds": checked_seconds("--seconds", seconds)}
    if workers is not None:
        options["workers"] = workers
    return (SWEEPS if sweep else BENCHMARKS)[name](device, **options)
