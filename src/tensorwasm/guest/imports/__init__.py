"""What a guest can import, by interface."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from tensorwasm.guest.imports import call, cuda, interfaces
from tensorwasm.guest.imports.call import ChunkSink, OutputStream
from tensorwasm.guest.imports.cuda import CudaService
from tensorwasm.guest.imports.host_function import HostFunction

__all__ = ["ChunkSink", "CudaService", "OutputStream", "host_functions"]

_BODIES: Final[Mapping[str, Mapping[str, Callable[..., int]]]] = {
    **cuda.BODIES,
    **dict.fromkeys((*interfaces.TENSOR.modules, *interfaces.SCHEDULER.modules), call.BODIES),
}


def host_functions() -> tuple[HostFunction, ...]:
    """Return every import of every interface, under each of its modules."""
    return tuple(
        _host_function(module, function)
        for interface in interfaces.INTERFACES
        for module in interface.modules
        for function in interface.functions
    )


def _host_function(module: str, function: interfaces.ImportSignature) -> HostFunction:
    name, params = function.core_name, tuple(param.type for param in function.params)
    body = _BODIES[module][name]
    steps, finish = cuda.STEPS.get(body), cuda.FINISH.get(body)
    return HostFunction(module, name, params, (function.result,), body, function.waits, steps, finish)
