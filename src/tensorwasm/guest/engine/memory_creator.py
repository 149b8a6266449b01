"""Linear memory that the host makes instead of wasmtime: managed memory and virtual ranges that the device shares.

An engine with host memory calls this module for every linear memory. It has no pool, and for a device's memory no guard
pages: compiled code compares every access with the memory's size, so a guest still traps at the exact byte. Memory
never moves. It is zero at the start, except for `tensorwasm.guest.memory.images`, and zero where it grows. It is
released when its store is deleted, which happens after the device has stopped using it.

Source: wasmtime C API, ``wasmtime_memory_creator_t``, ``wasmtime_linear_memory_t``.
"""

from __future__ import annotations

import ctypes
import itertools
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Protocol

from tensorwasm.errors import InternalError, NotSupported, TensorWasmError
from tensorwasm.guest.engine import capi
from tensorwasm.guest.engine.capi import KEEPING

MEMORY_BYTES: Final = 1 << 32
"""Most that a linear memory can have."""


class MemoryBacking(Protocol):
    """Memory behind one linear memory. `tensorwasm.gpu.memory.UnifiedBuffer` is one."""

    @property
    def address(self) -> int:
        """Host address of the first byte, constant."""

    def try_grow_in_place(self, size_bytes: int) -> object:
        """Extend it with zeros, or raise `TensorWasmError` and change nothing."""

    def close(self) -> None:
        """Release the memory."""


Provider = Callable[[int, int], MemoryBacking]
"""``(size_bytes, capacity_bytes) -> backing``: zeroed memory of a size that can grow to a capacity."""


@dataclass(slots=True)
class _LinearMemory:
    backing: MemoryBacking
    size_bytes: int
    capacity_bytes: int


class _Supply(threading.local):
    provider: Provider | None = None
    capacity_bytes: int = MEMORY_BYTES
    size_bytes: int = 0
    error: TensorWasmError | None = None
    asked: bool = False


_log: Final = logging.getLogger(__name__)
_supply: Final = _Supply()
_live: Final[dict[int, _LinearMemory]] = {}
_numbers: Final = itertools.count(1)


@contextmanager
def supplying(provider: Provider | None, capacity_bytes: int, size_bytes: int = 0) -> Iterator[None]:
    """Make sandboxes that this thread instantiates inside the ``with`` take their memory from a provider.

    Without one, wasmtime makes it. A memory may grow to ``capacity_bytes``, and starts with ``size_bytes`` if that is
    more than it declares; both are within the sandbox's limits. What the provider raises replaces the engine's error.
    """
    before = (_supply.provider, _supply.capacity_bytes, _supply.size_bytes)
    supply(provider, capacity_bytes, size_bytes)
    try:
        yield
    except TensorWasmError:
        if _supply.error is not None:
            raise _supply.error from None
        raise
    finally:
        (_supply.provider, _supply.capacity_bytes, _supply.size_bytes), _supply.error = before, None


def supply(provider: Provider | None, capacity_bytes: int = MEMORY_BYTES, size_bytes: int = 0) -> None:
    """Do what `supplying` does, from now on; `refusal` returns what the provider raised."""
    _supply.provider, _supply.capacity_bytes, _supply.size_bytes = provider, capacity_bytes, size_bytes
    _supply.error, _supply.asked = None, False


def refusal() -> TensorWasmError | None:
    """Return why the provider refused the last memory that this thread asked for, None if it did not."""
    return _supply.error


def live() -> int:
    """Return how many memories exist now."""
    return len(_live)


def install(config: int) -> None:
    """Set these callbacks in a ``wasm_config_t``, which needs `SWITCHES` or `GUARDED_SWITCHES` too."""
    capi.bind("wasmtime_config_host_memory_creator_set")(config, ctypes.byref(_creator))


# No reservation and no guard: every access is compared. Images are mapped only into wasmtime's own memories.
SWITCHES: Final = {
    "memory_guard_size": 0,
    "memory_init_cow": False,
    "memory_may_move": True,  # it does not, but a memory without a reservation may not grow otherwise
    "memory_reservation": 0,
    "memory_reservation_for_growth": 0,
}
GUARDED_SWITCHES: Final = {"memory_init_cow": False}
"""Every memory that is provided has as much address space as the configuration says, accessible to its end and no
further, so nothing has to be compared."""


class _LinearMemoryRecord(ctypes.Structure):
    """``wasmtime_linear_memory_t``."""

    _fields_ = (
        ("env", ctypes.c_void_p),
        ("get_memory", ctypes.c_void_p),
        ("grow_memory", ctypes.c_void_p),
        ("finalizer", ctypes.c_void_p),
    )


class _Creator(ctypes.Structure):
    """``wasmtime_memory_creator_t``."""

    _fields_ = (("env", ctypes.c_void_p), ("new_memory", ctypes.c_void_p), ("finalizer", ctypes.c_void_p))


def _new_memory(
    _env: int, _type: int, size_bytes: int, maximum_bytes: int, _reserved: int, _guard: int, record_at: int
) -> int:
    number = next(_numbers)
    try:
        _live[number] = _make_memory(size_bytes, maximum_bytes)
    except BaseException as error:  # noqa: BLE001 - nothing may escape into C; `supplying` raises it
        _supply.error = _as_ours(error)
        return _refusal()
    record = _LinearMemoryRecord.from_address(record_at)
    record.env = number
    record.get_memory, record.grow_memory, record.finalizer = _ENTRIES
    return 0


def _make_memory(size_bytes: int, maximum_bytes: int) -> _LinearMemory:
    if _supply.provider is None:
        raise InternalError("this engine's memories come from a provider, and none is there")
    if _supply.asked:  # a heap for exceptions comes before the one memory that a module can have
        raise NotSupported("a module with exceptions cannot have its memory from the host")
    _supply.asked = True
    if _supply.size_bytes > maximum_bytes:
        raise InternalError("a memory is to be longer than its module lets it be")
    size_bytes = max(size_bytes, _supply.size_bytes)
    capacity_bytes = max(size_bytes, min(maximum_bytes, _supply.capacity_bytes, MEMORY_BYTES))
    return _LinearMemory(_supply.provider(size_bytes, capacity_bytes), size_bytes, capacity_bytes)


def _get_memory(number: int, size_at: int, capacity_at: int) -> int:
    memory = _live[number]
    ctypes.c_size_t.from_address(size_at).value = memory.size_bytes
    ctypes.c_size_t.from_address(capacity_at).value = memory.capacity_bytes
    return memory.backing.address


def _grow_memory(number: int, size_bytes: int) -> int:
    memory = _live[number]
    if size_bytes > memory.capacity_bytes:
        return _refusal()
    try:
        memory.backing.try_grow_in_place(size_bytes)
    except TensorWasmError as refused:
        _log.info("a linear memory does not grow to %d bytes: %s", size_bytes, refused)
        return _refusal()
    except BaseException:  # noqa: BLE001 - nothing may escape into C; the guest's memory.grow answers -1
        _log.exception("a linear memory could not grow to %d bytes", size_bytes)
        return _refusal()
    memory.size_bytes = size_bytes
    return 0


def _finalize(number: int) -> None:
    backing = _live.pop(number).backing
    try:
        backing.close()
    except BaseException:  # noqa: BLE001 - nothing may escape into C; memory that was not released stays charged
        _log.exception("a linear memory was not given back")


def _as_ours(error: BaseException) -> TensorWasmError:
    if isinstance(error, TensorWasmError):
        return error
    ours = InternalError(f"a linear memory could not be made: {type(error).__name__}")
    ours.__cause__ = error
    return ours


def _refusal() -> int:
    return int(KEEPING.wasmtime_error_new(b"no memory"))


_callbacks: Final = (
    ctypes.CFUNCTYPE(ctypes.c_size_t, *[ctypes.c_size_t] * 7)(_new_memory),
    ctypes.CFUNCTYPE(ctypes.c_size_t, *[ctypes.c_size_t] * 3)(_get_memory),
    ctypes.CFUNCTYPE(ctypes.c_size_t, *[ctypes.c_size_t] * 2)(_grow_memory),
    ctypes.CFUNCTYPE(None, ctypes.c_size_t)(_finalize),
)
_ENTRIES: Final = tuple(ctypes.cast(callback, ctypes.c_void_p).value for callback in _callbacks[1:])
_creator: Final = _Creator(None, ctypes.cast(_callbacks[0], ctypes.c_void_p).value, None)
