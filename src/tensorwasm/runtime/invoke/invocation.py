"""`Call`: one call with its arguments and streams. `Invocation`: its outcome, `PendingInvocation` before the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypedDict

from tensorwasm.errors import GuestError, GuestExit, GuestTrap, StdinTooLarge
from tensorwasm.gpu.limits.accounts import DEFAULT_TENANT
from tensorwasm.guest.engine import codec
from tensorwasm.guest.imports import OutputStream
from tensorwasm.guest.sandbox.wasi import NO_WASI, WasiConfig
from tensorwasm.guest.sandbox.wasi_io import INHERIT, Inherit, Sink
from tensorwasm.runtime.deploy.deployer import StopHook
from tensorwasm.runtime.invoke.deployed_module import DeployedModule
from tensorwasm.runtime.invoke.device_access import resolve_memory_kind
from tensorwasm.runtime.invoke.grants import Grants, parse_grants
from tensorwasm.values import Deadline, Limits, MemoryKind, OffloadUse

if TYPE_CHECKING:
    import asyncio

    from tensorwasm.gpu.session import Session, SessionStatistics
    from tensorwasm.guest.imports.offload.guards import OffloadService
    from tensorwasm.guest.reactor.task import Sandbox
    from tensorwasm.guest.sandbox.instance import Instance
    from tensorwasm.guest.sandbox.wasi_io import WasiState
    from tensorwasm.values import DeviceInfo

FLOATS: Final = frozenset({"f32", "f64"})

OutputName = Literal["stdout", "stderr", "chunk"]
Listener = Callable[[OutputName, bytes], bool]
"""Takes output as it is written, one ``emit-chunk`` a time, and returns whether its client still reads."""


Announce = Callable[[Callable[[], None]], object]
"""Called with what ends a sandbox, from any thread."""


class Invocation(NamedTuple):
    """The outcome of one call."""

    export: str  # the function called
    values: tuple[codec.Number, ...]  # its results, integers exact, floats as Python has them
    result_types: tuple[str, ...]  # their Wasm types
    exit_code: int  # what the guest passed to ``proc_exit``; 0 if it simply returned
    stdout: bytes  # what it wrote, unless a sink took it
    stderr: bytes  # the same for standard error
    chunks: tuple[bytes, ...]  # what it sent with ``emit-chunk``, unless a sink took it
    elapsed_s: float  # wall-clock seconds of instantiation and call
    gpu: SessionStatistics | None  # what it held on the device when the call had ended, None without the grant
    # It wrote more than ``limits.output_bytes``: the rest of standard output failed in the guest.
    stdout_truncated: bool = False
    stderr_truncated: bool = False  # the same for standard error
    # How much of `elapsed_s` the guest waited for the device: its kernels, copies and streams.
    device_s: float = 0.0
    offload: OffloadUse | None = None  # what became of its loops, None if they are not to run elsewhere

    @property
    def offload_s(self) -> float:
        """How much of `elapsed_s` its loops ran elsewhere."""
        return self.offload.seconds if self.offload is not None else 0.0

    @property
    def truncated(self) -> tuple[str, ...]:
        """Names of the streams that were cut: ``stdout``, ``stderr``, both or none."""
        flags = (("stdout", self.stdout_truncated), ("stderr", self.stderr_truncated))
        return tuple(name for name, cut in flags if cut)

    def to_json(self) -> str:
        """Return the results as a JSON array; NaN and infinities as strings, integers with all their digits."""
        if FLOATS.isdisjoint(self.result_types):
            return str(list(self.values))  # takes half as long as `codec.render`
        return codec.render(self.result_types, self.values)


class PendingInvocation(Future[Invocation]):
    """The future outcome of a call. Thread-safe.

    `result` raises what ended the call; `errors.TensorWasmError.retryable` says whether to try again.
    """

    def __init__(self) -> None:
        super().__init__()
        self.hook = StopHook()  # stops the call; for what runs it
        # How long the guest has run, without waits and other guests' turns; None unless it was measured.
        self.spent_ns: int | None = None
        self.waits = False  # whether it is settled on a thread that may wait

    def cancel(self) -> bool:
        """End without an outcome, and stop the call as soon as possible; False if there is an outcome."""
        if self.cancelled() or not super().cancel():
            return self.cancelled()
        with suppress(RuntimeError):  # two threads cancelled it at once
            self.set_running_or_notify_cancel()
        self.hook.stop()
        return True

    def stop(self) -> None:
        """Stop the call as soon as possible; the outcome is set once it has ended."""
        self.hook.stop()

    def stop_with(self, stop: Callable[[], object]) -> None:
        """Set what stops the call; it is called at once if the call was stopped already."""
        self.hook.stop_with(stop)
        if self.done():  # the guest refers to this: what refers to the guest would keep both
            self.hook.forget()

    def settle(self, outcome: Invocation | BaseException) -> None:
        """Set the outcome; of several the first counts, a cancellation among them."""
        self.hook.forget()
        try:
            if isinstance(outcome, GuestError):  # its frames refer to this, and cycles are seldom collected
                outcome.__traceback__ = outcome.__context__ = None
            if isinstance(outcome, BaseException):
                self.set_exception(outcome)
            else:
                self.set_result(outcome)
        except InvalidStateError:
            return


async def await_outcome(pending: Future[Invocation]) -> Invocation:
    """Wait for an outcome in an event loop, or its error. Cancelling the task cancels the call."""
    import asyncio  # noqa: PLC0415 - half of this package's import time, which event loops have spent already

    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Invocation] = loop.create_future()
    pending.add_done_callback(partial(_hand_over, loop, answer, threading.get_ident()))
    try:
        return await answer
    except BaseException:
        pending.cancel()
        raise


async def locate_trap(error: BaseException | None) -> None:
    """Look up a trap's source lines, unless that was done, on another thread than the event loop's."""
    import asyncio  # noqa: PLC0415 - as above

    if isinstance(error, GuestTrap) and error.find_lines is not None:
        await asyncio.to_thread(getattr, error, "backtrace")


def _hand_over(
    loop: asyncio.AbstractEventLoop, answer: asyncio.Future[Invocation], thread: int, done: Future[Invocation]
) -> None:
    if threading.get_ident() == thread:  # the loop has read the outcome itself
        _resolve(answer, done)
        return
    with suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(_resolve, answer, done)


def _resolve(answer: asyncio.Future[Invocation], done: Future[Invocation]) -> None:
    if answer.done():
        return
    try:  # each question takes a lock
        error = done.exception()
    except CancelledError:
        answer.cancel()
        return
    if error is None:
        answer.set_result(done.result())
    else:
        answer.set_exception(error)


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
    offload: OffloadService[Any] | None = None  # runs its loops elsewhere

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
            gpu=_device_use(session, self.offload),
            stdout_truncated=written.stdout_truncated,
            stderr_truncated=written.stderr_truncated,
            device_s=session.waited_s if session is not None else 0.0,
            offload=self.offload.use() if self.offload is not None else None,
        )


def _device_use(session: Session | None, offload: OffloadService[Any] | None) -> SessionStatistics | None:
    """Return what a guest's own session and that of its loops have used together, None for nothing."""
    own = session.statistics() if session is not None else None
    loops = offload.device_statistics() if offload is not None else None
    if own is None or loops is None:
        return own or loops
    sums: dict[str, Any] = {name: one + other for name, one, other in zip(own._fields, own, loops, strict=True)}
    return own._replace(**sums | {"abandoned": own.abandoned or loops.abandoned})


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
    granted, chunks = parse_grants(grants), Chunks(on_chunk)
    return Call(
        function=function,
        export=function.choose(export),
        args=args,
        services={"input": input, "stream": OutputStream(chunks)},
        chunks=chunks,
        config=configure(function, granted, argv=argv, env=env, stdin=stdin, stdout=stdout, stderr=stderr),
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
    function: DeployedModule,
    granted: Grants,
    *,
    argv: Sequence[str] | None = None,
    env: Mapping[str, str] | None = None,
    stdin: bytes | Inherit = b"",
    stdout: Sink | Inherit | None = None,
    stderr: Sink | Inherit | None = None,
) -> WasiConfig:
    """Return a guest's WASI arguments, streams and granted directories; none if its module does not import WASI.

    Raises:
        StdinTooLarge: standard input that is given as a value is over the limit.
    """
    check_stdin(stdin, function.host.limits)
    if not function.prepared.needs_wasi:
        return NO_WASI
    words = tuple(argv) if argv is not None else (function.name,)
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


def written(guest: Instance | Sandbox | WasiState | None) -> WrittenOutput:
    """Return what a guest wrote, nothing for one without WASI."""
    if guest is None:
        return WrittenOutput()
    out, err = guest.stdout, guest.stderr
    if out is None or err is None:
        return WrittenOutput()
    return WrittenOutput(out.captured, err.captured, out.truncated, err.truncated)
