"""What one session holds on a device: buffers and kernels, all charged.

Every method changes either the device, the books, the table of addresses and the sheet together, or nothing. None of
them waits: whoever releases has seen the streams drain first.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from tensorwasm.errors import InvalidArgs, InvalidHandle, InvalidKernel, InvokeTimeout, QuotaExceeded
from tensorwasm.gpu.device.limits import SessionLimits
from tensorwasm.gpu.device.output import KernelOutput
from tensorwasm.gpu.device.regions import RegionTable
from tensorwasm.gpu.device.releases import attempt
from tensorwasm.gpu.limits.accounts import Reservation
from tensorwasm.gpu.native.layout import LOAD_ROWS
from tensorwasm.gpu.native.layout_writer import SessionLayoutWriter
from tensorwasm.gpu.resources.device_resources import DeviceResources, TenantResources
from tensorwasm.gpu.resources.kernel_cache import SharedKernel, digest
from tensorwasm.gpu.state.kernel_reuse import MAX_OFFER_BYTES, ReusableKernels
from tensorwasm.values import NEVER, Deadline, KernelSignature, Region

_ids: Final = random.Random()  # noqa: S311 - an id opens nothing: whoever guesses one has to have it anyway
_SEED_BITS: Final = 47
_ID_BITS: Final = 16


class Kernel:
    """A loaded kernel.

    Attributes:
        shared: where it is, perhaps for other sessions too.
        reservation: the charge for the module's variables, None if it has none.
    """

    __slots__ = ("reservation", "shared")

    def __init__(self, shared: SharedKernel, reservation: Reservation | None) -> None:
        self.shared = shared
        self.reservation = reservation

    @property
    def signature(self) -> KernelSignature:
        """What its arguments are checked against."""
        return self.shared.signature

    @property
    def entry(self) -> str:
        """Its name in the module."""
        return self.shared.signature.entry


class ResourceTable:
    """The books of one session. Not safe from several threads: the session takes turns.

    Args:
        commons: what the device's sessions share.
        tenancy: who is charged, and whose memory buffers are cut from.
        limits: how much.
        sheet: told along.
        architecture: that PTX is chosen for.

    Attributes:
        regions: every address that the session's kernels may touch.
        next_handle: of the buffer that is allocated next.
        device_bytes: charged for buffers and for the variables of modules.
        ptx_bytes: text charged for kernels.
        output: what the session's kernels print.
    """

    def __init__(
        self,
        commons: DeviceResources,
        tenancy: TenantResources,
        limits: SessionLimits,
        sheet: SessionLayoutWriter,
        architecture: tuple[int, int],
    ) -> None:
        self.regions = RegionTable()
        self.output = KernelOutput()
        self.next_handle = 1
        self.device_bytes = 0
        self.ptx_bytes = 0
        self._commons = commons
        self._tenancy = tenancy
        self._limits = limits
        self._sheet = sheet
        self._architecture = architecture
        self._buffers: dict[int, Region] = {}
        self._kernels: dict[int, Kernel] = {}
        self._offers = ReusableKernels(commons.kernels, sheet)

    @property
    def buffers(self) -> Mapping[int, Region]:
        """Live buffers by handle."""
        return MappingProxyType(self._buffers)

    @property
    def kernels(self) -> Mapping[int, Kernel]:
        """Loaded kernels by id."""
        return MappingProxyType(self._kernels)

    def allocate(self, size_bytes: int) -> tuple[int, Region]:
        """Return the handle and the place of a new buffer, whose contents are undefined.

        Raises:
            InvalidArgs: the size is 0.
            QuotaExceeded: over a limit, or the device has no memory left.
            DeviceLost: the device does not answer.
        """
        if size_bytes < 1:
            raise InvalidArgs("a device buffer has at least 1 byte")
        if len(self._buffers) >= self._limits.allocations:
            raise QuotaExceeded(f"the guest already holds {len(self._buffers)} device buffers")
        self._check_bytes(size_bytes)
        region = self._tenancy.suballocator.allocate(size_bytes)
        handle, self.next_handle = self.next_handle, self.next_handle + 1
        self._buffers[handle] = region
        self.device_bytes += size_bytes
        self.regions.add(region)
        return handle, region

    def at_hand(self, size_bytes: int) -> bool:
        """Return whether the device need not be asked for so much memory."""
        return self._tenancy.suballocator.has(size_bytes)

    def show(self, handle: int) -> None:
        """Let compiled code use a buffer, whose contents are defined now."""
        self._sheet.show_buffer(handle, self._buffers[handle])

    def buffer(self, handle: int, length_bytes: int = 0, offset_bytes: int = 0) -> Region:
        """Return a buffer that has at least that many bytes from that offset.

        Raises:
            InvalidHandle: no such buffer.
            InvalidArgs: it is shorter.
        """
        region = self._buffers.get(handle)
        if region is None:
            raise InvalidHandle(f"no device buffer {handle}")
        if offset_bytes < 0 or length_bytes < 0 or offset_bytes + length_bytes > region.size_bytes:
            raise InvalidArgs(
                f"{length_bytes} bytes at {offset_bytes} do not fit buffer {handle} of {region.size_bytes} bytes"
            )
        return region

    def free(self, handle: int) -> None:
        """Release a buffer.

        Raises:
            InvalidHandle: no such buffer.
        """
        region = self.buffer(handle)
        self._sheet.hide_buffer(handle)
        del self._buffers[handle]
        self.regions.remove(region)
        self.device_bytes -= region.size_bytes
        self._tenancy.suballocator.free(region)

    def load(self, text: bytes, entry: str, deadline: Deadline) -> int:
        """Return the id of a kernel of a PTX text, or of the variant in it that suits the device best.

        Raises:
            QuotaExceeded: over a limit.
            MalformedPtx: the text does not parse, or the device's compiler refuses it.
            UnsupportedPtx: it asks for what the device lacks.
            InvalidKernel: it has no such entry.
            InvokeTimeout: the deadline passed before it was loaded.
            DeviceUnavailable: this machine cannot assemble it now.
            DeviceLost: the device does not answer.
        """
        self._check_text(len(text))
        if deadline.expired():
            raise InvokeTimeout("the deadline passed before the PTX was loaded")
        kernel = self._acquire(text, entry, deadline)
        try:
            image = kernel.shared.image(self._commons.device, deadline) if self._sheet.pad is not None else None
        except BaseException:
            self._give_back(kernel)
            raise
        kernel_id = self._sheet.next_kernel or _first_id()
        self._sheet.next_kernel = kernel_id + 1
        self._kernels[kernel_id] = kernel
        self.ptx_bytes += kernel.shared.text_bytes
        self.device_bytes += kernel.shared.device_bytes
        if image is not None:
            self._sheet.show_kernel(kernel_id, image)
        self._allow_loads()
        return kernel_id

    def adopt(self) -> None:
        """Enter kernels in the books that compiled code has loaded."""
        for kernel_id, row in self._sheet.take_loads():
            shared = self._offers[row]
            self._commons.kernels.hold(shared)
            self._kernels[kernel_id] = Kernel(shared, None)
            self.ptx_bytes += shared.text_bytes
        self._allow_loads()

    def forget_loads(self) -> None:
        """Begin with other ids, as if compiled code had never loaded any kernel, nor done anything else."""
        self._sheet.begin_anew(_first_id())
        self._allow_loads()

    @property
    def renewable(self) -> bool:
        """Whether there were never any buffers."""
        return self.next_handle == 1

    def renew(self) -> None:
        """Give the kernels back, but offer them to the next guest.

        Raises:
            DeviceLost: the device does not answer.
        """
        self.output.take()
        for kernel_id, kernel in list(self._kernels.items()):
            if self._sheet.pad is not None and kernel.shared.text_bytes <= MAX_OFFER_BYTES:
                image = kernel.shared.image(self._commons.device, NEVER)
                self._offers.add(kernel.shared, image)
            self.unload(kernel_id)

    def kernel(self, kernel_id: int) -> Kernel:
        """Return a loaded kernel.

        Raises:
            InvalidKernel: no such kernel.
        """
        kernel = self._kernels.get(kernel_id)
        if kernel is None:
            raise InvalidKernel(f"no kernel {kernel_id}")
        return kernel

    def unload(self, kernel_id: int) -> None:
        """Give a kernel back.

        Raises:
            InvalidKernel: no such kernel.
            DeviceLost: the device does not answer; the kernel is still held.
        """
        kernel = self.kernel(kernel_id)
        self._give_back(kernel)
        self._sheet.hide_kernel(kernel_id)
        del self._kernels[kernel_id]
        self.ptx_bytes -= kernel.shared.text_bytes
        self.device_bytes -= kernel.shared.device_bytes
        self._allow_loads()

    def release(self) -> list[Exception]:
        """Give everything back; return what the device raised. What it did not take is off the books all the same.

        The sheet is left as it is, for whoever ends the session wipes it.
        """
        failures: list[Exception] = []
        self._offers.release()
        kernels, self._kernels = self._kernels, {}
        for kernel in kernels.values():
            failures += attempt(self._commons.kernels.release, kernel.shared)
            if kernel.reservation is not None:
                kernel.reservation.release()
        buffers, self._buffers = self._buffers, {}
        for region in buffers.values():
            failures += attempt(self._tenancy.suballocator.free, region)
        self.device_bytes = self.ptx_bytes = 0
        return failures

    def _acquire(self, text: bytes, entry: str, deadline: Deadline) -> Kernel:
        """Take a kernel that is there, or load and charge it."""
        cache = self._commons.kernels
        key = self._tenancy.tenant, digest(text), entry, self._architecture
        shared = cache.find(key)
        if shared is not None:
            return Kernel(shared, None)
        draft = cache.draft(key, text, deadline)
        if not draft.device_bytes:
            return Kernel(cache.load(key, draft, deadline, self.output), None)
        self._check_bytes(draft.device_bytes)
        with self._tenancy.account.reserve(draft.device_bytes, allocations=0) as reservation:
            shared = cache.load(key, draft, deadline, self.output)
            reservation.commit()
        return Kernel(shared, reservation)

    def _give_back(self, kernel: Kernel) -> None:
        self._commons.kernels.release(kernel.shared)
        if kernel.reservation is not None:
            kernel.reservation.release()

    def _allow_loads(self) -> None:
        """Let compiled code load as many of the offered kernels as are within every limit."""
        longest = self._offers.longest_bytes
        if longest:
            room = (self._limits.total_ptx_bytes - self.ptx_bytes) // longest
            self._sheet.allow_loads(max(0, min(LOAD_ROWS, self._limits.kernels - len(self._kernels), room)))

    def _check_bytes(self, size_bytes: int) -> None:
        if size_bytes > self._limits.allocation_bytes:
            raise QuotaExceeded(f"{size_bytes} bytes at once: at most {self._limits.allocation_bytes}")
        if self.device_bytes + size_bytes > self._limits.device_bytes:
            raise QuotaExceeded(f"{size_bytes} bytes more would exceed the guest's {self._limits.device_bytes} bytes")

    def _check_text(self, text_bytes: int) -> None:
        if text_bytes > self._limits.ptx_bytes:
            raise QuotaExceeded(f"{text_bytes} bytes of PTX: at most {self._limits.ptx_bytes}")
        if len(self._kernels) >= self._limits.kernels:
            raise QuotaExceeded(f"the guest already holds {len(self._kernels)} kernels")
        if self.ptx_bytes + text_bytes > self._limits.total_ptx_bytes:
            raise QuotaExceeded(f"{text_bytes} bytes more would exceed {self._limits.total_ptx_bytes} bytes of PTX")


def _first_id() -> int:
    """Return where a session's kernel ids begin.

    A random start makes an id of another session unlikely to name anything here; lookups are per session anyway.
    """
    return _ids.getrandbits(_SEED_BITS) << _ID_BITS | 1
