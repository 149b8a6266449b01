"""The structured part of a snapshot: what it is made of, and where in the content the bytes of each part are.

It is msgpack, whose types are checked while it is decoded. What there can be many of (runs, globals, functions in
tables) is packed into byte strings with fields of fixed width, so that a decoder makes nothing much bigger than what it
was given. The content goes on with the bytes themselves, in this order and without gaps: runs of the memories, runs of
the buffers, texts of the kernels, input.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from tensorwasm.artifacts.snapshot.sense import Place, require_sense
from tensorwasm.errors import InvalidSnapshot, UnknownVersion
from tensorwasm.saved import (
    SavedBuffer,
    SavedGlobal,
    SavedInstance,
    SavedKernel,
    SavedMemory,
    SavedSession,
    SavedTable,
)

VERSION: Final = 1
KINDS: Final = ("i32", "i64", "f32", "f64", "v128", "funcref")
"""Kinds of globals; a global has the kind's place in this list."""

_PROLOGUE: Final = struct.Struct("<4sI")
_MAGIC: Final = b"TWSN"
_RUN: Final = struct.Struct("<QQ")
_GLOBAL: Final = struct.Struct("<IBB16s")
_FUNCTION: Final = struct.Struct("<I")
_NULL: Final = (1 << 32) - 1

Number = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Name = Annotated[str, Meta(max_length=4096)]
_MANY: Final = Meta(max_length=1 << 20)
Numbers = Annotated[list[Number], _MANY]


class _Part(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A memory (its number 0) or a buffer (its handle): length, and offset and length of each run."""

    number: Number
    size_bytes: Number
    runs: bytes


class _Kernel(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    kernel_id: Number
    text_bytes: Number
    entry: Name


class _Session(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    buffers: Annotated[list[_Part], _MANY]
    kernels: Annotated[list[_Kernel], _MANY]
    streams: Numbers
    events: Numbers
    next_numbers: Annotated[list[tuple[Name, Number]], _MANY]
    memory_kind: Name


class _Head(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    module_hash: bytes
    parent: bytes | None
    depth: Number
    made_unix_ms: Number
    memories: Annotated[list[_Part], _MANY]
    globals: bytes
    tables: Annotated[list[tuple[Number, bytes]], _MANY]
    dropped_data: Numbers
    dropped_elements: Numbers
    input_bytes: Number
    grants: Annotated[list[Name], _MANY]
    session: _Session | None


class Layout(msgspec.Struct, frozen=True):
    """What a head says.

    Attributes:
        instance: without what is elsewhere: runs, input and texts.
        depth: how many snapshots it adds to, one after the other.
        input_at: offset and length of the input in the content.
        texts_at: likewise of each kernel's text.
        memories: by index.
        buffers: by handle.
    """

    instance: SavedInstance
    depth: int
    input_at: tuple[int, int]
    texts_at: tuple[tuple[int, int], ...]
    memories: tuple[Place, ...]
    buffers: dict[int, Place]


def encode_head(instance: SavedInstance, depth: int) -> bytes:
    """Return the head of an instance, whether or not that makes sense: `decode_head` judges.

    Raises:
        InvalidSnapshot: it has something that cannot even be written.
    """
    try:
        return _PROLOGUE.pack(_MAGIC, VERSION) + msgspec.msgpack.encode(_pack(instance, depth))
    except (msgspec.MsgspecError, struct.error, OverflowError, ValueError, TypeError) as error:
        raise InvalidSnapshot(f"the instance cannot be written: {error}") from None


def _pack(instance: SavedInstance, depth: int) -> _Head:
    return _Head(
        instance.module_hash,
        instance.parent,
        depth,
        instance.made_unix_ms,
        [_pack_part(0, memory) for memory in instance.memories],
        b"".join(map(_pack_global, instance.globals)),
        [(table.index, _pack_functions(table.functions)) for table in instance.tables],
        list(instance.dropped_data),
        list(instance.dropped_elements),
        len(instance.input),
        list(instance.grants),
        None if instance.session is None else _pack_session(instance.session),
    )


def list_bytes(instance: SavedInstance) -> Iterator[memoryview]:
    """Yield what follows the head, in its order; nothing is copied.

    Raises:
        InvalidSnapshot: something is not bytes in one piece.
    """
    try:
        yield from (memoryview(data).cast("B") for data in _list_bytes(instance))
    except TypeError:
        raise InvalidSnapshot("what is to be saved is not bytes in one piece") from None


def _list_bytes(instance: SavedInstance) -> Iterator[bytes | memoryview]:
    session = instance.session or SavedSession()
    for runs in (*(memory.runs for memory in instance.memories), *(buffer.runs for buffer in session.buffers)):
        yield from (run.data for run in runs)
    yield from (kernel.text for kernel in session.kernels)
    yield instance.input


def decode_head(data: bytes, content_bytes: int) -> Layout:
    """Return what a head says, checked as a writer checks it.

    Args:
        data: the head, of a file that was verified.
        content_bytes: length of the content that it begins.

    Raises:
        UnknownVersion: it is written in a later way.
        InvalidSnapshot: it contradicts itself or is not written in this way at all.
    """
    if len(data) < _PROLOGUE.size or data[:4] != _MAGIC:
        raise InvalidSnapshot("the content is no snapshot")
    _, version = _PROLOGUE.unpack_from(data)
    if version != VERSION:
        raise UnknownVersion(f"the snapshot is written in way {version}; this release reads {VERSION}")
    try:
        head = msgspec.msgpack.decode(memoryview(data)[_PROLOGUE.size :], type=_Head)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:  # ValueError: text that is not UTF-8
        raise InvalidSnapshot(f"the snapshot's head does not decode: {error}") from None
    layout, end = _lay_out(head, len(data))
    if end != content_bytes:
        raise InvalidSnapshot(f"the snapshot describes {end} bytes and has {content_bytes}")
    return layout


def _lay_out(head: _Head, head_bytes: int) -> tuple[Layout, int]:
    """Give each part its place behind the head; return the end as well."""
    session = head.session
    cursor = _Cursor(head_bytes)
    memories = tuple(cursor.place(part) for part in head.memories)
    buffers = {part.number: cursor.place(part) for part in session.buffers} if session else {}
    texts = tuple((cursor.take(kernel.text_bytes), kernel.text_bytes) for kernel in session.kernels) if session else ()
    input_at = cursor.take(head.input_bytes), head.input_bytes
    instance, blobs = _unpack(head), (head.input_bytes, *(size for _, size in texts))
    require_sense(instance, head.depth, memories, tuple(buffers.values()), blobs)
    return Layout(instance, head.depth, input_at, texts, memories, buffers), cursor.at_bytes


class _Cursor:
    """Where the next bytes of the content are."""

    def __init__(self, at_bytes: int) -> None:
        self.at_bytes = at_bytes

    def take(self, size_bytes: int) -> int:
        at_bytes = self.at_bytes
        self.at_bytes += size_bytes
        return at_bytes

    def place(self, part: _Part) -> Place:
        runs = tuple((offset, size, self.take(size)) for offset, size in _records(_RUN, part.runs))
        return Place(part.size_bytes, runs)


def _records(record: struct.Struct, data: bytes) -> Iterable[tuple[Any, ...]]:
    if len(data) % record.size:
        raise InvalidSnapshot("a list in the snapshot's head is cut")
    return record.iter_unpack(data)


def _pack_part(number: int, part: SavedMemory | SavedBuffer) -> _Part:
    runs = b"".join(_RUN.pack(run.offset_bytes, memoryview(run.data).nbytes) for run in part.runs)
    return _Part(number, part.size_bytes, runs)


def _pack_global(each: SavedGlobal) -> bytes:
    bits = (each.bits or 0).to_bytes(16, "little")
    return _GLOBAL.pack(each.index, KINDS.index(each.kind), each.bits is None, bits)


def _unpack_global(index: int, kind: int, null: int, bits: bytes) -> SavedGlobal:
    number = int.from_bytes(bits, "little")
    if kind >= len(KINDS) or null > 1 or (null and number):
        raise InvalidSnapshot(f"global {index} is of no kind, or null and not")
    return SavedGlobal(index, KINDS[kind], None if null else number)


def _pack_functions(functions: Iterable[int | None]) -> bytes:
    return b"".join(_FUNCTION.pack(_NULL if each is None else each) for each in functions)


def _unpack_functions(data: bytes) -> tuple[int | None, ...]:
    return tuple(None if each == _NULL else each for (each,) in _records(_FUNCTION, data))


def _pack_session(session: SavedSession) -> _Session:
    return _Session(
        [_pack_part(buffer.handle, buffer) for buffer in session.buffers],
        [_Kernel(kernel.kernel_id, len(kernel.text), kernel.entry) for kernel in session.kernels],
        list(session.streams),
        list(session.events),
        list(session.next_numbers),
        session.memory_kind,
    )


def _unpack_session(session: _Session) -> SavedSession:
    return SavedSession(
        tuple(SavedBuffer(part.number, part.size_bytes, ()) for part in session.buffers),
        tuple(SavedKernel(kernel.kernel_id, b"", kernel.entry) for kernel in session.kernels),
        tuple(session.streams),
        tuple(session.events),
        tuple(session.next_numbers),
        session.memory_kind,
    )


def _unpack(head: _Head) -> SavedInstance:
    return SavedInstance(
        head.module_hash,
        tuple(SavedMemory(part.size_bytes, ()) for part in head.memories),
        tuple(_unpack_global(*each) for each in _records(_GLOBAL, head.globals)),
        tuple(SavedTable(index, _unpack_functions(functions)) for index, functions in head.tables),
        tuple(head.dropped_data),
        tuple(head.dropped_elements),
        b"",
        tuple(head.grants),
        None if head.session is None else _unpack_session(head.session),
        head.parent,
        head.made_unix_ms,
    )
