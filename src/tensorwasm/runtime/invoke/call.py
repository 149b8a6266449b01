"""`Call`: one call with its arguments, what goes in and out of its guest, and its outcome."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypedDict

from tensorwasm.errors import GuestError, GuestExit, StdinTooLarge
from tensorwasm.gpu.limits.accounts import DEFAULT_TENANT
from tensorwasm.guest.engine import codec
from tensorwasm.guest.imports import OutputStream
from tensorwasm.guest.sandbox.wasi import NO_WASI, WasiConfig
from tensorwasm.guest.sandbox.wasi_io import INHERIT, Inherit, Sink
from tensorwasm.runtime.invoke.deployed_module import DeployedModule
from tensorwasm.runtime.invoke.device_access import resolve_memory_kind
from tensorwasm.runtime.invoke.grants import Grants, parse_grants
from tensorwasm.runtime.invoke.invocation import Invocation
from tensorwasm.values import Deadline, Limits, MemoryKind

if TYPE_CHECKING:
    from tensorwasm.gpu.session import Session
    from tensorwasm.guest.reactor.task import Sandbox
    from tensorwasm.guest.sandbox.instance import Instance
    from tensorwasm.guest.sandbox.linker import LinkedModule
    from tensorwasm.values import DeviceInfo


class CallInputs(TypedDict, total=False):
    """What a guest is given; `tensorwasm.runtime.Function.invoke` documents it."""

    argv: Sequence[str] | None
    env: Mapping[str, str] | None
    stdin: bytes | Inherit
    input: bytes
    grants: Iterable[str] | Grants
    tenant: str
    memory_kind: MemoryKind | None
    deadline: Deadline | None
    stdout: Sink | Inherit | None
    stderr: Sink | Inherit | None
    on_chunk: Callable[[bytes], bool] | None


class CallOptions(CallInputs, total=False):
    """All keyword arguments of `tensorwasm.runtime.Function.invoke`."""

    on_device: Callable[[DeviceInfo, str], object] | None


class Chunks:
    """The chunks of one call: handed on, or collected."""

    def __init__(self, on_chunk: Callable[[bytes], bool] | None) -> None:
        self._on_chunk = on_chunk
        self.chunks: list[bytes] = []

    def send(self, chunk: bytes) -> bool:
        """Take a chunk; return False if the client no longer listens."""
        if self._on_chunk is not None:
            return self._on_chunk(chunk)
        self.chunks.append(chunk)
        return True

    def flush(self) -> None:
        """Do nothing: chunks are not buffered."""


class WrittenOutput(NamedTuple):
    """What a guest wrote to its captured output streams."""

    stdout: bytes = b""
    stderr: bytes = b""
    stdout_truncated: bool = False
    stderr_truncated: bool = False


@dataclass(slots=True)
class Call:
    """A call that runs the full way."""

    function: DeployedModule
    export: str
    args: Sequence[object]
    services: dict[str, object]  # what host functions find, by name
    chunks: Chunks
    config: WasiConfig  # what the guest gets through WASI
    granted: Grants
    tenant: str  # whose account is charged
    memory: MemoryKind  # how kernels reach linear memory
    ends: Deadline  # when it must have ended
    started_s: float  # when it was made, on the clock of `time.perf_counter`

    @property
    def initialisers(self) -> tuple[str, ...]:
        """What a fresh sandbox calls before the export."""
        return self.function.initialisers(self.export)

    def outcome(
        self, values: Sequence[codec.Number], exit_code: int, written: WrittenOutput, session: Session | None
    ) -> Invocation:
        """Return the invocation of a guest that ended well."""
        return Invocation(
            export=self.export,
            values=tuple(values),
            result_types=self.function.result_types(self.export),
            exit_code=exit_code,
            stdout=written.stdout,
            stderr=written.stderr,
            chunks=tuple(self.chunks.chunks),
            elapsed_s=time.perf_counter() - self.started_s,
            gpu=session.statistics() if session is not None else None,
            stdout_truncated=written.stdout_truncated,
            stderr_truncated=written.stderr_truncated,
        )


def make_call(
    function: DeployedModule,
    export: str | None,
    args: Sequence[object],
    *,
    argv: Sequence[str] | None = None,
    env: Mapping[str, str] | None = None,
    stdin: bytes | Inherit = b"",
    input: bytes = b"",  # noqa: A002 - the interface's own word for it
    grants: Iterable[str] | Grants = (),
    tenant: str = DEFAULT_TENANT,
    memory_kind: MemoryKind | None = None,
    deadline: Deadline | None = None,
    stdout: Sink | Inherit | None = None,
    stderr: Sink | Inherit | None = None,
    on_chunk: Callable[[bytes], bool] | None = None,
) -> Call:
    """Describe a call by the arguments of `tensorwasm.runtime.Function.invoke`; raise what is wrong with them."""
    check_stdin(stdin, function.host.limits)
    granted, chunks = parse_grants(grants), Chunks(on_chunk)
    return Call(
        function=function,
        export=function.choose(export),
        args=args,
        services={"input": input, "stream": OutputStream(chunks)},
        chunks=chunks,
        config=configure(function.prepared, function.name, granted, argv, env, stdin, stdout, stderr),
        granted=granted,
        tenant=tenant,
        memory=resolve_memory_kind(memory_kind),
        ends=Deadline.after(function.host.limits.wall_s).earlier(deadline),
        started_s=time.perf_counter(),
    )


def check_stdin(stdin: bytes | Inherit, limits: Limits) -> None:
    """Raise `StdinTooLarge` if standard input that is given as a value is over the limit."""
    if stdin is not INHERIT and len(stdin) > limits.stdin_bytes:
        raise StdinTooLarge(f"standard input has {len(stdin)} bytes; the limit is {limits.stdin_bytes}")


def configure(
    prepared: LinkedModule,
    name: str,
    granted: Grants,
    argv: Sequence[str] | None,
    env: Mapping[str, str] | None,
    stdin: bytes | Inherit = b"",
    stdout: Sink | Inherit | None = None,
    stderr: Sink | Inherit | None = None,
) -> WasiConfig:
    """Return a guest's WASI arguments, streams and granted directories; none if its module does not import WASI."""
    if not prepared.needs_wasi:
        return NO_WASI
    words = tuple(argv) if argv is not None else (name,)
    return WasiConfig(words, tuple(env.items()) if env else (), stdin, stdout, stderr, granted.directories)


def call_export(
    instance: Instance, export: str, args: Sequence[object], deadline: Deadline
) -> tuple[tuple[codec.Number, ...], int]:
    """Call an export; return its results and exit code. A `GuestError` carries what the guest had written."""
    try:
        return tuple(instance.call(export, args, deadline=deadline)), 0
    except GuestExit as left:
        return (), left.code
    except GuestError as error:
        error.stdout, error.stderr, *_ = written(instance)
        raise


def written(instance: Instance | Sandbox) -> WrittenOutput:
    """Return what a guest wrote, nothing for one without WASI."""
    out, err = instance.stdout, instance.stderr
    if out is None or err is None:
        return WrittenOutput()
    return WrittenOutput(out.captured, err.captured, out.truncated, err.truncated)
