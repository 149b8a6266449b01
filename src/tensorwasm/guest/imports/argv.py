"""Kernel arguments as guests write them: records of a tag byte and a little-endian value, without padding.

Parsing is pure: it sees a copy of the bytes and the size of the memory that they refer to.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tensorwasm.errors import InvalidKernelArgs, InvalidPointer, KernelArgsUnsupported
from tensorwasm.gpu.device.arguments import Argument, BufferOffset, HostWindow, Scalar
from tensorwasm.guest.imports.abi import ARG_TAGS, MAX_KERNEL_ARGS, MAX_KERNEL_ARGS_BYTES


@dataclass(frozen=True, slots=True)
class WindowArg:
    """A window of guest memory, not checked yet; both numbers are 0 to 2**32 - 1."""

    offset: int
    length_bytes: int


@dataclass(frozen=True, slots=True)
class NumberArg:
    """A number: its kind, such as ``i32`` or ``f64``, and its 4 or 8 little-endian bytes."""

    kind: str
    data: bytes


Arg = NumberArg | WindowArg | BufferOffset

_TAGS: Final = {row.tag: row for row in ARG_TAGS}
_WINDOW: Final = struct.Struct("<II")
_BUFFER: Final = struct.Struct("<QQ")


def parse_argv(data: bytes) -> tuple[Arg, ...]:
    """Return the records.

    Raises `KernelArgsUnsupported` for too many, and `InvalidKernelArgs` for an unknown tag or a last one cut short.
    """
    if len(data) > MAX_KERNEL_ARGS_BYTES:
        raise KernelArgsUnsupported(f"more than {MAX_KERNEL_ARGS_BYTES} bytes of kernel arguments")
    args: list[Arg] = []
    at = 0
    while at < len(data):
        if len(args) == MAX_KERNEL_ARGS:
            raise KernelArgsUnsupported(f"more than {MAX_KERNEL_ARGS} kernel arguments")
        row = _TAGS.get(data[at])
        if row is None:
            raise InvalidKernelArgs(f"argument {len(args)}: unknown tag 0x{data[at]:02x}")
        value = data[at + 1 : at + 1 + row.value_bytes]
        if len(value) < row.value_bytes:
            raise InvalidKernelArgs(f"argument {len(args)}: cut short after {len(value)} of {row.value_bytes} bytes")
        args.append(_decode(row.name, value))
        at += 1 + row.value_bytes
    return tuple(args)


def resolve_args(args: Iterable[Arg], address: int, size_bytes: int) -> tuple[Argument, ...]:
    """Turn records into a session's arguments, with windows checked as by `locate`."""
    return tuple(_resolve(arg, address, size_bytes) for arg in args)


def locate(window: WindowArg, address: int, size_bytes: int) -> HostWindow:
    """Check a window against a memory; raise `InvalidPointer` if it is not inside. An empty one may lie at the end."""
    if window.offset + window.length_bytes > size_bytes:
        raise InvalidPointer(
            f"{window.length_bytes} bytes at {window.offset} are not inside {size_bytes} bytes of memory"
        )
    return HostWindow(address + window.offset, window.length_bytes)


def _decode(kind: str, value: bytes) -> Arg:
    match kind:
        case "ptr":
            return WindowArg(*_WINDOW.unpack(value))
        case "buffer":
            return BufferOffset(*_BUFFER.unpack(value))
        case _:
            return NumberArg(kind, value)


def _resolve(arg: Arg, address: int, size_bytes: int) -> Argument:
    match arg:
        case WindowArg():
            return locate(arg, address, size_bytes)
        case BufferOffset():
            return arg
        case NumberArg(_, data):
            return Scalar(data)
