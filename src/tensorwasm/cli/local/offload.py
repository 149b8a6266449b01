"""`tensor-wasm offload`: which loops of a module may run on all cores or a GPU, and what comes of them in a call."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from tensorwasm.cli.local.run import MathOrder, Memory, Timeout, read_limits
from tensorwasm.cli.local.snapshot import parse_call
from tensorwasm.cli.options import Args, Argument, Export, Option, for_typer, read_bytes
from tensorwasm.cli.output import Output, print_json, print_record, print_table
from tensorwasm.errors import InvalidArgs, ModuleTooLarge
from tensorwasm.gpu.limits.accounts import DEFAULT_TENANT
from tensorwasm.settings.parsing import checked_offload_math

if TYPE_CHECKING:
    from tensorwasm.guest.imports.offload.recording import RegionStatistics
    from tensorwasm.offload.explain import ExplainedLoop
    from tensorwasm.offload.plan_cache import PlanKey
    from tensorwasm.runtime.api.comparison import SandboxRun
    from tensorwasm.runtime.invoke.offloading import Offloading
    from tensorwasm.runtime.offload.mismatches import MismatchRecords
    from tensorwasm.values import Limits, OffloadMode

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
Timeline = Annotated[
    Path | None,
    Option(metavar="PAGE", help="Write a page in HTML that shows where the time went; copies are waited for then."),
]
Repeat = Annotated[int, Option(help="How often to call the function.", min=1)]
PlannedArgs = Annotated[
    str | None, Option(metavar="JSON", help="Make a call with these arguments, and say how its loops run in parallel.")
]
Tenant = Annotated[str, Option(metavar="NAME", help="Whose module it is, as the service's workers call the tenant.")]
Kernels = Annotated[bool, Option(help="With --args: the PTX of these loops, too.")]

_ARCHITECTURE: Final = (9, 0)
_EXPLAINED: Final = ("function", "line", "loops", "region", "reason", "detail")
_PLACE: Final = ("region", "function", "line")
_COUNTED: Final = (*_PLACE, "taken", "declined", "planned_ms", "taken_ms", "moved_bytes", "reasons")
_TIMES: Final = ("calls", "first_ms", "best_ms")


@app.command("explain")
@for_typer
def explain_loops(
    file: Loops,
    *,
    export: Export = None,
    args: PlannedArgs = None,
    setup: Setup = None,
    ptx: Kernels = False,
    tenant: Tenant = DEFAULT_TENANT,
    timeout: Timeout = None,
    memory: Memory = None,
    output: Output = "text",
) -> None:
    """List the loops of a module: nests that may run elsewhere, and loops that do not, with the reason.

    Whether a nest does is decided when a call reaches it, for the sizes that it has then: with --args, a call is made,
    and for each nest that it reaches follows how it runs in parallel, or why it does not. Nests that are off on this
    machine, because a run of them differed from WebAssembly, are shown with how often that was found.
    """
    from tensorwasm.offload.explain import explain  # noqa: PLC0415 - keeps --help quick
    from tensorwasm.offload.module import cut_module  # noqa: PLC0415 - the same
    from tensorwasm.runtime.deploy.kernel_folder import open_kernel_folder  # noqa: PLC0415 - the same
    from tensorwasm.runtime.offload.mismatches import MismatchRecords  # noqa: PLC0415 - the same

    wasm = _read(file)
    cut = cut_module(wasm)
    records = MismatchRecords(open_kernel_folder(), tenant, cut.lone)
    rows = [_explained(loop) | _mismatches(records, loop.region) for loop in explain(wasm, cut)]
    plans = (
        [] if args is None else _plans(file, wasm, (export, args, setup or []), read_limits(timeout, memory), ptx=ptx)
    )
    if output == "json":
        print_json({"loops": rows, "plans": plans} if args is not None else rows)
        return
    print_table(rows, _EXPLAINED, "no loops")
    for plan in plans:
        print(f"\nregion {plan['region']} with {plan['integers']}, {plan['memory_bytes']} bytes of memory:")
        print("\n".join(f"  {line}" for line in plan["listing"] or [plan["detail"]]))
        if plan["ptx"]:
            print(f"\n{plan['ptx']}")


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
    timeline: Timeline = None,
    offload_math: MathOrder = "exact",
    timeout: Timeout = None,
    memory: Memory = None,
    output: Output = "text",
) -> None:
    """Call a function with the loops of its module offloaded, and say what came of each."""
    from tensorwasm.cli.local.timeline_page import draw_timeline  # noqa: PLC0415 - keeps --help quick
    from tensorwasm.guest.engine import codec  # noqa: PLC0415 - the same
    from tensorwasm.guest.imports.offload.recording import SpanLog  # noqa: PLC0415 - the same
    from tensorwasm.runtime import Runtime  # noqa: PLC0415 - the same
    from tensorwasm.runtime.api.comparison import MeasuredCall, compare_runs, run_alone  # noqa: PLC0415 - the same

    wasm = _read(file)
    before = [MeasuredCall(*parse_call(text, "--setup")) for text in setup or ()]
    anywhere: OffloadMode | None = "cpu" if device == "cpu" else "auto" if device == "auto" else None
    with Runtime("auto" if anywhere else device, limits=read_limits(timeout, memory)) as runtime:
        math = checked_offload_math("--offload-math", offload_math)
        function = runtime.load(wasm, name=file.stem, offload=anywhere or "gpu", offload_math=math, offload_waits=True)
        offloading, spans = function.offloading, SpanLog()
        if offloading is not None and timeline is not None:
            offloading.spans = spans
        call = MeasuredCall(function.choose(export), codec.parse(args))
        runs, difference = {}, ""
        if compare:
            found = compare_runs(runtime.load(wasm, name=file.stem), function, before, call, repeat)
            runs, difference = {"plain": found.plain, "offloaded": found.offloaded}, found.difference
        else:
            runs["offloaded"] = run_alone(function, before, call, repeat)
        report: dict[str, Any] = {name: _timed(run) for name, run in runs.items()}
        report |= {"regions": _counted(wasm, offloading), "difference": difference or None}
        if timeline is not None:
            page = draw_timeline(f"{file.name} on {device}", runs["offloaded"].spans, spans, report["regions"])
            _write(timeline, page)
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


def _write(file: Path, page: str) -> None:
    try:
        file.write_text(page, encoding="utf-8")
    except OSError as error:
        raise InvalidArgs(f"{file} cannot be written: {error.strerror}") from None


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


def _mismatches(records: MismatchRecords, region: int | None) -> dict[str, Any]:
    """Return why a region is off because of what is kept on this machine; nothing if it is not."""
    from tensorwasm.offload.declined import DeclineReason  # noqa: PLC0415 - keeps --help quick

    found = None if region is None else records.find(region)
    if found is None:
        return {}
    reason = DeclineReason.DIFFERED
    evidence = [json.loads(each) for each in found.evidence]
    return {"reason": reason.name.lower(), "detail": f"{reason.value}: found {found.count} times", "evidence": evidence}


def _plans(
    file: Path, wasm: bytes, call: tuple[str | None, str, list[str]], limits: Limits, *, ptx: bool
) -> list[dict[str, Any]]:
    """Make a call, an export with arguments after other calls; return what was planned for the loops it reached."""
    from tensorwasm.guest.engine import codec  # noqa: PLC0415 - keeps --help quick
    from tensorwasm.runtime import Runtime  # noqa: PLC0415 - the same
    from tensorwasm.runtime.api.comparison import MeasuredCall, run_alone  # noqa: PLC0415 - the same

    export, args, setup = call
    before = [MeasuredCall(*parse_call(text, "--setup")) for text in setup]
    with Runtime("emulator", limits=limits) as runtime:
        function = runtime.load(wasm, name=file.stem, offload="cpu", offload_waits=True)
        run_alone(function, before, MeasuredCall(function.choose(export), codec.parse(args)))
        offloading = function.offloading
        return [] if offloading is None else [_planned(key, offloading, ptx=ptx) for key in offloading.planned()]


def _planned(key: PlanKey, offloading: Offloading, *, ptx: bool) -> dict[str, Any]:
    """Return how a region runs for a key, in text, or why it does not."""
    from tensorwasm.offload.codegen.nvptx import compile_for_gpu  # noqa: PLC0415 - keeps --help quick
    from tensorwasm.offload.declined import Declined  # noqa: PLC0415 - the same
    from tensorwasm.offload.listing import list_program  # noqa: PLC0415 - the same
    from tensorwasm.runtime.offload.plan_process import plan_region  # noqa: PLC0415 - the same

    row: dict[str, Any] = {**key._asdict(), "listing": [], "ptx": None, "reason": None, "detail": None}
    try:
        program = plan_region(
            offloading.cut.lone[key.region], key.integers, key.memory_bytes, relaxed=offloading.math == "relaxed"
        )
        row["listing"] = list_program(program)
        row["ptx"] = compile_for_gpu(program, _ARCHITECTURE).ptx if ptx else None
    except Declined as declined:
        row |= {"reason": declined.reason.name.lower(), "detail": str(declined)}
    return row


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
    reasons = [f"{refusal.words}: {count}" for refusal, count in found.declined.most_common()]
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
