"""Snapshots as files: a saved instance in a sealed file, whole or only what differs from another one's.

``write_snapshot`` and ``SnapshotFile`` are each other's inverse. ``leave_out`` makes an instance one that adds to a
parent, ``flatten`` one that does not any more, ``compare`` says where two differ, ``summarize`` what one is,
``renew_snapshot`` puts one under the keys of today.
"""

from tensorwasm.artifacts.snapshot.difference import Difference, compare, leave_out
from tensorwasm.artifacts.snapshot.file import SnapshotFile
from tensorwasm.artifacts.snapshot.sense import MAX_BLOB_BYTES, MAX_DEPTH, MAX_FUNCTIONS, MAX_PART_BYTES, MAX_RUNS
from tensorwasm.artifacts.snapshot.summary import Summary, summarize
from tensorwasm.artifacts.snapshot.writing import flatten, renew_snapshot, verify_snapshot, write_snapshot

__all__ = [
    "MAX_BLOB_BYTES",
    "MAX_DEPTH",
    "MAX_FUNCTIONS",
    "MAX_PART_BYTES",
    "MAX_RUNS",
    "Difference",
    "SnapshotFile",
    "Summary",
    "compare",
    "flatten",
    "leave_out",
    "renew_snapshot",
    "summarize",
    "verify_snapshot",
    "write_snapshot",
]
