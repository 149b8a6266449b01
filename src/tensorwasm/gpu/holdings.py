"""What one session holds on a device: buffers, kernels and the registration of the guest's memory, all charged.

Every method changes either the device, the books and the table of addresses together, or nothing. None of them waits:
whoever releases or re-registers has seen the stream drain first.
"""

from __future__ import annotations

import mmap
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from tensorwasm import ptx
from tensorwasm.errors import InternalError, InvalidArgs, InvalidHandle, InvalidKernel, QuotaExceeded
from tensorwasm.gpu.device import Device, LoadedModule
from tensorwasm.gpu.limits import SessionLimits
from tensorwasm.gpu.quota import Ledger
from tensorwasm.gpu.regions import RegionTable
from tensorwasm.ptx.layout import variable_bytes
from tensorwasm.ptx.model import Block, Module, Variable
from tensorwasm.values import Deadline, KernelSignature, Region
from tensorwasm.watch import Watch

_CHARGED_SPACES: Final = frozenset({"global", "const"})


@dataclass(frozen=True, slots=True)
class Kernel:
    """A loaded kernel.

    Attributes:
        loaded: its module on the device.
        signature: what its arguments are checked against.
        ptx_bytes: length of the text.
        device_bytes: what the module's variables take in global and constant memory.
    """

    loaded: LoadedModule
    signature: KernelSignature
    ptx_bytes: int
    device_bytes: int


class Holdings:
    """The books of one session. Not safe from several threads: the session takes turns.

    Args:
        device: where things are held.
        limits: how much.
        ledger: charged along.
    """

    def __init__(
        self, device: Device, limits: SessionLimits, ledger: Ledger, architecture: tuple[int, int] | None = None
    ) -> None:
        self.regions = RegionTable()
        self.guest: Region | None = None
        self.device_bytes = 0
        self.ptx_bytes = 0
        self._device = device
        self._limits = limits
        self._ledger = ledger
        self._architecture = architecture or device.info.compute_capability
        self._buffers: dict[int, Region] = {}
        self._kernels: dict[int, Kernel] = {}
        self._next_handle = 1
        # A random start makes an id of another session unlikely to name anything here; lookups are per session anyway.
        self._next_kernel = (secrets.randbits(63) & ~0xFFFF) | 1

    @property
    def buffers(self) -> Mapping[int, Region]:
        """Live buffers by handle."""
        return MappingProxyType(self._buffers)

    @property
    def kernels(self) -> Mapping[int, Kernel]:
        """Loaded kernels by id."""
        return MappingProxyType(self._kernels)

    def allocate(self, size_bytes: int) -> int:
        """Return the handle of a new buffer.

        Raises:
            InvalidArgs: the size is 0.
            QuotaExceeded: over a limit, or the device has no memory left.
            DeviceLost: the device does not answer.
        """
        if size_bytes < 1:
            raise InvalidArgs("a device buffer has at least 1 byte")
        if len(self._buffers) >= self._limits.allocations:
            raise QuotaExceeded(f"the guest already holds {len(self._buffers)} device buffers")
        with self._charged(size_bytes, allocations=1):
            region = Region(self._device.allocate(size_bytes), size_bytes, host=False)
        handle, self._next_handle = self._next_handle, self._next_handle + 1
        self._buffers[handle] = region
        self.regions.add(region)
        return handle

    def buffer(self, handle: int, length_bytes: int = 0) -> Region:
        """Return a buffer that has at least that many bytes.

        Raises:
            InvalidHandle: no such buffer.
            InvalidArgs: it is shorter.
        """
        region = self._buffers.get(handle)
        if region is None:
            raise InvalidHandle(f"no device buffer {handle}")
        if length_bytes > region.size_bytes:
            raise InvalidArgs(f"{length_bytes} bytes do not fit buffer {handle} of {region.size_bytes} bytes")
        return region

    def free(self, handle: int) -> None:
        """Release a buffer.

        Raises:
            InvalidHandle: no such buffer.
            DeviceLost: the device does not answer.
        """
        region = self.buffer(handle)
        self._device.free(region.address)
        self._forget_buffer(handle)

    def load(self, text: bytes, entry: str, deadline: Deadline) -> int:
        """Return the id of a kernel of a PTX text, or of the variant in it that suits the device best.

        Raises:
            QuotaExceeded: over a limit.
            MalformedPtx: the text does not parse, or the device's compiler refuses it.
            UnsupportedPtx: it asks for what the device lacks.
            InvalidKernel: it has no such entry.
            InvokeTimeout: the deadline passed before it was loaded.
            DeviceLost: the device does not answer.
        """
        self._check_text(len(text))
        variants = ptx.parse_variants(text, deadline)
        module = ptx.select(variants, self._architecture, self._device.info.ptx_version)
        signature = ptx.signature(module, entry, deadline)
        device_bytes = _module_bytes(module, Watch(deadline, "while the variables of the PTX were measured"))
        with self._charged(device_bytes, allocations=0):
            loaded = self._device.load(module, deadline)
        kernel_id, self._next_kernel = self._next_kernel, self._next_kernel + 1
        self._kernels[kernel_id] = Kernel(loaded, signature, len(text), device_bytes)
        self.ptx_bytes += len(text)
        return kernel_id

    def kernel(self, kernel_id: int) -> Kernel:
        """Return a loaded kernel.

        Raises:
            InvalidKernel: no such kernel.
        """
        kernel = self._kernels.get(kernel_id)
        if kernel is None:
            raise InvalidKernel(f"no kernel {kernel_id}")
        return kernel

    def register(self, memory: Region) -> None:
        """Make the guest's memory, as it is now, the registered one.

        A grown memory is registered anew as a whole: a range that straddles two registrations is one the driver
        refuses to copy.

        Raises:
            LaunchRefused: the device cannot register the pages. Nothing is registered then.
            DeviceLost: the device does not answer.
        """
        if memory.address % mmap.PAGESIZE or memory.size_bytes % mmap.PAGESIZE:
            raise InternalError("guest memory is not whole pages")
        self._unregister()
        self._device.register(memory.address, memory.size_bytes)
        self.guest = memory
        self.regions.add(memory)

    def release(self) -> list[Exception]:
        """Release everything; return what the device raised.

        What it did not release is off the books all the same, but for the guest's pages: `guest` stays, because the
        device may still reach them.
        """
        failures: list[Exception] = []
        for kernel_id, kernel in list(self._kernels.items()):
            failures += attempt(self._device.unload, kernel.loaded)
            del self._kernels[kernel_id]
            self._refund(kernel.device_bytes, allocations=0)
            self.ptx_bytes -= kernel.ptx_bytes
        for handle, region in list(self._buffers.items()):
            failures += attempt(self._device.free, region.address)
            self._forget_buffer(handle)
        if self.guest is not None:
            refused = attempt(self._device.unregister, self.guest.address)
            if not refused:
                self._forget_guest(self.guest)
            failures += refused
        return failures

    # ------------------------------------------------------------------------------------------------ books

    @contextmanager
    def _charged(self, size_bytes: int, allocations: int) -> Iterator[None]:
        """Charge before the device is asked; refund if it refuses."""
        if size_bytes > self._limits.allocation_bytes:
            raise QuotaExceeded(f"{size_bytes} bytes at once: at most {self._limits.allocation_bytes}")
        if self.device_bytes + size_bytes > self._limits.device_bytes:
            raise QuotaExceeded(f"{size_bytes} bytes more would exceed the guest's {self._limits.device_bytes} bytes")
        self._ledger.reserve(size_bytes, allocations)
        self.device_bytes += size_bytes
        try:
            yield
        except BaseException:
            self._refund(size_bytes, allocations)
            raise

    def _refund(self, size_bytes: int, allocations: int) -> None:
        self._ledger.release(size_bytes, allocations)
        self.device_bytes -= size_bytes

    def _forget_buffer(self, handle: int) -> None:
        region = self._buffers.pop(handle)
        self.regions.remove(region)
        self._refund(region.size_bytes, allocations=1)

    def _check_text(self, text_bytes: int) -> None:
        if text_bytes > self._limits.ptx_bytes:
            raise QuotaExceeded(f"{text_bytes} bytes of PTX: at most {self._limits.ptx_bytes}")
        if len(self._kernels) >= self._limits.kernels:
            raise QuotaExceeded(f"the guest already holds {len(self._kernels)} kernels")
        if self.ptx_bytes + text_bytes > self._limits.total_ptx_bytes:
            raise QuotaExceeded(f"{text_bytes} bytes more would exceed {self._limits.total_ptx_bytes} bytes of PTX")

    def _unregister(self) -> None:
        if self.guest is not None:
            self._device.unregister(self.guest.address)
            self._forget_guest(self.guest)

    def _forget_guest(self, guest: Region) -> None:
        self.regions.remove(guest)
        self.guest = None


def _module_bytes(module: Module, watch: Watch) -> int:
    """Return the device memory of a module's variables: a guest could otherwise declare what it may not allocate."""
    bodies = [function.body for function in module.functions() if function.body is not None]
    total_bytes = sum(variable_bytes(variable) for variable in module.variables() if variable.space in _CHARGED_SPACES)
    while bodies:
        for statement in watch.over(bodies.pop()):
            if isinstance(statement, Block):
                bodies.append(statement.body)
            elif isinstance(statement, Variable) and statement.space in _CHARGED_SPACES:
                total_bytes += variable_bytes(statement)
    return total_bytes


def attempt(release: Callable[[Any], None], thing: object) -> list[Exception]:
    """Release one thing at the end of a session; return what the device raised, if anything."""
    try:
        release(thing)
    except Exception as error:  # noqa: BLE001 - a device that breaks its promises must not stop the other releases
        return [error]
    return []
