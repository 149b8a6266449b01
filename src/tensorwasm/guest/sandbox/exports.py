"""Reading and setting a sandbox's exports from host code, between calls.

Source: wasmtime C API, ``wasmtime_global_t``, ``wasmtime_table_t``, ``wasmtime_func_to_raw``.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

from tensorwasm.errors import CapacityExhausted, InternalError, InvalidSnapshot
from tensorwasm.guest.engine import capi, traps
from tensorwasm.guest.engine.capi import KEEPING
from tensorwasm.values import WASM_PAGE_BYTES

_Extern: Final = ctypes.c_char * capi.SIZES["wasmtime_extern_t"]
_FUNCTION, _GLOBAL, _TABLE, _MEMORY = 0, 1, 2, capi.EXTERN_MEMORY
BITS: Final = {"i32": 32, "i64": 64, "f32": 32, "f64": 64, "v128": 128}


class _Value(ctypes.Structure):
    """``wasmtime_val_t``. A null function has a store of 0."""

    _fields_ = (
        ("kind", ctypes.c_uint8),
        ("low", ctypes.c_uint64),
        ("high", ctypes.c_uint64),
        ("rest", ctypes.c_uint64),
    )


_PAYLOAD: Final = _Value.low.offset
_Found = ctypes.Array[ctypes.c_char]


def _payload(found: _Found) -> Any:
    return ctypes.byref(found, capi.EXTERN_PAYLOAD_OFFSET)


class Exports:
    """The exports of one instance that is not being called. Functions are identified by a number, 0 for none.

    The number is an address inside the instance, valid as long as that lives, and must not leave the process.
    """

    __slots__ = ("_context", "_functions", "_instance")

    def __init__(self, context: int, instance: ctypes.Array[ctypes.c_char]) -> None:
        """Wrap a ``wasmtime_instance_t`` and its store's context."""
        self._context = context
        self._instance = instance
        self._functions: dict[str, _Found] = {}

    def memory(self, name: str) -> tuple[int, int]:
        """Return address and size in bytes of a memory."""
        where = self._context, _payload(self._find(name, _MEMORY))
        return KEEPING.wasmtime_memory_data(*where) or 0, KEEPING.wasmtime_memory_data_size(*where)

    def function(self, name: str) -> int:
        """Return the number of a function."""
        return int(KEEPING.wasmtime_func_to_raw(self._context, _payload(self._function(name))))

    def grow_memory(self, name: str, size_bytes: int) -> int:
        """Grow a memory to that size if it is smaller; return its host address, or raise `CapacityExhausted`."""
        address, now_bytes = self.memory(name)
        pages = (size_bytes - now_bytes) // WASM_PAGE_BYTES
        if pages <= 0:
            return address
        before = ctypes.c_uint64()
        error = KEEPING.wasmtime_memory_grow(
            self._context, _payload(self._find(name, _MEMORY)), pages, ctypes.byref(before)
        )
        if error:
            raise CapacityExhausted(f"a memory of {size_bytes} bytes: {traps.explain(error)}")
        return self.memory(name)[0]

    def read_global(self, name: str, kind: str) -> int:
        """Return the bits of a global, or the number of the function in a ``funcref``."""
        value = _Value()
        KEEPING.wasmtime_global_get(self._context, _payload(self._find(name, _GLOBAL)), ctypes.byref(value))
        if value.kind != capi.GLOBAL_KINDS[kind]:
            raise InternalError(f"a global is no {kind}")
        if kind == "funcref":
            return self._number(value)
        return int(value.high << 64 | value.low) & ((1 << BITS[kind]) - 1)

    def write_global(self, name: str, kind: str, bits: int) -> None:
        """Set the bits of a mutable global that is no ``funcref``. Raises `InvalidSnapshot` if they do not fit."""
        if not 0 <= bits < 1 << BITS[kind]:
            raise InvalidSnapshot(f"a global has more bits than its {kind}")
        self._set_global(name, _Value(capi.GLOBAL_KINDS[kind], bits & (1 << 64) - 1, bits >> 64))

    def point_global(self, name: str, function: str | None) -> None:
        """Set a mutable ``funcref`` to an exported function, or to null."""
        self._set_global(name, self._reference(function))

    def read_table(self, name: str) -> list[int]:
        """Return the numbers of the functions in a table. Takes about a second for a million."""
        table, value = _payload(self._find(name, _TABLE)), _Value()
        context, at, numbers = self._context, ctypes.byref(value), []
        for index in range(KEEPING.wasmtime_table_size(context, table)):
            KEEPING.wasmtime_table_get(context, table, index, at)
            numbers.append(self._number(value))
        return numbers

    def write_table(self, name: str, elements: dict[int, str | None], size: int) -> None:
        """Set elements of a table, by index, to exported functions, or None for null.

        The table grows to the size, which is not less than the current one, or `CapacityExhausted` is raised.
        """
        table = _payload(self._find(name, _TABLE))
        more = size - KEEPING.wasmtime_table_size(self._context, table)
        if more:
            null, before = self._reference(None), ctypes.c_uint64()
            error = KEEPING.wasmtime_table_grow(self._context, table, more, ctypes.byref(null), ctypes.byref(before))
            if error:
                raise CapacityExhausted(f"a table of {size} elements: {traps.explain(error)}")
        for index, function in elements.items():
            reference = self._reference(function)
            self._require(KEEPING.wasmtime_table_set(self._context, table, index, ctypes.byref(reference)))

    def _reference(self, function: str | None) -> _Value:
        value = _Value(capi.GLOBAL_KINDS["funcref"])
        if function is not None:
            source = _payload(self._function(function))
            ctypes.memmove(ctypes.byref(value, _PAYLOAD), source, capi.SIZES["wasmtime_func_t"])
        return value

    def _number(self, value: _Value) -> int:
        return int(KEEPING.wasmtime_func_to_raw(self._context, ctypes.byref(value, _PAYLOAD))) if value.low else 0

    def _set_global(self, name: str, value: _Value) -> None:
        self._require(
            KEEPING.wasmtime_global_set(self._context, _payload(self._find(name, _GLOBAL)), ctypes.byref(value))
        )

    def _function(self, name: str) -> _Found:
        found = self._functions.get(name)
        if found is None:
            found = self._functions[name] = self._find(name, _FUNCTION)
        return found

    def _find(self, name: str, kind: int) -> _Found:
        found, encoded = _Extern(), name.encode()
        if not KEEPING.wasmtime_instance_export_get(self._context, self._instance, encoded, len(encoded), found):
            raise InternalError(f"the export {traps.clean(name)} is not there")
        if found[0] != bytes((kind,)):
            raise InternalError(f"the export {traps.clean(name)} is of another kind")
        return found

    def _require(self, error: int | None) -> None:
        if error:
            raise InternalError(f"wasmtime refused a value: {traps.explain(error)}")
