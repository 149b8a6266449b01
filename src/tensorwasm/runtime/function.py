"""`Function`: a compiled module, invoked any number of times, each in a sandbox of its own."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Unpack

from tensorwasm.artifacts.hashing import blake3
from tensorwasm.errors import InvalidArgs, MissingExport, NotSupported, quote, quote_all
from tensorwasm.gpu.limits.accounts import DEFAULT_TENANT
from tensorwasm.guest.engine.module import COMMAND, INITIALISE
from tensorwasm.guest.sandbox.linker import Prepared
from tensorwasm.guest.sandbox.oneshot import is_one_shot
from tensorwasm.guest.sandbox.output import Inherit, Sink
from tensorwasm.guest.sandbox.store import is_quick
from tensorwasm.runtime.blocking import run_here
from tensorwasm.runtime.call import make_call
from tensorwasm.runtime.form import Form
from tensorwasm.runtime.grants import Grants, parse_grants
from tensorwasm.runtime.invocation import Invocation
from tensorwasm.runtime.loop import answered, is_interruptible
from tensorwasm.runtime.options import Options
from tensorwasm.runtime.route import Route, find_route
from tensorwasm.runtime.stock import WarmStock, make_stock
from tensorwasm.runtime.streams import check_stdin, configure
from tensorwasm.values import Deadline, MemoryKind
from tensorwasm.wasm.preamble import Export, Preamble

if TYPE_CHECKING:
    from concurrent.futures import Future

    from tensorwasm.guest.engine.engine import Engine
    from tensorwasm.guest.saved.instrumented import InstrumentedModule
    from tensorwasm.runtime.host import Host
    from tensorwasm.runtime.lane import Lane
    from tensorwasm.runtime.live import LiveInstance
    from tensorwasm.values import DeviceInfo

DEFAULT_EXPORTS: Final = (COMMAND, "main")


class Function:
    """A compiled module. Any thread may invoke it; it lives as long as someone holds it.

    Attributes:
        name: for people.
        host: the runtime.
        prepared: the module's first form, without a GPU.
        long: its last guest that was submitted ran longer than an event loop may be held.
        lanes: the short ways of submitted invocations, by export; None where there is none.
        routes: the short ways of those that block, by export, whether CUDA is granted, tenant and kind of memory.
        stocks: its warm sandboxes, by tenant.
        initialiser: an export that every sandbox calls first, a reactor's behind its ``_initialize``; None without. See
            `warm`.
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
        self.host = host
        self.prepared = prepared
        self.long = False
        self.lanes: dict[str | None, Lane | None] = {}
        self._begun: set[tuple[bool, MemoryKind | None]] = set()
        self.routes: dict[tuple[str | None, bool, str, MemoryKind | None], Route] = {}
        self.stocks: dict[str, WarmStock] = {}
        self.initialiser: str | None = None
        self._wasm = wasm
        self._forms = {Form(): prepared}

    def warm(
        self,
        count: int,
        *,
        tenant: str = DEFAULT_TENANT,
        argv: Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
        initialiser: str | None = None,
    ) -> None:
        """Keep sandboxes ready that have been instantiated and started before anybody asks. Returns at once.

        For modules whose start is expensive. Each serves one invocation, and others are made in the background. They
        are drawn by `invoke`, and by executors, for this tenant, with these arguments and this environment, without
        folders and without a GPU; every other invocation has a fresh sandbox, as all have that are submitted. A start
        that asks for input, sends chunks or launches kernels cannot be had in advance: then all stay fresh. What it
        reads of standard input is empty.

        Args:
            count: how many, as far as the setting TENSOR_WASM_WARM_SANDBOXES allows; 0 for no more.
            tenant: whose invocations draw them.
            argv: as in `invoke`.
            env: likewise.
            initialiser: an export without parameters and results that from now on each sandbox of this function calls
                first, be it warm or fresh; a reactor's ``_initialize`` needs no mention and comes before it.

        Raises:
            MissingExport: there is no such function.
            InvalidArgs: the initialiser takes or gives something, or the count is negative.
            InternalError: the runtime is closed.
        """
        if count < 0:
            raise InvalidArgs(f"the number of warm sandboxes is at least 0, not {count}")
        if initialiser is not None:
            plan = self.prepared.module.plan(initialiser)
            if plan.params or plan.results:
                raise InvalidArgs(f"{quote(initialiser)} takes or gives something: it is no initialiser")
            self.initialiser = initialiser
            self.lanes.clear()
        self.routes.clear()
        old = self.stocks.pop(tenant, None)
        if old is not None:
            self.host.warm.remove(old)
        initialisers = self.initialisers(None)
        if count and (initialisers or not is_one_shot(self.prepared)):
            config = configure(self.prepared, self.name, Grants(), argv, env)
            stock = make_stock(self.prepared, self.host.limits, config, initialisers, count)
            self.host.warm.add(stock)
            self.stocks[tenant] = stock
            weakref.finalize(self, self.host.warm.remove, stock)

    def initialisers(self, export: str | None) -> tuple[str, ...]:
        """Return what a fresh sandbox calls, in order, before an export that is called by name, None for any.

        A reactor's ``_initialize`` is called once in a state's life; a command, run by ``_start``, does without.
        """
        first = (INITIALISE,) if self.prepared.module.is_reactor and export != COMMAND else ()
        if self.initialiser is None or self.initialiser in first:
            return first
        return *first, self.initialiser

    @functools.cached_property
    def brief(self) -> bool:
        """Whether its guests can begin on an event loop's thread: making one is quick, and a timer can end it."""
        module = self.prepared.module
        return is_quick(module) and is_interruptible(self._wasm, module.preamble, self.host.limits.memory_bytes)

    @functools.cached_property
    def pure(self) -> bool:
        """Whether its guests are brief, and nobody sees what they do but by their results: they import nothing."""
        return self.brief and not self.prepared.module.imports

    @property
    def blank(self) -> Form:
        """The form in which a saved instance goes on."""
        return Form(edition="blank", copied=self.prepared.module.preamble.has_exceptions)

    @property
    def engine(self) -> Engine:
        """Where its sandboxes run, unless their memory is made by the host."""
        return self.prepared.module.engine

    @functools.cached_property
    def module_hash(self) -> bytes:
        """BLAKE3 of the module as it came, 32 bytes: what is saved of its instances is bound to it."""
        return blake3(self._wasm)

    @functools.cached_property
    def edition(self) -> InstrumentedModule:
        """The forms of the module whose instances can be saved, made when first asked for.

        Raises:
            NotCapturable: its instances cannot be saved; the message says why.
        """
        from tensorwasm.guest.saved.instrumented import make_edition  # noqa: PLC0415 - the whole codec, for what is saved only

        return make_edition(self._wasm)

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

        A reactor, which exports ``_initialize`` without parameters and results, has that called first, unless
        ``_start`` is what is called.

        Args:
            export: None takes ``_start``, and where there is none, ``main``.
            args: values for its parameters, as its signature says; see `tensorwasm.guest.engine.codec`.
            argv: WASI arguments, the program's name first; None gives the function's name.
            env: WASI environment; nothing of this process's own is passed on.
            stdin: all of standard input; `tensorwasm.guest.sandbox.output.INHERIT` gives this process's own, read as
                the guest asks. Nothing but input, or its end, ends such a read: for a process that ends with its guest.
            input: what the guest reads with ``read-input``.
            grants: ``cuda``, ``dir:HOST[::GUEST][:ro]``; nothing is granted unasked.
            tenant: whose account device memory is charged to; registered with the device.
            memory_kind: how kernels reach linear memory; None takes the setting TENSOR_WASM_GPU_MEMORY.
            deadline: when start function and call must have ended; never later than ``limits.wall_s`` from now.
            stdout: takes standard output as it is written; None captures it. `INHERIT` gives this process's own.
            stderr: the same for standard error.
            on_chunk: takes chunks as they are emitted and returns whether the client still listens; None collects.
            on_device: told the device and why it was taken, before the guest starts; only with the grant ``cuda``.

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
        route = find_route(self, export, granted, tenant, memory_kind)
        if route is not None:
            if on_device is not None and granted.cuda:
                on_device(self.host.share().info, self.host.device_reason)
            return route.invoke(args, input, on_chunk, deadline)
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
        return run_here(call, on_device=on_device)

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

        A reactor's ``_initialize`` is called now, and never again.

        The first call compiles the module once more, in a form that shows what is private.

        Args:
            argv: as in `invoke`, for as long as it lives.
            env: likewise.
            stdin: likewise.
            input: what its calls read with ``read-input``, unless one brings its own.
            grants: as in `invoke`, for as long as it lives.
            tenant: likewise.
            memory_kind: likewise.
            deadline: when the start function and ``_initialize`` must have ended.
            stdout: takes standard output of all calls as it is written; None captures it call by call.
            stderr: the same for standard error.

        Raises:
            NotCapturable: the module's instances cannot be saved; the message says why.
            TensorWasmError: what `invoke` raises before it calls the export.
        """
        from tensorwasm.runtime.live import LiveInstance  # noqa: PLC0415 - a call needs none
        from tensorwasm.runtime.opened import Opening  # noqa: PLC0415 - likewise

        check_stdin(stdin, self.host.limits)
        words = tuple(argv) if argv is not None else None
        return LiveInstance(
            self,
            Opening(
                parse_grants(grants), tenant, input, words, env or {}, stdin, memory_kind, deadline, stdout, stderr
            ),
        )

    def submit(
        self, export: str | None = None, args: Sequence[object] = (), **options: Unpack[Options]
    ) -> Future[Invocation]:
        """Do what `invoke` does, and return at once: while its guest waits, an invocation holds no thread.

        Thousands can wait for the GPU at a time. They run in turns on one thread of the runtime's, and without a GPU on
        a few more once they run long (the setting TENSOR_WASM_GUEST_THREADS). Sinks and ``on_chunk`` are called there
        too: those must not wait for another invocation. The first call blocks, for as long as opening the device and
        compiling take.

        Args:
            export: as in `invoke`.
            args: likewise.
            **options: its keyword arguments.

        Returns:
            The outcome: an `Invocation`, or what `invoke` raises. Cancelling ends the guest, before it starts and while
            it runs. Closing the runtime ends it with `GuestTrap` named ``cancelled``.

        Raises:
            InternalError: the runtime is closed, or a host function of a guest that was submitted called this.
            TickerNotRunning: this is a forked process.
        """
        return self.host.background.submit(self, export, args, options)

    async def invoke_async(
        self, export: str | None = None, args: Sequence[object] = (), **options: Unpack[Options]
    ) -> Invocation:
        """Do what `submit` does, and wait for the outcome in an event loop. Cancelling the task ends the guest.

        A guest without a GPU, folders or a start function, whose memory is at most 2 MiB or whose module has neither
        imports nor bulk instructions nor functions of more than 16 KiB, begins on the calling thread: one that ends
        within half a millisecond never leaves it, others go on elsewhere. So sinks and ``on_chunk`` are called on the
        event loop's thread too, and must not hold it.

        Args:
            export: as in `invoke`.
            args: likewise.
            **options: its keyword arguments.

        Raises:
            TensorWasmError: what `invoke` raises.
        """
        if "grants" in options:
            options["grants"] = parse_grants(options["grants"])
        await self._prepare_elsewhere(options)
        outcome = self.host.background.begin(self, export, args, options)
        return outcome if isinstance(outcome, Invocation) else await answered(outcome)

    async def _prepare_elsewhere(self, options: Options) -> None:
        """Have the first invocation of each kind open the device and compile on another thread than the loop's."""
        granted, memory = parse_grants(options.get("grants", ())), options.get("memory_kind")
        if (granted.cuda, memory) not in self._begun:
            import asyncio  # noqa: PLC0415 - as above

            self.engine.require_ticker()  # a forked process has no threads
            await asyncio.to_thread(self.host.background.prepare, self, granted, memory)
            self._begun.add((granted.cuda, memory))

    def choose(self, export: str | None) -> str:
        """Return the name of the function that is called.

        Raises:
            MissingExport: there is none.
        """
        return _choose(self.prepared.module.exports, export)

    def result_types(self, export: str) -> tuple[str, ...]:
        """Return the Wasm types of an export's results."""
        found = self.prepared.module.exports.get(export)
        return found.signature.results if found is not None and found.signature is not None else ()

    def form(self, form: Form) -> Prepared:
        """Return a form of the module, made when first asked for; without compiled host functions if there are none.

        Raises:
            NotSupported: the module has exceptions, and its memory is to be made by the host.
        """
        prepared = self._forms.get(form)
        if prepared is None:
            if form.host_memory and self.prepared.module.preamble.has_exceptions:
                raise NotSupported("a module with exceptions cannot have managed or vmm memory: choose another kind")
            wasm = getattr(self.edition, form.edition) if form.edition else self._wasm
            prepared = self.host.prepare(wasm, self.prepared.module, form)
            prepared = self._forms[form] = prepared or self.form(form._replace(native=False))
        return prepared


def check_export(declared: Preamble, export: str | None) -> None:
    """Require that a module has the function that is called, before it is compiled.

    Args:
        declared: what the module declares.
        export: None takes ``_start``, and where there is none, ``main``.

    Raises:
        MissingExport: there is none.
    """
    _choose({each.name: each for each in declared.exports}, export)


def _choose(exports: Mapping[str, Export], export: str | None) -> str:
    wanted = DEFAULT_EXPORTS if export is None else (export,)
    for name in wanted:
        if name in exports and exports[name].kind == "func":
            return name
    names = [name for name, found in exports.items() if found.kind == "func"]
    missing = " or ".join(map(quote, wanted))
    raise MissingExport(f"no exported function {missing}; there are: {quote_all(names) or 'none'}")
