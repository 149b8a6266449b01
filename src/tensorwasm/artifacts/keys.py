"""Keys that sign, keys that only verify, and the machine's own.

A key is known by its id: the first 8 bytes of the BLAKE3 hash of the key, of a pair of its public half, in hexadecimal
digits. No key shows its secret in ``repr``, and no message has it.
"""

from __future__ import annotations

import hashlib
import hmac
import importlib
import re
import secrets
from enum import IntEnum
from pathlib import Path
from typing import Any, Final, Protocol

from tensorwasm import settings
from tensorwasm.artifacts import private
from tensorwasm.artifacts.hashing import blake3
from tensorwasm.errors import InvalidKey, UnsafeFile

KEY_BYTES: Final = 32
ID_BYTES: Final = 8
_PURPOSE: Final = re.compile(r"[a-z][a-z0-9-]{0,31}", re.ASCII)


class Algorithm(IntEnum):
    """How a signature is made; the numbers are those in sealed files."""

    HMAC_SHA256 = 1
    ED25519 = 2


SIGNATURE_BYTES: Final = {Algorithm.HMAC_SHA256: 32, Algorithm.ED25519: 64}


class Verifier(Protocol):
    """What tells whether a signature is right."""

    @property
    def id(self) -> str:
        """16 hexadecimal digits."""

    @property
    def algorithm(self) -> Algorithm:
        """How its signatures are made."""

    def verify(self, message: bytes, signature: bytes) -> bool:
        """Return whether the signature is of this key and this message; of any bytes, in constant time for a length."""


class Key(Verifier, Protocol):
    """What signs, and verifies what it signed."""

    def sign(self, message: bytes) -> bytes:
        """Return the signature of a message: `SIGNATURE_BYTES` of its algorithm."""


def key_id(key: bytes) -> str:
    """Return the id of a key, or of the public half of a pair."""
    return blake3(key)[:ID_BYTES].hex()


class HmacKey:
    """A secret that signs and verifies by HMAC-SHA256.

    Source: RFC 2104; FIPS 198-1.
    """

    __slots__ = ("_secret", "id")
    algorithm: Final = Algorithm.HMAC_SHA256

    def __init__(self, secret: bytes) -> None:
        """Take a secret of 32 bytes.

        Raises:
            InvalidKey: it has another length.
        """
        self._secret = _exactly(secret)
        self.id = key_id(self._secret)

    def sign(self, message: bytes) -> bytes:
        """Return 32 bytes."""
        return hmac.digest(self._secret, message, hashlib.sha256)

    def copy_to(self, above: Path, purpose: str, what: str) -> HmacKey:
        """Keep it in another folder too, as `make_key` does."""
        return make_key(above, purpose, what, self._secret)

    def verify(self, message: bytes, signature: bytes) -> bool:
        """Return whether the signature is this key's, in a time that does not depend on where it differs."""
        return hmac.compare_digest(self.sign(message), bytes(signature))

    def __repr__(self) -> str:
        return f"HmacKey({self.id})"


class Ed25519PublicKey:
    """The public half of a pair: it verifies.

    Source: RFC 8032, 5.1.7.
    """

    __slots__ = ("_key", "id", "raw")
    algorithm: Final = Algorithm.ED25519

    def __init__(self, raw: bytes) -> None:
        """Take the 32 bytes of a public key.

        Raises:
            InvalidKey: they have another length, or are none.
        """
        self.raw = _exactly(raw)
        try:
            self._key = _ed25519().Ed25519PublicKey.from_public_bytes(self.raw)
        except ValueError:
            raise InvalidKey("these 32 bytes are no Ed25519 public key") from None
        self.id = key_id(self.raw)

    def verify(self, message: bytes, signature: bytes) -> bool:
        """Return whether the signature is of this key's private half."""
        invalid = importlib.import_module("cryptography.exceptions").InvalidSignature
        try:
            self._key.verify(bytes(signature), message)
        except invalid:
            return False
        return True

    def __repr__(self) -> str:
        return f"Ed25519PublicKey({self.id})"


class Ed25519Key:
    """A pair: it signs, and verifies with its public half.

    Attributes:
        public: that half.

    Source: RFC 8032, 5.1.5 and 5.1.6.
    """

    __slots__ = ("_key", "id", "public")
    algorithm: Final = Algorithm.ED25519

    def __init__(self, seed: bytes) -> None:
        """Take the 32 bytes that RFC 8032 calls the private key.

        Raises:
            InvalidKey: they have another length.
        """
        self._key = _ed25519().Ed25519PrivateKey.from_private_bytes(_exactly(seed))
        self.public = Ed25519PublicKey(self._key.public_key().public_bytes_raw())
        self.id = self.public.id

    def sign(self, message: bytes) -> bytes:
        """Return 64 bytes, the same ones for the same message."""
        return bytes(self._key.sign(message))

    def verify(self, message: bytes, signature: bytes) -> bool:
        """Return whether the signature is this pair's."""
        return self.public.verify(message, signature)

    def __repr__(self) -> str:
        return f"Ed25519Key({self.id})"


def machine_key(purpose: str) -> Key:
    """Return this machine's own key for a purpose: 32 random bytes, made when it is first asked for.

    They are in the file ``keys/<purpose>`` of `settings.state_dir`, mode 0600 in a folder with mode 0700. Of processes
    that ask at once all get the same key. Reads a file at every call.

    Args:
        purpose: ``code`` or ``snapshot``, or another word of small letters: keys of different purposes are different.

    Raises:
        InvalidKey: the purpose is no such word, or the file has not 32 bytes.
        UnsafeFile: folder or file are another user's or open to others, or cannot be made.
    """
    if _PURPOSE.fullmatch(purpose) is None:
        raise InvalidKey(f"a key's purpose is a word of small letters, not {purpose[:40]!r}")
    return kept_key(settings.state_dir(), purpose, private.STATE) or make_key(
        settings.state_dir(), purpose, private.STATE, secrets.token_bytes(KEY_BYTES)
    )


def kept_key(above: Path, purpose: str, what: str) -> HmacKey | None:
    """Return the key in the file ``keys/<purpose>`` of a folder; None if there is none.

    Args:
        above: the folder.
        purpose: of the key.
        what: how messages call the folder.

    Raises:
        InvalidKey: the file has not 32 bytes.
        UnsafeFile: folder or file are another user's or open to others, or cannot be read.
    """
    path = private.open_folder(above, "keys", what) / purpose
    try:
        return HmacKey(private.read_file(path, f"the key keys/{purpose} in {what}", KEY_BYTES))
    except FileNotFoundError:
        return None


def make_key(above: Path, purpose: str, what: str, secret: bytes) -> HmacKey:
    """Keep a key in the file ``keys/<purpose>`` of a folder unless there is one, and return the one that is there then.

    Raises:
        InvalidKey: the file has not 32 bytes.
        UnsafeFile: it cannot be made, or `kept_key` refuses it.
    """
    try:
        private.make_file(private.open_folder(above, "keys", what) / purpose, secret)
    except OSError as error:
        raise UnsafeFile(f"the key keys/{purpose} in {what} cannot be made: {error.strerror}") from None
    found = kept_key(above, purpose, what)
    if found is None:
        raise UnsafeFile(f"the key keys/{purpose} in {what} was taken away")
    return found


def _exactly(key: bytes) -> bytes:
    if len(key) != KEY_BYTES:
        raise InvalidKey(f"a key has {KEY_BYTES} bytes, not {len(key)}")
    return bytes(key)


def _ed25519() -> Any:
    return importlib.import_module("cryptography.hazmat.primitives.asymmetric.ed25519")
