"""Sealed files: compressed, hashed, signed, encrypted if asked, and verified before a byte is parsed or decompressed.

A file is a header of 256 bytes and a body. The header has the BLAKE3 hash of the body, and the signature is of the
header: so whoever reads one first checks 192 bytes, knows then how long the file has to be, and hashes no more than was
signed for. The format, field by field, is in ``docs/snapshot-format.md``.

What is encrypted is signed afterwards. So a file can be verified, and thrown away, by those who may not read it, no key
that decrypts meets a byte that nobody signed, and the hash of the body says nothing of the content. The price is that
a signature does not prove that its maker could read what it signed; nothing here draws that conclusion.
"""

from tensorwasm.artifacts.sealed.blocks import BLOCK_BYTES
from tensorwasm.artifacts.sealed.header import (
    MAX_CONTENT_BYTES,
    MAX_FILE_BYTES,
    MAX_HEAD_BYTES,
    Cipher,
    Compression,
    Content,
    Header,
)
from tensorwasm.artifacts.sealed.reader import SealedFile
from tensorwasm.artifacts.sealed.renewal import renew_sealed
from tensorwasm.artifacts.sealed.source import Source
from tensorwasm.artifacts.sealed.writer import DEFAULT, Digest, Sealing, write_sealed

__all__ = [
    "BLOCK_BYTES",
    "DEFAULT",
    "MAX_CONTENT_BYTES",
    "MAX_FILE_BYTES",
    "MAX_HEAD_BYTES",
    "Cipher",
    "Compression",
    "Content",
    "Digest",
    "Header",
    "SealedFile",
    "Sealing",
    "Source",
    "renew_sealed",
    "write_sealed",
]
