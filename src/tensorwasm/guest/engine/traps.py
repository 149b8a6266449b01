"""wasmtime's errors and traps as our errors: stable trap names, source lines, no addresses, no paths of the machine."""

from __future__ import annotations

import ctypes
import re
import threading
import time
from typing import Final

from tensorwasm.errors import MAX_NAME, Frame, GuestTrap, InvalidWasm, InvokeTimeout, plain
from tensorwasm.guest.engine import capi
from tensorwasm.guest.engine.capi import KEEPING
from tensorwasm.values import Deadline
from tensorwasm.wasm.line_table import LineSections, SourceLine, find_lines, find_sections
from tensorwasm.watch import Watch

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
"""Functions of a reported stack, innermost first; wasmtime itself records no more."""

MAX_FILE: Final = 200
"""Longest name of a file, in characters; of a longer one the end is shown."""

_ONCE_S: Final = 1.0
_IN_ALL_S: Final = 5.0
_MAX_KNOWN: Final = 1024
_MAX_TEXT: Final = 400
_CAUSE_NUMBER: Final = re.compile(r"^\s*(\d+:\s)?\s*")
_FRAME: Final = re.compile(r"^(error while executing at wasm backtrace:|\s*\d+:\s+0x)")
_ADDRESS: Final = re.compile(r"0x[0-9a-fA-F]{8,}")

_Exception: Final = ctypes.c_char * capi.SIZES["wasmtime_exnref_t"]


def clean(text: str) -> str:
    """Return text, such as a guest's name for something, as one printable line, bounded and without addresses."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    line = _ADDRESS.sub("?", line)
    return line if len(line) <= _MAX_TEXT else line[: _MAX_TEXT - 1] + "…"


def explain(error: int) -> str:
    """Return a wasmtime error's message and causes, without a backtrace or addresses, and free the error."""
    return explain_text(capi.take_error(error))


def explain_text(text: str) -> str:
    """Return the text of a wasmtime error as `explain` does."""
    text = text.partition("Stack backtrace:")[0].replace("\nCaused by:\n", "\n")
    causes = (_CAUSE_NUMBER.sub("", line) for line in text.split("\n") if line.strip() and not _FRAME.match(line))
    return clean(": ".join(causes))


def take_trap(trap: int, context: int) -> GuestTrap:
    """Return the error for a ``wasm_trap_t``, with the guest's stack, and free the trap.

    An uncaught exception, which is then in the store of that context, is freed too.
    """
    code = ctypes.c_uint8()
    if KEEPING.wasmtime_trap_code(trap, ctypes.byref(code)) and code.value < len(_TRAPS):
        name, text = _TRAPS[code.value]
    elif drop_exception(context):
        name, text = UNCAUGHT, THROWN
    else:
        name, text = OTHER, "the guest stopped"
    stack = _read_stack(trap)
    KEEPING.wasm_trap_delete(trap)
    if stack:
        text += f", in function {stack[0].function}" + (f" ({stack[0].name})" if stack[0].name else "")
    error = GuestTrap(f"{name}: {text}", name)
    error.backtrace = stack
    return error


def drop_exception(context: int) -> bool:
    """Free the exception that a call of this store context did not catch; return whether there was one."""
    exception = _Exception()
    found = bool(KEEPING.wasmtime_context_take_exception(context, exception))
    if found:
        KEEPING.wasmtime_exnref_unroot(exception)
    return found


def _read_stack(trap: int) -> tuple[Frame, ...]:
    vector = (ctypes.c_size_t * 2)()
    KEEPING.wasm_trap_trace(trap, vector)
    try:
        frames = (ctypes.c_size_t * min(vector[0], MAX_FRAMES)).from_address(vector[1]) if vector[0] else ()
        return tuple(
            Frame(
                KEEPING.wasm_frame_func_index(each),
                _read_name(KEEPING.wasmtime_frame_func_name(each)),
                KEEPING.wasm_frame_module_offset(each),
            )
            for each in frames
        )
    finally:
        KEEPING.wasm_frame_vec_delete(vector)


def _read_name(name: int | None) -> str:
    size, data = (ctypes.c_size_t * 2).from_address(name) if name else (0, 0)
    text = ctypes.string_at(data, min(size, _MAX_TEXT)).decode("utf-8", "replace") if size else ""
    return clean(text)[:MAX_NAME]


class SourceLines:
    """Finds the source lines of one module's traps, and caches them. Thread-safe.

    A look-up may take a second, and all of one module five: after that only cached lines are returned.
    """

    def __init__(self, sections: LineSections) -> None:
        self._sections = sections
        self._lock = threading.Lock()
        self._known: dict[int, SourceLine | None] = {}
        self._left_s = _IN_ALL_S

    @classmethod
    def of(cls, wasm: bytes) -> SourceLines | None:
        """Return the finder of a module's lines; None for one without debug information, or with too much of it."""
        try:
            sections = find_sections(wasm)
        except InvalidWasm:  # a custom section whose name is no text is no error of a module's
            return None
        return cls(sections) if sections is not None else None

    def add_to(self, stack: tuple[Frame, ...]) -> tuple[Frame, ...]:
        """Return a stack with files and lines where they are known. Blocks for a second at most."""
        with self._lock:
            self._find([frame.offset for frame in stack if frame.offset not in self._known])
            lines = [self._known.get(frame.offset) for frame in stack]
        return tuple(
            frame if line is None else frame._replace(file=_shorten(line.file), line=line.line)
            for frame, line in zip(stack, lines, strict=True)
        )

    def _find(self, offsets: list[int]) -> None:
        if not offsets or self._left_s <= 0:
            return
        began_s = time.monotonic()
        watch = Watch(Deadline.after(min(_ONCE_S, self._left_s)), "while source lines were looked up")
        try:
            found = find_lines(self._sections, offsets, watch)
        except (InvalidWasm, InvokeTimeout):  # the trap is reported without lines
            found = {}
        if len(self._known) > _MAX_KNOWN:
            self._known.clear()
        self._known |= {offset: found.get(offset) for offset in offsets}
        self._left_s -= time.monotonic() - began_s


def _shorten(file: str) -> str:
    name = plain(file)
    return name if len(name) <= MAX_FILE else "…" + name[1 - MAX_FILE :]
