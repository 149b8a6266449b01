"""What is behind a buffer: one small class for each kind of memory.

A backing is raw, as devices are: the buffer above it checks sizes, charges accounts and takes turns. One that raises
has changed nothing, but for `release`, which goes on where it stopped when it is called again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal, Protocol

from tensorwasm.errors import NotSupported
from tensorwasm.gpu.device.limits import MAX_PROCESS_DEVICE_BYTES
from tensorwasm.gpu.device.port import Device
from tensorwasm.gpu.limits.accounts import Account, Reservation
from tensorwasm.gpu.memory import pages

BufferKind = Literal["device", "pinned", "managed", "vmm"]


class Backing(Protocol):
    """Memory at one address for as long as it lives, zero when it is made."""

    @property
    def address(self) -> int:
        """First byte."""

    @property
    def borders(self) -> Sequence[int]:
        """Addresses, ascending, inside the memory that no one region of a launch may straddle."""

    def grow(self, size_bytes: int, new_bytes: int) -> None:
        """Make more bytes usable, all of them zero, where growing is what the kind does.

        Args:
            size_bytes: usable now.
            new_bytes: usable then, more than now and within the capacity.

        Raises:
            QuotaExceeded: there is no memory for it.
            LaunchRefused: the device cannot reach more.
            DeviceLost: the device does not answer.
        """

    def release(self) -> None:
        """Give the memory back, zero first where the host holds it.

        Raises:
            DeviceLost: the device does not answer; what it did not let go of stays.
        """


class DeviceMemory:
    """Memory of the device alone."""

    borders = ()

    def __init__(self, device: Device, size_bytes: int, capacity_bytes: int) -> None:
        del capacity_bytes
        self._device = device
        self.address = device.allocate(size_bytes)

    def grow(self, size_bytes: int, new_bytes: int) -> None:
        """See `Backing.grow`: not what this kind does."""
        raise NotSupported(f"memory of kind device does not grow from {size_bytes} to {new_bytes} bytes")

    def release(self) -> None:
        """See `Backing.release`."""
        self._device.free(self.address)


class PinnedPages:
    """Pages of the host that are registered with the device, more of them as the buffer grows.

    Each part is a registration of its own, so that growing disturbs no work in flight: kernels reach them all, but the
    driver copies no range that straddles two.
    """

    def __init__(self, device: Device, size_bytes: int, capacity_bytes: int) -> None:
        self._device = device
        self._capacity_bytes = pages.rounded(capacity_bytes, pages.PAGE_BYTES)
        self._parts: list[int] = []
        self._usable_bytes = 0
        self.address = pages.acquire(self._capacity_bytes)
        try:
            self._register(size_bytes)
        except BaseException:
            pages.give_back(self.address)
            raise

    @property
    def borders(self) -> Sequence[int]:
        """See `Backing.borders`: where one registration ends and the next begins."""
        return self._parts[1:]

    def grow(self, size_bytes: int, new_bytes: int) -> None:
        """See `Backing.grow`."""
        held_bytes = self._usable_bytes
        self._register(new_bytes)
        # What lay beyond the size on its last page was within the device's reach.
        pages.clear(self.address + size_bytes, min(new_bytes, held_bytes) - size_bytes)

    def release(self) -> None:
        """See `Backing.release`."""
        while self._parts:
            self._device.unregister(self._parts[-1])
            self._parts.pop()
        pages.clear(self.address, self._usable_bytes)
        pages.give_back(self.address)

    def _register(self, size_bytes: int) -> None:
        usable_bytes = pages.rounded(size_bytes, pages.PAGE_BYTES)
        if usable_bytes > self._usable_bytes:
            start = self.address + self._usable_bytes
            self._device.register(start, usable_bytes - self._usable_bytes)
            self._parts.append(start)
            self._usable_bytes = usable_bytes


class ManagedMemory:
    """Memory that moves between host and device; all of the capacity is there from the start.

    What lies beyond the size has not been touched, takes no room, and holds whatever was there before: nobody sees it
    until it has been cleared, when the memory grows.
    """

    borders = ()

    def __init__(self, device: Device, size_bytes: int, capacity_bytes: int) -> None:
        self._unified = device.unified
        self.address = device.unified.allocate_managed(capacity_bytes, size_bytes)

    def grow(self, size_bytes: int, new_bytes: int) -> None:
        """See `Backing.grow`."""
        self._unified.clear_managed(self.address + size_bytes, new_bytes - size_bytes)

    def release(self) -> None:
        """See `Backing.release`."""
        self._unified.free_managed(self.address)


class MappedRange:
    """A reserved range of addresses in which host-located memory is mapped as the buffer grows."""

    borders = ()

    def __init__(self, device: Device, size_bytes: int, capacity_bytes: int) -> None:
        self._unified = unified = device.unified
        self._grain_bytes = unified.granularity_bytes
        self._capacity_bytes = pages.rounded(capacity_bytes, self._grain_bytes)
        self._parts: list[tuple[int, int]] = []
        self._usable_bytes = 0
        self.address = unified.reserve(self._capacity_bytes)
        try:
            self._map(size_bytes)
        except BaseException:
            unified.unreserve(self.address, self._capacity_bytes)
            raise

    def grow(self, size_bytes: int, new_bytes: int) -> None:
        """See `Backing.grow`."""
        held_bytes = self._usable_bytes
        self._map(new_bytes)
        pages.clear(self.address + size_bytes, min(new_bytes, held_bytes) - size_bytes)

    def release(self) -> None:
        """See `Backing.release`."""
        while self._parts:
            start, part_bytes = self._parts[-1]
            pages.clear(start, part_bytes)
            self._unified.unmap(start, part_bytes)
            self._parts.pop()
        self._unified.unreserve(self.address, self._capacity_bytes)

    def _map(self, size_bytes: int) -> None:
        usable_bytes = pages.rounded(size_bytes, self._grain_bytes)
        if usable_bytes > self._usable_bytes:
            part = (self.address + self._usable_bytes, usable_bytes - self._usable_bytes)
            self._unified.map(*part)
            self._parts.append(part)
            self._usable_bytes = usable_bytes


@dataclass(frozen=True, slots=True)
class KindTraits:
    """What a buffer must know of a kind.

    Attributes:
        open: makes a backing of a device, a size and a capacity.
        reserve: charges an account for bytes of it.
        held_bytes: what is charged for a device, a size and a capacity.
        limit_bytes: the most at once on a device.
        available: whether a device has the kind.
        host: whether the host reaches it.
        grows: whether it grows in place.
        hints: whether advice and prefetching may have an effect.
    """

    open: Callable[[Device, int, int], Backing]
    reserve: Callable[[Account, int], Reservation]
    held_bytes: Callable[[Device, int, int], int]
    limit_bytes: Callable[[Device], int]
    available: Callable[[Device], bool] = lambda _: True
    host: bool = True
    grows: bool = True
    hints: bool = False


def _device_bytes(device: Device) -> int:
    return device.info.memory_bytes


def _host_bytes(device: Device) -> int:
    del device
    return MAX_PROCESS_DEVICE_BYTES


KINDS: Final[Mapping[BufferKind, KindTraits]] = MappingProxyType(
    {
        "device": KindTraits(
            open=DeviceMemory,
            reserve=lambda account, size_bytes: account.reserve(size_bytes),
            held_bytes=lambda _, size_bytes, _capacity: size_bytes,
            limit_bytes=_device_bytes,
            host=False,
            grows=False,
        ),
        "pinned": KindTraits(
            open=PinnedPages,
            reserve=lambda account, size_bytes: account.reserve_pinned(size_bytes),
            held_bytes=lambda _, size_bytes, _capacity: pages.rounded(size_bytes, pages.PAGE_BYTES),
            limit_bytes=_host_bytes,
        ),
        "managed": KindTraits(
            open=ManagedMemory,
            reserve=lambda account, size_bytes: account.reserve(size_bytes),
            held_bytes=lambda _device, _size, capacity_bytes: capacity_bytes,
            limit_bytes=_device_bytes,
            available=lambda device: device.unified.managed,
            hints=True,
        ),
        "vmm": KindTraits(
            open=MappedRange,
            reserve=lambda account, size_bytes: account.reserve_pinned(size_bytes),
            held_bytes=lambda device, size_bytes, _: pages.rounded(size_bytes, device.unified.granularity_bytes),
            limit_bytes=_host_bytes,
            available=lambda device: device.unified.growable,
        ),
    }
)
"""What each kind is, by name."""
