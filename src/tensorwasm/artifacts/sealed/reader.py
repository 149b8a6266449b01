"""Reads sealed files: the whole file is verified first, and every block again as it is read."""

from __future__ import annotations

import os
import stat
import threading
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, Protocol, Self, TypeAlias

from tensorwasm.artifacts import hashing
from tensorwasm.artifacts.keys import KeyRing
from tensorwasm.artifacts.sealed.blocks import (
    BLOCK_BYTES,
    DIRECTORY_INDEX,
    ENTRY,
    ENTRY_BYTES,
    TAG_BYTES,
    BlockEntry,
    Codec,
    Coder,
    count_threads,
    hash_content,
    map_in_order,
)
from tensorwasm.artifacts.sealed.header import HEADER_BYTES, MAX_FILE_BYTES, Compression, Content, Header, read_header
from tensorwasm.errors import Damaged, NotSealed, TooLarge, UnknownKey, WrongContent, WrongModule

Source: TypeAlias = Path | memoryview
"""A path, or all of a file's bytes. Bytes that change after they were verified are detected, as in a file."""

_CHUNK_BYTES: Final = 8 << 20
_FLAGS: Final = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


class _Bytes(Protocol):
    """Bytes that any thread reads at any offset."""

    size_bytes: int

    def read_some(self, at_bytes: int, into: memoryview) -> int:
        """Fill a buffer, or its beginning; return how many bytes were read, 0 at the end."""

    def close(self) -> None:
        """Release them; a second call does nothing."""

    def read_into(self, at_bytes: int, into: memoryview) -> None:
        """Fill a buffer; Damaged if the bytes end before that."""
        while len(into):
            count = self.read_some(at_bytes, into)
            if not count:
                raise Damaged("the file was cut while it was read")
            at_bytes, into = at_bytes + count, into[count:]

    def read(self, at_bytes: int, length: int) -> memoryview:
        """Return a copy of some of them."""
        into = memoryview(bytearray(length))
        self.read_into(at_bytes, into)
        return into


class _FileBytes(_Bytes):
    """A file. It is not mapped: truncating a mapped file kills its reader."""

    def __init__(self, path: Path) -> None:
        handle = os.open(path, _FLAGS)
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            os.close(handle)
            raise NotSealed("this is no file")
        self._file = open(handle, "rb", buffering=0)  # noqa: PTH123, SIM115 - of a descriptor, closed by `close`
        self._lock = threading.Lock()
        self.size_bytes = found.st_size

    def read_some(self, at_bytes: int, into: memoryview) -> int:
        if hasattr(os, "preadv"):
            return os.preadv(self._file.fileno(), [into], at_bytes)
        with self._lock:
            self._file.seek(at_bytes)
            return self._file.readinto(into) or 0

    def close(self) -> None:
        self._file.close()


class _ViewBytes(_Bytes):
    """Memory, used in place."""

    def __init__(self, view: memoryview) -> None:
        self._view = view.cast("B")
        self.size_bytes = view.nbytes

    def read_some(self, at_bytes: int, into: memoryview) -> int:
        part = self._view[at_bytes : at_bytes + len(into)]
        into[: len(part)] = part
        return len(part)

    def close(self) -> None:
        self._view = memoryview(b"")


class SealedFile:
    """A file whose signature and hash were verified.

    Content is hashed again before it is decompressed: a change of the file after its verification raises Damaged.
    """

    __slots__ = ("_blocks", "_bytes", "_coder", "_starts", "_threads", "content_hash", "file_bytes", "header")

    def __init__(self, data: _Bytes, header: Header, coder: Coder, blocks: list[BlockEntry], threads: int) -> None:
        """Take what `open` has verified."""
        self._bytes = data
        self._coder = coder
        self._blocks = blocks
        self._starts = [0, *accumulate(block.raw_bytes for block in blocks)]
        self._threads = threads
        self.header = header
        self.content_hash = hash_content(header.head_bytes, header.content_bytes, blocks)
        self.file_bytes = data.size_bytes

    @classmethod
    def open(
        cls,
        source: Source,
        ring: KeyRing,
        *,
        content: Content,
        module_hash: bytes | None = None,
        allow_unsigned: bool = False,
        threads: int | None = None,
    ) -> Self:
        """Open a file and verify all of it before anything is decrypted, decompressed or parsed.

        Reads and hashes the whole file, but only if its signature is right and it has the length that was signed.

        Args:
            source: the file's path, or its bytes.
            ring: trusted keys, and keys to decrypt with.
            content: what it must hold.
            module_hash: of the module that it must belong to; None accepts any.
            allow_unsigned: whether a file without a signature is accepted.
            threads: for hashing and decompressing; None uses one for each processor.

        Raises:
            SealRefused: one of its kinds says why.
            TooLarge: the file says, or is, more than a writer makes.
            OSError: it cannot be read.
        """
        data: _Bytes = _ViewBytes(source) if isinstance(source, memoryview) else _FileBytes(source)
        try:
            header = _read_header(data, ring, content, module_hash, allow_unsigned=allow_unsigned)
            used = count_threads(threads, header.content_bytes)
            _verify_body(data, header, used)
            coder = _make_coder(header, ring)
            return cls(data, header, coder, _read_directory(data, header, coder), used)
        except BaseException:
            data.close()
            raise

    def read(self, at_bytes: int, length: int) -> bytes:
        """Return a part of the content; the caller bounds its length."""
        into = bytearray(length)
        self.read_into([(at_bytes, memoryview(into))])
        return bytes(into)

    def read_into(self, extents: Iterable[tuple[int, memoryview]]) -> None:
        """Read parts of the content, each an offset and the writable bytes to fill, which must not overlap.

        Threads decompress whole blocks in place. IndexError if a part goes beyond the content; after any other error
        some may be filled, rightly or not.
        """
        jobs: dict[int, list[tuple[int, memoryview]]] = {}
        for at_bytes, into in extents:
            if at_bytes < 0 or at_bytes + len(into) > self.header.content_bytes:
                raise IndexError("beyond the content")
            self._plan(at_bytes, into, jobs)
        for _ in map_in_order(self._work, list(jobs.items()), self._threads):
            pass

    def load_stored(self) -> Iterator[tuple[BlockEntry, bytes | memoryview]]:
        """Yield every block in order with its stored bytes, decrypted but still compressed; nothing for zeros."""
        for index, block in enumerate(self._blocks):
            stored = self._bytes.read(block.at_bytes, block.stored_bytes)
            yield block, self._coder.open_stored(index, block, stored) if block.stored_bytes else stored

    def check_content(self) -> None:
        """Decompress every block and compare its content with the hash that was signed.

        It is another only if the writer was faulty, or the file was changed since `open`.
        """
        for _ in map_in_order(self._check, range(len(self._blocks)), self._threads):
            pass

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._bytes.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _plan(self, at_bytes: int, into: memoryview, jobs: dict[int, list[tuple[int, memoryview]]]) -> None:
        """Note for each block of an extent which of its bytes go where."""
        index = bisect_right(self._starts, at_bytes) - 1
        while len(into):
            skip = at_bytes - self._starts[index]
            count = min(self._blocks[index].raw_bytes - skip, len(into))
            jobs.setdefault(index, []).append((skip, into[:count]))
            at_bytes, into, index = at_bytes + count, into[count:], index + 1

    def _work(self, job: tuple[int, list[tuple[int, memoryview]]]) -> None:
        index, targets = job
        size_bytes = self._blocks[index].raw_bytes
        if len(targets[0][1]) == size_bytes:
            self._fill(index, targets[0][1])
            return
        scratch = memoryview(bytearray(size_bytes))
        self._fill(index, scratch)
        for skip, into in targets:
            into[:] = scratch[skip : skip + len(into)]

    def _fill(self, index: int, into: memoryview) -> None:
        """Write the content of a block; what is stored as it is goes there in one read."""
        block = self._blocks[index]
        if block.codec == Codec.ZEROS:
            into[:] = bytes(len(into))
        elif block.codec == Codec.RAW and not self.header.cipher:
            self._bytes.read_into(block.at_bytes, into)
            if hashing.blake3(into) != block.stored_hash:
                raise Damaged("the file was changed while it was read")
        else:
            self._coder.decode(index, block, self._bytes.read(block.at_bytes, block.stored_bytes), into)

    def _check(self, index: int) -> None:
        block = self._blocks[index]
        scratch = memoryview(bytearray(block.raw_bytes))
        self._fill(index, scratch)
        if hashing.blake3(scratch) != block.content_hash:
            raise Damaged("a block has another content than was signed for")


def _read_header(
    data: _Bytes, ring: KeyRing, content: Content, module_hash: bytes | None, *, allow_unsigned: bool
) -> Header:
    """Return the header if its signature, the file's length, the content and the module are right."""
    if data.size_bytes > MAX_FILE_BYTES:
        raise TooLarge(data.size_bytes, MAX_FILE_BYTES)
    header = read_header(bytes(data.read(0, min(HEADER_BYTES, data.size_bytes))), ring, allow_unsigned=allow_unsigned)
    size_bytes = HEADER_BYTES + header.body_bytes
    if data.size_bytes != size_bytes:
        raise Damaged(f"the file has {data.size_bytes} bytes, not the {size_bytes} that were signed")
    if header.content is not content:
        raise WrongContent(f"the file holds {header.content.name.lower()}, not {content.name.lower()}")
    if module_hash is not None and header.module_hash != module_hash:
        raise WrongModule(f"the file belongs to the module {header.module_hash.hex()}, not {module_hash.hex()}")
    return header


def _verify_body(data: _Bytes, header: Header, threads: int) -> None:
    """Hash all that follows the header."""
    hasher = hashing.hasher(threads=threads)
    chunk = memoryview(bytearray(min(_CHUNK_BYTES, header.body_bytes)))
    end = HEADER_BYTES + header.body_bytes
    for at_bytes in range(HEADER_BYTES, end, _CHUNK_BYTES):
        part = chunk[: end - at_bytes]
        data.read_into(at_bytes, part)
        hasher.update(part)
    if hasher.digest() != header.body_hash:
        raise Damaged("the file was changed after it had been signed")


def _make_coder(header: Header, ring: KeyRing) -> Coder:
    cipher = ring.ciphers.get(header.cipher_id)
    if header.cipher and cipher is None:
        raise UnknownKey(f"the file is encrypted under the key {header.cipher_id}, which is not among those there are")
    return Coder(header.constant(), None, cipher, header.salt)


def _read_directory(data: _Bytes, header: Header, coder: Coder) -> list[BlockEntry]:
    """Return the blocks; a directory that contradicts itself or the header is refused, although it was signed."""
    end = HEADER_BYTES + header.body_bytes - header.directory_bytes
    entries = coder.decrypt(DIRECTORY_INDEX, data.read(end, header.directory_bytes))
    if len(entries) % ENTRY_BYTES:
        raise NotSealed("the directory has no whole number of entries")
    blocks = [BlockEntry(*entry) for entry in ENTRY.iter_unpack(entries)]
    starts = list(accumulate((block.raw_bytes for block in blocks), initial=0))
    if starts[-1] != header.content_bytes or header.head_bytes not in starts:
        raise NotSealed("the blocks are not as long as the content")
    if not all(_is_consistent(block, header, end) for block in blocks):
        raise NotSealed("a block contradicts itself")
    if not header.cipher and hash_content(header.head_bytes, header.content_bytes, blocks) != header.content_hash:
        raise NotSealed("the content's hash is not that of its blocks")
    return blocks


def _is_consistent(block: BlockEntry, header: Header, end: int) -> bool:
    """Whether a block's lengths fit its codec and it lies where blocks lie."""
    if not 0 < block.raw_bytes <= BLOCK_BYTES:
        return False
    if block.codec == Codec.ZEROS:
        return block.at_bytes == block.stored_bytes == 0
    size_bytes = block.stored_bytes - (TAG_BYTES if header.cipher else 0)
    lengths: dict[Any, bool] = {
        Codec.RAW: size_bytes == block.raw_bytes,
        Codec.ZSTD: 0 < size_bytes < block.raw_bytes and header.compression is Compression.ZSTD,
    }
    return HEADER_BYTES <= block.at_bytes <= end - block.stored_bytes and lengths.get(block.codec, False)
