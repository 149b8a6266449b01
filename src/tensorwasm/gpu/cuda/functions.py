"""Kernels of a loaded module: what they take, and how arguments reach the driver.

Source: CUDA Driver API, "Execution Control", cuLaunchKernel.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

from tensorwasm import ptx
from tensorwasm.errors import InvalidDimensions, InvalidKernelArgs
from tensorwasm.gpu.cuda.binding import Driver
from tensorwasm.ptx.model import Module
from tensorwasm.values import Dim3, KernelSignature, LaunchConfig

_SLOT_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class Geometry:
    """What a device takes.

    Attributes:
        grid: most blocks along x, y, z.
        block: most threads along x, y, z.
        shared_bytes: most shared memory of a block, opt-in included.
    """

    grid: Dim3
    block: Dim3
    shared_bytes: int


class Function:
    """A kernel on the device.

    Attributes:
        handle: the driver's function.
    """

    def __init__(self, driver: Driver, handle: Any, kernel: KernelSignature) -> None:
        """Ask the driver what the kernel takes.

        Raises:
            DriverFailure: it does not say.
        """
        attributes = driver.api.CUfunction_attribute
        self.handle = handle
        self._driver = driver
        self._kernel = kernel
        self._sizes = [param.size_bytes for param in kernel.params]
        self._most_dynamic = attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        self._threads = self._ask(attributes.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)
        self._static_bytes = self._ask(attributes.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)
        self._dynamic_bytes = self._ask(self._most_dynamic)
        self._lock = threading.Lock()

    def _ask(self, attribute: Any) -> int:
        return int(self._driver.call("cuFuncGetAttribute", attribute, self.handle))

    def check(self, config: LaunchConfig, args: Sequence[bytes], most: Geometry) -> None:
        """Check a launch before the driver sees it.

        Raises:
            InvalidDimensions: more than this device or this kernel takes.
            InvalidKernelArgs: other arguments than the kernel's parameters: the driver would read past them.
        """
        _check_axes("grid", config.grid, most.grid)
        _check_axes("block", config.block, most.block)
        threads = prod(config.block)
        if threads > self._threads:
            raise InvalidDimensions(f"{threads} threads in a block; {self._kernel.entry} takes {self._threads}")
        required = self._kernel.required_block
        if required is not None and config.block != required:
            raise InvalidDimensions(f"block {config.block}; {self._kernel.entry} requires {required}")
        room = most.shared_bytes - self._static_bytes
        if not 0 <= config.shared_bytes <= room:
            raise InvalidDimensions(
                f"{config.shared_bytes} bytes of dynamic shared memory; {room} are left of a block's"
            )
        if [len(arg) for arg in args] != self._sizes:
            raise InvalidKernelArgs(f"{self._kernel.entry} takes parameters of {self._sizes} bytes")

    def admit_shared(self, size_bytes: int) -> None:
        """Let the kernel use that much dynamic shared memory; beyond 48 KiB a kernel must be told.

        Raises:
            DriverFailure: the driver does not grant it.
        """
        with self._lock:
            if size_bytes > self._dynamic_bytes:
                self._driver.call("cuFuncSetAttribute", self.handle, self._most_dynamic, size_bytes)
                self._dynamic_bytes = size_bytes


class LoadedKernels:
    """A module on the device, with the kernels that were asked for so far.

    Attributes:
        handle: the driver's module.
    """

    def __init__(self, handle: Any, module: Module) -> None:
        """Know a loaded module; no kernel is looked up yet."""
        self.handle = handle
        self._module = module
        self._functions: dict[str, Function] = {}

    def function(self, driver: Driver, entry: str) -> Function:
        """Return a kernel, looking it up on its first use.

        Raises:
            DriverFailure: the module has no such kernel.
            InvalidKernel: the same.
        """
        function = self._functions.get(entry)
        if function is None:
            handle = driver.call("cuModuleGetFunction", self.handle, entry.encode())
            function = self._functions.setdefault(entry, Function(driver, handle, ptx.signature(self._module, entry)))
        return function


def with_arguments(args: Sequence[bytes], use: Callable[[int], None]) -> None:
    """Call ``use`` with the address of a ``void*[]``, one pointer a parameter; the memory lives until it returns."""
    slots = [arg.ljust(-len(arg) % _SLOT_BYTES + len(arg), b"\0") for arg in args]
    values = ctypes.create_string_buffer(b"".join(slots))
    pointers = (ctypes.c_void_p * len(slots))()
    address = ctypes.addressof(values)
    for at, slot in enumerate(slots):
        pointers[at] = address
        address += len(slot)
    use(ctypes.addressof(pointers) if slots else 0)


def _check_axes(what: str, asked: Dim3, most: Dim3) -> None:
    for axis, count, limit in zip("xyz", asked, most, strict=True):
        if not 1 <= count <= limit:
            raise InvalidDimensions(f"{what}.{axis} is {count}; this device takes 1 to {limit}")
