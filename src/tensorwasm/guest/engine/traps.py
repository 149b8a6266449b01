"""What wasmtime reports, as our errors: stable trap names, no addresses, no paths of this machine."""

from __future__ import annotations

import ctypes
import re
from typing import Final

from tensorwasm.errors import MAX_NAME, Frame, GuestTrap
from tensorwasm.guest.engine import capi

# wasmtime/trap.h, in its order. The first word is the stable name; the rest is for people.
_TRAPS: Final = (
    ("stack_overflow", "the call stack is exhausted"),
    ("memory_out_of_bounds", "an access outside linear memory"),
    ("heap_misaligned", "a misaligned atomic access"),
    ("table_out_of_bounds", "an access outside a table"),
    ("indirect_call_to_null", "an indirect call through an empty table entry"),
    ("bad_signature", "an indirect call with the wrong signature"),
    ("integer_overflow", "an integer overflow"),
    ("integer_division_by_zero", "an integer division by zero"),
    ("bad_conversion_to_integer", "a float that fits no integer"),
    ("unreachable", "an unreachable instruction was executed"),
    ("interrupt", "the guest was interrupted"),
    ("out_of_fuel", "the fuel ran out"),
    ("atomic_wait_non_shared_memory", "an atomic wait on unshared memory"),
    ("null_reference", "a null reference"),
    ("array_out_of_bounds", "an access outside an array"),
    ("allocation_too_large", "an allocation that is too large"),
    ("cast_failure", "a failed cast"),
)
CANCELLED: Final = "cancelled"
UNCAUGHT: Final = "uncaught_exception"
THROWN: Final = "an exception was thrown and nothing caught it"
OTHER: Final = "other"

MAX_FRAMES: Final = 20
"""Functions of a stack that are told, innermost first; wasmtime itself notes no more."""

_MAX_TEXT: Final = 400
_CAUSE_NUMBER: Final = re.compile(r"^\s*(\d+:\s)?\s*")
_FRAME: Final = re.compile(r"^(error while executing at wasm backtrace:|\s*\d+:\s+0x)")
_ADDRESS: Final = re.compile(r"0x[0-9a-fA-F]{8,}")

_Exception: Final = ctypes.c_char * capi.SIZES["wasmtime_exnref_t"]
_take_exception: Final = capi.bind("wasmtime_context_take_exception")
_unroot: Final = capi.bind("wasmtime_exnref_unroot")
_trap_code: Final = capi.bind("wasmtime_trap_code")
_trap_delete: Final = capi.bind("wasm_trap_delete")
_trap_trace: Final = capi.bind("wasm_trap_trace")
_frame_func_index: Final = capi.bind("wasm_frame_func_index")
_frame_module_offset: Final = capi.bind("wasm_frame_module_offset")
_frame_func_name: Final = capi.bind("wasmtime_frame_func_name")
_frame_vec_delete: Final = capi.bind("wasm_frame_vec_delete")


def clean(text: str) -> str:
    """Return text fit for the outside, such as a guest's name for something: one printable line, bounded."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    line = _ADDRESS.sub("?", line)
    return line if len(line) <= _MAX_TEXT else line[: _MAX_TEXT - 1] + "…"


def explain(error: int) -> str:
    """Return a wasmtime error's message and causes, without a backtrace or addresses, and free the error."""
    return tell(capi.take_error(error))


def tell(said: str) -> str:
    """Return the text of a wasmtime error in the same way."""
    text = said.partition("Stack backtrace:")[0].replace("\nCaused by:\n", "\n")
    causes = (_CAUSE_NUMBER.sub("", line) for line in text.split("\n") if line.strip() and not _FRAME.match(line))
    return clean(": ".join(causes))


def take_trap(trap: int, context: int) -> GuestTrap:
    """Return the error for a trap, with the guest's stack, and free the trap.

    An exception that nothing caught, which is in the store then, is freed too.

    Args:
        trap: address of a ``wasm_trap_t``.
        context: of the store that it comes from.
    """
    code = ctypes.c_uint8()
    if _trap_code(trap, ctypes.byref(code)) and code.value < len(_TRAPS):
        name, text = _TRAPS[code.value]
    elif drop_exception(context):
        name, text = UNCAUGHT, THROWN
    else:
        name, text = OTHER, "the guest stopped"
    stack = _read_stack(trap)
    _trap_delete(trap)
    where = ""
    if stack:
        where = f", in function {stack[0].function}" + (f" ({stack[0].name})" if stack[0].name else "")
    error = GuestTrap(f"{name}: {text}{where}", name)
    error.backtrace = stack
    return error


def drop_exception(context: int) -> bool:
    """Free the exception that left a call uncaught; return whether there was one.

    Args:
        context: of the store that was called.
    """
    exception = _Exception()
    if not _take_exception(context, exception):
        return False
    _unroot(exception)
    return True


def delete_trap(trap: int) -> None:
    """Free a trap nobody needs."""
    _trap_delete(trap)


def _read_stack(trap: int) -> tuple[Frame, ...]:
    vector = (ctypes.c_size_t * 2)()
    _trap_trace(trap, vector)
    try:
        frames = (ctypes.c_size_t * min(vector[0], MAX_FRAMES)).from_address(vector[1]) if vector[0] else ()
        return tuple(
            Frame(_frame_func_index(each), _read_name(_frame_func_name(each)), _frame_module_offset(each))
            for each in frames
        )
    finally:
        _frame_vec_delete(vector)


def _read_name(name: int | None) -> str:
    if not name:
        return ""
    size, data = (ctypes.c_size_t * 2).from_address(name)
    text = ctypes.string_at(data, min(size, _MAX_TEXT)).decode("utf-8", "replace") if size else ""
    return clean(text)[:MAX_NAME]
