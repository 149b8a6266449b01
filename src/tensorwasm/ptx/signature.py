"""Kernel signatures: parameters, shared memory and the size of blocks.

Source: PTX ISA 5.1.6.1 (Kernel Function Parameters), 11.4 (Performance-Tuning Directives).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from tensorwasm.ptx.flow import PointerUse, trace
from tensorwasm.ptx.layout import variable_align, variable_bytes
from tensorwasm.ptx.model import Function, Module, Variable
from tensorwasm.ptx.reachability import find_kernel, reachable, variables
from tensorwasm.values import NEVER, Deadline, Dim3, KernelParam, KernelSignature
from tensorwasm.watch import Watch

MAX_BLOCK_THREADS: Final = 1024


def signature(module: Module, entry: str, deadline: Deadline = NEVER) -> KernelSignature:
    """Return the signature of a kernel.

    A 64-bit parameter counts as a pointer if it is declared ``.ptr``, or if the kernel, or a function it calls, uses
    its value as an address of global memory. Pointers inside structures, or passed through memory, are not found.

    Raises:
        InvalidKernel: no kernel of that name has a body; the message names some that do.
        InvokeTimeout: the deadline passed.
    """
    function = find_kernel(module, entry)
    watch = Watch(deadline, "while the uses of the kernel's parameters were traced")
    reached = reachable(module, function, watch)
    uses = trace(module, function, [item for item in reached if isinstance(item, Function)], watch)
    required = _dimensions(function, "reqntid")
    most = min(math.prod(dims) for dims in (_dimensions(function, "maxntid"), required, (MAX_BLOCK_THREADS,)) if dims)
    return KernelSignature(
        entry,
        tuple(_param(param, use) for param, use in zip(function.params, uses, strict=True)),
        _shared_bytes(watch.over(variables(reached))),
        most,
        required,
    )


def _param(param: Variable, use: PointerUse) -> KernelParam:
    scalar = not param.shape and param.vector == 1
    size = variable_bytes(param)
    pointer = scalar and size == 8 and (param.pointer is not None or use.pointer)
    align = max(use.align_bytes, param.pointer[1] if param.pointer is not None else 1) if pointer else 1
    return KernelParam(param.name, size, variable_align(param), scalar, pointer, align)


def _dimensions(function: Function, name: str) -> Dim3 | None:
    for directive in function.directives:
        if directive.name == name:
            x, y, z = (*map(int, directive.arguments), 1, 1)[:3]
            return x, y, z
    return None


def _shared_bytes(found: Iterable[Variable]) -> int:
    """Return the size of the ``.shared`` variables, one after the other in source order, each aligned."""
    end = 0
    for variable in found:
        if variable.space == "shared" and "extern" not in variable.linkage:
            align = variable_align(variable)
            end = -(-end // align) * align + variable_bytes(variable)
    return end
