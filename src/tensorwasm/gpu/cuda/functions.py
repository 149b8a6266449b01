"""Kernels of a loaded module: what they take, and how arguments reach the driver.

Source: CUDA Driver API, "Execution Control", cuLaunchKernel.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import Any, Final, NamedTuple

from tensorwasm import ptx
from tensorwasm.errors import InvalidDimensions, InvalidKernelArgs
from tensorwasm.gpu.cuda.binding import Driver
from tensorwasm.gpu.device.protocols import NativeKernel
from tensorwasm.ptx.model import Module
from tensorwasm.values import Deadline, Dim3, KernelSignature, LaunchConfig

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


class Packed(NamedTuple):
    """Arguments of a launch.

    Attributes:
        address: of a ``void*[]``, a pointer to each value.
        memory: where the pointers and the values live; keep it until the driver has copied them.
    """

    address: int
    memory: object


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
        self._layout = _layout(self._sizes)
        self._block = ctypes.c_char * self._layout.size
        self._offsets = [_SLOT_BYTES * len(self._sizes) + at for at in _slots(self._sizes)]
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
        if not (_within(config.grid, most.grid) and _within(config.block, most.block)):
            raise InvalidDimensions(
                f"grid {config.grid}, block {config.block}; this device takes 1 to {most.grid}, {most.block}"
            )
        threads = prod(config.block)
        if threads > self._threads:
            raise InvalidDimensions(f"{threads} threads in a block; {self._kernel.entry} takes {self._threads}")
        required = self._kernel.required_block
        if required is not None and config.block != required:
            raise InvalidDimensions(f"block {config.block}; {self._kernel.entry} requires {required}")
        room = self._room(most)
        if not 0 <= config.shared_bytes <= room:
            raise InvalidDimensions(
                f"{config.shared_bytes} bytes of dynamic shared memory; {room} are left of a block's"
            )
        if list(map(len, args)) != self._sizes:
            raise InvalidKernelArgs(f"{self._kernel.entry} takes parameters of {self._sizes} bytes")

    def pack(self, args: Sequence[bytes]) -> Packed:
        """Return arguments, as `check` has found them right, in the form that the driver takes."""
        block = self._block()
        base = ctypes.addressof(block)
        self._layout.pack_into(block, 0, *[base + offset for offset in self._offsets], *args)
        return Packed(base, block)

    def native(self, most: Geometry) -> NativeKernel:
        """Return the kernel for compiled code, admitted to all the dynamic shared memory that there is.

        Raises:
            DriverFailure: the driver does not grant it.
        """
        room = self._room(most)
        self.admit_shared(room)
        return NativeKernel(int(self.handle), self._threads, room, most.grid, most.block)

    def _room(self, most: Geometry) -> int:
        """Return the bytes of a block's shared memory that the kernel itself does not take."""
        return most.shared_bytes - self._static_bytes

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

    def function(self, driver: Driver, entry: str, deadline: Deadline) -> Function:
        """Return a kernel, looking it up on its first use.

        Raises:
            DriverFailure: the module has no such kernel.
            InvalidKernel: the same.
            InvokeTimeout: the deadline passed.
        """
        function = self._functions.get(entry)
        if function is None:
            handle = driver.call("cuModuleGetFunction", self.handle, entry.encode())
            signature = ptx.signature(self._module, entry, deadline)
            function = self._functions.setdefault(entry, Function(driver, handle, signature))
        return function


def _within(asked: Dim3, most: Dim3) -> bool:
    return 1 <= asked[0] <= most[0] and 1 <= asked[1] <= most[1] and 1 <= asked[2] <= most[2]


def _slots(sizes: Sequence[int]) -> list[int]:
    """Return where each value begins: one after the other, each at a multiple of 8."""
    return list(accumulate((-(-size // _SLOT_BYTES) * _SLOT_BYTES for size in sizes), initial=0))[:-1]


def _layout(sizes: Sequence[int]) -> struct.Struct:
    """Return the layout of one block of memory with the pointers in front and the values behind them."""
    values = (f"{size}s{-size % _SLOT_BYTES}x" for size in sizes)
    return struct.Struct(f"={len(sizes)}Q{''.join(values)}")
