"""The functions of CPython through which compiled code calls Python.

A callback of ctypes that fails before its first line, because a signal handler raises or no frame is left, can tell
nobody: ctypes prints the exception and answers garbage. Compiled code asks the interpreter itself, and knows.

Source: Python/C API, "Initialization, Finalization, and Threads", "Exception Handling", "Call Protocol".
"""

from __future__ import annotations

import ctypes
from typing import Final

from tensorwasm.guest.engine import capi

_u64 = ctypes.c_uint64
_STOPPED: Final = ctypes.create_string_buffer(b"stopped")
_FUNCTIONS: Final = {
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
    """Addresses: CPython's functions, ``None``, wasmtime's makers of traps and errors, and the text in those."""

    _fields_ = tuple((name, _u64) for name in (*_FUNCTIONS, "none", "trap_new", "error_new", "text", "text_bytes"))


def _find() -> Interpreter:
    addresses = {
        name: ctypes.cast(getattr(ctypes.pythonapi, function), ctypes.c_void_p).value
        for name, function in _FUNCTIONS.items()
    }
    return Interpreter(
        **addresses,
        none=id(None),
        trap_new=capi.address_of("wasmtime_trap_new"),
        error_new=capi.address_of("wasmtime_error_new"),
        text=ctypes.addressof(_STOPPED),
        text_bytes=len(_STOPPED.value),
    )


INTERPRETER: Final = _find()
"""This process's interpreter."""
