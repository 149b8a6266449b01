"""The first 256 bytes of a sealed file, and the caps that writer and reader share."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from tensorwasm.artifacts.hashing import HASH_BYTES, blake3
from tensorwasm.artifacts.keys import ID_BYTES, SIGNATURE_BYTES, Algorithm, KeyRing, SigningKey
from tensorwasm.artifacts.sealed.blocks import BLOCK_BYTES, ENTRY_BYTES, PAGE_BYTES, TAG_BYTES
from tensorwasm.errors import NotSealed, SignatureInvalid, TooLarge, UnknownKey, UnknownVersion, Unsigned, WrongKeyKind

MAGIC: Final = b"\x89TWS\r\n\x1a\n"
"""As in PNG: a byte above 127, both kinds of line end and an end of file reveal a transfer as text."""

VERSION: Final = 1
HEADER_BYTES: Final = 256
SIGNED_BYTES: Final = 192
CONSTANT_BYTES: Final = 96
"""What is known before the first byte of the content: encrypted parts are bound to it."""

MAX_CONTENT_BYTES: Final = 256 << 30
"""More than a GPU and its guest's memories have together."""

MAX_HEAD_BYTES: Final = 128 << 20
MAX_BLOCKS: Final = MAX_CONTENT_BYTES // BLOCK_BYTES + 2
"""Head and rest are cut into blocks separately, so there are at most two that are not full."""

MAX_DIRECTORY_BYTES: Final = MAX_BLOCKS * ENTRY_BYTES + TAG_BYTES
MAX_FILE_BYTES: Final = HEADER_BYTES + MAX_CONTENT_BYTES + MAX_BLOCKS * (TAG_BYTES + PAGE_BYTES) + MAX_DIRECTORY_BYTES
"""Length of a file with `MAX_CONTENT_BYTES` that cannot be compressed."""

_CONSTANT: Final = struct.Struct("<8sHHBBBx8s8s32s32s")
_SIZES: Final = struct.Struct("<QQQQ32s32s")
_NO_HASH: Final = bytes(HASH_BYTES)


class Content(IntEnum):
    """What a sealed file holds."""

    SNAPSHOT = 1


class Compression(IntEnum):
    """How its blocks are compressed."""

    NONE = 0
    ZSTD = 1


class Cipher(IntEnum):
    """How its blocks and its directory are encrypted."""

    NONE = 0
    CHACHA20_POLY1305 = 1


@dataclass(frozen=True, slots=True)
class Header:
    """What the header says.

    Attributes:
        algorithm: of its signature, None without one.
        key_id: of the key that signed, empty without one.
        cipher_id: of the key that it is encrypted under, empty if it is not.
        module_hash: of the module it belongs to, 32 bytes.
        salt: 32 random bytes that its own key is made from; zeros if it is not encrypted.
        head_bytes: length of the first, structured part of the content, which has blocks of its own.
        directory_bytes: length of the directory as stored, the last part of the body.
        body_bytes: length of the file without the header.
        content_hash: of the uncompressed content; zeros if it is encrypted.
    """

    content: Content
    compression: Compression
    cipher: Cipher
    algorithm: Algorithm | None
    key_id: str
    cipher_id: str
    module_hash: bytes
    salt: bytes
    content_bytes: int = 0
    head_bytes: int = 0
    directory_bytes: int = 0
    body_bytes: int = 0
    body_hash: bytes = _NO_HASH
    content_hash: bytes = _NO_HASH

    def constant(self) -> bytes:
        """Return the first 96 bytes, which do not depend on the content."""
        return _CONSTANT.pack(
            MAGIC,
            VERSION,
            self.content,
            self.compression,
            self.cipher,
            self.algorithm or 0,
            bytes.fromhex(self.key_id) or bytes(ID_BYTES),
            bytes.fromhex(self.cipher_id) or bytes(ID_BYTES),
            self.module_hash,
            self.salt,
        )

    def sign(self, key: SigningKey | None) -> bytes:
        """Return the 256 bytes; without a key they have a hash that reveals damage and proves nothing."""
        sizes = (self.content_bytes, self.head_bytes, self.directory_bytes, self.body_bytes)
        message = self.constant() + _SIZES.pack(*sizes, self.body_hash, self.content_hash)
        return (message + (blake3(message) if key is None else key.sign(message))).ljust(HEADER_BYTES, b"\0")


def require_sizes(content_bytes: int, head_bytes: int, body_bytes: int = 0, directory_bytes: int = 0) -> None:
    """Check the caps of writer and reader; a writer gives two sizes, from which the others follow."""
    for size, cap in (
        (content_bytes, MAX_CONTENT_BYTES),
        (head_bytes, MAX_HEAD_BYTES),
        (body_bytes, MAX_FILE_BYTES - HEADER_BYTES),
        (directory_bytes, MAX_DIRECTORY_BYTES),
    ):
        if size > cap:
            raise TooLarge(size, cap)


def read_header(data: bytes, ring: KeyRing, *, allow_unsigned: bool = False) -> Header:
    """Return the header that a file's first 256 bytes, or all if it has fewer, are, after checking its signature.

    Before that check only the magic, the version and the signing key's id are used.

    Raises:
        NotSealed: no sealed file, or one that contradicts itself.
        UnknownVersion: of another version.
        Unsigned: it has no signature, and ``allow_unsigned`` is not set.
        UnknownKey: signed with a key that is not on the ring.
        WrongKeyKind: the key of that id is of another kind.
        SignatureInvalid: the signature is not that key's.
        TooLarge: it has more than a writer makes.
    """
    if len(data) < HEADER_BYTES or data[: len(MAGIC)] != MAGIC:
        raise NotSealed("this is no sealed file, or the beginning of one")
    fields = _CONSTANT.unpack_from(data)
    if fields[1] != VERSION:
        raise UnknownVersion(f"the file is of version {fields[1]}; this release reads version {VERSION}")
    _verify(data, fields[5], fields[6].hex(), ring, allow_unsigned=allow_unsigned)
    header = _decode(data, fields)
    require_sizes(header.content_bytes, header.head_bytes, header.body_bytes, header.directory_bytes)
    return header


def _verify(data: bytes, algorithm: int, key_id: str, ring: KeyRing, *, allow_unsigned: bool) -> None:
    """Check the signature, or without one the header's hash."""
    message, signature = data[:SIGNED_BYTES], data[SIGNED_BYTES:HEADER_BYTES]
    if not algorithm:
        if not allow_unsigned:
            raise Unsigned("the file has no signature")
        if signature != blake3(message).ljust(len(signature), b"\0"):
            raise SignatureInvalid("the header was changed")
        return
    key = ring.verifiers.get(key_id)
    if key is None:
        raise UnknownKey(f"the file is signed with the key {key_id}, which is not among those that are trusted")
    if key.algorithm != algorithm:
        raise WrongKeyKind(f"the file says that its signature is of kind {algorithm}, the key {key_id} is of another")
    length = SIGNATURE_BYTES[key.algorithm]
    if any(signature[length:]) or not key.verify(message, signature[:length]):
        raise SignatureInvalid(f"the signature is not that of the key {key_id}, or the header was changed")


def _decode(data: bytes, fields: tuple[Any, ...]) -> Header:
    """Return the fields of a verified header, if they have a meaning and do not contradict each other."""
    _, _, content, compression, cipher, algorithm, key_id, cipher_id, module_hash, salt = fields
    try:
        header = Header(
            Content(content),
            Compression(compression),
            Cipher(cipher),
            Algorithm(algorithm) if algorithm else None,
            key_id.hex() if algorithm else "",
            cipher_id.hex() if cipher else "",
            module_hash,
            salt,
            *_SIZES.unpack_from(data, CONSTANT_BYTES),
        )
    except ValueError as error:
        raise NotSealed(f"the header has a value that this release does not know: {error}") from None
    unused = header.content_hash if header.cipher else header.salt
    if header.constant() != data[:CONSTANT_BYTES] or unused != _NO_HASH:
        raise NotSealed("an unused field of the header is not zero")
    if header.head_bytes > header.content_bytes or header.directory_bytes > header.body_bytes:
        raise NotSealed("the sizes in the header contradict each other")
    return header
