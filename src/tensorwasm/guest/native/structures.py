"""C structures that the linker and sandboxes share with compiled code. Needs no Numba."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from tensorwasm.gpu.native.layout import SessionLayout
from tensorwasm.guest.engine import capi
from tensorwasm.guest.imports.host_function import ValType

SPIN_NS: Final = 5_000_000
"""A sleeping wait returns 0.1 to 0.4 ms late, which is a tenth of a kernel of this length."""

_u64 = ctypes.c_uint64
_libc: Final = ctypes.CDLL(None)


def address_of(function: Any) -> int:
    """Return the address of a ctypes function or callback."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _words(names: str) -> tuple[tuple[str, type[ctypes.c_uint64]], ...]:
    return tuple((name, _u64) for name in names.split())


# ------------------------------------------------------------------------------------------------ host functions


class Environment(ctypes.Structure):
    """The ``env`` of one import: addresses of C functions, so that compiled code contains none.

    ``fallback`` is the import in Python; it gets what compiled code does not complete, before that has had any effect.
    ``finish`` waits in Python for work that compiled code has started, and answers. The ``_object`` fields are their
    Python functions where compiled code calls these through ``interpreter``. ``spin_ns`` limits the wait for a kernel
    or a copy before Python takes over; 0 does not even query. ``compare`` is ``memcmp``.
    """

    _fields_ = _words("""
        fallback finish caller_context context_get_data memory_data memory_data_size clock_gettime
        sched_yield spin_ns compare interpreter fallback_object finish_object
    """)


@dataclass(frozen=True, slots=True)
class Entry:
    """A compiled host function.

    Attributes:
        address: of the C function ``(env, caller, cells, count) -> trap``.
        params: its Wasm parameter types.
        finish: body that waits for what the function has started, None if it starts nothing.
    """

    address: int
    params: tuple[ValType, ...]
    finish: Callable[..., int] | None = None


Entries = Mapping[tuple[str, str], Entry]
"""Compiled host functions by import module and field."""

NO_ENTRIES: Final[Entries] = {}

_CONSTANT: Final = {
    **{
        name: capi.address_of(f"wasmtime_{name}")
        for name in ("caller_context", "context_get_data", "memory_data", "memory_data_size")
    },
    "clock_gettime": address_of(_libc.clock_gettime),
    "sched_yield": address_of(_libc.sched_yield),
    "compare": address_of(_libc.memcmp),
}


def make_environment(fallback: int, finish: int, spin_ns: int = SPIN_NS) -> Environment:
    """Return an import's `Environment`; the caller keeps the functions alive. ``finish`` is 0 if nothing is started."""
    return Environment(fallback=fallback, finish=finish, spin_ns=spin_ns, **_CONSTANT)


@dataclass(frozen=True, slots=True)
class PythonCallbacks:
    """Addresses of the compiled functions of `tensorwasm.guest.native.callbacks`."""

    fallback: int
    finish: int
    on_epoch: int


# --------------------------------------------------------------------------------------------------- interpreter

_STOPPED: Final = ctypes.create_string_buffer(b"stopped")
_PYTHON: Final = {
    "ensure": "PyGILState_Ensure",
    "release": "PyGILState_Release",
    "save": "PyEval_SaveThread",
    "restore": "PyEval_RestoreThread",
    "tuple_new": "PyTuple_New",
    "tuple_set": "PyTuple_SetItem",
    "to_object": "PyLong_FromUnsignedLongLong",
    "to_number": "PyLong_AsUnsignedLongLong",
    "call": "PyObject_CallObject",
    "forget": "Py_DecRef",
    "report": "PyErr_WriteUnraisable",
}


class Interpreter(ctypes.Structure):
    """Addresses of CPython's functions, of ``None``, of wasmtime's makers of traps and errors, and of their text.

    A ctypes callback that fails before its first line returns garbage; compiled code calls the interpreter, and checks.

    Source: Python/C API, "Initialization, Finalization, and Threads", "Exception Handling", "Call Protocol".
    """

    _fields_ = _words(f"{' '.join(_PYTHON)} none trap_new error_new text text_bytes")


INTERPRETER: Final = Interpreter(
    **{name: address_of(getattr(ctypes.pythonapi, function)) for name, function in _PYTHON.items()},
    none=id(None),
    trap_new=capi.address_of("wasmtime_trap_new"),
    error_new=capi.address_of("wasmtime_error_new"),
    text=ctypes.addressof(_STOPPED),
    text_bytes=len(_STOPPED.value),
)
"""This process's interpreter."""


# ------------------------------------------------------------------------------------------------ one-shot calls


class CallStatus(IntEnum):
    """How far a one-shot call got."""

    DONE = 0
    """Completed: the sandbox is gone."""
    UNBOUND = 1
    """Nothing was done: the device's context cannot be made current."""
    INSTANTIATING = 2
    """There is a store, and a trap or an error."""
    FINDING = 3
    """There is an instance; the export is missing."""
    CALLING = 4
    """The call ended with a trap or an error."""
    HELD = 5
    """The call succeeded; the device may still reach the sandbox's memory."""
    SUSPENDED = 6
    """On a fiber: the guest is suspended, in the future."""
    INITIALISING = 7
    """The initialiser ended with a trap or an error."""
    UNCLEARED = 8
    """Nothing was done: the device has not yet cleared what the guest before has left."""


class WasmtimeFunctions(ctypes.Structure):
    """Addresses of the wasmtime functions of a one-shot call."""

    _fields_ = _words("""
        store_new store_context store_limiter store_epoch_deadline_callback instance_pre_instantiate
        instance_export_get global_set context_set_epoch_deadline func_call_unchecked store_delete
        context_epoch_deadline_async_yield_and_update instance_pre_instantiate_async func_call_async
        call_future_poll call_future_delete context_set_wasi
    """)


class GlobalWrite(ctypes.Structure):
    """A global that is set before the call: its exported name, and a ``wasmtime_val_t``."""

    _fields_ = (*_words("name name_bytes"), ("value", ctypes.c_char * capi.SIZES["wasmtime_val_t"]))


class CallDescriptor(ctypes.Structure):
    """One one-shot call. Compiled code writes the fields from ``wasi`` on.

    Attributes:
        calls: address of the `WasmtimeFunctions`; ``layout`` and ``interpreter`` are those of a `SessionLayout` and an
            `Interpreter`.
        on_epoch, on_epoch_object: the epoch callback, and the Python function that it calls.
        initialiser: name of a function to call before ``export``, 0 without; not on a fiber.
        memory: name of the memory that kernels take windows of, 0 without.
        cells: parameters in, results out; on a fiber only parameters, as ``wasmtime_val_t``; results in ``results``.
        writes: `GlobalWrite` rows, applied before the call.
        keeps: whether the GIL is kept until the epoch callback is first called, after ``ticks``.
        wasi: ``wasi_config_t`` for the store, 0 once that owns it, or without.
        thread: Python thread state to restore after the GIL was released, 0 while it is kept.
        store, context, future: 0 once gone; the future on a fiber only.
        error, trap: from wasmtime, owned by the reader.
    """

    _fields_ = (
        *_words("""
            calls engine layout on_epoch on_epoch_object interpreter memory_bytes table_elements tables prepared
            export export_bytes initialiser initialiser_bytes memory memory_name_bytes
            cells cell_count results result_count writes write_count keeps ticks
            wasi thread store context future error trap
        """),
        ("instance", ctypes.c_char * capi.SIZES["wasmtime_instance_t"]),
        ("item", ctypes.c_char * capi.SIZES["wasmtime_extern_t"]),
    )


WASMTIME: Final = WasmtimeFunctions(
    **{name: capi.address_of(f"wasmtime_{name}") for name, _ in WasmtimeFunctions._fields_}
)

assert SessionLayout.memory.size == capi.SIZES["wasmtime_memory_t"]  # noqa: S101 - it is copied there
