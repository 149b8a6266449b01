"""`Runtime`: an engine, a device that is opened when it is first granted, and the functions loaded from modules."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
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
from tensorwasm.runtime.api.function import Deployment, Function, Name, read_source
from tensorwasm.runtime.api.lazy_device import LazyDevice, checked_quota
from tensorwasm.runtime.api.limits import MAX_MEMORY_BYTES, check_limits
from tensorwasm.runtime.deploy.deployer import Deployer, DeployStatistics, StopHook
from tensorwasm.runtime.deploy.form import Form, engine_of, linker_of, make_linker
from tensorwasm.runtime.invoke.deployed_module import Host
from tensorwasm.runtime.invoke.grants import Grants
from tensorwasm.runtime.invoke.invocation import Invocation
from tensorwasm.runtime.warm import WarmPool
from tensorwasm.values import MIB, Deadline, DeviceInfo, Isolation, Limits, OffloadMath, OffloadMode, SmPlacement
from tensorwasm.wasm.preamble import Preamble

if TYPE_CHECKING:
    from tensorwasm.artifacts.keys import KeyRing
    from tensorwasm.artifacts.sealed.writer import SealedInfo
    from tensorwasm.gpu.shared_device import SharedDevice
    from tensorwasm.guest.saved.instrumented import InstrumentedModule
    from tensorwasm.runtime.invoke.fiber_runner import FiberRunner
    from tensorwasm.runtime.offload.compiler import OffloadCompiler
    from tensorwasm.runtime.offload.plan_service import PlanSource
    from tensorwasm.runtime.snapshots.archive import FileOptions, SnapshotCache
    from tensorwasm.runtime.snapshots.live import LiveInstance, RestoreOptions
    from tensorwasm.runtime.snapshots.snapshot import Snapshot

Source = bytes | bytearray | memoryview | str | os.PathLike[str]


def _open_engine(limits: Limits, slots: int | None) -> Engine:
    """Return the engine of a runtime; None makes as many slots as there may be."""
    config = EngineConfig(stack_bytes=limits.stack_bytes, fibers=may_have_fibers())
    return Engine.shared(replace(config, slots=slots or min(config.slots, most_slots(config.layout))))


class Runtime:
    """Runs untrusted modules in this process. Any thread may use it; close it, or use it as a context manager.

    Attributes:
        limits: what each sandbox may use.
        gpu_bytes: device memory that the tenant ``default`` may hold, and other tenants without a cap of their own. One
            guest may hold as much of it as the setting TENSOR_WASM_GPU_SESSION says.
        warm: keeps warm sandboxes.
        deployer: deploys its modules.
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
        isolation: Isolation | None = None,
        checked: bool = False,
    ) -> None:
        """Prepare the engine. No device is opened until a guest is granted one, or `device` is read.

        Args:
            device: ``auto``, ``emulator``, ``cuda`` or ``cuda:N``; None takes the setting TENSOR_WASM_DEVICE.
            limits: None takes the settings.
            multiprocessors: share of a GPU, at least so many; None takes the setting TENSOR_WASM_MULTIPROCESSORS.
            slots: sandboxes alive at once, as many again with a GPU; None takes the setting TENSOR_WASM_POOL_SLOTS.
            gpu_bytes: see the attribute; None takes the setting TENSOR_WASM_GPU_QUOTA, else 64 GiB, a process's cap.
            place: where a share of a GPU lies among those of other processes; None for anywhere.
            jit: whether a GPU's driver, which is known to crash, may compile PTX that ptxas cannot, in this process.
            isolation: of kernels on a GPU, in this one process: ``guarded``, or not. None takes TENSOR_WASM_ISOLATION.
            checked: whether kernels, which are guarded then, check their accesses and report the first one outside.

        Raises:
            InvalidArgs: no such device choice, a setting does not parse, or a limit is out of range.
            CapacityExhausted: this process has no address space for the pool of sandboxes.
            TickerNotRunning: the system refused a timer.
        """
        current = settings.current()
        self.tenant = DEFAULT_TENANT  # whose the modules are that are loaded without one
        self.limits = limits or current.limits()
        check_limits(self.limits)
        self.gpu_bytes = checked_quota(gpu_bytes, current.gpu_quota_mib)
        self._device = LazyDevice(
            device if device is not None else current.device,
            self.gpu_bytes,
            multiprocessors=multiprocessors if multiprocessors is not None else current.multiprocessors,
            place=place,
            jit=jit,
            isolation=isolation or current.isolation,
            checked=checked,
        )
        self._engine = _open_engine(self.limits, slots or current.pool_slots)
        self._linker = make_linker(self._engine)
        self.deployer = Deployer(current)
        self._fibers: FiberRunner | None = None
        self._closed = False
        self.warm = WarmPool(current.warm_sandboxes)
        self._lock = threading.Lock()
        self._archive: SnapshotCache | None = None
        self._offload_compiler: OffloadCompiler | None = None
        self._plan_source: PlanSource | None = None

    def load(
        self,
        module: Source,
        name: str | None = None,
        limits: Limits | None = None,
        tenant: str = DEFAULT_TENANT,
        warm: int = 0,
        *,
        offload: OffloadMode = "off",
        offload_math: OffloadMath = "exact",
        offload_waits: bool = False,
        check: Callable[[Preamble], object] | None = None,
        work: StopHook | None = None,
    ) -> Function:
        """Deploy a module: compile it, or take what any process has compiled of it for this tenant.

        Args:
            module: the binary, or the path of a file that holds it.
            name: for people; by default the file's name without its ending, or ``module``.
            limits: what its sandboxes may use, None for the runtime's own; ``stack_bytes`` is always the runtime's.
            tenant: whose module it is: no other tenant gets its code, or can find out that there is some.
            warm: how many sandboxes to keep ready for this tenant; see `Function.warm`.
            offload: where its loops run that can run in parallel; those of `Function.open` run in the guest.
            offload_math: ``relaxed`` lets these loops add up and multiply floats in another order than WebAssembly's.
            offload_waits: whether calls wait until their loops' code is ready: for what makes few, and for figures.
            check: called with the module's declarations before it is compiled; its errors are raised here.
            work: stops this; compiling goes on while another thread waits for it.

        Raises:
            TensorWasmError: what `tensorwasm.runtime.deploy.deployer.Deployer.deploy` raises.
            UnknownImport: it imports what no grant provides.
            InvalidArgs: the file cannot be read, a limit is out of range, or there can be no such tenant or place.
        """
        check_tenant(tenant)
        host: Host = self
        if tenant != DEFAULT_TENANT or (limits is not None and limits != self.limits):
            host = Deployment(self, limits or self.limits, tenant, self.warm, self.share)
            check_limits(host.limits)
        wasm, name = read_source(module, name, host.limits.module_bytes)
        checks = [self._linker.check] if check is None else [self._linker.check, check]
        compiled = self.deployer.deploy(
            self._engine, wasm, host.limits, tenant, lambda declared: [each(declared) for each in checks], work
        )
        prepared = self._linker.prepare(compiled)
        function = Function(host, name, wasm, prepared, offload, offload_math=offload_math, offload_waits=offload_waits)
        if warm:
            function.warm(warm, tenant=tenant)
        return function

    def deploys(self) -> DeployStatistics:
        """Return a snapshot of what `load` found compiled, and what it had to compile."""
        return self.deployer.statistics()

    @property
    def device(self) -> DeviceInfo:
        """The device, opened now if it was not; `DeviceUnavailable` if it was asked for by name and is not there."""
        return self.open_device().info

    @property
    def device_reason(self) -> str:
        """Why this device was taken, in a few words; empty until it is opened."""
        return self._device.reason

    @property
    def accounts(self) -> Accounts:
        """How much of the device, opened now if it was not, each tenant may hold: register tenants here."""
        return self.share().accounts

    def open_device(self) -> Device:
        """Return the device itself, opened on first use and owned by the runtime."""
        return self._device.open()

    def share(self) -> SharedDevice:
        """Return the device as sessions share it, opened on first use and owned by the runtime."""
        return self._device.share()

    @overload
    def snapshot(self, live: LiveInstance, path: None = None, **options: Unpack[FileOptions]) -> Snapshot: ...

    @overload
    def snapshot(self, live: LiveInstance, path: Name, **options: Unpack[FileOptions]) -> SealedInfo: ...

    def snapshot(
        self, live: LiveInstance, path: Name | None = None, **options: Unpack[FileOptions]
    ) -> Snapshot | SealedInfo:
        """Save an instance between two calls; it goes on as before. Blocks, and no call can be made meanwhile.

        Args:
            live: from `Function.open` or `restore`.
            path: of the file to write, which is whole and on the disk when this returns, or not there; None keeps the
                snapshot in this process's memory, for `restore`.
            **options: ``deadline``: when work on the device must have ended, by default 10 s from now. For a file:
                ``parents``: files of earlier states, nearest first, to write only what changed since the first;
                ``keys``: the ring that signs, by default the settings'; ``sealing``: how it is compressed.

        Raises:
            NotCapturable: a call is in progress, or the instance holds what cannot be saved; the message names it.
            InvalidSnapshot: a parent is not an earlier state of this instance.
            SealRefused: a parent's file cannot be trusted.
            SigningNotConfigured: the ring lacks a key.
            TooLarge: there is more than a file takes.
            CapacityExhausted: the system has no memory for it.
            InvalidArgs: a file cannot be read or written.
            TensorWasmError: what reading the device raises.
        """
        if path is None:
            with live.captured(deadline=options.get("deadline")) as saved:
                from tensorwasm.runtime.snapshots.snapshot import make_snapshot  # noqa: PLC0415 - a call needs none

                return make_snapshot(saved)
        from tensorwasm.runtime.snapshots import archive  # noqa: PLC0415 - what reads and writes files costs 50 ms to import

        return archive.save_file(live, path, **options)

    def open_snapshot(
        self, path: Name, *, tenant: str = DEFAULT_TENANT, parents: Sequence[Name] = (), keys: KeyRing | None = None
    ) -> Snapshot:
        """Verify a file, read it into memory, and cache it for the same tenant (TENSOR_WASM_SNAPSHOT_CACHE). Blocks.

        Args:
            path: of the file.
            tenant: who restores from it.
            parents: files that it adds to, nearest first.
            keys: whose signatures count; None takes the settings'.

        Raises:
            SealRefused: it cannot be trusted; its kind says why.
            InvalidSnapshot: its content makes no sense, although it was signed.
            TooLarge: it declares, or has, more than a writer makes.
            CapacityExhausted: the system has no memory for it.
            InvalidArgs: it cannot be read.
        """
        from tensorwasm.runtime.snapshots import archive  # noqa: PLC0415 - what reads and writes files costs 50 ms to import

        with self._lock:
            kept = self._archive = self._archive or archive.SnapshotCache(settings.current().snapshot_cache_mib * MIB)
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
        **options: Unpack[RestoreOptions],
    ) -> LiveInstance:
        """Return an instance that goes on where a saved one was, charged to the caller's tenant. Blocks.

        Args:
            source: a snapshot, or the path of one.
            function: the module that was saved, loaded here.
            grants: what it may use, of the grants it was saved with.
            tenant: whose account is charged.
            parents: as in `open_snapshot`.
            keys: as in `open_snapshot`.
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
        **options: Unpack[RestoreOptions],
    ) -> Invocation:
        """Restore, call once and close, at a fraction of their cost; raise what they raise.

        Arguments are those of `restore` and `Function.invoke`; the deadline is for all of it, and for an input of None
        the guest reads what was saved.
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
        """Runs submitted invocations; made on first use."""
        made = self._fibers
        if made is None:
            from tensorwasm.runtime.invoke.fiber_runner import FiberRunner  # noqa: PLC0415 - a call that blocks needs none

            with self._lock:
                made = self._fibers = self._fibers or FiberRunner()
                closed = self._closed
            if closed:
                made.close()
        return made

    def plan_with(self, source: PlanSource) -> None:
        """Have plans of loops made elsewhere than in processes of this one; before the first module is loaded."""
        self._plan_source = source

    @property
    def offload_compiler(self) -> OffloadCompiler:
        """Cuts modules, and makes plans of their loops; made on first use."""
        with self._lock:
            if self._offload_compiler is None:
                from tensorwasm.runtime.offload.compiler import OffloadCompiler  # noqa: PLC0415 - most calls need none

                self._offload_compiler = OffloadCompiler(self.deployer, self._plan_source)
                if self._closed:
                    self._offload_compiler.close()
            return self._offload_compiler

    def prepare(
        self,
        wasm: bytes,
        module: CompiledModule,
        form: Form,
        work: StopHook | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> LinkedModule | None:
        """Compile and link a module for a form, None where there are no compiled host functions. Blocks."""
        engine = engine_of(form, self._engine)
        if form.instrumented or form.offload is not None or engine is not self._engine:
            limits = Limits(memory_bytes=MAX_MEMORY_BYTES, module_bytes=len(wasm))
            module = self.deployer.deploy(engine, wasm, limits, tenant, work=work)
        linker = linker_of(form, engine)  # its first compiled host functions take 0.5 s, or 10 s if never compiled here
        return linker.prepare(module) if linker is not None else None

    def instrument(self, wasm: bytes, tenant: str = DEFAULT_TENANT) -> InstrumentedModule:
        """Return the forms of a module whose instances are saved. Blocks."""
        return self.deployer.instrument(wasm, tenant)

    def close(self) -> None:
        """End submitted calls and release the device. Idempotent; calls that block must have ended.

        Raises:
            InternalError: a host function or a sink of a submitted guest called this: it would wait for itself.
        """
        if stack.THREAD.fiber:
            raise InternalError("a host function of a guest that was submitted tried to close the runtime")
        self.warm.close()
        with self._lock:
            self._closed, self._archive = True, None
            parts = self._offload_compiler, self._fibers
        for part in parts:
            if part is not None:
                part.close()
        self._device.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
