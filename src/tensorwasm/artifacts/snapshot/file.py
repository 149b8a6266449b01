"""Snapshots as files: written, signed again, and read with the chain of those that they add to."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import BinaryIO, Self

from tensorwasm.artifacts.keys import KeyRing
from tensorwasm.artifacts.private_files import map_scratch, scratch
from tensorwasm.artifacts.sealed.header import Content
from tensorwasm.artifacts.sealed.reader import SealedFile, Source
from tensorwasm.artifacts.sealed.writer import DEFAULT, SealedInfo, Sealing, renew_sealed, write_sealed
from tensorwasm.artifacts.snapshot.head import ExtentMap, Layout, decode_head, encode_head, list_bytes
from tensorwasm.errors import InvalidSnapshot, WrongParent
from tensorwasm.saved import PAGE_BYTES, SavedInstance, SavedRun

Span = tuple[int, int]
"""Begin and end."""
FindParent = Callable[[bytes], Source | None]
"""From the content hash of a snapshot to its file, or its bytes; None if there is none."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One snapshot file by itself, verified and with its head read; its instance has no runs."""

    sealed: SealedFile
    layout: Layout
    instance: SavedInstance


_Extents = list[tuple[Layer, ExtentMap]]


class SnapshotFile:
    """A verified snapshot, and those that it adds to. Any number of threads may read from it.

    Reading raises `Damaged` if a file was changed since it was opened, OSError, and `WrongParent` if the parent is
    needed and was not opened.

    Attributes:
        instance: what was saved, without runs: those are placed (`place`) or loaded (`load`).
        layers: its file, that of its parent, and so on.
        content_hash: by which snapshots that add to it refer to it.
        depth: length of the chain of snapshots that it adds to.
    """

    def __init__(self, layers: tuple[Layer, ...]) -> None:
        """Take verified files, each of which adds to the next."""
        self.layers = layers
        self.instance = layers[0].instance
        self.header = layers[0].sealed.header
        self.content_hash = layers[0].sealed.content_hash
        self.depth = layers[0].layout.depth
        self.file_bytes = layers[0].sealed.file_bytes

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
        """Open a snapshot and its chain; each file is verified before any of it is decompressed or parsed.

        ``find_parent`` finds other snapshots; without it only what the file itself has can be read. The rest is as for
        `SealedFile.open`.

        Raises:
            SealRefused: one of its kinds says why.
            InvalidSnapshot: its content is invalid, although it was signed.
            TooLarge: it says, or is, more than a writer makes.
            OSError: it cannot be read.
        """
        with ExitStack() as opened:

            def open_layer(source: Source, module_hash: bytes | None) -> Layer:
                sealed = SealedFile.open(
                    source,
                    ring,
                    content=Content.SNAPSHOT,
                    module_hash=module_hash,
                    allow_unsigned=allow_unsigned,
                    threads=threads,
                )
                return _read_layer(opened.enter_context(sealed))

            layers = [open_layer(source, module_hash)]
            while find_parent is not None and layers[-1].instance.parent is not None:
                layers.append(_open_parent(layers[-1], find_parent, open_layer))
            opened.pop_all()  # from here on the snapshot closes them
        return cls(tuple(layers))

    def place(self, index: int, into: memoryview) -> None:
        """Write a memory into a buffer of at least its length, all zero: zeros of the memory may not be written.

        IndexError if there is no such memory or it is longer. After another error the buffer's content is undefined.
        """
        self._fill(self._memory(index), into)

    def place_buffer(self, handle: int, into: memoryview) -> None:
        """Write a device buffer, as `place` does; KeyError if there is none."""
        self._fill(self._buffer(handle), into)

    def load(self) -> SavedInstance:
        """Return what was written, runs included: of a snapshot with a parent, what it adds."""
        layout, session = self.layers[0].layout, self.instance.session
        memories = tuple(
            dataclasses.replace(memory, runs=self._load_runs(extents))
            for memory, extents in zip(self.instance.memories, layout.memories, strict=True)
        )
        if session is not None:
            buffers = (dataclasses.replace(b, runs=self._load_runs(layout.buffers[b.handle])) for b in session.buffers)
            session = dataclasses.replace(session, buffers=tuple(buffers))
        return dataclasses.replace(self.instance, memories=memories, session=session)

    def _load_runs(self, extents: ExtentMap) -> tuple[SavedRun, ...]:
        pairs = [(run, bytearray(run[1])) for run in extents.runs]
        self.layers[0].sealed.read_into((at, memoryview(data)) for (_, _, at), data in pairs)
        return tuple(SavedRun(offset, bytes(data)) for (offset, _, _), data in pairs)

    def memory_spans(self, index: int) -> list[Span]:
        """Return the ascending spans of pages outside of which a memory is zero."""
        return cover(run for _, extents in self._memory(index) for run in extents.runs)

    def buffer_spans(self, handle: int) -> list[Span]:
        """Return the same of a device buffer."""
        return cover(run for _, extents in self._buffer(handle) for run in extents.runs)

    def check_content(self) -> None:
        """Decompress everything, of its chain too, and compare it with the hashes that were signed."""
        self._require_chain()
        for layer in self.layers:
            layer.sealed.check_content()

    def close(self) -> None:
        """Close its file and those of its chain; a second call does nothing."""
        for layer in self.layers:
            layer.sealed.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _require_chain(self) -> None:
        if (missing := self.layers[-1].instance.parent) is not None:
            raise WrongParent(f"the snapshot adds to {missing.hex()}, which was not opened")

    def _memory(self, index: int) -> _Extents:
        """Return what each layer has of a memory, newest first."""
        self._require_chain()
        return [(layer, layer.layout.memories[index]) for layer in self.layers]

    def _buffer(self, handle: int) -> _Extents:
        """Return what each layer has of a buffer, newest first, back to the one where it was made."""
        self._require_chain()
        size_bytes = self.layers[0].layout.buffers[handle].size_bytes
        found = ((layer, layer.layout.buffers.get(handle)) for layer in self.layers)
        held = takewhile(lambda pair: pair[1] is not None and pair[1].size_bytes == size_bytes, found)
        return [(layer, extents) for layer, extents in held if extents is not None]

    def _fill(self, parts: _Extents, into: memoryview) -> None:
        """Write a memory's or buffer's runs, oldest first."""
        view = memoryview(into).cast("B")
        if len(view) < parts[0][1].size_bytes:
            raise IndexError("there is not enough room for it")
        for layer, extents in reversed(parts):
            layer.sealed.read_into((at, view[offset : offset + size]) for offset, size, at in extents.runs)


def write_snapshot(
    to: Path | BinaryIO,
    instance: SavedInstance,
    ring: KeyRing,
    sealing: Sealing = DEFAULT,
    *,
    parent: SnapshotFile | None = None,
) -> SealedInfo:
    """Write a snapshot as `write_sealed` does; ``parent`` is the snapshot that the instance adds to, if it does.

    Blocks while it hashes, compresses and waits for the disk. Nothing of the instance may change meanwhile; its
    runs are not copied.

    Raises:
        InvalidSnapshot: the instance contradicts itself, or exceeds a cap.
        WrongParent: its parent is not the one that is given.
    """
    if (None if parent is None else parent.content_hash) != instance.parent:
        raise WrongParent("the instance adds to another snapshot than the one that is given")
    head, rest = encode_head(instance, 0 if parent is None else parent.depth + 1), list_bytes(instance)
    layout = decode_head(head, len(head) + sum(map(len, rest)))
    if parent is not None:
        _require_base(layout, parent.layers[0])
    return write_sealed(to, head, rest, ring, sealing, content=Content.SNAPSHOT, module_hash=instance.module_hash)


def renew_snapshot(data: memoryview, ring: KeyRing) -> memoryview | None:
    """Return a snapshot's bytes signed, and encrypted if they were, with the current keys; None if they are already.

    Content hashes do not change, so the links to its parent and from its children hold. Errors are as for
    `renew_sealed`, and StoreUnavailable if there is no room for it.
    """
    with scratch() as file:
        return map_scratch(file) if renew_sealed(data, file, ring, content=Content.SNAPSHOT) else None


def _require_base(layout: Layout, parent: Layer) -> None:
    """Check that a snapshot can add to another: of the same module, with as many memories, none of them longer."""
    if parent.instance.module_hash != layout.instance.module_hash:
        raise WrongParent("a snapshot adds to one of the same module")
    older, newer = parent.layout.memories, layout.memories
    if len(older) != len(newer) or any(a.size_bytes > b.size_bytes for a, b in zip(older, newer, strict=True)):
        raise WrongParent("a snapshot adds to one with as many memories, none of them longer")


def _read_layer(sealed: SealedFile) -> Layer:
    """Read the head, the input and the texts of the kernels."""
    header = sealed.header
    layout = decode_head(sealed.read(0, header.head_bytes), header.content_bytes)
    instance = dataclasses.replace(layout.instance, input=sealed.read(*layout.input_at))
    if instance.module_hash != header.module_hash:
        raise InvalidSnapshot("the snapshot is of another module than its file")
    if (session := instance.session) is not None:
        pairs = zip(session.kernels, layout.texts_at, strict=True)
        kernels = tuple(dataclasses.replace(kernel, text=sealed.read(*where)) for kernel, where in pairs)
        instance = dataclasses.replace(instance, session=dataclasses.replace(session, kernels=kernels))
    return Layer(sealed, layout, instance)


def _open_parent(child: Layer, find_parent: FindParent, open_layer: Callable[[Source, bytes], Layer]) -> Layer:
    """Return the parent of a snapshot; WrongParent if it is missing, or the file that was found is another."""
    wanted, parent = child.instance.parent or b"", None
    if (source := find_parent(wanted)) is not None:
        with suppress(FileNotFoundError):
            parent = open_layer(source, child.instance.module_hash)
    if parent is None:
        raise WrongParent(f"the snapshot adds to {wanted.hex()}, which is missing")
    if parent.sealed.content_hash != wanted or parent.layout.depth != child.layout.depth - 1:
        raise WrongParent(f"the snapshot adds to another than {parent.sealed.content_hash.hex()}")
    _require_base(child.layout, parent)
    return parent


def cover(runs: Iterable[tuple[int, int, int]]) -> list[Span]:
    """Return the spans, in multiples of a page, that runs lie in: ascending and apart."""
    pages = sorted((offset // PAGE_BYTES, -(-(offset + size) // PAGE_BYTES)) for offset, size, _ in runs)
    return merge((first * PAGE_BYTES, end * PAGE_BYTES) for first, end in pages)


def merge(spans: Iterable[Span]) -> list[Span]:
    """Return ascending spans with those joined that touch or overlap."""
    merged: list[Span] = []
    for start, end in spans:
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged
