"""`tensor-wasm snapshot`: instances saved between two calls, brought back, looked at, checked and compared."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tensorwasm.cli.artifacts import shown
from tensorwasm.cli.places import Place, open_place, owner, read
from tensorwasm.cli.progress import waiting
from tensorwasm.cli.run import format_results, read_binary
from tensorwasm.errors import InvalidArgs
from tensorwasm.settings import current
from tensorwasm.settings.parsing import checked_memory_mib, checked_seconds
from tensorwasm.values import MIB

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tensorwasm.artifacts.snapshot.inspection import Difference
    from tensorwasm.runtime import Runtime
    from tensorwasm.runtime.snapshots.live import LiveInstance

MAX_INPUT_BYTES: Final = 64 * MIB

app = typer.Typer(
    name="snapshot", help="Save live instances, bring them back, look at what was saved.", no_args_is_help=True
)

Module = Annotated[Path, typer.Argument(metavar="FILE", help="The module, a .wasm file; - reads standard input.")]
Saved = Annotated[
    str, typer.Argument(metavar="SNAPSHOT", help="A file that `snapshot save` wrote, or artifact:NAME of one kept.")
]
Parents = Annotated[
    list[str] | None,
    typer.Option(
        "--parent",
        metavar="SNAPSHOT",
        help="What it adds to, nearest first; what is kept knows that itself. Repeatable.",
    ),
]
Calls = Annotated[
    list[str] | None,
    typer.Option("--call", metavar="CALL", help="A function and its arguments: 'add [1, 2]'. Repeatable, in order."),
]
Granted = Annotated[list[str] | None, typer.Option("--grant", help="What the guest may use, such as cuda. Repeatable.")]
Input = Annotated[Path | None, typer.Option("--input", metavar="FILE", help="What the guest reads with read-input.")]
OnDevice = Annotated[
    str | None, typer.Option("--device", help="auto, emulator, cuda or cuda:N. [env: TENSOR_WASM_DEVICE]")
]
Timeout = Annotated[
    float | None, typer.Option("--timeout", metavar="SECONDS", help="For each call. [env: TENSOR_WASM_TIMEOUT]")
]
Memory = Annotated[
    int | None, typer.Option("--memory", metavar="MIB", help="Linear memory at most. [env: TENSOR_WASM_MEMORY]")
]
Tenant = Annotated[str | None, typer.Option(help="Whose artifacts and module; without it the default tenant's.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def save(
    file: Module,
    to: Annotated[
        str, typer.Argument(metavar="SNAPSHOT", help="The file to write, whole or not at all, or artifact:NAME.")
    ],
    *,
    call: Calls = None,
    given: Input = None,
    grant: Granted = None,
    parent: Parents = None,
    tenant: Tenant = None,
    device: OnDevice = None,
    timeout: Timeout = None,
    memory: Memory = None,
) -> None:
    """Make an instance of a module, make the calls, and save what it is then.

    With --parent only what differs from that snapshot is written. An artifact is kept together with its module and
    with the one that it adds to.
    """
    with _runtime(device, timeout, memory) as runtime:
        module = read_binary(file)
        function = runtime.load(module, name=file.name, tenant=owner(tenant))
        with function.open(grants=grant or (), input=_read_input(given)) as live:
            _make_calls(live, call or ())
            _save(live, module, Place(to, tenant), parent or ())


@app.command()
def restore(
    saved: Saved,
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE",
            help="The module, a .wasm file; - reads standard input. Without it, what was kept with it.",
        ),
    ] = None,
    *,
    call: Calls = None,
    grant: Granted = None,
    parent: Parents = None,
    to: Annotated[
        str | None, typer.Option("--save", metavar="SNAPSHOT", help="Save what it is after the calls.")
    ] = None,
    tenant: Tenant = None,
    device: OnDevice = None,
    timeout: Timeout = None,
    memory: Memory = None,
) -> None:
    """Go on where a saved instance was: make the calls, and print what each comes to.

    It may use what is granted here and was granted when it was saved.
    """
    place = Place(saved, tenant)
    given = None if file is None else read_binary(file)
    with _runtime(device, timeout, memory) as runtime, ExitStack() as stack:
        with waiting("restoring"):
            snapshot = stack.enter_context(read(place, parent or ()))
            module = place.load_module(snapshot) if given is None else given
            function = runtime.load(module, name=saved if file is None else file.name, tenant=owner(tenant))
            live = stack.enter_context(runtime.restore(snapshot, function, grants=grant or ()))
        _make_calls(live, call or ())
        if to is not None:
            _save(live, module, Place(to, tenant), ())


@app.command()
def inspect(saved: Saved, *, tenant: Tenant = None, as_json: AsJson = False) -> None:
    """Say what a snapshot is: sizes, names, keys; nothing that a guest keeps to itself."""
    from tensorwasm.artifacts.snapshot.inspection import summarize  # noqa: PLC0415 - keeps --help quick

    with waiting("reading"), open_place(Place(saved, tenant), None) as snapshot:
        summary = asdict(summarize(snapshot))
    if as_json:
        _print_json(summary)
        return
    for name, value in summary.items():
        print(f"{name:20} {_readable(value)}".rstrip())


@app.command()
def verify(saved: Saved, *, parent: Parents = None, tenant: Tenant = None) -> None:
    """Check a snapshot down to its last block: its signature, its hashes, and that it makes sense."""
    with waiting("verifying"), open_place(Place(saved, tenant), parent or ()) as snapshot:
        snapshot.check_content()
        print(f"ok: {snapshot.content_hash.hex()}, {snapshot.file_bytes} bytes")


@app.command()
def diff(
    one: Saved,
    two: Saved,
    *,
    parent: Annotated[
        list[str] | None, typer.Option("--parent", metavar="SNAPSHOT", help="What the first adds to, nearest first.")
    ] = None,
    other_parent: Annotated[
        list[str] | None, typer.Option(metavar="SNAPSHOT", help="What the second adds to, nearest first.")
    ] = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Say where two snapshots differ, and exit with 1 if they do."""
    from tensorwasm.artifacts.snapshot.inspection import compare  # noqa: PLC0415 - keeps --help quick

    with (
        waiting("comparing"),
        open_place(Place(one, tenant), parent or ()) as first,
        open_place(Place(two, tenant), other_parent or ()) as second,
    ):
        found = compare(first, second)
    same = not (found.pages or found.globals or found.tables or found.fields)
    if as_json:
        _print_json({**asdict(found), "pages": found.pages, "same": same})
    else:
        print("\n".join([*_differences(found), "the same" if same else f"{found.pages} pages differ"]))
    if not same:
        raise typer.Exit(1)


def _differences(found: Difference) -> Iterator[str]:
    for what, parts in (("memory", found.memories), ("buffer", found.buffers)):
        for number, spans in parts:
            yield from (f"{what} {number}: bytes {start} to {end}" for start, end in spans)
    yield from (f"global {index}" for index in found.globals)
    yield from (f"table {index}" for index in found.tables)
    yield from found.fields


def parse_call(text: str) -> tuple[str, list[object]]:
    """Read ``name`` or ``name [1, 2]``.

    Raises:
        InvalidArgs: it is neither.
    """
    from tensorwasm.guest.engine import codec  # noqa: PLC0415 - keeps --help quick

    name, bracket, rest = text.partition("[")
    if not name.strip():
        raise InvalidArgs(f"--call takes a name and perhaps a JSON array, not {text[:64]!r}")
    return name.strip(), codec.parse(bracket + rest) if bracket else []


def _make_calls(live: LiveInstance, calls: list[str] | tuple[str, ...]) -> None:
    for name, args in [parse_call(text) for text in calls]:
        done = live.call(name, args)
        sys.stdout.flush()
        sys.stdout.buffer.write(done.stdout)
        sys.stderr.buffer.write(done.stderr)
        print(f"{shown(name)}: {format_results(done)}")


def _save(live: LiveInstance, module: bytes | memoryview, to: Place, parents: Sequence[str]) -> None:
    with waiting("saving"):
        digest = to.save(live, module, parents)
    print(f"saved {digest.content_hash.hex()}: {digest.content_bytes} bytes in {digest.file_bytes}")


def _runtime(device: str | None, timeout: float | None, memory: int | None) -> Runtime:
    from tensorwasm.runtime import Runtime  # noqa: PLC0415 - keeps --help quick

    settings = current()
    wall_s = settings.timeout_s if timeout is None else checked_seconds("--timeout", timeout)
    memory_mib = settings.memory_mib if memory is None else checked_memory_mib("--memory", memory)
    limits = replace(settings.limits(), memory_bytes=memory_mib * MIB, wall_s=wall_s)
    return Runtime(device or settings.device, limits=limits)


def _read_input(file: Path | None) -> bytes:
    if file is None:
        return b""
    try:
        with file.open("rb") as source:
            data = source.read(MAX_INPUT_BYTES + 1)
    except OSError as error:
        raise InvalidArgs(f"cannot read {file}: {error.strerror}") from None
    if len(data) > MAX_INPUT_BYTES:
        raise InvalidArgs(f"{file} has more than {MAX_INPUT_BYTES} bytes")
    return data


def _readable(value: object) -> str:
    if isinstance(value, tuple):
        return " ".join(shown(str(item)) for item in value)
    return shown(str(value))


def _print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=1) + "\n")
