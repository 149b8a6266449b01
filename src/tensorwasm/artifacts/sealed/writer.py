"""Writes sealed files."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from tensorwasm.artifacts import durable, hashing
from tensorwasm.artifacts.ring import KeyRing
from tensorwasm.artifacts.sealed.blocks import (
    DIRECTORY_INDEX,
    ENTRY,
    PAGE_BYTES,
    SALT_BYTES,
    Block,
    Codec,
    Coder,
    cut,
    hash_content,
)
from tensorwasm.artifacts.sealed.header import HEADER_BYTES, Cipher, Compression, Content, Header, require_sizes
from tensorwasm.artifacts.sealed.threads import count_threads, map_in_order
from tensorwasm.errors import InvalidArgs

_MAX_LEVEL: Final = 22
_NO_SALT: Final = bytes(SALT_BYTES)


@dataclass(frozen=True, slots=True)
class Sealing:
    """How a file is sealed.

    Attributes:
        level: of zstd, 1 to 22; None does not compress.
        encrypted: None encrypts if the ring has a key for it.
        signed: False makes a file that only those take who ask for unsigned ones.
        threads: None takes one for each processor.

    Raises:
        InvalidArgs: there is no such level.
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
class Digest:
    """What a file was written as.

    Attributes:
        content_hash: of the content, whatever it was compressed, signed or encrypted with.
        content_bytes: its length.
        file_bytes: the file's length.
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
) -> Digest:
    """Write a sealed file; at a path whole or not at all, and it is on the disk when this returns.

    Args:
        to: the path that it replaces or becomes, or a new file that is open.
        head: the structured part of the content.
        rest: what follows it. Nobody may change it meanwhile.
        ring: its signer signs, its first cipher encrypts.
        sealing: how.
        content: what it is.
        module_hash: of the module it belongs to, 32 bytes.

    Raises:
        SigningNotConfigured: the ring has no key for what is asked.
        TooLarge: there is more than a reader takes.
        OSError: it cannot be written; the path has what it had before (`durable.replace`).
    """
    parts = [memoryview(part).cast("B") for part in rest]
    content_bytes = len(head) + sum(map(len, parts))
    require_sizes(content_bytes, len(head))
    signer = ring.require_signer() if sealing.signed else None
    encrypted = bool(ring.ciphers) if sealing.encrypted is None else sealing.encrypted
    cipher = ring.require_cipher() if encrypted else None
    header = Header(
        content,
        Compression.NONE if sealing.level is None else Compression.ZSTD,
        Cipher.CHACHA20_POLY1305 if encrypted else Cipher.NONE,
        signer.algorithm if signer else None,
        signer.id if signer else "",
        cipher.id if cipher else "",
        module_hash,
        secrets.token_bytes(SALT_BYTES) if encrypted else _NO_SALT,
        content_bytes,
        len(head),
    )
    coder = Coder(header.constant(), sealing.level, cipher, header.salt)
    blocks = list(enumerate([*cut([memoryview(head)]), *cut(parts)]))
    threads = count_threads(sealing.threads, content_bytes)
    with durable.replace(to) if isinstance(to, Path) else nullcontext(to) as file:
        body = Body(file, coder, aligned=not encrypted)
        for block, stored in map_in_order(lambda item: coder.encode(*item), blocks, threads):
            body.add(block, stored)
        header, content_hash = body.finish(header)
        file.seek(0)
        file.write(header.sign(signer))
    return Digest(content_hash, content_bytes, HEADER_BYTES + header.body_bytes, header.key_id)


class Body:
    """What follows the header, as it grows."""

    def __init__(self, file: BinaryIO, coder: Coder, *, aligned: bool) -> None:
        self._file = file
        self._coder = coder
        self._aligned = aligned
        self._hasher: Any = hashing.hasher()
        self._blocks: list[Block] = []
        self._known: dict[tuple[bytes, int], Block] = {}
        self._at_bytes = HEADER_BYTES
        file.seek(HEADER_BYTES)

    def add(self, block: Block, stored: bytes | memoryview) -> None:
        """Store a block, unless one like it is stored already; of what is encrypted nobody shall know that."""
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

    def finish(self, header: Header) -> tuple[Header, bytes]:
        """Write the directory; return the complete header, and the content's hash."""
        entries = b"".join(ENTRY.pack(*block) for block in self._blocks)
        directory = self._coder.encrypt(DIRECTORY_INDEX, entries)
        self._write(directory)
        content_hash = hash_content(header.head_bytes, header.content_bytes, self._blocks)
        complete = dataclasses.replace(
            header,
            directory_bytes=len(directory),
            body_bytes=self._at_bytes - HEADER_BYTES,
            body_hash=self._hasher.digest(),
            content_hash=header.content_hash if header.cipher else content_hash,
        )
        return complete, content_hash
