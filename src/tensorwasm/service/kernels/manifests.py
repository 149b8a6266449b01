"""Manifests of kernels, which publishers sign. Pure.

A signature is HMAC-SHA256 of an envelope. Envelope 1 has name, version, architecture and digest, and ends texts with a
NUL: it lacks publisher and time, and is ambiguous if a text contains a NUL. Envelope 2 has every field, each text after
its length. `sign_manifest` uses envelope 2; envelope 1 is accepted where it is unambiguous and what it lacks does not
matter.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from dataclasses import dataclass, replace
from typing import Final

from tensorwasm.artifacts.hashing import HASH_BYTES, blake3
from tensorwasm.artifacts.keys import HmacKey
from tensorwasm.errors import BadSignature, DigestMismatch, InvalidName, InvalidRequest, MalformedPtx
from tensorwasm.ptx import MAX_PTX_BYTES

MAX_NAME_BYTES: Final = 255
MAX_SM_VERSION: Final = 9999
MAX_UNIX_MS: Final = (1 << 63) - 1
SIGNATURE_BYTES: Final = 32

_V2: Final = b"tensor-wasm kernel manifest 2\0"
_LENGTH: Final = struct.Struct("<I")
_NUMBERS: Final = struct.Struct("<IQ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The signed description of a kernel.

    Attributes:
        name: 1 to 255 printable bytes, one part of a path; unique with the version, which has the same form.
        sm_version: compute capability, 90 for 9.0.
        digest: BLAKE3 of the text as UTF-8, 32 bytes.
        publisher: may be empty.
        signature: 32 bytes; empty before it is signed.
    """

    name: str
    version: str
    sm_version: int
    digest: bytes
    publisher: str = ""
    published_unix_ms: int = 0
    signature: bytes = b""


def check_manifest(manifest: Manifest) -> None:
    """Check the fields; raise InvalidName for a text and InvalidRequest for a number, digest or signature."""
    for what, text in (("name", manifest.name), ("version", manifest.version)):
        _check_text(what, text, 1)
        if "/" in text or text in {".", ".."}:
            raise InvalidName(f"{what} is one part of a path: it has no slash, and is not . or ..")
    _check_text("publisher", manifest.publisher, 0)
    if not 1 <= manifest.sm_version <= MAX_SM_VERSION:
        raise InvalidRequest(f"sm_version is 1 to {MAX_SM_VERSION}")
    if not 0 <= manifest.published_unix_ms <= MAX_UNIX_MS:
        raise InvalidRequest(f"published_unix_ms is 0 to {MAX_UNIX_MS}")
    if len(manifest.digest) != HASH_BYTES or len(manifest.signature) not in {0, SIGNATURE_BYTES}:
        raise InvalidRequest("a digest has 32 bytes, and so has a signature")


def check_text(ptx: str) -> bytes:
    """Return the bytes of a kernel's text; raise MalformedPtx if it is not ASCII, or too long."""
    if len(ptx) > MAX_PTX_BYTES:
        raise MalformedPtx(f"a kernel has at most {MAX_PTX_BYTES} bytes, not {len(ptx)}")
    if not ptx.isascii():
        raise MalformedPtx("PTX is ASCII, and this text is not")
    return ptx.encode("ascii")


def digest_of(text: bytes) -> bytes:
    """Return the digest of a kernel's text: 32 bytes."""
    return blake3(text)


def require_digest(manifest: Manifest, text: bytes) -> None:
    """Raise DigestMismatch if a manifest's digest is not that of a text."""
    if not hmac.compare_digest(digest_of(text), manifest.digest):
        raise DigestMismatch("the manifest's digest is not that of the text")


def envelope_1(manifest: Manifest) -> bytes:
    """Return the bytes that old signatures are of."""
    names = b"".join(text.encode() + b"\0" for text in (manifest.name, manifest.version))
    return names + _LENGTH.pack(manifest.sm_version) + manifest.digest


def envelope_2(manifest: Manifest) -> bytes:
    """Return the bytes that signatures are of, different for any two manifests."""
    texts = (text.encode() for text in (manifest.name, manifest.version, manifest.publisher))
    named = b"".join(_LENGTH.pack(len(text)) + text for text in texts)
    return _V2 + named + _NUMBERS.pack(manifest.sm_version, manifest.published_unix_ms) + manifest.digest


def sign_manifest(manifest: Manifest, key: HmacKey) -> Manifest:
    """Return a manifest with its signature, under envelope 2. Raises as `check_manifest` does."""
    check_manifest(manifest)
    return replace(manifest, signature=key.sign(envelope_2(manifest)))


def verify_manifest(manifest: Manifest, key: HmacKey, *, whole: bool = False) -> int:
    """Return the number of the envelope that a manifest's signature is of. Takes constant time.

    The manifest must pass `check_manifest`. With `whole` every field must be signed, so that envelope 1 is refused.
    Raise BadSignature if the signature is of no accepted envelope.
    """
    second = key.verify(envelope_2(manifest), manifest.signature)
    first = key.verify(envelope_1(manifest), manifest.signature)
    clear = "\0" not in manifest.name + manifest.version
    if second:
        return 2
    if first and clear and not whole:
        return 1
    raise BadSignature("the signature is not that of the publishers' key" if not first else "publisher is not signed")


def token_digest(token: str) -> bytes:
    """Return the SHA-256 of a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def _check_text(what: str, text: str, least: int) -> None:
    try:
        length = len(text.encode())
    except UnicodeEncodeError:
        length = 0
    if not least <= length <= MAX_NAME_BYTES or (text and not text.strip()):
        raise InvalidName(f"{what} has {least} to {MAX_NAME_BYTES} bytes, and not only blanks")
    if any(not each.isprintable() for each in text):
        raise InvalidName(f"{what} has characters that are not printable")
