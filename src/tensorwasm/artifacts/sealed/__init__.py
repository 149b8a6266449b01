"""Sealed files: compressed, hashed, signed, encrypted if asked, and verified before a byte is parsed or decompressed.

A file is a header of 256 bytes and a body. The header has the BLAKE3 hash of the body, and the signature is of the
header: a reader first checks 192 bytes, knows then how long the file has to be, and hashes no more than was signed for.
The format, field by field, is in ``docs/snapshot-format.md``.

Encryption comes before the signature. So a file can be verified, and refused, without the right to read it, no
decryption key meets an unsigned byte, and the hash of the body reveals nothing of the content. The price is that
a signature does not prove that its maker could read what it signed; nothing here draws that conclusion.
"""
