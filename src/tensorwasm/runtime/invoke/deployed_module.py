"""`DeployedModule`: a module that a runtime has loaded, in every form in which its sandboxes are made.

Words for how long guests take, here and in what runs them:

- *quick*: a module whose sandboxes are made with little to copy (`CompiledModule.is_quick`);
- *brief*: a quick module whose guests do nothing long that a timer cannot end (`is_interruptible`);
- *pure*: a brief module without imports, so that a call can be ended and made anew elsewhere;
- *light*: a job that opens nothing before it runs a guest of a brief module, so that an event loop may begin it;
- *long*: what used up its slice of time on a shared thread: a guest that runs, or the last guest of a module.
"""

from __future__ import annotations

import functools
import logging
import re
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Protocol

from tensorwasm.artifacts.hashing import blake3
from tensorwasm.errors import InvalidArgs, MissingExport, NotSupported, TensorWasmError, quote, quote_all
from tensorwasm.guest.engine.module import COMMAND, INITIALISE
from tensorwasm.runtime.deploy.form import Form
from tensorwasm.values import MIB, OFFLOAD_MATHS, OFFLOAD_MODES, WASM_PAGE_BYTES
from tensorwasm.wasm.preamble import Export, Preamble, longest_body

if TYPE_CHECKING:
    from concurrent.futures import Future

    from tensorwasm.gpu.shared_device import SharedDevice
    from tensorwasm.guest.engine.engine import Engine
    from tensorwasm.guest.engine.module import CompiledModule
    from tensorwasm.guest.sandbox.linker import LinkedModule
    from tensorwasm.guest.saved.instrumented import InstrumentedModule
    from tensorwasm.runtime.deploy.deployer import StopHook
    from tensorwasm.runtime.invoke.fiber_runner import FiberRunner
    from tensorwasm.runtime.invoke.offloading import Offloading
    from tensorwasm.runtime.offload.compiler import OffloadCompiler
    from tensorwasm.runtime.warm import WarmPool, WarmSpecification
    from tensorwasm.values import Limits, OffloadMath, OffloadMode

_log: Final = logging.getLogger(__name__)

DEFAULT_EXPORTS: Final = (COMMAND, "main")

SMALL_BYTES: Final = 2 * MIB
"""Most memory that one instruction or host call may go over on an event loop's thread."""

STRAIGHT_BYTES: Final = 16 << 10
"""Longest function of a module with more memory than that: some 2,000 stores, each to a page of its own."""

# Prefix and first byte of the number, which may be padded. A false match only costs a thread.
# Source: Wasm core 5.4.6, 5.4.7, memory and table instructions.
_BULK: Final = re.compile(rb"\xfc[\x08-\x11\x88-\x91]")


class Host(Protocol):
    """The runtime that loaded a module, with that module's limits."""

    limits: Limits

    @property
    def tenant(self) -> str:
        """Whose module it is."""

    @property
    def offload_compiler(self) -> OffloadCompiler:
        """Cuts modules, and makes plans of their loops."""

    @property
    def device_reason(self) -> str:
        """Why this device was taken."""

    @property
    def fibers(self) -> FiberRunner:
        """Runs submitted invocations."""

    @property
    def warm(self) -> WarmPool:
        """Keeps warm sandboxes."""

    def share(self) -> SharedDevice:
        """Return the device, opened now if it was not, as sessions share it."""

    def prepare(
        self, wasm: bytes, module: CompiledModule, form: Form, work: StopHook | None = None
    ) -> LinkedModule | None:
        """Compile and link a module for a form, None where there are no compiled host functions; ``work`` stops it."""

    def instrument(self, wasm: bytes) -> InstrumentedModule:
        """Return the forms of a module whose instances can be saved, or raise `NotCapturable`."""


class DeployedModule:
    """A compiled module and its limits. Thread-safe."""

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
        """Wrap a module whose imports are resolved, and have it cut if its loops are to run elsewhere."""
        self.name = name  # for people
        self.host = host  # the runtime, with the limits of this module
        self.prepared = prepared  # the module's first form, without a GPU; others are compiled on first use
        self.engine: Engine = prepared.module.engine  # of its sandboxes, unless the host makes their memory
        self.long = False  # its last submitted guest ran longer than an event loop may be held
        self.short = 0  # how many of its calls ended in time, beside those that did not; see `SliceBudget`
        self.late = 0  # how many of its last calls in one step on an event loop's thread did
        self.slow_calls = 0  # calls with a device in a row that held a thread for long
        self.slow_until_s = 0.0  # when its calls with a device may hold a thread again, on the monotonic clock
        self.warm_kept: dict[str, WarmSpecification] = {}  # its warm sandboxes, by tenant
        # An export that every sandbox calls first, after a reactor's ``_initialize``; None without.
        self.initialiser: str | None = None
        if offload not in OFFLOAD_MODES:
            raise InvalidArgs(f"offload is one of {', '.join(OFFLOAD_MODES)}, not {quote(str(offload))}")
        self.offload: OffloadMode = offload  # where its loops run
        self._wasm = wasm
        self._forms = {Form(): prepared}
        self._instrumented: InstrumentedModule | None = None
        self._instrumenting = threading.Lock()  # of its own: `cached_property` has one for all modules
        if offload_math not in OFFLOAD_MATHS:
            raise InvalidArgs(f"offload_math is one of {', '.join(OFFLOAD_MATHS)}, not {quote(str(offload_math))}")
        self._math: OffloadMath = offload_math  # whether sums of floats in its loops may be made in any order
        self._waits = offload_waits  # whether calls wait for the cut module, and for plans
        # How its loops run elsewhere, None if none does; without a future they run here.
        self.cutting: Future[Offloading | None] | None = None
        if offload != "off":
            self.cutting = host.offload_compiler.begin(host.tenant, self._cut)

    @functools.cached_property
    def brief(self) -> bool:
        """Whether its guests may begin on an event loop's thread: sandboxes are made fast, and a timer can end them."""
        module = self.prepared.module
        return module.is_quick and is_interruptible(self._wasm, module.preamble, self.host.limits.memory_bytes)

    @functools.cached_property
    def pure(self) -> bool:
        """Whether its guests are brief and import nothing: results are their only effect."""
        return self.brief and not self.prepared.module.imports

    @functools.cached_property
    def fibers(self) -> FiberRunner:
        """Runs its submitted invocations; made on first use."""
        return self.host.fibers

    @property
    def blank(self) -> Form:
        """The form in which a saved instance is restored."""
        return Form(instrumented="blank", copied=self.prepared.module.preamble.has_exceptions)

    @functools.cached_property
    def module_hash(self) -> bytes:
        """BLAKE3 of the module as it came, 32 bytes: binds snapshots of its instances to it."""
        return blake3(self._wasm)

    @property
    def instrumented(self) -> InstrumentedModule:
        """The forms of the module whose instances can be saved, made on first use, or `NotCapturable`."""
        with self._instrumenting:
            if self._instrumented is None:
                self._instrumented = self.host.instrument(self._wasm)
            return self._instrumented

    @property
    def may_offload(self) -> bool:
        """Whether its loops may run elsewhere, as far as that is known; never blocks."""
        cutting = self.cutting
        return cutting is not None and not (cutting.done() and self.offloading is None)

    @property
    def offloading(self) -> Offloading | None:
        """How its loops run elsewhere; None if they do not, or as long as calls do not wait for that."""
        cutting = self.cutting
        if cutting is None or not (self._waits or cutting.done()):
            return None
        if self._waits:
            return cutting.result()
        return None if cutting.cancelled() or cutting.exception() is not None else cutting.result()

    def _cut(self, work: StopHook) -> Offloading | None:
        """Cut the module, and compile it again."""
        from tensorwasm.runtime.invoke.offloading import Offloading  # noqa: PLC0415 - most calls need none

        compiler, tenant = self.host.offload_compiler, self.host.tenant
        try:
            cut = compiler.cut(self._wasm, tenant, work)
            made = Offloading(compiler, cut, tenant, self.module_hash, self._math, waits=self._waits)
            if made.wasm:
                self.form(Form(offload=made), work)
        except TensorWasmError as error:
            _log.warning("loops of the module %s are not offloaded: %s", self.name, error.message)
            raise
        return made if made.wasm else None

    def initialisers(self, export: str | None) -> tuple[str, ...]:
        """Return what a fresh sandbox calls, in order, before an export; None for any export.

        A reactor's ``_initialize`` is called once in a state's life; a command, run by ``_start``, has none.
        """
        first = (INITIALISE,) if self.prepared.module.is_reactor and export != COMMAND else ()
        if self.initialiser is None or self.initialiser in first:
            return first
        return *first, self.initialiser

    def choose(self, export: str | None) -> str:
        """Return the function to call, for None ``_start`` or else ``main``; raise `MissingExport` if there is none."""
        return _choose(self.prepared.module.exports, export)

    def result_types(self, export: str) -> tuple[str, ...]:
        """Return the Wasm types of an export's results."""
        found = self.prepared.module.exports.get(export)
        return found.signature.results if found is not None and found.signature is not None else ()

    def form(self, form: Form, work: StopHook | None = None) -> LinkedModule:
        """Return a form of the module, made on first use, without compiled host functions if there are none.

        ``work`` stops that. Raises `NotSupported` for a module with exceptions whose memory is to be made by the host.
        """
        prepared = self._forms.get(form)
        if prepared is None:
            if form.host_memory and self.prepared.module.preamble.has_exceptions:
                raise NotSupported("a module with exceptions cannot have managed or vmm memory: choose another kind")
            wasm = self._wasm if form.offload is None else form.offload.wasm
            if form.instrumented:
                wasm = getattr(self.instrumented, form.instrumented)
            prepared = self.host.prepare(wasm, self.prepared.module, form, work)
            prepared = self._forms[form] = prepared or self.form(form._replace(native=False))
        return prepared


def check_export(declared: Preamble, export: str | None) -> None:
    """Require that a module declares the function to call, or raise `MissingExport`."""
    _choose({each.name: each for each in declared.exports}, export)


def is_interruptible(wasm: bytes, declared: Preamble, memory_bytes: int) -> bool:
    """Return whether everything that a module's guest can do is short, or ended by a timer.

    No timer ends a single instruction or host call that goes over much memory: filling 256 MiB that was never touched
    took 400 ms. Nor does it end straight-line code over as many pages as it has instructions: 130 ms for 65,000. So a
    module with imports, such instructions, or a function over `STRAIGHT_BYTES` is interruptible only if its memory
    cannot exceed `SMALL_BYTES`.
    """
    most_pages = sum(memory.maximum if memory.maximum is not None else 1 << 16 for memory in declared.memories)
    if min(most_pages * WASM_PAGE_BYTES, memory_bytes) <= SMALL_BYTES and not declared.tables:
        return True
    return not declared.imports and not _BULK.search(wasm) and longest_body(wasm) <= STRAIGHT_BYTES


def _choose(exports: Mapping[str, Export], export: str | None) -> str:
    wanted = DEFAULT_EXPORTS if export is None else (export,)
    for name in wanted:
        if name in exports and exports[name].kind == "func":
            return name
    names = [name for name, found in exports.items() if found.kind == "func"]
    missing = " or ".join(map(quote, wanted))
    raise MissingExport(f"no exported function {missing}; there are: {quote_all(names) or 'none'}")
