"""`Function`: a compiled module, invoked any number of times, each in a sandbox of its own."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from tensorwasm import settings
from tensorwasm.errors import GuestError, GuestExit, MissingExport
from tensorwasm.gpu.accounts import DEFAULT_TENANT
from tensorwasm.gpu.memory import BufferKind, UnifiedBuffer
from tensorwasm.gpu.session import Session, SessionStatistics
from tensorwasm.guest import codec, kinds
from tensorwasm.guest.imports import CudaService, OutputStream
from tensorwasm.guest.instance import Instance
from tensorwasm.guest.linker import Prepared
from tensorwasm.guest.native.pads import draw_pad
from tensorwasm.guest.wasi import NO_WASI, Directory, Sink, WasiConfig
from tensorwasm.runtime.grants import Grants, parse_grants
from tensorwasm.values import WASM_PAGE_BYTES, Deadline, MemoryKind

if TYPE_CHECKING:
    from tensorwasm.gpu.shared import SharedDevice
    from tensorwasm.guest.module import Module
    from tensorwasm.values import DeviceInfo, Limits

DEFAULT_EXPORTS: Final = ("_start", "main")


class Form(NamedTuple):
    """How sandboxes of a function are made.

    Attributes:
        native: host functions are compiled ones.
        host_memory: linear memory is made by the host, which ``managed`` and ``vmm`` memory is.
    """

    native: bool = False
    host_memory: bool = False


class Host(Protocol):
    """What a function needs of the runtime that loaded it."""

    limits: Limits

    @property
    def device_reason(self) -> str:
        """Why this device was taken."""

    def share(self) -> SharedDevice:
        """Return the device, opened now if it was not, as sessions share it."""

    def prepare(self, wasm: bytes, module: Module, form: Form) -> Prepared | None:
        """Compile and link a module for a form, None where there are no compiled host functions."""


@dataclass(frozen=True, slots=True)
class Invocation:
    """What came of one call.

    Attributes:
        export: the function called.
        values: its results, integers exact, floats as Python has them.
        result_types: their Wasm types.
        exit_code: what the guest passed to ``proc_exit``; 0 if it simply returned.
        stdout: what it wrote, unless a sink took it.
        stderr: likewise.
        chunks: what it sent with ``emit-chunk``, unless a sink took it.
        elapsed_s: wall-clock seconds of instantiation and call.
        gpu: what it held on the device when the call had ended, None without the grant.
    """

    export: str
    values: tuple[codec.Number, ...]
    result_types: tuple[str, ...]
    exit_code: int
    stdout: bytes
    stderr: bytes
    chunks: tuple[bytes, ...]
    elapsed_s: float
    gpu: SessionStatistics | None

    def to_json(self) -> str:
        """Return the results as a JSON array; NaN and infinities as strings, integers with all their digits."""
        return codec.render(self.result_types, self.values)


class Function:
    """A compiled module. Any thread may invoke it; it lives as long as someone holds it.

    Attributes:
        name: for people.
    """

    def __init__(self, host: Host, name: str, wasm: bytes, prepared: Prepared) -> None:
        """Wrap a module whose imports are resolved; `Runtime.load` does this.

        Args:
            host: the runtime.
            name: for people.
            wasm: the binary: other forms than the first are compiled when they are first asked for.
            prepared: its first form, without a GPU.
        """
        self.name = name
        self._host = host
        self._wasm = wasm
        self._prepared = prepared
        self._forms = {Form(): prepared}
        self._without_gpu = nullcontext((None, prepared))

    @property
    def exports(self) -> tuple[str, ...]:
        """Names of the exported functions, in order."""
        return self._prepared.module.function_names()

    @property
    def imports(self) -> tuple[tuple[str, str], ...]:
        """Module and name of every import, in order."""
        return tuple((wanted.module, wanted.name) for wanted in self._prepared.module.imports)

    def invoke(
        self,
        export: str | None = None,
        args: Sequence[object] = (),
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
        on_chunk: Callable[[bytes], bool] | None = None,
        on_device: Callable[[DeviceInfo, str], object] | None = None,
    ) -> Invocation:
        """Call an export in a fresh sandbox and tear the sandbox down. Blocks; a guest runs without the GIL.

        Args:
            export: None takes ``_start``, and where there is none, ``main``.
            args: values for its parameters, as its signature says; see `tensorwasm.guest.codec`.
            argv: WASI arguments, the program's name first; None gives the function's name.
            env: WASI environment; nothing of this process's own is passed on.
            stdin: all of standard input.
            input: what the guest reads with ``read-input``.
            grants: ``cuda``, ``read:DIR``, ``write:DIR``; nothing is granted unasked.
            tenant: whose account device memory is charged to; registered with the device.
            memory_kind: how kernels reach linear memory; None takes the setting TENSOR_WASM_GPU_MEMORY.
            deadline: when start function and call must have ended; never later than ``limits.wall_s`` from now.
            stdout: takes standard output as it is written; None captures it.
            stderr: the same for standard error.
            on_chunk: takes chunks as they are emitted and returns whether the client still listens; None collects.
            on_device: told the device and why it was taken, before the guest starts; only with the grant ``cuda``.

        Raises:
            MissingExport: no such function.
            InvalidArgs: arguments or grants do not fit, or there is no such tenant or kind of memory.
            NotSupported: the device has no such kind of memory.
            QuotaExceeded: the tenant may not hold the guest's memory on the device.
            GuestTrap: the guest trapped; like every `GuestError` it carries what the guest had written.
            InvokeTimeout: the deadline passed, in the guest or in a kernel.
            DeviceUnavailable: CUDA was granted, asked for by name, and is not there.
            DeviceLost: the device stopped answering.
            CapacityExhausted: no free sandbox.
        """
        granted, target = parse_grants(grants), self._choose(export)
        collected = _Chunks(on_chunk)
        services: dict[str, object] = {"input": input, "stream": OutputStream(collected)}
        config = NO_WASI
        if self._prepared.needs_wasi:
            args_given = tuple(argv) if argv is not None else (self.name,)
            folders = _directories(granted)
            config = WasiConfig(args_given, tuple((env or {}).items()), stdin, stdout, stderr, folders)
        start, ends = time.perf_counter(), Deadline.after(self._host.limits.wall_s).earlier(deadline)
        gpu: AbstractContextManager[tuple[Session | None, Prepared]] = self._without_gpu
        if granted.cuda:
            gpu = self._gpu(services, tenant, _kind(memory_kind), ends, on_device)
        with (
            gpu as (session, prepared),
            self._sandbox(prepared, config, services, ends, session) as instance,
        ):
            values, exit_code = _call(instance, target, args, ends)
            out, err = _written(instance)
            return Invocation(
                export=target,
                values=values,
                result_types=self._result_types(target),
                exit_code=exit_code,
                stdout=out,
                stderr=err,
                chunks=tuple(collected.chunks),
                elapsed_s=time.perf_counter() - start,
                gpu=session.statistics() if session else None,
            )

    def _choose(self, export: str | None) -> str:
        exports = self._prepared.module.exports
        wanted = DEFAULT_EXPORTS if export is None else (export,)
        for name in wanted:
            if name in exports and exports[name].kind == "func":
                return name
        names = self.exports
        shown = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
        missing = " or ".join(repr(name[:64]) for name in wanted)
        raise MissingExport(f"no exported function {missing}; there are: {shown or 'none'}")

    def _result_types(self, export: str) -> tuple[str, ...]:
        found = self._prepared.module.exports.get(export)
        return found.signature.results if found is not None and found.signature is not None else ()

    def _sandbox(
        self,
        prepared: Prepared,
        config: WasiConfig,
        services: Mapping[str, object],
        deadline: Deadline,
        session: Session | None,
    ) -> Instance:
        """Return a sandbox that ends its GPU session first, because the device may reach its memory until then."""
        limits = self._host.limits
        if session is None:
            return Instance(prepared, limits=limits, services=services, wasi_config=config, deadline=deadline)
        return Instance(
            prepared,
            limits=limits,
            services=services,
            wasi_config=config,
            deadline=deadline,
            drain=functools.partial(_end, session),
            pad=session.pad,
        )

    @contextmanager
    def _gpu(
        self,
        services: dict[str, object],
        tenant: str,
        memory: MemoryKind,
        deadline: Deadline,
        on_device: Callable[[DeviceInfo, str], object] | None,
    ) -> Iterator[tuple[Session | None, Prepared]]:
        """Open a GPU session; yield it, and the module to instantiate."""
        shared = self._host.share()
        if on_device is not None:
            on_device(shared.info, self._host.device_reason)
        architecture = settings.current().cuda_arch
        prepared = self._form(Form(_compiled_for(shared), memory in _DIRECT)) or self._form(
            Form(False, memory in _DIRECT)
        )
        native = prepared.needs_pad
        pad = draw_pad() if native else None
        # Bound around everything: the driver's functions, called by compiled code, take the thread's current context.
        with (
            shared.device.native.bound() if native else nullcontext(),
            shared.open_session(tenant, architecture=architecture, memory_kind=memory, pad=pad) as session,
            _supplied(shared, tenant, memory, self._host.limits) if memory in _DIRECT else nullcontext(),
        ):
            services["cuda"] = CudaService(session)
            session.enter(deadline)
            yield session, prepared

    def _form(self, form: Form) -> Prepared:
        """Return a form of the module, made when first asked for; without compiled host functions if there are none."""
        prepared = self._forms.get(form)
        if prepared is None:
            prepared = self._host.prepare(self._wasm, self._prepared.module, form)
            prepared = self._forms[form] = prepared or self._form(form._replace(native=False))
        return prepared


_DIRECT: Final[Mapping[MemoryKind, BufferKind]] = {"managed": "managed", "vmm": "vmm"}
"""Kinds of linear memory that the device reaches from the start, and the kinds of buffer behind them."""


def _compiled_for(shared: SharedDevice) -> bool:
    """Return whether compiled host functions are wanted, rather than Python's."""
    mode = settings.current().native
    return mode == "on" or (mode == "auto" and shared.info.kind == "cuda")


def _kind(memory: MemoryKind | None) -> MemoryKind:
    asked = settings.current().gpu_memory if memory is None else memory
    return settings.checked_memory_kind("memory_kind", asked)


def _supplied(shared: SharedDevice, tenant: str, memory: MemoryKind, limits: Limits) -> AbstractContextManager[None]:
    """Let the sandbox have its linear memory from the device, charged to the tenant."""
    account = shared.accounts.account(tenant)

    def provide(size_bytes: int, capacity_bytes: int) -> UnifiedBuffer:
        return UnifiedBuffer.allocate(
            shared.device,
            max(size_bytes, WASM_PAGE_BYTES),  # a buffer has bytes, a linear memory need not
            _DIRECT[memory],
            capacity_bytes=max(capacity_bytes, WASM_PAGE_BYTES),
            account=account,
        )

    return kinds.supplying(provide, limits.memory_bytes)


def _end(session: Session) -> bool:
    """Close a session; return whether nothing of it reaches the guest's memory any more."""
    session.close()
    return not session.statistics().abandoned


def _call(
    instance: Instance, export: str, args: Sequence[object], deadline: Deadline
) -> tuple[tuple[codec.Number, ...], int]:
    try:
        return tuple(instance.call(export, args, deadline=deadline)), 0
    except GuestExit as left:
        return (), left.code
    except GuestError as error:
        error.stdout, error.stderr = _written(instance)
        raise


def _written(instance: Instance) -> tuple[bytes, bytes]:
    """Return captured standard output and standard error."""
    out, err = instance.stdout, instance.stderr
    return out.captured if out else b"", err.captured if err else b""


class _Chunks:
    """The sink of one call: hands chunks on, or keeps them."""

    def __init__(self, on_chunk: Callable[[bytes], bool] | None) -> None:
        self._on_chunk = on_chunk
        self.chunks: list[bytes] = []

    def send(self, chunk: bytes) -> bool:
        if self._on_chunk is not None:
            return self._on_chunk(chunk)
        self.chunks.append(chunk)
        return True

    def flush(self) -> None:
        """Nothing is held back."""


def _directories(granted: Grants) -> tuple[Directory, ...]:
    folders = [(path, False) for path in granted.readable] + [(path, True) for path in granted.writable]
    return tuple(Directory(path, path, writable) for path, writable in folders)
