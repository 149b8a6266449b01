"""A sandbox's linear memory, as host code reads and writes it."""

from __future__ import annotations

import ctypes
from typing import Final

from tensorwasm.errors import InvalidPointer
from tensorwasm.guest.engine import capi

_data: Final = capi.bind("wasmtime_memory_data")
_data_size: Final = capi.bind("wasmtime_memory_data_size")

# A window on everything a memory can ever become. Only checked parts of it are touched or handed out.
_Reservation = ctypes.c_ubyte * (1 << 32)


class GuestMemory:
    """The memory exported as ``memory``. Its address never changes; its end moves when the guest grows it.

    Usable while the instance lives and nobody runs it: inside a host call, or between calls.
    """

    __slots__ = ("_context", "_held_bytes", "_memory", "_window", "address")

    def __init__(self, context: int, memory: bytes, held: tuple[int, int] | None = None) -> None:
        """Wrap a memory.

        Args:
            context: the store's context.
            memory: the ``wasmtime_memory_t``.
            held: address and size in bytes of the memory of a guest that is suspended and cannot grow it; then neither
                of the other two is used.
        """
        self._context = context if held is None else 0
        self._memory = memory
        self.address, self._held_bytes = held or (_data(context, memory) or 0, 0)
        self._window = memoryview(_Reservation.from_address(self.address)).cast("B")

    def close(self) -> None:
        """Forget the memory, because its store goes away; every later access is refused."""
        self._context = 0
        self._held_bytes = 0
        self._window = memoryview(b"")

    @property
    def size_bytes(self) -> int:
        """Current size; 0 once the instance is closed."""
        return _data_size(self._context, self._memory) if self._context else self._held_bytes

    def read(self, offset: int, length: int) -> bytes:
        """Return a copy of a region.

        Raises:
            InvalidPointer: part of it lies outside, or a number is negative.
        """
        return self.view(offset, length).tobytes()

    def write(self, offset: int, data: bytes | memoryview) -> None:
        """Copy bytes into a region.

        Raises:
            InvalidPointer: part of it lies outside, or a number is negative.
        """
        source = memoryview(data).cast("B")
        self.view(offset, len(source))[:] = source

    def view(self, offset: int, length: int) -> memoryview:
        """Return a writable window on a region, valid until the guest runs again or is closed.

        Raises:
            InvalidPointer: part of it lies outside, or a number is negative.
        """
        size = self.size_bytes
        if offset < 0 or length < 0 or offset + length > size:
            raise InvalidPointer(f"{length} bytes at {offset} lie outside the guest's memory of {size} bytes")
        return self._window[offset : offset + length]
