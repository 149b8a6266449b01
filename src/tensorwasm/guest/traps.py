"""What wasmtime reports, as our errors: stable trap names, no addresses, no paths of this machine."""

from __future__ import annotations

import ctypes
import re
from typing import Final

from tensorwasm.errors import GuestTrap
from tensorwasm.guest import capi

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
OTHER: Final = "other"

_MAX_TEXT: Final = 400
_CAUSE_NUMBER: Final = re.compile(r"^\s*(\d+:\s)?\s*")
_FRAME: Final = re.compile(r"^(error while executing at wasm backtrace:|\s*\d+:\s+0x)")
_ADDRESS: Final = re.compile(r"0x[0-9a-fA-F]{8,}")

_trap_code: Final = capi.bind("wasmtime_trap_code")
_trap_delete: Final = capi.bind("wasm_trap_delete")
_trap_trace: Final = capi.bind("wasm_trap_trace")
_frame_func_index: Final = capi.bind("wasm_frame_func_index")
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


def take_trap(trap: int) -> GuestTrap:
    """Return the error for a trap and free the trap."""
    code = ctypes.c_uint8()
    known = _trap_code(trap, ctypes.byref(code)) and code.value < len(_TRAPS)
    name, text = _TRAPS[code.value] if known else (OTHER, "the guest stopped")
    where = _innermost_function(trap)
    _trap_delete(trap)
    return GuestTrap(f"{name}: {text}{where}", name)


def delete_trap(trap: int) -> None:
    """Free a trap nobody needs."""
    _trap_delete(trap)


def _innermost_function(trap: int) -> str:
    frames = (ctypes.c_size_t * 2)()
    _trap_trace(trap, frames)
    try:
        if not frames[0]:
            return ""
        frame = ctypes.c_size_t.from_address(frames[1]).value
        return f", in function {_frame_func_index(frame)}{_quoted_name(_frame_func_name(frame))}"
    finally:
        _frame_vec_delete(frames)


def _quoted_name(name: int | None) -> str:
    if not name:
        return ""
    size, data = (ctypes.c_size_t * 2).from_address(name)
    text = ctypes.string_at(data, min(size, _MAX_TEXT)).decode("utf-8", "replace") if size else ""
    return f" ({clean(text)[:80]})"
