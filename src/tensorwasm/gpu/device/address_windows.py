"""The sizes of address windows, and the table of what is mapped in one; shared by the devices that have them.

A window is a power of two of addresses, from 4 GiB to 128 GiB, that begins at a multiple of its size, with slack before
and behind. No page of it is unmapped: memory of its own where some was put, and everywhere else, in the slack too,
aliases of the window's scratch memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from tensorwasm.errors import InvalidArgs, InvalidPointer
from tensorwasm.values import MIB

WINDOW_BYTES: Final = 1 << 32
"""Of the smallest window."""
MAX_WINDOW_BYTES: Final = 1 << 37
SLACK_BYTES: Final = 64 * MIB
"""Addresses before a window and as many behind it which are aliases too, for the immediate offsets of accesses."""
GRANULE_BYTES: Final = 2 * MIB
"""What is mapped at a time; offsets and sizes are multiples."""
MAX_SCRATCH_BYTES: Final = SLACK_BYTES
"""Most that a chunk of scratch memory has: one whole alias of it stays in the slack for good."""


def check_window_bytes(size_bytes: int) -> None:
    """Check the size of a window; raises `InvalidArgs`."""
    if not WINDOW_BYTES <= size_bytes <= MAX_WINDOW_BYTES or size_bytes & (size_bytes - 1):
        raise InvalidArgs(f"a window of {size_bytes} bytes: it has a power of two, from 4 GiB to 128 GiB")


def window_mask(size_bytes: int) -> int:
    """Return which bits of the high half of an address may differ in a window of a size."""
    return (size_bytes - 1) >> 32


def scratch_chunk(wanted_bytes: int, window_bytes: int = WINDOW_BYTES) -> int:
    """Return the size of the scratch chunk for a wanted one: the next power of two from 2 MiB to 64 MiB.

    Windows of more than 4 GiB have the largest: each of its aliases is a mapping, which takes time.
    """
    if window_bytes > WINDOW_BYTES:
        return MAX_SCRATCH_BYTES
    wanted_bytes = min(max(wanted_bytes, GRANULE_BYTES), MAX_SCRATCH_BYTES)
    return 1 << (wanted_bytes - 1).bit_length()


@dataclass(frozen=True, slots=True)
class WindowPart:
    """Memory of its own in a window.

    Attributes:
        backing: what the device knows it by.
        view: the host's address of it; None for device memory.
        reserved: whether the addresses of the view were reserved for it.
    """

    size_bytes: int
    backing: Any
    view: int | None = None
    reserved: bool = False


@dataclass(slots=True, eq=False)
class WindowParts:
    """What is mapped in a window of a size, by offset. The window's lock must be held."""

    window_bytes: int
    _parts: dict[int, WindowPart] = field(default_factory=dict)

    @property
    def total_bytes(self) -> int:
        """Bytes of all parts."""
        return sum(part.size_bytes for part in list(self._parts.values()))

    def overlaps(self, start: int, end: int) -> bool:
        """Return whether a part has a byte between two offsets."""
        return any(offset < end and start < offset + part.size_bytes for offset, part in self._parts.items())

    def require_free(self, offset: int, size_bytes: int) -> None:
        """Check that a range is whole granules of the window, all of them aliases.

        Raises:
            InvalidPointer: it is not.
        """
        whole = offset % GRANULE_BYTES == size_bytes % GRANULE_BYTES == 0
        if not (whole and offset >= 0 and 0 < size_bytes <= self.window_bytes - offset):
            raise InvalidPointer(f"{size_bytes} bytes at offset {offset} are not whole granules of a window")
        if self.overlaps(offset, offset + size_bytes):
            raise InvalidPointer(f"some of the {size_bytes} bytes at offset {offset} of the window are mapped already")

    def require_inside(self, offset: int, size_bytes: int) -> None:
        """Check that a range lies in one part.

        Raises:
            InvalidPointer: it does not.
        """
        end = offset + size_bytes
        parts = self._parts.items()
        if size_bytes < 0 or not any(at <= offset and end <= at + part.size_bytes for at, part in parts):
            raise InvalidPointer(f"{size_bytes} bytes at offset {offset} of the window are not inside one mapping")

    def require(self, offset: int) -> WindowPart:
        """Return the part that begins at an offset.

        Raises:
            InvalidPointer: none does.
        """
        if offset not in self._parts:
            raise InvalidPointer(f"nothing is mapped from offset {offset} of the window on")
        return self._parts[offset]

    def add(self, offset: int, part: WindowPart) -> None:
        """Enter a part."""
        self._parts[offset] = part

    def remove(self, offset: int) -> None:
        """Take a part out."""
        del self._parts[offset]

    def entries(self) -> list[tuple[int, WindowPart]]:
        """Return offset and part of each."""
        return list(self._parts.items())
