"""Blocks: what content is cut into, so that threads work on it at once, and a reader goes straight to any part.

Every block has 4 MiB but the last of the head and the last of the rest, which are cut each for itself. Blocks that are
all zero, or equal to an earlier one, are not stored; what does not become smaller is stored as it is, and if it has a
page or more, at a page of the file.
"""

from __future__ import annotations

import hashlib
import hmac
import importlib
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from enum import IntEnum
from functools import lru_cache
from typing import Any, Final, NamedTuple

from tensorwasm.artifacts.hashing import blake3
from tensorwasm.artifacts.ring import CipherKey
from tensorwasm.errors import Damaged

BLOCK_BYTES: Final = 4 << 20
PAGE_BYTES: Final = 4096
TAG_BYTES: Final = 16
SALT_BYTES: Final = 32
ENTRY: Final = struct.Struct("<QIIB7x32s32s")
ENTRY_BYTES: Final = ENTRY.size
DIRECTORY_INDEX: Final = (1 << 64) - 1
"""Of the directory, where a block has its number: no two things are encrypted under one nonce."""

_HASHED: Final = struct.Struct("<I32s")
_TOTALS: Final = struct.Struct("<QQ")
_NONCE: Final = struct.Struct("<4xQ")
_FILE_KEY: Final = b"tensor-wasm sealed file\0"


class Codec(IntEnum):
    """How a block is stored."""

    RAW = 0
    ZSTD = 1
    ZEROS = 2


class Block(NamedTuple):
    """An entry of the directory.

    Attributes:
        at_bytes: offset in the file, 0 if nothing is stored.
        stored_bytes: length there, with the tag if it is encrypted.
        raw_bytes: length of the content.
        codec: a `Codec`.
        stored_hash: of what is stored.
        content_hash: of the content.
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


def hash_content(head_bytes: int, content_bytes: int, blocks: Iterable[Block]) -> bytes:
    """Return the content's hash: BLAKE3 of both lengths, and of the length and the hash of each block."""
    listed = b"".join(_HASHED.pack(block.raw_bytes, block.content_hash) for block in blocks)
    return blake3(_TOTALS.pack(head_bytes, content_bytes) + listed)


class Coder:
    """Encodes and decodes the blocks of one file, from any number of threads."""

    __slots__ = ("_aead", "_constant", "_level")

    def __init__(self, constant: bytes, level: int | None, cipher: CipherKey | None, salt: bytes) -> None:
        """Take what the blocks of a file have in common.

        Args:
            constant: what encrypted blocks are bound to: the constant part of the header.
            level: of zstd; None stores content as it is.
            cipher: key to encrypt under, or None.
            salt: of the file's own key.
        """
        self._constant = constant
        self._level = level
        self._aead = None if cipher is None else _aead(cipher, salt)

    def encode(self, index: int, parts: Sequence[memoryview]) -> tuple[Block, bytes | memoryview]:
        """Return the entry of a block, without its place, and what is to be stored of it."""
        raw = parts[0] if len(parts) == 1 else memoryview(b"".join(parts))
        content_hash = blake3(raw)
        if content_hash == hash_zeros(len(raw)):
            return Block(0, 0, len(raw), Codec.ZEROS, hash_zeros(0), content_hash), b""
        codec, stored = self._compress(raw)
        if self._aead is not None:
            stored = self.encrypt(index, stored)
        same = codec is Codec.RAW and self._aead is None
        stored_hash = content_hash if same else blake3(stored)
        return Block(0, len(stored), len(raw), codec, stored_hash, content_hash), stored

    def _compress(self, raw: memoryview) -> tuple[Codec, bytes | memoryview]:
        if self._level is not None:
            packed = _zstd().ZstdCompressor(level=self._level).compress(raw)
            if len(packed) < len(raw):
                return Codec.ZSTD, packed
        return Codec.RAW, raw

    def encrypt(self, index: int, data: bytes | memoryview) -> bytes:
        """Return data encrypted, 16 bytes longer; as it is without a key."""
        if self._aead is None:
            return bytes(data)
        return bytes(self._aead.encrypt(_NONCE.pack(index), data, self._constant))

    def decrypt(self, index: int, data: bytes | memoryview) -> bytes | memoryview:
        """Return what `encrypt` took.

        Raises:
            Damaged: it took something else, or in another file or place.
        """
        if self._aead is None:
            return data
        invalid = importlib.import_module("cryptography.exceptions").InvalidTag
        try:
            return bytes(self._aead.decrypt(_NONCE.pack(index), data, self._constant))
        except invalid:
            raise Damaged("what is encrypted was changed, or belongs to another file") from None

    def open_stored(self, index: int, block: Block, stored: memoryview) -> bytes | memoryview:
        """Return what is stored of a block, decrypted.

        Raises:
            Damaged: it is not what was signed for.
        """
        if blake3(stored) != block.stored_hash:
            raise Damaged("the file was changed while it was read")
        return self.decrypt(index, stored)

    def seal_stored(self, index: int, block: Block, data: bytes | memoryview) -> tuple[Block, bytes | memoryview]:
        """Return the entry of a block, without its place, and what `open_stored` gave of it under this file's key."""
        if self._aead is None or not block.stored_bytes:
            return block, data
        stored = self.encrypt(index, data)
        return block._replace(stored_bytes=len(stored), stored_hash=blake3(stored)), stored

    def decode(self, index: int, block: Block, stored: memoryview, into: memoryview) -> None:
        """Write the content of a block that is stored.

        Args:
            index: its number.
            block: its entry, from a directory that was verified.
            stored: its bytes, where nobody else can change them.
            into: as many bytes as its content has.

        Raises:
            Damaged: they are not the bytes that were signed for.
        """
        data = self.open_stored(index, block, stored)
        if block.codec == Codec.ZSTD:
            _decompress(data, into)
        elif len(data) == len(into):
            into[:] = data
        else:
            raise Damaged("a block is not as long as it says")


def _decompress(data: bytes | memoryview, into: memoryview) -> None:
    """Fill a buffer from one frame, never more than that, and check that it has no more."""
    zstd = _zstd()
    with (
        suppress(zstd.ZstdError),
        zstd.ZstdDecompressor(max_window_size=BLOCK_BYTES).stream_reader(data) as frame,
    ):
        if frame.readinto(into) == len(into) and not frame.read(1):
            return
    raise Damaged("a block does not decompress to what it says")


@lru_cache(maxsize=8)
def hash_zeros(length: int) -> bytes:
    """Return the hash of so many zeros."""
    return blake3(bytes(length))


def _aead(cipher: CipherKey, salt: bytes) -> Any:
    """Return ChaCha20-Poly1305 under a key for this file alone, so that numbers will do for nonces.

    Random nonces of 12 bytes under one key would meet after some 2^48 blocks, and be feared from 2^32 on.

    Source: RFC 8439, 2.8; the key is HMAC-SHA256 of the salt, as in RFC 5869, 2.2.
    """
    key = hmac.digest(cipher.secret, _FILE_KEY + salt, hashlib.sha256)
    return importlib.import_module("cryptography.hazmat.primitives.ciphers.aead").ChaCha20Poly1305(key)


def _zstd() -> Any:
    return importlib.import_module("zstandard")
