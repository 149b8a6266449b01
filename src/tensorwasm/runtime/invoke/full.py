"""The full way on the caller's thread: a sandbox of its own, and a GPU session of its own.

The sandbox is a warm one if one fits, else a fresh one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING

from tensorwasm.errors import CapacityExhausted
from tensorwasm.guest.imports import CudaService
from tensorwasm.guest.sandbox.instance import Instance
from tensorwasm.runtime.deploy.form import Form
from tensorwasm.runtime.invoke.call import Call, call_export, written
from tensorwasm.runtime.invoke.device_access import (
    DIRECT,
    end_session,
    open_session,
    roomy_pages,
    supplied,
    wants_compiled,
)

if TYPE_CHECKING:
    from tensorwasm.gpu.session import Session
    from tensorwasm.guest.sandbox.linker import LinkedModule
    from tensorwasm.runtime.invoke.invocation import Invocation
    from tensorwasm.values import DeviceInfo

Announce = Callable[[Callable[[], None]], object]
"""Called with what ends a sandbox, from any thread."""


def run_full(
    call: Call,
    *,
    on_device: Callable[[DeviceInfo, str], object] | None = None,
    announce: Announce | None = None,
) -> Invocation:
    """Make a sandbox, call the export and tear the sandbox down. Blocks; the guest runs without the GIL.

    Args:
        call: what was asked for.
        on_device: as in `tensorwasm.runtime.Function.invoke`.
        announce: given what ends the guest, its start function too, from any thread, before it runs or after.

    Raises:
        GuestTrap: the guest trapped; named ``cancelled`` if it was ended so.
        TensorWasmError: what else `tensorwasm.runtime.Function.invoke` raises.
    """
    function, cuda = call.function, call.granted.cuda
    gpu: AbstractContextManager[tuple[Session | None, LinkedModule]] = nullcontext((None, function.prepared))
    if cuda:
        gpu = _open_gpu(call, on_device)
    with (
        gpu as (session, prepared),
        _make_sandbox(call, prepared, session, announce) as instance,
        roomy_pages(instance, function.host.limits) if cuda and call.memory == "pinned" else nullcontext(),
    ):
        values, exit_code = call_export(instance, call.export, call.args, call.ends)
        return call.outcome(values, exit_code, written(instance), session)


@contextmanager
def _open_gpu(
    call: Call, on_device: Callable[[DeviceInfo, str], object] | None
) -> Iterator[tuple[Session | None, LinkedModule]]:
    """Open a GPU session; yield it, and the module to instantiate."""
    function, memory = call.function, call.memory
    shared = function.host.share()
    if on_device is not None:
        on_device(shared.info, function.host.device_reason)
    prepared = function.form(Form(wants_compiled(shared), memory in DIRECT))
    native = prepared.needs_layout
    # Bound around everything: the driver's functions, called by compiled code, take the thread's current context.
    with (
        shared.device.native.bound() if native else nullcontext(),
        open_session(shared, call.tenant, memory, with_pad=native) as session,
        supplied(shared, call.tenant, memory, function.host.limits) if memory in DIRECT else nullcontext(),
    ):
        call.services["cuda"] = CudaService(session)
        session.enter(call.ends)
        yield session, prepared


def _make_sandbox(call: Call, prepared: LinkedModule, session: Session | None, announce: Announce | None) -> Instance:
    """Return a sandbox whose start function and initialisers have run."""
    warm, kept = call.function.host.warm, call.function.warm_kept.get(call.tenant)
    if kept is not None and session is None and kept.fits(call.config, call.initialisers):
        drawn = warm.draw(kept)
        if isinstance(drawn, Instance):
            return _adapt(drawn, call, announce)
    try:
        return _make_fresh(call, prepared, session, announce)
    except CapacityExhausted:
        if session is not None or not warm.shed():
            raise
        return _make_fresh(call, prepared, session, announce)


def _adapt(drawn: Instance, call: Call, announce: Announce | None) -> Instance:
    """Give a warm sandbox the services and output streams of a call."""
    try:
        drawn.renew(call.services, call.config)
        if announce is not None:
            announce(drawn.cancel)
    except BaseException:
        drawn.close()
        raise
    return drawn


def _make_fresh(call: Call, prepared: LinkedModule, session: Session | None, announce: Announce | None) -> Instance:
    instance = Instance(
        prepared,
        limits=call.function.host.limits,
        services=call.services,
        wasi_config=call.config,
        deadline=call.ends,
        drain=None if session is None else partial(end_session, session),
        pad=None if session is None else session.pad,
        announce=announce,
    )
    instance.initialise(call.initialisers, call.ends)
    return instance
