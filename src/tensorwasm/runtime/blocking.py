"""A call on the thread that makes it, the ordinary way: with a sandbox of its own, and a GPU session of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

from tensorwasm.guest.imports import CudaService
from tensorwasm.runtime import calling
from tensorwasm.runtime.form import Form
from tensorwasm.runtime.linear import DIRECT, open_session, roomy_pages, supplied, wants_compiled
from tensorwasm.runtime.sandbox import make_sandbox

if TYPE_CHECKING:
    from tensorwasm.gpu.session import Session
    from tensorwasm.guest.sandbox.linker import Prepared
    from tensorwasm.runtime.call import Call
    from tensorwasm.runtime.invocation import Invocation
    from tensorwasm.runtime.sandbox import Announce
    from tensorwasm.values import DeviceInfo


def run_here(
    call: Call,
    *,
    on_device: Callable[[DeviceInfo, str], object] | None = None,
    announce: Announce | None = None,
) -> Invocation:
    """Make a sandbox, call the export and tear the sandbox down. Blocks; the guest runs without the GIL.

    Args:
        call: what was asked for.
        on_device: as in `tensorwasm.runtime.Function.invoke`.
        announce: told what ends the guest, its start function too, from any thread, before it runs or after.

    Raises:
        GuestTrap: the guest trapped; named ``cancelled`` if it was ended so.
        TensorWasmError: what else `tensorwasm.runtime.Function.invoke` raises.
    """
    function, cuda = call.function, call.granted.cuda
    gpu: AbstractContextManager[tuple[Session | None, Prepared]] = nullcontext((None, function.prepared))
    if cuda:
        gpu = _open_gpu(call, on_device)
    with (
        gpu as (session, prepared),
        make_sandbox(call, prepared, session, announce) as instance,
        roomy_pages(instance, function.host.limits) if cuda and call.memory == "pinned" else nullcontext(),
    ):
        values, exit_code = calling.call(instance, call.export, call.args, call.ends)
        return call.outcome(values, exit_code, calling.written(instance), session)


@contextmanager
def _open_gpu(
    call: Call, on_device: Callable[[DeviceInfo, str], object] | None
) -> Iterator[tuple[Session | None, Prepared]]:
    """Open a GPU session; yield it, and the module to instantiate."""
    function, memory = call.function, call.memory
    shared = function.host.share()
    if on_device is not None:
        on_device(shared.info, function.host.device_reason)
    prepared = function.form(Form(wants_compiled(shared), memory in DIRECT))
    native = prepared.needs_pad
    # Bound around everything: the driver's functions, called by compiled code, take the thread's current context.
    with (
        shared.device.native.bound() if native else nullcontext(),
        open_session(shared, call.tenant, memory, with_pad=native) as session,
        supplied(shared, call.tenant, memory, function.host.limits) if memory in DIRECT else nullcontext(),
    ):
        call.services["cuda"] = CudaService(session)
        session.enter(call.ends)
        yield session, prepared
