"""Blocks: the units of content that threads work on at once, and by which a reader goes straight to any part.

Every block has 4 MiB but the last of the head and the last of the rest, which are cut separately. Blocks that are all
zero, or equal to an earlier one, are not stored; a block that compression does not shorten is stored as it is, and if
it has a page or more, at a page of the file.
"""

from __future__ import annotations

import hashlib
import hmac
import importlib
import os
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from enum import IntEnum
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeVar

from tensorwasm.artifacts.hashing import blake3
from tensorwasm.artifacts.keys import CipherKey
from tensorwasm.errors import Damaged

BLOCK_BYTES: Final = 4 << 20
PAGE_BYTES: Final = 4096
TAG_BYTES: Final = 16
SALT_BYTES: Final = 32
ENTRY: Final = struct.Struct("<QIIB7x32s32s")
ENTRY_BYTES: Final = ENTRY.size
DIRECTORY_INDEX: Final = (1 << 64) - 1
"""Of the directory, where a block has its number: no two things are encrypted under one nonce."""

MAX_THREADS: Final = 16
_AHEAD: Final = 2
"""Results per thread that are ready before they are taken: what a save holds in memory beside what it saves."""

_HASHED: Final = struct.Struct("<I32s")
_NONCE: Final = struct.Struct("<4xQ")

T = TypeVar("T")
R = TypeVar("R")


class Codec(IntEnum):
    """How a block is stored."""

    RAW = 0
    ZSTD = 1
    ZEROS = 2


class BlockEntry(NamedTuple):
    """An entry of the directory.

    Attributes:
        at_bytes: offset in the file, 0 if nothing is stored.
        stored_bytes: length there, with the tag if it is encrypted.
        raw_bytes: length of the content.
    """

    at_bytes: int
    stored_bytes: int
    raw_bytes: int
    codec: int
    stored_hash: bytes
    content_hash: bytes


def cut(parts: Iterable[memoryview]) -> Iterator[list[memoryview]]:
    """Yield the parts of each block, in order: `BLOCK_BYTES`, the last block the rest; no byte is copied."""
    block: list[memoryview] = []
    room = BLOCK_BYTES
    for whole in parts:
        part = whole
        while len(part) >= room:
            yield [*block, part[:room]]
            block, part, room = [], part[room:], BLOCK_BYTES
        if len(part):
            block.append(part)
            room -= len(part)
    if block:
        yield block


def hash_content(head_bytes: int, content_bytes: int, blocks: Iterable[BlockEntry]) -> bytes:
    """Return the content's hash: BLAKE3 of both lengths, and of the length and the hash of each block."""
    listed = b"".join(_HASHED.pack(block.raw_bytes, block.content_hash) for block in blocks)
    return blake3(struct.pack("<QQ", head_bytes, content_bytes) + listed)


class Coder:
    """Encodes and decodes the blocks of one file, from any number of threads.

    `Damaged` says that stored bytes are not those that were signed for.
    """

    __slots__ = ("_aead", "_constant", "_level")

    def __init__(self, constant: bytes, level: int | None, cipher: CipherKey | None, salt: bytes) -> None:
        """Take what the blocks of a file have in common.

        Args:
            constant: the constant part of the header, which encrypted blocks are bound to.
            level: of zstd; None stores content as it is.
            cipher: key to encrypt under, or None.
            salt: of the file's own key.
        """
        self._constant = constant
        self._level = level
        self._aead = None if cipher is None else _aead(cipher, salt)

    def encode(self, index: int, parts: Sequence[memoryview]) -> tuple[BlockEntry, bytes | memoryview]:
        """Return the entry of a block, without its offset, and what is to be stored of it."""
        raw = parts[0] if len(parts) == 1 else memoryview(b"".join(parts))
        content_hash = blake3(raw)
        if content_hash == hash_zeros(len(raw)):
            return BlockEntry(0, 0, len(raw), Codec.ZEROS, hash_zeros(0), content_hash), b""
        codec, packed = self._compress(raw)
        stored = self.encrypt(index, packed)
        stored_hash = content_hash if stored is raw else blake3(stored)
        return BlockEntry(0, len(stored), len(raw), codec, stored_hash, content_hash), stored

    def _compress(self, raw: memoryview) -> tuple[Codec, bytes | memoryview]:
        if self._level is not None:
            packed = _zstd().ZstdCompressor(level=self._level).compress(raw)
            if len(packed) < len(raw):
                return Codec.ZSTD, packed
        return Codec.RAW, raw

    def encrypt(self, index: int, data: bytes | memoryview) -> bytes | memoryview:
        """Return data encrypted, 16 bytes longer; as it is without a key."""
        return data if self._aead is None else bytes(self._aead.encrypt(_NONCE.pack(index), data, self._constant))

    def decrypt(self, index: int, data: bytes | memoryview) -> bytes | memoryview:
        """Return what `encrypt` took, with the same index, in the same file."""
        if self._aead is None:
            return data
        invalid = importlib.import_module("cryptography.exceptions").InvalidTag
        try:
            return bytes(self._aead.decrypt(_NONCE.pack(index), data, self._constant))
        except invalid:
            raise Damaged("what is encrypted was changed, or belongs to another file") from None

    def open_stored(self, index: int, block: BlockEntry, stored: memoryview) -> bytes | memoryview:
        """Return the stored bytes of a block, decrypted."""
        if blake3(stored) != block.stored_hash:
            raise Damaged("the file was changed while it was read")
        return self.decrypt(index, stored)

    def seal_stored(
        self, index: int, block: BlockEntry, data: bytes | memoryview
    ) -> tuple[BlockEntry, bytes | memoryview]:
        """Return the entry of a block, without its offset, and the result of `open_stored` under this file's key."""
        if self._aead is None or not block.stored_bytes:
            return block, data
        stored = self.encrypt(index, data)
        return block._replace(stored_bytes=len(stored), stored_hash=blake3(stored)), stored

    def decode(self, index: int, block: BlockEntry, stored: memoryview, into: memoryview) -> None:
        """Write the content of a stored block, whose bytes are in memory that nothing else can change."""
        data = self.open_stored(index, block, stored)
        if block.codec == Codec.ZSTD:
            _decompress(data, into)
        elif len(data) == len(into):
            into[:] = data
        else:
            raise Damaged("a block is not as long as it says")


def _decompress(data: bytes | memoryview, into: memoryview) -> None:
    """Fill a buffer from one frame, which must have exactly that content; never write more."""
    zstd = _zstd()
    with suppress(zstd.ZstdError), zstd.ZstdDecompressor(max_window_size=BLOCK_BYTES).stream_reader(data) as frame:
        if frame.readinto(into) == len(into) and not frame.read(1):
            return
    raise Damaged("a block does not decompress to what it says")


@lru_cache(maxsize=8)
def hash_zeros(length: int) -> bytes:
    """Return the hash of that many zeros."""
    return blake3(bytes(length))


def _aead(cipher: CipherKey, salt: bytes) -> Any:
    """Return ChaCha20-Poly1305 under a key for this file alone, so that block numbers can be nonces.

    Random nonces of 12 bytes under one key would collide after some 2^48 blocks, with a relevant risk from 2^32 on.

    Source: RFC 8439, 2.8; the key is HMAC-SHA256 of the salt, as in RFC 5869, 2.2.
    """
    key = hmac.digest(cipher.raw, b"tensor-wasm sealed file\0" + salt, hashlib.sha256)
    return importlib.import_module("cryptography.hazmat.primitives.ciphers.aead").ChaCha20Poly1305(key)


def _zstd() -> Any:
    return importlib.import_module("zstandard")


def count_threads(asked: int | None, content_bytes: int) -> int:
    """Return how many threads to use: as asked, or one for each processor; at most `MAX_THREADS`.

    Content of one block is not worth a thread.
    """
    if content_bytes <= BLOCK_BYTES:
        return 1
    if asked is None:
        asked = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(asked, MAX_THREADS))


def map_in_order(work: Callable[[T], R], items: Sequence[T], threads: int) -> Iterator[R]:
    """Yield the results of work on each item, in order; threads compute them a little ahead.

    Threads help because zstd and BLAKE3 release the interpreter's lock. When the iteration is abandoned, or the work
    raises, work in progress is awaited and no other is started.
    """
    if threads == 1 or len(items) < 2:
        yield from map(work, items)
        return
    with ThreadPoolExecutor(min(threads, len(items)), thread_name_prefix="seal") as pool:
        pending: deque[Future[R]] = deque()
        try:
            for item in items:
                pending.append(pool.submit(work, item))
                if len(pending) > _AHEAD * threads:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()
