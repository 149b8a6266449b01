"""`Call`: one invocation as it was asked for, in the ordinary way; what runs it makes the sandbox, and the outcome."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tensorwasm.gpu.limits.accounts import DEFAULT_TENANT
from tensorwasm.guest.engine import codec
from tensorwasm.guest.imports import OutputStream
from tensorwasm.guest.sandbox.output import Inherit, Sink
from tensorwasm.guest.sandbox.wasi import WasiConfig
from tensorwasm.runtime.calling import Written
from tensorwasm.runtime.grants import Grants, parse_grants
from tensorwasm.runtime.invocation import Invocation
from tensorwasm.runtime.linear import checked_kind
from tensorwasm.runtime.streams import Chunks, check_stdin, configure
from tensorwasm.values import Deadline, MemoryKind

if TYPE_CHECKING:
    from tensorwasm.gpu.session import Session
    from tensorwasm.runtime.function import Function


@dataclass(slots=True)
class Call:
    """One invocation.

    Attributes:
        function: what to call.
        export: name of the function.
        args: its arguments.
        services: what host functions find.
        chunks: what the guest sends.
        config: what it gets through WASI.
        granted: what it may use.
        tenant: whose account is charged.
        memory: how kernels reach linear memory.
        ends: when it must have ended.
        started_s: when it was asked for, as `time.perf_counter` counts.
    """

    function: Function
    export: str
    args: Sequence[object]
    services: dict[str, object]
    chunks: Chunks
    config: WasiConfig
    granted: Grants
    tenant: str
    memory: MemoryKind
    ends: Deadline
    started_s: float

    @property
    def initialisers(self) -> tuple[str, ...]:
        """What a fresh sandbox calls before the export."""
        return self.function.initialisers(self.export)

    def outcome(
        self, values: Sequence[codec.Number], exit_code: int, written: Written, session: Session | None
    ) -> Invocation:
        """Return what came of it.

        Args:
            values: results of the export.
            exit_code: the guest's.
            written: what it wrote.
            session: its GPU session, None without one.
        """
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
    function: Function,
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
    """Describe a call by what `tensorwasm.runtime.Function.invoke` takes, which documents it.

    Raises:
        MissingExport: no such function.
        InvalidArgs: there is no such grant or kind of memory.
        StdinTooLarge: standard input is over the limit.
    """
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
        memory=checked_kind(memory_kind),
        ends=Deadline.after(function.host.limits.wall_s).earlier(deadline),
        started_s=time.perf_counter(),
    )
