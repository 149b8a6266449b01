"""`LiveInstance`: a sandbox that stays between calls and can be saved there; what one is made from, and its figures."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final, Self, TypedDict

from tensorwasm.errors import (
    GuestError,
    InternalError,
    InvalidArgs,
    InvokeTimeout,
    ModuleMemoryTooLarge,
    NotCapturable,
    TensorWasmError,
)
from tensorwasm.gpu.limits.accounts import DEFAULT_TENANT
from tensorwasm.guest.engine import memory_creator
from tensorwasm.guest.imports import CudaService, OutputStream
from tensorwasm.guest.memory.images import Image
from tensorwasm.guest.sandbox.instance import Instance
from tensorwasm.guest.sandbox.wasi_io import Sink
from tensorwasm.guest.saved import transfer
from tensorwasm.guest.saved.transfer import Origin, RestorePlan
from tensorwasm.runtime.deploy.form import Form
from tensorwasm.runtime.invoke.device_access import (
    device_memory,
    end_session,
    is_direct,
    open_session,
    resolve_memory_kind,
    wants_compiled,
)
from tensorwasm.runtime.invoke.grants import Grants
from tensorwasm.runtime.invoke.invocation import Chunks, Invocation, call_export, configure, written
from tensorwasm.saved import SavedInstance, SavedSession
from tensorwasm.values import Deadline, MemoryKind

if TYPE_CHECKING:
    from tensorwasm.gpu.session import Session, SessionStatistics
    from tensorwasm.gpu.shared_device import SharedDevice
    from tensorwasm.runtime.invoke.deployed_module import DeployedModule

_SETTLING_S: Final = 10.0
"""Longest that work on the device is waited for before an instance is saved, unless the caller says otherwise."""


class RestoreOptions(TypedDict, total=False):
    """Keyword arguments of `tensorwasm.runtime.Function.open` that a restored instance is given anew."""

    argv: tuple[str, ...] | None
    env: Mapping[str, str]
    memory_kind: MemoryKind | None
    stdout: Sink | None
    stderr: Sink | None


@dataclass(frozen=True, slots=True)
class InstanceOptions:
    """What a live instance is made with; `tensorwasm.runtime.Function.open` documents it."""

    granted: Grants = field(default_factory=Grants)
    tenant: str = DEFAULT_TENANT
    input: bytes = b""
    argv: tuple[str, ...] | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: bytes = b""
    memory_kind: MemoryKind | None = None
    deadline: Deadline | None = None
    stdout: Sink | None = None
    stderr: Sink | None = None


@dataclass(frozen=True, slots=True)
class RestoreSource:
    """What an instance is restored from: the plan for everything but memory, its image, and the session of the GPU."""

    plan: RestorePlan
    image: Image | None
    session: SavedSession | None


@dataclass(frozen=True, slots=True)
class Ancestor:
    """An earlier state of an instance, to save only what changed since."""

    content_hash: bytes  # of its file
    image: Image | None  # of its memory, None without one
    session: SavedSession | None  # of the GPU, whole, None without one


@dataclass(frozen=True, slots=True)
class LiveStatistics:
    """A snapshot of a live instance's figures."""

    calls: int  # that have ended
    failures: int  # of them, those that raised
    elapsed_s: float  # wall-clock seconds of all of them
    memory_bytes: int  # linear memory it has now, 0 once it is closed
    gpu: SessionStatistics | None  # what it holds on the device, None without the grant


class LiveInstance:
    """A sandbox that stays until it is closed. Any thread may call it; calls are made one at a time.

    Memory, globals, tables and what it holds on the device stay from call to call, also after a trap or a timeout. Each
    call has a deadline, output and last error of its own. Work that a call gave to the device has ended when the call
    returns, unless a stream records. `tensorwasm.runtime.Function.open` and `tensorwasm.runtime.Runtime.restore` make
    one. Close it, or use it as a context manager: it holds a slot of the pool.
    """

    def __init__(
        self, function: DeployedModule, opening: InstanceOptions, revival: RestoreSource | None = None
    ) -> None:
        """Instantiate and initialise, or go on where a saved instance was, which was initialised before."""
        self.function = function  # what it runs
        self.tenant = opening.tenant  # whose account is charged
        self.grants = opening.granted  # what it may use
        self._opening = opening
        self._lock, self._cancelling = threading.Lock(), threading.Lock()
        self._owner = self._calls = self._failures = 0
        self._elapsed_s = 0.0
        self._session: Session | None = None
        self._services: dict[str, object] = {"input": opening.input}
        self._shared: SharedDevice | None = None
        self._resources = ExitStack()
        with self._resources as resources:
            ends = Deadline.after(function.host.limits.wall_s).earlier(opening.deadline)
            self._instance = self._open(ends, revival)
            resources.callback(self._instance.close)
            if revival is None:
                self._initialise(ends)
            else:
                self._revive(revival, ends)
            self._resources = resources.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        """Whether it is closed."""
        return self._instance.closed

    def call(
        self,
        export: str | None = None,
        args: Sequence[object] = (),
        *,
        input: bytes | None = None,  # noqa: A002 - the interface's own word for it
        deadline: Deadline | None = None,
        on_chunk: Callable[[bytes], bool] | None = None,
    ) -> Invocation:
        """Call an export. Blocks; another thread's call is waited for, within the deadline.

        Args:
            export: None takes ``_start``, and where there is none, ``main``.
            args: values for its parameters, as its signature says; see `tensorwasm.guest.engine.codec`.
            input: what the guest reads with ``read-input`` from now on; None leaves it as it is.
            deadline: when the call, and the work it gave to the device, must have ended; never later than
                ``limits.wall_s`` from now.
            on_chunk: takes chunks as they are emitted and returns whether the client still listens; None collects.

        Raises:
            MissingExport: no such function.
            InvalidArgs: arguments do not fit.
            GuestTrap: the guest trapped; like every `GuestError` it carries what the guest had written in this call.
            KernelFault: a kernel broke a rule.
            InvokeTimeout: the deadline passed, before or in the call.
            DeviceLost: the device stopped answering.
            InternalError: the instance is closed, or a host function of its own called this.
        """
        target = self.function.choose(export)
        ends = Deadline.after(self.function.host.limits.wall_s).earlier(deadline)
        with self._turn(ends):
            chunks = Chunks(on_chunk)
            self._begin(chunks, input, ends)
            start = time.perf_counter()
            try:
                with self._bound():
                    values, exit_code = call_export(self._instance, target, args, ends)
                    self._settle(ends)
            except BaseException:
                self._failures += 1
                raise
            finally:
                self._leave()
                elapsed_s = time.perf_counter() - start
                self._calls, self._elapsed_s = self._calls + 1, self._elapsed_s + elapsed_s
            wrote = written(self._instance)
            gpu = self._session.statistics() if self._session is not None else None
            device_s = self._session.waited_s if self._session is not None else 0.0
            ended = target, values, self.function.result_types(target), exit_code
            return Invocation(*ended, *wrote[:2], tuple(chunks.chunks), elapsed_s, gpu, *wrote[2:], device_s)

    @contextmanager
    def captured(self, ancestor: Ancestor | None = None, deadline: Deadline | None = None) -> Iterator[SavedInstance]:
        """Yield the instance's state, or only what changed since an ancestor's. No call can be made meanwhile.

        Work on the device must end by the deadline, 10 s from now for None. The memory's runs are the memory itself.

        Raises:
            NotCapturable: a call is in progress, or it holds what cannot be saved; the message names it.
            InvalidSnapshot: the ancestor is not an earlier state of this instance.
            InvokeTimeout: the work on the device did not end in time; `KernelFault` and `DeviceLost` if it failed.
        """
        if not self._lock.acquire(blocking=False):
            raise NotCapturable("a call is in progress: an instance is saved between two calls")
        self._owner = threading.get_ident()
        try:
            self._require_plain()
            session, data = None, self._services["input"]
            if self._session is not None:
                with self._bound():
                    ends = deadline or Deadline.after(_SETTLING_S)
                    session = self._session.capture(ends, ancestor.session if ancestor is not None else None)
            instrumented, image = self.function.instrumented, ancestor.image if ancestor is not None else None
            with self._instance.resting() as exports:
                yield replace(
                    transfer.capture(exports, instrumented, self._origin, image),
                    module_hash=self.function.module_hash,
                    input=data if isinstance(data, bytes) else b"",
                    grants=self.grants.words(),
                    session=session,
                    parent=ancestor.content_hash if ancestor is not None else None,
                    made_unix_ms=time.time_ns() // 1_000_000,
                )
        finally:
            self._owner = 0
            self._lock.release()

    def statistics(self) -> LiveStatistics:
        """Return a snapshot."""
        size_bytes = 0
        with suppress(TensorWasmError):  # it is called, closed or has no memory
            size_bytes = self._instance.memory.size_bytes
        gpu = self._session.statistics() if self._session is not None else None
        return LiveStatistics(self._calls, self._failures, self._elapsed_s, size_bytes, gpu)

    def cancel(self) -> None:
        """End the running call and refuse later ones, from any thread. They raise `GuestTrap` named ``cancelled``."""
        with self._cancelling:
            self._instance.cancel()
            if self._session is not None:
                self._session.stop_kernels()

    def resume(self) -> None:
        """Take calls again after `cancel`, with memory as the ended call left it; waits for a call in progress.

        A kernel that `cancel` ended has taken the device's state along: calls that use that are refused.
        """
        if self._owner == threading.get_ident():
            raise InternalError("a host function, or the thread that captures it, tried to resume a busy instance")
        with self._lock, self._cancelling:  # a call waits for its kernels after its guest has ended
            if self._session is not None:
                self._session.stop_kernels(wanted=False)
            self._instance.resume()

    def close(self) -> None:
        """Free its memory, what it holds on the device, and its slot. A running call is cancelled. Idempotent.

        Raises `InternalError` if a host function of its own, or the thread that captures it, called this.
        """
        if self._owner == threading.get_ident():
            raise InternalError("a host function, or the thread that captures it, tried to close a busy instance")
        if self._lock.locked():
            self.cancel()
        with self._lock, self._bound():
            self._resources.close()

    def _open(self, ends: Deadline, revival: RestoreSource | None) -> Instance:
        function, opening, limits = self.function, self._opening, self.function.host.limits
        size_bytes = revival.plan.size_bytes if revival is not None else 0
        if size_bytes > limits.memory_bytes:
            raise ModuleMemoryTooLarge(f"the saved memory has {size_bytes} bytes; the limit is {limits.memory_bytes}")
        memory = resolve_memory_kind(opening.memory_kind)
        direct = False
        form = Form(instrumented="live") if revival is None else function.blank
        if self.grants.cuda:
            self._shared = shared = function.host.share()
            direct = is_direct(shared, memory, function.prepared)
            form = form._replace(native=wants_compiled(shared), host_memory=direct)
        prepared = function.form(form)
        mapped = revival is not None and not direct and not form.copied
        self._origin = Origin(revival.image if revival is not None and mapped else None, plain=not direct)
        supply: AbstractContextManager[None] = nullcontext()
        if self._shared is not None:
            self._session = open_session(self._shared, self.tenant, memory, with_layout=prepared.needs_layout)
            self._resources.enter_context(self._session)
            self._services["cuda"] = CudaService(self._session)
            if direct:
                supply = device_memory(self._shared, self._session, self.tenant, memory, limits, size_bytes)
        if self._origin.image is not None:
            image = self._origin.image
            supply = memory_creator.supplying(
                lambda _size, _capacity: image.map(self.tenant), limits.memory_bytes, size_bytes
            )
        with self._bound(), supply:
            return Instance(
                prepared,
                limits=limits,
                services=self._services,
                wasi_config=configure(
                    function,
                    self.grants,
                    argv=opening.argv,
                    env=opening.env,
                    stdin=opening.stdin,
                    stdout=opening.stdout,
                    stderr=opening.stderr,
                ),
                deadline=ends,
                drain=partial(end_session, self._session) if self._session is not None else None,
                layout=self._session.layout if self._session is not None else None,
            )

    def _initialise(self, ends: Deadline) -> None:
        """Call the initialisers, as a call."""
        exports = self.function.initialisers(None)
        if not exports:
            return
        self._begin(Chunks(None), None, ends)
        try:
            with self._bound():
                self._instance.initialise(exports, ends)
                self._settle(ends)
        except GuestError as error:
            error.stdout, error.stderr, *_ = written(self._instance)
            raise
        finally:
            self._leave()

    def _revive(self, revival: RestoreSource, ends: Deadline) -> None:
        transfer.apply(revival.plan, self._instance)
        self._instance.initialised = self._instance.module.is_reactor
        if revival.image is not None and self._origin.image is None:
            transfer.fill(self._instance, self.function.instrumented, revival.image)
        if revival.session is not None and self._session is not None:
            with self._bound():
                self._session.restore(revival.session, ends)

    def _bound(self) -> AbstractContextManager[object]:
        """Make the device's context the thread's current one, which compiled host functions use."""
        if self._shared is None or self._session is None or self._session.layout is None:
            return nullcontext()
        return self._shared.device.native.bound()

    @contextmanager
    def _turn(self, ends: Deadline) -> Iterator[None]:
        if self._owner == threading.get_ident():
            raise InternalError("a host function, or the thread that captures it, called back into a busy instance")
        if not self._lock.acquire(timeout=min(ends.remaining_s(), threading.TIMEOUT_MAX)):
            raise InvokeTimeout("the deadline passed while another call was using the instance")
        self._owner = threading.get_ident()
        try:
            if self.closed:
                raise InternalError("the instance is closed")
            yield
        finally:
            self._owner = 0
            self._lock.release()

    def _begin(self, chunks: Chunks, data: bytes | None, ends: Deadline) -> None:
        """Renew what belongs to one call."""
        self._services["stream"] = OutputStream(chunks)
        if data is not None:
            self._services["input"] = bytes(data)
        for output in (self._instance.stdout, self._instance.stderr):
            if output is not None:
                output.renew(self.function.host.limits.output_bytes)
        if self._session is not None:
            self._services["cuda"] = CudaService(self._session)
            self._session.enter(ends)

    def _settle(self, ends: Deadline) -> None:
        """Wait for the work that the call gave to the device."""
        if self._session is not None and self._session.failure is None and self._session.lingers:
            with suppress(InvalidArgs):  # while a stream records there is nothing to wait for
                self._session.streams.synchronize(ends)

    def _leave(self) -> None:
        if self._session is not None:
            self._session.leave()

    def _require_plain(self) -> None:
        """Refuse state that only the engine has."""
        if self.closed:
            raise NotCapturable("the instance is closed")
        if self._instance.stdout is not None and self.grants.directories:
            raise NotCapturable("the guest has folders through WASI: which files it has open is not saved")
        if self._instance.stdout is not None and self._opening.stdin:
            raise NotCapturable("the guest has standard input: how much of it is left is not saved")
