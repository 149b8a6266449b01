"""`tensor-wasm snapshot`: save, restore, inspect, check and compare instances, in files and as artifacts."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tensorwasm.cli.local.run import format_results, read_limits, read_module
from tensorwasm.cli.options import read_bytes
from tensorwasm.cli.output import AsJson, escaped, print_json, waiting
from tensorwasm.errors import InvalidArgs
from tensorwasm.settings import current
from tensorwasm.values import MIB

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tensorwasm.artifacts.snapshot.file import SnapshotFile
    from tensorwasm.artifacts.snapshot.inspection import Difference
    from tensorwasm.artifacts.store import TenantView
    from tensorwasm.runtime import Runtime, Snapshot
    from tensorwasm.runtime.snapshots.archive import File
    from tensorwasm.runtime.snapshots.live import LiveInstance

MAX_INPUT_BYTES: Final = 64 * MIB

_PREFIX: Final = "artifact:"

app = typer.Typer(
    name="snapshot", help="Save live instances, restore them, inspect what was saved.", no_args_is_help=True
)

Module = Annotated[Path, typer.Argument(metavar="FILE", help="The module, a .wasm file; - reads standard input.")]
Saved = Annotated[
    str, typer.Argument(metavar="SNAPSHOT", help="A file that `snapshot save` wrote, or artifact:NAME of an artifact.")
]
Parents = Annotated[
    list[str] | None,
    typer.Option(
        "--parent", metavar="SNAPSHOT", help="Its parents, nearest first; an artifact knows its own. Repeatable."
    ),
]
Calls = Annotated[
    list[str] | None,
    typer.Option("--call", metavar="CALL", help="A function and its arguments: 'add [1, 2]'. Repeatable, in order."),
]
Granted = Annotated[list[str] | None, typer.Option("--grant", help="What the guest may use, such as cuda. Repeatable.")]
Input = Annotated[
    Path | None, typer.Option("--input", metavar="FILE", help="Input that the guest reads with read-input.")
]
OnDevice = Annotated[
    str | None, typer.Option("--device", help="auto, emulator, cuda or cuda:N. [env: TENSOR_WASM_DEVICE]")
]
Timeout = Annotated[
    float | None, typer.Option("--timeout", metavar="SECONDS", help="For each call. [env: TENSOR_WASM_TIMEOUT]")
]
Memory = Annotated[
    int | None, typer.Option("--memory", metavar="MIB", help="Linear memory at most. [env: TENSOR_WASM_MEMORY]")
]
Tenant = Annotated[
    str | None, typer.Option(help="Tenant of the artifacts and the module; without it the default tenant.")
]


@dataclass(frozen=True, slots=True)
class SnapshotLocation:
    """Where a snapshot is. Its methods raise the errors of `tensorwasm.runtime.snapshots.archive` and of ``stored``."""

    text: str  # a path, or artifact:NAME; a file of such a name is ./artifact:NAME
    tenant: str | None  # owner of the artifacts; None is the default tenant

    @property
    def name(self) -> str | None:
        """The artifact's name, None for a file."""
        return self.text.removeprefix(_PREFIX) if self.text.startswith(_PREFIX) else None

    @property
    def owner(self) -> str:
        """The tenant that owns the artifacts."""
        from tensorwasm.gpu.limits.accounts import DEFAULT_TENANT  # noqa: PLC0415 - keeps --help quick

        return self.tenant or DEFAULT_TENANT

    def find(self, parents: Sequence[str] = ()) -> list[File]:
        """Return the snapshot and its parents: those that its artifact names, then those at other locations."""
        from tensorwasm.runtime.snapshots import stored  # noqa: PLC0415 - keeps --help quick

        own = [self.text] if self.name is None else stored.fetch_snapshot(self._view(), self.name).files
        return [*own, *(file for text in parents for file in SnapshotLocation(text, self.tenant).find())]

    def open(self, parents: Sequence[str] | None) -> SnapshotFile:
        """Open the snapshot and its parents; with None as parents, the snapshot alone."""
        from tensorwasm.artifacts.keys import KeyRing  # noqa: PLC0415 - keeps --help quick
        from tensorwasm.runtime.snapshots.archive import open_file  # noqa: PLC0415 - the same

        first, *rest = self.find(parents or ())
        return open_file(first, KeyRing.from_settings(), [] if parents is None else rest, None)

    def read(self, parents: Sequence[str]) -> Snapshot:
        """Read the snapshot, merged with its parents; the caller closes it."""
        from tensorwasm.artifacts.keys import KeyRing  # noqa: PLC0415 - keeps --help quick
        from tensorwasm.runtime.snapshots.archive import read_file  # noqa: PLC0415 - the same

        first, *rest = self.find(parents)
        return read_file(first, KeyRing.from_settings(), rest)

    def load_module(self, snapshot: Snapshot) -> memoryview:
        """Return the module that is stored with an artifact; a file has none, which raises InvalidArgs."""
        from tensorwasm.runtime.snapshots import stored  # noqa: PLC0415 - keeps --help quick

        if self.name is None:
            raise InvalidArgs("a snapshot in a file has no module with it: name one")
        return stored.fetch_module(self._view(), snapshot)

    def save(self, live: LiveInstance, module: bytes | memoryview, parents: Sequence[str]) -> None:
        """Save an instance here and print its digest; an artifact has one artifact as parent, or raises InvalidArgs."""
        from tensorwasm.runtime.snapshots import archive, stored  # noqa: PLC0415 - keeps --help quick

        with waiting("saving"):
            locations = [SnapshotLocation(parent, self.tenant) for parent in parents]
            if self.name is None:
                files = [file for each in locations for file in each.find()]
                digest = archive.save_file(live, self.text, parents=files)
            else:
                names = [each.name for each in locations]
                if len(names) > 1 or None in names:
                    raise InvalidArgs(f"an artifact adds to one artifact: --parent {_PREFIX}NAME, once")
                digest = stored.store_snapshot(
                    self._view(), self.name, live, module, parent=names[0] if names else None
                )
        print(f"saved {digest.content_hash.hex()}: {digest.content_bytes} bytes in {digest.file_bytes}")

    def _view(self) -> TenantView:
        from tensorwasm.artifacts.opening import open_store  # noqa: PLC0415 - keeps --help quick
        from tensorwasm.artifacts.store import TenantView  # noqa: PLC0415 - the same

        return TenantView(open_store(), self.owner)


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
    """Make an instance of a module, make the calls, and save its state.

    With --parent only the difference from that snapshot is written. An artifact is stored together with its module
    and its parent.
    """
    location = SnapshotLocation(to, tenant)
    with _runtime(device, timeout, memory) as runtime:
        module = _read_binary(file)
        function = runtime.load(module, name=file.name, tenant=location.owner)
        too_long = InvalidArgs(f"{given} has more than {MAX_INPUT_BYTES} bytes")
        data = b"" if given is None else read_bytes(given, MAX_INPUT_BYTES, too_long)
        with function.open(grants=grant or (), input=data) as live:
            _make_calls(live, call or ())
            location.save(live, module, parent or ())


@app.command()
def restore(
    saved: Saved,
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE",
            help="The module, a .wasm file; - reads standard input. Without it, the module of the artifact.",
        ),
    ] = None,
    *,
    call: Calls = None,
    grant: Granted = None,
    parent: Parents = None,
    to: Annotated[
        str | None, typer.Option("--save", metavar="SNAPSHOT", help="Save the state after the calls.")
    ] = None,
    tenant: Tenant = None,
    device: OnDevice = None,
    timeout: Timeout = None,
    memory: Memory = None,
) -> None:
    """Restore a saved instance, make the calls, and print their results.

    It may use what is granted here and was granted when it was saved.
    """
    location = SnapshotLocation(saved, tenant)
    given = None if file is None else _read_binary(file)
    with _runtime(device, timeout, memory) as runtime, ExitStack() as stack:
        with waiting("restoring"):
            snapshot = stack.enter_context(location.read(parent or ()))
            module = location.load_module(snapshot) if given is None else given
            function = runtime.load(module, name=saved if file is None else file.name, tenant=location.owner)
            live = stack.enter_context(runtime.restore(snapshot, function, grants=grant or ()))
        _make_calls(live, call or ())
        if to is not None:
            SnapshotLocation(to, tenant).save(live, module, ())


@app.command()
def inspect(saved: Saved, *, tenant: Tenant = None, as_json: AsJson = False) -> None:
    """Describe a snapshot: sizes, names and keys, but no data of the guest."""
    from tensorwasm.artifacts.snapshot.inspection import summarize  # noqa: PLC0415 - keeps --help quick

    with waiting("reading"), SnapshotLocation(saved, tenant).open(None) as snapshot:
        summary = asdict(summarize(snapshot))
    if as_json:
        print_json(summary)
        return
    for name, value in summary.items():
        print(f"{name:20} {' '.join(map(escaped, value if isinstance(value, tuple) else (value,)))}".rstrip())


@app.command()
def verify(saved: Saved, *, parent: Parents = None, tenant: Tenant = None) -> None:
    """Check a snapshot down to its last block: its signature, its hashes, and its structure."""
    with waiting("verifying"), SnapshotLocation(saved, tenant).open(parent or ()) as snapshot:
        snapshot.check_content()
        print(f"ok: {snapshot.content_hash.hex()}, {snapshot.file_bytes} bytes")


@app.command()
def diff(
    one: Saved,
    two: Saved,
    *,
    parent: Annotated[
        list[str] | None, typer.Option("--parent", metavar="SNAPSHOT", help="Parents of the first, nearest first.")
    ] = None,
    other_parent: Annotated[
        list[str] | None, typer.Option(metavar="SNAPSHOT", help="Parents of the second, nearest first.")
    ] = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Show where two snapshots differ, and exit with 1 if they do."""
    from tensorwasm.artifacts.snapshot.inspection import compare  # noqa: PLC0415 - keeps --help quick

    with (
        waiting("comparing"),
        SnapshotLocation(one, tenant).open(parent or ()) as first,
        SnapshotLocation(two, tenant).open(other_parent or ()) as second,
    ):
        found = compare(first, second)
    same = not (found.pages or found.globals or found.tables or found.fields)
    if as_json:
        print_json({**asdict(found), "pages": found.pages, "same": same})
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


def parse_call(text: str, option: str = "--call") -> tuple[str, list[object]]:
    """Return the name and arguments of ``name`` or ``name [1, 2]``, or raise InvalidArgs, which names the option."""
    from tensorwasm.guest.engine import codec  # noqa: PLC0415 - keeps --help quick

    name, bracket, rest = text.partition("[")
    if not name.strip():
        raise InvalidArgs(f"{option} takes a name and perhaps a JSON array, not {text[:64]!r}")
    return name.strip(), codec.parse(bracket + rest) if bracket else []


def _make_calls(live: LiveInstance, calls: Sequence[str]) -> None:
    for name, args in [parse_call(text) for text in calls]:
        done = live.call(name, args)
        sys.stdout.flush()
        sys.stdout.buffer.write(done.stdout)
        sys.stderr.buffer.write(done.stderr)
        print(f"{escaped(name)}: {format_results(done)}")


def _runtime(device: str | None, timeout: float | None, memory: int | None) -> Runtime:
    from tensorwasm.runtime import Runtime  # noqa: PLC0415 - keeps --help quick

    return Runtime(device or current().device, limits=read_limits(timeout, memory))


def _read_binary(file: Path) -> bytes:
    """Return a module's bytes, at most as many as the settings allow, from the file or standard input."""
    from tensorwasm.runtime.api import function  # noqa: PLC0415 - keeps --help quick

    limit_bytes = current().limits().module_bytes
    given = read_module(file, limit_bytes)
    return given if isinstance(given, bytes) else function.read_module(given, limit_bytes)
