"""The structured part of a snapshot: what it consists of, where in the content the bytes are, and its rules.

It is msgpack, whose types are checked while it is decoded. Lists that can be long (runs, globals, functions in
tables) are packed into byte strings with fields of fixed width, so that a decoder allocates little more than its
input. The content goes on with the bytes themselves, in this order and without gaps: runs of the memories, runs of
the buffers, texts of the kernels, input.

A writer has its own head decoded and validated before it keeps it, so writer and reader apply the same rules.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from tensorwasm.artifacts.hashing import HASH_BYTES
from tensorwasm.artifacts.sealed.header import MAX_CONTENT_BYTES
from tensorwasm.errors import InvalidSnapshot, UnknownVersion
from tensorwasm.saved import SavedBuffer, SavedGlobal, SavedInstance, SavedKernel, SavedMemory, SavedSession, SavedTable
from tensorwasm.values import MEMORY_KINDS, WASM_PAGE_BYTES

MAX_DEPTH: Final = 64
"""Length of a chain of snapshots that each add to the next; after that a whole one has to be saved."""

MAX_RUNS: Final = 1 << 22
MAX_FUNCTIONS: Final = 1 << 23
MAX_PART_BYTES: Final = MAX_CONTENT_BYTES
MAX_BLOB_BYTES: Final = 256 << 20
"""Of input and texts of kernels together, which a reader has in memory at once."""

_INDEX_BITS: Final = 32
_BITS: Final = {"i32": 32, "i64": 64, "f32": 32, "f64": 64, "v128": 128, "funcref": _INDEX_BITS}


class ExtentMap(msgspec.Struct, frozen=True):
    """Where the bytes of a memory or a buffer are.

    Attributes:
        size_bytes: its length.
        runs: offset in it, length, and offset in the content of each run.
    """

    size_bytes: int
    runs: tuple[tuple[int, int, int], ...]


def validate_instance(
    instance: SavedInstance,
    depth: int,
    memories: Sequence[ExtentMap],
    buffers: Sequence[ExtentMap],
    blobs: Iterable[int],
) -> None:
    """Check an instance whose runs, input and texts are given separately: ``blobs`` has the lengths of the latter two.

    InvalidSnapshot says how it contradicts itself, or which cap it exceeds.
    """
    _require(len(instance.module_hash) == HASH_BYTES, "a module's hash has 32 bytes")
    _require(instance.parent is None or len(instance.parent) == HASH_BYTES, "a parent's hash has 32 bytes")
    _require((instance.parent is None) == (depth == 0), "only what adds to a snapshot has a parent, and a depth")
    _require(depth <= MAX_DEPTH, f"at most {MAX_DEPTH} snapshots add to each other: save a whole one")
    _require(sum(blobs) <= MAX_BLOB_BYTES, f"input and kernels have at most {MAX_BLOB_BYTES} bytes")
    _require(sum(len(m.runs) for m in (*memories, *buffers)) <= MAX_RUNS, f"there are at most {MAX_RUNS} runs")
    for extents in (*memories, *buffers):
        _require(extents.size_bytes <= MAX_PART_BYTES, f"a memory or buffer has at most {MAX_PART_BYTES} bytes")
        end = 0
        for offset, length, _ in extents.runs:
            _require(offset >= end and length > 0, "runs are ascending, apart and not empty")
            end = offset + length
        _require(end <= extents.size_bytes, "a run ends with its memory or buffer")
    _require(all(m.size_bytes % WASM_PAGE_BYTES == 0 for m in memories), "a memory has whole pages of 64 KiB")
    _require_module_state(instance)
    if (session := instance.session) is not None:
        handles = [0, *(buffer.handle for buffer in session.buffers)]
        _require(_ascends(handles), "buffers are in the order of their handles, from 1 on")
        _require(session.memory_kind in MEMORY_KINDS, "there is no such kind of memory")


def _require_module_state(instance: SavedInstance) -> None:
    """Check globals, tables and segments."""
    globals_ = [each.index for each in instance.globals]
    tables = [table.index for table in instance.tables]
    _require(_ascends(globals_) and _ascends(tables), "globals and tables are in the order of their indices")
    for indices in (globals_, tables, instance.dropped_data, instance.dropped_elements):
        _require(all(index >> _INDEX_BITS == 0 for index in indices), "an index has 32 bits")
    functions = sum(len(table.functions) for table in instance.tables)
    _require(functions <= MAX_FUNCTIONS, f"tables have at most {MAX_FUNCTIONS} elements")
    for each in instance.globals:
        if each.bits is None:
            _require(each.kind == "funcref", "only a reference is null")
        else:
            _require(each.bits >> _BITS[each.kind] == 0, f"a global of kind {each.kind} has {_BITS[each.kind]} bits")


def _ascends(numbers: Sequence[int]) -> bool:
    return all(a < b for a, b in pairwise(numbers))


def _require(holds: bool, rule: str) -> None:  # noqa: FBT001 - reads as a sentence
    if not holds:
        raise InvalidSnapshot(rule)


VERSION: Final = 1
KINDS: Final = ("i32", "i64", "f32", "f64", "v128", "funcref")
"""Kinds of globals; the head has the index in this list."""

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


_Extents = tuple[Number, Number, bytes]
"""0 for a memory, the handle of a buffer; its length; and offset and length of each run."""
_Kernel = tuple[Number, Number, Name]
"""Id, length of the text, and entry point."""


class _Session(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    buffers: Annotated[list[_Extents], _MANY]
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
    memories: Annotated[list[_Extents], _MANY]
    globals: bytes
    tables: Annotated[list[tuple[Number, bytes]], _MANY]
    dropped_data: Numbers
    dropped_elements: Numbers
    input_bytes: Number
    grants: Annotated[list[Name], _MANY]
    session: _Session | None


_decode_head = msgspec.msgpack.Decoder(_Head).decode


class Layout(msgspec.Struct, frozen=True):
    """What a head says: the instance without runs, input and texts, and where in the content those are.

    Attributes:
        depth: length of the chain of snapshots that it adds to.
        input_at: offset and length.
        texts_at: likewise of each kernel's text.
        memories: by index.
        buffers: by handle.
    """

    instance: SavedInstance
    depth: int
    input_at: tuple[int, int]
    texts_at: tuple[tuple[int, int], ...]
    memories: tuple[ExtentMap, ...]
    buffers: dict[int, ExtentMap]


def encode_head(instance: SavedInstance, depth: int) -> bytes:
    """Return the head of an instance, valid or not: `decode_head` validates.

    InvalidSnapshot if it has something that cannot even be encoded.
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
        [_pack_extents(0, memory) for memory in instance.memories],
        b"".join(
            _GLOBAL.pack(each.index, KINDS.index(each.kind), each.bits is None, (each.bits or 0).to_bytes(16, "little"))
            for each in instance.globals
        ),
        [
            (table.index, b"".join(_FUNCTION.pack(_NULL if each is None else each) for each in table.functions))
            for table in instance.tables
        ],
        list(instance.dropped_data),
        list(instance.dropped_elements),
        len(instance.input),
        list(instance.grants),
        None if instance.session is None else _pack_session(instance.session),
    )


def _pack_session(session: SavedSession) -> _Session:
    return _Session(
        [_pack_extents(buffer.handle, buffer) for buffer in session.buffers],
        [(kernel.kernel_id, len(kernel.text), kernel.entry) for kernel in session.kernels],
        list(session.streams),
        list(session.events),
        list(session.next_numbers),
        session.memory_kind,
    )


def _pack_extents(number: int, part: SavedMemory | SavedBuffer) -> _Extents:
    runs = b"".join(_RUN.pack(run.offset_bytes, memoryview(run.data).nbytes) for run in part.runs)
    return number, part.size_bytes, runs


def list_bytes(instance: SavedInstance) -> list[memoryview]:
    """Return what follows the head, in its order, not copied; InvalidSnapshot if something is not contiguous bytes."""
    session = instance.session or SavedSession()
    parts = [*(memory.runs for memory in instance.memories), *(buffer.runs for buffer in session.buffers)]
    texts = (kernel.text for kernel in session.kernels)
    try:
        return [
            memoryview(d).cast("B") for d in (*(run.data for runs in parts for run in runs), *texts, instance.input)
        ]
    except TypeError:
        raise InvalidSnapshot("what is to be saved is not contiguous bytes") from None


def decode_head(data: bytes, content_bytes: int) -> Layout:
    """Return what the head of a verified file says, validated; ``content_bytes`` is the length of its content.

    Raises:
        UnknownVersion: it is of a later version.
        InvalidSnapshot: it contradicts itself or cannot be decoded.
    """
    if len(data) < _PROLOGUE.size or data[:4] != _MAGIC:
        raise InvalidSnapshot("the content is no snapshot")
    _, version = _PROLOGUE.unpack_from(data)
    if version != VERSION:
        raise UnknownVersion(f"the snapshot's head is of version {version}; this release reads {VERSION}")
    try:
        head = _decode_head(memoryview(data)[_PROLOGUE.size :])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:  # ValueError: text that is not UTF-8
        raise InvalidSnapshot(f"the snapshot's head does not decode: {error}") from None
    layout, end = _lay_out(head, len(data))
    if end != content_bytes:
        raise InvalidSnapshot(f"the snapshot describes {end} bytes and has {content_bytes}")
    return layout


def _lay_out(head: _Head, head_bytes: int) -> tuple[Layout, int]:
    """Return where each part is in the content, and where the content ends."""
    buffers, kernels = (head.session.buffers, head.session.kernels) if head.session else ([], [])
    parts = [(size_bytes, list(_records(_RUN, runs))) for _, size_bytes, runs in (*head.memories, *buffers)]
    blobs = [*(text_bytes for _, text_bytes, _ in kernels), head.input_bytes]
    offsets = accumulate((*(size for _, runs in parts for _, size in runs), *blobs), initial=head_bytes)
    maps = [ExtentMap(size_bytes, tuple((*run, next(offsets)) for run in runs)) for size_bytes, runs in parts]
    *texts_at, input_at = ((next(offsets), size) for size in blobs)
    memories = tuple(maps[: len(head.memories)])
    by_handle = dict(zip((handle for handle, _, _ in buffers), maps[len(head.memories) :], strict=True))
    instance = _unpack(head)
    validate_instance(instance, head.depth, memories, tuple(by_handle.values()), blobs)
    return Layout(instance, head.depth, input_at, tuple(texts_at), memories, by_handle), next(offsets)


def _records(record: struct.Struct, data: bytes) -> Iterable[tuple[Any, ...]]:
    if len(data) % record.size:
        raise InvalidSnapshot("a list in the snapshot's head is cut")
    return record.iter_unpack(data)


def _unpack(head: _Head) -> SavedInstance:
    return SavedInstance(
        head.module_hash,
        tuple(SavedMemory(size_bytes, ()) for _, size_bytes, _ in head.memories),
        tuple(_unpack_global(*each) for each in _records(_GLOBAL, head.globals)),
        tuple(
            SavedTable(index, tuple(None if each == _NULL else each for (each,) in _records(_FUNCTION, functions)))
            for index, functions in head.tables
        ),
        tuple(head.dropped_data),
        tuple(head.dropped_elements),
        b"",
        tuple(head.grants),
        None if head.session is None else _unpack_session(head.session),
        head.parent,
        head.made_unix_ms,
    )


def _unpack_global(index: int, kind: int, null: int, bits: bytes) -> SavedGlobal:
    number = int.from_bytes(bits, "little")
    if kind >= len(KINDS) or null > 1 or (null and number):
        raise InvalidSnapshot(f"global {index} is of no kind, or null and has a value")
    return SavedGlobal(index, KINDS[kind], None if null else number)


def _unpack_session(session: _Session) -> SavedSession:
    return SavedSession(
        tuple(SavedBuffer(handle, size_bytes, ()) for handle, size_bytes, _ in session.buffers),
        tuple(SavedKernel(kernel_id, b"", entry) for kernel_id, _, entry in session.kernels),
        tuple(session.streams),
        tuple(session.events),
        tuple(session.next_numbers),
        session.memory_kind,
    )
