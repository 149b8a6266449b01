"""What one session holds on a device: buffers and kernels, all charged.

Every method changes the device, the accounts, the regions and the layout together, or nothing. None of them waits: the
caller releases only what no stream uses any more.
"""

from __future__ import annotations

import ctypes
import os
import random
from collections.abc import Sequence
from typing import Final, NamedTuple

from tensorwasm.errors import InvalidArgs, InvalidKernel, InvokeTimeout, QuotaExceeded
from tensorwasm.gpu.device.arguments import RegionTable
from tensorwasm.gpu.device.limits import SessionLimits
from tensorwasm.gpu.device.port import KernelOutput, attempt
from tensorwasm.gpu.limits.accounts import Reservation
from tensorwasm.gpu.native.layout import LOAD_ROWS, OFFER_ROWS, KernelImage
from tensorwasm.gpu.native.layout_writer import SessionLayoutWriter
from tensorwasm.gpu.resources.device_resources import DeviceResources, TenantResources
from tensorwasm.gpu.resources.guarded_compiler import digest
from tensorwasm.gpu.resources.kernel_cache import KernelCache, SharedKernel
from tensorwasm.gpu.resources.session_windows import SessionWindow
from tensorwasm.gpu.state.numbered import Numbered
from tensorwasm.ptx.guarded import Width
from tensorwasm.values import NEVER, Deadline, Region

MAX_OFFER_BYTES: Final = 64 << 10
"""Longest text that is compared: it is kept once for every session that offers it."""

_ids: Final = random.Random()  # noqa: S311 - an id opens nothing: lookups are per session
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_ids.seed)  # or all workers of a template would give the same ids
_SEED_BITS: Final = 47
_ID_BITS: Final = 16


class ReusableKernel(NamedTuple):
    """A kernel that is offered to the next guest, with the bytes that its row in the layout points to."""

    shared: SharedKernel
    text: ctypes.Array[ctypes.c_char]
    entry: ctypes.Array[ctypes.c_char]


class ReusableKernels:
    """Kernels that compiled code may give to the next guest of a session. Not thread-safe.

    A fresh sandbox mostly loads what the one before it loaded. Its session still holds those kernels, so compiled code
    only compares: a text that is the same byte for byte, for the same entry, is the same kernel.

    Args:
        cache: where kernels are held.
        layout: shows the offers to compiled code.

    Attributes:
        longest_bytes: longest text that was ever offered, 0 while none was.
    """

    __slots__ = ("_cache", "_layout", "_next", "_offers", "longest_bytes")

    def __init__(self, cache: KernelCache, layout: SessionLayoutWriter) -> None:
        self._cache = cache
        self._layout = layout
        self._offers: dict[int, ReusableKernel] = {}
        self._next = self.longest_bytes = 0

    def __getitem__(self, row: int) -> SharedKernel:
        """Return the kernel that a row of the layout offers."""
        return self._offers[row].shared

    def add(self, shared: SharedKernel, image: KernelImage) -> None:
        """Offer a kernel that the session holds, unless it is private to a guest; it replaces the oldest offer."""
        if shared.private or any(offer.shared is shared for offer in self._offers.values()):
            return
        row, self._next = self._next, (self._next + 1) % OFFER_ROWS
        old = self._offers.get(row)
        self._cache.hold(shared)
        kept = [ctypes.create_string_buffer(text, max(len(text), 1)) for text in (shared.text, shared.entry.encode())]
        self._offers[row] = ReusableKernel(shared, *kept)
        text, entry = map(ctypes.addressof, kept)
        self._layout.show_offer(row, (text, len(shared.text), entry, len(shared.entry.encode()), image.address))
        self.longest_bytes = max(self.longest_bytes, shared.text_bytes)
        if old is not None:
            self._cache.release(old.shared)

    def release(self) -> None:
        """Withdraw all offers."""
        if self._offers:
            self._layout.hide_offers()
        for row in list(self._offers):
            self._cache.release(self._offers.pop(row).shared)


class HeldKernel(NamedTuple):
    """A loaded kernel.

    Attributes:
        reservation: the charge for the variables of its module, None if it has none or the session has them.
        data: the session's own copy of these variables, of a guarded kernel that has some.
    """

    shared: SharedKernel
    reservation: Reservation | None = None
    data: Region | None = None


class BufferTable(Numbered[Region]):
    """The buffers of one session."""

    what = "device buffer"


class KernelTable(Numbered[HeldKernel]):
    """The kernels of one session."""

    what = "kernel"
    refusal = InvalidKernel


class ResourceTable:
    """The buffers and kernels of one session. Not thread-safe: the session's lock is held.

    Args:
        tenancy: the tenant that is charged.
        window: of guarded kernels; buffers and variables of modules are cut from its memory.
        layout: shows buffers and kernels to compiled code.
        architecture: that PTX is chosen for.

    Attributes:
        regions: every address that the session's kernels may touch, without a guard.
        device_bytes: charged for buffers and for the variables of modules.
        ptx_bytes: text charged for kernels.
    """

    def __init__(
        self,
        resources: DeviceResources,
        tenancy: TenantResources,
        window: SessionWindow | None,
        limits: SessionLimits,
        layout: SessionLayoutWriter,
        architecture: tuple[int, int],
    ) -> None:
        self.buffers = BufferTable()
        self.kernels = KernelTable()
        self.regions = RegionTable()
        self.output = KernelOutput()
        self.device_bytes = self.ptx_bytes = 0
        self._resources = resources
        self._window = window
        self._tenancy = tenancy
        self._memory = tenancy.suballocator if window is None else window.memory
        self._variables = self._memory if window is None else window.variables
        self._width: Width = "narrow" if window is None else window.width
        self._limits = limits
        self._layout = layout
        self._architecture = architecture
        self._offers = ReusableKernels(resources.kernels, layout)
        self._loads_allowed = 0  # of compiled code, since Python last loaded or unloaded a kernel

    def reachable(self) -> Sequence[Region]:
        """Return what the session's kernels may touch."""
        return self.regions.snapshot() if self._window is None else self._window.regions

    # ----------------------------------------------------------------------------------------- buffers

    def allocate(self, size_bytes: int) -> tuple[int, Region]:
        """Return the handle and the region of a new buffer, whose contents are undefined; see `SessionBuffers`."""
        if size_bytes < 1:
            raise InvalidArgs("a device buffer has at least 1 byte")
        self.buffers.require_room(self._limits.allocations)
        self._check_bytes(size_bytes)
        region = self._memory.allocate(size_bytes)
        self.device_bytes += size_bytes
        self.regions.add(region)
        return self.buffers.add(region), region

    def at_hand(self, size_bytes: int) -> bool:
        """Return whether so much memory is available without asking the device."""
        return self._memory.has(size_bytes)

    def show(self, handle: int) -> None:
        """Let compiled code use a buffer, whose contents are defined now."""
        self._layout.show_buffer(handle, self.buffers[handle])

    def place(self, handle: int, offset_bytes: int, length_bytes: int) -> int:
        """Return the address of an offset in a buffer; raise `InvalidArgs` if it has not that many bytes from there."""
        region = self.buffers[handle]
        if offset_bytes < 0 or length_bytes < 0 or offset_bytes + length_bytes > region.size_bytes:
            raise InvalidArgs(
                f"{length_bytes} bytes at {offset_bytes} do not fit buffer {handle} of {region.size_bytes} bytes"
            )
        return region.address + offset_bytes

    def free(self, handle: int) -> None:
        """Release a buffer."""
        region = self.buffers[handle]
        self._layout.hide_buffer(handle)
        del self.buffers[handle]
        self.regions.remove(region)
        self.device_bytes -= region.size_bytes
        self._memory.free(region)

    # ----------------------------------------------------------------------------------------- kernels

    def load(self, text: bytes, entry: str, deadline: Deadline) -> int:
        """Return the id of a kernel of a PTX text; see `SessionKernels.load`."""
        if len(text) > self._limits.ptx_bytes:
            raise QuotaExceeded(f"{len(text)} bytes of PTX: at most {self._limits.ptx_bytes}")
        self.kernels.require_room(self._limits.kernels)
        if self.ptx_bytes + len(text) > self._limits.total_ptx_bytes:
            raise QuotaExceeded(f"{len(text)} bytes more would exceed {self._limits.total_ptx_bytes} bytes of PTX")
        if deadline.expired():
            raise InvokeTimeout("the deadline passed before the PTX was loaded")
        kernel = self._acquire(text, entry, deadline)
        try:
            image = kernel.shared.image(self._resources.device, deadline) if self._layout.layout is not None else None
        except BaseException:
            self._give_back(kernel)
            raise
        kernel_id = self._layout.next_kernel or _first_id()
        self._layout.next_kernel = kernel_id + 1
        self.kernels[kernel_id] = kernel
        self.ptx_bytes += kernel.shared.text_bytes
        self.device_bytes += kernel.shared.device_bytes
        if image is not None and not kernel.shared.sites:  # Python writes what a checked one checks against
            self._layout.show_kernel(kernel_id, image, 0 if kernel.data is None else kernel.data.address)
        self._allow_loads()
        return kernel_id

    def adopt(self) -> None:
        """Add the kernels that compiled code has loaded."""
        for kernel_id, row in self._layout.take_loads():
            shared = self._offers[row]
            self._resources.kernels.hold(shared)
            self.kernels[kernel_id] = HeldKernel(shared)
            self.ptx_bytes += shared.text_bytes
        self._allow_loads()

    def forget_loads(self) -> None:
        """Begin with other ids, as if compiled code had never loaded any kernel, nor done anything else."""
        self._layout.begin_anew(_first_id(), self._loads_allowed)

    def renew(self) -> None:
        """Give the kernels back, but offer them to the next guest."""
        self.output.take()
        for kernel_id, kernel in list(self.kernels.items()):
            if self._layout.layout is not None and _offerable(kernel.shared):
                self._offers.add(kernel.shared, kernel.shared.image(self._resources.device, NEVER))
            self.unload(kernel_id)

    def unload(self, kernel_id: int) -> None:
        """Give a kernel back; if the device raises, it is still held."""
        kernel = self.kernels[kernel_id]
        self._give_back(kernel)
        self._layout.hide_kernel(kernel_id)
        del self.kernels[kernel_id]
        self.ptx_bytes -= kernel.shared.text_bytes
        self.device_bytes -= kernel.shared.device_bytes
        self._allow_loads()

    def release(self) -> list[Exception]:
        """Give everything back, uncharged even where the device fails; return what it raised.

        The layout stays as it is: the end of the session wipes it.
        """
        failures: list[Exception] = []
        self._offers.release()
        for kernel in self.kernels.values():
            failures += attempt(self._resources.kernels.release, kernel.shared)
            self._give_back_variables(kernel, failures)
        for region in self.buffers.values():
            failures += attempt(self._memory.free, region)
        self.kernels.clear()
        self.buffers.clear()
        self.device_bytes = self.ptx_bytes = 0
        return failures

    def _acquire(self, text: bytes, entry: str, deadline: Deadline) -> HeldKernel:
        """Take a kernel from the cache, or load and charge it."""
        cache = self._resources.kernels
        key = self._tenancy.tenant, digest(text), entry, self._architecture, self._width
        shared = cache.find(key)
        if shared is not None:
            return self._with_data(shared, deadline)
        draft = cache.draft(key, text, deadline)
        if draft.guarded is not None or not draft.device_bytes:
            return self._with_data(cache.load(key, draft, deadline, self.output), deadline)
        self._check_bytes(draft.device_bytes)
        with self._tenancy.account.reserve(draft.device_bytes, allocations=0) as reservation:
            shared = cache.load(key, draft, deadline, self.output)
            reservation.commit()
        return HeldKernel(shared, reservation)

    def _with_data(self, shared: SharedKernel, deadline: Deadline) -> HeldKernel:
        """Return a kernel with the session's own copy of the variables that a guarded one has."""
        if shared.guarded is None or not shared.device_bytes:
            return HeldKernel(shared)
        try:
            self._check_bytes(shared.device_bytes)
            data = self._variables.allocate(shared.device_bytes)
        except BaseException:
            self._resources.kernels.release(shared)
            raise
        held = HeldKernel(shared, data=data)
        try:
            self._resources.device.write(data.address, shared.guarded.image(data.address), None, deadline)
        except BaseException:
            self._give_back(held)
            raise
        return held

    def _give_back(self, kernel: HeldKernel) -> None:
        self._resources.kernels.release(kernel.shared)
        failures: list[Exception] = []
        self._give_back_variables(kernel, failures)
        if failures:
            raise failures[0]

    def _give_back_variables(self, kernel: HeldKernel, failures: list[Exception]) -> None:
        if kernel.reservation is not None:
            kernel.reservation.release()
        if kernel.data is not None:
            failures += attempt(self._variables.free, kernel.data)

    def _allow_loads(self) -> None:
        """Let compiled code load as many of the offered kernels as are within every limit."""
        longest = self._offers.longest_bytes
        if longest:
            room = (self._limits.total_ptx_bytes - self.ptx_bytes) // longest
            self._loads_allowed = max(0, min(LOAD_ROWS, self._limits.kernels - len(self.kernels), room))
            self._layout.budget = self._loads_allowed

    def _check_bytes(self, size_bytes: int) -> None:
        if size_bytes > self._limits.allocation_bytes:
            raise QuotaExceeded(f"{size_bytes} bytes at once: at most {self._limits.allocation_bytes}")
        if self.device_bytes + size_bytes > self._limits.device_bytes:
            raise QuotaExceeded(f"{size_bytes} bytes more would exceed the guest's {self._limits.device_bytes} bytes")


def _offerable(shared: SharedKernel) -> bool:
    """Return whether compiled code may load a kernel: one without variables that each session has."""
    return shared.text_bytes <= MAX_OFFER_BYTES and not shared.device_bytes


def _first_id() -> int:
    """Return where a session's kernel ids begin: at random, so that an id of another session is unlikely to match."""
    return _ids.getrandbits(_SEED_BITS) << _ID_BITS | 1
