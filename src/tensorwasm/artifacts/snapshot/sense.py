"""What every snapshot keeps to, and the caps that writer and reader share.

They fit because there is one judge: a writer has its own head read before it keeps it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

import msgspec

from tensorwasm.artifacts.hashing import HASH_BYTES
from tensorwasm.artifacts.sealed import MAX_CONTENT_BYTES
from tensorwasm.errors import InvalidSnapshot
from tensorwasm.saved import SavedGlobal, SavedInstance
from tensorwasm.values import MEMORY_KINDS, WASM_PAGE_BYTES

MAX_DEPTH: Final = 64
"""Snapshots that one adds to, one after the other; a longer chain is to be flattened first."""

MAX_RUNS: Final = 1 << 22
MAX_FUNCTIONS: Final = 1 << 23
MAX_PART_BYTES: Final = MAX_CONTENT_BYTES
MAX_BLOB_BYTES: Final = 256 << 20
"""Of input and texts of kernels together, which a reader has in memory at once."""

_INDEX_BITS: Final = 32
_BITS: Final = {"i32": 32, "i64": 64, "f32": 32, "f64": 64, "v128": 128, "funcref": _INDEX_BITS}


class Place(msgspec.Struct, frozen=True):
    """Where the bytes of a memory or a buffer are.

    Attributes:
        size_bytes: its length.
        runs: offset in it, length, and offset in the content of each run.
    """

    size_bytes: int
    runs: tuple[tuple[int, int, int], ...]


def require_sense(
    instance: SavedInstance,
    depth: int,
    memories: Sequence[Place],
    buffers: Sequence[Place],
    blobs: Iterable[int],
) -> None:
    """Check an instance whose runs, input and texts are given apart.

    Args:
        instance: the rest of it.
        depth: snapshots that it adds to.
        memories: where their runs are.
        buffers: likewise.
        blobs: lengths of the input and of each text.

    Raises:
        InvalidSnapshot: it contradicts itself, or has more of something than a cap allows; the message says of what.
    """
    _require(len(instance.module_hash) == HASH_BYTES, "a module's hash has 32 bytes")
    _require(instance.parent is None or len(instance.parent) == HASH_BYTES, "a parent's hash has 32 bytes")
    _require((instance.parent is None) == (depth == 0), "only what adds to a snapshot has a parent, and a depth")
    _require(depth <= MAX_DEPTH, f"at most {MAX_DEPTH} snapshots add to each other: flatten one")
    _require(sum(blobs) <= MAX_BLOB_BYTES, f"input and kernels have at most {MAX_BLOB_BYTES} bytes")
    _require(sum(len(p.runs) for p in (*memories, *buffers)) <= MAX_RUNS, f"there are at most {MAX_RUNS} runs")
    for place in (*memories, *buffers):
        _require_runs(place)
    _require(all(place.size_bytes % WASM_PAGE_BYTES == 0 for place in memories), "a memory has whole pages of 64 KiB")
    _require_indices(instance)
    for each in instance.globals:
        _require_global(each)
    _require_session(instance)


def _require(holds: bool, rule: str) -> None:  # noqa: FBT001 - reads as a sentence
    if not holds:
        raise InvalidSnapshot(rule)


def _require_runs(place: Place) -> None:
    """Check that runs are ascending, apart, not empty and inside."""
    _require(place.size_bytes <= MAX_PART_BYTES, f"a memory or buffer has at most {MAX_PART_BYTES} bytes")
    end = 0
    for offset, length, _ in place.runs:
        _require(offset >= end and length > 0, "runs are ascending, apart and not empty")
        end = offset + length
    _require(end <= place.size_bytes, "a run ends with its memory or buffer")


def _require_indices(instance: SavedInstance) -> None:
    globals_: Sequence[int] = [each.index for each in instance.globals]
    tables: Sequence[int] = [table.index for table in instance.tables]
    for indices in (globals_, tables):
        _require(all(a < b for a, b in pairwise(indices)), "globals and tables are in the order of their indices")
    for indices in (globals_, tables, instance.dropped_data, instance.dropped_elements):
        _require(all(index >> _INDEX_BITS == 0 for index in indices), "an index has 32 bits")
    functions = sum(len(table.functions) for table in instance.tables)
    _require(functions <= MAX_FUNCTIONS, f"tables have at most {MAX_FUNCTIONS} elements")


def _require_global(each: SavedGlobal) -> None:
    if each.bits is None:
        _require(each.kind == "funcref", "only a reference is null")
    else:
        _require(each.bits >> _BITS[each.kind] == 0, f"a global of kind {each.kind} has {_BITS[each.kind]} bits")


def _require_session(instance: SavedInstance) -> None:
    session = instance.session
    if session is None:
        return
    handles = [0, *(buffer.handle for buffer in session.buffers)]
    _require(all(a < b for a, b in pairwise(handles)), "buffers are in the order of their handles, from 1 on")
    _require(session.memory_kind in MEMORY_KINDS, "there is no such kind of memory")
