"""A reader of snapshot files made from ``docs/snapshot-format.md`` alone: nothing in it is the package's."""

from __future__ import annotations

import hashlib
import hmac
import struct
from dataclasses import dataclass

import msgspec
import zstandard
from blake3 import blake3
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

KINDS = ("i32", "i64", "f32", "f64", "v128", "funcref")


@dataclass
class Found:
    content_hash: bytes
    module_hash: bytes
    made_unix_ms: int
    memories: list
    buffers: dict
    globals: list
    tables: list
    grants: list
    texts: list
    input: bytes


def hashed(data):
    return blake3(data).digest()


def read_file(data, secret, public):
    """Read a file that is whole, or fail an assertion."""
    magic, version, content, packed, sealed, kind, key_id, cipher_id, module, salt = struct.unpack_from(
        "<8sHHBBBx8s8s32s32s", data
    )
    sizes = struct.unpack_from("<QQQQ32s32s", data, 96)
    content_bytes, head_bytes, directory_bytes, body_bytes, body_hash, content_hash = sizes
    assert (magic, version, content) == (b"\x89TWS\r\n\x1a\n", 1, 1)
    check_signature(kind, key_id, data[:192], data[192:256], secret, public)
    assert len(data) == 256 + body_bytes
    assert hashed(data[256:]) == body_hash
    aead = None
    if sealed:
        assert cipher_id == hashed(secret)[:8]
        aead = ChaCha20Poly1305(hmac.digest(secret, b"tensor-wasm sealed file\0" + salt, hashlib.sha256))

    def opened(number, stored):
        return aead.decrypt(bytes(4) + number, stored, data[:96]) if aead else stored

    whole, listed = b"", struct.pack("<QQ", head_bytes, content_bytes)
    directory = opened(b"\xff" * 8, data[len(data) - directory_bytes :])
    for number, entry in enumerate(struct.iter_unpack("<QIIB7s32s32s", directory)):
        at, stored_bytes, raw_bytes, codec, pad, stored_hash, raw_hash = entry
        stored = data[at : at + stored_bytes]
        assert hashed(stored) == stored_hash
        assert pad == bytes(7)
        assert packed or codec != 1
        raw = bytes(raw_bytes) if codec == 2 else opened(number.to_bytes(8, "little"), stored)
        raw = zstandard.ZstdDecompressor().decompress(raw) if codec == 1 else raw
        assert (len(raw), hashed(raw)) == (raw_bytes, raw_hash)
        whole += raw
        listed += struct.pack("<I", raw_bytes) + raw_hash
    assert len(whole) == content_bytes
    assert content_hash == (bytes(32) if sealed else hashed(listed))
    return read_content(whole, head_bytes, module, hashed(listed))


def check_signature(kind, key_id, message, signature, secret, public):
    if kind == 0:
        assert signature == hashed(message) + bytes(32)
    elif kind == 1:
        assert key_id == hashed(secret)[:8]
        assert signature == hmac.digest(secret, message, hashlib.sha256) + bytes(32)
    else:
        assert key_id == hashed(public)[:8]
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)


def read_content(content, head_bytes, module, content_hash):
    assert content[:8] == b"TWSN\x01\0\0\0"
    head = msgspec.msgpack.decode(content[8:head_bytes])
    assert len(head) == 12
    assert head[0] == module
    at = head_bytes

    def take(size):
        nonlocal at
        at += size
        return content[at - size : at]

    def spread(part):
        _, size, runs = part
        found = bytearray(size)
        for offset, length in struct.iter_unpack("<QQ", runs):
            found[offset : offset + length] = take(length)
        return bytes(found)

    session = head[11] or [[], [], [], [], [], "auto"]
    memories = [spread(part) for part in head[4]]
    buffers = {part[0]: spread(part) for part in session[0]}
    texts = [take(length) for _, length, _ in session[1]]
    rest = take(head[9])
    assert at == len(content)
    values = [
        (index, KINDS[kind], None if null else int.from_bytes(bits, "little"))
        for index, kind, null, bits in struct.iter_unpack("<IBB16s", head[5])
    ]
    tables = [
        (index, [None if f == 0xFFFFFFFF else f for (f,) in struct.iter_unpack("<I", data)]) for index, data in head[6]
    ]
    return Found(content_hash, head[0], head[3], memories, buffers, values, tables, head[10], texts, rest)
