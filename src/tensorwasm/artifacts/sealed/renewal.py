"""Puts sealed files under the keys of today: the content, and the hash by which it is known, stay what they are."""

from __future__ import annotations

import dataclasses
import secrets
from typing import BinaryIO

from tensorwasm.artifacts.ring import KeyRing
from tensorwasm.artifacts.sealed.blocks import SALT_BYTES, Coder
from tensorwasm.artifacts.sealed.header import Content
from tensorwasm.artifacts.sealed.reader import SealedFile
from tensorwasm.artifacts.sealed.source import Source
from tensorwasm.artifacts.sealed.writer import Body, Digest


def renew_sealed(source: Source, file: BinaryIO, ring: KeyRing, *, content: Content) -> Digest | None:
    """Write a file once more: signed by the ring's signer and, if it was encrypted, encrypted under its first cipher.

    Nothing is decompressed. What is signed is verified first, all of it, under the keys of the ring.

    Args:
        source: the file.
        file: what is written to, empty and open.
        ring: keys that the file may be signed and encrypted with, and those it shall be.
        content: what it must be.

    Returns:
        What was written; None, and nothing is, if the file is under these keys already.

    Raises:
        SealRefused: one of its kinds says why.
        SigningNotConfigured: the ring has no key that signs.
        TooLarge: it says, or is, more than a writer makes.
        OSError: it cannot be read or written.
    """
    signer = ring.require_signer()
    with SealedFile.open(source, ring, content=content) as sealed:
        old = sealed.header
        cipher = ring.require_cipher() if old.cipher else None
        if (old.key_id, old.cipher_id) == (signer.id, cipher.id if cipher else ""):
            return None
        header = dataclasses.replace(
            old,
            algorithm=signer.algorithm,
            key_id=signer.id,
            cipher_id=cipher.id if cipher else "",
            salt=secrets.token_bytes(SALT_BYTES) if cipher else old.salt,
        )
        coder = Coder(header.constant(), None, cipher, header.salt)
        body = Body(file, coder, aligned=cipher is None)
        for index, (block, data) in enumerate(sealed.load_stored()):
            body.add(*coder.seal_stored(index, block, data))
        header, content_hash = body.finish(header)
    file.seek(0)
    file.write(header.sign(signer))
    return Digest(content_hash, sealed.header.content_bytes, sealed.file_bytes, signer.id)
