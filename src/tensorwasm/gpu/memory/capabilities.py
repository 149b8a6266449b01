"""What a device has of each kind of memory, and what a buffer of it can do."""

from __future__ import annotations

from dataclasses import dataclass

from tensorwasm.errors import InvalidArgs, NotSupported, TooLarge
from tensorwasm.gpu.device.port import Device
from tensorwasm.gpu.memory.backings import KINDS, BufferKind


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a buffer can do.

    Attributes:
        host: the host reads and writes it in place.
        grows: it can grow in place.
        hints: advice and prefetching may have an effect; elsewhere they do nothing and return False.
    """

    host: bool
    grows: bool
    hints: bool


def describe(device: Device, kind: BufferKind) -> Capabilities:
    """Return what a buffer of a kind can do on a device."""
    traits = KINDS[kind]
    return Capabilities(traits.host, traits.grows, traits.hints and device.info.concurrent_managed_access)


def check_request(device: Device, kind: BufferKind, size_bytes: int, capacity_bytes: int) -> None:
    """Check that there can be such a buffer, without asking the device for it.

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
        raise InvalidArgs(f"a buffer has 1 byte or more, and room for them; not {size_bytes} of {capacity_bytes}")
    if capacity_bytes > traits.limit_bytes(device):
        raise TooLarge(capacity_bytes, traits.limit_bytes(device))
    if capacity_bytes > size_bytes and not traits.grows:
        raise NotSupported(f"memory of kind {kind} has no room to grow")
