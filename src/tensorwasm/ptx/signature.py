"""What a caller must know of a kernel.

Source: PTX ISA 5.1.6.1 (Kernel Function Parameters), 11.4 (Performance-Tuning Directives).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from tensorwasm.ptx.flow import Use, trace
from tensorwasm.ptx.layout import variable_align, variable_bytes
from tensorwasm.ptx.model import Function, Module, Variable
from tensorwasm.ptx.reach import kernel, reachable, statements
from tensorwasm.values import NEVER, Deadline, Dim3, KernelParam, KernelSignature
from tensorwasm.watch import Watch

MAX_BLOCK_THREADS: Final = 1024


def signature(module: Module, entry: str, deadline: Deadline = NEVER) -> KernelSignature:
    """Return the signature of a kernel.

    A 64-bit parameter counts as a pointer if it is declared ``.ptr``, or if the kernel, or a function it calls, uses
    its value as an address of global memory. A pointer that is hidden in a structure, or that travels through memory,
    is not found.

    Args:
        module: consistent, as ``parse`` returns it.
        entry: name of the kernel.
        deadline: when to give up.

    Raises:
        InvalidKernel: no kernel of that name has a body; the message names some that do.
        InvokeTimeout: the deadline passed.
    """
    function = kernel(module, entry)
    watch = Watch(deadline, "while the uses of the kernel's parameters were traced")
    reached = reachable(module, function, watch)
    functions = [item for item in reached if isinstance(item, Function)]
    uses = trace(module, function, functions, watch)
    required = _dimensions(function, "reqntid")
    most = min(math.prod(dims) for dims in (_dimensions(function, "maxntid"), required, (MAX_BLOCK_THREADS,)) if dims)
    return KernelSignature(
        entry,
        tuple(_param(param, use) for param, use in zip(function.params, uses, strict=True)),
        _shared_bytes(watch.over(_variables(reached))),
        most,
        required,
    )


def _param(param: Variable, use: Use) -> KernelParam:
    scalar = not param.shape and param.vector == 1
    size = variable_bytes(param)
    declared = param.pointer is not None and scalar
    pointer = scalar and size == 8 and (declared or use.pointer)
    align = max(use.align_bytes, param.pointer[1] if param.pointer is not None else 1) if pointer else 1
    return KernelParam(param.name, size, variable_align(param), scalar, pointer, align)


def _dimensions(function: Function, name: str) -> Dim3 | None:
    for directive in function.directives:
        if directive.name == name:
            x, y, z = (*map(int, directive.arguments), 1, 1)[:3]
            return x, y, z
    return None


def _shared_bytes(variables: Iterable[Variable]) -> int:
    """Return the size of the ``.shared`` variables, one after the other in source order, each aligned."""
    end = 0
    for variable in variables:
        if variable.space == "shared" and "extern" not in variable.linkage:
            align = variable_align(variable)
            end = -(-end // align) * align + variable_bytes(variable)
    return end


def _variables(reached: Iterable[Function | Variable]) -> Iterable[Variable]:
    for item in reached:
        if isinstance(item, Variable):
            yield item
        else:
            yield from (each for each in statements(item.body or ()) if isinstance(each, Variable))
