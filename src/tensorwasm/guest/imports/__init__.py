"""What a guest can import, one room per interface."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from tensorwasm.guest.imports import cuda, interfaces, scheduler, tensor
from tensorwasm.guest.imports.cuda import CudaService
from tensorwasm.guest.imports.host_function import HostFunction
from tensorwasm.guest.imports.tensor import OutputStream, Sink

__all__ = ["CudaService", "OutputStream", "Sink", "host_functions"]

_BODIES: Final[Mapping[str, Mapping[str, Callable[..., int]]]] = {
    **cuda.BODIES,
    **dict.fromkeys(interfaces.TENSOR.modules, tensor.BODIES),
    **dict.fromkeys(interfaces.SCHEDULER.modules, scheduler.BODIES),
}


def host_functions() -> tuple[HostFunction, ...]:
    """Return every import of every interface, under each of its modules."""
    return tuple(_of_interfaces())


def _of_interfaces() -> Iterator[HostFunction]:
    for interface in interfaces.INTERFACES:
        for module in interface.modules:
            for function in interface.functions:
                params = tuple(param.type for param in function.params)
                body = _BODIES[module][function.core_name]
                yield HostFunction(
                    module,
                    function.core_name,
                    params,
                    (function.result,),
                    body,
                    function.waits,
                    steps=cuda.STEPS.get(body),
                    finish=cuda.FINISH.get(body),
                )
