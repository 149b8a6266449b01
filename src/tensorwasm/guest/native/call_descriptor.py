"""What compiled code is told to make, call and unmake a sandbox, and what it tells of it.

Needs no Numba, like `tensorwasm.guest.native.environment`.
"""

from __future__ import annotations

import ctypes
from enum import IntEnum
from typing import Final

from tensorwasm.gpu.native.layout import SessionLayout
from tensorwasm.guest.engine import capi

_u64 = ctypes.c_uint64


class CallStatus(IntEnum):
    """How far a visit got."""

    DONE = 0
    """All of it: the sandbox is gone."""
    UNBOUND = 1
    """Nothing was done: the device's context cannot be made current."""
    INSTANTIATING = 2
    """There is a store, and a trap or an error."""
    FINDING = 3
    """There is an instance; the export is not there."""
    CALLING = 4
    """The call ended with a trap or an error."""
    HELD = 5
    """The call ended well; the device may still reach the sandbox's memory."""
    SUSPENDED = 6
    """On a fiber: the guest is suspended, in the future."""


class Calls(ctypes.Structure):
    """Addresses of the functions of wasmtime that make a visit."""

    _fields_ = tuple(
        (name, _u64)
        for name in (
            "store_new",
            "store_context",
            "store_limiter",
            "store_epoch_deadline_callback",
            "instance_pre_instantiate",
            "instance_export_get",
            "global_set",
            "context_set_epoch_deadline",
            "func_call_unchecked",
            "store_delete",
            "context_epoch_deadline_async_yield_and_update",
            "instance_pre_instantiate_async",
            "func_call_async",
            "call_future_poll",
            "call_future_delete",
        )
    )


class Write(ctypes.Structure):
    """A global that is set before the call: its exported name, and a ``wasmtime_val_t``."""

    _fields_ = (
        ("name", _u64),
        ("name_bytes", _u64),
        ("value", ctypes.c_char * capi.SIZES["wasmtime_val_t"]),
    )


class CallDescriptor(ctypes.Structure):
    """One visit. What compiled code writes is at the end, from ``thread`` on.

    Attributes:
        calls: address of the `Calls`.
        engine: where the store is made.
        pad: of the sandbox, which its store carries.
        on_epoch, on_epoch_object: the epoch callback, and what it calls in Python.
        interpreter: address of the `Interpreter`.
        memory_bytes, table_elements, tables: most that the sandbox may have.
        prepared: the ``wasmtime_instance_pre_t``.
        export, export_bytes: the name that is called.
        initialiser, initialiser_bytes: the name that is called before it, 0 without; not on a fiber.
        memory, memory_name_bytes: the name of the memory that kernels take windows of, 0 if there is none.
        cells, cell_count: parameters in, results out; on a fiber the parameters alone, as ``wasmtime_val_t``.
        results, result_count: on a fiber.
        writes, write_count: of `Write`, what is set before the call.
        keeps: whether the GIL is kept until the epoch callback is first called.
        ticks: until the epoch callback.
        thread: what has the GIL back for the thread that has let go of it, 0 while it is kept.
        store, context: 0 where there is none any more.
        future: on a fiber, likewise.
        error, trap: from wasmtime, the reader's to free.
        instance: a ``wasmtime_instance_t``.
        item: room for an export.
    """

    _fields_ = (
        ("calls", _u64),
        ("engine", _u64),
        ("pad", _u64),
        ("on_epoch", _u64),
        ("on_epoch_object", _u64),
        ("interpreter", _u64),
        ("memory_bytes", _u64),
        ("table_elements", _u64),
        ("tables", _u64),
        ("prepared", _u64),
        ("export", _u64),
        ("export_bytes", _u64),
        ("initialiser", _u64),
        ("initialiser_bytes", _u64),
        ("memory", _u64),
        ("memory_name_bytes", _u64),
        ("cells", _u64),
        ("cell_count", _u64),
        ("results", _u64),
        ("result_count", _u64),
        ("writes", _u64),
        ("write_count", _u64),
        ("keeps", _u64),
        ("ticks", _u64),
        ("thread", _u64),
        ("store", _u64),
        ("context", _u64),
        ("future", _u64),
        ("error", _u64),
        ("trap", _u64),
        ("instance", ctypes.c_char * capi.SIZES["wasmtime_instance_t"]),
        ("item", ctypes.c_char * capi.SIZES["wasmtime_extern_t"]),
    )


CALLS: Final = Calls(**{field[0]: capi.address_of(f"wasmtime_{field[0]}") for field in Calls._fields_})
"""Wasmtime's functions."""

assert SessionLayout.memory.size == capi.SIZES["wasmtime_memory_t"]  # noqa: S101 - what is copied there
