"""One snapshot file by itself: what it has, without what it adds to."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from tensorwasm.artifacts.ring import KeyRing
from tensorwasm.artifacts.sealed import Content, SealedFile, Source
from tensorwasm.artifacts.snapshot.head import Layout, decode_head
from tensorwasm.artifacts.snapshot.sense import Place
from tensorwasm.errors import InvalidSnapshot
from tensorwasm.saved import Run, SavedInstance


@dataclass(frozen=True, slots=True)
class Layer:
    """A file that was verified, and whose head was read.

    Attributes:
        sealed: the file.
        layout: what its head says.
        instance: what was saved, without runs.
    """

    sealed: SealedFile
    layout: Layout
    instance: SavedInstance

    @classmethod
    def open(
        cls, source: Source, ring: KeyRing, *, module_hash: bytes | None, allow_unsigned: bool, threads: int | None
    ) -> Layer:
        """Open a file; as `SealedFile.open`.

        Raises:
            SealRefused: one of its kinds says why.
            InvalidSnapshot: what is in it makes no sense, although it was signed.
            TooLarge: it says, or is, more than a writer makes.
            OSError: it cannot be read.
        """
        sealed = SealedFile.open(
            source,
            ring,
            content=Content.SNAPSHOT,
            module_hash=module_hash,
            allow_unsigned=allow_unsigned,
            threads=threads,
        )
        try:
            return cls._read(sealed)
        except BaseException:
            sealed.close()
            raise

    @classmethod
    def _read(cls, sealed: SealedFile) -> Layer:
        """Read the head, the input and the texts of the kernels."""
        header = sealed.header
        layout = decode_head(sealed.read(0, header.head_bytes), header.content_bytes)
        instance = dataclasses.replace(layout.instance, input=sealed.read(*layout.input_at))
        if instance.module_hash != header.module_hash:
            raise InvalidSnapshot("the snapshot is of another module than its file")
        session = instance.session
        if session is not None:
            pairs = zip(session.kernels, layout.texts_at, strict=True)
            kernels = tuple(dataclasses.replace(kernel, text=sealed.read(*where)) for kernel, where in pairs)
            instance = dataclasses.replace(instance, session=dataclasses.replace(session, kernels=kernels))
        return cls(sealed, layout, instance)

    def fill(self, place: Place, into: memoryview) -> None:
        """Write the runs of a memory or buffer to their places in it.

        Raises:
            Damaged: the file was changed since it was opened.
            OSError: it cannot be read.
        """
        self.sealed.read_into((at, into[offset : offset + size]) for offset, size, at in place.runs)

    def load(self) -> SavedInstance:
        """Return what was written, runs included.

        Raises:
            Damaged: the file was changed since it was opened.
            OSError: it cannot be read.
        """
        memories = [self._load_runs(place) for place in self.layout.memories]
        return with_runs(
            self.instance, memories, {handle: self._load_runs(place) for handle, place in self.layout.buffers.items()}
        )

    def _load_runs(self, place: Place) -> tuple[Run, ...]:
        data = [bytearray(size) for _, size, _ in place.runs]
        self.sealed.read_into((at, memoryview(each)) for (_, _, at), each in zip(place.runs, data, strict=True))
        return tuple(Run(offset, bytes(each)) for (offset, _, _), each in zip(place.runs, data, strict=True))


def with_runs(
    instance: SavedInstance, memories: list[tuple[Run, ...]], buffers: dict[int, tuple[Run, ...]]
) -> SavedInstance:
    """Return an instance with the runs of its memories, by index, and of its buffers, by handle."""
    filled = tuple(dataclasses.replace(m, runs=runs) for m, runs in zip(instance.memories, memories, strict=True))
    session = instance.session
    if session is not None:
        held = tuple(dataclasses.replace(buffer, runs=buffers[buffer.handle]) for buffer in session.buffers)
        session = dataclasses.replace(session, buffers=held)
    return dataclasses.replace(instance, memories=filled, session=session)
