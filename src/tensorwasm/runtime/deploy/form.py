"""`Form`: how a module is compiled and linked; the engine and the linker of each form, made once a process."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from tensorwasm.guest.engine.engine import GPU_RESIDENT_BYTES, Engine, EngineConfig
from tensorwasm.guest.engine.reservation import most_slots
from tensorwasm.guest.imports import host_functions
from tensorwasm.guest.native.loading import load_callbacks, load_entries, load_suspension_code
from tensorwasm.guest.native.structures import NO_ENTRIES
from tensorwasm.guest.sandbox.linker import Linker

if TYPE_CHECKING:
    from tensorwasm.guest.imports.host_function import HostFunction


class GuardedModule(Protocol):
    """A module whose loops have guards, which are host functions of its own."""

    wasm: bytes
    guards: tuple[HostFunction, ...]


class Form(NamedTuple):
    """How sandboxes of a function are made."""

    native: bool = False  # host functions are compiled ones
    host_memory: bool = False  # linear memory is made by the host, as ``managed`` and ``vmm`` memory is
    fibers: bool = False  # they run on a reactor, and host functions that wait suspend them
    # Which instrumented module they are made from, whose instances can be saved; empty for the module as it was
    # deployed (`tensorwasm.guest.saved.instrumented`).
    instrumented: Literal["", "live", "blank"] = ""
    # A saved memory is copied into wasmtime's own instead of being mapped: for modules with exceptions, whose heap
    # would be allocated where the memory is.
    copied: bool = False
    stdio: bool = False  # output goes to the host without wasmtime's WASI, and there are no folders
    offload: GuardedModule | None = None  # the module with guards that they are made from instead


def engine_of(form: Form, plain: Engine) -> Engine:
    """Return the engine for a form, given that of the plain form: engines differ by where their memories come from.

    Raises:
        CapacityExhausted: there is no room for another engine.
    """
    if form.host_memory:
        return Engine.shared(replace(plain.config, host_memory=True))
    if form.offload is not None:
        return _engine_beside(replace(plain.config, polled=True))
    if form.instrumented == "blank" and not form.copied:
        return _engine_beside(replace(plain.config, images=True))
    return _engine_beside(replace(plain.config, resident_bytes=GPU_RESIDENT_BYTES)) if form.native else plain


@cache
def _engine_beside(config: EngineConfig) -> Engine:
    """Return another engine, with fewer slots where they would use up the process's mappings."""
    return Engine.shared(replace(config, slots=min(config.slots, most_slots(config.layout))))


def linker_of(form: Form, engine: Engine) -> Linker | None:
    """Return the linker for a form, None where it needs compiled host functions or fibers and there are none."""
    if form.offload is not None:
        return _guarded_linker(engine, form.offload, native=form.native)
    if form.fibers:
        return _fiber_linker(engine, form.native)
    return _native_linker(engine, form.stdio) if form.native else make_linker(engine, form.stdio)


def _guarded_linker(engine: Engine, module: GuardedModule, *, native: bool) -> Linker | None:
    """Return the linker of a module with guards, which run on the caller's thread."""
    entries = load_entries() if native else NO_ENTRIES
    if native and not entries:
        return None
    functions = (*host_functions(), *module.guards)
    return Linker(engine, functions, native=entries, passage=load_callbacks() if native else None)


@cache
def make_linker(engine: Engine, stdio: bool = False) -> Linker:  # noqa: FBT001, FBT002 - a part of a form
    """Return the one linker of an engine with Python's host functions; see `Form` for ``stdio``."""
    return Linker(engine, host_functions(), stdio=stdio)


@cache
def _native_linker(engine: Engine, stdio: bool) -> Linker | None:  # noqa: FBT001 - a part of a form
    entries = load_entries()
    if not entries:
        return None
    return Linker(engine, host_functions(), stdio=stdio, native=entries, passage=load_callbacks())


@cache
def _fiber_linker(engine: Engine, native: bool) -> Linker | None:  # noqa: FBT001 - a part of a form
    code, entries = load_suspension_code(), load_entries() if native else NO_ENTRIES
    if code is None or (native and not entries):
        return None
    return Linker(engine, host_functions(), native=entries, code=code)
