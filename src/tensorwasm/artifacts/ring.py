"""The keys of one purpose: one that signs, those that verify, and those that encrypt.

A key is replaced in two steps: the new one signs while the old one still verifies, and once nothing of the old one's is
left, the old one goes. The same holds of the keys that encrypt: the first one does, all of them decrypt.

As text a key is ``KIND:VALUE``: the kind one of ``hmac``, ``ed25519`` and ``ed25519-public``, the value 64 hexadecimal
digits or the path of a file with 32 bytes, 64 hexadecimal digits or, of Ed25519, PEM. Without a kind it is ``hmac``.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tensorwasm import settings
from tensorwasm.artifacts import private
from tensorwasm.artifacts.keys import (
    KEY_BYTES,
    Ed25519Key,
    Ed25519PublicKey,
    HmacKey,
    Key,
    Verifier,
    key_id,
    machine_key,
)
from tensorwasm.errors import InvalidKey, SigningNotConfigured, UnsafeFile

_FILE_CAP_BYTES: Final = 16 << 10
_HEX: Final = re.compile(r"[0-9a-fA-F]{64}", re.ASCII)
_PEM: Final = b"-----BEGIN "


class CipherKey:
    """A secret of 32 bytes that files are encrypted under. Files have keys of their own, made from it."""

    __slots__ = ("id", "secret")

    def __init__(self, secret: bytes) -> None:
        """Take a secret of 32 bytes.

        Raises:
            InvalidKey: it has another length.
        """
        if len(secret) != KEY_BYTES:
            raise InvalidKey(f"a key has {KEY_BYTES} bytes, not {len(secret)}")
        self.secret = bytes(secret)
        self.id = key_id(self.secret)

    def __repr__(self) -> str:
        return f"CipherKey({self.id})"


@dataclass(frozen=True, slots=True)
class KeyRing:
    """Keys for sealed files.

    Attributes:
        signer: what signs; None for a ring that only verifies.
        verifiers: by id, the signer among them.
        ciphers: by id; the first one encrypts.
    """

    signer: Key | None
    verifiers: Mapping[str, Verifier] = field(default_factory=dict)
    ciphers: Mapping[str, CipherKey] = field(default_factory=dict)

    @classmethod
    def of(cls, signer: Key | None, *others: Verifier, ciphers: Iterable[CipherKey] = ()) -> KeyRing:
        """Return the ring of these keys.

        Raises:
            InvalidKey: two keys of different kinds are the same 32 bytes, so that a public key would be a secret.
        """
        verifiers: dict[str, Verifier] = {}
        for key in (*(() if signer is None else (signer,)), *others):
            known = verifiers.setdefault(key.id, key)
            if known.algorithm != key.algorithm:
                raise InvalidKey(f"the key {key.id} is given as two kinds of key")
        return cls(signer, verifiers, {cipher.id: cipher for cipher in ciphers})

    @classmethod
    def from_settings(cls) -> KeyRing:
        """Return the ring that this process's settings describe; without a key that signs, the machine's own signs.

        Reads the files that the settings name, at every call.

        Raises:
            InvalidKey: a setting is no key; the message names the setting and not the key.
            UnsafeFile: a file of a key is missing, another user's or open to others.
        """
        current = settings.current()
        signer = _signing("TENSOR_WASM_SNAPSHOT_KEY", current.snapshot_key)
        trusted = [_parse("TENSOR_WASM_SNAPSHOT_TRUST", text) for text in _split(current.snapshot_trust)]
        return cls.of(signer, *trusted, ciphers=ciphers_from_settings())

    def require_signer(self) -> Key:
        """Return the key that signs.

        Raises:
            SigningNotConfigured: there is none.
        """
        if self.signer is None:
            raise SigningNotConfigured("there is no key that signs: set TENSOR_WASM_SNAPSHOT_KEY")
        return self.signer

    def require_cipher(self) -> CipherKey:
        """Return the key that encrypts.

        Raises:
            SigningNotConfigured: there is none.
        """
        for cipher in self.ciphers.values():
            return cipher
        raise SigningNotConfigured("there is no key that encrypts: set TENSOR_WASM_SNAPSHOT_CIPHER_KEY")


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of key, and how its PEM is read: a function of cryptography's, and the class of what comes out of it."""

    make: Callable[[bytes], HmacKey | Ed25519Key | Ed25519PublicKey]
    secret: bool
    load: Callable[[bytes], bytes] | None = None


def _load_private(pem: bytes) -> bytes:
    loaded = importlib.import_module("cryptography.hazmat.primitives.serialization").load_pem_private_key(pem, None)
    return bytes(_require(loaded, "Ed25519PrivateKey").private_bytes_raw())


def _load_public(pem: bytes) -> bytes:
    loaded = importlib.import_module("cryptography.hazmat.primitives.serialization").load_pem_public_key(pem)
    return bytes(_require(loaded, "Ed25519PublicKey").public_bytes_raw())


def _require(loaded: Any, kind: str) -> Any:
    if not isinstance(
        loaded, getattr(importlib.import_module("cryptography.hazmat.primitives.asymmetric.ed25519"), kind)
    ):
        raise TypeError(kind)
    return loaded


_KINDS: Final[Mapping[str, _Kind]] = {
    "hmac": _Kind(HmacKey, secret=True),
    "ed25519": _Kind(Ed25519Key, secret=True, load=_load_private),
    "ed25519-public": _Kind(Ed25519PublicKey, secret=False, load=_load_public),
}


def ciphers_from_settings() -> tuple[CipherKey, ...]:
    """Return the keys that this process's settings say encrypt.

    Raises:
        InvalidKey: a setting is no key; the message names the setting and not the key.
        UnsafeFile: a file of a key is missing, another user's or open to others.
    """
    given = _split(settings.current().snapshot_cipher_key)
    return tuple(_cipher("TENSOR_WASM_SNAPSHOT_CIPHER_KEY", text) for text in given)


def secret_of(name: str, text: str) -> HmacKey:
    """Return the key that a setting has as 64 hexadecimal digits, or as the path of a file.

    Raises:
        InvalidKey: it is neither; the message names the setting and not the key.
        UnsafeFile: the file is missing, another user's or open to others.
    """
    if not _HEX.fullmatch(text) and "/" not in text:  # a key with a slip in it is no file's name
        raise InvalidKey(f"{name} is neither 64 hexadecimal digits nor the path of a file")
    return HmacKey(_value(name, text, _KINDS["hmac"]))


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _signing(name: str, text: str) -> Key:
    if not text:
        return machine_key("snapshot")
    key = _parse(name, text)
    if isinstance(key, Ed25519PublicKey):
        raise InvalidKey(f"{name} signs: it cannot be a public key")
    return key


def _parse(name: str, text: str) -> HmacKey | Ed25519Key | Ed25519PublicKey:
    """Return the key that a setting has as text."""
    word, colon, rest = text.partition(":")
    known = bool(colon) and word in _KINDS
    kind = _KINDS[word if known else "hmac"]
    return kind.make(_value(name, rest if known else text, kind))


def _cipher(name: str, text: str) -> CipherKey:
    return CipherKey(_value(name, text, _KINDS["hmac"]))


def _value(name: str, value: str, kind: _Kind) -> bytes:
    """Return 32 bytes from hexadecimal digits or a file."""
    if _HEX.fullmatch(value):
        return bytes.fromhex(value)
    if not value or "\0" in value:
        raise InvalidKey(f"{name} is neither 64 hexadecimal digits nor the path of a file")
    what = f"the file that {name} names"
    others = private.OTHERS if kind.secret else private.OTHERS_WRITE
    try:
        data = private.read_file(Path(value), what, _FILE_CAP_BYTES, others=others, root=True)
    except FileNotFoundError:
        raise UnsafeFile(f"{what} is not there; a key itself would be 64 hexadecimal digits") from None
    return _content(what, data, kind)


def _content(what: str, data: bytes, kind: _Kind) -> bytes:
    """Return 32 bytes from what a file has."""
    if len(data) == KEY_BYTES:
        return data
    text = data.strip()
    if _HEX.fullmatch(text.decode("latin-1")):
        return bytes.fromhex(text.decode("ascii"))
    if kind.load is None or not text.startswith(_PEM):
        raise InvalidKey(f"{what} has no key of that kind in it")
    unsupported = importlib.import_module("cryptography.exceptions").UnsupportedAlgorithm
    try:
        return kind.load(text)
    except (ValueError, TypeError, unsupported):
        raise InvalidKey(f"{what} has no Ed25519 key of that kind in it, or one with a password") from None
