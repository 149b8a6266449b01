"""`LoadedModule`: a module that a runtime has loaded, in every form in which its sandboxes are made."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Protocol

from tensorwasm.artifacts.hashing import blake3
from tensorwasm.errors import MissingExport, NotSupported, quote, quote_all
from tensorwasm.guest.engine.module import COMMAND, INITIALISE
from tensorwasm.guest.sandbox.state import is_quick
from tensorwasm.runtime.deploy.form import Form
from tensorwasm.values import MIB, WASM_PAGE_BYTES
from tensorwasm.wasm.declarations import Export
from tensorwasm.wasm.preamble import Preamble, longest_body

if TYPE_CHECKING:
    from tensorwasm.gpu.shared_device import SharedDevice
    from tensorwasm.guest.engine.engine import Engine
    from tensorwasm.guest.engine.module import CompiledModule
    from tensorwasm.guest.sandbox.linker import LinkedModule
    from tensorwasm.guest.saved.instrumented import InstrumentedModule
    from tensorwasm.runtime.invoke.fiber_runner import FiberRunner
    from tensorwasm.runtime.warm.pool import WarmPool
    from tensorwasm.runtime.warm.specification import WarmSpecification
    from tensorwasm.values import Limits

DEFAULT_EXPORTS: Final = (COMMAND, "main")

SMALL_BYTES: Final = 2 * MIB
"""Most memory that one instruction or host call may go over on an event loop's thread."""

STRAIGHT_BYTES: Final = 16 << 10
"""Longest function of a module with more memory than that: some 2,000 stores, each to a page of its own."""

# Prefix and first byte of the number, which may be padded. What only looks like one costs a thread, nothing else.
# Source: Wasm core 5.4.6, 5.4.7, memory and table instructions.
_BULK: Final = re.compile(rb"\xfc[\x08-\x11\x88-\x91]")


class Host(Protocol):
    """What a module needs of the runtime that loaded it."""

    limits: Limits

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

    def prepare(self, wasm: bytes, module: CompiledModule, form: Form) -> LinkedModule | None:
        """Compile and link a module for a form, None where there are no compiled host functions."""


class LoadedModule:
    """A compiled module and its limits. Thread-safe.

    Attributes:
        name: for people.
        host: the runtime, with the limits of this module.
        prepared: the module's first form, without a GPU.
        long: its last guest that was submitted ran longer than an event loop may be held.
        warm_kept: its warm sandboxes, by tenant.
        initialiser: an export that every sandbox calls first, a reactor's behind its ``_initialize``; None without.
    """

    def __init__(self, host: Host, name: str, wasm: bytes, prepared: LinkedModule) -> None:
        """Wrap a module whose imports are resolved.

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
        self.warm_kept: dict[str, WarmSpecification] = {}
        self.initialiser: str | None = None
        self._wasm = wasm
        self._forms = {Form(): prepared}

    @functools.cached_property
    def brief(self) -> bool:
        """Whether its guests can begin on an event loop's thread: making one is quick, and a timer can end it."""
        module = self.prepared.module
        return is_quick(module) and is_interruptible(self._wasm, module.preamble, self.host.limits.memory_bytes)

    @functools.cached_property
    def pure(self) -> bool:
        """Whether its guests are brief, and have no effect but their results: they import nothing."""
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
        from tensorwasm.guest.saved.instrumented import instrument  # noqa: PLC0415 - the whole codec, rarely needed

        return instrument(self._wasm)

    def initialisers(self, export: str | None) -> tuple[str, ...]:
        """Return what a fresh sandbox calls, in order, before an export that is called by name, None for any.

        A reactor's ``_initialize`` is called once in a state's life; a command, run by ``_start``, does without.
        """
        first = (INITIALISE,) if self.prepared.module.is_reactor and export != COMMAND else ()
        if self.initialiser is None or self.initialiser in first:
            return first
        return *first, self.initialiser

    def choose(self, export: str | None) -> str:
        """Return the name of the function that is called: ``_start`` for None, and where there is none, ``main``.

        Raises:
            MissingExport: there is none.
        """
        return _choose(self.prepared.module.exports, export)

    def result_types(self, export: str) -> tuple[str, ...]:
        """Return the Wasm types of an export's results."""
        found = self.prepared.module.exports.get(export)
        return found.signature.results if found is not None and found.signature is not None else ()

    def form(self, form: Form) -> LinkedModule:
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

    Raises:
        MissingExport: there is none.
    """
    _choose({each.name: each for each in declared.exports}, export)


def is_interruptible(wasm: bytes, declared: Preamble, memory_bytes: int) -> bool:
    """Return whether everything that a module's guest can do is short, but for what a timer ends.

    No timer ends a single instruction or host call that goes over much memory: filling 256 MiB that was never touched
    took 400 ms. Nor does it end code that goes straight on, without a loop or a call, over as many pages as it has
    instructions: 130 ms for 65,000. So a module that imports anything, has such instructions, or a function of more
    than `STRAIGHT_BYTES`, is interruptible only if its memory cannot have more than `SMALL_BYTES`.

    Args:
        wasm: the binary.
        declared: what it declares.
        memory_bytes: the limit of its memory.
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
