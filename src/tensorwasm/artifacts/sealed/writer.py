"""Writes sealed files, and signs and encrypts existing ones again under other keys."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from tensorwasm.artifacts import hashing, private_files
from tensorwasm.artifacts.keys import CipherKey, KeyRing, SigningKey
from tensorwasm.artifacts.sealed.blocks import (
    DIRECTORY_INDEX,
    ENTRY,
    PAGE_BYTES,
    SALT_BYTES,
    BlockEntry,
    Codec,
    Coder,
    count_threads,
    cut,
    hash_content,
    map_in_order,
)
from tensorwasm.artifacts.sealed.header import HEADER_BYTES, Cipher, Compression, Content, Header, require_sizes
from tensorwasm.artifacts.sealed.reader import SealedFile, Source
from tensorwasm.errors import InvalidArgs

_MAX_LEVEL: Final = 22


@dataclass(frozen=True, slots=True)
class Sealing:
    """How a file is sealed.

    Attributes:
        level: of zstd, 1 to 22, InvalidArgs otherwise; None does not compress.
        encrypted: None encrypts if the ring has a key for it.
        signed: False makes a file that only readers that allow unsigned files accept.
        threads: None uses one for each processor.
    """

    level: int | None = 3
    encrypted: bool | None = None
    signed: bool = True
    threads: int | None = None

    def __post_init__(self) -> None:
        if self.level is not None and not 1 <= self.level <= _MAX_LEVEL:
            raise InvalidArgs(f"a level of compression is 1 to {_MAX_LEVEL}, not {self.level}")


DEFAULT: Final = Sealing()


@dataclass(frozen=True, slots=True)
class SealedInfo:
    """What a file was written as.

    Attributes:
        content_hash: independent of compression, signature and encryption.
        key_id: of the key that signed it, empty without one.
    """

    content_hash: bytes
    content_bytes: int
    file_bytes: int
    key_id: str


def write_sealed(
    to: Path | BinaryIO,
    head: bytes,
    rest: Iterable[bytes | memoryview],
    ring: KeyRing,
    sealing: Sealing = DEFAULT,
    *,
    content: Content,
    module_hash: bytes,
) -> SealedInfo:
    """Write a sealed file, to a path as `private_files.replace_file` does, or to a new file that is open.

    The content is the head and the rest, which must not change meanwhile. The ring's signer signs, its first cipher
    encrypts.

    Raises:
        SigningNotConfigured: the ring has no key for what is asked.
        TooLarge: there is more than a reader accepts.
        OSError: it cannot be written.
    """
    parts = [memoryview(part).cast("B") for part in rest]
    content_bytes = len(head) + sum(map(len, parts))
    require_sizes(content_bytes, len(head))
    encrypted = bool(ring.ciphers) if sealing.encrypted is None else sealing.encrypted
    signer = ring.require_signer() if sealing.signed else None
    cipher = ring.require_cipher() if encrypted else None
    compression = Compression.NONE if sealing.level is None else Compression.ZSTD
    plain = Header(content, compression, Cipher.NONE, None, "", "", module_hash, b"", content_bytes, len(head))
    header = _with_keys(plain, signer, cipher)
    coder = Coder(header.constant(), sealing.level, cipher, header.salt)
    blocks = list(enumerate([*cut([memoryview(head)]), *cut(parts)]))
    threads = count_threads(sealing.threads, content_bytes)
    with private_files.replace_file(to) if isinstance(to, Path) else nullcontext(to) as file:
        body = BodyWriter(file, coder, aligned=not encrypted)
        for block, stored in map_in_order(lambda item: coder.encode(*item), blocks, threads):
            body.add(block, stored)
        return body.finish(header, signer)


def renew_sealed(source: Source, file: BinaryIO, ring: KeyRing, *, content: Content) -> SealedInfo | None:
    """Write a file again: signed by the ring's signer and, if it was encrypted, encrypted under its first cipher.

    Nothing is decompressed; content and content hash stay the same. All of the file is verified first, under the keys
    of the ring. Returns None, and writes nothing, if the file is under these keys already.

    Raises:
        SealRefused: one of its kinds says why.
        SigningNotConfigured: the ring has no key that signs.
        TooLarge: the file says, or is, more than a writer makes.
        OSError: a file cannot be read or written.
    """
    signer = ring.require_signer()
    with SealedFile.open(source, ring, content=content) as sealed:
        old = sealed.header
        cipher = ring.require_cipher() if old.cipher else None
        if (old.key_id, old.cipher_id) == (signer.id, cipher.id if cipher else ""):
            return None
        header = _with_keys(old, signer, cipher)
        coder = Coder(header.constant(), None, cipher, header.salt)
        body = BodyWriter(file, coder, aligned=cipher is None)
        for index, (block, data) in enumerate(sealed.load_stored()):
            body.add(*coder.seal_stored(index, block, data))
        return body.finish(header, signer)


def _with_keys(header: Header, signer: SigningKey | None, cipher: CipherKey | None) -> Header:
    """Return a header that names the keys of a file, with a new salt if it is encrypted."""
    return dataclasses.replace(
        header,
        cipher=Cipher.CHACHA20_POLY1305 if cipher else Cipher.NONE,
        algorithm=signer.algorithm if signer else None,
        key_id=signer.id if signer else "",
        cipher_id=cipher.id if cipher else "",
        salt=secrets.token_bytes(SALT_BYTES) if cipher else bytes(SALT_BYTES),
    )


class BodyWriter:
    """Writes what follows the header, and the header at the end."""

    def __init__(self, file: BinaryIO, coder: Coder, *, aligned: bool) -> None:
        self._file = file
        self._coder = coder
        self._aligned = aligned
        self._hasher: Any = hashing.hasher()
        self._blocks: list[BlockEntry] = []
        self._known: dict[tuple[bytes, int], BlockEntry] = {}
        self._at_bytes = HEADER_BYTES
        file.seek(HEADER_BYTES)

    def add(self, block: BlockEntry, stored: bytes | memoryview) -> None:
        """Store a block, unless an equal one is stored already; an encrypted file must not reveal which are equal."""
        if block.codec == Codec.ZEROS:
            self._blocks.append(block)
            return
        same = self._known.get((block.content_hash, block.raw_bytes)) if self._aligned else None
        if same is None:
            if block.codec == Codec.RAW and self._aligned and len(stored) >= PAGE_BYTES:
                self._write(bytes(-self._at_bytes % PAGE_BYTES))
            same = block._replace(at_bytes=self._at_bytes)
            self._known[block.content_hash, block.raw_bytes] = same
            self._write(stored)
        self._blocks.append(same)

    def _write(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        self._hasher.update(data)
        self._at_bytes += len(data)

    def finish(self, header: Header, signer: SigningKey | None) -> SealedInfo:
        """Write the directory and the header; the file is complete then."""
        directory = self._coder.encrypt(DIRECTORY_INDEX, b"".join(ENTRY.pack(*block) for block in self._blocks))
        self._write(directory)
        content_hash = hash_content(header.head_bytes, header.content_bytes, self._blocks)
        complete = dataclasses.replace(
            header,
            directory_bytes=len(directory),
            body_bytes=self._at_bytes - HEADER_BYTES,
            body_hash=self._hasher.digest(),
            content_hash=header.content_hash if header.cipher else content_hash,
        )
        self._file.seek(0)
        self._file.write(complete.sign(signer))
        return SealedInfo(content_hash, header.content_bytes, self._at_bytes, header.key_id)
