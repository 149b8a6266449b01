"""What a live instance is when it is saved: plain values, which every part that saves or restores it agrees on.

Nothing in here is an address or belongs to a process. A saved instance belongs to one module, known by its hash, and
means nothing without it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

PAGE_BYTES: Final = 4096
"""Unit of what has changed: runs begin and end at multiples of it, but for the last of a buffer."""


@dataclass(frozen=True, slots=True)
class Run:
    """Bytes at an offset.

    Attributes:
        offset_bytes: from the beginning of the memory or buffer.
        data: at least one byte. It may be a view of memory that is alive: whoever keeps it copies it.
    """

    offset_bytes: int
    data: bytes | memoryview


@dataclass(frozen=True, slots=True)
class SavedMemory:
    """A linear memory.

    Attributes:
        size_bytes: its length, a multiple of 64 KiB.
        runs: ascending and apart. What is between them is zero, or in a snapshot with a parent as it was there.
    """

    size_bytes: int
    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True)
class SavedGlobal:
    """A mutable global.

    Attributes:
        index: in the module's index space.
        kind: ``i32``, ``i64``, ``f32``, ``f64``, ``v128`` or ``funcref``.
        bits: its bits, unsigned; of a ``funcref`` the function's index, None for null.
    """

    index: int
    kind: str
    bits: int | None


@dataclass(frozen=True, slots=True)
class SavedTable:
    """A table of functions.

    Attributes:
        index: in the module's index space.
        functions: index of the function in each element, None for null.
    """

    index: int
    functions: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class SavedBuffer:
    """A device buffer.

    Attributes:
        handle: by which the guest knows it, 1 to 2^63 - 1; it stays the same.
        size_bytes: its length.
        runs: as in `SavedMemory`.
    """

    handle: int
    size_bytes: int
    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True)
class SavedKernel:
    """A loaded kernel.

    Attributes:
        kernel_id: by which the guest knows it; it stays the same.
        text: the PTX that it was loaded from, as the guest gave it.
        entry: name of the entry point.
    """

    kernel_id: int
    text: bytes
    entry: str


@dataclass(frozen=True, slots=True)
class SavedSession:
    """A GPU session without work in flight.

    Attributes:
        buffers: by ascending handle.
        kernels: by ascending number.
        streams: numbers of the open streams beside the instance's own; they are idle.
        events: numbers of the events; all have been reached.
        next_numbers: what the next handle, kernel, stream, event and graph would have been, by those names, so that no
            number is given twice.
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
    """A live instance between two calls.

    Attributes:
        module_hash: BLAKE3 of the module it runs, 32 bytes.
        memories: in the order of the index space; imported ones cannot be saved.
        globals: the mutable ones, by index.
        tables: those that differ from what the module makes, by index.
        dropped_data: indices of data segments that ``data.drop`` has dropped.
        dropped_elements: indices of element segments that ``elem.drop`` has dropped.
        input: what ``read-input`` has not read yet.
        grants: names of what it was granted, as `tensorwasm.runtime.parse_grants` takes them. Whoever restores it
            intersects them with the caller's own.
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
    grants: tuple[str, ...] = field(default=())
    session: SavedSession | None = None
    parent: bytes | None = None
    made_unix_ms: int = 0
