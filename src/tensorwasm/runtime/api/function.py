"""`Function`: a compiled module, invoked any number of times, each in a sandbox of its own."""

from __future__ import annotations

import os
import stat
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Unpack

from tensorwasm.errors import InvalidArgs, ModuleTooLarge, quote
from tensorwasm.finalizing import finalize_later, prepare_finalizing
from tensorwasm.gpu.limits.accounts import DEFAULT_TENANT
from tensorwasm.guest.sandbox.wasi_io import Inherit, Sink
from tensorwasm.runtime.invoke.deployed_module import DeployedModule, Host
from tensorwasm.runtime.invoke.dispatch import Dispatcher
from tensorwasm.runtime.invoke.full import run_full
from tensorwasm.runtime.invoke.grants import Grants, parse_grants
from tensorwasm.runtime.invoke.invocation import (
    CallOptions,
    Invocation,
    await_outcome,
    check_stdin,
    configure,
    make_call,
)
from tensorwasm.runtime.warm import make_specification

if TYPE_CHECKING:
    from concurrent.futures import Future

    from tensorwasm.gpu.shared_device import SharedDevice
    from tensorwasm.guest.engine.module import CompiledModule
    from tensorwasm.guest.sandbox.linker import LinkedModule
    from tensorwasm.guest.saved.instrumented import InstrumentedModule
    from tensorwasm.runtime.deploy.deployer import StopHook
    from tensorwasm.runtime.deploy.form import Form
    from tensorwasm.runtime.invoke.fiber_runner import FiberRunner
    from tensorwasm.runtime.offload.compiler import OffloadCompiler
    from tensorwasm.runtime.snapshots.live import LiveInstance
    from tensorwasm.runtime.warm import WarmPool
    from tensorwasm.values import Deadline, DeviceInfo, Limits, MemoryKind, OffloadMath, OffloadMode


Name = str | os.PathLike[str]


class Function(DeployedModule):
    """A compiled module. Any thread may invoke it."""

    def __init__(
        self,
        host: Host,
        name: str,
        wasm: bytes,
        prepared: LinkedModule,
        offload: OffloadMode = "off",
        *,
        offload_math: OffloadMath = "exact",
        offload_waits: bool = False,
    ) -> None:
        """Wrap a module whose imports are resolved; `Runtime.load` does this, see `DeployedModule`."""
        super().__init__(host, name, wasm, prepared, offload, offload_math=offload_math, offload_waits=offload_waits)
        self.dispatch = Dispatcher(self)  # runs its calls
        if self.cutting is not None:
            self.cutting.add_done_callback(lambda _: self.dispatch.forget())  # plans that it runs as it is

    def warm(
        self,
        count: int,
        *,
        tenant: str = DEFAULT_TENANT,
        argv: Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
        initialiser: str | None = None,
    ) -> None:
        """Keep sandboxes ready that have been instantiated and started before a call. Returns at once.

        For modules whose start is expensive. Each sandbox serves one invocation; others are made in the background.
        Calls of `invoke`, and of executors, draw them if they are of this tenant, with these arguments and this
        environment, without folders and GPU; all others, and submitted ones, get fresh sandboxes. A start that asks for
        input, sends chunks or launches kernels cannot be made in advance: then all sandboxes are fresh. Its standard
        input is empty.

        Args:
            count: how many, up to the setting TENSOR_WASM_WARM_SANDBOXES; 0 for none.
            tenant: whose invocations draw them.
            argv: as in `invoke`.
            env: as in `invoke`.
            initialiser: an export without parameters and results that from now on each sandbox of this function, warm
                or fresh, calls first, after a reactor's ``_initialize``.

        Raises:
            MissingExport: there is no such function.
            InvalidArgs: the initialiser has parameters or results, or the count is negative.
            InternalError: the runtime is closed.
        """
        if count < 0:
            raise InvalidArgs(f"the number of warm sandboxes is at least 0, not {count}")
        if initialiser is not None:
            plan = self.prepared.module.plan(initialiser)
            if plan.params or plan.results:
                raise InvalidArgs(f"{quote(initialiser)} has parameters or results, so it is not an initialiser")
            self.initialiser = initialiser
        old = self.warm_kept.pop(tenant, None)
        if old is not None:
            self.host.warm.remove(old)
        initialisers = self.initialisers(None)
        if count and (initialisers or self.prepared.needs_wasi or not self.prepared.is_one_shot()):
            config = configure(self, Grants(), argv=argv, env=env)
            kept = make_specification(self.prepared, self.host.limits, config, initialisers, count)
            self.host.warm.add(kept)
            self.warm_kept[tenant] = kept
            prepare_finalizing()
            weakref.finalize(self, finalize_later, partial(self.host.warm.remove, kept))
        self.dispatch.forget()

    @property
    def exports(self) -> tuple[str, ...]:
        """Names of the exported functions, in order."""
        return self.prepared.module.function_names()

    @property
    def imports(self) -> tuple[tuple[str, str], ...]:
        """Module and name of every import, in order."""
        return tuple((wanted.module, wanted.name) for wanted in self.prepared.module.imports)

    def invoke(
        self,
        export: str | None = None,
        args: Sequence[object] = (),
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
        on_device: Callable[[DeviceInfo, str], object] | None = None,
    ) -> Invocation:
        """Call an export in a fresh sandbox and tear the sandbox down. Blocks; a guest runs without the GIL.

        A reactor, which exports ``_initialize`` without parameters and results, has that called first, except before
        ``_start``.

        Args:
            export: None takes ``_start``, and where there is none, ``main``.
            args: values for its parameters, as its signature says; see `tensorwasm.guest.engine.codec`.
            argv: WASI arguments, the program's name first; None gives the function's name.
            env: WASI environment; nothing of this process's own is passed on.
            stdin: all of standard input; `tensorwasm.guest.sandbox.wasi_io.INHERIT` gives this process's own. Nothing
                but input, or its end, ends such a read: for a process that ends with its guest.
            input: what the guest reads with ``read-input``.
            grants: ``cuda``, ``dir:HOST[::GUEST][:ro]``.
            tenant: whose account device memory is charged to; registered with the device.
            memory_kind: how kernels reach linear memory; None takes the setting TENSOR_WASM_GPU_MEMORY.
            deadline: when start function and call must have ended; never later than ``limits.wall_s`` from now.
            stdout: takes standard output as it is written; None captures it, `INHERIT` gives this process's own.
            stderr: the same for standard error.
            on_chunk: takes chunks as they are emitted and returns whether the client still listens; None collects.
            on_device: given the device and why it was taken, before the guest starts; only with the grant ``cuda``.

        Raises:
            MissingExport: no such function.
            InvalidArgs: arguments or grants do not fit, or there is no such tenant or kind of memory.
            StdinTooLarge: standard input is over ``limits.stdin_bytes``.
            NotSupported: the device has no such kind of memory.
            QuotaExceeded: the tenant may not hold the guest's memory on the device.
            GuestTrap: the guest trapped; like every `GuestError` it carries what the guest had written.
            InvokeTimeout: the deadline passed, in the guest or in a kernel.
            DeviceUnavailable: CUDA was granted, asked for by name, and is not there.
            DeviceLost: the device stopped answering.
            CapacityExhausted: no free sandbox.
        """
        granted = parse_grants(grants)
        plan = self.dispatch.plan(export, granted, tenant, memory_kind)
        if plan is not None:  # it takes few arguments: a call through `Dispatcher.call` costs 0.5 us more
            if on_device is not None and granted.cuda:
                on_device(self.host.share().info, self.host.device_reason)
            config = None
            if self.prepared.needs_wasi:
                config = configure(self, granted, argv=argv, env=env, stdin=stdin, stdout=stdout, stderr=stderr)
            return plan.invoke(args, input, on_chunk, deadline, config)
        call = make_call(
            self,
            export,
            args,
            argv=argv,
            env=env,
            stdin=stdin,
            input=input,
            grants=granted,
            tenant=tenant,
            memory_kind=memory_kind,
            deadline=deadline,
            stdout=stdout,
            stderr=stderr,
            on_chunk=on_chunk,
        )
        return run_full(call, on_device=on_device)

    def open(
        self,
        *,
        argv: Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        input: bytes = b"",  # noqa: A002 - the interface's own word for it
        grants: Iterable[str] | Grants = (),
        tenant: str = DEFAULT_TENANT,
        memory_kind: MemoryKind | None = None,
        deadline: Deadline | None = None,
        stdout: Sink | None = None,
        stderr: Sink | None = None,
    ) -> LiveInstance:
        """Return an instance that stays between calls, and can be saved there. Blocks.

        Arguments are those of `invoke`, for as long as the instance lives, but ``input`` is for calls that bring none,
        and the deadline is for the start function and ``_initialize``, which is called once, now. Output is captured
        call by call. The first call of this compiles the module again, instrumented.

        Raises:
            NotCapturable: the module's instances cannot be saved; the message says why.
            TensorWasmError: what `invoke` raises before it calls the export.
        """
        from tensorwasm.runtime.snapshots.live import InstanceOptions, LiveInstance  # noqa: PLC0415 - a call needs none

        check_stdin(stdin, self.host.limits)
        words = tuple(argv) if argv is not None else None
        return LiveInstance(
            self,
            InstanceOptions(
                parse_grants(grants), tenant, input, words, env or {}, stdin, memory_kind, deadline, stdout, stderr
            ),
        )

    def submit(
        self, export: str | None = None, args: Sequence[object] = (), **options: Unpack[CallOptions]
    ) -> Future[Invocation]:
        """Make a call as `invoke` does, and return at once: while its guest waits, it holds no thread.

        Thousands can wait for the GPU at a time. They take turns on one thread of the runtime, and without a GPU on a
        few more once they run long (the setting TENSOR_WASM_GUEST_THREADS). Sinks and ``on_chunk`` are called there
        too, and must not wait for another invocation. The first call blocks while the device is opened and code
        compiled.

        Returns:
            The outcome: an `Invocation`, or what `invoke` raises. Cancelling ends the guest, before it starts or while
            it runs. Closing the runtime ends it with `GuestTrap` named ``cancelled``.

        Raises:
            InternalError: the runtime is closed, or a host function of a submitted guest called this.
            TickerNotRunning: this is a forked process.
        """
        return self.dispatch.submit(export, args, options)

    async def invoke_async(
        self, export: str | None = None, args: Sequence[object] = (), **options: Unpack[CallOptions]
    ) -> Invocation:
        """Make a call as `submit` does, and wait for the outcome in an event loop. Cancelling the task ends the guest.

        A guest without a GPU, folders or a start function, whose memory is at most 2 MiB or whose module has neither
        imports nor bulk instructions nor functions of more than 16 KiB, begins on the calling thread, and stays there
        if it ends within half a millisecond. So sinks and ``on_chunk`` are called on the event loop's thread too, and
        must not block it.

        Raises:
            TensorWasmError: what `invoke` raises.
        """
        granted, memory = parse_grants(options.get("grants", ())), options.get("memory_kind")
        if not self.dispatch.is_prepared(granted, memory):
            import asyncio  # noqa: PLC0415 - half of this package's import time, which event loops have spent already

            self.engine.require_ticker()  # a forked process has no threads
            await asyncio.to_thread(self.dispatch.prepare, granted, memory)
        outcome = self.dispatch.begin(export, args, options)
        return outcome if isinstance(outcome, Invocation) else await await_outcome(outcome)


class TenantRuntime(Protocol):
    """What a runtime does for any tenant; see `tensorwasm.runtime.invoke.deployed_module.Host`."""

    @property
    def device_reason(self) -> str:
        """Why this device was taken."""

    @property
    def fibers(self) -> FiberRunner:
        """Runs submitted invocations."""

    @property
    def offload_compiler(self) -> OffloadCompiler:
        """Cuts modules, and makes plans of their loops."""

    def prepare(
        self, wasm: bytes, module: CompiledModule, form: Form, work: StopHook | None, tenant: str
    ) -> LinkedModule | None:
        """Compile and link a tenant's module for a form."""

    def instrument(self, wasm: bytes, tenant: str) -> InstrumentedModule:
        """Return the forms of a tenant's module whose instances are saved."""


@dataclass(slots=True)
class Deployment:
    """The runtime with one module's own limits and tenant; see `Host`."""

    runtime: TenantRuntime
    limits: Limits
    tenant: str
    warm: WarmPool
    share: Callable[[], SharedDevice]

    @property
    def device_reason(self) -> str:
        """Why this device was taken."""
        return self.runtime.device_reason

    @property
    def fibers(self) -> FiberRunner:
        """Runs submitted invocations."""
        return self.runtime.fibers

    @property
    def offload_compiler(self) -> OffloadCompiler:
        """Cuts modules, and makes plans of their loops."""
        return self.runtime.offload_compiler

    def prepare(
        self, wasm: bytes, module: CompiledModule, form: Form, work: StopHook | None = None
    ) -> LinkedModule | None:
        """Compile and link a module for a form."""
        return self.runtime.prepare(wasm, module, form, work, self.tenant)

    def instrument(self, wasm: bytes) -> InstrumentedModule:
        """Return the forms of a module whose instances are saved."""
        return self.runtime.instrument(wasm, self.tenant)


def read_module(path: Path, limit_bytes: int) -> bytes:
    """Read a file, at most one byte beyond the limit; raise `InvalidArgs`, or `ModuleTooLarge` if there is more."""
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            # A buffer of the whole limit takes longer to allocate than the file to read.
            most_bytes = min(limit_bytes, found.st_size) if stat.S_ISREG(found.st_mode) else limit_bytes
            data = file.read(most_bytes + 1)
    except OSError as error:
        raise InvalidArgs(f"cannot read {path}: {error.strerror}") from None
    except ValueError:
        raise InvalidArgs(f"{str(path)[:64]!r} is not a path") from None
    if len(data) > limit_bytes:
        known = f"{found.st_size}" if stat.S_ISREG(found.st_mode) else f"more than {limit_bytes}"
        raise ModuleTooLarge(f"the module has {known} bytes; the limit is {limit_bytes}")
    return data


def read_source(module: bytes | bytearray | memoryview | Name, name: str | None, limit_bytes: int) -> tuple[bytes, str]:
    """Return a module and its name for people, by default that of its file; raises as `read_module` does."""
    if not isinstance(module, str | os.PathLike):
        return bytes(module), name or "module"
    path = Path(module)
    return read_module(path, limit_bytes), (path.stem if name is None else name) or "module"
