"""The text of the last failure. These two functions never change it, not even by failing."""

from __future__ import annotations

from tensorwasm.errors import InvalidPointer
from tensorwasm.guest.imports.abi import Code
from tensorwasm.guest.imports.cuda.grant import granted, u32
from tensorwasm.guest.imports.host_function import HostCall


def last_error_len(call: HostCall) -> int:
    """Return the length of the last failure's text."""
    service = granted(call)
    return Code.NOT_AVAILABLE if service is None else len(service.last_error)


def last_error_copy(call: HostCall, dst_ptr: int, dst_len: int) -> int:
    """Copy the last failure's text; a failure to do so is not recorded, or it would replace what was asked for."""
    service = granted(call)
    if service is None:
        return Code.NOT_AVAILABLE
    try:
        return copy_text(call, service.last_error, dst_ptr, dst_len)
    except InvalidPointer:
        return Code.INVALID_POINTER


def copy_text(call: HostCall, text: bytes, dst_ptr: int, dst_len: int) -> int:
    """Copy as much of a text as fits a region of guest memory; return how many bytes.

    Raises:
        InvalidPointer: there is something to copy, and the whole region is not inside the memory.
    """
    kept = text[: u32(dst_len)]
    if kept:
        call.memory.view(u32(dst_ptr), u32(dst_len))[: len(kept)] = kept
    return len(kept)
