"""Admission of guarded kernels: what one may take of a device that tenants share, by what its compiler made of it.

It is asked before the kernel is loaded, because the driver loads some kernels only when no other runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tensorwasm.errors import KernelTooLarge
from tensorwasm.gpu.device.limits import (
    MAX_GUARDED_IMAGE_BYTES,
    MAX_GUARDED_LOCAL_BYTES,
    MAX_GUARDED_REGISTERS,
    MAX_GUARDED_SHARED_BYTES,
)


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """A kernel as the device's compiler made it.

    Attributes:
        image: what the device loads.
        registers: of a thread.
        local_bytes: local memory of a thread: its arrays, what did not fit into registers, and frames of functions.
        shared_bytes: static shared memory of a block.
    """

    image: bytes
    registers: int
    local_bytes: int
    shared_bytes: int


LIMITS: Final = (
    ("registers a thread", MAX_GUARDED_REGISTERS),
    ("bytes of local memory a thread", MAX_GUARDED_LOCAL_BYTES),
    ("bytes of static shared memory", MAX_GUARDED_SHARED_BYTES),
    ("bytes of machine code and its tables", MAX_GUARDED_IMAGE_BYTES),
)
"""What is limited, and to how much."""


def admit(compiled: CompiledKernel) -> None:
    """Refuse a kernel that takes more than a guarded kernel may.

    Raises:
        KernelTooLarge: it does; the message has the amount, the limit and what to do.
    """
    taken = (compiled.registers, compiled.local_bytes, compiled.shared_bytes, len(compiled.image))
    for amount, (what, most) in zip(taken, LIMITS, strict=True):
        if amount > most:
            raise KernelTooLarge(
                f"the kernel takes {amount} {what}; a guarded kernel has at most {most}: make it smaller, "
                "or run it with isolation='process'"
            )
