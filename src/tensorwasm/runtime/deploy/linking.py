"""The engine and the linker of each form: made once, and kept for as long as the process lives."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from tensorwasm.guest.engine.engine import Engine
from tensorwasm.guest.engine.reservation import most_slots
from tensorwasm.guest.imports import host_functions
from tensorwasm.guest.native.environment import NO_ENTRIES
from tensorwasm.guest.native.loading import load_code, load_entries, load_passage
from tensorwasm.guest.sandbox.linker import Linker
from tensorwasm.runtime.deploy.form import Form


def engine_of(form: Form, plain: Engine) -> Engine:
    """Return the engine for a form: where its memories come from sets them apart.

    Args:
        form: of the module.
        plain: of the form that has no GPU and is not edited.

    Raises:
        CapacityExhausted: there is no room for another engine.
    """
    if form.host_memory:
        return Engine.shared(replace(plain.config, host_memory=True))
    return _image_engine(plain) if form.edition == "blank" and not form.copied else plain


@cache
def _image_engine(plain: Engine) -> Engine:
    """Return the engine of restored sandboxes, with fewer places where they would take all mappings of the process."""
    config = replace(plain.config, images=True)
    return Engine.shared(replace(config, slots=min(config.slots, most_slots(config.layout))))


def linker_of(form: Form, engine: Engine) -> Linker | None:
    """Return the linker for a form, None where there are no compiled host functions and it needs them."""
    return _fiber_linker(engine, form.native) if form.fibers else _plain_linker(engine, form.native)


@cache
def make_linker(engine: Engine) -> Linker:
    """Return the one linker of an engine: both live as long as the process."""
    return Linker(engine, host_functions())


def _plain_linker(engine: Engine, native: bool) -> Linker | None:  # noqa: FBT001 - a part of a form
    return _native_linker(engine) if native else make_linker(engine)


@cache
def _native_linker(engine: Engine) -> Linker | None:
    """Return the one linker of an engine with compiled host functions, None where there are none."""
    entries = load_entries()
    return Linker(engine, host_functions(), native=entries, passage=load_passage()) if entries else None


@cache
def _fiber_linker(engine: Engine, native: bool) -> Linker | None:  # noqa: FBT001 - a part of a form
    """Return the one linker of an engine for fibers, None where there are none, or no compiled host functions."""
    code, entries = load_code(), load_entries() if native else NO_ENTRIES
    if code is None or (native and not entries):
        return None
    return Linker(engine, host_functions(), native=entries, code=code)
