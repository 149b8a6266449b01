"""A live instance when it is saved: plain values, shared by every part that saves or restores it.

They contain no address and nothing of a process. A saved instance belongs to one module, known by its hash, and
means nothing without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

PAGE_BYTES: Final = 4096
"""Unit of changes: runs begin and end at multiples of it, but for the last of a buffer."""


@dataclass(frozen=True, slots=True)
class SavedRun:
    """Bytes at an offset from the beginning of a memory or buffer, at least one.

    They may be a view of a live memory: to keep them, copy them.
    """

    offset_bytes: int
    data: bytes | memoryview


@dataclass(frozen=True, slots=True)
class SavedMemory:
    """A linear memory of a multiple of 64 KiB.

    Its runs are ascending and apart. Between them are zeros, or in a snapshot with a parent the parent's bytes.
    """

    size_bytes: int
    runs: tuple[SavedRun, ...]


@dataclass(frozen=True, slots=True)
class SavedGlobal:
    """A mutable global, by its index in the module.

    Attributes:
        kind: ``i32``, ``i64``, ``f32``, ``f64``, ``v128`` or ``funcref``.
        bits: its bits, unsigned; of a ``funcref`` the function's index, None for null.
    """

    index: int
    kind: str
    bits: int | None


@dataclass(frozen=True, slots=True)
class SavedTable:
    """A table of functions, by its index in the module; of each element the function's index, None for null."""

    index: int
    functions: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class SavedBuffer:
    """A device buffer; its runs are as in `SavedMemory`.

    The handle is the guest's name for it, 1 to 2^63 - 1; it stays the same.
    """

    handle: int
    size_bytes: int
    runs: tuple[SavedRun, ...]


@dataclass(frozen=True, slots=True)
class SavedKernel:
    """A loaded kernel: its PTX as the guest gave it, and the name of the entry point.

    The id is the guest's name for it; it stays the same.
    """

    kernel_id: int
    text: bytes
    entry: str


@dataclass(frozen=True, slots=True)
class SavedSession:
    """A GPU session without work in flight: buffers by ascending handle, kernels by ascending number.

    Attributes:
        streams: numbers of the open streams beside the instance's own; they are idle.
        events: numbers of the events; all have been reached.
        next_numbers: the next handle, kernel, stream, event and graph number, by those names, so that no number is
            given twice.
        memory_kind: how kernels reached linear memory.
    """

    buffers: tuple[SavedBuffer, ...] = ()
    kernels: tuple[SavedKernel, ...] = ()
    streams: tuple[int, ...] = ()
    events: tuple[int, ...] = ()
    next_numbers: tuple[tuple[str, int], ...] = ()
    memory_kind: str = "auto"


@dataclass(frozen=True, slots=True)
class SavedInstance:
    """A live instance between two calls, of a module that is known by its BLAKE3 hash.

    Attributes:
        memories: in the order of the index space; imported ones cannot be saved.
        globals: the mutable ones, by index.
        tables: those that differ from what the module makes, by index.
        dropped_data: indices of data segments that ``data.drop`` has dropped.
        dropped_elements: indices of element segments that ``elem.drop`` has dropped.
        input: what ``read-input`` has not read yet.
        grants: names, as `tensorwasm.runtime.parse_grants` takes them; a restored instance gets only those among them
            that its caller has too.
        session: of the GPU, None without the grant.
        parent: content hash of the snapshot that this one only adds to, None if it is whole.
        made_unix_ms: when it was captured, in milliseconds since 1970.
    """

    module_hash: bytes
    memories: tuple[SavedMemory, ...] = ()
    globals: tuple[SavedGlobal, ...] = ()
    tables: tuple[SavedTable, ...] = ()
    dropped_data: tuple[int, ...] = ()
    dropped_elements: tuple[int, ...] = ()
    input: bytes = b""
    grants: tuple[str, ...] = ()
    session: SavedSession | None = None
    parent: bytes | None = None
    made_unix_ms: int = 0
