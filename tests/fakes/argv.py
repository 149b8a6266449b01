"""Kernel argument records as a guest writes them, the other way from `tensorwasm.guest.imports.argv`."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from tensorwasm.gpu.device.arguments import BufferOffset
from tensorwasm.guest.imports.abi import ARG_TAGS
from tensorwasm.guest.imports.argv import Arg, NumberArg, WindowArg

_TAGS = {row.name: bytes([row.tag]) for row in ARG_TAGS}


def encode_argv(args: Iterable[Arg]) -> bytes:
    """Return the bytes that `parse_argv` reads back as these records."""
    return b"".join(_encode(arg) for arg in args)


def _encode(arg: Arg) -> bytes:
    match arg:
        case WindowArg(offset, length_bytes):
            return _TAGS["ptr"] + struct.pack("<II", offset, length_bytes)
        case BufferOffset(handle, offset_bytes):
            return _TAGS["buffer"] + struct.pack("<QQ", handle, offset_bytes)
        case NumberArg(kind, data):
            return _TAGS[kind] + data
