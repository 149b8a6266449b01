"""A sandbox's linear memory, as host code reads and writes it."""

from __future__ import annotations

import ctypes
from typing import Final

from tensorwasm.errors import InvalidPointer
from tensorwasm.guest.engine.capi import KEEPING

_data_size: Final = KEEPING.wasmtime_memory_data_size

# A window on everything a memory can ever become. Only checked parts of it are touched or handed out.
_Reservation = ctypes.c_ubyte * (1 << 32)


class GuestMemory:
    """The memory exported as ``memory``. Its address is constant; its size changes when the guest grows it.

    Usable while the instance lives and no thread runs it: inside a host call, or between calls.
    """

    __slots__ = ("_context", "_held_bytes", "_memory", "_window", "address")

    def __init__(self, context: int, memory: bytes, held: tuple[int, int] | None = None) -> None:
        """Wrap a ``wasmtime_memory_t`` of a store's context.

        ``held``, address and size in bytes of a suspended guest's memory, which cannot grow, replaces both.
        """
        self._context = context if held is None else 0
        self._memory = memory
        self.address, self._held_bytes = held or (KEEPING.wasmtime_memory_data(context, memory) or 0, 0)
        self._window = memoryview(_Reservation.from_address(self.address)).cast("B")

    def close(self) -> None:
        """Refuse all later accesses, because the store is deleted."""
        self._context = 0
        self._held_bytes = 0
        self._window = memoryview(b"")

    @property
    def size_bytes(self) -> int:
        """Current size; 0 once the instance is closed."""
        return _data_size(self._context, self._memory) if self._context else self._held_bytes

    def read(self, offset: int, length: int) -> bytes:
        """Return a copy of a region, checked as by `view`."""
        return self.view(offset, length).tobytes()

    def write(self, offset: int, data: bytes | memoryview) -> None:
        """Copy bytes into a region, checked as by `view`."""
        source = memoryview(data).cast("B")
        self.view(offset, len(source))[:] = source

    def view(self, offset: int, length: int) -> memoryview:
        """Return a writable view of a region, valid until the guest runs again or is closed.

        Raises `InvalidPointer` if part of it is outside, or a number is negative.
        """
        size = self.size_bytes
        if offset < 0 or length < 0 or offset + length > size:
            raise InvalidPointer(f"{length} bytes at {offset} lie outside the guest's memory of {size} bytes")
        return self._window[offset : offset + length]
