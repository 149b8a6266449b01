"""The kinds of memory: a backing class for each, what a device has of it, and what a buffer over it can do.

A backing is raw, as devices are: the buffer above it checks sizes, charges accounts and takes a lock. A method that
raises has changed nothing, but for `release`, which goes on where it stopped when it is called again.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal, Protocol

from tensorwasm.errors import InvalidArgs, NotSupported, TooLarge
from tensorwasm.gpu.device.limits import MAX_PROCESS_DEVICE_BYTES
from tensorwasm.gpu.device.port import Device
from tensorwasm.gpu.limits.accounts import Account, Reservation
from tensorwasm.gpu.memory import pages

BufferKind = Literal["device", "pinned", "managed", "vmm"]


class BufferBacking(Protocol):
    """Memory at one address for as long as it lives, zero when it is made."""

    @property
    def address(self) -> int:
        """First byte."""

    @property
    def borders(self) -> Sequence[int]:
        """Addresses, ascending, inside the memory that no one region of a launch may straddle."""

    def grow(self, size_bytes: int, new_bytes: int) -> None:
        """Make more bytes usable, all of them zero, if the kind grows.

        Args:
            size_bytes: usable now.
            new_bytes: usable then, more than now and within the capacity.

        Raises:
            QuotaExceeded: there is no memory for it.
            LaunchRefused: the device cannot reach more.
        """

    def release(self) -> None:
        """Give the memory back, zeroed first where the host holds it; what the device does not let go of stays."""


class DeviceBacking:
    """Memory of the device alone."""

    borders = ()

    def __init__(self, device: Device, size_bytes: int, capacity_bytes: int) -> None:
        del capacity_bytes
        self._device = device
        self.address = device.allocate(size_bytes)

    def grow(self, size_bytes: int, new_bytes: int) -> None:
        """Refuse: this kind does not grow."""
        raise NotSupported(f"memory of kind device does not grow from {size_bytes} to {new_bytes} bytes")

    def release(self) -> None:
        """See `BufferBacking.release`."""
        self._device.free(self.address)


class _PartedBacking:
    """A range of addresses that becomes usable part by part, in whole grains.

    If the first part, for the size from the start, cannot be made usable, the range is given back.
    """

    def __init__(self, address: int, grain_bytes: int, size_bytes: int) -> None:
        self.address = address
        self._grain_bytes = grain_bytes
        self._parts: list[tuple[int, int]] = []
        self._usable_bytes = 0
        try:
            self._extend(size_bytes)
        except BaseException:
            self._give_back()
            raise

    @property
    def borders(self) -> Sequence[int]:
        """See `BufferBacking.borders`."""
        return ()

    def grow(self, size_bytes: int, new_bytes: int) -> None:
        """See `BufferBacking.grow`."""
        held_bytes = self._usable_bytes
        self._extend(new_bytes)
        # What lay beyond the size in its last grain was within the device's reach.
        pages.clear(self.address + size_bytes, min(new_bytes, held_bytes) - size_bytes)

    def release(self) -> None:
        """See `BufferBacking.release`."""
        while self._parts:
            self._remove(*self._parts[-1])
            self._parts.pop()
        self._give_back()

    def _extend(self, size_bytes: int) -> None:
        usable_bytes = pages.rounded(size_bytes, self._grain_bytes)
        if usable_bytes > self._usable_bytes:
            part = (self.address + self._usable_bytes, usable_bytes - self._usable_bytes)
            self._add(*part)
            self._parts.append(part)
            self._usable_bytes = usable_bytes

    @abstractmethod
    def _add(self, start: int, size_bytes: int) -> None:
        """Make a part usable."""

    @abstractmethod
    def _remove(self, start: int, size_bytes: int) -> None:
        """Undo `_add`."""

    @abstractmethod
    def _give_back(self) -> None:
        """Give back the range, without any part."""


class PinnedPages(_PartedBacking):
    """Pages of the host that are registered with the device, more of them as the buffer grows.

    Each part is a registration of its own, so that growing disturbs no work in flight. The driver copies no range that
    straddles two.
    """

    def __init__(self, device: Device, size_bytes: int, capacity_bytes: int) -> None:
        self._device = device
        super().__init__(pages.acquire(pages.rounded(capacity_bytes, pages.PAGE_BYTES)), pages.PAGE_BYTES, size_bytes)

    @property
    def borders(self) -> Sequence[int]:
        """See `BufferBacking.borders`: where one registration ends and the next begins."""
        return [start for start, _ in self._parts[1:]]

    def _add(self, start: int, size_bytes: int) -> None:
        self._device.register(start, size_bytes)

    def _remove(self, start: int, size_bytes: int) -> None:  # noqa: ARG002 - a registration is known by its start
        self._device.unregister(start)

    def _give_back(self) -> None:
        pages.clear(self.address, self._usable_bytes)
        pages.give_back(self.address)


class ManagedMemory:
    """Memory that moves between host and device; all of the capacity is there from the start.

    What lies beyond the size has not been touched, takes no room, and may hold another's data: it is cleared when the
    memory grows, before anything can see it.
    """

    borders = ()

    def __init__(self, device: Device, size_bytes: int, capacity_bytes: int) -> None:
        self._unified = device.unified
        self.address = device.unified.allocate_managed(capacity_bytes, size_bytes)

    def grow(self, size_bytes: int, new_bytes: int) -> None:
        """See `BufferBacking.grow`."""
        self._unified.clear_managed(self.address + size_bytes, new_bytes - size_bytes)

    def release(self) -> None:
        """See `BufferBacking.release`."""
        self._unified.free_managed(self.address)


class MappedRange(_PartedBacking):
    """A reserved range of addresses in which host-located memory is mapped as the buffer grows."""

    def __init__(self, device: Device, size_bytes: int, capacity_bytes: int) -> None:
        self._unified = unified = device.unified
        self._capacity_bytes = pages.rounded(capacity_bytes, unified.granularity_bytes)
        super().__init__(unified.reserve(self._capacity_bytes), unified.granularity_bytes, size_bytes)

    def _add(self, start: int, size_bytes: int) -> None:
        self._unified.map(start, size_bytes)

    def _remove(self, start: int, size_bytes: int) -> None:
        pages.clear(start, size_bytes)
        self._unified.unmap(start, size_bytes)

    def _give_back(self) -> None:
        self._unified.unreserve(self.address, self._capacity_bytes)


@dataclass(frozen=True, slots=True)
class KindTraits:
    """What a buffer must know of a kind.

    Attributes:
        open: makes a backing of a device, a size and a capacity.
        reserve: charges an account for bytes of it.
        held_bytes: what is charged for a device, a size and a capacity.
        limit_bytes: the most at once on a device; of host memory, the process's own limit.
        available: whether a device has the kind.
        host, grows, hints: as in `Capabilities`.
    """

    open: Callable[[Device, int, int], BufferBacking]
    reserve: Callable[[Account, int], Reservation]
    held_bytes: Callable[[Device, int, int], int]
    limit_bytes: Callable[[Device], int] = lambda _: MAX_PROCESS_DEVICE_BYTES
    available: Callable[[Device], bool] = lambda _: True
    host: bool = True
    grows: bool = True
    hints: bool = False


KINDS: Final[Mapping[BufferKind, KindTraits]] = MappingProxyType(
    {
        "device": KindTraits(
            open=DeviceBacking,
            reserve=Account.reserve,
            held_bytes=lambda _, size_bytes, _capacity: size_bytes,
            limit_bytes=lambda device: device.info.memory_bytes,
            host=False,
            grows=False,
        ),
        "pinned": KindTraits(
            open=PinnedPages,
            reserve=Account.reserve_pinned,
            held_bytes=lambda _, size_bytes, _capacity: pages.rounded(size_bytes, pages.PAGE_BYTES),
        ),
        "managed": KindTraits(
            open=ManagedMemory,
            reserve=Account.reserve,
            held_bytes=lambda _device, _size, capacity_bytes: capacity_bytes,
            limit_bytes=lambda device: device.info.memory_bytes,
            available=lambda device: device.unified.managed,
            hints=True,
        ),
        "vmm": KindTraits(
            open=MappedRange,
            reserve=Account.reserve_pinned,
            held_bytes=lambda device, size_bytes, _: pages.rounded(size_bytes, device.unified.granularity_bytes),
            available=lambda device: device.unified.growable,
        ),
    }
)
"""What each kind is, by name."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Whether the host reaches a buffer in place, it grows in place, and advice and prefetching may have an effect."""

    host: bool
    grows: bool
    hints: bool


def check_request(device: Device, kind: BufferKind, size_bytes: int, capacity_bytes: int) -> None:
    """Check that there can be such a buffer, without a driver call.

    Raises:
        InvalidArgs: no such kind, a size below 1, or a capacity below the size.
        TooLarge: more than there can be of it.
        NotSupported: the device has no such memory, or the kind no capacity.
    """
    traits = KINDS.get(kind)
    if traits is None:
        raise InvalidArgs(f"no kind of memory {str(kind)[:64]!r}: there are {', '.join(KINDS)}")
    if not traits.available(device):
        raise NotSupported(f"the device {device.info.name} has no memory of kind {kind}")
    if not 1 <= size_bytes <= capacity_bytes:
        raise InvalidArgs(
            f"a buffer has at least 1 byte and a capacity of at least its size, not {size_bytes} of {capacity_bytes}"
        )
    if capacity_bytes > traits.limit_bytes(device):
        raise TooLarge(capacity_bytes, traits.limit_bytes(device))
    if capacity_bytes > size_bytes and not traits.grows:
        raise NotSupported(f"memory of kind {kind} cannot grow")
