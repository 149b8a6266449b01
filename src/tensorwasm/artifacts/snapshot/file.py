"""Reads snapshots: a file, and all that it adds to."""

from __future__ import annotations

import dataclasses
import mmap
from collections.abc import Callable
from itertools import takewhile
from typing import Self

from tensorwasm.artifacts.ring import KeyRing
from tensorwasm.artifacts.sealed import Header, Source
from tensorwasm.artifacts.snapshot.head import Layout
from tensorwasm.artifacts.snapshot.layer import Layer, with_runs
from tensorwasm.artifacts.snapshot.pages import Span, cover, find_pages
from tensorwasm.artifacts.snapshot.sense import Place
from tensorwasm.errors import WrongParent
from tensorwasm.saved import Run, SavedInstance

FindParent = Callable[[bytes], Source | None]
"""From the content hash of a snapshot to its file, or its bytes; None if there is none."""

_Parts = list[tuple[Layer, Place]]


class SnapshotFile:
    """A snapshot that was verified, and those that it adds to. Any number of threads may read from it.

    Attributes:
        instance: what was saved, without runs: those are placed (`place`) or loaded (`load`).
        layers: its file, that of what it adds to, and so on.
    """

    __slots__ = ("instance", "layers")

    def __init__(self, layers: tuple[Layer, ...]) -> None:
        """Take files that were verified, each of which adds to the next."""
        self.layers = layers
        self.instance = layers[0].instance

    @classmethod
    def open(
        cls,
        source: Source,
        ring: KeyRing,
        *,
        module_hash: bytes | None = None,
        find_parent: FindParent | None = None,
        allow_unsigned: bool = False,
        threads: int | None = None,
    ) -> Self:
        """Open a snapshot and all that it adds to; each is verified before a byte of it is decompressed or parsed.

        Args:
            source: its file's path, or the file's bytes.
            ring: keys whose signatures count, and keys to decrypt with.
            module_hash: of the module that it must belong to; None takes any.
            find_parent: where other snapshots are; without it only what the file itself has can be read.
            allow_unsigned: whether files without a signature will do.
            threads: for hashing and decompressing; None takes one for each processor.

        Raises:
            SealRefused: one of its kinds says why.
            InvalidSnapshot: what is in it makes no sense, although it was signed.
            TooLarge: it says, or is, more than a writer makes.
            OSError: it cannot be read.
        """

        def open_layer(source: Source, module_hash: bytes | None) -> Layer:
            return Layer.open(source, ring, module_hash=module_hash, allow_unsigned=allow_unsigned, threads=threads)

        layers: list[Layer] = []
        try:
            layers.append(open_layer(source, module_hash))
            while find_parent is not None and layers[-1].instance.parent is not None:
                found = _find(layers[-1].instance.parent, find_parent)
                layers.append(_open_parent(found, layers[-1], open_layer))
                _require_parent(layers[-2], layers[-1])
        except BaseException:
            for layer in layers:
                layer.sealed.close()
            raise
        return cls(tuple(layers))

    @property
    def content_hash(self) -> bytes:
        """By which snapshots that add to it know it."""
        return self.layers[0].sealed.content_hash

    @property
    def depth(self) -> int:
        """How many snapshots it adds to, one after the other."""
        return self.layers[0].layout.depth

    @property
    def header(self) -> Header:
        """What the file says of itself."""
        return self.layers[0].sealed.header

    @property
    def file_bytes(self) -> int:
        """Length of the file."""
        return self.layers[0].sealed.file_bytes

    def place(self, index: int, into: memoryview) -> None:
        """Write a memory to where it is to be.

        Args:
            index: of the memory.
            into: at least as many writable bytes as it has, all zero: what is zero in it may not be written.

        Raises:
            IndexError: there is no such memory, or it is longer than ``into``.
            WrongParent: what it adds to was not opened.
            Damaged: a file was changed since it was opened; then ``into`` has anything.
            OSError: it cannot be read; likewise.
        """
        self._fill(self._memory(index), into)

    def place_buffer(self, handle: int, into: memoryview) -> None:
        """Write a device buffer to where it is to be; as `place`.

        Raises:
            KeyError: there is no such buffer.
            IndexError: it is longer than ``into``.
            WrongParent: what it adds to was not opened.
            Damaged: a file was changed since it was opened; then ``into`` has anything.
            OSError: it cannot be read; likewise.
        """
        self._fill(self._buffer(handle), into)

    def load(self) -> SavedInstance:
        """Return what was written, runs included: of a snapshot with a parent, what it adds.

        Raises:
            Damaged: the file was changed since it was opened.
            OSError: it cannot be read.
        """
        return self.layers[0].load()

    def load_whole(self) -> SavedInstance:
        """Return the instance with everything that it adds to, as one without a parent; its memory is this process's.

        Raises:
            WrongParent: what it adds to was not opened.
            Damaged: a file was changed since it was opened.
            OSError: it cannot be read.
        """
        layout = self.layers[0].layout
        memories = [self._gather(self._memory(index)) for index in range(len(layout.memories))]
        buffers = {handle: self._gather(self._buffer(handle)) for handle in layout.buffers}
        return dataclasses.replace(with_runs(self.instance, memories, buffers), parent=None)

    def cover_memory(self, index: int) -> list[Span]:
        """Return the spans of a memory outside of which all is zero, in pages, ascending.

        Raises:
            WrongParent: what it adds to was not opened.
        """
        return cover(run for _, place in self._memory(index) for run in place.runs)

    def cover_buffer(self, handle: int) -> list[Span]:
        """Return the same of a buffer.

        Raises:
            WrongParent: what it adds to was not opened.
        """
        return cover(run for _, place in self._buffer(handle) for run in place.runs)

    def check_content(self) -> None:
        """Decompress everything, of all that it adds to as well, and compare it with the hashes that were signed.

        Raises:
            WrongParent: what it adds to was not opened.
            Damaged: something differs.
            OSError: it cannot be read.
        """
        self._require_chain()
        for layer in self.layers:
            layer.sealed.check_content()

    def close(self) -> None:
        """Close its file and those of all that it adds to; doing so twice is once."""
        for layer in self.layers:
            layer.sealed.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _require_chain(self) -> None:
        missing = self.layers[-1].instance.parent
        if missing is not None:
            raise WrongParent(f"the snapshot adds to {missing.hex()}, which was not opened")

    def _memory(self, index: int) -> _Parts:
        """Return what each layer has of a memory, newest first."""
        self._require_chain()
        return [(layer, layer.layout.memories[index]) for layer in self.layers]

    def _buffer(self, handle: int) -> _Parts:
        """Return the same of a buffer: back to where it was made."""
        self._require_chain()
        size_bytes = self.layers[0].layout.buffers[handle].size_bytes
        found = ((layer, layer.layout.buffers.get(handle)) for layer in self.layers)
        held = takewhile(lambda pair: pair[1] is not None and pair[1].size_bytes == size_bytes, found)
        return [(layer, place) for layer, place in held if place is not None]

    def _fill(self, parts: _Parts, into: memoryview) -> None:
        """Write a memory's or buffer's runs, oldest first."""
        view = memoryview(into).cast("B")
        if len(view) < parts[0][1].size_bytes:
            raise IndexError("there is not enough room for it")
        for layer, place in reversed(parts):
            layer.fill(place, view)

    def _gather(self, parts: _Parts) -> tuple[Run, ...]:
        """Put a memory or buffer together and return the runs of what is not zero."""
        size_bytes = parts[0][1].size_bytes
        if not size_bytes:
            return ()
        view = memoryview(mmap.mmap(-1, size_bytes))
        self._fill(parts, view)
        spans = cover(run for _, place in parts for run in place.runs)
        return tuple(Run(start, view[start:end]) for start, end in find_pages(view, None, spans))


def require_base(layout: Layout, parent: Layer) -> None:
    """Check that a snapshot can add to another: of the same module, with as many memories, none of them longer.

    Raises:
        WrongParent: it cannot.
    """
    if parent.instance.module_hash != layout.instance.module_hash:
        raise WrongParent("a snapshot adds to one of the same module")
    older, newer = parent.layout.memories, layout.memories
    if len(older) != len(newer) or any(a.size_bytes > b.size_bytes for a, b in zip(older, newer, strict=True)):
        raise WrongParent("a snapshot adds to one with as many memories, none of them longer")


def _find(wanted: bytes, find_parent: FindParent) -> Source:
    source = find_parent(wanted)
    if source is None:
        raise WrongParent(f"the snapshot adds to {wanted.hex()}, which is not there")
    return source


def _open_parent(source: Source, child: Layer, open_layer: Callable[[Source, bytes], Layer]) -> Layer:
    try:
        return open_layer(source, child.instance.module_hash)
    except FileNotFoundError:
        raise WrongParent(f"the snapshot adds to {(child.instance.parent or b'').hex()}, which is not there") from None


def _require_parent(child: Layer, parent: Layer) -> None:
    """Check that a file is the one that another adds to."""
    if parent.sealed.content_hash != child.instance.parent or parent.layout.depth != child.layout.depth - 1:
        raise WrongParent(f"the snapshot adds to another than {parent.sealed.content_hash.hex()}")
    require_base(child.layout, parent)
