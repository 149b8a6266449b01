"""`tensor-wasm offload`: which loops of a module may run on all cores or a GPU, and what comes of them in a call."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from tensorwasm.cli.local.run import Memory, Timeout, read_limits
from tensorwasm.cli.local.snapshot import parse_call
from tensorwasm.cli.options import Args, Argument, Export, Option, for_typer, read_bytes
from tensorwasm.cli.output import Output, print_json, print_record, print_table
from tensorwasm.errors import ModuleTooLarge

if TYPE_CHECKING:
    from tensorwasm.guest.imports.offload.guards import RegionStatistics
    from tensorwasm.offload.explain import ExplainedLoop
    from tensorwasm.runtime.api.comparison import SandboxRun
    from tensorwasm.runtime.invoke.offloading import Offloading
    from tensorwasm.values import OffloadMode

app = typer.Typer(name="offload", help="Loops of a module on all cores or a GPU.", no_args_is_help=True)

Loops = Annotated[Path, Argument(metavar="FILE", help="The module, a .wasm file.")]
Place = Annotated[
    Literal["auto", "cpu", "emulator", "cuda"],
    typer.Option("--device", help="Where loops run: cpu is all cores, auto a GPU or else all cores."),
]
Setup = Annotated[
    list[str] | None, Option(metavar="CALL", help="A call to make before: init, or init [64]. Repeatable.")
]
Compare = Annotated[
    bool, Option(help="Make the calls as WebAssembly too, and exit with 1 if results or memory differ.")
]
Repeat = Annotated[int, Option(help="How often to call the function.", min=1)]

_EXPLAINED: Final = ("function", "line", "loops", "region", "reason", "detail")
_PLACE: Final = ("region", "function", "line")
_COUNTED: Final = (*_PLACE, "taken", "declined", "planned_ms", "taken_ms", "moved_bytes", "reasons")
_TIMES: Final = ("calls", "first_ms", "best_ms")


@app.command("explain")
@for_typer
def explain_loops(
    file: Loops,
    *,
    output: Output = "text",
) -> None:
    """List the loops of a module: nests that may run elsewhere, and loops that do not, with the reason.

    Whether a nest does is decided when a call reaches it, for the sizes that it has then.
    """
    from tensorwasm.offload.explain import explain  # noqa: PLC0415 - keeps --help quick
    from tensorwasm.offload.module import cut_module  # noqa: PLC0415 - the same

    wasm = _read(file)
    rows = [_explained(loop) for loop in explain(wasm, cut_module(wasm))]
    if output == "json":
        print_json(rows)
    else:
        print_table(rows, _EXPLAINED, "no loops")


@app.command("run")
@for_typer
def run_offloaded(
    file: Loops,
    *,
    export: Export = None,
    args: Args = "[]",
    setup: Setup = None,
    device: Place = "auto",
    compare: Compare = False,
    repeat: Repeat = 1,
    timeout: Timeout = None,
    memory: Memory = None,
    output: Output = "text",
) -> None:
    """Call a function with the loops of its module offloaded, and say what came of each."""
    from tensorwasm.guest.engine import codec  # noqa: PLC0415 - keeps --help quick
    from tensorwasm.runtime import Runtime  # noqa: PLC0415 - the same
    from tensorwasm.runtime.api.comparison import MeasuredCall, compare_runs, run_alone  # noqa: PLC0415 - the same

    wasm = _read(file)
    before = [MeasuredCall(*parse_call(text, "--setup")) for text in setup or ()]
    anywhere: OffloadMode | None = "cpu" if device == "cpu" else "auto" if device == "auto" else None
    with Runtime("auto" if anywhere else device, limits=read_limits(timeout, memory)) as runtime:
        function = runtime.load(wasm, name=file.stem, offload=anywhere or "gpu", offload_waits=True)
        call = MeasuredCall(function.choose(export), codec.parse(args))
        runs, difference = {}, ""
        if compare:
            found = compare_runs(runtime.load(wasm, name=file.stem), function, before, call, repeat)
            runs, difference = {"plain": found.plain, "offloaded": found.offloaded}, found.difference
        else:
            runs["offloaded"] = run_alone(function, before, call, repeat)
        report: dict[str, Any] = {name: _timed(run) for name, run in runs.items()}
        report |= {"regions": _counted(wasm, function.offloading), "difference": difference or None}
    if compare and runs["offloaded"].times_s and runs["plain"].times_s:
        report["speed_up"] = round(min(runs["plain"].times_s) / min(runs["offloaded"].times_s), 3)
    _print(report, output)
    if difference:
        raise typer.Exit(1)


def _print(report: dict[str, Any], output: Literal["text", "json"]) -> None:
    if output == "json":
        print_json(report)
        return
    print_table(report["regions"], _COUNTED, "no loops that may run elsewhere")
    print()
    timed = [{"calls": name, **report[name]} for name in ("plain", "offloaded") if name in report]
    print_table(timed, (*_TIMES, "ended"), "")
    if "speed_up" in report:
        print(f"speed-up of the best: {report['speed_up']:g}")
    if report["difference"] is not None:
        print_record({"difference": report["difference"]}, ("difference",))
    elif "plain" in report:
        print("results and memory are the same")


def _read(file: Path) -> bytes:
    limit = read_limits(None, None).module_bytes
    return read_bytes(file, limit, ModuleTooLarge(f"the module has more than {limit} bytes"))


def _explained(loop: ExplainedLoop) -> dict[str, Any]:
    from tensorwasm.offload.declined import Declined  # noqa: PLC0415 - keeps --help quick

    return {
        "function": loop.function,
        "line": None if loop.line is None else f"{loop.line.file}:{loop.line.line}",
        "loops": loop.depth or None,
        "region": loop.region,
        "reason": None if loop.reason is None else loop.reason.name.lower(),
        "detail": None if loop.reason is None else str(Declined(loop.reason, loop.detail)),
    }


def _counted(wasm: bytes, offloading: Offloading | None) -> list[dict[str, Any]]:
    from tensorwasm.offload.explain import explain  # noqa: PLC0415 - keeps --help quick

    if offloading is None:
        return []
    rows = []
    for loop in explain(wasm, offloading.cut):
        if loop.region is not None:
            explained = _explained(loop)
            counted = _statistics(offloading.statistics[loop.region])
            rows.append({name: explained[name] for name in _PLACE} | counted)
    return rows


def _statistics(found: RegionStatistics) -> dict[str, Any]:
    reasons = [
        f"{refusal.reason.name.lower()}{f' ({refusal.detail})' if refusal.detail else ''}: {count}"
        for refusal, count in found.declined.most_common()
    ]
    return {
        "taken": found.taken,
        "declined": sum(found.declined.values()),
        "planned_ms": round(found.planned_s * 1e3, 3),
        "taken_ms": round(found.taken_s * 1e3, 3),
        "moved_bytes": found.moved_bytes,
        "reasons": reasons,
    }


def _timed(run: SandboxRun) -> dict[str, Any]:
    return {
        "first_ms": round(run.times_s[0] * 1e3, 3) if run.times_s else None,
        "best_ms": round(min(run.times_s) * 1e3, 3) if run.times_s else None,
        "ended": run.ending or None,
        "results": run.results,
    }
