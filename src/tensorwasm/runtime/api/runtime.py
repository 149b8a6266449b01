"""`Runtime`: an engine, a device opened when first granted, and the functions loaded from modules."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack, overload

from tensorwasm import settings
from tensorwasm.errors import InternalError
from tensorwasm.gpu.device.port import Device
from tensorwasm.gpu.limits.accounts import DEFAULT_TENANT, Accounts, check_tenant
from tensorwasm.guest.engine.engine import Engine, EngineConfig
from tensorwasm.guest.engine.module import CompiledModule
from tensorwasm.guest.engine.reservation import most_slots
from tensorwasm.guest.native.loading import may_have_fibers
from tensorwasm.guest.sandbox import stack
from tensorwasm.guest.sandbox.linker import LinkedModule
from tensorwasm.runtime.api.checks import MAX_MEMORY_BYTES, check_limits, checked_quota, read_module
from tensorwasm.runtime.api.function import Function
from tensorwasm.runtime.api.late_device import LateDevice
from tensorwasm.runtime.deploy.deployer import Deployer, DeployStatistics
from tensorwasm.runtime.deploy.form import Form
from tensorwasm.runtime.deploy.linking import engine_of, linker_of, make_linker
from tensorwasm.runtime.deploy.stop_hook import StopHook
from tensorwasm.runtime.invoke.grants import Grants
from tensorwasm.runtime.invoke.invocation import Invocation
from tensorwasm.runtime.invoke.loaded_module import Host
from tensorwasm.runtime.warm.pool import WarmPool
from tensorwasm.values import MIB, Deadline, DeviceInfo, Limits, SmPlacement
from tensorwasm.wasm.preamble import Preamble

if TYPE_CHECKING:
    from tensorwasm.artifacts.keys import KeyRing
    from tensorwasm.artifacts.sealed.writer import SealedInfo
    from tensorwasm.gpu.shared_device import SharedDevice
    from tensorwasm.runtime.invoke.fiber_runner import FiberRunner
    from tensorwasm.runtime.snapshots.archive import Archive, Filing
    from tensorwasm.runtime.snapshots.live import LiveInstance
    from tensorwasm.runtime.snapshots.opening import Surroundings
    from tensorwasm.runtime.snapshots.snapshot import Snapshot

Name = str | os.PathLike[str]
Source = bytes | bytearray | memoryview | str | os.PathLike[str]


class Runtime:
    """Runs untrusted modules in this process. Any thread may use it; close it, or use it as a context manager.

    Attributes:
        limits: what each sandbox may use.
        gpu_bytes: device memory that the tenant ``default`` may hold, and what other tenants get unless a caller sets
            a cap of theirs.
        warm: keeps sandboxes ready for functions that are to be warm.
    """

    def __init__(
        self,
        device: str | None = None,
        *,
        limits: Limits | None = None,
        multiprocessors: int | None = None,
        slots: int | None = None,
        gpu_bytes: int | None = None,
        place: SmPlacement | None = None,
        jit: bool = True,
    ) -> None:
        """Prepare the engine. No device is opened until a guest is granted one, or `device` is read.

        Args:
            device: ``auto``, ``emulator``, ``cuda`` or ``cuda:N``; None takes the setting TENSOR_WASM_DEVICE.
            limits: None takes the settings.
            multiprocessors: share of a GPU, at least so many; None takes the setting TENSOR_WASM_MULTIPROCESSORS.
            slots: sandboxes alive at once; None takes the setting TENSOR_WASM_POOL_SLOTS.
            gpu_bytes: see the attribute; None takes the setting TENSOR_WASM_GPU_QUOTA, and without it 64 GiB, which is
                what all tenants of a process may hold together.
            place: where among the shares of other processes a share of a GPU lies; None for wherever.
            jit: whether a GPU's driver may compile PTX of guests itself where ptxas cannot. It does so in this process,
                and is known to crash: False where tenants who distrust each other share it.

        Raises:
            InvalidArgs: no such device choice, a setting does not parse, or a limit is out of range.
            CapacityExhausted: this process has no room for the pool of sandboxes.
            TickerNotRunning: the system refused a timer.
        """
        current = settings.current()
        self.limits = limits or current.limits()
        check_limits(self.limits)
        self.gpu_bytes = checked_quota(gpu_bytes, current.gpu_quota_mib)
        self._device = LateDevice(
            device if device is not None else current.device,
            self.gpu_bytes,
            multiprocessors=multiprocessors if multiprocessors is not None else current.multiprocessors,
            place=place,
            jit=jit,
        )
        config = EngineConfig(stack_bytes=self.limits.stack_bytes, fibers=may_have_fibers())
        if slots is None:
            slots = current.pool_slots or min(config.slots, most_slots(config.layout))
        self._engine = Engine.shared(replace(config, slots=slots))
        self._linker = make_linker(self._engine)
        self._deployer = Deployer(current)
        self._fibers: FiberRunner | None = None
        self._closed = False
        self.warm = WarmPool(current.warm_sandboxes)
        self._lock = threading.Lock()
        self._archive: Archive | None = None

    def load(
        self,
        module: Source,
        name: str | None = None,
        limits: Limits | None = None,
        tenant: str = DEFAULT_TENANT,
        warm: int = 0,
        *,
        check: Callable[[Preamble], object] | None = None,
        work: StopHook | None = None,
    ) -> Function:
        """Deploy a module: compile it, or find what it was compiled to for this tenant before, in any process.

        Args:
            module: the binary, or the path of a file that holds it.
            name: for people; by default the file's name without its ending, or ``module``.
            limits: what its sandboxes may use, None for the runtime's own; ``stack_bytes`` is always the runtime's.
            tenant: whose module it is: nobody else finds its code, or can tell that there is some.
            warm: how many sandboxes to keep ready for this tenant; see `Function.warm`.
            check: judges what the module declares before it is compiled, such as
                `tensorwasm.runtime.invoke.loaded_module.check_export`; what it raises is raised here.
            work: stops this; what is compiled goes on while another thread waits for it.

        Raises:
            InvalidWasm: not a valid module, or precompiled code.
            CompileFailed: the compiler crashed on it; `CompileTimeout` and `CompileMemory` if it took more than it may.
            CapacityExhausted: the system starts no process for the compiler.
            ModuleTooLarge: more bytes than the limit.
            ModuleMemoryTooLarge: it declares more memory or larger tables than the limits.
            UnknownImport: it imports what no grant provides.
            InvalidArgs: the file cannot be read, a limit is out of range, or there can be no such tenant.
            CancelledError: it was stopped.
        """
        check_tenant(tenant)
        host: Host = self
        if tenant != DEFAULT_TENANT or (limits is not None and limits != self.limits):
            host = _Deployment(self, limits or self.limits, tenant)
            check_limits(host.limits)
        if isinstance(module, str | os.PathLike):
            path = Path(module)
            name = path.stem if name is None else name
            module = read_module(path, host.limits.module_bytes)
        wasm = bytes(module)

        def judge(declared: Preamble) -> None:
            self._linker.check(declared)
            if check is not None:
                check(declared)

        compiled = self._deployer.deploy(self._engine, wasm, host.limits, tenant, judge, work)
        function = Function(host, name or "module", wasm, self._linker.prepare(compiled))
        if warm:
            function.warm(warm, tenant=tenant)
        return function

    def deploys(self) -> DeployStatistics:
        """Return a snapshot of what `load` found compiled, and what it had to compile."""
        return self._deployer.statistics()

    @property
    def device(self) -> DeviceInfo:
        """The device, opened now if it was not.

        Raises:
            DeviceUnavailable: it was asked for by name and is not there; the message says why.
        """
        return self.open_device().info

    @property
    def device_reason(self) -> str:
        """Why this device was taken, in a few words; empty until it is opened."""
        return self._device.reason

    @property
    def accounts(self) -> Accounts:
        """Who may hold how much of the device, which is opened now if it was not: register tenants here.

        Raises:
            DeviceUnavailable: it is not there, or the runtime is closed.
        """
        return self.share().accounts

    def open_device(self) -> Device:
        """Return the device itself, opened on first use and owned by the runtime.

        Raises:
            DeviceUnavailable: it is not there, or the runtime is closed.
        """
        return self._device.open()

    def share(self) -> SharedDevice:
        """Return the device as sessions share it, opened on first use and owned by the runtime.

        Raises:
            DeviceUnavailable: it is not there, or the runtime is closed.
        """
        return self._device.share()

    @overload
    def snapshot(self, live: LiveInstance, path: None = None, **options: Unpack[Filing]) -> Snapshot: ...

    @overload
    def snapshot(self, live: LiveInstance, path: Name, **options: Unpack[Filing]) -> SealedInfo: ...

    def snapshot(
        self, live: LiveInstance, path: Name | None = None, **options: Unpack[Filing]
    ) -> Snapshot | SealedInfo:
        """Save an instance between two calls; it goes on as before. Blocks, and nobody can call it meanwhile.

        Args:
            live: from `Function.open` or `restore`.
            path: of the file to write, whole or not at all and on the disk when this returns; None keeps the snapshot
                in this process's memory, for `restore` to take it.
            **options: ``deadline``: when work on the device must have ended, 10 s from now unless given. For a file:
                ``parents``: files of earlier states, nearest first, to write only what changed since the first;
                ``keys``: the ring that signs, by default the settings'; ``sealing``: how it is compressed.

        Returns:
            The snapshot, or what was written of it.

        Raises:
            NotCapturable: a call is in progress, or it holds what cannot be saved; the message names it.
            InvalidSnapshot: a parent is not an earlier state of this instance.
            SealRefused: a parent's file is not to be trusted.
            SigningNotConfigured: the ring has no key for what is asked.
            TooLarge: there is more than a file takes.
            CapacityExhausted: the system has no memory for it.
            InvalidArgs: a file cannot be read or written.
            TensorWasmError: what reading the device raises.
        """
        if path is None:
            with live.captured(deadline=options.get("deadline")) as saved:
                from tensorwasm.runtime.snapshots.snapshot import keep  # noqa: PLC0415 - a call needs none

                return keep(saved)
        from tensorwasm.runtime.snapshots import archive  # noqa: PLC0415 - what reads and writes files costs 50 ms to import

        return archive.save_file(live, path, **options)

    def open_snapshot(
        self,
        path: Name,
        *,
        tenant: str = DEFAULT_TENANT,
        parents: Sequence[Name] = (),
        keys: KeyRing | None = None,
    ) -> Snapshot:
        """Verify a file, read it into memory, and keep that for the same tenant (TENSOR_WASM_SNAPSHOT_CACHE). Blocks.

        Args:
            path: of the file.
            tenant: who restores from it.
            parents: files that it adds to, nearest first.
            keys: whose signatures count; None takes the settings'.

        Raises:
            SealRefused: it is not to be trusted; its kind says why.
            InvalidSnapshot: what is in it makes no sense, although it was signed.
            TooLarge: it says, or is, more than a writer makes.
            CapacityExhausted: the system has no memory for it.
            InvalidArgs: it cannot be read.
        """
        from tensorwasm.runtime.snapshots import archive  # noqa: PLC0415 - what reads and writes files costs 50 ms to import

        with self._lock:
            kept = self._archive = self._archive or archive.Archive(settings.current().snapshot_cache_mib * MIB)
        return kept.get(path, tenant, keys, parents)

    def restore(
        self,
        source: Snapshot | Name,
        function: Function,
        *,
        grants: Iterable[str] | Grants = (),
        tenant: str = DEFAULT_TENANT,
        parents: Sequence[Name] = (),
        keys: KeyRing | None = None,
        deadline: Deadline | None = None,
        **options: Unpack[Surroundings],
    ) -> LiveInstance:
        """Return an instance that goes on where a saved one was, charged to the caller's tenant. Blocks.

        Args:
            source: a snapshot, or the path of one.
            function: the module that was saved, loaded here.
            grants: what it may use, of that which it was saved with.
            tenant: whose account is charged, for all that it holds anew.
            parents: as in `open_snapshot`, like ``keys``.
            keys: likewise.
            deadline: when it must be ready.
            **options: ``argv``, ``env``, ``memory_kind``, ``stdout`` and ``stderr`` as in `Function.open`.

        Raises:
            InvalidSnapshot: it is another module's, or contradicts itself.
            ModuleMemoryTooLarge: its memory is over the limits of the function.
            QuotaExceeded: the tenant may not hold what it held on the device.
            TensorWasmError: what `open_snapshot` and `Function.open` raise.
        """
        snapshot = self._snapshot(source, tenant, parents, keys)
        return snapshot.restore(function, snapshot.opening(grants, tenant, deadline, options))

    def invoke(
        self,
        source: Snapshot | Name,
        function: Function,
        export: str | None = None,
        args: Sequence[object] = (),
        *,
        input: bytes | None = None,  # noqa: A002 - the interface's own word for it
        grants: Iterable[str] | Grants = (),
        tenant: str = DEFAULT_TENANT,
        parents: Sequence[Name] = (),
        keys: KeyRing | None = None,
        deadline: Deadline | None = None,
        on_chunk: Callable[[bytes], bool] | None = None,
        **options: Unpack[Surroundings],
    ) -> Invocation:
        """Do what `restore`, one call and closing do, at a fraction of their cost.

        Args:
            source: as in `restore`, like all that is not said here.
            function: likewise.
            export: as in `Function.invoke`.
            args: likewise.
            input: what the guest reads with ``read-input``; None takes what was saved.
            grants: as in `restore`.
            tenant: likewise.
            parents: likewise.
            keys: likewise.
            deadline: when all of it must have ended.
            on_chunk: as in `Function.invoke`.
            **options: as in `restore`.

        Raises:
            TensorWasmError: what `restore` and `LiveInstance.call` raise.
        """
        snapshot = self._snapshot(source, tenant, parents, keys)
        opening = snapshot.opening(grants, tenant, deadline, options, input)
        return snapshot.invoke(function, export, args, opening, on_chunk)

    def _snapshot(
        self, source: Snapshot | Name, tenant: str, parents: Sequence[Name], keys: KeyRing | None
    ) -> Snapshot:
        from tensorwasm.runtime.snapshots.snapshot import Snapshot  # noqa: PLC0415 - a call needs none

        if isinstance(source, Snapshot):
            return source
        return self.open_snapshot(source, tenant=tenant, parents=parents, keys=keys)

    @property
    def fibers(self) -> FiberRunner:
        """Runs submitted invocations; made when first asked for."""
        made = self._fibers
        if made is None:
            from tensorwasm.runtime.invoke.fiber_runner import FiberRunner  # noqa: PLC0415 - a call that blocks needs none

            with self._lock:
                made = self._fibers = self._fibers or FiberRunner()
                closed = self._closed
            if closed:
                made.close()
        return made

    def prepare(
        self, wasm: bytes, module: CompiledModule, form: Form, tenant: str = DEFAULT_TENANT
    ) -> LinkedModule | None:
        """Deploy and link a module for a form, None where there are no compiled host functions.

        Blocks: compilation, and for the first compiled host functions of a process half a second, or up to ten if they
        were never compiled here.
        """
        engine = engine_of(form, self._engine)
        if form.edition or engine is not self._engine:
            limits = Limits(memory_bytes=MAX_MEMORY_BYTES, module_bytes=len(wasm))
            module = self._deployer.deploy(engine, wasm, limits, tenant)
        linker = linker_of(form, engine)
        return linker.prepare(module) if linker is not None else None

    def close(self) -> None:
        """Release the device. Idempotent; ends what was submitted, while invocations that block must have ended.

        Raises:
            InternalError: a host function or a sink of a guest that was submitted called this: it would wait for it.
        """
        if stack.is_on_fiber():
            raise InternalError("a host function of a guest that was submitted tried to close the runtime")
        self.warm.close()
        with self._lock:
            self._closed, fibers = True, self._fibers
            self._archive = None
        if fibers is not None:
            fibers.close()
        self._device.close()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()


@dataclass(slots=True)
class _Deployment:
    """A runtime as the functions of one module know it: with the module's own limits and tenant. See `Host`."""

    runtime: Runtime
    limits: Limits
    tenant: str

    @property
    def device_reason(self) -> str:
        return self.runtime.device_reason

    @property
    def fibers(self) -> FiberRunner:
        return self.runtime.fibers

    @property
    def warm(self) -> WarmPool:
        return self.runtime.warm

    def share(self) -> SharedDevice:
        return self.runtime.share()

    def prepare(self, wasm: bytes, module: CompiledModule, form: Form) -> LinkedModule | None:
        return self.runtime.prepare(wasm, module, form, self.tenant)
