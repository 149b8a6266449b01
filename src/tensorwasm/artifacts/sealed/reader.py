"""Reads sealed files: the whole file is verified first, and every block again as it is read."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Any, Final, Self

from tensorwasm.artifacts import hashing
from tensorwasm.artifacts.ring import CipherKey, KeyRing
from tensorwasm.artifacts.sealed.blocks import (
    BLOCK_BYTES,
    DIRECTORY_INDEX,
    ENTRY,
    ENTRY_BYTES,
    TAG_BYTES,
    Block,
    Codec,
    Coder,
    hash_content,
)
from tensorwasm.artifacts.sealed.header import (
    HEADER_BYTES,
    MAX_FILE_BYTES,
    Cipher,
    Compression,
    Content,
    Header,
    read_header,
)
from tensorwasm.artifacts.sealed.source import Bytes, Source, open_source
from tensorwasm.artifacts.sealed.threads import count_threads, map_in_order
from tensorwasm.errors import Damaged, NotSealed, TooLarge, UnknownKey, WrongContent, WrongModule

_CHUNK_BYTES: Final = 8 << 20


class SealedFile:
    """A file whose signature and hash are right.

    What is decompressed is hashed again first, so whoever changes the file after it was verified achieves an error.

    Attributes:
        header: what it says of itself.
        content_hash: of its content.
        file_bytes: its length.
    """

    __slots__ = ("_blocks", "_bytes", "_coder", "_starts", "_threads", "content_hash", "file_bytes", "header")

    def __init__(self, data: Bytes, header: Header, coder: Coder, blocks: list[Block], threads: int) -> None:
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
        """Open a file and verify all of it; nothing of it is decrypted, decompressed or parsed before.

        Reads and hashes the whole file, but only if its signature is right and it has the length that was signed.

        Args:
            source: the file's path, or its bytes.
            ring: keys whose signatures count, and keys to decrypt with.
            content: what it must be.
            module_hash: of the module that it must belong to; None takes any.
            allow_unsigned: whether a file without a signature will do.
            threads: for hashing and decompressing; None takes one for each processor.

        Raises:
            SealRefused: one of its kinds says why.
            TooLarge: the file says, or is, more than a writer makes.
            OSError: it cannot be read.
        """
        data = open_source(source)
        try:
            header = _read_header(data, ring, allow_unsigned=allow_unsigned)
            _require_use(header, content, module_hash)
            used = count_threads(threads, header.content_bytes)
            _verify_body(data, header, used)
            coder = Coder(header.constant(), None, _find_cipher(header, ring), header.salt)
            return cls(data, header, coder, _read_directory(data, header, coder), used)
        except BaseException:
            data.close()
            raise

    def read(self, at_bytes: int, length: int) -> bytes:
        """Return a part of the content; the caller has made sure that it is no longer than it likes.

        Raises:
            Damaged: the file was changed since it was opened.
            OSError: it cannot be read.
        """
        into = bytearray(length)
        self.read_into([(at_bytes, memoryview(into))])
        return bytes(into)

    def read_into(self, extents: Iterable[tuple[int, memoryview]]) -> None:
        """Read parts of the content to where they belong; threads decompress whole blocks in place.

        Args:
            extents: offset in the content, and the writable bytes to fill from there; apart from each other.

        Raises:
            Damaged: the file was changed since it was opened. Some extents may be filled, rightly or not.
            OSError: it cannot be read; likewise.
            IndexError: an extent goes beyond the content.
        """
        jobs: dict[int, list[tuple[int, memoryview]]] = {}
        for at_bytes, into in extents:
            if at_bytes < 0 or at_bytes + len(into) > self.header.content_bytes:
                raise IndexError("beyond the content")
            self._plan(at_bytes, into, jobs)
        for _ in map_in_order(self._work, list(jobs.items()), self._threads):
            pass

    def load_stored(self) -> Iterator[tuple[Block, bytes | memoryview]]:
        """Yield every block in order, and what is stored of it, decrypted: compressed still, nothing of zeros.

        Raises:
            Damaged: the file was changed since it was opened.
            OSError: it cannot be read.
        """
        for index, block in enumerate(self._blocks):
            stored = memoryview(bytearray(block.stored_bytes))
            self._bytes.read_into(block.at_bytes, stored)
            yield block, self._coder.open_stored(index, block, stored) if block.stored_bytes else stored

    def check_content(self) -> None:
        """Decompress every block and compare its content with the hash that was signed.

        Raises:
            Damaged: a block has another content, which only a faulty writer, or a change since `open`, can cause.
            OSError: it cannot be read.
        """
        for _ in map_in_order(self._check, range(len(self._blocks)), self._threads):
            pass

    def close(self) -> None:
        """Close the file; doing so twice is once."""
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
            stored = memoryview(bytearray(block.stored_bytes))
            self._bytes.read_into(block.at_bytes, stored)
            self._coder.decode(index, block, stored, into)

    def _check(self, index: int) -> None:
        block = self._blocks[index]
        scratch = memoryview(bytearray(block.raw_bytes))
        self._fill(index, scratch)
        if hashing.blake3(scratch) != block.content_hash:
            raise Damaged("a block has another content than was signed for")


def _read_header(data: Bytes, ring: KeyRing, *, allow_unsigned: bool) -> Header:
    """Return the header, once its signature is right and the file has the length that it says."""
    if data.size_bytes > MAX_FILE_BYTES:
        raise TooLarge(data.size_bytes, MAX_FILE_BYTES)
    first = bytearray(min(HEADER_BYTES, data.size_bytes))
    data.read_into(0, memoryview(first))
    header = read_header(bytes(first), ring, allow_unsigned=allow_unsigned)
    size_bytes = HEADER_BYTES + header.body_bytes
    if data.size_bytes != size_bytes:
        raise Damaged(f"the file has {data.size_bytes} bytes, not the {size_bytes} that were signed")
    return header


def _require_use(header: Header, content: Content, module_hash: bytes | None) -> None:
    if header.content is not content:
        raise WrongContent(f"the file holds {header.content.name.lower()}, not {content.name.lower()}")
    if module_hash is not None and header.module_hash != module_hash:
        raise WrongModule(f"the file belongs to the module {header.module_hash.hex()}, not {module_hash.hex()}")


def _verify_body(data: Bytes, header: Header, threads: int) -> None:
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


def _find_cipher(header: Header, ring: KeyRing) -> CipherKey | None:
    if not header.cipher:
        return None
    if header.cipher_id not in ring.ciphers:
        raise UnknownKey(f"the file is encrypted under the key {header.cipher_id}, which is not among those there are")
    return ring.ciphers[header.cipher_id]


def _read_directory(data: Bytes, header: Header, coder: Coder) -> list[Block]:
    """Return the blocks; whoever signed nonsense is refused, whatever it would lead to."""
    stored = memoryview(bytearray(header.directory_bytes))
    end = HEADER_BYTES + header.body_bytes - header.directory_bytes
    data.read_into(end, stored)
    entries = coder.decrypt(DIRECTORY_INDEX, stored)
    if len(entries) % ENTRY_BYTES:
        raise NotSealed("the directory has no whole number of entries")
    blocks = [Block(*entry) for entry in ENTRY.iter_unpack(entries)]
    starts = list(accumulate((block.raw_bytes for block in blocks), initial=0))
    if starts[-1] != header.content_bytes or header.head_bytes not in starts:
        raise NotSealed("the blocks are not as long as the content")
    if not all(_makes_sense(block, header, end) for block in blocks):
        raise NotSealed("a block contradicts itself")
    if not header.cipher and hash_content(header.head_bytes, header.content_bytes, blocks) != header.content_hash:
        raise NotSealed("the content's hash is not that of its blocks")
    return blocks


def _makes_sense(block: Block, header: Header, end: int) -> bool:
    """Return whether a block may be as long as it says and lies where blocks lie."""
    if not 0 < block.raw_bytes <= BLOCK_BYTES:
        return False
    if block.codec == Codec.ZEROS:
        return block.at_bytes == block.stored_bytes == 0
    extra = TAG_BYTES if header.cipher is Cipher.CHACHA20_POLY1305 else 0
    size_bytes = block.stored_bytes - extra
    lengths: dict[Any, bool] = {
        Codec.RAW: size_bytes == block.raw_bytes,
        Codec.ZSTD: 0 < size_bytes < block.raw_bytes and header.compression is Compression.ZSTD,
    }
    inside = HEADER_BYTES <= block.at_bytes <= end - block.stored_bytes
    return inside and lengths.get(block.codec, False)
