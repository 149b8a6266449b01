"""The rules that every snapshot keeps, and the caps that writer and reader share.

A writer has its own head decoded and validated before it keeps it, so both apply the same rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

import msgspec

from tensorwasm.artifacts.hashing import HASH_BYTES
from tensorwasm.artifacts.sealed.header import MAX_CONTENT_BYTES
from tensorwasm.errors import InvalidSnapshot
from tensorwasm.saved import SavedInstance
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

    Raises:
        InvalidSnapshot: it contradicts itself, or exceeds a cap; the message says which.
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
