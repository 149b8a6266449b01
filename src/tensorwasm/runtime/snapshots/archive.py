"""Snapshots in files: written from an instance between two calls, read once, and cached."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, Final, TypedDict

from tensorwasm.artifacts.keys import KeyRing
from tensorwasm.artifacts.sealed.reader import Source
from tensorwasm.artifacts.sealed.writer import DEFAULT, SealedInfo, Sealing
from tensorwasm.artifacts.snapshot.file import SnapshotFile, write_snapshot
from tensorwasm.errors import InvalidArgs, InvalidSnapshot
from tensorwasm.guest.memory.images import Image, ImageWriter
from tensorwasm.runtime.deploy.lru_cache import LruCache
from tensorwasm.runtime.snapshots.live import LiveInstance
from tensorwasm.runtime.snapshots.snapshot import Snapshot
from tensorwasm.saved import SavedBuffer, SavedMemory, SavedRun
from tensorwasm.values import Deadline

Name = str | os.PathLike[str]
File = Name | memoryview
"""A file's path, or its bytes."""

_Key = tuple[str, object, tuple[tuple[int, ...], ...]]
"""A tenant, the keys that it trusts, and what its files are."""


class FileOptions(TypedDict, total=False):
    """How an instance is written to a file; `tensorwasm.runtime.Runtime.snapshot` documents it."""

    parents: Sequence[File]
    keys: KeyRing | None
    sealing: Sealing
    deadline: Deadline | None


MAX_KEPT: Final = 1024
"""Most snapshots that are kept, however small: each has a file open."""
_PART: Final = 4
"""Of the files that the process may open, what is kept has one in so many: others need some too."""


def save_file(
    live: LiveInstance,
    path: Name,
    *,
    parents: Sequence[File] = (),
    keys: KeyRing | None = None,
    sealing: Sealing = DEFAULT,
    deadline: Deadline | None = None,
) -> SealedInfo:
    """Save an instance to a file; `tensorwasm.runtime.Runtime.snapshot` documents arguments and errors."""
    ring = keys or KeyRing.from_settings()
    try:
        return write_live(live, Path(path), ring, parents, sealing, deadline)
    except OSError as error:
        raise InvalidArgs(f"cannot write {path}: {error.strerror}") from None


def write_live(
    live: LiveInstance,
    to: Path | BinaryIO,
    ring: KeyRing,
    parents: Sequence[File],
    sealing: Sealing,
    deadline: Deadline | None,
) -> SealedInfo:
    """Save an instance to a path, or to a new file that is open; raise what saving raises, and `OSError`."""
    if not parents:
        with live.captured(None, deadline) as saved:
            return write_snapshot(to, saved, ring, sealing)
    with (
        open_file(parents[0], ring, parents[1:], live.function.module_hash) as parent,
        _read(parent) as before,
        live.captured(before.ancestor, deadline) as saved,
    ):
        return write_snapshot(to, saved, ring, sealing, parent=parent)


def open_file(file: File, ring: KeyRing, parents: Sequence[File], module_hash: bytes | None) -> SnapshotFile:
    """Open a file and those that it adds to, nearest first.

    Raises:
        SealRefused: one of its kinds says why.
        InvalidSnapshot: its content makes no sense, although it was signed.
        InvalidArgs: it cannot be read.
    """
    try:
        return SnapshotFile.open(_source(file), ring, module_hash=module_hash, find_parent=_in_order(parents))
    except OSError as error:
        raise InvalidArgs(f"cannot read {file!s}: {error.strerror}") from None


def read_file(path: File, ring: KeyRing, parents: Sequence[File] = (), module_hash: bytes | None = None) -> Snapshot:
    """Verify a file and those that it adds to, nearest first, and read them into memory as one, of any module for None.

    Raises what `open_file` raises, and `CapacityExhausted` if the system has no memory for it.
    """
    with open_file(path, ring, parents, module_hash) as file:
        try:
            return _read(file)
        except OSError as error:
            raise InvalidArgs(f"cannot read {path}: {error.strerror}") from None


class SnapshotCache:
    """Snapshots read from files, by tenant, trusted keys and file identity. Thread-safe.

    The least recently used goes first: they take at most `size_bytes` together; one may be larger.
    """

    def __init__(self, size_bytes: int) -> None:
        self._kept: LruCache[Snapshot] = LruCache(_most_kept(), size_bytes)
        self._turns: dict[_Key, threading.Lock] = {}
        self._lock = threading.Lock()

    def get(self, path: Name, tenant: str, keys: KeyRing | None = None, parents: Sequence[Name] = ()) -> Snapshot:
        """Return what a file holds. The first time blocks for reading and verifying it, which one thread does."""
        # Without a ring it is the settings', which do not change.
        trusted = None if keys is None else (tuple(sorted(keys.verifiers)), tuple(sorted(keys.ciphers)))
        key = tenant, trusted, tuple(_identify(each) for each in (path, *parents))
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                return found
            turn = self._turns.setdefault(key, threading.Lock())
        with turn:
            try:
                with self._lock:
                    found = self._kept.get(key)
                if found is None:
                    found = read_file(path, keys or KeyRing.from_settings(), parents)
                    with self._lock:
                        if self._kept.get(key) is None:
                            self._kept.put(key, found, found.held_bytes)
                return found
            finally:
                with self._lock:
                    self._turns.pop(key, None)  # waiting threads have it, and find what was read


def _most_kept() -> int:
    """Return how many snapshots may be kept."""
    if sys.platform == "win32":
        return MAX_KEPT
    import resource  # noqa: PLC0415 - there is none on Windows

    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_KEPT if most == resource.RLIM_INFINITY else max(1, min(MAX_KEPT, most // _PART))


def _identify(path: Name) -> tuple[int, ...]:
    """Return what tells a file from an earlier or later version of it."""
    try:
        found = Path(path).stat()
    except (OSError, ValueError) as error:
        raise InvalidArgs(f"cannot read {path}: {getattr(error, 'strerror', 'no such path')}") from None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _source(file: File) -> Source:
    return file if isinstance(file, memoryview) else Path(file)


def _in_order(parents: Sequence[File]) -> Callable[[bytes], Source | None] | None:
    left = [_source(each) for each in parents]
    return (lambda _hash: left.pop(0) if left else None) if left else None


def _read(file: SnapshotFile) -> Snapshot:
    saved, session = file.instance, file.instance.session
    if len(saved.memories) > 1:
        raise InvalidSnapshot("an instance has at most one memory")
    image = _read_image(file, saved.memories[0]) if saved.memories else None
    if session is not None:
        session = replace(session, buffers=tuple(_read_buffer(file, buffer) for buffer in session.buffers))
    return Snapshot(replace(saved, session=session, parent=None), image, file.content_hash)


def _read_image(file: SnapshotFile, memory: SavedMemory) -> Image:
    with ImageWriter(memory.size_bytes) as writer:
        with writer.mapped(file.memory_spans(0)) as view:
            file.place(0, view)
        return writer.finish()


def _read_buffer(file: SnapshotFile, buffer: SavedBuffer) -> SavedBuffer:
    data = bytearray(buffer.size_bytes)
    file.place_buffer(buffer.handle, memoryview(data))
    spans = file.buffer_spans(buffer.handle)
    held = memoryview(data).toreadonly()
    return replace(buffer, runs=tuple(SavedRun(start, held[start : min(end, len(held))]) for start, end in spans))
