"""From PTX to a kernel on the device: compile a module, load it, look up its kernels, check and pack their arguments.

Source: CUDA Driver API, "Module Management", "Execution Control" (cuLaunchKernel).
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import Any, Final

from tensorwasm import ptx
from tensorwasm.errors import InvalidDimensions, InvalidKernelArgs, MalformedPtx, UnsupportedPtx
from tensorwasm.gpu.cuda.assembler import Assembler, summarize
from tensorwasm.gpu.cuda.driver.calls import Driver, DriverFailure, meaning
from tensorwasm.gpu.device.admission import CompiledKernel
from tensorwasm.gpu.device.protocols import NativeKernel
from tensorwasm.ptx.model import Module
from tensorwasm.values import Deadline, DeviceInfo, Dim3, KernelSignature, LaunchConfig

_LOG_BYTES: Final = 8192
_SLOT_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class KernelAssembler:
    """A ptxas for the modules of one device.

    Attributes:
        assembler: the ptxas.
        capability: compute capability of the device.
        isa: newest PTX ISA that a module may have.
        cuda: CUDA release that the driver supports.
    """

    assembler: Assembler
    capability: tuple[int, int]
    isa: tuple[int, int]
    cuda: tuple[int, int]

    def takes(self, module: Module) -> bool:
        """Return whether it compiles a module."""
        return self.assembler.suits(self.capability, module.version, self.cuda)

    def compile(self, module: Module, deadline: Deadline) -> bytes:
        """Return a module as a cubin; raises what `PtxCompiler.compile` does."""
        text = checked_text(module, self.capability, self.isa, deadline)
        return self.assembler.assemble(text, _architecture(module, self.capability), deadline)

    def compile_kernel(self, module: Module, deadline: Deadline) -> CompiledKernel:
        """Return a module of one kernel as a cubin, with what it takes; otherwise as `compile`.

        Raises:
            UnsupportedPtx: also if ptxas does not take the module, or does not say what the kernel takes.
        """
        if not self.takes(module):
            raise UnsupportedPtx("ptxas does not take the module")
        text = checked_text(module, self.capability, self.isa, deadline)
        return self.assembler.compile_kernel(text, _architecture(module, self.capability), deadline)


@dataclass(frozen=True, slots=True)
class PtxCompiler:
    """How a device's modules are compiled.

    Attributes:
        driver: the driver API.
        info: the device.
        cuda: CUDA release that the driver supports.
        assembler: a ptxas, or None for the driver's own compiler.
        jit: whether the driver's own compiler, which runs in this process, may take what ptxas cannot.
    """

    driver: Driver
    info: DeviceInfo
    cuda: tuple[int, int]
    assembler: Assembler | None
    jit: bool = True

    def compile(self, module: Module, deadline: Deadline) -> bytes:
        """Return the image that `load` takes: a cubin, or PTX text with its final NUL. Needs no context.

        Raises:
            UnsupportedPtx: the device or the driver lacks something that the module needs, or ptxas does where the
                driver must not compile; or the module prints.
            MalformedPtx: it is not ASCII, or ptxas refuses it.
            InvokeTimeout: the deadline passed.
            DeviceUnavailable: this machine cannot run its ptxas.
        """
        ptxas = self.ptxas
        if ptxas is not None and ptxas.takes(module):
            return ptxas.compile(module, deadline)
        text = checked_text(module, self.info.compute_capability, self.info.ptx_version, deadline)
        if not self.jit:
            raise UnsupportedPtx("ptxas does not take the module, and the driver is not to compile in this process")
        return text.encode("ascii") + b"\0"

    @property
    def ptxas(self) -> KernelAssembler | None:
        """The ptxas for this device's modules, if there is one."""
        if self.assembler is None:
            return None
        return KernelAssembler(self.assembler, self.info.compute_capability, self.info.ptx_version, self.cuda)

    def load(self, image: bytes) -> Any:
        """Return the driver's module of a compiled image. A context must be bound."""
        option = self.driver.api.CUjit_option
        errors = bytearray(_LOG_BYTES)
        options = {option.CU_JIT_ERROR_LOG_BUFFER: errors, option.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES: _LOG_BYTES}
        try:
            return self.driver.call("cuModuleLoadDataEx", image, len(options), list(options), list(options.values()))
        except DriverFailure as failure:
            log = summarize(bytes(errors)) if issubclass(meaning(failure).error, MalformedPtx) else ""
            raise DriverFailure(failure.function, failure.code, log) from None


def checked_text(module: Module, capability: tuple[int, int], isa: tuple[int, int], deadline: Deadline) -> str:
    """Return what compilers may be given of a module for a device.

    Raises:
        UnsupportedPtx: the device lacks something that the module needs, or the module prints.
        MalformedPtx: it is not ASCII.
    """
    ptx.check_compatible(module, capability, isa)
    where = ptx.find_printf(module)
    if where is not None:  # the driver would write it to the output of this process, which is no guest's
        raise UnsupportedPtx(
            "vprintf: on a GPU the output of kernels goes to the process, not to the guest",
            where.line,
            where.column,
        )
    text = ptx.render(module, deadline)
    if not text.isascii() or "\0" in text:
        raise MalformedPtx("PTX is ASCII text without NUL")
    return text


def _architecture(module: Module, capability: tuple[int, int]) -> str:
    """Return a device's ``sm_N``, with the suffix of a module that is bound to one architecture or family."""
    major, minor = capability
    word = next((word for word in module.target if word.startswith("sm_")), "")
    return f"sm_{major}{minor}{word[-1] if word[-1:] in {'a', 'f'} else ''}"


@dataclass(frozen=True, slots=True)
class LaunchLimits:
    """What a device takes.

    Attributes:
        grid: most blocks along x, y, z.
        block: most threads along x, y, z.
        shared_bytes: most shared memory of a block, opt-in included.
    """

    grid: Dim3
    block: Dim3
    shared_bytes: int


class CudaKernel:
    """A kernel on the device.

    Attributes:
        handle: the driver's function.
    """

    def __init__(self, driver: Driver, handle: Any, signature: KernelSignature) -> None:
        """Ask the driver for the kernel's limits."""
        attributes = driver.api.CUfunction_attribute
        self.handle = handle
        self._driver = driver
        self._signature = signature
        self._sizes = [param.size_bytes for param in signature.params]
        # One block of memory: a pointer to each value, then the values, each padded to a multiple of 8 bytes.
        values = (f"{size}s{-size % _SLOT_BYTES}x" for size in self._sizes)
        self._layout = struct.Struct(f"={len(self._sizes)}Q{''.join(values)}")
        self._block = ctypes.c_char * self._layout.size
        padded = (size + -size % _SLOT_BYTES for size in self._sizes)
        self._offsets = list(accumulate(padded, initial=_SLOT_BYTES * len(self._sizes)))[:-1]
        self._most_dynamic = attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        self._threads = self._ask(attributes.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)
        self._static_bytes = self._ask(attributes.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)
        self._dynamic_bytes = self._ask(self._most_dynamic)
        self._registers = self._ask(attributes.CU_FUNC_ATTRIBUTE_NUM_REGS)
        self._lock = threading.Lock()

    def _ask(self, attribute: Any) -> int:
        return int(self._driver.call("cuFuncGetAttribute", attribute, self.handle))

    def check(self, config: LaunchConfig, args: Sequence[bytes], most: LaunchLimits) -> None:
        """Check a launch before the driver sees it.

        Raises:
            InvalidDimensions: more than this device or this kernel takes.
            InvalidKernelArgs: sizes other than those of the kernel's parameters: the driver would read past them.
        """
        entry = self._signature.entry
        if not (_within(config.grid, most.grid) and _within(config.block, most.block)):
            raise InvalidDimensions(
                f"grid {config.grid}, block {config.block}; this device takes 1 to {most.grid}, {most.block}"
            )
        threads = prod(config.block)
        if threads > self._threads:
            raise InvalidDimensions(f"{threads} threads in a block; {entry} takes {self._threads}")
        required = self._signature.required_block
        if required is not None and config.block != required:
            raise InvalidDimensions(f"block {config.block}; {entry} requires {required}")
        free_bytes = most.shared_bytes - self._static_bytes
        if not 0 <= config.shared_bytes <= free_bytes:
            raise InvalidDimensions(
                f"{config.shared_bytes} bytes of dynamic shared memory; {free_bytes} are left of a block's"
            )
        if list(map(len, args)) != self._sizes:
            raise InvalidKernelArgs(f"{entry} takes parameters of {self._sizes} bytes")

    def pack(self, args: Sequence[bytes]) -> tuple[int, object]:
        """Pack arguments that `check` has passed.

        Returns:
            The address of a ``void*[]``, a pointer to each value; and the memory that it lies in, which the caller
            keeps until the driver has copied the values.
        """
        block = self._block()
        base = ctypes.addressof(block)
        self._layout.pack_into(block, 0, *[base + offset for offset in self._offsets], *args)
        return base, block

    def native(self, most: LaunchLimits) -> NativeKernel:
        """Return the kernel for compiled code, admitted to all the dynamic shared memory that there is."""
        free_bytes = most.shared_bytes - self._static_bytes
        self.admit_shared(free_bytes)
        return NativeKernel(int(self.handle), self._threads, free_bytes, most.grid, most.block, self._registers)

    def admit_shared(self, size_bytes: int) -> None:
        """Let the kernel use that much dynamic shared memory, which beyond 48 KiB takes an attribute of its own."""
        with self._lock:
            if size_bytes > self._dynamic_bytes:
                self._driver.call("cuFuncSetAttribute", self.handle, self._most_dynamic, size_bytes)
                self._dynamic_bytes = size_bytes


def _within(asked: Dim3, most: Dim3) -> bool:
    return 1 <= asked[0] <= most[0] and 1 <= asked[1] <= most[1] and 1 <= asked[2] <= most[2]


class CudaModule:
    """A module on the device, with the kernels that were launched so far.

    Args:
        handle: the driver's module, an attribute too.
        find: returns the signature of a kernel by its name, before a deadline.
    """

    def __init__(self, handle: Any, find: Callable[[str, Deadline], KernelSignature]) -> None:
        self.handle = handle
        self._find = find
        self._kernels: dict[str, CudaKernel] = {}

    def kernel(self, driver: Driver, entry: str, deadline: Deadline) -> CudaKernel:
        """Return a kernel, looking it up on its first use.

        Raises:
            InvalidKernel: the same.
            InvokeTimeout: the deadline passed.
        """
        kernel = self._kernels.get(entry)
        if kernel is None:
            handle = driver.call("cuModuleGetFunction", self.handle, entry.encode())
            signature = self._find(entry, deadline)
            kernel = self._kernels.setdefault(entry, CudaKernel(driver, handle, signature))
        return kernel
