"""WASI preview 1 for sandboxes without folders: what is written to descriptors 1 and 2 goes to the host at once.

wasmtime hands output to a thread of its own and waits for it, which takes longer than most guests. It does so because a
guest on a fiber must not hold up others while its output is taken; on the caller's thread there are no others.

Such a sandbox has descriptors 0, 1 and 2 alone, so that the functions that write, close and renumber them need nothing
of wasmtime's. Source: WASI preview 1, ``fd_write``, ``fd_close``, ``fd_renumber``.
"""

from __future__ import annotations

import struct
from typing import Final

from tensorwasm.errors import GuestTrap, InvalidPointer
from tensorwasm.guest.engine import traps
from tensorwasm.guest.imports.host_function import HostFunction
from tensorwasm.guest.sandbox.state import GuestState
from tensorwasm.guest.sandbox.wasi_io import WasiState

MODULE: Final = "wasi_snapshot_preview1"
_SUCCESS: Final = 0
_BADF: Final = 8
_IO: Final = 29

_MOST_PIECES: Final = 1024
_MOST_BYTES: Final = 1 << 20
"""Of one write; a guest writes what is left with the next one."""
_PIECE: Final = struct.Struct("<II")
_COUNT: Final = struct.Struct("<I")


def fd_write(state: GuestState, descriptor: int, pieces: int, count: int, stored: int) -> int:
    """Write pieces of memory to standard output or error. Returns 0 or the WASI error code.

    Raises `GuestTrap` if something of it is outside of memory, and what a sink raises.
    """
    stream = _wasi(state).open_streams.get(descriptor)
    if stream is None:
        return _BADF
    memory, written = state.memory, bytearray()
    try:
        memory.view(stored & 0xFFFFFFFF, _COUNT.size)
        table = memory.read(pieces & 0xFFFFFFFF, _PIECE.size * min(count & 0xFFFFFFFF, _MOST_PIECES))
        for at, size_bytes in _PIECE.iter_unpack(table):
            written += memory.read(at, min(size_bytes, _MOST_BYTES - len(written)))
        if written and not stream.take(bytes(written)):
            return _IO
        memory.write(stored & 0xFFFFFFFF, _COUNT.pack(len(written)))
    except InvalidPointer as outside:  # as wasmtime's functions do
        raise GuestTrap(f"{traps.OTHER}: {outside}", traps.OTHER) from None
    return _SUCCESS


def fd_close(state: GuestState, descriptor: int) -> int:
    """Close a descriptor. Returns 0 or the WASI error code."""
    wasi = _wasi(state)
    if descriptor not in wasi.open_streams:
        return _BADF
    wasi.detach()
    del wasi.open_streams[descriptor]
    return _SUCCESS


def fd_renumber(state: GuestState, descriptor: int, other: int) -> int:
    """Give a descriptor the number of another one, which is closed. Returns 0 or the WASI error code."""
    wasi = _wasi(state)
    streams = wasi.open_streams
    if descriptor not in streams or other not in streams:
        return _BADF
    wasi.detach()
    streams[other] = streams.pop(descriptor)
    return _SUCCESS


def _wasi(state: GuestState) -> WasiState:
    assert state.wasi is not None  # noqa: S101 - its module imports WASI
    return state.wasi


FUNCTIONS: Final = (
    HostFunction(MODULE, "fd_write", ("i32", "i32", "i32", "i32"), ("i32",), fd_write),
    HostFunction(MODULE, "fd_close", ("i32",), ("i32",), fd_close),
    HostFunction(MODULE, "fd_renumber", ("i32", "i32"), ("i32",), fd_renumber),
)
"""In place of wasmtime's."""
